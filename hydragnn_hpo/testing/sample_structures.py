"""Small structures for the checks.

Shapes: N atoms, E edges. Lengths are in angstrom.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn_hpo.data import Batch, Graph, columns_of, find_edges, make_batch

CUTOFF = 4.0
"""Longest edge in angstrom."""

NEAREST = 0.9
"""Smallest distance between random atoms, periodic images included, in angstrom."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Structure:
    """A molecule or a crystal."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""
    positions: Array
    """In angstrom, [N, 3]."""
    cell: Array
    """Lattice vectors as rows in angstrom, [3, 3]; zeros for a molecule."""
    periodic: bool = False
    """Whether the structure repeats along its lattice vectors."""

    def rotate(self, matrix: Array) -> "Structure":
        """Rotate or mirror positions and cell by an orthogonal matrix, [3, 3]."""
        return replace(self, positions=self.positions @ matrix.T, cell=self.cell @ matrix.T)

    def translate(self, shift: Array) -> "Structure":
        """Translate all atoms by one vector, [3], or each by its own, [N, 3], in angstrom."""
        return replace(self, positions=self.positions + shift)

    def reorder(self, order: NDArray[np.int64]) -> "Structure":
        """Reorder the atoms: the new atom i is the old ``order[i]``, [N]."""
        return replace(self, numbers=self.numbers[order], positions=self.positions[order])

    def double_cell(self) -> "Structure":
        """Return the same crystal with a cell that is doubled along its first lattice vector."""
        return Structure(
            np.tile(self.numbers, 2),
            np.vstack((self.positions, self.positions + self.cell[0])),
            np.vstack((2 * self.cell[:1], self.cell[1:])),
            self.periodic,
        )

    def graph(self, without: tuple[int, int] | None = None) -> Graph:
        """Return the graph of all edges within ``CUTOFF``, except between two given atoms."""
        pbc = np.full(3, self.periodic)
        edges, shift = find_edges(self.positions, self.cell, pbc, CUTOFF)
        if without is not None:
            keep = (np.sort(edges, axis=1) != np.sort(without)).any(axis=1)
            edges, shift = edges[keep], shift[keep]
        return Graph("x", self.numbers, self.positions, self.cell, pbc, edges, shift, {}, "x", None)


SKEWED = np.array([[3.8, 0.0, 0.0], [0.8, 4.2, 0.0], [-0.5, 0.6, 4.9]])
"""Lattice vectors in angstrom; one is shorter than ``CUTOFF``, so atoms neighbour their images."""


def random_structure(seed: int, num_nodes: int = 6, *, periodic: bool = False) -> Structure:
    """Place atoms of four elements at random in a box, or in a skewed cell.

    Args:
        seed: seed of the random numbers.
        num_nodes: number of atoms, N.
        periodic: whether to return a crystal with the cell ``SKEWED``, else a molecule.
    """
    random = np.random.default_rng(seed)
    images = [np.zeros(3)]
    if periodic:
        images = [np.array(steps) @ SKEWED for steps in product((-1, 0, 1), repeat=3)]
    box = SKEWED if periodic else 3.6 * np.eye(3)
    positions = np.empty((0, 3))
    while len(positions) < num_nodes:
        candidate = random.random(3) @ box
        apart = [np.linalg.norm(positions - candidate - image, axis=1) for image in images]
        if (np.array(apart) > NEAREST).all():
            positions = np.vstack((positions, candidate))
    numbers = random.choice([1, 6, 8, 26], num_nodes).astype(np.int16)
    return Structure(numbers, positions, SKEWED if periodic else np.zeros((3, 3)), periodic)


def molecule_and_crystal() -> tuple[Structure, Structure]:
    """Return two small random structures.

    Returns:
        A molecule of 6 atoms, and a crystal of 5.
    """
    return random_structure(1), random_structure(2, 5, periodic=True)


def molecule(
    numbers: Sequence[int], positions: Sequence[Sequence[float] | Array] | Array
) -> Structure:
    """Return atoms at given positions in angstrom, in free space."""
    places = np.array(positions, dtype=np.float64).reshape(-1, 3)
    return Structure(np.array(numbers, dtype=np.int16), places, np.zeros((3, 3)))


def add_isolated_atom(seed: int) -> Structure:
    """Return a random molecule with one more atom that is too far away to have an edge."""
    near = random_structure(seed, 4)
    return Structure(
        np.append(near.numbers, np.int16(26)),
        np.vstack((near.positions, [[30.0, 0.0, 0.0]])),
        near.cell,
    )


def symmetric_sites() -> tuple[Structure, ...]:
    """Return structures in which the directions around an atom cancel exactly.

    Returns:
        A straight molecule, a cubic crystal of one atom, and an octahedron around an atom.
    """
    straight = molecule([8, 6, 8], [[-1.16, 0, 0], [0, 0, 0], [1.16, 0, 0]])
    cubic = Structure(np.array([26], np.int16), np.zeros((1, 3)), 2.87 * np.eye(3), True)
    octahedron = molecule([26, *[8] * 6], 1.9 * np.vstack((np.zeros(3), np.eye(3), -np.eye(3))))
    return straight, cubic, octahedron


def crowded_shell() -> Structure:
    """Return an atom with 72 neighbours of four elements at one distance, 3.1 angstrom.

    They are all integer vectors of length sqrt(41), times a number that puts none at the cutoff.
    """
    steps = [v for v in product(range(-6, 7), repeat=3) if np.dot(v, v) == 41]
    numbers = np.random.default_rng(9).choice([1, 6, 8, 26], len(steps))
    return molecule([26, *numbers.tolist()], 0.49 * np.vstack((np.zeros(3), steps)))


def batch_structures(
    structures: Sequence[Structure], dtype: torch.dtype = torch.float64, *, paired: bool = True
) -> Batch:
    """Return a batch of structures.

    Args:
        structures: at least one.
        dtype: dtype of positions and cells.
        paired: whether edges are in pairs, else in the order of the store.
    """
    return batch_graphs([structure.graph() for structure in structures], dtype, paired=paired)


def batch_graphs(
    graphs: Sequence[Graph], dtype: torch.dtype = torch.float64, *, paired: bool = True
) -> Batch:
    """Return a batch of graphs.

    Args:
        graphs: at least one.
        dtype: dtype of positions and cells.
        paired: whether edges are in pairs, else in the order of the store.
    """
    columns = columns_of(graphs, {})
    return make_batch(columns, range(len(graphs)), cutoff=CUTOFF, dtype=dtype, pairs=paired)


def shuffle_edges(batch: Batch, seed: int) -> Batch:
    """Return the batch with its edges in a random order, and not in pairs."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(batch.edge_index.shape[1]))
    return replace(
        batch,
        edge_index=batch.edge_index[:, order],
        edge_shift=batch.edge_shift[order],
        by_receiver=None,
    )


def empty_batch(dtype: torch.dtype = torch.float64) -> Batch:
    """Return a batch without graphs, as a rank gets when there are fewer graphs than ranks."""
    one = batch_structures([random_structure(0, 2)], dtype)
    assert one.by_receiver is not None
    assert one.receiver_starts is not None
    assert one.cell is not None
    return replace(
        one,
        numbers=one.numbers[:0],
        positions=one.positions[:0],
        edge_index=one.edge_index[:, :0],
        edge_shift=one.edge_shift[:0],
        graph_of_node=one.graph_of_node[:0],
        num_graphs=0,
        graph_index=one.graph_index[:0],
        cell=one.cell[:0],
        by_receiver=one.by_receiver[:0],
        receiver_starts=one.receiver_starts[:1],
        by_sender=one.by_receiver[:0],
        sender_starts=one.receiver_starts[:1],
    )
