"""How commands find an ensemble, and how ``ensemble pick`` shows what it picked."""

from pathlib import Path

from hydragnn_hpo.cli.arguments import ensemble_file, shipped_or_path
from hydragnn_hpo.cli.ensemble_command import _picks_table
from hydragnn_hpo.cli.tables import console
from hydragnn_hpo.ensemble import read_artefact
from hydragnn_hpo.resources import resource_path


def test_brackets_in_the_name_of_a_structure_are_no_markup(capsys):
    entry = {"pick": 1, "id": "runs[/x]/a[red].xyz:7", "score": 1.5, "distance": None}
    counts = {"read": 1, "bad": 0}
    plain = {"picked": [{**entry, "trust": "ok"}], "counts": counts}
    console().print(_picks_table({**plain, "mean_distance": 0.5, "mean_distance_top": 0.25}))
    assert "runs[/x]/a[red].xyz:7" in capsys.readouterr().out


def test_the_shipped_ensemble_is_found_from_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = Path("workflows/small_organics.zip")
    assert ensemble_file(named) == resource_path(str(named))
    message = "not in this folder; the one that ships with hydragnn-hpo is read\n"
    assert capsys.readouterr().err == f"{named}: {message}"
    second = Path("workflows/molecules.xyz@1")
    assert shipped_or_path(second) == resource_path("workflows/molecules.xyz").with_name(
        "molecules.xyz@1"
    )
    assert capsys.readouterr().err == f"workflows/molecules.xyz: {message}"
    Path("workflows").mkdir()
    Path("workflows/molecules.xyz").touch()
    assert shipped_or_path(second) == second, "a file of the user is taken first"
    missing = Path("workflows/no_such.zip")
    assert ensemble_file(missing) == missing


def test_the_shipped_ensemble_is_small_and_made_by_the_shipped_campaign():
    path = resource_path("workflows/small_organics.zip")
    assert path.stat().st_size < 2 * 2**20
    content = read_artefact(path)
    manifest = content.manifest
    assert manifest.created_by.campaign == "quickstart"
    assert all(head.baseline is not None for head in manifest.heads.values())
    assert content.features is not None, "distances to the training set need them"
    assert set(manifest.data.card_files) == {"small_organics"}
