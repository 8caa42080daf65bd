"""Every edge stands beside its reverse, by numpy and by the compiled loop."""

import sys

import numpy as np
import pytest

from hydragnn_hpo.data.structure import edge_vectors, find_edges
from hydragnn_hpo.kernels import edge_pairs
from hydragnn_hpo.kernels.edge_pairs import lay_out_by_loop, lay_out_by_numpy, pair_edges

SMALL = np.array([[2.6, 0.0, 0.0], [0.4, 2.9, 0.0], [-0.3, 0.5, 3.1]])
"""A cell far smaller than the cutoff: several images of each other and of oneself, angstrom."""


@pytest.fixture(params=["numpy", "loop"])
def lay_out(request):
    """Each implementation of ``pair_edges``."""
    if request.param == "numpy":
        return lay_out_by_numpy
    pytest.importorskip("numba")
    return lay_out_by_loop


def neighbours(num_nodes, cell, cutoff, seed=0):
    """Give edge_index and shifts in angstrom of random atoms, as a batch has them."""
    random = np.random.default_rng(seed)
    box = cell if cell.any() else 3.0 * np.eye(3)
    positions = random.random((num_nodes, 3)) @ box
    edges, shift = find_edges(positions, cell, np.full(3, bool(cell.any())), cutoff)
    assert np.isfinite(edge_vectors(positions, cell, edges, shift)).all()
    return edges.T.astype(np.int64), shift @ cell


def count_lone(edge_index, shift):
    """Count edges without a reverse, taking edges one by one."""
    waiting = []
    for (sender, receiver), step in zip(edge_index.T.tolist(), shift, strict=True):
        fits = [(r, s) == (sender, receiver) and abs(d + step).max() < 1e-6 for s, r, d in waiting]
        if any(fits):
            waiting.pop(fits.index(True))
        else:
            waiting.append((sender, receiver, step))
    return len(waiting)


def check(laid, edge_index, shift, num_nodes):
    """Compare a layout with what it was made of; return how many edges have no reverse."""
    count = edge_index.shape[1]
    nodes = np.arange(num_nodes + 1)
    assert laid.num_lone == count_lone(edge_index, shift)
    np.testing.assert_array_equal(laid.ends[:, laid.by_receiver], edge_index)
    np.testing.assert_array_equal(laid.shift[laid.by_receiver], shift)
    assert sorted(laid.by_receiver) == list(range(count))
    np.testing.assert_array_equal(laid.receiver_starts, np.searchsorted(edge_index[1], nodes))
    np.testing.assert_array_equal(laid.by_sender, np.argsort(laid.ends[0], kind="stable"))
    np.testing.assert_array_equal(laid.sender_starts, np.searchsorted(np.sort(laid.ends[0]), nodes))
    pairs = (count + laid.num_lone) // 2
    both = pairs - laid.num_lone
    np.testing.assert_array_equal(laid.ends[:, pairs:], laid.ends[::-1, :both])
    np.testing.assert_allclose(laid.shift[pairs:], -laid.shift[:both], rtol=0, atol=1e-6)
    given = np.argsort(laid.by_receiver)
    assert (np.diff(given[:both]) > 0).all()
    assert (np.diff(given[both:pairs]) > 0).all()
    assert (laid.ends[1, :both] >= laid.ends[0, :both]).all()
    return laid.num_lone


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["fp64", "fp32"])
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
def test_every_edge_stands_beside_its_reverse(lay_out, num_nodes, cell, cutoff, dtype, seed):
    edge_index, shift = neighbours(num_nodes, cell, cutoff, seed)
    shift = shift.astype(dtype)
    assert check(lay_out(edge_index, shift, num_nodes), edge_index, shift, num_nodes) == 0


def test_graphs_of_a_batch_stand_one_after_the_other(lay_out):
    graphs = [neighbours(n, cell, 4.0) for n, cell in ((3, SMALL), (1, SMALL * 9), (4, SMALL * 0))]
    starts = np.array([0, 3, 4])
    edge_index = np.hstack([g[0] + s for g, s in zip(graphs, starts, strict=True)])
    shift = np.vstack([g[1] for g in graphs])
    assert not (edge_index == 3).any(), "the atom in the large cell is alone"
    assert check(lay_out(edge_index, shift, 8), edge_index, shift, 8) == 0


