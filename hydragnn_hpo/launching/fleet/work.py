"""One job as the controller sees it: its ranks on one or several hosts, made one again.

Pure: it is told what agents say and tells what is known of the whole.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.jsonl_tail import end_of


@dataclass
class HostRanks:
    """The ranks of a job on one host."""

    ranks: tuple[int, ...]
    state: Literal["waiting", "sent", "started", "ended"] = "waiting"
    pids: list[int | None] = field(default_factory=list)


def _split(slots: Sequence[str]) -> dict[str, HostRanks]:
    """Group ranks by host, the host of rank 0 first."""
    ranks: dict[str, list[int]] = {}
    for rank, slot in enumerate(slots):
        ranks.setdefault(slot.rpartition(":")[0], []).append(rank)
    return {host: HostRanks(tuple(found)) for host, found in ranks.items()}


@dataclass
class Work:
    """A job in progress."""

    id: str
    slots: tuple[str, ...]
    """Names of its slots in rank order."""

    watch: Path | None
    job: Job | None = None
    """What was asked for; None where a lost controller had asked."""

    offset: int | None = None
    """Bytes of the watched file that were told, or were there before."""

    meet: tuple[str, int, str] | None = None
    """Address, port and interface where its ranks meet, once chosen."""

    parts: dict[str, HostRanks] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    error: str | None = None
    signal_sent: bool = False
    away: list[str] = field(default_factory=list)
    """Hosts that went away with ranks of it, or before these started."""

    announced: bool = False
    """Whether ``started`` was told."""

    waits_for_others: bool = False
    """Whether it is being adopted and not all its hosts have come back."""

    held: list[dict[str, Any]] = field(default_factory=list)
    """Records that came before all ranks had started."""

    orders: list[dict[str, Any]] = field(default_factory=list)
    """What its agents were told since; a line that was cut may have lost it."""

    def __post_init__(self) -> None:
        self.parts = self.parts or _split(self.slots)

    @classmethod
    def of(cls, job: Job) -> "Work":
        """Take on a job that nobody has started yet."""
        names = tuple(slot.name for slot in job.slots)
        begin = None if job.watch is None else end_of(job.watch)
        return cls(job.id, names, job.watch, job=job, offset=begin)

    @classmethod
    def found(cls, told: Mapping[str, Any]) -> "Work":
        """Take on a job of which an agent has ranks, as it describes it; see ``note_found``."""
        address, port, interface = told["meet"]
        meet = (address, port, interface)
        slots = tuple(told["slots"])
        return cls(told["job"], slots, None, meet=meet, waits_for_others=True)

    def note_found(self, host: str, told: Mapping[str, Any]) -> None:
        """Note the ranks that a host has, of a job that a lost controller had started."""
        if told["watch"] is not None:
            self.watch, self.offset = Path(told["watch"]), told["first_offset"]
        self.parts[host].state = "sent"
        if told["started"]:
            self.note_started(host, told["pids"])

    @property
    def first_host(self) -> str:
        """Give the host of rank 0."""
        return next(iter(self.parts))

    @property
    def over(self) -> bool:
        """Say whether all its ranks are gone everywhere."""
        return all(part.state == "ended" for part in self.parts.values())

    @property
    def started(self) -> bool:
        """Say whether all its ranks were started."""
        return all(part.state in ("started", "ended") and part.pids for part in self.parts.values())

    def hosts(self, *states: str) -> list[str]:
        """Give the hosts whose part is in one of these states."""
        return [host for host, part in self.parts.items() if part.state in states]

    def pids(self) -> list[int | None]:
        """Give the processes of all ranks, in their order."""
        known = {
            rank: pid
            for part in self.parts.values()
            for rank, pid in zip(part.ranks, part.pids, strict=True)
        }
        return [known[rank] for rank in range(len(self.slots))]

    def note_started(self, host: str, pids: Iterable[int | None]) -> None:
        """Note that the ranks of a host were forked."""
        part = self.parts[host]
        part.pids = list(pids)
        if part.state != "ended":
            part.state = "started"

    def note_first(self, rank: int) -> None:
        """Note that a rank ended; the first of them counts."""
        if self.first is None:
            self.first = rank

    def note_ended(self, host: str, told: Mapping[str, Any]) -> None:
        """Note how the ranks of a host ended, as its agent told."""
        part = self.parts[host]
        if part.state == "ended":
            return
        part.state = "ended"
        self.codes |= {rank: told["codes"][str(rank)] for rank in part.ranks}
        self.signal_sent = self.signal_sent or told["signal_sent"]
        self.error = self.error or told["error"]
        if told["first"] is not None:
            self.note_first(told["first"])

    def lose(self, host: str, code: int = -signal.SIGKILL, error: str | None = None) -> None:
        """Note that the ranks of a host are gone and nobody saw how."""
        part = self.parts[host]
        if part.state != "ended":
            part.state = "ended"
            self.codes |= dict.fromkeys(part.ranks, int(code))
            self.error = self.error or error

    def worst(self, host: str) -> int:
        """Give the code that tells the ranks elsewhere how their peers on a host ended."""
        codes = [self.codes.get(rank, 0) for rank in self.parts[host].ranks]
        return next((code for code in codes if code != 0), 0)

    def result(self) -> dict[str, Any]:
        """Say how the job ended."""
        return {
            "codes": [self.codes[rank] for rank in range(len(self.slots))],
            "signal_sent": self.signal_sent,
            "first": self.first,
            "error": self.error,
            "away": self.away,
        }
