"""The zip: what goes in comes out, and nothing else is let in."""

import io
import json
import pickle
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sealed_zip import sealed, zip_entries

from hydragnn_hpo.ensemble.artefact import MAX_TEXT, SUMS, read_artefact
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import DataError, HydraError

Entries = dict[str, bytes]
Change = Callable[[Entries], None]


@pytest.fixture
def entries(built_zip: Path) -> Entries:
    with zipfile.ZipFile(built_zip) as file:
        return {name: file.read(name) for name in file.namelist()}


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "hostile.zip"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        Ensemble.load(path)
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hostile.zip"]
    return sentence


def test_what_goes_in_comes_out(built_zip: Path, tmp_path: Path) -> None:
    content = read_artefact(built_zip)
    write_artefact(tmp_path / "again.zip", content)
    again = read_artefact(tmp_path / "again.zip")
    assert again.manifest == content.manifest
    assert again.configs == content.configs
    for trial, tensors in content.weights.items():
        assert tensors.keys() == again.weights[trial].keys()
        assert all(torch.equal(tensors[k], again.weights[trial][k]) for k in tensors)
    assert (tmp_path / "again.zip").read_bytes() == built_zip.read_bytes()


def test_an_unchanged_repack_is_accepted(entries: Entries, tmp_path: Path) -> None:
    # The forger's tool below would prove nothing if it broke good files.
    (tmp_path / "good.zip").write_bytes(sealed(entries))
    assert len(Ensemble.load(tmp_path / "good.zip").members) >= 4


def test_the_entries_are_plain(entries: Entries) -> None:
    kinds = {Path(name).suffix or name for name in entries}
    assert kinds == {".json", ".toml", ".safetensors", ".md", SUMS}


def test_the_card_tells_the_scores_and_the_licence(entries: Entries) -> None:
    card = entries["MODEL_CARD.md"].decode()
    table = json.loads(entries["ensemble.json"])["evaluation"]
    assert f"{table['energy']['test_mae']:.4g}" in card
    assert "CC0-1.0" in card
    assert "`energy` in eV/atom" in card


@pytest.mark.parametrize(
    "name",
    ["../../evil.toml", "/etc/evil.toml", "members/../x.toml", "members\\x.toml", "C:x.toml"],
)
def test_names_that_leave_the_zip(entries: Entries, tmp_path: Path, name: str) -> None:
    sentence = refused(tmp_path, sealed({**entries, name: b"x"}))
    assert "has no place in an ensemble" in sentence


@pytest.mark.parametrize("name", ["members/t0001.pkl", "members/t0001.pt", "setup.py", "x/"])
def test_entries_of_other_kinds(entries: Entries, tmp_path: Path, name: str) -> None:
    sentence = refused(tmp_path, sealed({**entries, name: pickle.dumps({})}))
    assert "has no place in an ensemble" in sentence


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was executed')",)


def first(entries: Entries, suffix: str) -> str:
    own = [name for name in entries if not name.startswith(("data/", "calibration."))]
    return next(name for name in own if name.endswith(suffix))


def test_a_pickle_in_the_place_of_weights_is_not_executed(entries: Entries, tmp_path: Path) -> None:
    entries[first(entries, ".safetensors")] = pickle.dumps(Bomb())
    assert "is not a safetensors file" in refused(tmp_path, sealed(entries))


def test_a_torch_file_in_the_place_of_weights(entries: Entries, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, buffer)
    entries[first(entries, ".safetensors")] = buffer.getvalue()
    assert "is not a safetensors file" in refused(tmp_path, sealed(entries))


@pytest.mark.parametrize("suffix", [".safetensors", ".toml", "ensemble.json", "MODEL_CARD.md"])
def test_one_changed_byte(entries: Entries, tmp_path: Path, suffix: str) -> None:
    name = first(entries, suffix)
    entries[name] = entries[name][:-2] + bytes([entries[name][-2] ^ 1]) + entries[name][-1:]
    assert f"'{name}' does not have the checksum" in refused(tmp_path, zip_entries(entries))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file(built_zip: Path, tmp_path: Path, share: float) -> None:
    data = built_zip.read_bytes()
    sentence = refused(tmp_path, data[: int(share * len(data))])
    assert "cannot be read as a zip" in sentence


def test_bytes_changed_inside_a_compressed_entry(built_zip: Path, tmp_path: Path) -> None:
    data = bytearray(built_zip.read_bytes())
    data[120:140] = bytes(20)
    assert "cannot be read as a zip" in refused(tmp_path, bytes(data))


