"""Batches cut out of a longer cutoff hold what batches made for the shorter one hold."""

import weakref

import numpy as np
import pytest
import torch

from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.ensemble.engine import (
    batches_by_key,
    cut_to_cutoff,
    squared_lengths,
)
from hydragnn_hpo.model.edges import pair_vectors
from tests.unit.ensemble.conftest import toy_columns

CPU = torch.device("cpu")


def edges_of(batch):
    """List every edge with its vector, sorted: the layout aside, what a net sees."""
    links, vectors = pair_vectors(batch)
    if len(links.sender) > len(vectors):
        vectors = torch.cat((vectors, -vectors))
    rows = zip(links.sender.tolist(), links.receiver.tolist(), vectors.tolist(), strict=True)
    return sorted((s, r, *np.round(v, 4)) for s, r, v in rows)


@pytest.mark.parametrize("cutoff", [3.9, 3.0, 1.7, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cut_batch_holds_the_edges_of_one_made_for_that_cutoff(cutoff, dtype):
    columns, _ = toy_columns()
    rows = np.arange(20)
    long = make_batch(columns, rows, cutoff=4.0, dtype=dtype, pairs=True)
    made = make_batch(columns, rows, cutoff=cutoff, dtype=dtype)

    cut = cut_to_cutoff(long, squared_lengths(long), cutoff)

    assert edges_of(cut) == edges_of(made)
    assert len(edges_of(cut)) < len(edges_of(long))


@pytest.mark.parametrize("cutoff", [4.0, 2.5])
def test_links_of_a_cut_batch_lead_to_each_nodes_own_edges(cutoff):
    columns, _ = toy_columns()
    long = make_batch(columns, np.arange(20), cutoff=4.0, pairs=True)

    links, _ = pair_vectors(cut_to_cutoff(long, squared_lengths(long), cutoff))

    half = len(links.sender) // 2
    assert torch.equal(links.sender[:half], links.receiver[half:])
    assert torch.equal(links.sender[half:], links.receiver[:half])
    for ends, order, starts in (
        (links.receiver, links.by_receiver, links.receiver_starts),
        (links.sender, links.by_sender, links.sender_starts),
    ):
        assert sorted(order.tolist()) == list(range(2 * half))
        for node in range(links.num_nodes):
            own = order[starts[node] : starts[node + 1]]
            assert (ends[own] == node).all()


def test_caps_and_types_have_batches_of_their_own():
    columns, _ = toy_columns()
    keys = [
        (4.0, torch.float32, None),
        (3.0, torch.float64, None),
        (2.5, torch.float32, 2),
        (3.0, torch.float32, None),
    ]

    made = dict(batches_by_key(keys, columns, np.arange(9), CPU))

    for (cutoff, dtype, cap), batch in made.items():
        alone = make_batch(
            columns, np.arange(9), cutoff=cutoff, dtype=dtype, max_neighbors=cap, pairs=False
        )
        assert batch.positions.dtype == dtype
        assert edges_of(batch) == edges_of(alone)


def test_batches_of_shorter_cutoffs_are_released_one_by_one():
    columns, _ = toy_columns()
    keys = [(cutoff, torch.float32, None) for cutoff in (2.0, 4.0, 2.5, 3.0)]

    seen, alive = [], []
    for (cutoff, *_), batch in batches_by_key(keys, columns, np.arange(9), CPU):
        seen.append((cutoff, weakref.ref(batch)))
        alive.append([cutoff for cutoff, known in seen if known() is not None])

    assert alive == [[4.0], [4.0, 3.0], [4.0, 2.5], [4.0, 2.0]]


def test_no_graphs_and_no_edges_are_batches_too():
    columns, _ = toy_columns()
    keys = [(4.0, torch.float32, None), (0.2, torch.float32, None)]

    assert dict(batches_by_key(keys, columns, np.arange(0), CPU))[keys[0]].num_graphs == 0
    lonely = dict(batches_by_key(keys, columns, np.arange(3), CPU))[keys[1]]
    assert lonely.edge_index.shape == (2, 0)
    assert lonely.num_graphs == 3
