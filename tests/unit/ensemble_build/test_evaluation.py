"""Labels that belong to a head, and those of another quantity."""

import csv
import json
import zipfile
from collections.abc import Mapping

import numpy as np
import pytest
from ase import Atoms
from ase.io import write
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from sealed_zip import sealed
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble_build.evaluation import match_card_labels, parse_label_options
from hydragnn_hpo.errors import ConfigError, HydraError

ENERGY = {"level": "graph", "unit": "eV/atom", "energy": "per_atom"}
CHARGE = {"level": "node", "unit": "e"}


@pytest.fixture(scope="module")
def manifest(built_zip):
    return read_artefact(built_zip).manifest


def card(**targets: Mapping[str, object]) -> CardConfig:
    return parse_config(
        {"name": "other", "files": [{"path": "x.xyz"}], "targets": targets}, CardConfig, "card"
    )


def test_targets_of_the_same_name_are_labels(manifest):
    results = match_card_labels(manifest, card(energy={**ENERGY, "unit": "meV/atom"}, other=CHARGE))
    assert list(results) == ["energy"]
    assert results["energy"].unit == "meV/atom"
    assert results["energy"].optional
    with pytest.raises(ConfigError, match="has the targets gap, the ensemble predicts"):
        match_card_labels(manifest, card(gap={"level": "graph", "unit": "eV"}))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"unit": "meV", "energy": "total"}, "unit of 'energy' is meV, which is eV; .*eV/atom"),
        ({"unit": "GPa", "energy": None}, "unit of 'energy' is GPa"),
        ({"energy": None}, "energy of 'energy' is none; the ensemble predicts per_atom"),
        ({"level": "node", "energy": None}, "level of 'energy' is node; .* predicts graph"),
    ],
)
def test_another_quantity_is_refused(manifest, wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        match_card_labels(manifest, card(energy={**ENERGY, **wrong}))


def test_options_name_key_and_unit(manifest):
    result = parse_label_options(manifest, ["energy=e_ref:kJ/mol/atom", "charge=q"])
    assert (result["energy"].key, result["energy"].unit) == ("e_ref", "kJ/mol/atom")
    assert (result["charge"].key, result["charge"].unit, result["charge"].level) == (
        "q",
        "e",
        "node",
    )


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("energy", "write HEAD=KEY"),
        ("enrgy=e", "unknown head 'enrgy'. Did you mean 'energy'"),
        ("energy=e:eV", "energy=e:eV': .* has unit eV: write an energy per atom"),
        ("energy=e:furlong", "unknown unit 'furlong'"),
        ("charge=p", "'charge=p': head 'charge' has a label already"),
    ],
)
def test_options_that_say_nothing_or_the_wrong_thing(manifest, option, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_label_options(manifest, ["charge=q", option])


CARD = """
name = "toy"
files = [{ path = "toy.extxyz" }]
[targets.energy]
level = "graph"
key = "e_ref"
unit = "meV/atom"
energy = "per_atom"
[targets.charge]
level = "node"
unit = "e"
"""


def structures(columns: Columns, indices: np.ndarray, factor: float = 1.0) -> list[Atoms]:
    """Make graphs of a store into structures with their labels."""
    results = []
    for row in indices:
        nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
        atoms = Atoms(
            columns.numbers[nodes],
            columns.positions[nodes],
            cell=columns.cell[row],
            pbc=columns.pbc[row].tolist(),
        )
        atoms.info["e_ref"] = factor * float(columns.targets["energy"][row, 0])
        atoms.arrays["charge"] = columns.targets["charge"][nodes, 0].copy()
        results.append(atoms)
    return results


@pytest.fixture
def store(built_zip):
    opened = open_store(built_zip.parent / "data/toy.bp")
    assert isinstance(opened, Columns)
    return opened


def evaluated(*arguments: object) -> tuple[dict, str]:
    done = CliRunner().invoke(app, ["ensemble", "evaluate", *map(str, arguments), "--json"])
    if done.exception is not None and isinstance(done.exception, HydraError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


def test_a_split_of_a_store_gives_the_scores_of_the_build(built_zip):
    run = built_zip.parent
    result, _ = evaluated(run / "data/toy.bp", "--ensemble", run)
    table = json.loads((run / "report/ensemble.json").read_text())["heads"]
    assert result["structures"] == 12
    for name, head in result["heads"].items():
        for key, value in table[name].items():
            own = key.removeprefix("test_") if key in ("test_mae", "test_rmse") else key
            if own in head and isinstance(value, float):
                assert head[own] == pytest.approx(value, rel=1e-5, abs=1e-9), key
        assert head["elements_mae"] is not None
        assert head["descriptor_mae"] == pytest.approx(table[name]["descriptor_mae"], rel=1e-4)
        arrays = load_file(run / "report/test_predictions.safetensors")
        distance = arrays[f"{name}/distance"][:, 0]
        error = np.abs(arrays[f"{name}/truth"] - arrays[f"{name}/mean"])[:, 0]
        rank = spearmanr(distance, error).statistic
        assert head["by_distance"]["spearman"] == pytest.approx(rank, abs=0.01)
        assert head["by_distance"]["distance"] == sorted(head["by_distance"]["distance"])
    told = [text for text in result["warnings"] if "too few for a guaranteed 95 %" in text]
    assert len(told) == 2
    rules = {(each["rule"], each["head"]) for each in result["verdict"]}
    assert {("mean", name) for name in result["heads"]} <= rules
    assert ("elements", "charge") in rules
    assert ("descriptor", "charge") in rules


def test_an_older_file_without_baselines_is_held_against_the_mean_alone(built_zip, tmp_path):
    with zipfile.ZipFile(built_zip) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(entries["ensemble.json"])
    assert manifest["heads"]["charge"].pop("baseline")["atoms"]
    for head in manifest["heads"].values():
        head.pop("baseline", None)
    entries["ensemble.json"] = json.dumps(manifest).encode()
    entries.pop("local_descriptors.safetensors")
    old = tmp_path / "old.zip"
    old.write_bytes(sealed(entries))
    result, _ = evaluated(built_zip.parent / "data/toy.bp", "--ensemble", old)
    assert result["heads"]["energy"]["elements_mae"] is None
    rules = {each["rule"] for each in result["verdict"]}
    assert "mean" in rules
    assert not {"elements", "descriptor"} & rules


def test_a_file_with_a_card_gives_the_same_in_other_units(built_zip, store, tmp_path):
    test = store.indices_of("test")
    write(tmp_path / "new.extxyz", structures(store, test, 1000.0))
    card = tmp_path / "card.toml"
    card.write_text(CARD)
    result, errors = evaluated(
        tmp_path / "new.extxyz", "--ensemble", built_zip, "--card", card, "--by", "size"
    )
    expected, _ = evaluated(built_zip.parent / "data/toy.bp", "--ensemble", built_zip)
    assert errors.count("too few for a guaranteed 95 % interval") == len(errors.splitlines()) == 2
    for name, head in result["heads"].items():
        assert head["mae"] == pytest.approx(expected["heads"][name]["mae"], rel=1e-5)
        assert head["coverage90"] == expected["heads"][name]["coverage90"]
        assert sum(part["rows"] for part in head["strata"].values()) == head["rows"]
    doubted, errors = evaluated(
        tmp_path / "new.extxyz", "--ensemble", built_zip, "--target", "energy=e_ref"
    )
    assert "check their unit" in doubted["warnings"][0]
    assert "warning: labels of 'energy'" in errors


def test_figures_are_those_of_predict_with_a_slow_loop(factored_zip, store, tmp_path):
    several = structures(store, store.indices_of("test"))
    del several[0].info["e_ref"]
    several[1].arrays["charge"][0] = np.nan
    bad = several[-1].copy()
    bad.positions[1] = bad.positions[0]
    write(tmp_path / "new.extxyz", [*several, bad])
    result, messages_of_bad = evaluated(
        tmp_path / "new.extxyz", "--ensemble", factored_zip,
        "--target", "energy=e_ref", "--target", "charge=charge:e",
    )  # fmt: skip
    ensemble = Ensemble.load(factored_zip)
    errors = []
    inside = 0
    charges = 0
    widths = []
    for number, atoms in enumerate(several):
        prediction = ensemble.predict(atoms).heads
        charges += len(atoms) - (1 if number == 1 else 0)
        if "e_ref" in atoms.info:
            errors.append(abs(prediction["energy"].mean[0, 0] - atoms.info["e_ref"]))
            low, high = prediction["energy"].lo90[0, 0], prediction["energy"].hi90[0, 0]
            inside += low <= atoms.info["e_ref"] <= high
            widths.append(high - low)
    assert result["structures"] == len(several)
    assert len(result["errors"]) == 1
    assert f"new.extxyz@{len(several)}" in messages_of_bad
    assert result["heads"]["energy"]["rows"] == len(several) - 1
    assert result["heads"]["charge"]["rows"] == charges
    assert result["heads"]["energy"]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert result["heads"]["energy"]["coverage90"] == pytest.approx(inside / len(errors))
    assert result["heads"]["energy"]["width90"] == pytest.approx(np.mean(widths), rel=1e-5)


def test_what_cannot_be_evaluated_is_one_sentence(built_zip, store, tmp_path):
    file = tmp_path / "new.extxyz"
    known = store.indices_of("test")
    write(file, structures(store, known[:2]))
    bare = ("--ensemble", built_zip)
    for arguments, sentence in (
        ((file, *bare), "which label belongs to which head is not known"),
        ((file, *bare, "--target", "energy=nothing"), "no structure has a label of energy"),
        ((tmp_path / "no.xyz", *bare, "--target", "energy=e_ref"), "no such file"),
        ((built_zip.parent / "data/toy.bp", *bare, "--split", "tets"), "unknown split 'tets'"),
        ((built_zip.parent / "data/toy.bp", file, *bare), "give it alone"),
    ):
        with pytest.raises(HydraError, match=sentence):
            evaluated(*arguments)


def assert_tables_agree_with_the_errors(folder):
    """Parts of a head have all of its error, and their mean is its MAE; the worst come first."""
    plain = json.loads((folder / "evaluation.json").read_text())["heads"]
    read = {p.stem: list(csv.DictReader(p.read_text().splitlines())) for p in folder.glob("*.csv")}
    for name, head in plain.items():
        for part in ("size", "composition", "group", "distance"):
            rows = [row for row in read[f"errors_by_{part}"] if row["head"] == name]
            counts = [int(row["rows"]) for row in rows]
            maes = [float(row["mae"]) for row in rows]
            assert sum(counts) == head["rows"]
            assert np.average(maes, weights=counts) == pytest.approx(head["mae"])
            assert sum(float(row["share_of_error"]) for row in rows) == pytest.approx(1.0)
        worst = [row for row in read["worst_predictions"] if row["head"] == name]
        errors = [float(row["error"]) for row in worst]
        assert errors == sorted(errors, reverse=True)
        assert {row["split"] for row in worst} == {"test"}
        assert all(row["trust"] for row in worst)
        assert all(float(row["distance"]) > 0 for row in worst)
        first = worst[0]
        gap = abs(float(first["truth"]) - float(first["mean"]))
        assert gap == pytest.approx(float(first["error"]))
        assert bool(first["atom"]) == (head["level"] == "node")


@pytest.mark.slow
def test_the_folder_holds_the_figures_and_the_terminal_a_table(built_zip, tmp_path):
    folder = tmp_path / "made/here"
    store = built_zip.parent / "data/toy.bp"
    arguments = ["ensemble", "evaluate", str(store), "--ensemble", str(built_zip)]
    done = CliRunner().invoke(app, [*arguments, "--by", "chemistry", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert "miscalibration, conformal" in done.stdout
    assert "organic" in done.stdout
    names = {"energy_parity.png", "charge_parity.png"}
    parts = ("element", "size", "composition", "group", "distance")
    tables = {"worst_predictions.csv", *(f"errors_by_{part}.csv" for part in parts)}
    assert {path.name for path in folder.iterdir()} == names | tables | {"evaluation.json"}
    assert all((folder / name).stat().st_size > 8_000 for name in names)
    assert_tables_agree_with_the_errors(folder)
    plain = json.loads((folder / "evaluation.json").read_text())
    assert plain["heads"]["energy"]["unit"] == "eV/atom"
    assert {"calibration", "conformal", "bins", "sparsification"} == set(
        plain["heads"]["energy"]["curves"]
    )