@pytest.mark.parametrize("suffix", [".safetensors", ".toml", "ensemble.json", SUMS])
def test_a_missing_entry(entries: Entries, tmp_path: Path, suffix: str) -> None:
    name = first(entries, suffix)
    kept = {key: value for key, value in entries.items() if key != name}
    assert f"lacks '{name}'" in refused(tmp_path, zip_entries(kept))
    if name != SUMS:
        assert f"lacks '{name}'" in refused(tmp_path, sealed(kept))


def test_an_entry_twice(entries: Entries, tmp_path: Path) -> None:
    buffer = io.BytesIO(sealed(entries))
    with zipfile.ZipFile(buffer, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("ensemble.json", entries["ensemble.json"])
    assert "holds 'ensemble.json' twice" in refused(tmp_path, buffer.getvalue())


def test_an_entry_without_checksum(entries: Entries, tmp_path: Path) -> None:
    entries["members/t9999.toml"] = b"x = 1\n"
    assert f"which {SUMS} does not name" in refused(tmp_path, zip_entries(entries))


def test_an_entry_of_no_member(entries: Entries, tmp_path: Path) -> None:
    entries["members/t9999.toml"] = b"x = 1\n"
    assert "belongs to no member" in refused(tmp_path, sealed(entries))


def changed(entries: Entries, change: Callable[[dict], object]) -> bytes:
    values = json.loads(entries["ensemble.json"])
    change(values)
    return sealed({**entries, "ensemble.json": json.dumps(values).encode()})


def without_charge(values: dict) -> None:
    for member in values["members"]:
        del member["weights"]["charge"]
    del values["heads"]["charge"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda v: v.update(format=3),
            "has format 3, this version of hydragnn-hpo reads format 2: install a newer one",
        ),
        (lambda v: v.update(format=1), "reads format 2: build it again from its run"),
        (lambda v: v.pop("format"), "does not say its format"),
        (lambda v: v.update(format="1"), "does not say its format"),
        (lambda v: v.update(run="rm -rf"), "unknown key 'run'"),
        (
            lambda v: v["members"][0]["weights"].update(energy=0.9),
            "the members' weights of 'energy' sum to",
        ),
        (lambda v: v["members"][0]["weights"].update(energy=-0.1), "greater than 0"),
        (lambda v: v["members"][0].update(trial="../../x"), "should match pattern"),
        (lambda v: v["members"].clear(), "members"),
        (lambda v: v["heads"]["energy"]["calibration"].update(b=0.0), "calibration needs"),
        (lambda v: v["heads"]["energy"]["calibration"].update(a=float("nan")), "holds NaN"),
        (lambda v: v["heads"].pop("charge"), "members weigh 'charge', which is no head"),
        (without_charge, "predicts charge, energy; the ensemble energy"),
        (lambda v: v["heads"]["charge"].update(shape="vector"), "charge"),
        (lambda v: v.update(elements=[0]), "elements"),
        (lambda v: v.update(cutoff=1.0), "beyond the ensemble's cutoff"),
        (lambda v: v["evaluation"]["energy"].update(test_mae=[1.0]), "evaluation.energy.test_mae"),
        (lambda v: v["coordination"]["ranges"].update(Qq=[1, 2]), "coordination.ranges"),
        (lambda v: v["coordination"]["ranges"].update(C=[1, 2**80]), "coordination.ranges"),
    ],
)
def test_a_manifest_that_lies(
    entries: Entries, tmp_path: Path, change: Callable[[dict], object], sentence: str
) -> None:
    assert sentence in refused(tmp_path, changed(entries, change))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_no_json_object(entries: Entries, tmp_path: Path, text: bytes) -> None:
    refused(tmp_path, sealed({**entries, "ensemble.json": text}))


@pytest.mark.parametrize(
    ("features", "sentence"),
    [(b"10000000", "asks for 10000000 of something"), (b"10000", "its configuration makes")],
)
def test_a_configuration_that_asks_for_a_huge_model(
    entries: Entries, tmp_path: Path, features: bytes, sentence: str
) -> None:
    name = first(entries, ".toml")
    entries[name] = entries[name].replace(b"features = 16", b"features = " + features)
    assert sentence in refused(tmp_path, sealed(entries))


def test_weights_of_another_model(entries: Entries, tmp_path: Path) -> None:
    name = first(entries, ".safetensors")
    tensors = load(entries[name])
    entries[name] = save({f"other.{key}": value for key, value in tensors.items()})
    assert "do not fit its configuration" in refused(tmp_path, sealed(entries))


def test_weights_that_are_not_finite(entries: Entries, tmp_path: Path) -> None:
    name = first(entries, ".safetensors")
    tensors = load(entries[name])
    next(v for v in tensors.values() if v.is_floating_point() and v.dim()).view(-1)[0] = torch.nan
    entries[name] = save(tensors)
    assert "not finite" in refused(tmp_path, sealed(entries))


