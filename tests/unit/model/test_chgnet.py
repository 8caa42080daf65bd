"""CHGNet against values of its package (``chgnet_reference.py``), its symmetries, and bad input."""

import copy
import json
import warnings

import msgspec
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from chgnet_reference import EXPECTED, FOLDER, STEM, load_package, run_package
from trunk_structures import columns_without_edges as columns
from trunk_structures import crystals_of_all_systems, example

from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model.trunks import find_trunk
from hydragnn_hpo.model.trunks.chgnet import find_angles

ROWS = json.loads(EXPECTED.read_text(encoding="ascii"))
LARGEST = 30.0
"""Largest feature of all examples; fp32 has seven digits of it."""


def features(*structures, trunk=None, **options):
    trunk = trunk or find_trunk("chgnet")
    return trunk.features(columns(*structures), range(len(structures)), **options)


@pytest.fixture(scope="module")
def fp64_trunk():
    """The trunk with its weights in fp64, for comparisons of formulas."""
    trunk = find_trunk("chgnet")
    return msgspec.structs.replace(trunk, network=copy.deepcopy(trunk.network).double())


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_features_energies_and_moments_are_those_of_the_package(row, fp64_trunk):
    atoms = example(row)
    numbers = torch.as_tensor(atoms.numbers)
    for trunk, tolerance in ((fp64_trunk, 2e-5), (find_trunk("chgnet"), 1e-6 * LARGEST)):
        found = features(atoms, trunk=trunk)
        assert found.shape == (len(atoms), trunk.layers, trunk.width) == (len(atoms), 5, 64)
        np.testing.assert_allclose(found[0], row["first"], rtol=0, atol=tolerance)
        np.testing.assert_allclose(found[-1], row["last"], rtol=0, atol=tolerance)
        values = torch.from_numpy(found)
        energy = trunk.network.site_energies(values, numbers).mean().item()
        assert energy == pytest.approx(row["energy"], abs=2e-5)
        moments = trunk.network.moments(values).tolist()
        assert moments == pytest.approx(row["moments"], abs=2e-5)


def test_a_dimer_without_angles_has_features():
    found = features(Atoms("NaCl", positions=[[0, 0, 0], [0, 0, 4.5]]))
    assert np.isfinite(found).all()
    near = features(Atoms("NaCl", positions=[[0, 0, 0], [0, 0, 5.9999]]))
    elements = find_trunk("chgnet").network.elements(torch.tensor([10, 16])).numpy()
    np.testing.assert_allclose(near, np.tile(elements[:, None], (1, 5, 1)), atol=1e-5)


def test_angles_of_a_chain_and_of_a_simple_cubic_crystal():
    """A chain a-b-c has one angle each way; six neighbours of one atom form 6 x 5 angles."""
    chain = find_angles(torch.tensor([0, 1, 1, 2]), 3)  # arms: a of ab, b of bc, b of ab, c of bc
    assert chain.first.tolist() == [1, 2]
    assert chain.second.tolist() == [2, 1]
    assert chain.rows.tolist() == [[1, 4], [2, 5]]
    cubic = find_angles(torch.zeros(6, dtype=torch.long), 1)
    pairs = set(zip(cubic.first.tolist(), cubic.second.tolist(), strict=True))
    assert len(pairs) == len(cubic.first) == 30
    assert all(first != second for first, second in pairs)


def test_the_card_says_where_weights_come_from():
    trunk = find_trunk("chgnet")
    assert (trunk.name, trunk.version, trunk.licence) == ("chgnet", "0.3.0", "BSD-3-Clause-LBNL")
    assert (trunk.layers, trunk.width, trunk.cutoff) == (5, 64, 6.0)
    assert len(trunk.elements) == 89  # MPtrj, Deng et al. (2023)
    assert "Deng" in trunk.citation
    assert "MPtrj" in trunk.trained_on
    assert len(trunk.checksum) == 64
    assert find_trunk("chgnet") is trunk
    assert "University of California" in (FOLDER / f"{STEM}.LICENSE.txt").read_text()


def test_elements_are_those_whose_embeddings_were_trained():
    """Others keep the normal distribution of unit width from which they were drawn."""
    trunk = find_trunk("chgnet")
    width = trunk.network.elements.weight.std(dim=1)
    trained = np.flatnonzero(width.numpy() > 1.2) + 1
    assert trained.tolist() == sorted(trunk.elements)


GOOD = molecule("CH4")


def test_an_atom_alone_keeps_the_embedding_of_its_element():
    """No message reaches it, and the maps of sums of messages have no constant."""
    far = Atoms("CH4He", [*GOOD.positions, [0, 0, 9.0]])
    lone = features(Atoms("Ar", cell=[7, 7, 7], pbc=True))
    together = features(far)
    assert (lone == lone[:, :1]).all()
    assert (together[5] == features(Atoms("He"))[0]).all()
    np.testing.assert_allclose(together[:5], features(GOOD), atol=1e-6 * LARGEST)


@pytest.mark.data
def test_real_crystals_have_the_features_of_the_package(fp64_trunk):
    """In fp64 formulas agree to rounding; in fp32 we are nearer to that than the package is."""
    pytest.importorskip("chgnet", reason="no chgnet: pip install --no-deps chgnet==0.4.2 pymatgen")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crystals = crystals_of_all_systems(50)
        assert len(crystals) >= 50
        package = load_package()
        for atoms in crystals:
            expected, energy, moments = run_package(package, atoms)
            found = torch.from_numpy(features(atoms, trunk=fp64_trunk))
            assert (found - expected).abs().max() < 1e-7
            numbers = torch.as_tensor(atoms.numbers)
            site_energies = fp64_trunk.network.site_energies(found, numbers)
            assert site_energies.mean().item() == pytest.approx(energy, abs=1e-7)
            assert (fp64_trunk.network.moments(found) - moments).abs().max() < 1e-8
            assert np.abs(features(atoms) - expected.numpy()).max() < 1e-6 * LARGEST


def test_a_structure_of_too_many_angles_is_refused():
    """A simple cubic cell of 2 angstrom has 18 neighbours below 3: 18 x 17 angles an atom."""
    crystal = bulk("Cu", "sc", a=2.0) * (26, 26, 26)
    with pytest.raises(DataError, match=rf"has {26**3 * 18 * 17:,} angles between bonds below 3 "):
        find_trunk("chgnet").features(columns(crystal), [0])
