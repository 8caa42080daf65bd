"""Errors and predictions over a whole split: sums over ranks, no padding, no double counts.

Shapes: G graphs, N nodes, T targets, w components of a target (1, 3 for vectors, 9 for stress,
the values of a spectrum).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import TrialConfig, count_components
from hydragnn_hpo.data import (
    Batch,
    GraphSet,
    balance_load,
    make_batch,
    pad_batch,
    predict_graph_costs,
)
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.training.cuda_graphs import Replays
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.memory import is_out_of_memory, release_memory
from hydragnn_hpo.training.precision import DTYPES, compute_dtype
from hydragnn_hpo.training.stepper import cross_entropy

EDGES_PER_BATCH = 40_000
"""Approximate number of edges in a batch for evaluation."""


@dataclass(frozen=True)
class BatchFeed:
    """Makes the batches of a trial on this rank."""

    graphs: GraphSet
    """All graphs of the trial, to which indices refer."""
    cutoff: float
    """Longest edge in angstrom."""
    dtype: torch.dtype
    """Dtype of positions and targets."""
    targets: tuple[str, ...]
    """Names of the targets in a batch, T."""
    ranks: Ranks
    """This rank among the others."""
    costs: np.ndarray
    """Predicted cost of each graph, in any unit, [G]."""
    max_neighbors: int | None = None
    """Maximum number of neighbours of a node; None for all within the cutoff."""
    precision: str = "fp32"
    """``training.precision``."""
    is_collective: bool = False
    """Whether a forward pass is a collective, as with sharded weights; all ranks must then have the
    same number of batches."""
    pads: bool = False
    """Whether batches are padded, so that their passes can be replayed as CUDA graphs."""

    def batch_on_device(self, indices: np.ndarray) -> Batch:
        """Make the batch of some graphs, int64 [n], on this rank's device."""
        return self.batch_on_host(indices).to(self.ranks.device)

    def batch_on_host(self, indices: np.ndarray) -> Batch:
        """Make the batch of some graphs, int64 [n], in host memory; pinned where there is a GPU."""
        made = make_batch(
            self.graphs,
            indices,
            cutoff=self.cutoff,
            dtype=self.dtype,
            targets=self.targets,
            max_neighbors=self.max_neighbors,
            pairs=True,
        )
        if self.pads:
            made = pad_batch(made)
        return made.pin() if self.ranks.device.type == "cuda" else made

    def share(self, indices: np.ndarray) -> np.ndarray:
        """Return this rank's share of some graphs, balanced by cost: int64, [n] to [share]."""
        if self.ranks.data_world == 1:
            return indices
        return self._shares(indices)[self.ranks.data_rank]

    def share_in_batches(self, indices: np.ndarray) -> Iterator[Batch]:
        """Yield this rank's share of some graphs, [n], in batches of about ``EDGES_PER_BATCH``.

        If forward passes are collectives, empty batches make the number equal on all ranks.
        """
        mine = self._cut(self.share(indices))
        count = len(mine)
        if self.is_collective:
            count = max(len(self._cut(share)) for share in self._shares(indices))
        for piece in [*mine, *[indices[:0]] * (count - len(mine))]:
            yield self.batch_on_device(piece)

    def _shares(self, indices: np.ndarray) -> list[np.ndarray]:
        return [indices[rows] for rows in balance_load(self.costs[indices], self.ranks.data_world)]

    def _cut(self, indices: np.ndarray) -> list[np.ndarray]:
        groups = np.cumsum(self.graphs.num_edges()[indices]) // EDGES_PER_BATCH
        return [indices[groups == group] for group in np.unique(groups)]


def make_feed(
    config: TrialConfig, graphs: GraphSet, ranks: Ranks, *, is_collective: bool, pads: bool
) -> BatchFeed:
    """Build the feed of a trial.

    Args:
        config: the trial.
        graphs: data of the trial.
        ranks: this rank among the others.
        is_collective: whether a forward pass is a collective of all ranks.
        pads: whether batches are padded.
    """
    return BatchFeed(
        graphs=graphs,
        cutoff=config.model.cutoff,
        dtype=DTYPES[config.training.precision],
        targets=tuple(config.heads),
        ranks=ranks,
        costs=predict_graph_costs(graphs, config.model),
        max_neighbors=config.model.max_neighbors,
        precision=config.training.precision,
        is_collective=is_collective,
        pads=pads,
    )


