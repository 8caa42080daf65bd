"""The hosts of a campaign: present, lost, or in quarantine because they fail too often."""

import logging
from collections.abc import Collection

from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching import Event

logger = logging.getLogger(__name__)

FAILURES = 2
"""Different failures after which a host gets no more trials."""


class HostHealth:
    """Follows the hosts of a backend."""

    def __init__(self, event_store: EventStore, dispatch: Dispatch) -> None:
        """Start without hosts; the backend's events bring them."""
        self.event_store, self.dispatch = event_store, dispatch
        self._ends: dict[str, float] = {}
        """When hosts of other allocations are taken from us, in seconds since the epoch."""

    def on_event(self, event: Event) -> bool:
        """Process an event of a host; return whether it was one.

        Slots of hosts that joined are laid out by the controller, for all of them at once.
        """
        if event.kind == "host_joined":
            told = {key: event.data[key] for key in ("host", "slots")}
            self.event_store.append("host_joined", durable=False, **told)
        elif event.kind == "host_leaving":
            self._ends[event.data["host"]] = event.data["ends_at"]
        elif event.kind == "host_lost":
            self._ends.pop(event.data["host"], None)
            self._mark_host_lost(event.data["host"], event.data["reason"])
        return event.kind in ("host_joined", "host_leaving", "host_lost")

    def close_ending_hosts(self, now: float, *, checkpoint: float) -> list[Trial]:
        """Start nothing more on hosts that will soon be taken from us.

        Args:
            now: seconds since the epoch, later by what is kept free before an end.
            checkpoint: seconds that a trial which starts takes to reach a checkpoint.

        Returns:
            Trials that have to yield now.
        """
        gone = {host for host, end in self._ends.items() if end <= now}
        for host, end in self._ends.items():
            if end - now <= checkpoint:
                self.dispatch.pool.close_host(host)
        if not gone:
            return []
        running = self.event_store.state.with_status("running")
        return [t for t in running if t.asked is None and not gone.isdisjoint(t.hosts)]

    def quarantine_failing(self) -> None:
        """Quarantine hosts that failed twice: not by one bad trial, not the last."""
        hosts = self.event_store.state.hosts
        for host, causes in list(hosts.failures.items()):
            if len(causes) < FAILURES or host in hosts.quarantined or host not in hosts.slots:
                continue
            if len(hosts.slots.keys() - hosts.quarantined.keys()) < 2:
                continue
            self.quarantine(host, f"failed {len(causes)} times: {', '.join(sorted(causes))}")

    def quarantine(self, host: str, reason: str) -> None:
        """Give a host no more trials."""
        logger.warning("host %s %s; it gets no more trials.", host, reason)
        self.event_store.append("quarantined", host=host, reason=reason)
        self.dispatch.pool.close_host(host)

    def quarantine_unusable(self, host: str, there: Collection[str], error: str) -> None:
        """Use a host no more on which nothing can start.

        Args:
            host: its id.
            there: all hosts that are there.
            error: why nothing can start.

        Raises:
            JobError: no other can be used.
        """
        if set(there) - {host} <= self.event_store.state.hosts.quarantined.keys():
            raise JobError(error)
        self.quarantine(host, f"can start nothing: {error}")

    def _mark_host_lost(self, host: str, reason: str) -> None:
        times = sum(
            cause.startswith("lost") for cause in self.event_store.state.hosts.failures[host]
        )
        self.event_store.append("host_failed", durable=False, host=host, cause=f"lost {times + 1}")
        self.event_store.append("host_lost", host=host, reason=reason)
        self.dispatch.pool.close_host(host)
