"""Every frozen trunk: symmetries of its features, structures that it refuses, and its files."""

import copy
import json

import msgspec
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import graphene, make_supercell, molecule
from chgnet_reference import FOLDER, examples
from trunk_structures import columns_without_edges as columns

from hydragnn_hpo.config import TRUNKS
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.model.trunks import find_trunk, open_trunk
from hydragnn_hpo.model.trunks.frozen_trunk import read_trunk

STEMS = {"chgnet": "chgnet-0.3.0", "sevennet": "sevennet-0-2024-07-11"}
STRUCTURES = examples()
TOLERANCE = 3e-5
"""In fp32: features are up to 30, with seven digits."""


@pytest.fixture(scope="module", params=TRUNKS)
def trunk(request):
    return find_trunk(request.param)


@pytest.fixture(scope="module")
def fp64_trunk(trunk):
    """The trunk with its weights in fp64, for comparisons of formulas."""
    return msgspec.structs.replace(trunk, network=copy.deepcopy(trunk.network).double())


@pytest.fixture
def random_rotation():
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    return rotation * np.sign(np.linalg.det(rotation))


def features(trunk, *structures, **options):
    return trunk.features(columns(*structures), range(len(structures)), **options)


@pytest.mark.parametrize("atoms", STRUCTURES.values(), ids=STRUCTURES)
def test_symmetries(atoms, fp64_trunk, random_rotation):
    found = features(fp64_trunk, atoms)

    turned = atoms.copy()
    for flip in (1.0, -1.0):
        turned.set_cell(flip * atoms.cell.array @ random_rotation, scale_atoms=False)
        turned.positions = flip * (atoms.positions + [0.3, -2.0, 0.7]) @ random_rotation
        assert np.abs(features(fp64_trunk, turned) - found).max() < 1e-8

    order = np.random.default_rng(1).permutation(len(atoms))
    assert np.abs(features(fp64_trunk, atoms[order]) - found[order]).max() < 1e-9

    if atoms.pbc.any():
        repeats = np.where(atoms.pbc, [2, 1, 2], 1)
        large = atoms.repeat(repeats)
        tiled = np.tile(found, (repeats.prod(), 1, 1))
        assert np.abs(features(fp64_trunk, large) - tiled).max() < 1e-9
        sheared = make_supercell(atoms, [[1, int(atoms.pbc[:2].all()), 0], [0, 1, 0], [0, 0, 1]])
        order = [np.argmin(sheared.get_distances(n, range(len(atoms)))) for n in range(len(atoms))]
        assert order == list(range(len(atoms)))
        assert np.abs(features(fp64_trunk, sheared) - found).max() < 1e-9


def test_features_are_fp32_and_have_the_order_of_the_graphs(trunk):
    structures = list(STRUCTURES.values())
    found = trunk.features(columns(*structures), [6, 0, 6])
    assert found.dtype == np.float32
    single = [features(trunk, structures[row]) for row in (6, 0, 6)]
    np.testing.assert_allclose(found, np.concatenate(single), rtol=0, atol=TOLERANCE)
    empty = trunk.features(columns(*structures), [])
    assert empty.shape == (0, trunk.layers, trunk.width)


def test_batches_do_not_change_features(trunk):
    structures = list(STRUCTURES.values())
    single = np.concatenate([features(trunk, atoms) for atoms in structures])
    for batch_nodes in (1, 10, 1000):
        found = features(trunk, *structures, batch_nodes=batch_nodes)
        assert np.abs(found - single).max() < TOLERANCE


def test_a_molecule_is_one_in_a_large_box(trunk):
    free = molecule("CH3CH2OH")
    boxed = free.copy()
    boxed.center(vacuum=10.0)
    boxed.pbc = True
    assert np.abs(features(trunk, free) - features(trunk, boxed)).max() < TOLERANCE


def test_partly_periodic_structures_need_no_lattice_vector_out_of_plane(trunk):
    layer = graphene()
    tall = graphene(vacuum=20.0)
    assert not layer.cell.array[2].any()
    assert np.abs(features(trunk, layer) - features(trunk, tall)).max() < TOLERANCE


def test_an_atom_alone_is_one_of_its_element(trunk):
    far = Atoms("CH4He", [*GOOD.positions, [0, 0, 9.0]])
    together = features(trunk, far)
    lone = features(trunk, Atoms("He", cell=[7, 7, 7], pbc=True))
    np.testing.assert_allclose(together[5:], lone, atol=TOLERANCE)
    np.testing.assert_allclose(together[:5], features(trunk, GOOD), atol=TOLERANCE)


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
def test_structures_that_cannot_be_described_are_named(trunk, bad, message):
    given = columns(GOOD, bad, GOOD)
    with pytest.raises(DataError, match=message):
        trunk.features(given, range(3))
    assert np.isfinite(trunk.features(given, [0, 2])).all()


def test_atoms_on_one_place_are_named(trunk):
    bad = Atoms("H2", [[0, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match=r"structure 1 \(s1\) has atoms that are too close"):
        features(trunk, GOOD, bad, GOOD)


def test_settings_know_what_the_card_says(trunk):
    spec = TRUNKS[trunk.name]
    card = (trunk.layers, trunk.width, trunk.elements)
    assert (spec.blocks, spec.width, set(spec.elements)) == card
    assert find_trunk(trunk.name) is trunk
    assert len(trunk.checksum) == 64


def test_reading_draws_no_random_numbers(trunk):
    state = torch.get_rng_state()
    found = read_trunk(FOLDER, STEMS[trunk.name])
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(weight.requires_grad for weight in found.network.parameters())


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown trunk 'chgent'. Did you mean 'chgnet'"):
        find_trunk("chgent")


def test_damaged_files_are_refused(trunk, tmp_path):
    stem = STEMS[trunk.name]
    for ending in ("json", "safetensors"):
        (tmp_path / f"{stem}.{ending}").write_bytes((FOLDER / f"{stem}.{ending}").read_bytes())
    assert read_trunk(tmp_path, stem).checksum == trunk.checksum
    weights = tmp_path / f"{stem}.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    with pytest.raises(StorageError, match=r"safetensors: has the checksum [0-9a-f]{16} in place"):
        read_trunk(tmp_path, stem)
    card = tmp_path / f"{stem}.json"
    fields = json.loads(card.read_text(encoding="ascii"))
    for damaged in ({}, fields | {"architecture": "mace"}, [fields]):
        card.write_text(json.dumps(damaged), encoding="ascii")
        with pytest.raises(StorageError, match="cannot be read .*; install hydragnn-hpo again"):
            read_trunk(tmp_path, stem)
    weights.unlink()
    with pytest.raises(StorageError, match="cannot be read .*; install hydragnn-hpo again"):
        read_trunk(tmp_path, stem)


def test_records_of_another_network_are_refused(trunk):
    """A record that names this trunk has its kind of network, and its sizes."""
    other = find_trunk(next(name for name in TRUNKS if name != trunk.name))
    weights = trunk.network.state_dict()
    assert open_trunk(trunk.record, weights).checksum == trunk.checksum
    with pytest.raises(DataError, match=f"'{trunk.name}' is no {other.name}"):
        open_trunk(other.record | {"name": trunk.name}, other.network.state_dict())
    sizes = trunk.record["config"]
    larger = trunk.record | {"config": sizes | {"features": 2 * sizes["features"]}}
    with pytest.raises(DataError, match="its sizes are not those of this network"):
        open_trunk(larger, weights)
    with pytest.raises(DataError, match="unknown architecture 'orb'"):
        open_trunk(trunk.record | {"architecture": "orb"}, weights)
