"""Which jobs run, and what is to be told about them: each thing once and in order."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from hydragnn_hpo.launching.fleet.work import Work
from hydragnn_hpo.launching.host_network import PortPool
from hydragnn_hpo.launching.job import Event, EventKind
from hydragnn_hpo.launching.jsonl_tail import JsonlTail


class Ledger:
    """Jobs in progress, the ports where they meet, and events nobody has taken yet."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.works: dict[str, Work] = {}
        self.pools: dict[str, PortPool] = defaultdict(lambda: PortPool(os.getpid()))
        self._events: list[Event] = []
        self._leaving: dict[str, tuple[set[str], list[Event]]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[Event]:
        """Give the events, once."""
        told, self._events = self._events, []
        return told

    def tell(self, kind: EventKind, job: str | None, when: float, data: dict[str, Any]) -> None:
        """Note an event."""
        self._events.append(Event(kind, job, when, data))

    def on(self, host: str) -> list[Work]:
        """Give the jobs that have, had or will have ranks on a host."""
        return [work for work in self.works.values() if host in work.parts]

    def meet(self, work: Work, address: str, interface: str) -> tuple[str, int, str]:
        """Choose where the ranks of a job meet, if that is not chosen yet.

        Raises:
            JobError: no port is free at this address.
        """
        if work.meet is None:
            work.meet = (address, self.pools[address].take(), interface)
        return work.meet

    def leave_meeting(self, work: Work) -> None:
        """Let the port of a job rest."""
        if work.meet is not None:
            self.pools[work.meet[0]].give_back(work.meet[1])
            work.meet = None

    def announce(self, work: Work, when: float) -> None:
        """Tell that a job has started once all its ranks have, and what it wrote meanwhile."""
        if work.announced or work.waits_for_others or not work.started:
            return
        work.announced = True
        if work.job is not None:
            self.tell("started", work.id, when, {"pids": work.pids()})
        held, work.held = work.held, []
        self.record(work, held, when)

    def record(self, work: Work, records: Sequence[dict[str, Any]], when: float) -> None:
        """Tell records of a job, or keep them until it is told that it started."""
        if work.announced:
            self._events += [Event("record", work.id, when, record) for record in records]
        else:
            work.held += records

    def record_rest(self, work: Work) -> None:
        """Read what a job wrote and its agent had no time to tell."""
        if work.watch is None:
            return
        tail = JsonlTail(work.watch, work.offset or 0)
        before = -1
        while tail.offset != before:
            before = tail.offset
            self.record(work, tail.read(), time.time())
        work.offset = tail.offset

    def end_lease(self, work: Work) -> None:
        """Remove the lease that an agent on this computer kept."""
        if work.job is not None:
            with contextlib.suppress(OSError):
                work.job.lease.unlink()

    def end_if_over(self, work: Work) -> None:
        """Tell the end of a job whose ranks are gone everywhere, once."""
        if not work.over or work.id not in self.works or work.waits_for_others:
            return
        del self.works[work.id]
        now = time.time()
        work.announced, held, work.held = True, work.held, []
        self.record(work, held, now)
        self.tell("ended", work.id, now, work.result())
        self.leave_meeting(work)
        for name in list(self._leaving):
            jobs, events = self._leaving[name]
            jobs.discard(work.id)
            if not jobs:
                del self._leaving[name]
                self._events += events

    def is_leaving(self, host: str) -> bool:
        """Say whether jobs of an earlier life of a host have not ended yet."""
        return host in self._leaving

    def later(self, host: str, event: Event, jobs: Collection[str] = ()) -> None:
        """Tell something about a host once these and all earlier jobs of its have ended."""
        if jobs:
            self._leaving.setdefault(host, (set(), []))[0].update(jobs)
        if host in self._leaving:
            self._leaving[host][1].append(event)
        else:
            self._events.append(event)
