"""Errors and predictions over a split, against one graph at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.training import evaluate
from hydragnn_hpo.training.epoch import compute_objective
from hydragnn_hpo.training.evaluate import error_sums, predict_split

HEADS = {"energy": {}, "charge": {}, "push": {}}


@pytest.fixture
def trainer(train):
    return train(conv="painn", heads=HEADS)


def one_by_one(trainer, indices):
    result = {name: [] for name in HEADS}
    with torch.no_grad():
        for index in indices:
            for name, values in trainer.parts.model(
                trainer.parts.feed.batch_on_device(np.array([index]))
            ).items():
                result[name].append(values.numpy())
    return {name: np.concatenate(pieces) for name, pieces in result.items()}


@pytest.mark.parametrize("edges_per_batch", [1, 25, 40_000])
def test_predictions_are_in_the_order_requested(trainer, monkeypatch, edges_per_batch):
    monkeypatch.setattr(evaluate, "EDGES_PER_BATCH", edges_per_batch)
    indices = np.array([31, 4, 17, 5, 0, 38, 12])
    result = predict_split(trainer.parts.model, trainer.parts.feed, indices)
    for name, values in one_by_one(trainer, indices).items():
        assert result[name].shape == values.shape
        np.testing.assert_allclose(result[name], values, rtol=0, atol=1e-13)


def test_pieces_hold_every_graph_once_and_stay_small(trainer, monkeypatch):
    monkeypatch.setattr(evaluate, "EDGES_PER_BATCH", 25)
    indices = np.arange(40)[::-1].copy()
    edges = trainer.parts.feed.graphs.num_edges()
    pieces = [piece.graph_index.tolist() for piece in trainer.parts.feed.share_in_batches(indices)]
    assert sum(pieces, []) == indices.tolist()
    assert max(edges[piece].sum() for piece in pieces) <= 25 + edges.max()


def test_no_graphs_no_predictions(trainer):
    nothing = np.array([], dtype=np.int64)
    result = predict_split(trainer.parts.model, trainer.parts.feed, nothing)
    assert {name: v.shape for name, v in result.items()} == {
        "energy": (0, 1), "charge": (0, 1), "push": (0, 3),
    }  # fmt: skip
    assert error_sums(trainer.parts.model, trainer.parts.feed, nothing).tolist() == [[0.0, 0.0]] * 3


def test_val_mae_is_what_numpy_says(trainer, columns):
    rows = columns.indices_of("val")
    predicted = one_by_one(trainer, rows)
    sums = error_sums(trainer.parts.model, trainer.parts.feed, rows).numpy()
    for row, name in enumerate(HEADS):
        errors = []
        start = 0
        for graph in rows:
            if name == "energy":
                own = slice(graph, graph + 1)
            else:
                own = slice(columns.node_offset[graph], columns.node_offset[graph + 1])
            size = own.stop - own.start
            wanted, mask = columns.targets[name][own], columns.masks[name][own]
            errors.extend(
                np.abs(predicted[name][start : start + size] - wanted)[mask].ravel().tolist()
            )
            start += size
        assert sums[row, 1] == len(errors) > 0
        assert sums[row, 0] == pytest.approx(sum(errors), rel=1e-12)


def test_shares_of_ranks_are_the_whole(trainer, columns):
    """Every rank's part once, whatever the world; sums over ranks are the sums alone."""
    indices = columns.indices_of("train")
    alone = error_sums(trainer.parts.model, trainer.parts.feed, indices)
    parts = torch.zeros_like(alone)
    seen = []
    for rank in range(3):
        feed = replace(
            trainer.parts.feed, ranks=replace(trainer.parts.feed.ranks, rank=rank, world=3)
        )
        seen.extend(feed.share(indices).tolist())
        parts += error_sums(trainer.parts.model, feed, indices)
    assert sorted(seen) == indices.tolist()
    torch.testing.assert_close(parts, alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [1, 7, 23])
def test_ranks_that_meet_take_equally_many_batches(trainer, columns, monkeypatch, count):
    """One graph at a time: as many batches as the largest share has graphs; the rest are empty."""
    monkeypatch.setattr(evaluate, "EDGES_PER_BATCH", 1)
    indices = np.flatnonzero(columns.num_edges() > 0)[:count]
    taken = []
    largest = 0
    for rank in range(3):
        ranks = replace(trainer.parts.feed.ranks, rank=rank, world=3)
        feed = replace(trainer.parts.feed, ranks=ranks, is_collective=True)
        pieces = [batch.graph_index.tolist() for batch in feed.share_in_batches(indices)]
        largest = max(largest, len(feed.share(indices)))
        taken.append(pieces)
        assert sum(pieces, []) == feed.share(indices).tolist()
        monkeypatch.setattr(feed.ranks.__class__, "sum", lambda self, values: values)
        predict_split(trainer.parts.model, feed, indices)  # an empty batch is predicted too
    assert {len(pieces) for pieces in taken} == {largest}


def test_objective_by_hand():
    heads = {"a": HeadConfig(weight=3.0), "b": HeadConfig(weight=1.0)}
    actual = compute_objective({"a": 0.4, "b": 6.0}, {"a": 2.0, "b": 3.0}, heads)
    assert actual == pytest.approx(0.75 * 0.2 + 0.25 * 2.0)


def test_what_does_not_fit_is_predicted_in_halves(trainer, monkeypatch):
    """Seven graphs at most three of which fit: as 7, 4 (as 2 and 2) and 3."""
    forward = trainer.parts.model.forward
    sizes = []

    def narrow(batch, only=None):
        sizes.append(batch.num_graphs)
        if batch.num_graphs > 3:
            raise torch.OutOfMemoryError("x")
        return forward(batch, only)

    monkeypatch.setattr(trainer.parts.model, "forward", narrow)
    indices = np.array([31, 4, 17, 5, 0, 38, 12])
    result = predict_split(trainer.parts.model, trainer.parts.feed, indices)
    assert sizes == [7, 4, 2, 2, 3]
    for name, values in one_by_one(trainer, indices).items():
        np.testing.assert_allclose(result[name], values, rtol=0, atol=1e-13)


def test_one_graph_that_does_not_fit_is_an_error(trainer, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(trainer.parts.model, "forward", full)
    with pytest.raises(MemoryError):
        error_sums(trainer.parts.model, trainer.parts.feed, np.array([31, 4]))
