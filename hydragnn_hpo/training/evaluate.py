"""Errors and predictions over a whole split: sums over ranks, no padding, no double counts.

Shapes: G graphs, N nodes, T targets, w components of a target (1, 3 for vectors, 9 for stress,
the values of a spectrum).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import TrialConfig, count_components
from hydragnn_hpo.data import Batch, GraphSet, balance_load, make_batch, pad_batch
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

    config: TrialConfig
    """The trial."""
    graphs: GraphSet
    """All graphs of the trial, to which indices refer."""
    ranks: Ranks
    """This rank among the others."""
    costs: np.ndarray
    """Predicted cost of each graph, in any unit, [G]."""
    is_collective: bool = False
    """Whether a forward pass is a collective, as with sharded weights; all ranks must then have the
    same number of batches."""
    pads: bool = False
    """Whether batches are padded, so that their passes can be replayed as CUDA graphs."""

    @property
    def targets(self) -> Sequence[str]:
        """Names of the targets in a batch, T."""
        return tuple(self.config.heads)

    def batch_on_device(self, indices: np.ndarray) -> Batch:
        """Make the batch of some graphs, int64 [n], on this rank's device."""
        return self.batch_on_host(indices).to(self.ranks.device)

    def batch_on_host(self, indices: np.ndarray) -> Batch:
        """Make the batch of some graphs, int64 [n], in host memory; pinned where there is a GPU."""
        made = make_batch(
            self.graphs,
            indices,
            cutoff=self.config.model.cutoff,
            dtype=DTYPES[self.config.training.precision],
            targets=self.targets,
            max_neighbors=self.config.model.max_neighbors,
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


def _predict_in_halves(
    model: MultiHeadGNN, feed: BatchFeed, batch: Batch
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Predict a batch, or its halves if memory runs out and a forward pass is not a collective.

    Yields:
        A batch, and its predictions and variances by name, [graphs or nodes of the batch, w].
    """
    try:
        with compute_dtype(feed.config.training.precision, feed.ranks.device):
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
    with compute_dtype(feed.config.training.precision, feed.ranks.device):
        predictions = model(batch, feed.targets)
    return {"sums": _error_sums(model, batch, predictions, feed.targets)}


def _error_sums(
    model: MultiHeadGNN, batch: Batch, predictions: dict[str, Tensor], targets: Sequence[str]
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
    stats = {name: feed.graphs.stats["targets"][name] for name in feed.targets}
    per_node = {name for name, target in stats.items() if target["level"] == "node"}
    out = {}
    for name, target in stats.items():
        shape = int(starts[-1]) if name in per_node else len(indices), count_components(target)
        out[name] = torch.zeros(shape, dtype=torch.float64)
    unpadded = replace(feed, pads=False)
    for batch in unpadded.share_in_batches(indices):
        for part, predictions in _predict_in_halves(model, unpadded, batch):
            rows = np.array([position[int(graph)] for graph in part.graph_index], dtype=np.int64)
            each = [np.arange(starts[row], starts[row + 1]) for row in rows]
            of_nodes = np.concatenate([rows[:0], *each])
            for name, whole in out.items():  # not its variance: ensembles compute their own
                chosen = of_nodes if name in per_node else rows
                whole[torch.from_numpy(chosen)] = predictions[name].double().cpu()
    for name, whole in out.items():
        mine = whole if feed.ranks.represents_share else torch.zeros_like(whole)
        out[name] = feed.ranks.sum(mine.to(feed.ranks.device)).cpu()
    return {name: whole.numpy() for name, whole in out.items()}
