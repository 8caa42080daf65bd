"""The jobs of a fleet: where their ranks are, how they end, and which events are pending.

``JobTracker`` merges the reports of all agents that run ranks of one job. ``JobTable`` holds all
trackers and returns each event once, in order. Neither sends messages.
"""

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
    """The job as it was started; None if a lost controller started it."""

    offset: int | None = None
    """Bytes of the watched file that were reported already, or written before the job."""

    meet: Rendezvous | None = None
    """Rendezvous of its ranks, None until chosen; each host adds its own network interface."""

    other_hosts: tuple[str, ...] = ()
    """Hosts with child processes of the job but no ranks; ``parts`` lists them as started."""

    unheard: set[str] = field(default_factory=set)
    """Those of ``other_hosts`` that have sent no message since all ranks ended."""

    parts: dict[str, HostRanks] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    error: str | None = None
    signal_sent: bool = False
    away: list[str] = field(default_factory=list)
    """Hosts that were lost before the job's ranks or processes on them had ended."""

    announced: bool = False
    """Whether ``started`` was reported."""

    waits_for_others: bool = False
    """Whether the job is being adopted and some of its hosts have not reconnected."""

    held: list[dict[str, Any]] = field(default_factory=list)
    """Records that arrived before all ranks had started."""

    orders: list[JobOrder] = field(default_factory=list)
    """Orders sent since its start; they are repeated if a connection may have lost them."""

    def __post_init__(self) -> None:
        self.parts = self.parts or _split(self.slots)
        self.parts |= {host: HostRanks((), "started") for host in self.other_hosts}
        self.unheard = set(self.other_hosts)

    @classmethod
    def of(cls, job: Job) -> "JobTracker":
        """Return the tracker of a job that has not been started."""
        names = tuple(slot.name for slot in job.slots)
        begin = None if job.watch is None else end_of(job.watch)
        return cls(job.id, names, job.watch, job=job, offset=begin, other_hosts=job.other_hosts)

    @classmethod
    def adopt(cls, known: KnownJob) -> "JobTracker":
        """Return the tracker of a job that a lost controller started; see ``note_found``."""
        return cls(
            known.job,
            known.slots,
            None,
            meet=known.meet,
            other_hosts=known.other_hosts,
            waits_for_others=True,
        )

    def note_found(self, host: str, known: KnownJob) -> None:
        """Record the ranks that run on a host, for a job that is being adopted.

        Raises:
            ProtocolError: the host's description contradicts that of another host.
        """
        same = (known.slots, known.other_hosts) == (self.slots, self.other_hosts)
        sound = self.ranks_on(host) and 0 <= known.first_offset < 1 << 63
        if not same or not sound:
            raise ProtocolError(f"describes job {self.id} otherwise than its other hosts")
        if known.watch is not None:
            self.watch = Path(known.watch)
            self.offset = known.first_offset
        self.parts[host].state = "sent"
        if known.forked:
            self.note_started(host, known.pids)

    @property
    def first_host(self) -> str:
        """The host of rank 0."""
        return next(iter(self.parts))

    @property
    def gone(self) -> bool:
        """Whether all ranks on all hosts have ended."""
        return len(self.codes) == len(self.slots)

    @property
    def doubtful(self) -> bool:
        """Whether its ranks failed, perhaps because one of ``other_hosts`` was lost."""
        stopped = any(isinstance(order, StopJob) for order in self.orders)
        explained = stopped or self.away or not any(self.codes.values())
        return self.gone and bool(self.unheard) and not explained

    @property
    def finished(self) -> bool:
        """Whether all ranks have ended and the cause is settled, see ``doubtful``."""
        return self.gone and not self.doubtful

    @property
    def all_started(self) -> bool:
        """Whether all ranks on all hosts were started."""
        return all(
            part.state in ("started", "ended") and len(part.pids) == len(part.ranks)
            for part in self.parts.values()
        )

    def ranks_on(self, host: str) -> tuple[int, ...]:
        """Return the ranks of the job that are assigned to a host.

        Returns:
            Rank numbers within the job, ascending; empty for other hosts.
        """
        return self.parts[host].ranks if host in self.parts else ()

    def hosts_in(self, *states: RankState) -> list[str]:
        """Return the hosts whose ranks are in one of these states."""
        return [host for host, part in self.parts.items() if part.state in states]

    def pids(self) -> list[int | None]:
        """Return the process ids of all ranks in rank order; call it once all were started."""
        known = {
            rank: pid
            for part in self.parts.values()
            for rank, pid in zip(part.ranks, part.pids, strict=True)
        }
        return [known[rank] for rank in range(len(self.slots))]

    def note_started(self, host: str, pids: Iterable[int | None]) -> None:
        """Record that the ranks of a host were forked.

        Raises:
            ProtocolError: the numbers of processes and ranks differ.
        """
        part, pids = self.parts[host], tuple(pids)
        if len(pids) != len(part.ranks):
            raise ProtocolError(f"reports {len(pids)} processes of {len(part.ranks)} ranks")
        part.pids = pids
        if part.state != "ended":
            part.state = "started"

    def note_first(self, rank: int) -> None:
        """Record a rank as the first that ended, unless one is recorded already.

        Raises:
            ProtocolError: the job has no such rank.
        """
        if not 0 <= rank < len(self.slots):
            raise ProtocolError(f"reports rank {rank} of {len(self.slots)}")
        if self.first is None:
            self.first = rank

    def note_ended(self, host: str, end: JobEnded) -> None:
        """Record how the ranks of a host ended; ignored if that is known.

        Raises:
            ProtocolError: exit codes of some ranks of this host are missing.
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
        """Record that the ranks of a host ended in an unknown way.

        Args:
            host: id of the host; ignored if its ranks are known to have ended.
            code: exit code to assume for each of these ranks.
            error: sentence for the ``ended`` event, unless it has one already.
        """
        part = self.parts[host]
        if part.state != "ended":
            part.state = "ended"
            self.codes |= dict.fromkeys(part.ranks, int(code))
            self.error = self.error or error

    def worst(self, host: str) -> int:
        """Return the first nonzero exit code among the ranks of a host; 0 if there is none."""
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
    """Jobs in progress, their rendezvous ports, and events that were not yet returned."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.jobs: dict[str, JobTracker] = {}
        self.doubtful: dict[str, float] = {}
        """Job id -> monotonic time after which each of its other hosts must send a message."""
        self._ports: dict[str, PortPool] = defaultdict(lambda: PortPool(os.getpid()))
        self._events: list[Event] = []
        self._leaving: dict[str, tuple[set[str], list[Event]]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        taken, self._events = self._events, []
        return taken

    def add_event(self, kind: EventKind, job: str | None, data: dict[str, Any]) -> None:
        """Add an event of now.

        Args:
            kind: see ``Event``.
            job: id of the job that the event is about, or None.
            data: see ``Event`` for the keys of each kind.
        """
        self._events.append(Event(kind, job, time.time(), data))

    def jobs_on(self, host: str) -> list[JobTracker]:
        """Return the unfinished jobs that are assigned ranks or processes on a host."""
        return [job for job in self.jobs.values() if host in job.parts]

    def add_adopted(self, known: KnownJob) -> JobTracker:
        """Track a job of a lost controller, and reserve its rendezvous port.

        Raises:
            ProtocolError: its description lacks slots or a valid port.
        """
        if not known.slots or not 0 < known.meet.port < 1 << 16:
            raise ProtocolError(f"describes job {known.job} without slots or port")
        tracker = self.jobs[known.job] = JobTracker.adopt(known)
        self._ports[known.meet.address].reserve(known.meet.port)
        return tracker

    def choose_meeting(self, job: JobTracker, address: str) -> Rendezvous:
        """Return the rendezvous of a job's ranks; choose a port at the first call.

        Raises:
            JobError: no port is free at this address.
        """
        if job.meet is None:
            job.meet = Rendezvous(address, self._ports[address].take(), "")
        return job.meet

    def leave_meeting(self, job: JobTracker) -> None:
        """Return the port of a job to its pool, which reuses it only after a pause."""
        if job.meet is not None:
            self._ports[job.meet.address].give_back(job.meet.port)
            job.meet = None

    def announce(self, job: JobTracker) -> None:
        """Report a job and its held records as started, once all ranks have started."""
        if job.announced or job.waits_for_others or not job.all_started:
            return
        job.announced = True
        if job.job is not None:
            self.add_event("started", job.id, {"pids": job.pids()})
        held, job.held = job.held, []
        self.add_records(job, held)

    def add_records(self, job: JobTracker, records: Sequence[dict[str, Any]]) -> None:
        """Report records of a job, or hold them until its start has been reported."""
        if job.announced:
            now = time.time()
            self._events += [Event("record", job.id, now, record) for record in records]
        else:
            job.held += records

    def add_unsent_records(self, job: JobTracker) -> None:
        """Report the records in the watched file that a lost agent did not send."""
        if job.watch is None:
            return
        tail = JsonlTail(job.watch, job.offset or 0)
        before = -1
        while tail.offset != before:
            before = tail.offset
            self.add_records(job, tail.read())
        job.offset = tail.offset

    def end_if_finished(self, job: JobTracker) -> None:
        """Report the end of a job if it is finished; at most once."""
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
        """Check whether jobs from before a host was lost have not ended yet."""
        return host in self._leaving

    def add_after_jobs(self, host: str, event: Event, jobs: Collection[str] = ()) -> None:
        """Report an event about a host after ``jobs`` and its earlier jobs have ended.

        Args:
            host: id of the host.
            event: the event to report.
            jobs: ids of unfinished jobs to wait for.
        """
        if jobs:
            self._leaving.setdefault(host, (set(), []))[0].update(jobs)
        if host in self._leaving:
            self._leaving[host][1].append(event)
        else:
            self._events.append(event)
