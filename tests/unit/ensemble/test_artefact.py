"""The zip: what goes in comes out, and nothing else is let in."""

import io
import json
import pickle
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


@pytest.fixture
def entries(built_zip):
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


def test_what_goes_in_comes_out(built_zip, tmp_path):
    content = read_artefact(built_zip)
    write_artefact(tmp_path / "again.zip", content)
    again = read_artefact(tmp_path / "again.zip")
    assert again.manifest == content.manifest
    assert again.configs == content.configs
    for trial, tensors in content.weights.items():
        assert tensors.keys() == again.weights[trial].keys()
        assert all(torch.equal(tensors[k], again.weights[trial][k]) for k in tensors)
    assert (tmp_path / "again.zip").read_bytes() == built_zip.read_bytes()


def test_an_unchanged_repack_is_accepted(entries, tmp_path):
    # The forger's tool below would prove nothing if it broke good files.
    (tmp_path / "good.zip").write_bytes(sealed(entries))
    assert len(Ensemble.load(tmp_path / "good.zip").members) >= 4


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was executed')",)


def first(entries: Entries, suffix: str) -> str:
    others = ("data/", "calibration.", "features.", "local_descriptors.")
    own = [name for name in entries if not name.startswith(others)]
    return next(name for name in own if name.endswith(suffix))


def without_features(entries: Entries) -> Entries:
    return {name: data for name, data in entries.items() if name != "features.safetensors"}


def with_weights(entries: Entries, change: Callable[[dict[str, torch.Tensor]], object]) -> bytes:
    name = first(entries, ".safetensors")
    return sealed({**entries, name: save(change(load(entries[name])))})


def with_text(entries: Entries, old: bytes, new: bytes) -> bytes:
    name = first(entries, ".toml")
    return sealed({**entries, name: entries[name].replace(old, new)})


def with_everything_compressed(entries: Entries) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def with_nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    next(v for v in tensors.values() if v.is_floating_point() and v.dim()).view(-1)[0] = torch.nan
    return tensors