def predict_share(
    model: MultiHeadGNN, feed: BatchFeed, indices: np.ndarray
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Predict this rank's share of some graphs, batch by batch.

    Args:
        model: in evaluation mode.
        feed: makes the batches.
        indices: graphs of all ranks together, int64, [n].

    Yields:
        A batch, and its predictions and variances by name, [graphs or nodes of the batch, w].
    """
    for batch in feed.share_in_batches(indices):
        yield from _predict_in_halves(model, feed, batch)


def _predict_in_halves(
    model: MultiHeadGNN, feed: BatchFeed, batch: Batch
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Predict a batch, or its halves if memory runs out and a forward pass is not a collective."""
    try:
        with compute_dtype(feed.precision, feed.ranks.device):
            predictions = model(batch, feed.targets)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or feed.is_collective or batch.num_real_graphs < 2:
            raise
        predictions = {}
    if predictions:
        yield batch, predictions
        return
    # Outside the handler: the caught error keeps the tensors of the failed pass alive.
    release_memory(feed.ranks.device)
    for half in np.array_split(batch.graph_index[: batch.num_real_graphs].cpu().numpy(), 2):
        yield from _predict_in_halves(model, feed, feed.batch_on_device(half))


@torch.no_grad()
def error_sums(
    model: MultiHeadGNN, feed: BatchFeed, indices: np.ndarray, replays: Replays | None = None
) -> Tensor:
    """Sum absolute errors and count components of each target over this rank's share.

    A class counts as one component, with its log-loss in nats as the error.

    Args:
        model: in evaluation mode.
        feed: makes the batches.
        indices: graphs of all ranks together, int64, [n].
        replays: of ``batch_error_sums``; None runs every batch kernel by kernel.

    Returns:
        Sum of errors in the target's unit, and number of components, fp64, [T, 2]. Of the ranks
        with the same graphs all but one return zeros, so a sum over ranks counts each graph once.
    """
    sums = torch.zeros(len(feed.targets), 2, dtype=torch.float64, device=feed.ranks.device)
    for batch in feed.share_in_batches(indices):
        replayed = None if replays is None else _replay_if_it_fits(replays, batch)
        if replayed is not None:
            sums += replayed["sums"]
            continue
        for part, predictions in _predict_in_halves(model, feed, batch):
            sums += _error_sums(model, part, predictions, feed.targets)
    return sums if feed.ranks.represents_share else torch.zeros_like(sums)


def _replay_if_it_fits(replays: Replays, batch: Batch) -> dict[str, Tensor] | None:
    """Replay a pass; return None if memory runs out."""
    try:
        return replays.run(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: the caught error keeps the tensors of the failed pass alive.
    release_memory(replays.device)
    return None


@torch.no_grad()
def batch_error_sums(
    model: MultiHeadGNN, feed: BatchFeed, batch: Batch, _: Tensor
) -> dict[str, Tensor]:
    """Predict a batch; a pass to replay.

    Args:
        model: in evaluation mode.
        feed: names the targets.
        batch: on the device.

    Returns:
        ``sums``, see ``error_sums``.
    """
    with compute_dtype(feed.precision, feed.ranks.device):
        predictions = model(batch, feed.targets)
    return {"sums": _error_sums(model, batch, predictions, feed.targets)}


def _error_sums(
    model: MultiHeadGNN, batch: Batch, predictions: dict[str, Tensor], targets: tuple[str, ...]
) -> Tensor:
    """Sum the errors of a batch, see ``error_sums``, [T, 2]."""
    rows = []
    for name in targets:
        mask = batch.masks[name].unsqueeze(-1)
        given = predictions[name].double()
        truth = batch.targets[name].double()
        if name in model.classes:
            error = cross_entropy(given, truth) * mask
        else:
            error = (given - truth).abs() * mask
        rows.append(torch.stack((error.sum(), (mask.sum() * error.shape[1]).double())))
    return torch.stack(rows)


@torch.no_grad()
def predict_split(
    model: MultiHeadGNN, feed: BatchFeed, indices: np.ndarray
) -> dict[str, np.ndarray]:
    """Predict every target for some graphs, gathered over ranks; every rank calls this.

    Args:
        model: in evaluation mode.
        feed: makes the batches.
        indices: graphs of all ranks together, int64, [n].

    Returns:
        By target, in its unit, fp64, in the order of ``indices``: [n, w] for targets of graphs,
        [sum of their nodes, w] for targets of nodes.
    """
    nodes = feed.graphs.num_nodes()[indices]
    starts = np.concatenate(([0], np.cumsum(nodes)))
    position = {int(graph): row for row, graph in enumerate(indices)}
    out: dict[str, Tensor] = {}
    for batch, predictions in predict_share(model, replace(feed, pads=False), indices):
        rows = np.array([position[int(graph)] for graph in batch.graph_index], dtype=np.int64)
        each = [np.arange(starts[row], starts[row + 1]) for row in rows]
        of_nodes = np.concatenate([rows[:0], *each])
        for name, values in predictions.items():
            if name not in feed.targets:  # a variance: ensembles compute their own
                continue
            whole = _rows_of_target(out, name, feed, len(indices), int(starts[-1]))
            chosen = of_nodes if _per_node(feed, name) else rows
            whole[torch.from_numpy(chosen)] = values.double().cpu()
    for name in feed.targets:
        whole = _rows_of_target(out, name, feed, len(indices), int(starts[-1]))
        mine = whole if feed.ranks.represents_share else torch.zeros_like(whole)
        out[name] = feed.ranks.sum(mine.to(feed.ranks.device)).cpu()
    return {name: out[name].numpy() for name in feed.targets}


def _per_node(feed: BatchFeed, name: str) -> bool:
    return bool(feed.graphs.stats["targets"][name]["level"] == "node")


def _rows_of_target(
    out: dict[str, Tensor], name: str, feed: BatchFeed, graphs: int, nodes: int
) -> Tensor:
    """Return the array of a target in ``out``, created as zeros, fp64, [graphs or nodes, w]."""
    if name not in out:
        width = count_components(feed.graphs.stats["targets"][name])
        rows = nodes if _per_node(feed, name) else graphs
        out[name] = torch.zeros(rows, width, dtype=torch.float64)
    return out[name]
