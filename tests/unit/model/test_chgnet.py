"""CHGNet against values of its package (``chgnet_reference.py``), its symmetries, and bad input."""

import copy
import gzip
import io
import json
import os
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import graphene, make_supercell, molecule
from ase.io import read
from chgnet_reference import EXPECTED, FOLDER, STEM, load_package, run_package

from hydragnn_hpo.config import TRUNKS
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.model.trunks import find_trunk
from hydragnn_hpo.model.trunks.chgnet import find_angles
from hydragnn_hpo.model.trunks.frozen_trunk import read_trunk

ROWS = json.loads(EXPECTED.read_text(encoding="ascii"))
LARGEST = 30.0
"""Largest feature of all examples; fp32 has seven digits of it."""


def columns(*structures):
    """Structures as columns without edges."""
    graphs = [
        Graph(
            f"s{number}",
            atoms.numbers.astype(np.int16),
            atoms.positions,
            atoms.cell.array,
            atoms.pbc,
            np.zeros((0, 2), dtype=np.int32),
            np.zeros((0, 3), dtype=np.int16),
            {},
            "x",
            None,
        )
        for number, atoms in enumerate(structures)
    ]
    return columns_of(graphs, {})


def example(row):
    fields = ("numbers", "positions", "cell", "pbc")
    return Atoms(**{name: row[name] for name in fields})


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


def test_features_are_fp32_and_have_the_order_of_the_graphs():
    structures = [example(row) for row in ROWS]
    found = find_trunk("chgnet").features(columns(*structures), [6, 0, 6])
    assert found.dtype == np.float32
    single = [features(structures[row]) for row in (6, 0, 6)]
    np.testing.assert_allclose(found, np.concatenate(single), rtol=0, atol=3e-5)
    assert find_trunk("chgnet").features(columns(*structures), []).shape == (0, 5, 64)


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_symmetries(row, fp64_trunk, random_rotation):
    atoms = example(row)
    found = features(atoms, trunk=fp64_trunk)

    turned = atoms.copy()
    for flip in (1.0, -1.0):
        turned.set_cell(flip * atoms.cell.array @ random_rotation, scale_atoms=False)
        turned.positions = flip * (atoms.positions + [0.3, -2.0, 0.7]) @ random_rotation
        assert np.abs(features(turned, trunk=fp64_trunk) - found).max() < 1e-8

    order = np.random.default_rng(1).permutation(len(atoms))
    assert np.abs(features(atoms[order], trunk=fp64_trunk) - found[order]).max() < 1e-9

    if atoms.pbc.any():
        repeats = np.where(atoms.pbc, [2, 1, 2], 1)
        large = atoms.repeat(repeats)
        tiled = np.tile(found, (repeats.prod(), 1, 1))
        assert np.abs(features(large, trunk=fp64_trunk) - tiled).max() < 1e-9
        sheared = make_supercell(atoms, [[1, int(atoms.pbc[:2].all()), 0], [0, 1, 0], [0, 0, 1]])
        order = [np.argmin(sheared.get_distances(n, range(len(atoms)))) for n in range(len(atoms))]
        assert order == list(range(len(atoms)))
        assert np.abs(features(sheared, trunk=fp64_trunk) - found).max() < 1e-9


@pytest.fixture
def random_rotation():
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    return rotation * np.sign(np.linalg.det(rotation))


def test_batches_do_not_change_features():
    structures = [example(row) for row in ROWS]
    single = np.concatenate([features(atoms) for atoms in structures])
    for batch_nodes in (1, 10, 1000):
        found = features(*structures, batch_nodes=batch_nodes)
        assert np.abs(found - single).max() < 1e-6 * LARGEST


def test_a_molecule_is_one_in_a_large_box():
    free = molecule("CH3CH2OH")
    boxed = free.copy()
    boxed.center(vacuum=10.0)
    boxed.pbc = True
    assert np.abs(features(free) - features(boxed)).max() < 1e-6 * LARGEST


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


def test_reading_draws_no_random_numbers():
    state = torch.get_rng_state()
    trunk = read_trunk(FOLDER, STEM)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(weight.requires_grad for weight in trunk.network.parameters())


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown trunk 'chgent'. Did you mean 'chgnet'"):
        find_trunk("chgent")