def test_pairs_of_a_batch_with_more_nodes_than_16_bits_count_are_the_same(lay_out):
    edge_index, shift = neighbours(9, SMALL, 4.0)
    places = np.arange(9) * 65_521 + 65_530
    assert (np.diff(places % 65_536) < 0).all(), "the last bits have another order"
    few = lay_out(edge_index, shift, 9)
    many = lay_out(places[edge_index], shift, 600_000)
    np.testing.assert_array_equal(many.by_receiver, few.by_receiver)
    np.testing.assert_array_equal(many.by_sender, few.by_sender)


def test_no_edges_are_no_pairs_of_none(lay_out):
    for nodes in (3, 0):
        given = np.zeros((2, 0), np.int64), np.zeros((0, 3))
        assert check(lay_out(*given, nodes), *given, nodes) == 0


@pytest.mark.parametrize(
    ("edges", "shift", "lone"),
    [
        ([(0, 1)], [0.0], 1),
        ([(0, 1), (2, 1)], [0.0, 0.0], 2),
        ([(1, 0), (1, 0), (0, 1)], [0.0, 0.0, 0.0], 1),
        ([(1, 0), (2, 0), (0, 1), (0, 1)], [0.0] * 4, 2),
        ([(1, 0), (0, 1)], [1.0, 1.0], 2),
        ([(1, 0), (1, 0), (0, 1), (0, 1)], [-1.0, 2.0, -2.0, 3.0], 2),
        ([(0, 0), (0, 0)], [1.0, 1.0], 2),
        ([(0, 0)], [1.0], 1),
        ([(0, 0), (1, 1)], [1.0, -1.0], 2),
        ([(0, 0), (0, 0), (0, 0)], [-2.0, 1.0, 2.0], 1),
    ],
    ids=[
        *("odd", "other nodes", "three", "twice", "shifts", "some shifts"),
        *("loops", "loop", "two", "a loop between"),
    ],
)
def test_edges_without_a_reverse_are_counted_and_close_the_first_half(lay_out, edges, shift, lone):
    given = np.array(edges, dtype=np.int64).T, np.outer(shift, [1.0, 0.0, 0.0])
    assert check(lay_out(*given, 3), *given, 3) == lone


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.02, 0.4, 1.0])
@pytest.mark.parametrize("cell", [SMALL, np.zeros((3, 3))], ids=["crystal", "molecule"])
def test_edges_left_out_at_random_cost_the_others_no_reverse(lay_out, seed, share, cell):
    random = np.random.default_rng(seed)
    edge_index, shift = neighbours(4, cell, 4.5, seed)
    kept = random.random(len(shift)) >= share
    if share < 1.0:
        kept[random.integers(len(shift))] = False
    given = edge_index[:, kept], shift[kept]
    laid = lay_out(*given, 4)
    assert check(laid, *given, 4) == (0 if share == 1.0 else laid.num_lone)
    for one, other in zip(laid, lay_out_by_numpy(*given, 4), strict=True):
        np.testing.assert_array_equal(one, other)


def test_edges_that_are_not_sorted_give_none(lay_out):
    """Two in a hundred orders of so few edges would look like pairs, with a wrong order."""
    edge_index, shift = neighbours(2, 1.2 * SMALL, 3.2)
    for seed in range(300):
        order = np.random.default_rng(seed).permutation(edge_index.shape[1])
        given = edge_index[:, order]
        nodes = (given[1] * 2 + given[0]).tolist()
        if nodes != sorted(nodes):
            assert lay_out(given, shift[order], 2) is None


def test_without_numba_pairs_are_found_by_numpy(monkeypatch):
    edge_index, shift = neighbours(5, SMALL, 4.0)
    laid = pair_edges(edge_index, shift, 5)
    monkeypatch.delitem(sys.modules, "hydragnn_hpo.kernels.pair_loops", raising=False)
    monkeypatch.setitem(sys.modules, "numba.extending", None)
    monkeypatch.setattr(edge_pairs, "_has_loop", edge_pairs._has_loop.__wrapped__)
    monkeypatch.setattr(edge_pairs, "lay_out_by_loop", None)
    for one, other in zip(laid, pair_edges(edge_index, shift, 5), strict=True):
        np.testing.assert_array_equal(one, other)
