"""A framed channel: JSON messages with a length in front, over any stream socket.

Neither side ever blocks in it: what cannot be sent yet waits in memory, so a busy reader
never stops an agent from keeping its leases.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18
_CHUNKS = 16
"""Pieces that are read from one peer at a time."""

LARGEST = 1 << 28
"""Bytes of the largest message; a longer one is a broken or foreign peer."""


class Channel:
    """One end of a connection; ``closed`` once the other end is gone."""

    def __init__(self, connection: socket.socket, limit: int = LARGEST) -> None:
        """Take over a connected stream socket.

        Args:
            connection: stream socket, TCP or Unix.
            limit: bytes of the largest message it takes, which may be raised later.
        """
        connection.setblocking(False)
        self.limit = limit
        self._connection = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Give the descriptor, for ``wait``."""
        return self._connection.fileno()

    def own_address(self) -> str:
        """Give the network address of this end."""
        return str(self._connection.getsockname()[0])

    @property
    def unsent(self) -> int:
        """Bytes that still wait for the other end to read."""
        return len(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or as soon as there is room; nothing when the peer is gone."""
        if self.closed:
            return
        body = json.dumps(message).encode()
        assert len(body) <= LARGEST, f"a message of {len(body)} bytes"
        self._outgoing += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Send what the connection takes without waiting."""
        try:
            while self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            # The read side may still hold what the peer said last, so it decides on `closed`.
            self._outgoing.clear()

    def receive(self) -> list[dict[str, Any]]:
        """Give the messages that have arrived whole; notes when the peer is gone.

        A peer that speaks without end is heard in turns, so that others are heard too.
        """
        for _ in range(_CHUNKS):
            if self.closed:
                break
            try:
                chunk = self._connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self._incoming += chunk
            self.closed = not chunk
        return self._whole()

    def _whole(self) -> list[dict[str, Any]]:
        messages = []
        start = 0
        while len(self._incoming) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            if length > self.limit:
                self.closed = True
                break
            end = start + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            messages.append(json.loads(self._incoming[start + _LENGTH.size : end]))
            start = end
        del self._incoming[:start]
        return messages

    def close(self) -> None:
        """Close this end; the other end sees the end of the stream."""
        self.closed = True
        self._connection.close()


def wait(channels: Sequence[Channel], timeout: float, *, also: Sequence[int] = ()) -> None:
    """Wait until something can be read from a channel (or a descriptor in ``also``).

    What waited to be sent goes out meanwhile. Returns after ``timeout`` seconds at the latest.
    """
    poller = select.poll()
    opened = {channel.fileno(): channel for channel in channels if not channel.closed}
    for descriptor, channel in opened.items():
        poller.register(descriptor, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
    for descriptor in also:
        poller.register(descriptor, select.POLLIN)
    for descriptor, mask in poller.poll(max(0.0, timeout) * 1000):
        if mask & select.POLLOUT and descriptor in opened:
            opened[descriptor].flush()
