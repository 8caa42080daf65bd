"""Timers of an epoch: seconds, joules and memory by region over all ranks, and stragglers.

A region is an activity of a rank, such as ``forward``; regions do not overlap.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.training.ddp import Ranks, make_rank_table
from hydragnn_hpo.training.energy import PARTS, REGIONS, Energy, find_counters
from hydragnn_hpo.training.memory import peak_bytes

logger = logging.getLogger(__name__)

TIMED = ("data", "forward", "backward", "update", "look", "checkpoint")
"""Regions whose seconds are in every epoch's record; ``look`` is the agreement at sync points."""

SENT = ("communication", "exposed")
"""Seconds in which gradients are sent, and the part of them in which the rank waits for these."""

SLOW, SLOW_EPOCHS, SLOW_SECONDS = 1.5, 3, 0.5
"""A straggler computes more than ``SLOW`` times as long as the mean rank, and more than
``SLOW_SECONDS`` longer (less may be chance), in ``SLOW_EPOCHS`` consecutive epochs."""


class EpochTimers:
    """Adds up seconds by region; on a GPU the seconds of its kernels, not of their launches."""

    def __init__(self, device: torch.device | None = None, energy: Energy | None = None) -> None:
        """Start with all timers at zero.

        Args:
            device: device that computes; None for a CPU.
            energy: counts joules; None for no counters.
        """
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.energy = energy
        self.phase, self.moves = "start", 0
        self._on_device = device is not None and device.type == "cuda"
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Add the seconds spent in this context to a region, one of ``watchdog.PHASES``."""
        self.phase = name
        self.moves += 1
        if self._on_device and name in ("forward", "backward", "update"):
            yield from self._timed_by_device(name)
            return
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def _timed_by_device(self, name: str) -> Iterator[None]:
        """Record events on the device around a region; they are read when the epoch ends."""
        event: Any = torch.cuda.Event
        first = event(enable_timing=True)
        last = event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._events.append((name, first, last))

    def mark_progress(self) -> None:
        """Record progress inside a long region, for the watchdog."""
        self.moves += 1

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere to a region."""
        self.seconds[name] += seconds

    @property
    def counters(self) -> list[str]:
        """Names of the energy counters that this rank reads."""
        return self.energy.counters if self.energy else []

    def count_energy(self, region: str) -> None:
        """Add the joules since the last call to ``train``, ``val`` or ``checkpoint``."""
        if self.energy:
            self.energy.count(region)

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds since the last call, and reset all timers.

        Returns:
            Seconds by region; regions that did not occur are left out.
        """
        if self._events:
            self._events[-1][2].synchronize()
            for name, first, last in self._events:
                self.seconds[name] += first.elapsed_time(last) / 1e3
            self._events.clear()
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def local_sums(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return this rank's terms of the epoch's sums over ranks, and reset all timers.

        Returns:
            ``regions``: seconds of ``TIMED`` and ``SENT``, [8]; ``ranks``: busy seconds and peak
            bytes, zero except in this rank's row, [world, 2]; ``joules``: [REGIONS, PARTS]. All
            fp64.
        """
        seconds = self.take_seconds()
        regions = [seconds.get(name, 0.0) for name in (*TIMED, *SENT)]
        mine = [busy_seconds(seconds), float(peak_bytes(ranks.device))]
        joules = self.energy.take_joules() if self.energy else torch.zeros(len(REGIONS), len(PARTS))
        return {
            "regions": torch.tensor(regions, dtype=torch.float64),
            "ranks": make_rank_table(ranks, torch.tensor(mine, dtype=torch.float64)),
            "joules": joules,
        }


