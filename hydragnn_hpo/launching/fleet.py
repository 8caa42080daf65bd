"""Run jobs on many hosts through one agent per host, whichever transport starts the agents."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.errors import JobError, unknown
from hydragnn_hpo.launching.host_registry import Host, HostRegistry
from hydragnn_hpo.launching.job import JOBS, PRELOAD, Event, Job, Slot
from hydragnn_hpo.launching.job_table import JobTable, JobTracker
from hydragnn_hpo.launching.profile_adapter import UNKNOWN, host_profile_of
from hydragnn_hpo.launching.protocol import (
    AskRank,
    CounterReport,
    DropJob,
    ForgetJob,
    ForkServerLost,
    ForkServerReady,
    JobEnded,
    JobOrder,
    JobStarted,
    KnownJob,
    NewRecords,
    News,
    PeerEnded,
    PortTaken,
    ProtocolError,
    RankEnded,
    RankState,
    Rendezvous,
    StartJob,
    StopJob,
    Welcome,
    heartbeat_seconds,
)
from hydragnn_hpo.launching.rank_environment import make_rank_starts
from hydragnn_hpo.launching.transports.transport import Transport
from hydragnn_hpo.rank_requests import Request

_NEVER_STARTED = -15
"""Exit code reported for ranks of a stopped or failed job that were never started (SIGTERM)."""

_TURN_SECONDS = 0.25

_SAME_END_SECONDS = 60.0
"""Difference up to which the ends that the controller and its agents know are one."""


class Fleet:
    """A ``Backend`` over the agents that a transport starts.

    Create, poll and close it in the same thread, which must live as long as the fleet.
    """

    _slots: tuple[Slot, ...] | None = None
    """Cached value of the property ``slots``; None after a change."""

    _closed = _settled = False

    def __init__(
        self,
        transport: Transport,
        *,
        run_dir: Path,
        lease_seconds: float = 10.0,
        slots: int = 0,
        lanes: int = 1,
        site: SiteConfig = UNKNOWN,
        sample_seconds: float = 0.0,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        """Start an agent on every host; returns without waiting for them.

        Args:
            transport: starts agents.
            run_dir: an existing folder that all hosts see and no other controller uses.
            lease_seconds: how long ranks run on without their controller.
            slots: slots of each host; this and the next two are as in ``MachineConfig``.
            lanes: slots that share one GPU.
            site: settings of hosts and ranks from the machine's profile.
            sample_seconds: seconds between samples of energy counters; 0 takes none.
            jobs: kind of job -> ``module:function``.
            preload: the modules that a fork server imports.

        Raises:
            JobError: no port can be opened on the transport's address.
        """
        self._transport = transport
        self._kinds = jobs
        self._table = JobTable()
        self._site = site
        terms = Welcome(
            lease_seconds=lease_seconds,
            preload=tuple(preload),
            slots=None if transport.slots else slots,
            lanes=lanes,
            sample_seconds=sample_seconds,
            profile=host_profile_of(site),
        )
        self._registry = HostRegistry(transport, self, run_dir=run_dir, terms=terms)
        self._settle_if_possible()

    def _settle_if_possible(self) -> None:
        if not self._settled and self._registry.settled:
            self._settle()

    # -- Backend ---------------------------------------------------------------------

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts that can be used now.

        Returns:
            Slots of network neighbours next to each other, those of one host by number.
        """
        if self._transport.slots:
            return self._transport.slots
        if self._slots is None:
            names = (*self._transport.hosts, *sorted(self.foreign_hosts))
            hosts = [self._registry.hosts[name] for name in names if name in self._registry.hosts]
            usable = [h for h in hosts if h.joined and not self._table.has_unfinished_jobs(h.name)]
            self._slots = tuple(slot for host in usable for slot in host.slots)
        return self._slots

    @property
    def ends_at(self) -> float:
        """When the allocation of the hosts ends, in seconds since the epoch; infinity if never."""
        return self._transport.ends_at

    @property
    def foreign_hosts(self) -> frozenset[str]:
        """Hosts of other allocations, which stay with their jobs when the controller's ends."""
        return frozenset(filter(self._registry.is_foreign, self._registry.hosts))

    @property
    def settled(self) -> bool:
        """Whether all jobs of a lost controller were adopted or are gone.

        Until then ``start`` accepts jobs, but none of them runs.
        """
        return self._settled

    def start(self, job: Job) -> None:
        """Run a job as soon as its fork servers are ready; returns at once.

        Raises:
            JobError: the kind is unknown, or no port is free.
        """
        assert not self._closed, "the backend is closed"
        assert job.id not in self._table.jobs, f"job {job.id} is running"
        if job.kind not in self._kinds:
            raise JobError(unknown("kind of job", job.kind, self._kinds))
        self._table.jobs[job.id] = tracker = JobTracker.of(job)
        self._advance(tracker)

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Send SIGTERM to a job, and SIGKILL ``grace`` seconds later; ended jobs are ignored."""
        if (job := self._table.jobs.get(job_id)) is not None:
            self._order(job, StopJob(job_id, grace))
            self._give_up_waiting(job)

    def ask(self, job_id: str, request: Request) -> None:
        """Ask rank 0 of a job to ``yield`` at a checkpoint, or to ``stop`` with what it has."""
        if (job := self._table.jobs.get(job_id)) is not None:
            self._order(job, AskRank(job_id, request))

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened, waiting at most ``timeout`` seconds for something to happen.

        Raises:
            JobError: no agent can start on any host.
        """
        deadline = time.monotonic() + timeout
        while not self._closed:
            now = time.monotonic()
            self._registry.run_checks(now)
            self._settle_if_possible()
            self._end_doubtful()
            if self._table or now >= deadline:
                break
            self._registry.receive(min(deadline - now, _TURN_SECONDS))
        events = self._table.take_events()
        if any(event.kind in ("host_joined", "host_lost") for event in events):
            self._slots = None
        return events

    def close(self) -> None:
        """End all own agents and their ranks; events that were not polled yet are lost."""
        if not self._closed:
            self._closed = True
            self._registry.close()

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    def await_hosts(self, seconds: float) -> None:
        """Wait until all hosts of the transport have joined, at most ``seconds``.

        Raises:
            JobError: no agent can start on any host.
        """
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            self._registry.run_checks(now)
            if all(map(self._registry.is_joined, self._transport.hosts)):
                return
            self._registry.receive(0.05)

    # -- orders ----------------------------------------------------------------------

    def _advance(self, job: JobTracker) -> None:
        """Start the ranks on the host of rank 0, and once these run, those on the other hosts."""
        if job.job is None or not self._registry.settled:
            return
        first = job.parts[job.first_host]
        if first.state == "waiting":
            if all(self._check_joined(job, host) for host in job.other_hosts):
                self._start_part(job, job.first_host)
        elif first.state == "started":
            for host in job.hosts_in("waiting"):
                self._start_part(job, host)

    def _check_joined(self, job: JobTracker, name: str) -> bool:
        """Check whether a host of a job has joined; mark one that will not come back as lost."""
        if self._registry.is_joined(name):
            return True
        host = self._registry.hosts.get(name)
        if not self._transport.slots and not (host and host.announced):
            self._lose(job, name, f"host {name} is gone.")
        return False

    def _start_part(self, tracker: JobTracker, name: str) -> None:
        """Start the ranks of one host, if it has joined."""
        job = tracker.job
        assert job is not None
        if not self._check_joined(tracker, name):
            return
        host = self._registry.hosts[name]
        meeting = self._table.choose_meeting(tracker, host.address)
        meet = Rendezvous(meeting.address, meeting.port, host.interface)
        part = tracker.parts[name]
        run = self._registry.address.run
        part.state = "sent"
        watch = str(job.watch.absolute()) if job.watch and 0 in part.ranks else None
        start = StartJob(
            job=job.id,
            target=self._kinds[job.kind],
            spec=job.spec,
            log=str(job.log.absolute()),
            watch=watch,  # rank 0 writes it
            slots=tracker.slots,
            meet=meet,
            ranks=make_rank_starts(job, part.ranks, site=self._site, meet=meet, tag=run),
            other_hosts=tracker.other_hosts,
        )
        self._registry.send(name, start)
        for order in tracker.orders:  # sent to an earlier start that was lost or refused
            self._registry.send(name, order)

    def _order(self, job: JobTracker, order: JobOrder) -> None:
        """Send an order to all hosts that have ranks of a job."""
        job.orders.append(order)
        for host in job.hosts_in("sent", "started"):
            self._registry.send(host, order)

    def _warn_peers(self, job: JobTracker, code: int) -> None:
        """Notify the hosts of a job that ranks ended, which limits the time of their peers."""
        if len(job.parts) > 1 and not job.finished:
            self._order(job, PeerEnded(job.id, code))
            if code:
                self._give_up_waiting(job)

    def _give_up_waiting(self, job: JobTracker) -> None:
        """Start no more ranks of a job, unless it is being adopted and its hosts may rejoin."""
        if job.waits_for_others:
            return
        for host in job.hosts_in("waiting"):
            job.lose(host, _NEVER_STARTED)
        self._end_if_finished(job)

    def _lose(self, job: JobTracker, name: str, error: str | None = None) -> None:
        """Mark the ranks of a job on one host as lost, and end the others, which need them."""
        job.lose(name, error=error)
        job.away.append(name)
        self._warn_peers(job, -9)
        self._end_if_finished(job)

    # -- HostListener: messages ------------------------------------------------------

    def on_message(self, host: Host, message: News) -> None:
        """Handle what an agent reports about jobs, its fork server or its counters.

        Raises:
            ProtocolError: the message is invalid.
        """
        match message:
            case ForkServerReady(import_seconds, threads):
                data = {"import_seconds": import_seconds, "threads": threads, "host": host.name}
                self._table.add_event("ready", None, data)
            case ForkServerLost(code, error):
                data = {"code": code, "error": error, "host": host.name}
                self._table.add_event("zygote_lost", None, data)
            case CounterReport(sample):
                data = {**asdict(sample.rounded()), "host": host.name}
                self._table.add_event("counters", None, data)
            case PortTaken() | JobStarted() | NewRecords() | RankEnded() | JobEnded():
                job = self._table.jobs.get(message.job)
                if job is None or not job.ranks_on(host.name):
                    self._registry.send(host.name, DropJob(message.job))
                else:
                    self._on_job_message(job, host, message)

    def _on_job_message(
        self,
        job: JobTracker,
        host: Host,
        message: PortTaken | JobStarted | NewRecords | RankEnded | JobEnded,
    ) -> None:
        match message:
            case PortTaken():
                self._table.leave_meeting(job)
                job.parts[host.name].state = "waiting"
                self._advance(job)
            case JobStarted():
                job.note_started(host.name, message.pids)
                self._table.announce(job)
                self._advance(job)
            case NewRecords():
                if not 0 <= message.offset < 1 << 63:
                    raise ProtocolError(f"reports records of job {job.id} from nowhere")
                job.offset = message.offset
                self._table.add_records(job, message.records)
            case RankEnded():
                job.note_first(message.rank)
                self._warn_peers(job, message.code)
            case JobEnded():
                job.note_ended(host.name, message)
                self._registry.send(host.name, ForgetJob(job.id))
                self._warn_peers(job, job.worst(host.name))
                self._end_if_finished(job)

    def _end_if_finished(self, job: JobTracker) -> None:
        """Report the end of a finished job, unless a lost host may still turn out as its cause.

        A launcher may notice a lost host long before the host's lease expires. A host counts as
        alive if it sends a message later than one heartbeat interval from now: earlier ones may
        have been on their way already.
        """
        self._table.end_if_finished(job)
        if job.doubtful and job.id not in self._table.doubtful:
            lease_seconds = self._registry.address.lease_seconds
            self._table.doubtful[job.id] = time.monotonic() + heartbeat_seconds(lease_seconds)

    def _end_doubtful(self) -> None:
        """Report the end of failed jobs once all their other hosts are known as alive or lost."""
        for job_id, since in list(self._table.doubtful.items()):
            if (job := self._table.jobs.get(job_id)) is None:
                del self._table.doubtful[job_id]
                continue
            hosts = self._registry.hosts
            alive = {n for n in job.unheard if n in hosts and hosts[n].last_message > since}
            job.unheard -= alive
            self._end_if_finished(job)

    # -- HostListener: hosts ---------------------------------------------------------

    def on_hello(
        self, host: Host, jobs: Sequence[KnownJob], *, known: bool
    ) -> dict[str, int | None]:
        """Return which of an agent's jobs to keep, and where their records continue.

        Args:
            host: host of the agent.
            jobs: jobs that the agent has; the state of their ranks on this host is updated.
            known: whether the same agent has connected before.

        Returns:
            Job id -> bytes of its watched file that were reported; None if it has no such file.

        Raises:
            ProtocolError: a job is invalid.
        """
        brought = {job.job: job for job in jobs}
        if not known:
            return self._adopt(host, brought)
        keep: dict[str, int | None] = {}
        for job in self._table.jobs_on(host.name):
            part = job.parts[host.name]
            if part.state not in ("sent", "started") or not part.ranks:
                continue
            if job.id not in brought:  # the order to start was lost
                part.state = "waiting"
                continue
            keep[job.id] = job.offset
            if brought[job.id].forked and part.state == "sent":
                job.note_started(host.name, brought[job.id].pids)
        return keep

    def _adopt(self, host: Host, brought: Mapping[str, KnownJob]) -> dict[str, int | None]:
        """Adopt the jobs of a lost controller on a host, unless adoption has ended.

        Returns:
            The adopted jobs, in the form that ``on_hello`` returns.
        """
        keep: dict[str, int | None] = {}
        for job_id, known in brought.items():
            job = self._table.jobs.get(job_id)
            if self._settled or (job and job.job is not None):
                continue
            if job is None:
                job = self._table.add_adopted(known)
            job.note_found(host.name, known)
            keep[job_id] = job.offset
        return keep

    def on_joined(self, host: Host) -> None:
        """Report a host as usable, repeat orders that it may have missed, start jobs that wait."""
        self._slots = None
        if not self._transport.slots and not host.announced:
            host.announced = True
            data = {"host": host.name, "slots": [slot.name for slot in host.slots]}
            joined = Event("host_joined", None, time.time(), data)
            self._table.add_after_jobs(host.name, joined)
            self.on_leaving([host.name], host.ends_at)
        for job in self._table.jobs_on(host.name):
            self._complete_adoption(job)
            self._table.announce(job)
            for order in job.orders:  # before ``_advance``: a start sends them itself
                if job.parts[host.name].state in ("sent", "started"):
                    self._registry.send(host.name, order)
            self._advance(job)

    def on_absent(self, absent: Mapping[str, str], *, waiting: int) -> None:
        """Report own hosts that have never had an agent."""
        data = {"hosts": dict(absent), "of": len(self._transport.hosts), "waiting": waiting}
        self._table.add_event("hosts_absent", None, data)

    def on_leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Report when foreign hosts leave, and own ones that leave before ``self.ends_at``.

        An allocation may be cancelled: its processes get SIGTERM, and SIGKILL soon after.
        """
        sooner = ends_at < self.ends_at - _SAME_END_SECONDS
        for name in hosts:
            if math.isfinite(ends_at) and (sooner or self._registry.is_foreign(name)):
                data = {"host": name, "ends_at": ends_at}
                leaving = Event("host_leaving", None, time.time(), data)
                self._table.add_after_jobs(name, leaving)

    def _complete_adoption(self, job: JobTracker) -> None:
        """Report a job as adopted once all its hosts have rejoined."""
        if not job.waits_for_others or job.hosts_in("waiting"):
            return
        job.waits_for_others = False
        data = {"slots": list(job.slots), "host": job.first_host}
        self._table.add_event("adopted", job.id, data)
        self._end_if_finished(job)

    def _settle(self) -> None:
        """End adoption: drop jobs with a missing host, and start the jobs that waited for this."""
        self._settled = True
        for job in list(self._table.jobs.values()):
            if job.waits_for_others:
                for host in job.hosts_in("sent", "started"):
                    self._registry.send(host, DropJob(job.id))
                del self._table.jobs[job.id]
            else:
                for host in job.other_hosts:
                    self._check_joined(job, host)  # marks a host that is gone as lost
                self._advance(job)

    def on_lost(self, host: Host, reason: str) -> None:
        """Report that an agent and all its ranks have ended, and mark their jobs as lost."""
        self._slots = None
        name = host.name
        data = {"host": name, "error": None, "reason": f"host {name} {reason}"}
        self._table.add_event("agent_lost", None, data)
        unfinished = set()
        for job in self._table.jobs_on(name):
            if name in job.hosts_in("sent", "started", *self._states_lost_with_host(job)):
                if name == job.first_host:
                    self._table.add_unsent_records(job)  # before ``_lose`` reports the end
                self._lose(job, name)
                unfinished |= {job.id} & self._table.jobs.keys()
        if host.announced:
            host.announced = False
            lost = Event("host_lost", None, time.time(), data)
            self._table.add_after_jobs(name, lost, unfinished)

    def _states_lost_with_host(self, job: JobTracker) -> tuple[RankState, ...]:
        """Return further states in which ranks are lost together with their host.

        Ranks that wait for the host are not lost if slots are fixed (it gets a new agent) or if
        the job is being adopted (the host may still rejoin).
        """
        return () if self._transport.slots or job.waits_for_others else ("waiting",)
