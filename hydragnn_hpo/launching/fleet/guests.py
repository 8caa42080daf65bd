"""Hosts of other allocations: whoever holds one dials in, and has agents started there for us."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import hydragnn_hpo
from hydragnn_hpo.launching.fleet.transport import News
from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.switchboard import Switchboard


@dataclass
class Visitor:
    """One further allocation."""

    name: str
    hosts: tuple[str, ...]
    channel: Channel
    heard: float


class Hearer(Protocol):
    """Who wants to know about them."""

    def visited(self) -> None:
        """Hear that there are other hosts than before."""

    def leaving(self, hosts: Sequence[str], ends_at: float) -> None:
        """Hear that hosts are taken from us at a time, in seconds since the epoch."""


class Guests:
    """Lines to those who hold other allocations. Agents have lines of their own."""

    def __init__(self, lines: Switchboard, hearer: Hearer, *, tag: str, patience: float) -> None:
        """Begin without any.

        Args:
            lines: where lines are listened to.
            hearer: hears what happens.
            tag: of the run.
            patience: seconds of silence after which a line counts as cut.
        """
        self._lines, self._hearer, self._tag, self._patience = lines, hearer, tag, patience
        self._visitors: dict[str, Visitor] = {}
        self._news: list[News] = []

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts on which somebody can have agents started now, neighbours side by side."""
        return tuple(host for each in self._visitors.values() for host in each.hosts)

    def greet(self, channel: Channel, told: dict[str, Any]) -> None:
        """Take in an allocation, or say why not; one that dials again takes its line's place."""
        refusal = self._refusal(told)
        if refusal:
            self._lines.send(channel, {"op": "bye", "why": refusal})
            self._lines.remove(channel)
            channel.close()
            return
        if (before := self._visitors.get(told["allocation"])) is not None:
            self._drop(before)
        now = time.monotonic()
        visitor = Visitor(told["allocation"], tuple(told["hosts"]), channel, now)
        self._visitors[visitor.name] = visitor
        self._lines.add(channel, functools.partial(self._hear, visitor))
        self._hearer.visited()

    def _refusal(self, told: dict[str, Any]) -> str | None:
        version = told.get("version")
        if version != hydragnn_hpo.__version__:
            ours = hydragnn_hpo.__version__
            return f"the controller has version {ours} of hydragnn-hpo, this is {version}"
        if told.get("tag") != self._tag:
            return "the controller sees the run directory under another path"
        named = told.get("hosts")
        if not isinstance(named, list) or not all(isinstance(host, str) for host in named):
            return "it names no hosts"
        return None

    def start(self, hosts: Sequence[str]) -> None:
        """Have an agent started on each of these hosts, by whoever holds them."""
        for visitor in self._visitors.values():
            if some := [host for host in visitor.hosts if host in hosts]:
                self._lines.send(visitor.channel, {"op": "start", "hosts": some})

    def poll(self) -> list[News]:
        """Give what is known since the last call; lines that are silent are cut."""
        now = time.monotonic()
        for visitor in list(self._visitors.values()):
            if now - visitor.heard > self._patience:
                self._drop(visitor)
        told, self._news = self._news, []
        return told

    def _hear(self, visitor: Visitor) -> None:
        visitor.heard = time.monotonic()
        for message in visitor.channel.receive():
            match message["event"]:
                case "beat":
                    self._lines.send(visitor.channel, {"op": "beat", "at": message["at"]})
                case "failed" if message["host"] in visitor.hosts:
                    self._news.append(News(message["host"], "failed", message["reason"]))
                case "leaving":
                    self._hearer.leaving(visitor.hosts, message["ends_at"])
        if visitor.channel.closed:
            self._drop(visitor)

    def _drop(self, visitor: Visitor) -> None:
        """Forget a line; the agents of its hosts may live on."""
        self._lines.remove(visitor.channel)
        visitor.channel.close()
        if self._visitors.get(visitor.name) is visitor:
            del self._visitors[visitor.name]
            self._hearer.visited()

    def close(self) -> None:
        """Hang up: they look for whoever comes after us."""
        for visitor in list(self._visitors.values()):
            self._drop(visitor)
