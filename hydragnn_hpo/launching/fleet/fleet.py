"""Run jobs on many hosts: one agent on each, whatever started it."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import JobError, unknown
from hydragnn_hpo.launching.fleet.host import Host
from hydragnn_hpo.launching.fleet.ledger import Ledger
from hydragnn_hpo.launching.fleet.link import start_order
from hydragnn_hpo.launching.fleet.roster import Roster
from hydragnn_hpo.launching.fleet.transport import Transport
from hydragnn_hpo.launching.fleet.work import Work
from hydragnn_hpo.launching.job import JOBS, PRELOAD, Event, EventKind, Job, Slot
from hydragnn_hpo.launching.profile_adapter import UNKNOWN, terms_of
from hydragnn_hpo.launching.rank_environment import Rendezvous
from hydragnn_hpo.launching.wire.ferry import Ferry
from hydragnn_hpo.launching.wire.package import digest

_NEVER_STARTED = -15
"""Exit code told for ranks that were not started because it was pointless (SIGTERM)."""


class Fleet:
    """A ``Backend`` over the agents that a transport starts.

    Create, poll and close it in one thread that lives as long as it.
    """

    _known: tuple[Slot, ...] | None
    """Slots, until they change."""

    def __init__(
        self,
        transport: Transport,
        *,
        run_dir: Path,
        lease_seconds: float = 10.0,
        slots: int = 0,
        lanes: int = 1,
        site: SiteConfig = UNKNOWN,
        shared_files: bool = True,
        sample_seconds: float = 0.0,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        """Have an agent started on every host; returns at once.

        Args:
            transport: starts agents.
            run_dir: an existing folder that this controller alone uses.
            lease_seconds: how long ranks outlive the last word of their controller.
            slots: as ``lanes`` and ``sample_seconds`` in ``MachineConfig``.
            lanes: slots that share one GPU.
            site: what the machine's profile says of hosts and ranks.
            shared_files: whether hosts see the run directory; if not, files go with jobs.
            sample_seconds: between what hosts tell of their counters.
            jobs: kind of job -> ``module:function``.
            preload: the modules that a zygote imports.

        Raises:
            JobError: we cannot listen on the transport's address.
        """
        self._transport, self._jobs, self._ledger, self._site = transport, jobs, Ledger(), site
        self._known, self._closed, self._settled = None, False, False
        terms: dict[str, Any] = {"slots": None if transport.slots else slots, "lanes": lanes}
        terms |= {"lease_seconds": lease_seconds, "sample_seconds": sample_seconds}
        terms |= {"preload": list(preload), **terms_of(site)}
        self._ferry = None if shared_files else Ferry(run_dir, lambda *it: self._roster.send(*it))
        self._roster = Roster(transport, self, run_dir=run_dir, terms=terms)
        if self._roster.settled:
            self._settle()

    # -- Backend ---------------------------------------------------------------------

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts that are there now, neighbours in the network side by side."""
        if self._transport.slots:
            return self._transport.slots
        if self._known is None:
            hosts = [self._roster.hosts[n] for n in (*self._transport.hosts, *sorted(self.guests))]
            usable = [h for h in hosts if h.joined and not self._ledger.is_leaving(h.name)]
            self._known = tuple(slot for host in usable for slot in host.slots)
        return self._known

    @property
    def ends_at(self) -> float:
        """When the hosts are taken from us, in seconds since the epoch; infinity if never."""
        return self._transport.ends_at

    @property
    def guests(self) -> frozenset[str]:
        """Hosts of other allocations, which stay when ours ends, with what runs there."""
        return frozenset(filter(self._roster.is_guest, self._roster.hosts))

    @property
    def settled(self) -> bool:
        """Say whether all jobs of a lost controller were adopted or are gone.

        Until then jobs are taken on, but none is started.
        """
        return self._settled

    def start(self, job: Job) -> None:
        """Run a job as soon as a zygote is warm; returns at once.

        Raises:
            JobError: the kind is unknown, or no port is free.
        """
        assert not self._closed, "the backend is closed"
        assert job.id not in self._ledger.works, f"job {job.id} is running"
        if job.kind not in self._jobs:
            raise JobError(unknown("kind of job", job.kind, self._jobs))
        self._ledger.works[job.id] = work = Work.of(job)
        self._advance(work)

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Ask a job to end by SIGTERM, force it after ``grace`` seconds; ended ones are ignored."""
        if (work := self._ledger.works.get(job_id)) is not None:
            self._order(work, {"op": "stop", "job": job_id, "grace": grace})
            self._lose_waiting(work)

    def ask(self, job_id: str, wish: str) -> None:
        """Ask rank 0 of a job to ``yield`` at a checkpoint, or to ``stop`` with what it has."""
        if (work := self._ledger.works.get(job_id)) is not None:
            self._order(work, {"op": "ask", "job": job_id, "wish": wish})

    def poll(self, timeout: float) -> list[Event]:
        """Give what happened, waiting at most ``timeout`` seconds for something to happen.

        Raises:
            JobError: no agent can start on any host.
        """
        deadline = time.monotonic() + timeout
        while not self._closed:
            now = time.monotonic()
            self._roster.look(now)
            if self._ferry:
                self._ferry.pump()
            if not self._settled and self._roster.settled:
                self._settle()
            if self._ledger or now >= deadline:
                break
            self._roster.lines.wait(min(deadline - now, 0.25))
        told = self._ledger.take()
        if any(event.kind in ("host_joined", "host_lost") for event in told):
            self._known = None
        return told

    def close(self) -> None:
        """End everything; no process is left. What was not polled yet is lost."""
        if not self._closed:
            self._closed = True
            self._roster.close()

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    def await_hosts(self, seconds: float) -> None:
        """Wait until all hosts that the transport names have joined, but not for ever.

        Raises:
            JobError: no agent can start on any host.
        """
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            self._roster.look(now)
            if all(map(self._roster.is_joined, self._transport.hosts)):
                return
            self._roster.lines.wait(0.05)

    # -- orders ----------------------------------------------------------------------

    def _advance(self, work: Work) -> None:
        """Start what can be started: the host of rank 0, and once its ranks live, the others."""
        if work.job is None or not self._roster.settled:
            return
        first = work.parts[work.first_host]
        if first.state == "waiting":
            self._start_part(work, work.first_host)
        elif first.state == "started":
            for host in work.hosts("waiting"):
                self._start_part(work, host)

    def _start_part(self, work: Work, name: str) -> None:
        """Start the ranks of one host; one whose line is cut may come back, or is told as lost."""
        assert work.job is not None
        host = self._roster.hosts.get(name)
        if host is None or not host.joined:
            if not self._transport.slots and not (host and host.announced):
                self._lose(work, name, f"host {name} is not there any more.")
            return
        address, port, _ = self._ledger.meet(work, host.address, host.interface)
        part, meet = work.parts[name], Rendezvous(address, port, host.interface)
        target, tag = self._jobs[work.job.kind], self._roster.plate.tag
        order = start_order(work.job, target, ranks=part.ranks, meet=meet, tag=tag, site=self._site)
        own_lease = None if self._transport.outlives else str(work.job.lease.absolute())
        part.state = "sent"
        if self._ferry:
            order = self._ferry.order(name, order, work.job)
        self._tell(name, {**order, "lease": own_lease})
        for message in work.orders:  # an earlier start was lost, or found its port taken
            self._tell(name, message)

    def _tell(self, name: str, message: dict[str, Any]) -> None:
        """Tell a host about a job; behind the files that are on their way there."""
        (self._ferry or self._roster).send(name, message)

    def _order(self, work: Work, message: dict[str, Any]) -> None:
        """Tell all hosts that have ranks of a job something about it."""
        work.orders.append(message)
        for host in work.hosts("sent", "started"):
            self._tell(host, message)

    def _warn_peers(self, work: Work, code: int) -> None:
        """Let the time run for ranks whose peer on another host ended."""
        if len(work.parts) > 1 and not work.over:
            self._order(work, {"op": "peer_ended", "job": work.id, "code": code})
            if code:
                self._lose_waiting(work)

    def _lose_waiting(self, work: Work) -> None:
        """Start no more ranks of a job; those of an adopted one may be on their way to us."""
        if work.waits_for_others:
            return
        for host in work.hosts("waiting"):
            work.lose(host, _NEVER_STARTED)
        self._ledger.end_if_over(work)

    def _lose(self, work: Work, name: str, error: str | None = None) -> None:
        """Note that ranks of a job are gone; the others have no use any more."""
        work.lose(name, error=error)
        work.away.append(name)
        self._warn_peers(work, -9)
        self._ledger.end_if_over(work)

    # -- news of jobs ----------------------------------------------------------------

    def told(self, host: Host, message: dict[str, Any]) -> None:
        """Hear news of a job or zygote, as ``protocol.py`` lists them."""
        name, job_id, when = message.pop("event"), message.pop("job"), message.pop("time")
        if job_id is None:
            kind: EventKind = name if name in ("ready", "counters") else "zygote_lost"
            self._ledger.tell(kind, None, when, {**message, "host": host.name})
            return
        work = self._ledger.works.get(job_id)
        if work is None or host.name not in work.parts:
            self._roster.send(host.name, {"op": "drop", "job": job_id})
            return
        match name:
            case "taken":
                self._move(work, host)
            case "started":
                work.note_started(host.name, message["pids"])
                self._ledger.announce(work, when)
                self._advance(work)
            case "records":
                work.offset = message["offset"]
                self._ledger.record(work, message["records"], when)
            case "rank_ended":
                work.note_first(message["rank"])
                self._warn_peers(work, message["code"])
            case "cargo" if self._ferry:
                self._ferry.take(host.name, message)
            case "ended":
                self._end_part(work, host, message)

    def _move(self, work: Work, host: Host) -> None:
        """Meet at another port: somebody listens at that one."""
        self._ledger.leave_meeting(work)
        work.parts[host.name].state = "waiting"
        self._advance(work)

    def _end_part(self, work: Work, host: Host, message: dict[str, Any]) -> None:
        self._roster.send(host.name, {"op": "forget", "job": work.id})
        work.note_ended(host.name, message)
        self._warn_peers(work, work.worst(host.name))
        self._ledger.end_if_over(work)

    # -- news of hosts ---------------------------------------------------------------

    def greeted(self, host: Host, jobs: Sequence[dict[str, Any]], *, known: bool) -> dict[str, Any]:
        """Hear what jobs an agent brings, and say which of them to keep."""
        brought = {told["job"]: told for told in jobs}
        if self._ferry:
            self._ferry.meet(host.name, lambda: host.channel.unsent if host.channel else 0)
            if host.code != digest():
                self._ferry.bring_code(host.name)
        if not known:
            return self._adopt(host, brought)
        keep = {}
        for work in self._ledger.on(host.name):
            part = work.parts[host.name]
            if part.state not in ("sent", "started"):
                continue
            if work.id not in brought:  # the order was lost with the line
                part.state = "waiting"
                continue
            keep[work.id] = work.offset
            if brought[work.id]["started"] and part.state == "sent":
                work.note_started(host.name, brought[work.id]["pids"])
        return keep

    def _adopt(self, host: Host, brought: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Take on jobs of a lost controller, if it is not too late for them."""
        keep = {}
        for job_id, told in brought.items():
            work = self._ledger.works.get(job_id)
            if self._settled or (work and work.job is not None):
                continue
            if work is None:
                self._ledger.works[job_id] = work = Work.found(told)
                self._ledger.pools[told["meet"][0]].reserve(told["meet"][1])
            work.note_found(host.name, told)
            keep[job_id] = work.offset
        return keep

    def joined(self, host: Host) -> None:
        """Hear that a host can be used: start what waits for it, repeat what it may not know."""
        self._known = None
        news = {"host": host.name, "slots": [slot.name for slot in host.slots]}
        event = Event("host_joined", None, time.time(), news)
        if not self._transport.slots and not host.announced:
            host.announced = True
            self._ledger.later(host.name, event)
            self.leaving([host.name], host.ends_at)
        for work in self._ledger.on(host.name):
            self._complete(work)
            self._ledger.announce(work, time.time())
            for message in work.orders:
                if work.parts[host.name].state in ("sent", "started"):
                    self._roster.send(host.name, message)
            self._advance(work)

    def leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Hear when hosts are taken from us: our own are when ``ends_at`` says."""
        for name in hosts:
            if math.isfinite(ends_at) and self._roster.is_guest(name):
                data = {"host": name, "ends_at": ends_at}
                self._ledger.later(name, Event("host_leaving", None, time.time(), data))

    def _complete(self, work: Work) -> None:
        """Tell that a job was adopted once all its hosts have come back."""
        if not work.waits_for_others or work.hosts("waiting"):
            return
        work.waits_for_others = False
        told = {"slots": list(work.slots), "host": work.first_host}
        self._ledger.tell("adopted", work.id, time.time(), told)
        self._ledger.end_if_over(work)

    def _settle(self) -> None:
        """Give up adopting: what did not come back whole is ended, what waited is started."""
        self._settled = True
        for work in list(self._ledger.works.values()):
            if work.waits_for_others:
                for host in work.hosts("sent", "started"):
                    self._roster.send(host, {"op": "drop", "job": work.id})
                del self._ledger.works[work.id]
            else:
                self._advance(work)

    def lost(self, host: Host, reason: str) -> None:
        """Hear that nothing of an agent is alive any more: all its ranks have ended."""
        self._known = None
        now, name = time.time(), host.name
        lost = {"host": name, "error": None, "reason": f"host {name} {reason}"}
        self._ledger.tell("agent_lost", None, now, lost)
        owed = set()
        for work in self._ledger.on(name):
            if name in work.hosts("sent", "started", *self._forsaken(work)):
                if name == work.first_host:
                    self._ledger.record_rest(work)
                    self._ledger.end_lease(work)
                self._lose(work, name)
                owed |= {work.id} & self._ledger.works.keys()
        if host.announced:
            host.announced = False
            self._ledger.later(name, Event("host_lost", None, now, lost), owed)

    def _forsaken(self, work: Work) -> tuple[str, ...]:
        """Give the states of ranks that wait for a host in vain once it is lost.

        Where slots are fixed another agent comes; hosts of an adopted job may be on their way.
        """
        return () if self._transport.slots or work.waits_for_others else ("waiting",)
