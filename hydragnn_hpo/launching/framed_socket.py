"""Messages over a stream socket to a child process: MessagePack, preceded by its length.

Neither side blocks: data that cannot be sent yet is buffered in memory. Used only between a process
and its child on the same host; hosts communicate over ``link.py``.
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
"""Most pieces per ``receive``, so that a peer that never stops sending cannot starve the caller."""

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
        """Number of buffered bytes that the socket has not accepted yet."""
        return len(self._outgoing)

    def send(self, message: object) -> None:
        """Send a message now or as soon as the socket has room; drop it once the peer is gone."""
        if not self.closed:
            body = msgspec.msgpack.encode(message)
            self._outgoing += _LENGTH.pack(len(body)) + body
            self.flush()

    def flush(self) -> None:
        """Send as much buffered data as the socket accepts without waiting."""
        try:
            while self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError:  # not `closed` yet: the peer's last messages may be unread
            self._outgoing.clear()

    def receive(self) -> list[T]:
        """Return the complete messages that have arrived; set ``closed`` if the peer is gone."""
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
        messages = []
        start = 0
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

    Buffered data is sent as soon as a socket accepts it.

    Args:
        sockets: closed ones are left out.
        seconds: longest wait.
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
