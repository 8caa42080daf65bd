"""Timers of an epoch: seconds, energy and memory by region over all ranks, and stragglers."""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.training.ddp import Ranks, rank_row
from hydragnn_hpo.training.energy import PARTS, REGIONS, Energy, find_counters
from hydragnn_hpo.training.memory import peak_bytes

logger = logging.getLogger(__name__)

TIMED = ("data", "forward", "backward", "update", "look", "checkpoint")
"""Regions whose seconds stand in every epoch's record."""

SENT = ("communication", "exposed")
"""Seconds of sending gradients, and of these the ones in which a rank waited for it."""

SLOW, SLOW_EPOCHS, SLOW_SECONDS = 1.5, 3, 0.5
"""A rank is a straggler if it computes so many times as long as the mean, so many epochs running,
and by so many seconds at least: in shorter epochs it is chance."""


class EpochTimers:
    """Adds up seconds by region; on a GPU those in which it computes, not those of asking it to."""

    def __init__(self, device: torch.device | None = None, energy: Energy | None = None) -> None:
        """Start at nothing."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.energy = energy
        self.phase, self.moves = "start", 0
        self._on_device = device is not None and device.type == "cuda"
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Count the time inside for a region: ``data forward backward update look checkpoint``."""
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
        first, last = event(enable_timing=True), event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._events.append((name, first, last))

    def mark_progress(self) -> None:
        """Note that work goes on, where there are no regions."""
        self.moves += 1

    def add(self, name: str, seconds: float) -> None:
        """Count seconds for a region that were measured elsewhere."""
        self.seconds[name] += seconds

    @property
    def counters(self) -> list[str]:
        """Name the counters of joules that this rank reads."""
        return [counter.name for counter in self.energy.counters] if self.energy else []

    def count_energy(self, region: str) -> None:
        """Count the joules since the last call for ``train``, ``val`` or ``checkpoint``."""
        if self.energy:
            self.energy.count(region)

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds by region since the last call, and begin again at zero."""
        if self._events:
            self._events[-1][2].synchronize()
            for name, first, last in self._events:
                self.seconds[name] += first.elapsed_time(last) / 1e3
            self._events.clear()
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def local_sums(self, ranks: Ranks) -> dict[str, Tensor]:
        """Return what this rank adds to the epoch's sums, and begin again at zero."""
        seconds = self.take_seconds()
        regions = [seconds.get(name, 0.0) for name in (*TIMED, *SENT)]
        mine = [busy_seconds(seconds), float(peak_bytes(ranks.device))]
        joules = self.energy.take_joules() if self.energy else torch.zeros(len(REGIONS), len(PARTS))
        return {
            "regions": torch.tensor(regions, dtype=torch.float64),
            "ranks": rank_row(ranks, torch.tensor(mine, dtype=torch.float64)),
            "joules": joules,
        }


def make_timers(device: torch.device) -> EpochTimers:
    """Make the timers of this rank; the first rank of a host reads the host's counters too."""
    whole_host = os.environ.get("LOCAL_RANK", "0") == "0"
    return EpochTimers(device, Energy(find_counters(device, whole_host=whole_host)))


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Return the seconds a rank worked in an epoch's steps, without those it waited for others.

    The waiting for the slowest is inside the backward pass, where the gradients meet; whoever
    measures it calls it ``exposed``.
    """
    working = ("data", "forward", "backward", "update")
    return sum(seconds.get(name, 0.0) for name in working) - seconds.get("exposed", 0.0)


def summarize_epoch(sums: Mapping[str, np.ndarray], world: int) -> dict[str, Any]:
    """Turn an epoch's sums over ``world`` ranks into what its record says.

    Returns:
        Mean seconds of a rank by region, ``data_share`` of all of them, how evenly the ranks
        worked, the largest memory of a rank in bytes, and joules of all ranks by region.
    """
    seconds = dict(zip((*TIMED, *SENT), (sums["regions"] / world).tolist(), strict=True))
    steps = sum(seconds[name] for name in TIMED)
    record: dict[str, Any] = {f"{name}_seconds": seconds[name] for name in TIMED}
    record["data_share"] = seconds["data"] / steps if steps else 0.0
    if world > 1:
        record |= _balance(sums["ranks"][:, 0])
        if seconds["communication"]:  # what sharded ranks send is not measured
            record |= {f"{name}_seconds": seconds[name] for name in SENT}
            record["hidden_share"] = 1.0 - seconds["exposed"] / seconds["communication"]
    record["peak_bytes"] = int(sums["ranks"][:, 1].max())
    energy = {
        region: {part: float(sums["joules"][i, j]) for j, part in enumerate(PARTS)}
        for i, region in enumerate(REGIONS)
    }
    counted = [part for part in PARTS if any(energy[region][part] for region in REGIONS)]
    if counted:
        record["energy"] = {r: {part: energy[r][part] for part in counted} for r in REGIONS}
    return record


def _balance(busy: np.ndarray) -> dict[str, Any]:
    mean = float(busy.mean())
    return {
        "imbalance": float(busy.max()) / mean if mean > 0 else 1.0,
        "slowest_rank": int(busy.argmax()),
    }


class Stragglers:
    """Notices a rank that is slower than the others, epoch after epoch."""

    def __init__(self) -> None:
        """Begin with no rank that has been slow."""
        self._epochs: defaultdict[int, int] = defaultdict(int)
        self._named: set[int] = set()

    def slow(self, busy: np.ndarray) -> list[tuple[int, float]]:
        """Look at the ranks' own seconds of an epoch.

        Returns:
            Ranks that have now been slow for some epochs running, and how many times the mean they
            need; each is named once.
        """
        mean, stragglers = float(busy.mean()), []
        for rank, seconds in enumerate(busy.tolist()):
            slow = seconds > SLOW * mean and seconds - mean > SLOW_SECONDS
            self._epochs[rank] = self._epochs[rank] + 1 if slow else 0
            if self._epochs[rank] >= SLOW_EPOCHS and rank not in self._named:
                self._named.add(rank)
                stragglers.append((rank, seconds / mean))
        return stragglers

    def warn(self, busy: np.ndarray) -> None:
        """Log the ranks that have now been slow for some epochs; called by one rank for all.

        Args:
            busy: the ranks' own seconds of an epoch, [world].
        """
        for rank, times in self.slow(busy):
            logger.warning(
                "rank %d has needed %.1f times as long as the mean of all ranks for %d epochs: "
                "look at its host, or at what shares it.",
                rank,
                times,
                SLOW_EPOCHS,
            )
