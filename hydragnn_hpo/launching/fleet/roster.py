"""Who is there: the hosts of a fleet, their agents, and since when nobody heard of them."""

import functools
import math
import re
import resource
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import hydragnn_hpo
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.fleet.guests import Guests
from hydragnn_hpo.launching.fleet.host import NAMES, Host
from hydragnn_hpo.launching.fleet.transport import Call, News, Transport
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.door import Door, DoorPlate, door_file
from hydragnn_hpo.launching.wire.switchboard import Switchboard

MARGIN_SECONDS = 2.0
"""What ranks and agents may take, after a lease, to be gone."""

_GREETING_SECONDS = 120.0
"""Time for an agent to start and dial, on a busy host, over a busy file system."""

_TRIES = 3
"""Agents in a row that did not come, until their host counts as hopeless."""

_LONGEST_PAUSE = 60.0
_DOUBLINGS = 6
"""After so many a pause has its full length; a host may be down for days."""

_OTHER_FILES = 512
"""Files that the controller has open beside lines to hosts."""

_CLOSING_SECONDS = 5.0


def margin(lease_seconds: float) -> float:
    """Give the time after a lease in which all is over for sure."""
    return MARGIN_SECONDS + lease_seconds / 4


def allow_files(hosts: int) -> None:
    """Let this process have a line to each host at once, and more for all else.

    Raises:
        JobError: we may not.
    """
    wanted = hosts + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise JobError(f"{hosts} hosts need {wanted} open files, {hard} are allowed: ulimit -n.")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Listener(Protocol):
    """Who wants to know about hosts."""

    def greeted(self, host: Host, jobs: Sequence[dict[str, Any]], *, known: bool) -> dict[str, Any]:
        """Hear what jobs an agent brings (a ``known`` one: again); give those to keep."""

    def joined(self, host: Host) -> None:
        """Hear that a host can be used."""

    def told(self, host: Host, message: dict[str, Any]) -> None:
        """Hear news of a job or zygote."""

    def lost(self, host: Host, reason: str) -> None:
        """Hear that nothing of an agent is alive any more."""

    def leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Hear that hosts are taken from us at a time, in seconds since the epoch."""


class Roster:
    """Keeps an agent on every host, as far as that is possible."""

    def __init__(
        self,
        transport: Transport,
        listener: Listener,
        *,
        run_dir: Path,
        terms: Mapping[str, Any],
    ) -> None:
        """Open the door, and have agents started.

        Args:
            transport: starts them.
            listener: hears what happens.
            run_dir: where agents find the door.
            terms: words of ``init``.
        """
        self.transport, self.run_dir = transport, run_dir
        self.hosts: dict[str, Host] = {}
        self._listener = listener
        self._lease = float(terms["lease_seconds"])
        before = DoorPlate.read(run_dir)
        self._door, self.plate = self._open(before.epoch + 1 if before else 1)
        self._terms = {**terms, "epoch": self.plate.epoch, "tag": self.plate.tag}
        self._terms |= {"fenced": transport.outlives, "version": hydragnn_hpo.__version__}
        self.lines = Switchboard()
        self.lines.add(self._door, self._admit)
        patience = max(3 * self._lease, MARGIN_SECONDS)
        self.guests = Guests(self.lines, self, tag=self.plate.tag, patience=patience)
        now = time.monotonic()
        orphans = before.lease_seconds if before and transport.outlives else 0.0
        self._start_from = now + orphans
        self._settled_by = now + orphans + margin(orphans) if orphans else now
        alone = before is None or not before.guests
        self._all_known = alone and (before is None or before.allocation == transport.allocation)
        self._seen: Sequence[str] = ()
        self._wanted: frozenset[str] = frozenset()
        self._ours: frozenset[str] = frozenset()
        self._next_look, self._closing = now, False
        self._met = False
        self.look(now)

    def _open(self, epoch: int) -> tuple[Door, DoorPlate]:
        """Listen, and leave word where."""
        token, tag = secrets.token_hex(32), run_tag(self.run_dir)
        door = Door(self.transport.address, token)
        ours = self.transport.allocation
        plate = DoorPlate(door.address, door.port, epoch, token, self._lease, tag, ours)
        plate.write(self.run_dir)
        return door, plate

    # -- what is known ---------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Say whether no rank of a lost controller can be alive without our knowing.

        That is so when all its hosts are back, or else when their leases are over for sure.
        """
        if self._settled_by == -math.inf:
            return True
        everybody = self.hosts and all(host.joined for host in self.hosts.values())
        if (everybody and self._all_known) or time.monotonic() >= self._settled_by:
            self._settled_by = -math.inf
            return True
        return False

    def is_joined(self, name: str) -> bool:
        """Say whether orders to a host would be heard now."""
        return name in self.hosts and self.hosts[name].joined

    def send(self, name: str, message: dict[str, Any]) -> None:
        """Tell an agent something; a line that was cut is mended by ``greeted``."""
        channel = self.hosts[name].channel
        if channel is not None:
            self.lines.send(channel, message)

    # -- time ------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Do what time has come for: a few times per second at most."""
        if now < self._next_look:
            return
        self._next_look = now + max(0.05, min(0.5, self._lease / 20))
        self._door.drop_slow(now)
        if (*self.transport.hosts, *self.guests.hosts) != self._seen:
            self.visited()
        self.lines.wait(0.0)  # we may have been away: nobody is silent whom we did not hear
        for news in (*self.transport.poll(), *self.guests.poll()):
            self._note(news, now)
        for host in list(self.hosts.values()):
            self._watch(host, now)
        if now >= self._start_from:
            self._start(now)

    def visited(self) -> None:
        """Know all hosts on which agents can be started, ours and our guests'."""
        self._seen = (*self.transport.hosts, *self.guests.hosts)
        self._wanted, self._ours = frozenset(self._seen), frozenset(self.transport.hosts)
        allow_files(len(self._seen))
        for name in self._seen:
            self.hosts.setdefault(name, Host(name))

    def leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Hear that hosts are taken from us sooner than their agents know."""
        for name in hosts:
            self.hosts[name].ends_at = min(ends_at, self.hosts[name].ends_at)
        self._listener.leaving([name for name in hosts if self.hosts[name].joined], ends_at)

    def is_guest(self, name: str) -> bool:
        """Say whether a host is of another allocation than ours."""
        return bool(self.transport.allocation) and name not in self._ours

    def _watch(self, host: Host, now: float) -> None:
        patience = self._lease if self.transport.outlives else 3 * self._lease
        if host.channel and now - host.heard > patience:
            self._miss(host, f"was silent for {now - host.heard:.0f} s")
        dead = host.answered + self._lease + margin(self._lease)
        if host.life and not host.channel and self.transport.outlives and now > dead:
            self._lose(host, f"{host.why}, and its lease is over")

    def _start(self, now: float) -> None:
        """Have agents started where there is none and it is time to try."""
        due = [h for h in self.hosts.values() if h.next_start <= now and h.name in self._wanted]
        if not due:
            return
        for host in due:
            host.tries += 1
            host.starting = True
            host.next_start = now + _GREETING_SECONDS
        guests = [host.name for host in due if self.is_guest(host.name)]
        if guests:
            self.guests.start(guests)
        if len(guests) < len(due):
            ours = [host.name for host in due if host.name not in guests]
            self.transport.start(ours, Call(self.run_dir, self.plate))

    def _note(self, news: News, now: float) -> None:
        """Act on what the transport knows for sure."""
        host = self.hosts.get(news.host)
        if host is None:
            return
        host.starting = False
        if news.kind == "gone":
            if host.channel:
                self._hear(host, host.channel)  # its last words
            if host.life:
                self._lose(host, news.reason)
                return
        if host.tries and host.channel is None:
            host.why = news.reason
            doubled = 2.0 ** min(host.tries - 1, _DOUBLINGS) - 1.0
            host.next_start = now + min(_LONGEST_PAUSE, doubled)
            if self._is_hopeless():
                raise JobError(f"no agent can start: host {host.name} {news.reason}.")

    def _is_hopeless(self) -> bool:
        """Say whether no agent will ever come.

        Where one has been, its host may come back: a switch or the scheduler may be away for
        minutes. How long to wait for that is for others to say, but where slots are fixed nobody
        hears that they are gone.
        """
        if self._met and not self.transport.slots:
            return False
        possible = [h for h in self.hosts.values() if h.life or h.name in self._wanted]
        return all(h.tries >= _TRIES and not h.life for h in possible)

    # -- lines -----------------------------------------------------------------------

    def _admit(self) -> None:
        for stranger in self._door.admit():
            descriptor = stranger.channel.fileno()
            self.lines.add(stranger.channel, functools.partial(self._examine, descriptor))

    def _examine(self, descriptor: int) -> None:
        if descriptor not in self._door.strangers:
            return
        channel = self._door.hear(descriptor)
        if channel is not None:
            self.lines.add(channel, functools.partial(self._meet, channel))

    def _meet(self, channel: Channel) -> None:
        """Hear the first words of an agent."""
        messages = channel.receive()
        if not messages and not channel.closed:
            return
        hello = messages[0] if messages else {}
        if hello.get("event") == "visit" and self.transport.allocation:
            self.guests.greet(channel, hello)
            return
        host = self._host_of(hello)
        same = hello.get("version") == hydragnn_hpo.__version__
        over = host is not None and host.starting and hello.get("life") == host.over
        if host is None or hello.get("event") != "hello" or not same or over:
            self.lines.send(channel, {"op": "bye"})
            self.lines.remove(channel)
            channel.close()
            if host and not same:
                host.why = f"has version {hello.get('version')} of hydragnn-hpo"
            return
        self._greet(host, channel, hello)

    def _host_of(self, hello: Mapping[str, Any]) -> Host | None:
        """Give the host of an agent; one that nobody has named is a guest, if guests may come."""
        name = hello.get("host", "")
        may = self.transport.allocation and hello.get("version") == hydragnn_hpo.__version__
        if name not in self.hosts and may and re.fullmatch(NAMES, name):
            self.hosts[name] = Host(name, next_start=math.inf)
        return self.hosts.get(name)

    def _greet(self, host: Host, channel: Channel, hello: dict[str, Any]) -> None:
        self._met, known = True, hello["life"] == host.life
        if host.life and not known:  # a new agent comes in once all of the old one is gone
            self._lose(host, f"{host.why or 'had an agent'}, which was replaced")
        self._hang_up(host)
        host.life, host.channel, host.code = hello["life"], channel, hello.get("code", "")
        host.heard = host.answered = time.monotonic()
        host.starting, host.next_start = False, math.inf
        if self.is_guest(host.name) and not self.plate.guests:
            self._note_guests()
        keep = self._listener.greeted(host, hello["jobs"], known=known)
        self.lines.add(channel, functools.partial(self._hear, host, channel))
        self.lines.send(channel, {"op": "init", "keep": keep, **self._terms})

    def _note_guests(self) -> None:
        """Leave word for a successor that not all hosts here are those of one allocation."""
        before, self.plate = self.plate, replace(self.plate, guests=True)
        if DoorPlate.read(self.run_dir) == before:  # else a successor is there already
            self.plate.write(self.run_dir)

    def _hear(self, host: Host, channel: Channel) -> None:
        messages = channel.receive()
        host.heard = time.monotonic()
        for message in messages:
            if host.channel is not channel:
                return
            match message["event"]:
                case "beat":
                    host.answered = host.heard
                    self.lines.send(channel, {"op": "beat", "at": message["at"]})
                case "slots":
                    self._join(host, message)
                case _:
                    self._listener.told(host, message)
        if channel.closed and self._closing:
            self.lines.remove(channel)
        elif channel.closed and host.channel is channel:
            self._miss(host, "hung up")

    def _join(self, host: Host, told: dict[str, Any]) -> None:
        found = [Slot(**{**slot, "cores": tuple(slot["cores"])}) for slot in told["slots"]]
        host.slots = tuple(found)
        host.address, host.interface = told["address"], told["interface"]
        before, told_end = host.ends_at, told.get("ends_at")
        host.ends_at = math.inf if told_end is None else told_end
        if host.announced and host.ends_at < before:
            self._listener.leaving([host.name], host.ends_at)
        host.joined, host.tries, host.why = True, 0, ""
        self._listener.joined(host)

    def _hang_up(self, host: Host) -> None:
        if host.channel is not None:
            self.lines.remove(host.channel)
            host.channel.close()
        host.channel, host.joined = None, False

    def _miss(self, host: Host, reason: str) -> None:
        """Note that an agent is not there; what it started may be."""
        self._hang_up(host)
        host.why = reason
        if self.transport.end(host.name):
            self._lose(host, reason)
        else:  # it has a moment to dial again; then another agent ends what it left
            host.next_start = time.monotonic() + min(2.0, self._lease / 2)

    def _lose(self, host: Host, reason: str) -> None:
        """Note that nothing of an agent is alive any more."""
        self._hang_up(host)
        host.life, host.over = "", host.life or host.over
        if not host.starting:
            host.next_start = min(host.next_start, time.monotonic())
        self._listener.lost(host, reason)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Tell all agents to go, and wait until they are gone; guests look for another controller.

        They find it by the door file, which stays for them.
        """
        self._closing = True
        self.guests.close()
        for host in self.hosts.values():
            if self.is_guest(host.name):
                self._hang_up(host)
            self.send(host.name, {"op": "bye"})
        deadline = time.monotonic() + _CLOSING_SECONDS
        while self._open_lines() and time.monotonic() < deadline:
            self.lines.wait(0.1)
        self.transport.close()
        for host in self.hosts.values():
            self._hang_up(host)
        self.lines.close()
        self._door.close()
        theirs = self.plate.guests or DoorPlate.read(self.run_dir) != self.plate  # a successor's
        if not theirs:
            door_file(self.run_dir).unlink(missing_ok=True)

    def _open_lines(self) -> bool:
        """Say whether somebody has not hung up yet, which is the last thing that an agent does."""
        return any(host.channel and not host.channel.closed for host in self.hosts.values())
