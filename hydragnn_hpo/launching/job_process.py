"""The ranks of one job on one host, as their agent tracks them: states, exit codes, signals."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from hydragnn_hpo.files import FILE_MODE, is_transient
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of
from hydragnn_hpo.launching.protocol import JobEnded, KnownJob, StartJob

PEER_GRACE = 2.0
"""After a peer failed: seconds until ranks get SIGTERM, and again until they get SIGKILL."""

STUCK_GRACE = 60.0
"""Seconds until ranks get SIGTERM after a peer ended well: a rank still alive then hangs."""


@dataclass
class JobProcess:
    """The ranks of one job on one host, from the order to start them to their end."""

    start: StartJob
    tail: JsonlTail | None = None
    first_offset: int = 0
    """Size of the watched file in bytes when the job began."""

    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    sent: bool = False
    """Whether the fork server was ordered to fork the ranks."""

    announced: bool = False
    """Whether all ranks were forked and ``JobStarted`` was sent."""

    signal_sent: bool = False
    first: int | None = None
    error: str | None = None
    cut_off: bool = False
    """Whether its ranks were ended because the controller did not answer for a lease."""

    finished: bool = False
    """Whether only the controller's ``ForgetJob`` is still awaited."""

    dropped: bool = False
    """Whether the controller sent ``DropJob``: no more news is sent about the job."""

    folders: list[Path] = field(default_factory=list)
    """Folders to remove when the job has ended."""

    term_at: float | None = None
    kill_at: float | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.start.job

    @property
    def ranks(self) -> list[int]:
        """Numbers of the job's ranks on this host."""
        return [rank.rank for rank in self.start.ranks]

    @property
    def ended(self) -> bool:
        """Whether all ranks on this host have ended."""
        return len(self.codes) == len(self.start.ranks)

    def begin(self) -> None:
        """Record the size of the watched file, and check that the log can be opened.

        If the log's file server cannot be reached at the moment, the check is left to the ranks,
        which wait for it.

        Raises:
            OSError: the folder of the job cannot be reached, or the log cannot be opened.
        """
        Path(self.start.log).parent.stat()
        try:
            os.close(os.open(self.start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE))
        except OSError as error:
            if not is_transient(error):
                raise
        if self.start.watch is not None:
            watch = Path(self.start.watch)
            self.first_offset = end_of(watch)
            self.tail = JsonlTail(watch, self.first_offset)

    def forward_from(self, offset: int | None) -> None:
        """Forward records from a byte offset on, which may repeat some; ignore None."""
        if self.tail is not None and offset is not None:
            self.tail.offset = offset

    def describe(self) -> KnownJob:
        """Return the description of the job for a controller that did not start it."""
        start = self.start
        return KnownJob(
            job=start.job,
            slots=start.slots,
            meet=start.meet,
            watch=start.watch,
            first_offset=self.first_offset,
            pids=tuple(self.pids.get(rank) for rank in self.ranks),
            forked=self.announced,
            other_hosts=start.other_hosts,
        )

    def end_rank(self, rank: int, code: int, *, now: float) -> None:
        """Record how a rank ended, and set the deadlines of its peers.

        Args:
            rank: its number in the job.
            code: its exit code; negative for a signal.
            now: monotonic time in seconds.
        """
        self.codes[rank] = code
        if self.first is None:
            self.first = rank
        self.peer_ended(code, now)

    def peer_ended(self, code: int, now: float) -> None:
        """Set the deadlines of the ranks here, after a peer ended with exit code ``code``."""
        patience = PEER_GRACE if code != 0 else STUCK_GRACE
        self._hurry(now + patience, now + patience + PEER_GRACE)

    def stop(self, grace: float, now: float) -> None:
        """Make SIGTERM due now, and SIGKILL ``grace`` seconds later."""
        self._hurry(now, now + grace)

    def _hurry(self, term_at: float, kill_at: float) -> None:
        """Make the signals due at these times, unless earlier times are set already."""
        if not self.signal_sent:
            self.term_at = min(term_at, self.term_at or term_at)
        self.kill_at = min(kill_at, self.kill_at or kill_at)

    def due_signal(self, now: float) -> int | None:
        """Return the signal that is due now, or None; each signal is returned once."""
        if self.kill_at is not None and now >= self.kill_at:
            self.term_at = None
            self.kill_at = None
            self.signal_sent = True
            return signal.SIGKILL
        if self.term_at is not None and now >= self.term_at:
            self.term_at = None
            self.signal_sent = True
            return signal.SIGTERM
        return None

    def lose_ranks(self, code: int) -> None:
        """Record an exit code for every rank whose exit code is unknown."""
        self.codes = {rank: code for rank in self.ranks} | self.codes

    def result(self) -> JobEnded:
        """Return the message that reports how the ranks here ended."""
        first, error = self.first, self.error
        return JobEnded(self.id, self.codes, self.signal_sent, first, error, self.cut_off)
