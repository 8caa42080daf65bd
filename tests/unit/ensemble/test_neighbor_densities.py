"""Densities of neighbours by hand, what may not change them, and what turns them."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.neighbor_densities import (
    ANGULAR_SHELLS,
    SHELLS,
    TRACELESS,
    describe_atoms,
    describe_directions,
    element_channels,
)

CUTOFF = 4.0


def graphs(structures: list[Atoms], targets: dict[str, TargetConfig] | None = None) -> Columns:
    rules = Rules(5.0, 0.1, targets or {})
    made = [graph_of(a, Place(Path("x"), k, f"{k}"), rules) for k, a in enumerate(structures)]
    return columns_of(made, targets or {}, {"cutoff": 5.0})


def radial(length: float, count: int) -> np.ndarray:
    """Gaussians from the cutoff down to 0.8 angstrom, smooth at the cutoff."""
    width = (CUTOFF - 0.8) / count
    centers = CUTOFF - width * (np.arange(count) + 0.5)
    smooth = 0.5 * (1 + np.cos(np.pi * length / CUTOFF))
    return np.exp(-((length - centers) ** 2) / (2 * width**2)) * smooth


def list_neighbors(atoms: Atoms, i: int) -> list[tuple[int, np.ndarray]]:
    """Atomic number of each neighbour of a molecule's atom, and the vector to it."""
    vectors = atoms.positions - atoms.positions[i]
    near = np.linalg.norm(vectors, axis=1) < CUTOFF
    return [(int(atoms.numbers[j]), vectors[j]) for j in np.flatnonzero(near) if j != i]


def slow_description(atoms: Atoms, elements: list[int]) -> np.ndarray:
    """Sum over neighbours and pairs of them, one by one; for molecules."""
    rows = []
    for i in range(len(atoms)):
        near = list_neighbors(atoms, i)
        row = []
        for z in elements:
            total = np.zeros(SHELLS)
            for number, vector in near:
                total += (number == z) * radial(np.linalg.norm(vector), SHELLS)
            row.append(total)
        for power in (1, 2, 3):
            for first, z in enumerate(elements):
                for other in elements[first:]:
                    total = np.zeros(ANGULAR_SHELLS)
                    for a, v in near:
                        for b, w in near:
                            lengths = np.linalg.norm(v), np.linalg.norm(w)
                            cosine = v @ w / (lengths[0] * lengths[1])
                            shells = [radial(length, ANGULAR_SHELLS) for length in lengths]
                            total += (a == z) * (b == other) * shells[0] * shells[1] * cosine**power
                    row.append(total)
        rows.append(np.concatenate(row))
    return np.array(rows)


@pytest.mark.parametrize("name", ["CH3OH", "NH3", "C2H4"])
def test_densities_are_sums_over_neighbours_and_their_pairs(name: str) -> None:
    atoms = molecule(name)
    elements = sorted(set(atoms.numbers.tolist()))
    got = describe_atoms(graphs([atoms]), CUTOFF, element_channels(elements))
    np.testing.assert_allclose(got, slow_description(atoms, elements), atol=1e-12)


def test_rotation_order_batch_and_images_change_nothing() -> None:
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    atoms = molecule("CH3CONH2")
    order = np.random.default_rng(1).permutation(9)
    turned = atoms[order]
    turned.positions = turned.positions @ rotation.T + 3.0
    salt = bulk("NaCl", "rocksalt", a=5.64)
    channels = element_channels([1, 6, 7, 8, 11, 17])
    together = describe_atoms(graphs([atoms, turned, salt, salt * (2, 1, 1)]), CUTOFF, channels)
    alone = describe_atoms(graphs([atoms]), CUTOFF, channels)
    np.testing.assert_allclose(together[:9], alone, atol=1e-12)
    np.testing.assert_allclose(together[9:18], alone[order], atol=1e-10)
    np.testing.assert_allclose(together[20:22], together[18:20], atol=1e-10)
    np.testing.assert_allclose(together[22:24], together[18:20], atol=1e-10)


def test_densities_end_smoothly_at_the_cutoff() -> None:
    steps = np.array([CUTOFF - 1e-4, CUTOFF + 1e-4])
    pairs = graphs([Atoms("H2", positions=[[0, 0, 0], [0, 0, d]]) for d in steps])
    values = describe_atoms(pairs, CUTOFF, element_channels([1]))
    assert np.abs(values[:2]).max() < 1e-8
    assert (values[2:] == 0).all()