def with_an_entry_twice(entries: Entries) -> bytes:
    buffer = io.BytesIO(sealed(entries))
    with zipfile.ZipFile(buffer, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("ensemble.json", entries["ensemble.json"])
    return buffer.getvalue()


def with_damage_inside(entries: Entries) -> bytes:
    """Overwrite bytes of a compressed entry: the list of entries is whole, the content is not."""
    data = bytearray(sealed(entries))
    place = data.find(b"ensemble.json") + 60
    data[place : place + 20] = bytes(20)
    return bytes(data)


def with_manifest(entries: Entries, text: bytes) -> bytes:
    return sealed({**entries, "ensemble.json": text})


OTHER_KINDS = ("members/t0001.pkl", "setup.py", "x/")
OUTSIDE = ("../../evil.toml", "/etc/evil.toml", "members/../x.toml", "members\\x.toml", "C:x.toml")
# More of what a forger does to any zip or tensor file: integration/test_hostile_ensembles.py.
FORGED: dict[str, tuple[Callable[[Entries], bytes], str]] = {
    **{
        name: (lambda e, name=name: sealed({**e, name: b"x"}), "has no place in an ensemble")
        for name in OTHER_KINDS + OUTSIDE
    },
    "weights of another model": (
        lambda e: with_weights(e, lambda w: {f"other.{key}": value for key, value in w.items()}),
        "do not fit its configuration",
    ),
    "no checksum": (
        lambda e: zip_entries({**e, "members/t9999.toml": b"x = 1\n"}),
        f"which {SUMS} does not name",
    ),
    "no member": (
        lambda e: sealed({**e, "members/t9999.toml": b"x = 1\n"}),
        "belongs to no member",
    ),
    "another trial": (
        lambda e: with_text(e, b'trial = "t', b'trial = "u'),
        "is about trial 'u",
    ),
    "endless features": (
        lambda e: with_text(e, b"features = 16", b"features = 65536"),
        "asks for 65536 of something",
    ),
    "many features": (
        lambda e: with_text(without_features(e), b"features = 16", b"features = 10000"),
        "its configuration makes",
    ),
    "compressed weights": (with_everything_compressed, "is compressed or larger"),
    "weights that are not finite": (lambda e: with_weights(e, with_nan), "not finite"),
    "an entry twice": (with_an_entry_twice, "holds 'ensemble.json' twice"),
    "endless text": (
        lambda e: sealed({**e, "MODEL_CARD.md": b" " * (MAX_TEXT + 1)}),
        "bytes of text, more than",
    ),
    "nothing": (lambda e: b"", "cannot be read as a zip"),
    "no end": (lambda e: sealed(e)[:-200], "cannot be read as a zip"),
    "damage inside": (with_damage_inside, "cannot be read as a zip"),
    "deep JSON": (lambda e: with_manifest(e, b"[" * 100_000), "is not JSON"),
    "half JSON": (lambda e: with_manifest(e, b"{"), "is not JSON"),
    "no text": (lambda e: with_manifest(e, b"\xff"), "is not JSON"),
    "a JSON list": (lambda e: with_manifest(e, b"[]"), "does not say its format"),
}


@pytest.mark.parametrize(("forge", "sentence"), FORGED.values(), ids=FORGED)
def test_a_forged_file_is_one_sentence(entries, tmp_path, forge, sentence):
    assert sentence in refused(tmp_path, forge(entries))


@pytest.mark.parametrize("suffix", [".safetensors", ".toml", "ensemble.json", "MODEL_CARD.md"])
def test_one_changed_byte(entries, tmp_path, suffix):
    name = first(entries, suffix)
    entries[name] = entries[name][:-2] + bytes([entries[name][-2] ^ 1]) + entries[name][-1:]
    assert f"'{name}' does not have the checksum" in refused(tmp_path, zip_entries(entries))


@pytest.mark.parametrize("suffix", [".safetensors", ".toml", "ensemble.json", SUMS])
def test_a_missing_entry(entries, tmp_path, suffix):
    name = first(entries, suffix)
    kept = {key: value for key, value in entries.items() if key != name}
    assert f"lacks '{name}'" in refused(tmp_path, zip_entries(kept))
    if name != SUMS:
        assert f"lacks '{name}'" in refused(tmp_path, sealed(kept))


def changed(entries: Entries, change: Callable[[dict], object]) -> bytes:
    values = json.loads(entries["ensemble.json"])
    change(values)
    return sealed({**entries, "ensemble.json": json.dumps(values).encode()})


def without_charge(values: dict) -> None:
    for member in values["members"]:
        del member["weights"]["charge"]
    del values["heads"]["charge"]


def quantiles(values: dict) -> dict:
    return values["heads"]["energy"]["calibration"]["quantiles"]


def rename_level(values: dict, name: str) -> None:
    for table in (quantiles(values), *values["heads"]["energy"]["calibration"]["tables"].values()):
        table[name] = table.pop("0.5")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda v: v.update(format=5, package="9; rm"),
            "has format 5, this version of hydragnn-hpo reads formats 2 to 4: install another one.",
        ),
        (
            lambda v: v.update(format=5, package="9.8.7"),
            "reads formats 2 to 4: install hydragnn-hpo 9.8.7, which wrote it.",
        ),
        (
            lambda v: v.update(format=1, package="0.0.9"),
            "install hydragnn-hpo 0.0.9, which wrote it, or build it again from its run",
        ),
        (lambda v: v.pop("format"), "does not say its format"),
        (
            lambda v: v["heads"]["energy"]["calibration"].update(
                factors={"elements": {"H": -1.0}, "values": [0.0], "at_values": [1.0]}
            ),
            "the factors of sigma are not sound",
        ),
        (lambda v: v.update(format="1"), "does not say its format"),
        (lambda v: v.update(run="rm -rf"), "unknown key 'run'"),
        (
            lambda v: v["members"][0]["weights"].update(energy=0.9),
            "the members' weights of 'energy' sum to",
        ),
        (lambda v: v["members"][0]["weights"].update(energy=-0.1), "write a number above 0"),
        (lambda v: v["members"][0].update(trial="../../x"), "write up to 100 letters"),
        (lambda v: v["members"].clear(), "members"),
        (lambda v: v["heads"]["charge"].update(sum="q"), "'heads.charge.sum' names 'q', which is"),
        (lambda v: v["heads"]["charge"].update(charge="q"), "'heads.charge.charge' names 'q',"),
        (lambda v: v["heads"]["energy"]["calibration"].update(b=0.0), "calibration needs"),
        (lambda v: v["heads"]["energy"]["calibration"].update(a=-1.0), "calibration needs"),
        (lambda v: v["heads"]["energy"]["calibration"].update(a=float("nan")), "holds NaN"),
        (lambda v: v["heads"]["energy"]["calibration"].update(a=1e300), "calibration needs"),
        (
            lambda v: v["heads"]["energy"]["baseline"].update(mean=[0.0, 0.0]),
            "the baseline needs 1 components",
        ),
        (
            lambda v: v["heads"]["charge"]["baseline"].update(fractions={"H": [0.0]}),
            "the baseline of an atom has no 'fractions'",
        ),
        (lambda v: v["heads"]["energy"]["baseline"].update(atoms={"Xx": [0.0]}), "Xx"),
        (lambda v: v["heads"]["energy"]["baseline"].update(mean=[1e31]), "mean"),
        (lambda v: rename_level(v, "x"), "levels must be between 0 and 1"),
        (lambda v: rename_level(v, "5"), "levels must be between 0 and 1"),
        (lambda v: rename_level(v, "-1e9"), "levels must be between 0 and 1"),
        (lambda v: quantiles(v).update({"0.95": 1e308}), "quantiles must rise with the level, up"),
        (lambda v: quantiles(v).update({"0.05": 1e8}), "quantiles must rise with the level"),
        (
            lambda v: v["heads"]["energy"].update(energy="total"),
            'energy = "total" has unit eV/atom',
        ),
        (lambda v: v["heads"]["energy"].update(unit="angstrom"), "has unit angstrom: write an en"),
        (
            lambda v: v["heads"]["energy"].update(energy="total", unit="eV"),
            "head 'energy' has unit 'eV' in 'ensemble.json', but 'eV/atom' in its card",
        ),
        (
            lambda v: v["heads"]["energy"].update(energy=None),
            "has energy 'None' in 'ensemble.json'",
        ),
        (
            lambda v: v["heads"]["charge"].update(derived_from="energy"),
            "charge is neither forces (level node, shape vector, unit like eV/angstrom) nor stress",
        ),
        (lambda v: v["heads"]["charge"].update(level="graph"), "has level 'graph' in 'ensemble"),
        (lambda v: v["heads"]["energy"].update(mean=1e300), "'heads.energy.mean' is 1e+300"),
        (lambda v: v.update(cutoff=1e9), "'cutoff' is 1000000000.0: write a number of at most 100"),
        (lambda v: v.update(cutoff=99.0), "claims a cutoff of 99, its members have"),
        (lambda v: v["members"][0].update(objective="1"), "'members.0.objective' is \"1\""),
        (lambda v: v["coordination"].update(cutoff=1e9), "coordination.cutoff"),
        (lambda v: v["coordination"].update(cutoff="4"), "'coordination.cutoff' is \"4\": write a"),
        (lambda v: v["coordination"].update(cutoff=True), "'coordination.cutoff' is true: write a"),
        (lambda v: v["coordination"]["ranges"].update(C=["1", 2]), 'ranges.C.0\' is "1": write a'),
        (lambda v: v["coordination"]["ranges"].update(C=[1, True]), "ranges.C.1' is true: write a"),
        (lambda v: v["coordination"]["ranges"].update(C=[1]), "coordination.ranges.C"),
        (lambda v: v["coordination"]["ranges"].update(C=[1, 2, 3]), "coordination.ranges.C"),
        (
            lambda v: v["coordination"]["ranges"].update(C=[2, 1]),
            "ranges.C' holds '[",
        ),
        (lambda v: v["strata"].update(edges=["5"]), "'strata.edges.0' is \"5\": write a whole"),
        (
            lambda v: v["data"].update(atoms=[9, 1]),
            "'data.atoms' holds '[9, 1]', not in order",
        ),
        (lambda v: v["elements"].reverse(), "'elements' holds '["),
        (lambda v: v["elements"].insert(0, v["elements"][0]), "names an element twice"),
        (
            lambda v: v["evaluation"]["energy"].update(test_mae="1"),
            "energy.test_mae' is '1': ",
        ),
        (lambda v: v["evaluation"]["energy"].update(unit=1), "'energy.unit' is 1: write text"),
        (lambda v: v["coordination"]["ranges"].update(C=[1, 10**9]), "coordination.ranges"),
        (lambda v: v["heads"].pop("charge"), "members weigh 'charge', which is no head"),
        (without_charge, "predicts charge, energy; the ensemble energy"),
        (lambda v: v["heads"]["charge"].update(shape="vector"), "charge"),
        (lambda v: v.update(elements=[0]), "elements"),
        (lambda v: v.update(cutoff=1.0), "beyond the ensemble's cutoff"),
        (lambda v: v["evaluation"]["energy"].update(test_mae=[1.0]), "evaluation.energy.test_mae"),
        (lambda v: v["coordination"]["ranges"].update(Qq=[1, 2]), "coordination.ranges"),
        (lambda v: v["coordination"]["ranges"].update(C=[1, 2**80]), "more than 64 bits"),
    ],
)
def test_a_manifest_that_lies(entries, tmp_path, change, sentence):
    assert sentence in refused(tmp_path, changed(entries, change))


