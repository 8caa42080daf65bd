"""Messages over a stream socket to a child process: MessagePack behind its length.

Neither side ever blocks in it: what cannot be sent yet waits in memory. Only for processes of one
host that start each other; hosts speak over ``link.py``.
"""

import contextlib
import select
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18
_CHUNKS = 16
"""Pieces that are read at a time, so that a peer which never stops cannot starve the caller."""

T = TypeVar("T")


class FramedSocket(Generic[T]):
    """One end of a socket pair; ``closed`` once the other end is gone."""

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        """Take over a connected stream socket.

        Args:
            connection: one end of ``socket.socketpair``.
            incoming: type of the messages that the other end sends, ``T``.
        """
        connection.setblocking(False)
        self.closed = False
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @classmethod
    def of_descriptor(cls, descriptor: int, incoming: Any) -> "FramedSocket[T]":
        """Take over a socket that this process inherited by number."""
        return cls(socket.socket(fileno=descriptor), incoming)

    def fileno(self) -> int:
        """Return the descriptor, for ``poll``."""
        return self._connection.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that still wait for the other end to read."""
        return len(self._outgoing)

    def send(self, message: object) -> None:
        """Send a message, now or as soon as there is room; nothing once the peer is gone."""
        if not self.closed:
            body = msgspec.msgpack.encode(message)
            self._outgoing += _LENGTH.pack(len(body)) + body
            self.flush()

    def flush(self) -> None:
        """Send what the socket takes without waiting."""
        try:
            while self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError:  # the peer's last messages may still be unread: they decide on `closed`
            self._outgoing.clear()

    def receive(self) -> list[T]:
        """Return the messages that have arrived whole, and notice when the peer is gone."""
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
        return self._decode()

    def _decode(self) -> list[T]:
        messages, start = [], 0
        while len(self._incoming) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            end = start + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            with memoryview(self._incoming) as view:
                messages.append(self._decoder.decode(view[start + _LENGTH.size : end]))
            start = end
        del self._incoming[:start]
        return messages

    def close(self) -> None:
        """Close this end; the other end sees the end of the stream."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.close()


def wait_readable(
    sockets: Sequence[FramedSocket[Any]], seconds: float, *, also: Iterable[int] = ()
) -> None:
    """Wait until one of the sockets, or a descriptor in ``also``, can be read.

    What waited to be sent goes out meanwhile.

    Args:
        sockets: closed ones are left out.
        seconds: after which it returns in any case.
        also: further descriptors, of any kind.
    """
    poller = select.poll()
    opened = {end.fileno(): end for end in sockets if not end.closed}
    for descriptor, end in opened.items():
        poller.register(descriptor, select.POLLIN | (select.POLLOUT if end.unsent else 0))
    for descriptor in also:
        poller.register(descriptor, select.POLLIN)
    for descriptor, mask in poller.poll(max(0.0, seconds) * 1000):
        if mask & select.POLLOUT and descriptor in opened:
            opened[descriptor].flush()