def make_timers(device: torch.device) -> EpochTimers:
    """Build the timers of this rank; the first rank of a host reads the host's counters too."""
    whole_host = os.environ.get("LOCAL_RANK", "0") == "0"
    return EpochTimers(device, Energy(find_counters(device, whole_host=whole_host)))


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Return the seconds that a rank worked in an epoch's steps, without waiting for others.

    A rank waits for the slowest inside the backward pass, where gradients are averaged:
    ``exposed`` seconds.
    """
    working = ("data", "forward", "backward", "update")
    return sum(seconds.get(name, 0.0) for name in working) - seconds.get("exposed", 0.0)


class EpochSummary(TypedDict, total=False):
    """Measurements of an epoch in its record; seconds are means over ranks."""

    data_seconds: float
    """Waiting for batches."""
    forward_seconds: float
    """Forward passes."""
    backward_seconds: float
    """Backward passes, waiting for other ranks included."""
    update_seconds: float
    """Clipping, and updates of the weights."""
    look_seconds: float
    """Agreement of all ranks at sync points."""
    checkpoint_seconds: float
    """Pauses for checkpoints."""
    data_share: float
    """``data_seconds`` over the sum of all of the above."""
    imbalance: float
    """Largest busy time of a rank over the mean; absent with one rank."""
    slowest_rank: int
    """The rank with that time; absent with one rank."""
    communication_seconds: float
    """Sending gradients; this and the next two are present in DDP trials."""
    exposed_seconds: float
    """Seconds of ``communication_seconds`` in which the rank waited."""
    hidden_share: float
    """Share of ``communication_seconds`` in which the rank computed."""
    peak_bytes: int
    """Largest peak memory of a rank so far."""
    energy: dict[str, dict[str, float]]
    """Joules of all ranks by region and part; absent without counters."""


def summarize_epoch(sums: Mapping[str, np.ndarray], world: int) -> EpochSummary:
    """Compute the measurements in an epoch's record.

    Args:
        sums: results of ``EpochTimers.local_sums``, summed over all ranks.
        world: number of ranks.
    """
    seconds = dict(zip((*TIMED, *SENT), (sums["regions"] / world).tolist(), strict=True))
    steps = sum(seconds[name] for name in TIMED)
    record = cast("EpochSummary", {f"{name}_seconds": seconds[name] for name in TIMED})
    record["data_share"] = seconds["data"] / steps if steps else 0.0
    if world > 1:
        busy = sums["ranks"][:, 0]
        mean = float(busy.mean())
        record["imbalance"] = float(busy.max()) / mean if mean > 0 else 1.0
        record["slowest_rank"] = int(busy.argmax())
        if seconds["communication"]:  # what sharded ranks send is not measured
            record["communication_seconds"] = seconds["communication"]
            record["exposed_seconds"] = seconds["exposed"]
            record["hidden_share"] = 1.0 - seconds["exposed"] / seconds["communication"]
    record["peak_bytes"] = int(sums["ranks"][:, 1].max())
    counted = [j for j in range(len(PARTS)) if sums["joules"][:, j].any()]
    if counted:
        record["energy"] = {
            region: {PARTS[j]: float(sums["joules"][i, j]) for j in counted}
            for i, region in enumerate(REGIONS)
        }
    return record


class Stragglers:
    """Finds ranks that are slower than the others in several consecutive epochs."""

    def __init__(self) -> None:
        """Start with no slow ranks."""
        self._epochs: defaultdict[int, int] = defaultdict(int)
        self._named: set[int] = set()

    def slow(self, busy: np.ndarray) -> list[tuple[int, float]]:
        """Count slow epochs of every rank.

        Args:
            busy: seconds that each rank worked in an epoch, [world].

        Returns:
            Ranks that have now been slow in ``SLOW_EPOCHS`` consecutive epochs, each with its
            seconds divided by the mean; a rank is returned only once in a training.
        """
        mean = float(busy.mean())
        stragglers = []
        for rank, seconds in enumerate(busy.tolist()):
            slow = seconds > SLOW * mean and seconds - mean > SLOW_SECONDS
            self._epochs[rank] = self._epochs[rank] + 1 if slow else 0
            if self._epochs[rank] >= SLOW_EPOCHS and rank not in self._named:
                self._named.add(rank)
                stragglers.append((rank, seconds / mean))
        return stragglers

    def warn(self, busy: np.ndarray) -> None:
        """Log the result of ``slow``; only one rank calls this.

        Args:
            busy: seconds that each rank worked in an epoch, [world].
        """
        for rank, times in self.slow(busy):
            logger.warning(
                "rank %d has needed %.1f times as long as the mean of all ranks for %d epochs: "
                "look at its host, or at what shares it.",
                rank,
                times,
                SLOW_EPOCHS,
            )
