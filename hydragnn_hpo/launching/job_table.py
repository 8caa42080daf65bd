"""The jobs of a fleet: where their ranks are, how they end, and which events are due.

A job whose ranks run on several hosts is one job to the controller: ``JobTracker`` merges what the
agents report. ``JobTable`` holds all of them and releases each event once, in order. Neither sends
anything.
"""

import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.host_network import PortPool
from hydragnn_hpo.launching.job import Event, EventKind, Job
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of
from hydragnn_hpo.launching.protocol import (
    JobEnded,
    JobOrder,
    KnownJob,
    ProtocolError,
    RankState,
    Rendezvous,
    StopJob,
)


@dataclass
class HostRanks:
    """The ranks of a job on one host."""

    ranks: tuple[int, ...]
    state: RankState = "waiting"
    pids: tuple[int | None, ...] = ()


def _split(slots: Sequence[str]) -> dict[str, HostRanks]:
    """Group ranks by host, the host of rank 0 first."""
    ranks: dict[str, list[int]] = {}
    for rank, slot in enumerate(slots):
        ranks.setdefault(slot.rpartition(":")[0], []).append(rank)
    return {host: HostRanks(tuple(numbers)) for host, numbers in ranks.items()}


@dataclass
class JobTracker:
    """A job in progress."""

    id: str
    slots: tuple[str, ...]
    """Names of its slots in rank order."""

    watch: Path | None
    job: Job | None = None
    """What was asked for; None where a lost controller had asked."""

    offset: int | None = None
    """Bytes of the watched file that were reported, or were there before."""

    meet: Rendezvous | None = None
    """Where its ranks meet, once chosen; each host adds its own interface."""

    other_hosts: tuple[str, ...] = ()
    """Hosts without ranks on which it has processes; they are parts that have always started."""

    unheard: set[str] = field(default_factory=set)
    """Those of ``other_hosts`` that have sent nothing since its ranks are gone."""

    parts: dict[str, HostRanks] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    error: str | None = None
    signal_sent: bool = False
    away: list[str] = field(default_factory=list)
    """Hosts that were lost with ranks or processes of it, or before these started."""

    announced: bool = False
    """Whether ``started`` was reported."""

    waits_for_others: bool = False
    """Whether it is being adopted and not all its hosts have come back."""

    held: list[dict[str, Any]] = field(default_factory=list)
    """Records that came before all ranks had started."""

    orders: list[JobOrder] = field(default_factory=list)
    """What was ordered since its start; a broken connection may have lost it."""

    def __post_init__(self) -> None:
        self.parts = self.parts or _split(self.slots)
        self.parts |= {host: HostRanks((), "started") for host in self.other_hosts}
        self.unheard = set(self.other_hosts)

    @classmethod
    def of(cls, job: Job) -> "JobTracker":
        """Track a job that is yet to be started."""
        names = tuple(slot.name for slot in job.slots)
        begin = None if job.watch is None else end_of(job.watch)
        return cls(job.id, names, job.watch, job=job, offset=begin, other_hosts=job.other_hosts)

    @classmethod
    def adopt(cls, known: KnownJob) -> "JobTracker":
        """Track a job that a lost controller had started; see ``note_found``."""
        return cls(
            known.job,
            known.slots,
            None,
            meet=known.meet,
            other_hosts=known.other_hosts,
            waits_for_others=True,
        )

    def note_found(self, host: str, known: KnownJob) -> None:
        """Note the ranks that a host has of a job that is being adopted.

        Raises:
            ProtocolError: the host describes another job.
        """
        same = (known.slots, known.other_hosts) == (self.slots, self.other_hosts)
        if not same or not self.ranks_on(host) or known.first_offset < 0:
            raise ProtocolError(f"describes job {self.id} otherwise than its other hosts")
        if known.watch is not None:
            self.watch, self.offset = Path(known.watch), known.first_offset
        self.parts[host].state = "sent"
        if known.forked:
            self.note_started(host, known.pids)

    @property
    def first_host(self) -> str:
        """The host of rank 0."""
        return next(iter(self.parts))

    @property
    def gone(self) -> bool:
        """Whether all its ranks are gone everywhere."""
        return len(self.codes) == len(self.slots)

    @property
    def doubtful(self) -> bool:
        """Whether its ranks are gone and failed, and another host may be the cause."""
        stopped = any(isinstance(order, StopJob) for order in self.orders)
        explained = stopped or self.away or not any(self.codes.values())
        return self.gone and bool(self.unheard) and not explained

    @property
    def finished(self) -> bool:
        """Whether all its ranks are gone everywhere, and nothing is left to find out."""
        return self.gone and not self.doubtful

    @property
    def all_started(self) -> bool:
        """Whether all its ranks were started."""
        return all(
            part.state in ("started", "ended") and len(part.pids) == len(part.ranks)
            for part in self.parts.values()
        )

    def ranks_on(self, host: str) -> tuple[int, ...]:
        """Return the ranks that a host has, had or will have.

        Returns:
            Their numbers in the job, rising.
        """
        return self.parts[host].ranks if host in self.parts else ()

    def hosts_in(self, *states: RankState) -> list[str]:
        """Return the hosts whose ranks are in one of these states."""
        return [host for host, part in self.parts.items() if part.state in states]

    def pids(self) -> list[int | None]:
        """Return the processes of all ranks, in their order."""
        known = {
            rank: pid
            for part in self.parts.values()
            for rank, pid in zip(part.ranks, part.pids, strict=True)
        }
        return [known[rank] for rank in range(len(self.slots))]

    def note_started(self, host: str, pids: Iterable[int | None]) -> None:
        """Note that the ranks of a host were forked.

        Raises:
            ProtocolError: there are not as many processes as ranks.
        """
        part, pids = self.parts[host], tuple(pids)
        if len(pids) != len(part.ranks):
            raise ProtocolError(f"reports {len(pids)} processes of {len(part.ranks)} ranks")
        part.pids = pids
        if part.state != "ended":
            part.state = "started"

    def note_first(self, rank: int) -> None:
        """Note that a rank ended; the first of them counts.

        Raises:
            ProtocolError: there is no such rank.
        """
        if not 0 <= rank < len(self.slots):
            raise ProtocolError(f"reports rank {rank} of {len(self.slots)}")
        if self.first is None:
            self.first = rank

    def note_ended(self, host: str, end: JobEnded) -> None:
        """Note how the ranks of a host ended.

        Raises:
            ProtocolError: the end is not that of this host's ranks.
        """
        part = self.parts[host]
        if part.state == "ended":
            return
        if not end.codes.keys() >= set(part.ranks):
            raise ProtocolError(f"reports the end of other ranks of job {self.id} than it has")
        if end.first is not None:
            self.note_first(end.first)
        part.state = "ended"
        self.codes |= {rank: end.codes[rank] for rank in part.ranks}
        self.signal_sent = self.signal_sent or end.signal_sent
        self.error = self.error or end.error
        if end.cut_off:
            self.away.append(host)

    def lose(self, host: str, code: int = -signal.SIGKILL, error: str | None = None) -> None:
        """Note that the ranks of a host are gone, and how is unknown.

        Args:
            host: ignored if its ranks have ended.
            code: exit code to assume for each of them.
            error: a sentence for the event, unless there is one already.
        """
        part = self.parts[host]
        if part.state != "ended":
            part.state = "ended"
            self.codes |= dict.fromkeys(part.ranks, int(code))
            self.error = self.error or error

    def worst(self, host: str) -> int:
        """Return the code that tells ranks elsewhere how their peers on a host ended."""
        codes = [self.codes.get(rank, 0) for rank in self.parts[host].ranks]
        return next((code for code in codes if code != 0), 0)

    def result(self) -> dict[str, Any]:
        """Return the data of the event ``ended``.

        Returns:
            ``codes``, ``signal_sent``, ``first``, ``error`` and ``away``, see ``Event``.
        """
        return {
            "codes": [self.codes[rank] for rank in range(len(self.slots))],
            "signal_sent": self.signal_sent,
            "first": self.first,
            "error": self.error,
            "away": self.away,
        }


