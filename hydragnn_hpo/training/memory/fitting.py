"""Fit a step to the memory: estimate what it takes, rehearse it where that is much, cut it up.

Shapes: G graphs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn_hpo.config.counting import angle_cutoff
from hydragnn_hpo.config.footprint import FULL, HEAP, copies, pass_bytes
from hydragnn_hpo.config.sizes import mean_degree
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.data.batch_sampler import BatchSampler
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.training.memory.limits import is_full, limit_bytes, taken_by
from hydragnn_hpo.training.memory.micro import Halved, MicroBatches, alone, recalled
from hydragnn_hpo.training.ranks.ddp import Ranks
from hydragnn_hpo.training.stepper import Stepper

Bytes = NDArray[np.float64]

LITTLE = 0.25
"""Below this share of the memory nothing is rehearsed."""

COSTLIEST = 4
"""Steps of an epoch whose shares are looked at."""


@dataclass(frozen=True)
class Fit:
    """What was found about a trial's steps, on one rank."""

    pieces: int
    """Micro-batches of every step, on all ranks."""
    estimated_bytes: int
    """What this rank is expected to take: weights, optimizer, and the costliest piece."""
    probed_bytes: int | None
    """What a rehearsal took, if there was one, in as many pieces as were expected before it."""
    limit_bytes: int
    """What it may take."""


def fit(
    config: TrialConfig,
    order: BatchSampler,
    micro: MicroBatches,
    stepper: Stepper,
    folder: Path | None,
) -> Fit:
    """Choose in how many pieces every rank takes its share of a step; every rank calls this.

    Weights, optimizer and random numbers stay as they are.

    Args:
        config: the trial.
        order: which graphs are in which step.
        micro: is told the number of pieces.
        stepper: takes the steps.
        folder: of checkpoints, and of what earlier attempts found.

    Raises:
        Halved: a rehearsal that all ranks held together ran out of memory.
        MemoryError: not even one graph fits.
    """
    ranks, free, micro.folder = micro.feed.ranks, micro.asked is None, folder
    known = max(recalled(folder, ranks.data_world) if folder else 1, micro.pieces)
    need, limit = _measure_need(config, order, micro, stepper)
    pieces = max(need.pieces(FULL * limit) if free else 1, known)
    crowded = free and need.bytes(pieces) > LITTLE * limit
    micro.pieces, rehearse = _largest(ranks, pieces, crowded)
    taken = None
    if crowded or (rehearse and stepper.net.together):
        before = micro.pieces
        taken = rehearsed(need, stepper)
        least = known if micro.pieces == before else micro.pieces
        pieces = max(need.pieces(FULL * limit) if free else 1, least)
    if rehearse:
        (micro.pieces,) = _largest(ranks, pieces)
    if ranks.first:
        micro.keep()
    probed = None if taken is None else int(need.fixed) + taken
    return Fit(micro.pieces, int(need.bytes(micro.pieces)), probed, limit)


def _largest(ranks: Ranks, *values: int) -> list[int]:
    """Return the largest of each value over all ranks."""
    return [int(value) for value in ranks.most(torch.tensor(values, device=ranks.device)).tolist()]


def _measure_need(
    config: TrialConfig, order: BatchSampler, micro: MicroBatches, stepper: Stepper
) -> tuple["Need", int]:
    """Return what the costliest step needs, and the limit in bytes."""
    device = micro.feed.ranks.device
    held = _held(stepper.net.model.parameters())
    fixed = held * copies(config.training, cpu=device.type == "cpu")
    return Need(config, order, micro, fixed=fixed), limit_bytes(device, held, os.environ)


