"""Sizes, elements and degrees, against shells and sizes counted by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn_hpo.data.columns import Columns, arrays_of, columns_of
from hydragnn_hpo.data.graph_sizes import (
    LARGEST_DEGREE,
    SizeTally,
    bytes_per_graph,
    degrees_of,
    edge_lengths,
    histogram,
    size_stats,
)


def spread(columns: Columns) -> Columns:
    split = np.arange(columns.num_graphs) % 5
    return replace(columns, split=split.astype(np.int8))


def test_shells_of_fcc(graph: Callable[..., object]) -> None:
    # a = 3.0: 12 at a / sqrt(2), 6 at a, 24 at a * sqrt(3 / 2) = 3.67: 42 within 4.
    columns = spread(columns_of([graph(bulk("Cu", a=3.0, cubic=True))], {}))
    stats = size_stats(columns, 4.0)
    # The second shell stands at the cutoff itself.
    assert stats["degree"] == {"3.0": 18.0, "4.0": 42.0}
    assert stats["degrees"]["3.0"]["all"] == [0] * 18 + [4]
    assert stats["degrees"]["4.0"]["train"] == [0] * 42 + [4]


def test_degrees_of_molecules_and_lone_atoms(graph: Callable[..., object]) -> None:
    columns = spread(columns_of([graph(Atoms("Ar")), graph(molecule("H2O"))], {}))
    stats = size_stats(columns, 4.0)
    assert stats["degrees"]["3.0"] == {"train": [1], "all": [1, 0, 3]}
    assert stats["element_counts"] == {
        "H": {"atoms": 2, "structures": 1},
        "O": {"atoms": 1, "structures": 1},
        "Ar": {"atoms": 1, "structures": 1},
    }
    assert stats["elements"] == [1, 8, 18]
    assert stats["nodes"] == {"mean": 2.0, "min": 1, "max": 3, "total": 4}
    assert (stats["num_graphs"], stats["train_nodes"]) == (2, 1)


def test_the_result_does_not_depend_on_the_pieces(columns: Columns) -> None:
    whole = spread(columns)
    expected = size_stats(whole, 4.5)
    one = SizeTally(4.5)
    other = SizeTally(4.5)
    for number, rows in enumerate(([17, 3], list(range(4, 17)), [0], [], [2, 1])):
        piece = whole.take(np.array(rows, dtype=np.int64))
        tally = one if number % 2 else other
        tally.add(piece, degrees_of(piece, 4.5) if number else None)
    one.merge(other)
    assert one.result() == expected
    assert sum(expected["degrees"]["4.5"]["all"]) == len(columns.numbers)
    inside = (edge_lengths(whole) <= 3.0).sum() / len(whole.numbers)
    assert expected["degree"]["3.0"] == inside


def test_edge_lengths_are_those_of_the_vectors(columns: Columns) -> None:
    expected = []
    for g in range(columns.num_graphs):
        first = columns.node_offset[g]
        for e in range(columns.edge_offset[g], columns.edge_offset[g + 1]):
            i, j = columns.edges[e] + first
            shift = columns.edge_shift[e] @ columns.cell[g]
            step = columns.positions[j] + shift - columns.positions[i]
            expected.append(np.sqrt((step**2).sum()))
    np.testing.assert_allclose(edge_lengths(columns), expected, rtol=1e-14)


def test_bytes_are_those_of_the_columns(columns: Columns) -> None:
    result = bytes_per_graph(columns)
    assert result.sum() == sum(array.nbytes for array in arrays_of(columns).values())
    for row in (0, 4):
        one = columns.take(np.array([row]))
        assert result[row] == sum(array.nbytes for array in arrays_of(one).values())


def test_very_many_neighbours_share_the_last_entry(columns: Columns) -> None:
    whole = spread(columns)
    tally = SizeTally(3.0)
    degrees = np.full((len(whole.numbers), 1), 5 * LARGEST_DEGREE, dtype=np.int32)
    tally.add(whole, degrees)
    stats = tally.result()
    assert stats["degree"] == {"3.0": 5.0 * LARGEST_DEGREE}
    assert stats["degrees"]["3.0"]["all"] == [0] * LARGEST_DEGREE + [len(whole.numbers)]


@pytest.mark.parametrize(
    ("values", "edges", "counts"),
    [
        ([5] * 3, [5, 6], [3]),
        ([0, 1, 1, 4], [0, 1, 2, 3, 4, 5], [1, 2, 0, 0, 1]),
        ([2, 168, 9, 10], list(range(0, 171, 10)), [2, 1, *[0] * 14, 1]),
        ([1, 1, 1, 20], list(range(1, 22)), [3, *[0] * 18, 1]),
        ([1, 1, 1, 21], [0, 1, 2, 4, 8, 16, 32], [0, 3, 0, 0, 0, 1]),
        ([1, 1, 1, 1, 100], [0, 1, 2, 4, 8, 16, 32, 64, 128], [0, 4, 0, 0, 0, 0, 0, 1]),
    ],
    ids=["equal", "few", "tens", "as many as bins", "one more", "doubling"],
)
def test_bins_are_round(values: list[int], edges: list[int], counts: list[int]) -> None:
    actual = histogram(*np.unique(values, return_counts=True))
    assert actual == {"edges": edges, "counts": counts}
