"""The ranks of one job on one host, as their agent sees them: who is left, when to signal them."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from hydragnn_hpo.files import is_transient
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of
from hydragnn_hpo.launching.protocol import JobEnded, KnownJob, StartJob

PEER_GRACE = 2.0
"""Seconds that ranks get to end by themselves, and again after SIGTERM, once a peer failed."""

STUCK_GRACE = 60.0
"""Seconds that ranks get once a peer ended well; who is still there then hangs in its exit."""


@dataclass
class JobProcess:
    """The ranks of one job on one host, from the order to start them to their end."""

    start: StartJob
    tail: JsonlTail | None = None
    first_offset: int = 0
    """Where the watched file ended as the job began."""

    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    sent: bool = False
    """Whether the fork server was asked to fork its ranks."""

    announced: bool = False
    """Whether all ranks were forked, and the controller was told so."""

    signal_sent: bool = False
    first: int | None = None
    error: str | None = None
    cut_off: bool = False
    """Whether its ranks were ended because the controller was silent for a lease."""

    finished: bool = False
    """Whether all is done but for the controller's ``ForgetJob``."""

    dropped: bool = False
    """Whether the controller wants no more news of it."""

    folders: list[Path] = field(default_factory=list)
    """What is removed when the job has ended."""

    term_at: float | None = None
    kill_at: float | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.start.job

    @property
    def ranks(self) -> list[int]:
        """The ranks of the job that live here."""
        return [rank.rank for rank in self.start.ranks]

    @property
    def ended(self) -> bool:
        """Whether all ranks are gone."""
        return len(self.codes) == len(self.start.ranks)

    def begin(self) -> None:
        """Note where the watched file ends now, and see whether ranks can open their log.

        A log whose file server is away for a while is left to the ranks, which wait.

        Raises:
            OSError: the folder of the job cannot be reached, or the log cannot be opened.
        """
        Path(self.start.log).parent.stat()
        try:
            os.close(os.open(self.start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        except OSError as error:
            if not is_transient(error):
                raise
        if self.start.watch is not None:
            watch = Path(self.start.watch)
            self.first_offset = end_of(watch)
            self.tail = JsonlTail(watch, self.first_offset)

    def forward_from(self, offset: int | None) -> None:
        """Forward records from there on, some of them perhaps once more."""
        if self.tail is not None and offset is not None:
            self.tail.offset = offset

    def describe(self) -> KnownJob:
        """Return what a controller must know that did not start it."""
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
        """Note how a rank ended, and start the time that its peers have left.

        Args:
            rank: its number in the job.
            code: its exit code; negative ones are signals.
            now: in monotonic time.
        """
        self.codes[rank] = code
        if self.first is None:
            self.first = rank
        self.peer_ended(code, now)

    def peer_ended(self, code: int, now: float) -> None:
        """Start the time that the ranks here have left: a peer ended with this code."""
        patience = PEER_GRACE if code != 0 else STUCK_GRACE
        self._hurry(now + patience, now + patience + PEER_GRACE)

    def stop(self, grace: float, now: float) -> None:
        """Have SIGTERM sent now and SIGKILL after ``grace`` seconds."""
        self._hurry(now, now + grace)

    def _hurry(self, term_at: float, kill_at: float) -> None:
        """Signal at these times or at those already set, whatever is sooner."""
        if not self.signal_sent:
            self.term_at = min(term_at, self.term_at or term_at)
        self.kill_at = min(kill_at, self.kill_at or kill_at)

    def due_signal(self, now: float) -> int | None:
        """Return the signal that is due now, each once."""
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
        """Note the same exit code for every rank whose end was not seen."""
        self.codes = {rank: code for rank in self.ranks} | self.codes

    def result(self) -> JobEnded:
        """Return how the job ended here."""
        first, error = self.first, self.error
        return JobEnded(self.id, self.codes, self.signal_sent, first, error, self.cut_off)