def test_calibration_data_that_predicting_does_not_need(entries: Entries, tmp_path: Path) -> None:
    """Predicting reads no byte of it but for its checksum; pruning and ``info`` refuse it."""
    path = tmp_path / "hostile.zip"
    path.write_bytes(sealed({**entries, "calibration.safetensors": pickle.dumps(Bomb())}))
    assert len(Ensemble.load(path).members) >= 4
    with pytest.raises(DataError, match="'calibration.safetensors' cannot be used"):
        read_artefact(path)
    other = entries["calibration.safetensors"][:-1] + b"x"
    data = zip_entries({**entries, "calibration.safetensors": other})
    assert "'calibration.safetensors' does not have the checksum" in refused(tmp_path, data)


def test_cards_that_predicting_does_not_need(entries: Entries, tmp_path: Path) -> None:
    """Predicting compares their checksums alone; pruning and ``info`` read them."""
    path = tmp_path / "hostile.zip"
    name = next(name for name in entries if name.startswith("data/"))
    path.write_bytes(sealed({**entries, name: b"x = 1\n" + entries[name]}))
    assert len(Ensemble.load(path).members) >= 4
    with pytest.raises(DataError, match="unknown key 'x'"):
        read_artefact(path)
    data = zip_entries({**entries, name: entries[name] + b" "})
    assert f"'{name}' does not have the checksum" in refused(tmp_path, data)
    kept = {key: value for key, value in entries.items() if key != name}
    assert f"lacks '{name}'" in refused(tmp_path, sealed(kept))


def test_a_configuration_about_another_trial(entries: Entries, tmp_path: Path) -> None:
    name = first(entries, ".toml")
    entries[name] = entries[name].replace(b'trial = "t', b'trial = "u')
    assert "is about trial 'u" in refused(tmp_path, sealed(entries))


def test_text_that_unpacks_without_end(entries: Entries, tmp_path: Path) -> None:
    entries["MODEL_CARD.md"] = b" " * (MAX_TEXT + 1)
    assert "bytes of text, more than" in refused(tmp_path, sealed(entries))


def test_compressed_weights(entries: Entries, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    assert "is compressed or larger" in refused(tmp_path, buffer.getvalue())


def test_a_link_is_only_bytes(entries: Entries, tmp_path: Path) -> None:
    # Nothing is unpacked to disk, so a link's target is just text with a wrong checksum.
    buffer = io.BytesIO()
    name = first(entries, ".toml")
    with zipfile.ZipFile(buffer, "w") as file:
        for key, data in entries.items():
            info = zipfile.ZipInfo(key)
            if key == name:
                info.external_attr, data = (stat.S_IFLNK | 0o777) << 16, b"/etc/passwd"
            file.writestr(info, data)
    assert "does not have the checksum" in refused(tmp_path, buffer.getvalue())


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such ensemble"):
        Ensemble.load(tmp_path / "none.zip")


def test_a_full_disk_leaves_the_old_ensemble(
    built_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = read_artefact(built_zip)
    path = tmp_path / "ensemble.zip"
    write_artefact(path, content)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Exception, match="make room"):
        write_artefact(path, content)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["ensemble.zip"]


def test_code_of_a_user_runs_only_where_it_is_trusted(
    entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "code" / "strangers_conv.py"
    package.parent.mkdir()
    package.write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    name = first(entries, ".toml")
    text = entries[name].decode()
    conv = next(line for line in text.splitlines() if line.startswith("conv = "))
    entries[name] = text.replace(conv, 'conv = "strangers_conv:Conv"').encode()
    path = tmp_path / "hostile.zip"
    path.write_bytes(sealed(entries))
    with pytest.raises(DataError, match="--trust strangers_conv") as caught:
        Ensemble.load(path, trust=["another"])
    assert str(caught.value).startswith(f"{path}: a member's conv is 'strangers_conv:Conv'")
    assert not package.with_suffix(".ran").exists()
    with pytest.raises(HydraError, match="'strangers_conv' holds no torch module of this name"):
        Ensemble.load(path, trust=["strangers_conv"])
    assert package.with_suffix(".ran").exists()


GOLDEN = Path(__file__).parent / "golden"


def test_an_old_file_predicts_what_it_predicted() -> None:
    kept = json.loads((GOLDEN / "format2.json").read_text())
    predicted = Ensemble.load(GOLDEN / "format2.zip").predict(
        ase.io.read(GOLDEN / "new.extxyz", ":")
    )
    assert list(predicted.trust) == kept["trust"]
    for name, parts in kept["heads"].items():
        for key, values in parts.items():
            found = getattr(predicted.heads[name], key)
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}")


def test_a_format_that_was_never_released_is_refused() -> None:
    with pytest.raises(DataError, match="has format 1, .* build it again from its run"):
        Ensemble.load(GOLDEN / "format1.zip")
