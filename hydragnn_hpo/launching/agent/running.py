"""One job as its agent sees it: which ranks are left, what they wrote, when to signal them."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of
from hydragnn_hpo.leases import create_rank_lease

PEER_GRACE = 2.0
"""Seconds that ranks get to end by themselves, and again after SIGTERM, once a peer failed."""

STUCK_GRACE = 60.0
"""Seconds that ranks get once a peer ended well; who is still there then hangs in its exit."""


@dataclass
class Running:
    """The ranks of one job on one agent, from the order to start it to its end."""

    order: dict[str, Any]
    """The controller's ``start`` message."""

    lease: Path
    """The file that keeps the ranks alive."""

    begun: float = 0.0
    """When the order came, in seconds since the epoch."""

    tail: JsonlTail | None = None
    first_offset: int = 0
    """Where the watched file ended as the job began."""

    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    sent: bool = False
    told: bool = False
    signal_sent: bool = False
    first: int | None = None
    error: str | None = None
    over: bool = False
    """Whether all is done but for the controller to say that it heard of it."""

    discarded: bool = False
    """Whether nobody wants to hear of it any more."""

    folders: list[Path] = field(default_factory=list)
    """What goes when the job has ended."""

    term_at: float | None = None
    kill_at: float | None = None

    @property
    def id(self) -> str:
        """Give the job's id."""
        return str(self.order["job"])

    @property
    def ranks(self) -> list[int]:
        """Give the ranks of the job that live here."""
        return [place["rank"] for place in self.order["ranks"]]

    @property
    def has_peers(self) -> bool:
        """Say whether ranks of it live on other hosts too."""
        return len(self.order["ranks"]) < int(self.order["width"])

    @property
    def ended(self) -> bool:
        """Say whether all ranks are gone."""
        return len(self.codes) == len(self.order["ranks"])

    def begin(self, until: float) -> None:
        """Make the lease, which holds until then, and note where the watched file ends now.

        Raises:
            OSError: the lease cannot be written.
        """
        create_rank_lease(self.lease, until)
        if self.order["watch"] is not None:
            watch = Path(self.order["watch"])
            self.first_offset = end_of(watch)
            self.tail = JsonlTail(watch, self.first_offset)

    def tell_from(self, offset: int | None) -> None:
        """Tell the records from there on, which may mean once more."""
        if self.tail is not None and offset is not None:
            self.tail.offset = offset

    def describe(self) -> dict[str, Any]:
        """Say what a controller must know that did not start it."""
        left_out = ("op", "spec", "ranks")
        known = {key: value for key, value in self.order.items() if key not in left_out}
        pids = [self.pids.get(rank) for rank in self.ranks]
        more = {"ranks": self.ranks, "begun": self.begun, "started": self.told, "pids": pids}
        return known | more | {"first_offset": self.first_offset}

    def end_rank(self, rank: int, code: int, *, now: float) -> None:
        """Note how a rank ended; from then on its peers' time runs."""
        self.codes[rank] = code
        if self.first is None:
            self.first = rank
        self.peer_ended(code, now)

    def peer_ended(self, code: int, now: float) -> None:
        """Let the time of the ranks here run, since a peer of theirs ended with this code."""
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
        """Give the signal that is due now, each once."""
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
        """Give every rank whose end nobody saw the same code."""
        self.codes = {rank: code for rank in self.ranks} | self.codes

    def result(self) -> dict[str, Any]:
        """Say how the job ended."""
        return {
            "codes": self.codes,
            "signal_sent": self.signal_sent,
            "first": self.first,
            "error": self.error,
        }
