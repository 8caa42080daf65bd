"""Predictions written down and read back by others: csv, ASE, json."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.io import read, write

from hydragnn_hpo.ensemble.output import write_predictions
from hydragnn_hpo.ensemble.predictor import Ensemble, Prediction
from hydragnn_hpo.ensemble.structures import Structures, read_structures
from hydragnn_hpo.errors import ConfigError, DataError

ENERGY = ["energy", "energy_std", "energy_std_epistemic", "energy_lo90", "energy_hi90"]


@pytest.fixture(scope="module")
def ensemble(built_zip: Path) -> Ensemble:
    return Ensemble.load(built_zip)


@pytest.fixture
def three(tmp_path: Path, ensemble: Ensemble) -> tuple[Structures, Prediction]:
    """Read a molecule, two atoms at one place, and a crystal."""
    path = tmp_path / "new.extxyz"
    write(path, [molecule("CH3OH"), Atoms("CC", np.zeros((2, 3))), bulk("C", "diamond", a=3.6)])
    structures = read_structures([path], ensemble.rules)
    return structures, ensemble.predict(structures.columns)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_structure_and_one_per_atom(
    tmp_path: Path, ensemble: Ensemble, three: tuple[Structures, Prediction]
) -> None:
    structures, prediction = three
    paths = write_predictions(tmp_path / "out.csv", ensemble.manifest, structures, prediction)

    assert [path.name for path in paths] == ["out.csv", "out.nodes.csv"]
    rows = rows_of(paths[0])
    assert list(rows[0]) == ["id", *ENERGY, "trust", "error"]
    assert [row["id"] for row in rows] == ["new.extxyz:1", "new.extxyz:2", "new.extxyz:3"]
    head = prediction.heads["energy"]
    for row, number in ((rows[0], 0), (rows[2], 1)):
        keys = ("mean", "std", "std_epistemic", "lo90", "hi90")
        for title, key in zip(ENERGY, keys, strict=True):
            assert float(row[title]) == pytest.approx(getattr(head, key)[number, 0], rel=1e-8)
        assert row["trust"] == prediction.trust[number]
        assert row["error"] == ""
    assert [rows[1][title] for title in ENERGY] == [""] * 5
    assert "at one place" in rows[1]["error"]
    atoms = rows_of(paths[1])
    assert [row["element"] for row in atoms] == ["C", "O", "H", "H", "H", "H", "C", "C"]
    assert [row["atom"] for row in atoms] == [*"012345", *"01"]
    assert [row["id"] for row in atoms] == ["new.extxyz:1"] * 6 + ["new.extxyz:3"] * 2
    charges = [float(row["charge"]) for row in atoms]
    np.testing.assert_allclose(charges, prediction.heads["charge"].mean[:, 0], rtol=1e-8)


def test_extxyz_keeps_the_atoms_in_order(
    tmp_path: Path, ensemble: Ensemble, three: tuple[Structures, Prediction]
) -> None:
    structures, prediction = three
    path = tmp_path / "out.extxyz"
    assert write_predictions(path, ensemble.manifest, structures, prediction) == [path]

    frames = read(path, ":")
    assert [frame.info["id"] for frame in frames] == ["new.extxyz:1", "new.extxyz:3"]
    assert frames[0].get_chemical_symbols() == ["C", "O", "H", "H", "H", "H"]
    np.testing.assert_allclose(frames[0].positions, molecule("CH3OH").positions, atol=1e-7)
    assert frames[1].pbc.all()
    head = prediction.heads["energy"]
    assert frames[1].info["energy_hi90"] == pytest.approx(head.hi90[1, 0], abs=1e-6)
    assert frames[0].info["units"] == "energy=eV/atom charge=e"
    charge = prediction.heads["charge"].mean[:6, 0]
    np.testing.assert_allclose(frames[0].arrays["predicted_charge"], charge, atol=1e-7)


def test_ase_does_not_take_a_prediction_per_atom_for_the_total_energy(
    tmp_path: Path, ensemble: Ensemble, three: tuple[Structures, Prediction]
) -> None:
    path = tmp_path / "out.extxyz"
    write_predictions(path, ensemble.manifest, *three)
    frame = read(path, 0)
    assert frame.calc is None
    mean = three[1].heads["energy"].mean[0, 0]
    assert frame.info["predicted_energy"] == pytest.approx(mean, abs=1e-6)


def test_json_names_units_and_errors(
    tmp_path: Path, ensemble: Ensemble, three: tuple[Structures, Prediction]
) -> None:
    path = tmp_path / "out.json"
    write_predictions(path, ensemble.manifest, *three)
    content = json.loads(path.read_text())
    assert content["units"] == {"energy": "eV/atom", "charge": "e"}
    first, second, third = content["structures"]
    assert isinstance(first["heads"]["energy"]["mean"], float)
    assert len(first["heads"]["charge"]["std"]) == 6
    assert "heads" not in second
    assert "at one place" in second["error"]
    assert third["error"] is None


def test_an_unknown_format_is_refused(
    tmp_path: Path, ensemble: Ensemble, three: tuple[Structures, Prediction]
) -> None:
    with pytest.raises(ConfigError, match="cannot tell the format"):
        write_predictions(tmp_path / "out.parquet", ensemble.manifest, *three)


def test_nothing_readable_still_says_why(tmp_path: Path, ensemble: Ensemble) -> None:
    path = tmp_path / "bad.extxyz"
    path.write_text("this is not a structure\n")
    structures = read_structures([path], ensemble.rules)
    prediction = ensemble.predict(structures.columns)
    assert list(structures.errors) == [0]
    out = write_predictions(tmp_path / "out.csv", ensemble.manifest, structures, prediction)
    assert "cannot be read" in rows_of(out[0])[0]["error"]
    empty = tmp_path / "out.extxyz"
    write_predictions(empty, ensemble.manifest, structures, prediction)
    assert empty.read_text() == ""


def test_a_folder_is_read_past_its_bad_files(tmp_path: Path, ensemble: Ensemble) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    write(folder / "a.extxyz", molecule("H2O"))
    (folder / "b.cif").write_text("data_broken\n")
    write(folder / "c.vasp", bulk("C", "diamond", a=3.6))
    (folder / "id_prop.csv").write_text("a,1\n")
    structures = read_structures([folder], ensemble.rules)
    assert structures.ids == ("a.extxyz:1", "b.cif:1", "c.vasp:1")
    assert list(structures.errors) == [1]
    assert structures.columns.num_graphs == 2


def test_a_missing_file_is_an_error_at_once(tmp_path: Path, ensemble: Ensemble) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_structures([tmp_path / "none.cif"], ensemble.rules)