class JobTable:
    """Jobs in progress, the ports where they meet, and events that were not taken yet."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.jobs: dict[str, JobTracker] = {}
        self.doubtful: dict[str, float] = {}
        """Job -> monotonic time after which its other hosts must be heard from."""
        self._ports: dict[str, PortPool] = defaultdict(lambda: PortPool(os.getpid()))
        self._events: list[Event] = []
        self._leaving: dict[str, tuple[set[str], list[Event]]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def take_events(self) -> list[Event]:
        """Return the events, once."""
        taken, self._events = self._events, []
        return taken

    def add_event(
        self, kind: EventKind, job: str | None, data: dict[str, Any], when: float = math.nan
    ) -> None:
        """Add an event.

        Args:
            kind: see ``Event``.
            job: id of the job it is about, None for others.
            data: as ``Event`` says for this kind.
            when: in seconds since the epoch; now if not a number.
        """
        self._events.append(Event(kind, job, time.time() if math.isnan(when) else when, data))

    def jobs_on(self, host: str) -> list[JobTracker]:
        """Return the jobs that have, had or will have ranks or processes on a host."""
        return [job for job in self.jobs.values() if host in job.parts]

    def add_adopted(self, known: KnownJob) -> JobTracker:
        """Track a job of a lost controller, and keep its port from others.

        Raises:
            ProtocolError: it makes no sense.
        """
        if not known.slots or not 0 < known.meet.port < 1 << 16:
            raise ProtocolError(f"describes job {known.job} without slots or port")
        tracker = self.jobs[known.job] = JobTracker.adopt(known)
        self._ports[known.meet.address].reserve(known.meet.port)
        return tracker

    def choose_meeting(self, job: JobTracker, address: str) -> Rendezvous:
        """Return where the ranks of a job meet; choose a port if there is none yet.

        Raises:
            JobError: no port is free at this address.
        """
        if job.meet is None:
            job.meet = Rendezvous(address, self._ports[address].take(), "")
        return job.meet

    def leave_meeting(self, job: JobTracker) -> None:
        """Return the port of a job to its pool, where it rests."""
        if job.meet is not None:
            self._ports[job.meet.address].give_back(job.meet.port)
            job.meet = None

    def announce(self, job: JobTracker) -> None:
        """Report that a job has started once all its ranks have, and what it wrote meanwhile."""
        if job.announced or job.waits_for_others or not job.all_started:
            return
        job.announced = True
        if job.job is not None:
            self.add_event("started", job.id, {"pids": job.pids()})
        held, job.held = job.held, []
        self.add_records(job, held)

    def add_records(self, job: JobTracker, records: Sequence[dict[str, Any]]) -> None:
        """Report records of a job, or keep them until its start is reported."""
        if job.announced:
            now = time.time()
            self._events += [Event("record", job.id, now, record) for record in records]
        else:
            job.held += records

    def add_unsent_records(self, job: JobTracker) -> None:
        """Report what a job wrote and its lost agent had no time to send."""
        if job.watch is None:
            return
        tail = JsonlTail(job.watch, job.offset or 0)
        before = -1
        while tail.offset != before:
            before = tail.offset
            self.add_records(job, tail.read())
        job.offset = tail.offset

    def end_if_finished(self, job: JobTracker) -> None:
        """Report the end of a job whose ranks are gone everywhere, once."""
        if not job.finished or job.id not in self.jobs or job.waits_for_others:
            return
        del self.jobs[job.id]
        job.announced, held, job.held = True, job.held, []
        self.add_records(job, held)
        self.add_event("ended", job.id, job.result())
        self.leave_meeting(job)
        for name in list(self._leaving):
            jobs, events = self._leaving[name]
            jobs.discard(job.id)
            if not jobs:
                del self._leaving[name]
                self._events += events

    def has_unfinished_jobs(self, host: str) -> bool:
        """Check whether jobs of an earlier life of a host have not ended yet."""
        return host in self._leaving

    def add_after_jobs(self, host: str, event: Event, jobs: Collection[str] = ()) -> None:
        """Report something about a host once these and its earlier jobs have ended.

        Args:
            host: name.
            event: what to report.
            jobs: ids of jobs that have not ended.
        """
        if jobs:
            self._leaving.setdefault(host, (set(), []))[0].update(jobs)
        if host in self._leaving:
            self._leaving[host][1].append(event)
        else:
            self._events.append(event)
