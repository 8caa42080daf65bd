"""What differs between two ensembles, part by part."""

from pathlib import Path

from hydragnn_hpo.ensemble.artefact import archive
from hydragnn_hpo.ensemble.artefact.diff import diff
from hydragnn_hpo.ensemble.artefact.prune import prune

GOLDEN = Path(__file__).parent / "golden"


def test_an_ensemble_is_itself(built_zip: Path) -> None:
    found = archive.survey(built_zip)
    assert diff(found, found) == {"same": True, "differences": {}}


def test_pruning_shows(built_zip: Path, tmp_path: Path) -> None:
    content, identity = archive.read_with_identity(built_zip)
    names = [member.trial for member in content.manifest.members]
    smaller, _ = prune(content, names[1:], parent=identity, where="here")
    archive.save(tmp_path / "small.zip", smaller)
    found = diff(archive.survey(built_zip), archive.survey(tmp_path / "small.zip"))
    assert not found["same"]
    changes = found["differences"]
    assert changes["members"][names[0]] == ["member", None]
    old = content.manifest.members[1].weights["energy"]
    new = smaller.manifest.members[0].weights["energy"]
    assert changes["members"][f"{names[1]}.weights.energy"] == [old, new]
    assert not [key for key in changes["members"] if key.endswith(("sha256", "config.seed"))]
    old_b = content.manifest.heads["energy"].calibration.b
    assert changes["calibration"]["energy.b"][0] == old_b
    assert changes["scores"]["energy.test_mae"][1] is None
    assert changes["made"]["pruned"] == [
        [],
        [{"parent": identity, "removed": [names[0]]}],
    ]
    assert "data" not in changes or "cutoff" in changes["data"]
    assert "heads" not in changes


def test_formats_are_compared_in_todays_words() -> None:
    old, new = (archive.survey(GOLDEN / f"format{number}.zip") for number in (1, 2))
    changes = diff(old, new)["differences"]
    assert changes["made"]["format"] == [1, 2]
    # The same nets, trained on the same data, weighed alike: only the words are new.
    assert "members" not in changes
