"""Thousands of lines in one place: waits until somebody speaks, and sends what had to wait."""

import select
from collections.abc import Callable
from typing import Protocol

from hydragnn_hpo.launching.wire.channel import Channel


class _Line(Protocol):
    def fileno(self) -> int: ...


_AT_ONCE = 1 << 14
"""Lines served per turn."""

_READ = select.EPOLLIN | select.EPOLLRDHUP


class Switchboard:
    """Calls a function whenever its line can be read; costs nothing for those who are silent."""

    def __init__(self) -> None:
        """Begin without lines."""
        self._epoll = select.epoll()
        self._heard: dict[int, Callable[[], None]] = {}
        self._sending: dict[int, Channel] = {}

    def add(self, line: _Line, heard: Callable[[], None]) -> None:
        """Call ``heard`` when something can be read from a line, or its peer hung up."""
        descriptor = line.fileno()
        try:
            self._epoll.register(descriptor, _READ)
        except FileExistsError:  # known already: only who is called changes
            self._epoll.modify(descriptor, _READ)
        self._heard[descriptor] = heard

    def remove(self, line: _Line) -> None:
        """Listen to a line no more; call it before the line is closed."""
        descriptor = line.fileno()
        if self._heard.pop(descriptor, None):
            self._epoll.unregister(descriptor)
        self._sending.pop(descriptor, None)

    def send(self, channel: Channel, message: dict[str, object]) -> None:
        """Send a message, now or as soon as there is room."""
        channel.send(message)
        descriptor = channel.fileno()
        if channel.unsent and descriptor in self._heard and descriptor not in self._sending:
            self._sending[descriptor] = channel
            self._epoll.modify(descriptor, _READ | select.EPOLLOUT)

    def wait(self, seconds: float) -> None:
        """Serve all lines that have news, waiting at most so long for the first of them."""
        for descriptor, mask in self._epoll.poll(max(0.0, seconds), _AT_ONCE):
            if mask & select.EPOLLOUT:
                self._flush(descriptor)
            if mask & ~select.EPOLLOUT and (heard := self._heard.get(descriptor)):
                heard()

    def _flush(self, descriptor: int) -> None:
        channel = self._sending.get(descriptor)
        if channel is None:
            return
        channel.flush()
        if not channel.unsent:
            del self._sending[descriptor]
            self._epoll.modify(descriptor, _READ)

    def close(self) -> None:
        """Listen to nobody."""
        self._epoll.close()
        self._heard.clear()
        self._sending.clear()
