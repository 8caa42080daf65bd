"""Micro-batches: split a step into pieces that fit into memory.

The number of pieces is first estimated. If the estimate is near the limit, one backward pass
through the costliest piece is run and measured (a rehearsal). If memory runs out during the
training, steps are split further.

Shapes: G graphs of the data set, n graphs of a step or share.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn_hpo.config import (
    FULL,
    HEAP,
    TrialConfig,
    angle_cutoff,
    mean_degree,
    pass_bytes,
    weight_copies,
)
from hydragnn_hpo.data import Batch, GraphSet, balance_load
from hydragnn_hpo.data.batch_sampler import BatchSampler
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.evaluate import BatchFeed
from hydragnn_hpo.training.memory import (
    is_out_of_memory,
    limit_bytes,
    measure_peak_bytes,
    release_memory,
)
from hydragnn_hpo.training.parallel import local_part
from hydragnn_hpo.training.stepper import Stepper

logger = logging.getLogger(__name__)

KEPT = "micro.json"
"""File in a trial's folder ``checkpoints`` that stores the number of pieces its steps need."""


class TooManyGraphs(Exception):
    """A step ran out of memory and cannot be repeated; the trial has to resume in more pieces."""


class MicroBatches:
    """Splits this rank's share of each step into pieces, and further where memory runs out."""

    def __init__(self, feed: BatchFeed, pieces: int | None, record: Callable[..., None]) -> None:
        """Set the initial number of pieces.

        Args:
            feed: makes the batches.
            pieces: ``training.micro_batches``; None lets ``fit_to_memory`` choose.
            record: writes a record when the number of pieces changes.
        """
        self.feed, self.record = feed, record
        self.requested = pieces
        self.pieces = pieces or 1
        self.folder: Path | None = None

    def cut_share(self, indices: np.ndarray) -> list[np.ndarray]:
        """Return this rank's share of a step, [n], in pieces of similar cost, the cheapest last.

        Gradients are sent in the last piece, after which the step cannot be repeated, so that piece
        should be the least likely to run out of memory. With fewer graphs than pieces some are
        empty.
        """
        return self.split(self.feed.share(indices), self.pieces)

    def split(self, mine: np.ndarray, pieces: int) -> list[np.ndarray]:
        """Split graphs of this rank, [n], as ``cut_share`` does."""
        if pieces == 1:
            return [mine]
        costs = self.feed.costs[mine]
        parts = sorted(balance_load(costs, pieces), key=lambda piece: -costs[piece].sum())
        return [mine[piece] for piece in parts]

    def make_batches(self, indices: np.ndarray) -> list[Batch]:
        """Make the batches of this rank's pieces of a step, [n], in host memory."""
        return [self.feed.batch_on_host(piece) for piece in self.cut_share(indices)]

    def make_ahead(self, indices: np.ndarray) -> list[Batch]:
        """Make the batches of a later step; return [] if there is no memory for them yet."""
        try:
            return self.make_batches(indices)
        except MemoryError:
            return []

    def take_step(
        self,
        indices: np.ndarray,
        batches: list[Batch],
        stepper: Stepper,
        take: Callable[[Sequence[Batch]], Tensor],
    ) -> Tensor:
        """Take a step, and repeat it in more pieces while memory runs out.

        Args:
            indices: graphs of the step over all ranks, [n].
            batches: result of ``make_ahead``, possibly made when a step had fewer pieces.
            stepper: takes the step; its ``piece`` is the one that ran out of memory.
            take: calls ``stepper.take_step`` with the batches.

        Returns:
            The result of ``take``.

        Raises:
            TooManyGraphs: the step cannot be repeated; all ranks resume from the last checkpoint.
            MemoryError: a single graph does not fit.
        """
        while True:
            try:
                if len(batches) != self.pieces:
                    batches = self.make_batches(indices)
                return take(batches)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error) or "no memory left"
            # Outside the handler: the caught error keeps the tensors of the failed step alive.
            self._cut_further(batches, stepper, reason)
            batches = []
            release_memory(self.feed.ranks.device)

    def _cut_further(self, batches: list[Batch], stepper: Stepper, reason: str) -> None:
        """Double the pieces after a step ran out of memory, or raise if that does not help."""
        stepper.optimizer.zero_grad(set_to_none=True)
        if stepper.bound == "weights":
            raise MemoryError(
                "there is no memory for the update of the weights, which micro-batches cannot "
                f"help: take a smaller model, or shard it with parallel.shard ({reason})"
            )
        piece = batches[stepper.piece] if stepper.piece < len(batches) else None
        if piece is not None and piece.num_real_graphs <= 1:
            raise MemoryError(f"{too_large_graph_error(piece)} ({reason})")
        self.increase(2 * self.pieces)
        logger.warning("a step did not fit into the memory: now in %d pieces", self.pieces)
        if stepper.bound == "gradients":
            raise TooManyGraphs(
                f"a step did not fit into the memory while its gradients were sent; it goes on "
                f"from the last checkpoint, in {self.pieces} pieces"
            )

    def increase(self, pieces: int) -> None:
        """Split every following step into ``pieces``, also after a restart."""
        self.pieces = pieces
        self.save_pieces()
        self.record("memory", pieces=pieces)

    def save_pieces(self) -> None:
        """Write the number of pieces for later attempts.

        Later attempts use it even with more memory: sums in another order differ in the last digit,
        and a resumed trial must equal an uninterrupted one (Law 5).
        """
        if self.folder is None or self.pieces == 1:
            return
        world = self.feed.ranks.data_world
        pieces = max(self.pieces, read_known_pieces(self.folder, world))
        write_json(self.folder / KEPT, {"pieces": pieces, "shares": world}, private=True)