@pytest.mark.parametrize("cutoff", [CUTOFF, 1.0])
def test_atoms_without_neighbours_have_no_densities(cutoff: float) -> None:
    atoms = [Atoms("O"), Atoms("HO", positions=[[0, 0, 0], [0, 0, 9.0]])]
    if cutoff < CUTOFF:  # there are edges, and all are longer than the densities reach
        atoms.append(Atoms("H2", positions=[[0, 0, 0], [0, 0, 2.0]]))
    columns = graphs(atoms)
    channels = element_channels([1, 8])
    assert (len(columns.edges) == 0) == (cutoff == CUTOFF)
    together = graphs([*atoms, molecule("H2O")])
    densities = describe_atoms(columns, cutoff, channels)
    assert (densities == 0).all()
    assert densities.shape[1] == describe_atoms(together, cutoff, channels).shape[1]
    for order, components in ((1, 3), (2, 5)):
        turning = describe_directions(columns, cutoff, channels, order)
        assert (turning == 0).all()
        assert turning.shape == (len(columns.numbers), components, 2 * SHELLS)


def test_many_elements_share_channels() -> None:
    channels = element_channels(list(range(1, 31)))
    assert channels.shape == (119, 4)
    assert (channels[:, 0] == 1).all()
    np.testing.assert_allclose(channels[1:31, 1:].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(channels[1:31, 1:].std(axis=0), 1.0, atol=1e-12)
    assert channels[3, 1] == channels[10, 1] < channels[11, 1]  # periods of Li, Ne and Na


def slow_directions(atoms: Atoms, elements: list[int], order: int) -> np.ndarray:
    """Sum over neighbours one by one, as vectors or 3 x 3 matrices; for molecules."""
    rows = []
    for i in range(len(atoms)):
        total = np.zeros((3,) * order + (len(elements), SHELLS))
        for number, vector in list_neighbors(atoms, i):
            length = float(np.linalg.norm(vector))
            unit = -vector / length
            angular = unit if order == 1 else np.outer(unit, unit) - np.eye(3) / 3
            total[..., elements.index(number), :] += angular[..., None] * radial(length, SHELLS)
        rows.append(total.reshape(3**order, -1))
    return np.array(rows)


def matrices(densities: np.ndarray) -> np.ndarray:
    """Return densities of tensors, [N, 5, D], as matrices row by row, [N, 9, D]."""
    return np.einsum("nwd,wt->ntd", densities, TRACELESS)


@pytest.mark.parametrize("name", ["CH3OH", "NH3", "C2H4"])
def test_directions_are_sums_over_neighbours(name: str) -> None:
    atoms = molecule(name)
    elements = sorted(set(atoms.numbers.tolist()))
    columns = graphs([atoms])
    channels = element_channels(elements)
    vectors = describe_directions(columns, CUTOFF, channels, 1)
    np.testing.assert_allclose(vectors, slow_directions(atoms, elements, 1), atol=1e-12)
    tensors = matrices(describe_directions(columns, CUTOFF, channels, 2))
    np.testing.assert_allclose(tensors, slow_directions(atoms, elements, 2), atol=1e-12)


def test_directions_turn_with_the_structure_and_images_count() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    atoms = molecule("CH3CONH2")
    turned = Atoms(atoms.numbers, atoms.positions @ turn.T + 3.0)
    salt = bulk("NaCl", "rocksalt", a=5.64)
    salt.positions[1] += [0.3, 0.1, 0.0]
    columns = graphs([atoms, turned, salt, salt * (1, 2, 1)])
    channels = element_channels([1, 6, 7, 8, 11, 17])
    vectors = describe_directions(columns, CUTOFF, channels, 1)
    np.testing.assert_allclose(
        vectors[9:18], np.einsum("xy,nyd->nxd", turn, vectors[:9]), atol=1e-10
    )
    tensors = matrices(describe_directions(columns, CUTOFF, channels, 2)).reshape(24, 3, 3, -1)
    expected = np.einsum("xy,nyzd,wz->nxwd", turn, tensors[:9], turn)
    np.testing.assert_allclose(tensors[9:18], expected, atol=1e-10)
    for densities in (vectors, tensors):
        assert np.abs(densities[18:20]).max() > 1e-3
        np.testing.assert_allclose(densities[20:22], densities[18:20], atol=1e-10)
        np.testing.assert_allclose(densities[22:24], densities[18:20], atol=1e-10)


def test_tensors_without_trace_have_an_orthonormal_basis() -> None:
    matrices = TRACELESS.reshape(5, 3, 3)
    np.testing.assert_allclose(TRACELESS @ TRACELESS.T, np.eye(5), atol=1e-15)
    np.testing.assert_array_equal(matrices, matrices.swapaxes(1, 2))
    np.testing.assert_allclose(np.trace(matrices, axis1=1, axis2=2), 0.0, atol=1e-15)
