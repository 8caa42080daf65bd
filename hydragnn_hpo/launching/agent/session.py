"""What an agent has with its controller: a line, terms, and a lease that hangs on both."""

import os
import time
from collections.abc import Callable
from typing import Any

import hydragnn_hpo
from hydragnn_hpo.launching.host_network import interface_of
from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.dialer import Dialer
from hydragnn_hpo.launching.wire.package import digest
from hydragnn_hpo.launching.wire.protocol import BEATS
from hydragnn_hpo.walltime import WallTime

_BACKLOG = 1 << 20
"""Bytes that may wait for the controller to read; further records wait in their files."""


class Session:
    """Speaks with whoever is the controller now; what is said to nobody is lost."""

    def __init__(self, host: str, life: str, dialer: Dialer) -> None:
        """Begin without a controller; see ``Agent`` for the arguments."""
        self._who = {"host": host, "life": life, "pid": os.getpid()}
        self._dialer = dialer
        self._greeted = self._beaten = self._valid_until = 0.0
        self.channel: Channel | None = None
        self.ends_at = WallTime.of(os.environ).known
        """When this host is taken from us, in seconds since the epoch, if anybody says."""
        self.terms: dict[str, Any] = {}
        self.code = digest() if dialer.inline else ""
        """Of the package that ranks of ours use; it is only asked for where files are not shared:
        thousands of hosts are not to read all modules once more."""
        self.joined = False
        """Whether a controller has told its terms since we dialled it."""

    @property
    def lease_seconds(self) -> float:
        """Give the length of a lease."""
        return float(self.terms.get("lease_seconds", 10.0))

    @property
    def unsent(self) -> int:
        """Bytes that wait for the controller to read."""
        return 0 if self.channel is None else self.channel.unsent

    @property
    def crowded(self) -> bool:
        """Say whether so much waits to be heard that the rest had better wait elsewhere."""
        return self.channel is not None and self.channel.unsent > _BACKLOG

    def reach(self, jobs: Callable[[], list[dict[str, Any]]]) -> bool:
        """See that we speak with the controller in charge; False once there is no hope for one.

        Args:
            jobs: gives what it must know of the jobs that we have.
        """
        now = time.monotonic()
        if self.channel is not None:
            self._dialer.connected(now)
            if self._is_past(now):
                self.channel.close()
            if not self.channel.closed:
                return True
        self.joined, self.channel = False, None
        if self._dialer.hopeless(now):
            return False
        if (channel := self._dialer.dial(now)) is not None:
            self._greeted = time.monotonic()
            hello = {"event": "hello", "job": None, "time": time.time(), "jobs": jobs()}
            channel.send(
                hello | self._who | {"version": hydragnn_hpo.__version__, "code": self.code}
            )
            self.channel = channel
        return True

    def _is_past(self, now: float) -> bool:
        """Say whether the controller we speak with does not answer, or has a successor."""
        if not (self.joined and self.terms["fenced"]):
            return now - self._greeted > 6 * self.lease_seconds and not self.joined
        if now >= self._valid_until:
            return True
        return self._valid_until - now < self.lease_seconds / 2 and self._dialer.newer()

    def receive(self) -> list[dict[str, Any]]:
        """Give the orders that have come."""
        return self.channel.receive() if self.channel else []

    def tell(self, event: str, job: str | None = None, **data: Any) -> None:
        """Tell news."""
        if self.channel and self.joined:
            self.channel.send({"event": event, "job": job, "time": time.time(), **data})

    def tell_slots(self, slots: list[dict[str, Any]]) -> None:
        """Tell what there is to run on, where, and how long."""
        if self.channel is not None:
            address, interface = interface_of(self.terms["interfaces"], self.channel)
            where: dict[str, Any] = {"address": address, "interface": interface}
            self.tell("slots", slots=slots, ends_at=self.ends_at, **where)

    def join(self, terms: dict[str, Any]) -> None:
        """Work under new terms; that they came proves that the controller lived when we called."""
        self.terms, self.joined = terms, True
        self.extend(self._greeted)

    def extend(self, at: float) -> None:
        """Hold the lease from a moment on at which the controller lived, as its answer proves."""
        self._valid_until = max(self._valid_until, at + self.lease_seconds)

    def until(self) -> float:
        """Give the end of all leases, in monotonic time.

        An agent that cannot outlive its controller needs no word from it.
        """
        fenced = self.terms.get("fenced", True)
        return self._valid_until if fenced else time.monotonic() + self.lease_seconds

    def beat(self, now: float) -> None:
        """Show that we live, now and then."""
        if now - self._beaten >= self.lease_seconds / BEATS:
            self._beaten = now
            if self.channel and not self.channel.unsent:
                self.tell("beat", at=now)