def test_what_predicting_does_not_need_is_judged_by_its_checksum_alone(entries, tmp_path):
    """Predicting compares the checksum of calibration data; ``info`` reads them."""
    path = tmp_path / "hostile.zip"
    name = "calibration.safetensors"
    data = sealed({**entries, "features.safetensors": pickle.dumps(Bomb())})
    assert "'features.safetensors' cannot be used" in refused(tmp_path, data)
    data = sealed({**entries, "local_descriptors.safetensors": pickle.dumps(Bomb())})
    assert "'local_descriptors.safetensors' cannot be used" in refused(tmp_path, data)
    path.write_bytes(sealed(without_features(entries)))
    assert Ensemble.load(path).features is None
    path.write_bytes(sealed({**entries, name: pickle.dumps(Bomb())}))
    assert len(Ensemble.load(path).members) >= 4
    with pytest.raises(DataError, match="cannot be used"):
        read_artefact(path)
    card = next(name for name in entries if name.startswith("data/"))
    for entry in (name, card):
        data = zip_entries({**entries, entry: entries[entry][:-1] + b"x"})
        assert f"'{entry}' does not have the checksum" in refused(tmp_path, data)
    entries_with_a_bad_card = {**entries, card: b"x = 1\n" + entries[card]}
    assert "unknown key 'x'" in refused(tmp_path, sealed(entries_with_a_bad_card))
    kept = {key: value for key, value in entries.items() if key != card}
    assert f"lacks '{card}'" in refused(tmp_path, sealed(kept))


def test_a_full_disk_leaves_the_old_ensemble(built_zip, tmp_path, monkeypatch):
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


def test_code_of_a_user_runs_only_where_it_is_trusted(entries, tmp_path, monkeypatch):
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


def test_an_old_file_predicts_what_it_predicted():
    kept = json.loads((GOLDEN / "format2.json").read_text())
    predicted = Ensemble.load(GOLDEN / "format2.zip").predict(
        ase.io.read(GOLDEN / "new.extxyz", ":")
    )
    assert list(predicted.trust) == kept["trust"]
    for name, parts in kept["heads"].items():
        for key, values in parts.items():
            actual = getattr(predicted.heads[name], key)
            np.testing.assert_allclose(
                actual, values, rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}"
            )