def read_known_pieces(folder: Path, world: int) -> int:
    """Return the number of pieces that earlier attempts needed, for ``world`` shares of a step.

    Args:
        folder: folder ``checkpoints`` of the trial.
        world: current number of shares, to which the stored number is scaled.
    """
    path = folder / KEPT
    if not path.exists():
        return 1
    kept = read_json(path)
    return max(-(-int(kept["pieces"]) * int(kept["shares"]) // world), 1)


def too_large_graph_error(piece: Batch) -> str:
    """Return the message for a piece of one graph, or of none, that does not fit into memory."""
    if not piece.num_real_graphs:
        return "there is no memory left for an empty piece of a step: take a smaller model"
    first = piece.graph_of_node == 0  # filler may follow
    atoms = int(first.sum())
    edges = int(first[piece.edge_index[1]].sum())
    return (
        f"structure {int(piece.graph_index[0])} of {atoms} atoms and {edges} edges does not fit "
        "into the memory alone: take a smaller model or cutoff, parallel.recompute, or ranks with "
        "more memory"
    )


Bytes = NDArray[np.float64]
"""Estimated bytes of graphs."""

LITTLE = 0.25
"""Share of the memory limit below which the estimate is trusted without a rehearsal."""

COSTLIEST = 4
"""Number of the costliest steps of the first epoch whose shares are compared."""


@dataclass(frozen=True)
class MemoryFit:
    """How the steps of a trial fit into the memory of one rank; a record ``memory``."""

    pieces: int
    """Micro-batches of every step, on all ranks."""
    estimated_bytes: int
    """Estimate for this rank: weights, optimizer, and the costliest piece."""
    probed_bytes: int | None
    """Measured in a rehearsal, with the number of pieces before it; None without a rehearsal."""
    limit_bytes: int
    """Maximum that this rank may use."""


def fit_to_memory(
    config: TrialConfig,
    order: BatchSampler,
    micro: MicroBatches,
    stepper: Stepper,
    folder: Path | None,
) -> MemoryFit:
    """Choose the number of pieces of a step, the same on all ranks; every rank calls this.

    Args:
        config: the trial.
        order: which graphs are in which step.
        micro: its ``pieces`` and ``folder`` are set.
        stepper: takes the steps; weights, optimizer and random numbers do not change.
        folder: folder of the checkpoints and of ``micro.json``; None if nothing is written.

    Raises:
        TooManyGraphs: a rehearsal in which all ranks take part ran out of memory.
        MemoryError: not even one graph fits.
    """
    ranks = micro.feed.ranks
    free = micro.requested is None
    micro.folder = folder
    known = max(read_known_pieces(folder, ranks.data_world) if folder else 1, micro.pieces)
    held = _local_bytes(stepper.net.model.parameters())
    fixed = held * weight_copies(config.training, cpu=ranks.device.type == "cpu")
    need = StepMemory(config, order, micro, fixed=fixed)
    limit = limit_bytes(ranks.device, held, os.environ)
    pieces = max(need.pieces(FULL * limit) if free else 1, known)
    crowded = free and need.bytes(pieces) > LITTLE * limit
    # Ranks rehearse individually; if forward passes are collectives, all do as soon as one has to.
    micro.pieces, rehearse = _largest(ranks, pieces, crowded)
    taken = None
    if crowded or (rehearse and stepper.net.is_collective):
        before = micro.pieces
        taken = rehearse_step(need, stepper)
        least = known if micro.pieces == before else micro.pieces
        pieces = max(need.pieces(FULL * limit) if free else 1, least)
    if rehearse:
        (micro.pieces,) = _largest(ranks, pieces)
    if ranks.first:
        micro.save_pieces()
    probed = None if taken is None else int(need.fixed) + taken
    return MemoryFit(micro.pieces, int(need.bytes(micro.pieces)), probed, limit)


def _largest(ranks: Ranks, *values: int) -> list[int]:
    """Return the largest of each value over all ranks."""
    return [int(value) for value in ranks.max(torch.tensor(values, device=ranks.device)).tolist()]


class StepMemory:
    """Estimated memory of the costliest step of the first epoch on this rank."""

    def __init__(
        self, config: TrialConfig, order: BatchSampler, micro: MicroBatches, *, fixed: float
    ) -> None:
        """Find the costliest step.

        Args:
            config: the trial.
            order: which graphs are in which step.
            micro: splits shares.
            fixed: bytes that every step uses: weights, gradients, optimizer.
        """
        feed = micro.feed
        self.micro = micro
        self.fixed = fixed
        self.factor = 1.0
        heap = HEAP if feed.ranks.device.type == "cpu" else 1.0
        self.of_graphs = heap * graph_bytes(config, feed.graphs)
        steps = order.steps(0)
        sums = np.array([self.of_graphs[step].sum() for step in steps])
        shares = [feed.share(steps[at]) for at in np.argsort(-sums)[:COSTLIEST]]
        self.share = max(shares, key=lambda rows: float(self.of_graphs[rows].sum()))
        """Graphs of this rank in that step, [n]."""

    def costliest(self, pieces: int) -> NDArray[np.int64]:
        """Return the graphs of the costliest piece when the share is split into ``pieces``, [n]."""
        cut = self.micro.split(self.share, pieces)
        return max(cut, key=lambda rows: float(self.of_graphs[rows].sum()))

    def bytes(self, pieces: int) -> float:
        """Estimate the bytes of a step that is split into ``pieces``."""
        piece = float(self.of_graphs[self.costliest(pieces)].sum())
        return self.fixed + self.factor * piece

    def pieces(self, room: float) -> int:
        """Return the smallest number of pieces that fits into ``room`` bytes, at most n."""
        whole = self.factor * float(self.of_graphs[self.share].sum())
        pieces = max(int(whole / max(room - self.fixed, 1.0)), 1)
        while pieces < len(self.share) and self.bytes(pieces) > room:
            pieces = max(pieces + 1, int(1.1 * pieces))
        return max(min(pieces, len(self.share)), 1)


def rehearse_step(need: StepMemory, stepper: Stepper) -> int | None:
    """Run one backward pass through the costliest piece, and correct the estimate by its memory.

    While it does not fit, steps are split into twice as many pieces.

    Args:
        need: estimate, whose ``factor`` is corrected.
        stepper: provides the model.

    Returns:
        Bytes that the pass used; None if this system does not report them.

    Raises:
        TooManyGraphs: the piece did not fit, and a forward pass is a collective of all ranks.
        MemoryError: not even one graph fits.
    """
    micro, net = need.micro, stepper.net
    while True:
        rows = need.costliest(micro.pieces)
        reason = ""
        try:
            taken = measure_peak_bytes(
                partial(_run_backward_pass, stepper, micro, rows), net.ranks.device
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error) or "no memory left"
        if not reason:
            break
        if len(rows) <= 1:
            raise MemoryError(f"{too_large_graph_error(micro.feed.batch_on_host(rows))} ({reason})")
        micro.increase(2 * micro.pieces)
        if net.is_collective:
            raise TooManyGraphs(f"a rehearsed step did not fit: next time in {micro.pieces} pieces")
    expected = float(need.of_graphs[rows].sum())
    if taken and expected:
        need.factor = taken / expected
    return taken


def _run_backward_pass(stepper: Stepper, micro: MicroBatches, rows: NDArray[np.int64]) -> None:
    """Make a batch, and compute gradients that are discarded."""
    net, device = stepper.net, stepper.net.ranks.device
    counts = dict.fromkeys(stepper.heads, 1.0)
    net.model.train()
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards), net.gradient_sync(net.is_collective):
        _, loss = stepper.losses(micro.feed.batch_on_host(rows), counts, last=net.is_collective)
        if net.is_collective:  # hooks of the parameters gather shards and scatter gradients
            torch.autograd.backward(loss)
            stepper.optimizer.zero_grad(set_to_none=True)
        else:
            learned = [p for p in net.model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, learned, allow_unused=True)


def _local_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of this rank's part of some parameters."""
    own = [local_part(parameter) for parameter in parameters]
    return sum(each.numel() * each.element_size() for each in own)


def graph_bytes(config: TrialConfig, graphs: GraphSet) -> Bytes:
    """Estimate the bytes of each graph at the peak of a backward pass, fp64, [G]."""
    model, stats = config.model, graphs.stats
    nodes = graphs.num_nodes().astype(np.float64)
    stored = graphs.num_edges()
    most = nodes * (model.max_neighbors or np.inf)
    edges = np.minimum(stored * _share_of_edges_within(stats, model.cutoff), most)
    part = pass_bytes(config, stats.get("targets", {}))
    total = part.node * nodes + part.edge * edges + part.square * nodes**2
    angle = angle_cutoff(model)
    if angle is not None:
        degree = np.minimum(stored * _share_of_edges_within(stats, angle), most) / np.maximum(
            nodes, 1
        )
        total += part.triplet * nodes * degree * np.maximum(degree - 1.0, 0.0)
    return np.asarray(total, dtype=np.float64)


def _share_of_edges_within(stats: Mapping[str, Any], radius: float) -> float:
    """Estimate the share of the stored edges that are at most ``radius`` angstrom long."""
    whole = float(stats.get("cutoff", radius))
    if "degree" not in stats:
        return min(radius / whole, 1.0) ** 3
    return min(mean_degree(stats, radius) / max(mean_degree(stats, whole), 1e-9), 1.0)
