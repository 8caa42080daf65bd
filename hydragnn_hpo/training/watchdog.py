"""Name the rank that the others wait for; torch alone would only report a timeout.

Every rank writes a mark of its progress into the rendezvous store. A rank that has made no progress
for too long reads all marks, logs which rank is behind, and ends its process.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from hydragnn_hpo.config import STALE
from hydragnn_hpo.training.ddp import Ranks, collective_seconds
from hydragnn_hpo.training.timers import EpochTimers

logger = logging.getLogger(__name__)

MARK_SECONDS = 5.0
"""Longest time between two marks of a rank."""

READERS = 4
"""Number of ranks that read all marks: for thousands of ranks this would take minutes."""

ANSWER_SECONDS = 5.0
"""Seconds to wait for the store, which is in the process of rank 0 unless it is a file."""

_NO_ANSWER = "and rank 0, which keeps the marks of all, does not answer"

PHASES = (
    "start", "look", "val", "checkpoint", "data", "forward", "backward", "update", "predict", "end",
)  # fmt: skip
"""Activities of a rank, in their order in time at an equal number of steps."""


@dataclass(frozen=True)
class ProgressMark:
    """Progress of a rank, as last written to the store."""

    step: int
    """Steps taken."""
    phase: str
    """One of ``PHASES``, or a region that is not listed there."""
    moved: float
    """Time of the last progress, seconds since 1970."""
    written: float
    """Time when the mark was written, seconds since 1970."""

    def text(self) -> str:
        """Return the mark as text for the store."""
        return f"{self.step} {self.phase} {self.moved:.3f} {self.written:.3f}"

    @classmethod
    def of(cls, text: str) -> "ProgressMark":
        """Parse the result of ``text``."""
        step, phase, moved, written = text.split()
        return cls(int(step), phase, float(moved), float(written))

    @property
    def place(self) -> tuple[int, int]:
        """Position in the training, by which ranks are compared.

        Returns:
            Step, and number of the phase in ``PHASES``; equal for ranks that wait for each other.
        """
        return self.step, PHASES.index(self.phase) if self.phase in PHASES else 0


class Watchdog:
    """A thread that writes marks of this rank's progress, and ends a process that makes none."""

    def __init__(
        self,
        ranks: Ranks,
        store: Store,
        at: Callable[[], tuple[int, str, int]],
        *,
        limit: float,
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        """Prepare the thread; ``start`` starts it.

        Args:
            ranks: this rank among the others.
            store: store that all ranks can read.
            at: returns step, phase, and a number that changes with any progress.
            limit: seconds without progress after which the process ends.
            end: ends the process with an exit code.
        """
        self.ranks, self.store, self.at = ranks, store, at
        self.limit, self.end = limit, end
        self.every = min(MARK_SECONDS, limit / 4)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread, with a connection to the store that only it uses."""
        self.store = self.store.clone()  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the process continues unwatched."""
        self._stop.set()
        self._thread.join(timeout=2 * ANSWER_SECONDS)

    def _watch(self) -> None:
        step, phase, moves = self.at()
        moved = time.time(), time.monotonic()
        self._write_mark(ProgressMark(step, phase, moved[0], moved[0]))
        while not self._stop.wait(self.every):
            step, phase, now = self.at()
            if now != moves:
                moves = now
                moved = (time.time(), time.monotonic())
            self._write_mark(ProgressMark(step, phase, moved[0], time.time()))
            if time.monotonic() - moved[1] > self.limit:
                self._end_process()
                return

    def _write_mark(self, mark: ProgressMark) -> None:
        try:
            self.store.set(_key(self.ranks.rank), mark.text())
        except Exception as error:  # the store may be unreachable for a while, or lost
            logger.debug("no mark could be left: %s", error)

    def _end_process(self) -> None:
        """Log which rank is behind, and end this process, which cannot end by itself."""
        answers: list[str] = []
        reader = threading.Thread(target=lambda: answers.append(self._sentence()), daemon=True)
        reader.start()  # some calls of the store never return
        reader.join(ANSWER_SECONDS)
        sentence = answers[0] if answers else _NO_ANSWER
        logger.error(
            "rank %d has not moved for %g s, %s; ending with code %d.",
            self.ranks.rank,
            self.limit,
            sentence,
            STALE,
        )
        if self.ranks.first:  # the store may be in this process, and others may still read it
            time.sleep(self.every)
        logging.shutdown()
        self.end(STALE)

    def _sentence(self) -> str:
        try:
            return self._read()
        except Exception as error:
            return f"{_NO_ANSWER} ({error})"

    def _read(self) -> str:
        if self.store.add("watchdog/readers", 1) > READERS:
            return f"as {READERS} ranks have said before, who also name the one behind"
        marks = {}
        for rank in range(self.ranks.world):
            if self.store.check([_key(rank)]):
                marks[rank] = ProgressMark.of(self.store.get(_key(rank)).decode())
        return name_stragglers(marks, self.ranks.world, now=time.time(), every=self.every)


def start_watchdog(
    ranks: Ranks, model: nn.Module, meter: EpochTimers, step: Callable[[], int]
) -> None:
    """Watch this rank until its process ends; do nothing if it is the only rank.

    Args:
        ranks: this rank among the others.
        model: each of its forward passes counts as progress, also in a long validation.
        meter: provides the current region.
        step: returns the steps taken.
    """
    if ranks.store is None:
        return
    model.register_forward_pre_hook(lambda *_: meter.mark_progress())
    Watchdog(
        ranks,
        ranks.store,
        lambda: (step(), meter.phase, meter.moves),
        limit=collective_seconds(),
    ).start()


def name_stragglers(
    marks: Mapping[int, ProgressMark], world: int, *, now: float, every: float
) -> str:
    """Name the ranks that are behind, and where the others wait for them.

    Args:
        marks: by rank; ranks that never wrote one are missing.
        world: number of ranks.
        now: seconds since 1970.
        every: seconds between two marks of a rank.

    Returns:
        The end of a sentence that begins with ``rank 3 has not moved for 60 s,``.
    """
    silent = [r for r in range(world) if r not in marks or now - marks[r].written > 3 * every + 1.0]
    speaking = [mark.place for rank, mark in marks.items() if rank not in silent]
    front = max(speaking, default=(0, 0))
    behind = [r for r in range(world) if r in silent or marks[r].place < front]
    waiting = [rank for rank in range(world) if rank not in behind]
    parts = [_where(rank, marks.get(rank), rank in silent, now) for rank in behind[:8]]
    if len(behind) > 8:
        parts.append(f"{len(behind) - 8} more are behind")
    if not behind:
        return f"and all ranks wait for each other {_describe_mark(marks[0])}: look at the network"
    if waiting:
        parts.append(
            f"{_names(waiting)} {_verb(waiting, 'wait')} {_describe_mark(marks[waiting[0]])}"
        )
    return "; ".join(parts)


def _where(rank: int, mark: ProgressMark | None, silent: bool, now: float) -> str:
    if mark is None:
        return f"rank {rank} has never said where it is"
    since = f"is {_describe_mark(mark)} for {now - mark.moved:.0f} s"
    return f"rank {rank} {since}{' and is stopped or gone' if silent else ''}"


def _describe_mark(mark: ProgressMark) -> str:
    return f"at step {mark.step} ({mark.phase})"


def _verb(ranks: Sequence[int], verb: str) -> str:
    return verb if len(ranks) > 1 else f"{verb}s"


def _names(ranks: Sequence[int]) -> str:
    """Name ranks, neighbours as a range: ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}"


def _key(rank: int) -> str:
    return f"watchdog/{rank}"
