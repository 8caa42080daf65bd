"""The hosts of a fleet: which have an agent, since when one is silent, and when to start another.

A host is identified by its agent's id, never by a name or an address, which virtual hosts share.
Hosts of other allocations are foreign: their agents connect like all others, but are started by a
process of their own allocation.
"""

import math
import re
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

import hydragnn_hpo
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.job import ABSENT_SECONDS, Slot
from hydragnn_hpo.launching.link import (
    BrokenPeer,
    ControllerAddress,
    ControllerLink,
    find_keys,
    read_address,
    remove_address,
)
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.protocol import (
    VERSION,
    Farewell,
    Goodbye,
    Heartbeat,
    Hello,
    HostsLeave,
    HostSlots,
    KnownJob,
    Lease,
    News,
    Order,
    ProtocolError,
    Welcome,
)
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews, Transport

HOST_NAMES = r"[\w.-]+(@[\w.-]+)?"
"""Ids of hosts: ``HOST``, or ``HOST@ALLOCATION`` where several allocations serve one campaign,
since a host may be in two of them."""

MARGIN_SECONDS = 2.0
"""Seconds that ranks and agents may need to end after a lease has expired."""

_START_SECONDS = 120.0
"""Time for an agent to start and connect, on a busy host, over a busy file system."""

_TRIES = 3
"""Failed starts in a row after which a host counts as hopeless."""

_LONGEST_PAUSE = 60.0
_DOUBLINGS = 6
"""Most doublings of the pause between starts; a host may be down for days."""

_OTHER_FILES = 512
"""Files that the controller opens in addition to connections to hosts."""

_CLOSING_SECONDS = 5.0


def margin(lease_seconds: float) -> float:
    """Return the seconds after the end of a lease by which all ranks have certainly ended."""
    return MARGIN_SECONDS + lease_seconds / 4