GOOD = molecule("CH4")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Atoms("HPo", [[0, 0, 0], [0, 0, 2]]), r"structure 1 \(s1\) has Po at atom 2, an element"),
        (Atoms("HCm", [[0, 0, 0], [0, 0, 2]]), r"has Cm at atom 2"),
        (Atoms("H2", [[0, 0, 0], [0, 0, np.nan]]), r"position or cell that is not finite"),
        (Atoms("H2", [[0, 0, 0], [0, 0, 1]], cell=[np.inf] * 3), r"cell that is not finite"),
    ],
)
def test_structures_that_cannot_be_described_are_named(bad, message):
    trunk = find_trunk("chgnet")
    given = columns(GOOD, bad, GOOD)
    with pytest.raises(DataError, match=message):
        trunk.check(given, range(3))
    with pytest.raises(DataError, match=message):
        trunk.features(given, range(3))
    trunk.check(given, [0, 2])
    assert np.isfinite(trunk.features(given, [0, 2])).all()


def test_an_atom_alone_keeps_the_embedding_of_its_element():
    """No message reaches it, and the maps of sums of messages have no constant."""
    far = Atoms("CH4He", [*GOOD.positions, [0, 0, 9.0]])
    lone = features(Atoms("Ar", cell=[7, 7, 7], pbc=True))
    together = features(far)
    assert (lone == lone[:, :1]).all()
    assert (together[5] == features(Atoms("He"))[0]).all()
    np.testing.assert_allclose(together[:5], features(GOOD), atol=1e-6 * LARGEST)


def test_settings_know_what_the_card_says():
    for name, spec in TRUNKS.items():
        trunk = find_trunk(name)
        assert (spec.blocks, spec.width, spec.elements) == (
            trunk.layers,
            trunk.width,
            trunk.elements,
        )


def test_atoms_on_one_place_are_named():
    bad = Atoms("H2", [[0, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match=r"structure 1 \(s1\) has atoms that are too close"):
        features(GOOD, bad, GOOD)


def test_partly_periodic_structures_need_no_lattice_vector_out_of_plane():
    layer = graphene()
    tall = graphene(vacuum=20.0)
    assert not layer.cell.array[2].any()
    assert np.abs(features(layer) - features(tall)).max() < 1e-6 * LARGEST


def test_damaged_files_are_refused(tmp_path):
    for ending in ("json", "safetensors"):
        (tmp_path / f"{STEM}.{ending}").write_bytes((FOLDER / f"{STEM}.{ending}").read_bytes())
    assert read_trunk(tmp_path, STEM).checksum == find_trunk("chgnet").checksum
    weights = tmp_path / f"{STEM}.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    with pytest.raises(StorageError, match=r"safetensors: has the checksum [0-9a-f]{16} in place"):
        read_trunk(tmp_path, STEM)
    (tmp_path / f"{STEM}.json").write_text("{}")
    with pytest.raises(StorageError, match="cannot be read .*; install hydragnn-hpo again"):
        read_trunk(tmp_path, STEM)
    weights.unlink()
    with pytest.raises(StorageError, match="cannot be read .*; install hydragnn-hpo again"):
        read_trunk(tmp_path, STEM)


def crystals_of_all_systems(count):
    """Return real crystals of all seven systems, the smallest of each first."""
    spglib = pytest.importorskip("spglib")
    folder = Path(os.environ["HYDRAGNN_HPO_DATA"])
    packed = (folder / "mp_magnetic" / "mp_mag_multihead_760.extxyz.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    borders = np.array([1, 3, 16, 75, 143, 168, 195])  # first space group of each crystal system
    by_system: dict[int, list[Atoms]] = {}
    for atoms in sorted(read(io.StringIO(text), ":", format="extxyz"), key=len):
        cell = (atoms.cell.array, atoms.get_scaled_positions(), atoms.numbers)
        group = spglib.get_symmetry_dataset(cell, symprec=0.1).number
        system = int(np.searchsorted(borders, group, side="right"))
        by_system.setdefault(system, []).append(atoms)
    assert len(by_system) == 7
    taken = [found[: -(-count // 7)] for found in by_system.values()]
    return [atoms for found in taken for atoms in found]


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