class Need:
    """What the costliest step of the first epoch takes on this rank."""

    def __init__(
        self, config: TrialConfig, order: BatchSampler, micro: MicroBatches, *, fixed: float
    ) -> None:
        """Look for that step; ``fixed`` bytes are taken whatever the step."""
        feed, self.micro, self.fixed, self.factor = micro.feed, micro, fixed, 1.0
        heap = HEAP if feed.ranks.device.type == "cpu" else 1.0
        self.of_graphs = heap * graph_bytes(config, feed.graphs)
        steps = order.steps(0)
        sums = np.array([self.of_graphs[step].sum() for step in steps])
        found = [feed.share(steps[at]) for at in np.argsort(-sums)[:COSTLIEST]]
        self.share = max(found, key=lambda rows: float(self.of_graphs[rows].sum()))
        """The graphs of this rank."""

    def costliest(self, pieces: int) -> NDArray[np.int64]:
        """Give the graphs of the piece that takes the most, of so many."""
        cut = self.micro.split(self.share, pieces)
        return max(cut, key=lambda rows: float(self.of_graphs[rows].sum()))

    def bytes(self, pieces: int) -> float:
        """Estimate what a step takes in so many pieces."""
        piece = float(self.of_graphs[self.costliest(pieces)].sum())
        return self.fixed + self.factor * piece

    def pieces(self, room: float) -> int:
        """Give the smallest number of pieces that fits, or as many as there are graphs."""
        whole = self.factor * float(self.of_graphs[self.share].sum())
        pieces = max(int(whole / max(room - self.fixed, 1.0)), 1)
        while pieces < len(self.share) and self.bytes(pieces) > room:
            pieces = max(pieces + 1, int(1.1 * pieces))
        return max(min(pieces, len(self.share)), 1)


def rehearsed(need: Need, stepper: Stepper) -> int | None:
    """Go forth and back through the costliest piece, and correct the estimate by what it took.

    Where it does not fit it is cut, once more and again.

    Returns:
        Bytes that the pass took; None where this system does not tell.

    Raises:
        Halved: it did not fit on a net that all ranks must go through together.
        MemoryError: not even one graph fits.
    """
    micro, net = need.micro, stepper.net
    while True:
        rows, said = need.costliest(micro.pieces), ""
        try:
            taken = taken_by(partial(_pass, stepper, micro, rows), net.ranks.device)
        except (RuntimeError, MemoryError) as error:
            if not is_full(error):
                raise
            said = str(error) or "no memory left"
        if not said:
            break
        if len(rows) <= 1:
            raise MemoryError(f"{alone(micro.feed.made(rows))} ({said})")
        micro.more(2 * micro.pieces)
        if net.together:
            raise Halved(f"a rehearsed step did not fit: next time in {micro.pieces} pieces")
    expected = float(need.of_graphs[rows].sum())
    if taken and expected:
        need.factor = taken / expected
    return taken


def _pass(stepper: Stepper, micro: MicroBatches, rows: NDArray[np.int64]) -> None:
    """Make a batch, and compute gradients that nobody uses or sends."""
    net, device = stepper.net, stepper.net.ranks.device
    counts = dict.fromkeys(stepper.heads, 1.0)
    net.model.train()
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards), net.sending(net.together):
        _, loss = stepper.losses(micro.feed.made(rows), counts, last=net.together)
        if net.together:  # shards are gathered and gradients scattered in hooks of this
            torch.autograd.backward(loss)
            stepper.optimizer.zero_grad(set_to_none=True)
        else:
            learned = [p for p in net.model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, learned, allow_unused=True)


def _held(parameters: Any) -> int:
    """Give the bytes of this rank's part of some parameters."""
    own: list[Tensor] = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
    return sum(each.numel() * each.element_size() for each in own)


def graph_bytes(config: TrialConfig, graphs: GraphSet) -> Bytes:
    """Estimate what each graph takes at the peak of a forward and backward pass, in bytes, [G]."""
    model, stats = config.model, graphs.stats
    nodes, stored = graphs.num_nodes().astype(np.float64), graphs.num_edges()
    most = nodes * (model.max_neighbors or np.inf)
    edges = np.minimum(stored * _within(stats, model.cutoff), most)
    part = pass_bytes(config, stats.get("targets", {}))
    total = part.node * nodes + part.edge * edges + part.square * nodes**2
    angle = angle_cutoff(model)
    if angle is not None:
        degree = np.minimum(stored * _within(stats, angle), most) / np.maximum(nodes, 1)
        total += part.triplet * nodes * degree * np.maximum(degree - 1.0, 0.0)
    return np.asarray(total, dtype=np.float64)


def _within(stats: Mapping[str, Any], radius: float) -> float:
    """Estimate which share of the stored edges is no longer than some angstrom."""
    whole = float(stats.get("cutoff", radius))
    if "degree" not in stats:
        return min(radius / whole, 1.0) ** 3
    return min(mean_degree(stats, radius) / max(mean_degree(stats, whole), 1e-9), 1.0)