def raise_file_limit(hosts: int) -> None:
    """Raise the limit of open files to one connection per host and ``_OTHER_FILES`` more.

    Raises:
        JobError: the system does not allow it.
    """
    wanted = hosts + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise JobError(
            f"{hosts} hosts need {wanted} open files, {hard} are allowed; raise the limit of "
            "'ulimit -n'."
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass
class Host:
    """One host as the controller knows it."""

    name: str
    peer: bytes = b""
    """Id of the connection to its agent; empty while there is none."""

    life: str = ""
    """Life (unique id of a process) of its current or last agent; empty once that agent and all
    that it started have certainly ended."""

    ended_life: str = ""
    """The last life that was given up; it is refused while another agent is starting."""

    joined: bool = False
    """Whether its agent is connected and has reported its slots."""

    accounted: bool = False
    """Whether it has joined once, or was reported as absent."""

    announced: bool = False
    """Whether ``host_joined`` was reported, and ``host_lost`` was not since."""

    slots: tuple[Slot, ...] = ()
    address: str = ""
    interface: str = ""
    ends_at: float = math.inf
    """When its allocation ends, in seconds since the epoch."""

    last_message: float = 0.0
    last_lease: float = 0.0
    """When its last lease was granted, in monotonic time."""

    tries: int = 0
    starting: bool = False
    """Whether an agent is being started."""

    next_start: float = -math.inf
    """When to start an agent there, in monotonic time; infinity while one is there."""

    absence: str = ""
    """Why no agent is there, as the end of a sentence that begins with the host."""


class HostListener(Protocol):
    """Receiver of a registry's reports."""

    def on_hello(
        self, host: Host, jobs: Sequence[KnownJob], *, known: bool
    ) -> dict[str, int | None]:
        """Return which of an agent's jobs to keep, and where to continue reading their records.

        Args:
            host: host of the agent.
            jobs: jobs that the agent has.
            known: whether the same agent was connected before.

        Returns:
            Job -> bytes of its watched file that were reported; None where no file is watched.
        """

    def on_joined(self, host: Host) -> None:
        """Note that a host can be used."""

    def on_message(self, host: Host, message: News) -> None:
        """Handle an agent's report about jobs, its fork server or its counters."""

    def on_lost(self, host: Host, reason: str) -> None:
        """Note that an agent and all that it started have ended."""

    def on_absent(self, absent: Mapping[str, str], *, waiting: int) -> None:
        """Note which own hosts have never had an agent, although others have.

        Args:
            absent: host -> end of a sentence that begins with it.
            waiting: number of own hosts whose agents may still come.
        """

    def on_leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Note when the allocation of some hosts ends, in seconds since the epoch."""


class HostRegistry:
    """Keeps an agent on every host, as far as that is possible."""

    def __init__(
        self, transport: Transport, listener: HostListener, *, run_dir: Path, terms: Welcome
    ) -> None:
        """Listen for agents, and start them.

        Args:
            transport: starts the agents.
            listener: receives reports of events.
            run_dir: folder where agents find the controller's address and the keys.
            terms: welcome message of each agent; ``epoch`` and ``fenced`` are filled in.

        Raises:
            JobError: no port can be opened.
            StorageError: address or keys cannot be written.
        """
        self.transport, self.run_dir = transport, run_dir
        self.hosts: dict[str, Host] = {}
        self._listener = listener
        self._lease = terms.lease_seconds
        self._peers: dict[bytes, Host] = {}
        before = read_address(run_dir)
        self._link = ControllerLink(transport.address, find_keys(run_dir))
        self.address = self._publish_address(before.epoch + 1 if before else 1)
        self._terms = msgspec.structs.replace(
            terms, epoch=self.address.epoch, fenced=transport.outlives
        )
        now = time.monotonic()
        orphans = before.lease_seconds if before and transport.outlives else 0.0
        self._start_from = now + orphans
        self._settled_by = now + orphans + margin(orphans) if orphans else now
        alone = before is None or not before.has_foreign_hosts
        self._all_known = alone and (before is None or before.allocation == transport.allocation)
        self._own: Sequence[str] = ()
        self._own_names: frozenset[str] = frozenset()
        self._next_checks = now
        self._any_joined = False
        self._absent_from = math.inf
        self.run_checks(now)

    def _publish_address(self, epoch: int) -> ControllerAddress:
        """Publish the address for all agents, including those that earlier controllers started."""
        address = ControllerAddress(
            address=self.transport.address,
            port=self._link.port,
            epoch=epoch,
            lease_seconds=self._lease,
            run=run_tag(self.run_dir),
            allocation=self.transport.allocation,
        )
        address.write(self.run_dir)
        return address

    # -- what is known ---------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether no unknown rank of a lost controller can still be alive.

        This is so once all its hosts have rejoined, or all their leases have certainly expired.
        """
        if self._settled_by == -math.inf:
            return True
        all_joined = self.hosts and all(host.joined for host in self.hosts.values())
        if (all_joined and self._all_known) or time.monotonic() >= self._settled_by:
            self._settled_by = -math.inf
            return True
        return False

    def is_joined(self, name: str) -> bool:
        """Check whether the agent of a host is connected and has reported its slots."""
        return name in self.hosts and self.hosts[name].joined

    def is_foreign(self, name: str) -> bool:
        """Check whether a host belongs to another allocation than the controller's."""
        return bool(self.transport.allocation) and name not in self._own_names

    def send(self, name: str, message: Order) -> None:
        """Send an order to a host; after a lost connection the listener repeats it."""
        host = self.hosts.get(name)  # None: only an agent names it, in a job of a lost controller
        if host is not None and host.peer:
            self._link.send(host.peer, message)

    # -- time ------------------------------------------------------------------------

    def run_checks(self, now: float) -> None:
        """Find silent hosts and start agents that are due; at most a few times per second.

        Raises:
            JobError: no agent can start on any host.
        """
        if now < self._next_checks:
            return
        self._next_checks = now + max(0.05, min(0.5, self._lease / 20))
        if self.transport.hosts != self._own:
            self._own = self.transport.hosts
            self._own_names = frozenset(self._own)
            raise_file_limit(len(self._own))
            for name in self._own:
                self.hosts.setdefault(name, Host(name))
        self.receive(0.0)  # before looking for silent hosts: this process may have been suspended
        for news in self.transport.poll():
            self._on_transport_news(news, now)
        self._find_silent(now)
        self._find_absent(now)
        if now >= self._start_from:
            self._start_agents(now)

    def _find_silent(self, now: float) -> None:
        """Mark silent hosts as suspect, and as lost once their leases have expired."""
        hosts = self.hosts.values()
        timeout = self._lease * (1 if self.transport.outlives else 3)
        for host in [h for h in hosts if h.peer and now - h.last_message > timeout]:
            self._mark_suspect(host, f"was silent for {now - host.last_message:.0f} s")
        if not self.transport.outlives:
            return
        expired = now - self._lease - margin(self._lease)
        for host in [h for h in hosts if h.life and not h.peer and h.last_lease < expired]:
            self._mark_lost(host, f"{host.absence}, and its lease has expired")

    def _find_absent(self, now: float) -> None:
        """Report hosts that never had an agent: after some failed starts, or after some time."""
        if self.transport.slots or self._absent_from == math.inf:
            return
        hosts = [self.hosts[name] for name in self._own if not self.hosts[name].accounted]
        failed = {host.name for host in hosts if host.tries >= _TRIES and not host.starting}
        absent: dict[str, str] = {}
        for host in hosts:
            if host.name in failed or now > self._absent_from:
                host.accounted = True
                silent = f"has no agent yet, {self.transport.find_last_words(host.name)}"
                absent[host.name] = host.absence or silent
        if absent:
            self._listener.on_absent(absent, waiting=len(hosts) - len(failed))

    def _start_agents(self, now: float) -> None:
        """Start an agent on each own host whose next start is due."""
        due = [host for host in map(self.hosts.__getitem__, self._own) if host.next_start <= now]
        if not due:
            return
        for host in due:
            host.tries += 1
            host.starting = True
            host.next_start = now + _START_SECONDS
        call = AgentCall(self.run_dir, self.address.run, self.address.epoch)
        self.transport.start([host.name for host in due], call)

    def _on_transport_news(self, news: HostNews, now: float) -> None:
        """Handle a transport's report that an agent is gone or could not be started."""
        host = self.hosts.get(news.host)
        if host is None:
            return
        host.starting = False
        if news.kind == "gone" and host.life:
            self._mark_lost(host, news.reason)
            return
        if host.tries and not host.peer:
            host.absence = news.reason
            doubled = 2.0 ** min(host.tries - 1, _DOUBLINGS) - 1.0
            host.next_start = now + min(_LONGEST_PAUSE, doubled)
            if self._is_hopeless():
                raise JobError(f"no agent can start: host {host.name} {news.reason}; see its log.")

    def _is_hopeless(self) -> bool:
        """Check whether no agent will ever come.

        If any agent has joined, its host may come back: a switch or the scheduler may be down for
        minutes, and callers decide how long to wait. Where slots are fixed in advance this does not
        hold, as a host that is gone is never reported.
        """
        if self._any_joined and not self.transport.slots:
            return False
        possible = [h for h in self.hosts.values() if h.life or h.name in self._own_names]
        return all(host.tries >= _TRIES and not host.life for host in possible)

    # -- messages --------------------------------------------------------------------

    def receive(self, seconds: float) -> None:
        """Handle the messages that have come, waiting at most ``seconds`` for the first."""
        for peer, message in self._link.receive(seconds):
            host = self._peers.get(peer)
            try:
                if isinstance(message, BrokenPeer):
                    if host:
                        self._mark_suspect(host, message.reason)
                elif host:
                    self._handle(host, message)
                else:
                    self._begin_conversation(peer, message)
            except ProtocolError as error:
                self._link.send(peer, Goodbye(f"it {error}"))
                self._link.forget(peer)
                if host:
                    self._mark_suspect(host, str(error))

    def _begin_conversation(self, peer: bytes, message: News) -> None:
        """Handle the first message of a connection: accept the agent or raise ``ProtocolError``."""
        if isinstance(message, HostsLeave):
            self._note_leaving(message)
            self._link.forget(peer)
            return
        if not isinstance(message, Hello):
            raise ProtocolError("does not begin with a greeting")
        host = self._find_host(message)
        if message.protocol != VERSION or message.version != hydragnn_hpo.__version__:
            host.absence = f"has version {message.version} of hydragnn-hpo"
            raise ProtocolError(host.absence)
        if message.run != self.address.run:
            raise ProtocolError("sees the run directory under another path")
        if host.starting and message.life == host.ended_life:
            raise ProtocolError("was given up, another agent is on its way")
        self._any_joined = True
        known = message.life == host.life
        if host.life and not known:  # a new agent first ends what the old one left
            self._mark_lost(host, f"{host.absence or 'had an agent'}, which was replaced")
        self._disconnect(host)
        host.life = message.life
        host.peer = peer
        host.last_message = host.last_lease = time.monotonic()
        host.starting = False
        host.next_start = math.inf
        self._peers[peer] = host
        if self.is_foreign(host.name) and not self.address.has_foreign_hosts:
            self._note_foreign_hosts()
        keep = self._listener.on_hello(host, message.jobs, known=known)
        self._link.send(peer, msgspec.structs.replace(self._terms, keep=keep))

    def _find_host(self, hello: Hello) -> Host:
        """Return the host of an agent; an unknown host is foreign, if foreign hosts may join."""
        if hello.host not in self.hosts:
            if not self.transport.allocation or not re.fullmatch(HOST_NAMES, hello.host):
                raise ProtocolError("is on no host of this run")
            raise_file_limit(len(self.hosts) + 1)
            self.hosts[hello.host] = Host(hello.host, next_start=math.inf)
        return self.hosts[hello.host]

    def _note_leaving(self, message: HostsLeave) -> None:
        """Note when the hosts of a foreign allocation leave."""
        leaving = [self.hosts[n] for n in message.hosts if n in self.hosts and self.is_foreign(n)]
        for host in leaving:
            host.ends_at = min(host.ends_at, message.ends_at)
        announced = [host.name for host in leaving if host.announced]
        self._listener.on_leaving(announced, message.ends_at)

    def _note_foreign_hosts(self) -> None:
        """Write down for a successor that not all hosts here are of one allocation."""
        before = self.address
        self.address = msgspec.structs.replace(before, has_foreign_hosts=True)
        if read_address(self.run_dir) == before:  # else a successor is there already
            self.address.write(self.run_dir)

    def _handle(self, host: Host, message: News) -> None:
        """Handle a message of a host whose agent is known."""
        host.last_message = time.monotonic()
        match message:
            case Heartbeat():
                host.last_lease = host.last_message
                received = self._link.received(host.peer)
                self._link.send(host.peer, Lease(message.at, received))
            case HostSlots():
                self._join(host, message)
            case Farewell():
                self._mark_lost(host, "ended its agent")
            case Hello():
                raise ProtocolError("greets twice")
            case _:
                self._listener.on_message(host, message)

    def _join(self, host: Host, told: HostSlots) -> None:
        """Record the slots that a host offers, and report that it has joined."""
        if len({slot.name for slot in told.slots if slot.host == host.name}) < len(told.slots):
            raise ProtocolError("offers slots of another host, or one twice")
        host.slots, host.address, host.interface = told.slots, told.address, told.interface
        before = host.ends_at
        host.ends_at = math.inf if told.ends_at is None else told.ends_at
        if host.announced and host.ends_at < before:
            self._listener.on_leaving([host.name], host.ends_at)
        host.joined, host.tries, host.absence = True, 0, ""
        host.accounted = True
        latest = max(time.monotonic(), self._start_from) + ABSENT_SECONDS
        self._absent_from = min(self._absent_from, latest)
        self._listener.on_joined(host)

    def _disconnect(self, host: Host) -> None:
        if host.peer:
            self._peers.pop(host.peer, None)
            self._link.forget(host.peer)
        host.peer, host.joined = b"", False

    def _mark_suspect(self, host: Host, reason: str) -> None:
        """Note that an agent cannot be reached; processes that it started may be alive."""
        self._disconnect(host)
        host.absence = reason
        if self.transport.end(host.name):
            self._mark_lost(host, reason)
        else:  # time to reconnect; then a new agent ends what the old one left
            host.next_start = time.monotonic() + min(2.0, self._lease / 2)

    def _mark_lost(self, host: Host, reason: str) -> None:
        """Note that an agent and all that it started have ended, and plan the next start."""
        self._disconnect(host)
        host.life, host.ended_life = "", host.life or host.ended_life
        if not host.starting:
            host.next_start = min(host.next_start, time.monotonic())
        self._listener.on_lost(host, reason)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Dismiss all own agents and wait until they are gone.

        Foreign agents look for another controller by the address file, which is kept for them.
        """
        for host in list(self.hosts.values()):
            if host.peer and self.is_foreign(host.name):
                self._disconnect(host)
            elif host.peer:
                self._link.send(host.peer, Goodbye())
        leaving = set(self._peers)
        deadline = time.monotonic() + _CLOSING_SECONDS
        while leaving and time.monotonic() < deadline:
            for peer, message in self._link.receive(0.1):
                if isinstance(message, Farewell | BrokenPeer):
                    leaving.discard(peer)
        self.transport.close()
        self._link.close()
        if not self.address.has_foreign_hosts and read_address(self.run_dir) == self.address:
            remove_address(self.run_dir)  # not that of a successor
