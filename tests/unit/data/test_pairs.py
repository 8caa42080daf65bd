"""Edges in pairs against a slow loop, and None where there are none."""

import numpy as np
import pytest

from hydragnn_hpo.data.cap import capped
from hydragnn_hpo.data.neighbors import edge_vectors, edges_of
from hydragnn_hpo.data.pairs import pairs_of

SMALL = np.array([[2.6, 0.0, 0.0], [0.4, 2.9, 0.0], [-0.3, 0.5, 3.1]])
"""A cell far smaller than the cutoff: several images of each other and of oneself, angstrom."""


def neighbours(num_nodes, cell, cutoff, seed=0):
    """Give edge_index, shifts in angstrom and lengths of random atoms, as a batch has them."""
    random = np.random.default_rng(seed)
    box = cell if cell.any() else 3.0 * np.eye(3)
    positions = random.random((num_nodes, 3)) @ box
    edges, shift = edges_of(positions, cell, np.full(3, bool(cell.any())), cutoff)
    lengths = np.linalg.norm(edge_vectors(positions, cell, edges, shift), axis=1)
    return edges.T.astype(np.int64), shift @ cell, lengths


def reverse_of(edge_index, shift):
    """Find the reverse of each edge by looking at all edges."""
    found = []
    for (sender, receiver), step in zip(edge_index.T, shift, strict=True):
        turned = (edge_index[0] == receiver) & (edge_index[1] == sender)
        (row,) = np.flatnonzero(turned & (np.abs(shift + step) < 1e-9).all(axis=1))
        found.append(row)
    return np.array(found, dtype=np.int64)


def check(edge_index, shift, num_nodes):
    layout, order = pairs_of(edge_index, shift, num_nodes)
    count = edge_index.shape[1]
    assert sorted(layout) == list(range(count))
    first, second = np.split(layout, 2)
    np.testing.assert_array_equal(second, reverse_of(edge_index, shift)[first])
    np.testing.assert_array_equal(layout[order], np.arange(count))
    assert (np.diff(edge_index[1][layout][order]) >= 0).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("num_nodes", "cell", "cutoff"),
    [
        (1, np.zeros((3, 3)), 3.0),
        (2, np.zeros((3, 3)), 9.0),
        (9, np.zeros((3, 3)), 2.0),
        (1, SMALL, 3.5),
        (2, SMALL, 6.0),
        (5, SMALL, 4.0),
        (3, np.diag([2.0, 2.0, 2.0]), 4.1),
    ],
)
def test_every_edge_stands_beside_its_reverse(num_nodes, cell, cutoff, seed):
    edge_index, shift, _ = neighbours(num_nodes, cell, cutoff, seed)
    check(edge_index, shift, num_nodes)


def test_graphs_of_a_batch_stand_one_after_the_other():
    graphs = [neighbours(n, cell, 4.0) for n, cell in ((3, SMALL), (1, SMALL * 9), (4, SMALL * 0))]
    starts = np.array([0, 3, 4])
    edge_index = np.hstack([g[0] + s for g, s in zip(graphs, starts, strict=True)])
    shift = np.vstack([g[1] for g in graphs])
    assert not (edge_index == 3).any(), "the atom in the large cell is alone"
    check(edge_index, shift, 8)


def test_single_precision_of_shifts_is_enough():
    edge_index, shift, _ = neighbours(4, SMALL * 1.37, 9.0)
    assert pairs_of(edge_index, shift.astype(np.float32), 4) is not None


def test_no_edges_are_no_pairs_of_none():
    layout = pairs_of(np.zeros((2, 0), np.int64), np.zeros((0, 3)), 3)
    assert layout is not None
    assert layout.shape == (2, 0)
    assert pairs_of(np.zeros((2, 0), np.int64), np.zeros((0, 3)), 0).shape == (2, 0)


def test_a_shorter_cutoff_takes_both_edges_of_a_pair():
    edge_index, shift, lengths = neighbours(4, SMALL, 5.0)
    near = lengths <= 3.0
    assert 0 < near.sum() < len(near)
    check(edge_index[:, near], shift[near], 4)


def test_a_cap_leaves_pairs():
    edge_index, shift, lengths = neighbours(9, np.zeros((3, 3)), 9.0, seed=3)
    kept = capped(edge_index, lengths, 9, 3)
    assert 0 < kept.sum() < len(kept)
    check(edge_index[:, kept], shift[kept], 9)


def test_whole_shells_of_a_crystal_are_pairs():
    """In simple cubic every atom has 6 nearest neighbours."""
    cell = 2.0 * np.eye(3)
    edges, shift = edges_of(np.zeros((1, 3)), cell, np.full(3, True), 4.1)
    edge_index = edges.T.astype(np.int64)
    keep = np.flatnonzero(capped(edge_index, np.linalg.norm(shift @ cell, axis=1), 1, 6))
    assert len(keep) == 6
    check(edge_index[:, keep], (shift @ cell)[keep], 1)


@pytest.mark.parametrize(
    ("edges", "shift"),
    [
        ([(0, 1)], [0.0]),
        ([(0, 1), (2, 1)], [0.0, 0.0]),
        ([(1, 0), (1, 0), (0, 1)], [0.0, 0.0, 0.0]),
        ([(1, 0), (2, 0), (0, 1), (0, 1)], [0.0] * 4),
        ([(1, 0), (0, 1)], [1.0, 1.0]),
        ([(1, 0), (1, 0), (0, 1), (0, 1)], [-1.0, 2.0, -2.0, 3.0]),
        ([(0, 0), (0, 0)], [1.0, 1.0]),
        ([(0, 0)], [1.0]),
        ([(0, 0), (1, 1)], [1.0, -1.0]),
    ],
    ids=["odd", "other nodes", "three", "twice", "shifts", "some shifts", "loops", "loop", "two"],
)
def test_edges_that_are_no_pairs_give_none(edges, shift):
    shifts = np.outer(shift, [1.0, 0.0, 0.0])
    assert pairs_of(np.array(edges, dtype=np.int64).T, shifts, 3) is None


def test_edges_not_sorted_by_receiver_give_none():
    """Two in a hundred orders of so few edges would look like pairs, with a wrong order."""
    edge_index, shift, _ = neighbours(2, 1.2 * SMALL, 3.2)
    for seed in range(300):
        order = np.random.default_rng(seed).permutation(edge_index.shape[1])
        if (np.diff(edge_index[1][order]) < 0).any():
            assert pairs_of(edge_index[:, order], shift[order], 2) is None


def test_edges_of_one_node_in_another_order_give_none_or_pairs():
    """Sorted by receiver only: wrong pairs must never come out."""
    edge_index, shift, _ = neighbours(3, SMALL, 4.0)
    for seed in range(20):
        random = np.random.default_rng(seed)
        order = np.lexsort((random.random(edge_index.shape[1]), edge_index[1]))
        if pairs_of(edge_index[:, order], shift[order], 3) is not None:
            check(edge_index[:, order], shift[order], 3)
