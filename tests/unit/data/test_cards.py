"""The shipped cards: each is valid, and each builds where its data is there."""

import importlib.util
import io
import os
from itertools import islice
from pathlib import Path
from types import ModuleType

import ase.io
import numpy as np
import pytest
from ase.collections import g2
from ase.units import Hartree
from stores import read_store

from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.data.build_plan import find_file
from hydragnn_hpo.data.readers.ase_file import read_ase_file
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.files import hash_file
from hydragnn_hpo.resources import find_resource, resource_path

FOLDER = resource_path("graph_datasets/g2_xtb.toml").parent
CARDS = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_names_itself_and_its_origin(name: str) -> None:
    card = load_config(find_resource(name, "graph_datasets"), CardConfig)
    assert card.name == name
    assert all([card.title, card.origin, card.licence, card.cite])
    assert all(file.sha256 for file in card.files)
    assert all(target.description for target in card.targets.values())


@pytest.mark.data
@pytest.mark.parametrize("name", sorted(CARDS.keys() - {"g2_xtb", "small_organics"}))
def test_the_public_files_are_those_of_the_cards(name: str, data_root: Path) -> None:
    card = load_config(CARDS[name], CardConfig)
    for file in card.files:
        path = find_file(file.path, CARDS[name], {"HYDRAGNN_HPO_DATA": str(data_root)})
        assert hash_file(path) == file.sha256


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "graphs", "tests"),
    [("magnetic_crystals", 760, 80), ("castelli_mini", 1000, 100), ("acetylacetone", 1800, 1300)],
)
def test_public_cards_build(
    name: str, graphs: int, tests: int, data_root: Path, tmp_path: Path
) -> None:
    assert os.environ["HYDRAGNN_HPO_DATA"] == str(data_root)
    stats = build_store(CARDS[name], tmp_path / "out.bp")
    assert stats["num_graphs"] == graphs
    assert stats["splits"]["test"] == tests


@pytest.mark.parametrize(("name", "graphs"), [("g2_xtb", 148 * 9), ("small_organics", 2015)])
def test_a_card_that_ships_with_its_data_builds(name: str, graphs: int, tmp_path: Path) -> None:
    stats = build_store(CARDS[name], tmp_path / "out.bp")
    assert stats["num_graphs"] == graphs
    assert stats["test_seen"] == 0
    columns = read_store(tmp_path / "out.bp")
    assert np.all(columns.targets["atomization_energy_per_atom"] < 0)  # all are bound
    assert np.all(columns.targets["homo_lumo_gap"] >= 0)
    graph_of_node = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())
    total = np.bincount(graph_of_node, weights=columns.targets["partial_charge"][:, 0])
    assert np.abs(total).max() < 2e-3  # neutral, within rounding
    values = columns.targets["atomization_energy_per_atom"][:, 0]
    for split in range(5):
        own = values[columns.split == split]
        assert abs(own.mean() - values.mean()) < 0.35 * values.std()


def load_script(name: str) -> ModuleType:
    """Import a script that made a data set."""
    pytest.importorskip("tblite", reason="tblite is not installed: pip install 'hydragnn-hpo[xtb]'")
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_g2_xtb() -> ModuleType:
    return load_script("make_g2_xtb")


@pytest.fixture
def make_small_organics() -> ModuleType:
    pytest.importorskip("rdkit", reason="RDKit is not installed: pip install 'hydragnn-hpo[chem]'")
    return load_script("make_small_organics")


@pytest.mark.parametrize("number", [0, 4, 300, 777, 1000, 1331])
def test_a_relabelled_molecule_has_its_label(number: int, make_g2_xtb: ModuleType) -> None:
    path = FOLDER / "g2_xtb.extxyz.gz"
    _, atoms = next(islice(read_ase_file(Source(path)), number, None))
    atoms.set_initial_magnetic_moments(g2[atoms.info["molecule"]].get_initial_magnetic_moments())
    energy, gap, charges, forces = make_g2_xtb.label(atoms)
    assert energy == pytest.approx(atoms.info["atomization_energy_per_atom"], abs=1e-5)
    assert gap == pytest.approx(atoms.info["homo_lumo_gap"], abs=1e-4)
    np.testing.assert_allclose(charges, atoms.arrays["partial_charge"], atol=1e-4)
    np.testing.assert_allclose(forces, atoms.calc.results["forces"], atol=1e-3)


@pytest.mark.parametrize("number", [0, 5, 150, 777, 2000])
def test_a_relabelled_organic_molecule_has_its_label(
    number: int, make_small_organics: ModuleType
) -> None:
    path = FOLDER / "small_organics.extxyz.gz"
    _, atoms = next(islice(read_ase_file(Source(path)), number, None))
    text = make_small_organics.frame(atoms.info["smiles"], atoms)
    again = ase.io.read(io.StringIO(text), format="extxyz")
    for key in ("atomization_energy", "atomization_energy_per_atom", "homo_lumo_gap"):
        np.testing.assert_allclose(again.info[key], atoms.info[key], atol=1e-3)
    dipoles = [one.calc.results["dipole"] for one in (again, atoms)]
    np.testing.assert_allclose(*dipoles, atol=1e-3)
    charges = [one.arrays["partial_charge"] for one in (again, atoms)]
    np.testing.assert_allclose(*charges, atol=1e-3)


def test_the_free_atoms_and_the_total_energy_agree(make_small_organics: ModuleType) -> None:
    """Cl2 in GFN2-xTB: the same atomization energy as in the G2 set, per atom and in all."""
    free = make_small_organics.free_energy
    solve = make_small_organics.solve
    chlorine = g2["Cl2"]
    bound = (solve(chlorine)["energy"] - 2 * free(17)) * Hartree
    path = FOLDER / "g2_xtb.extxyz.gz"
    frames = ase.io.read(path, ":", format="extxyz")
    (label,) = [
        atoms.info["atomization_energy_per_atom"]
        for atoms in frames
        if atoms.info["molecule"] == "Cl2" and atoms.info["copy"] == 0
    ]
    assert bound / 2 == pytest.approx(label, abs=1e-4)


@pytest.mark.parametrize(
    ("smiles", "accepted"),
    [
        *[(one, True) for one in ("C", "c1ccncc1", "CC(=O)N", "CS(C)(=O)=O", "CN=C=O", "CCO")],
        *[(one, False) for one in ("OO", "C=C=C", "C=CO", "C1=CC1", "CN(O)C", "OCO", "N=N")],
    ],
)
def test_a_chemist_would_object(
    smiles: str, accepted: bool, make_small_organics: ModuleType
) -> None:
    assert (make_small_organics.accepted(smiles) is not None) == accepted


def test_a_published_error_is_compared_in_the_internal_unit():
    from hydragnn_hpo.config import TargetConfig, find_published

    one = {"mae": 30.0, "by": "a", "source": "x"}
    gaps = TargetConfig(level="graph", unit="meV", published=(one,))
    other = TargetConfig(level="graph", unit="eV", published=({**one, "mae": 0.04, "by": "b"},))
    result = find_published([other, gaps])  # 30 meV are less than .04 eV
    assert result is not None
    assert (result.by, round(result.mae, 9)) == ("a", 0.03)
    total = TargetConfig(level="graph", unit="eV", per_atom=True, published=(one,))
    assert find_published([total]) is None
