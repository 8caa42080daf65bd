"""Where agents come in: a listening socket, and a proof on both sides of a shared token.

The token never travels. Strangers get a few seconds and a few hundred bytes; they are served in
turns with everything else and can block nobody.
"""

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import read_json, storage, write_json
from hydragnn_hpo.launching.wire.channel import LARGEST, Channel, wait
from hydragnn_hpo.launching.wire.protocol import FOLDER

_SMALL = 512
"""Bytes of the largest message of somebody who has proved nothing yet."""

STRANGER_SECONDS = 5.0
"""Time for a proof."""

_STRANGERS = 4096
"""Strangers at a time; beyond, the one who waits longest is dropped (its agent dials again)."""

_BACKLOG = 4096
_NONCE_BYTES = 32


@dataclass(frozen=True)
class DoorPlate:
    """Where the controller of a run listens, and what proves that it is the one."""

    address: str
    port: int
    epoch: int
    """Number of the controller, one above its predecessor's."""

    token: str
    lease_seconds: float
    tag: str
    """Of the run, see ``process_control.run_tag``."""

    allocation: str = ""
    """Whose hosts are the controller's own; empty where no others can come."""

    guests: bool = False
    """Whether hosts of other allocations have come."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``write`` wrote.

        Raises:
            StorageError: something is missing.
        """
        try:
            return cls(**content)
        except TypeError as error:
            raise StorageError(f"the door file is damaged ({error}); run again.") from error

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """Give the door of a run directory, or None where nobody listens."""
        path = door_file(run_dir)
        return cls.of(read_json(path)) if path.exists() else None

    def write(self, run_dir: Path) -> None:
        """Write the door file, whole, for our own eyes only.

        Raises:
            StorageError: the disk said no.
        """
        path = door_file(run_dir)
        with storage(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, asdict(self))  # made by mkstemp: 0600


def door_file(run_dir: Path) -> Path:
    """Give the path of the door file of a run directory."""
    return run_dir / FOLDER / "door.json"


def _proof(token: str, *words: str) -> str:
    return hmac.new(token.encode(), " ".join(words).encode(), "sha256").hexdigest()


def _read_word(message: Mapping[str, Any], name: str) -> str:
    word = message.get(name)
    if not isinstance(word, str) or not word.isascii():
        raise ValueError(name)
    return word


class Stranger:
    """Somebody who has connected and proved nothing yet."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        """Ask for a proof."""
        self.channel = Channel(connection, limit=_SMALL)
        self.until = time.monotonic() + STRANGER_SECONDS
        self._token = token
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self.channel.send({"nonce": self._nonce})

    def proved(self) -> bool | None:
        """Hear what it says: True once it is one of us, False once it is not."""
        try:
            messages = self.channel.receive()
            if len(messages) != 1:
                return False if messages or self.channel.closed else None
            nonce = _read_word(messages[0], "nonce")
            proof = _read_word(messages[0], "proof")
        except (ValueError, AttributeError, RecursionError):
            return False
        if not hmac.compare_digest(proof, _proof(self._token, "agent", self._nonce, nonce)):
            return False
        self.channel.send({"proof": _proof(self._token, "controller", nonce, self._nonce)})
        self.channel.limit = LARGEST
        return True


class Door:
    """The controller's listening socket, on one address of its own."""

    def __init__(self, address: str, token: str) -> None:
        """Listen on any free port.

        Args:
            address: of loopback or of the private fabric; never all interfaces.
            token: shared with the agents.

        Raises:
            JobError: the address is not one of this host's, or means all of them.
        """
        if address in ("", "0.0.0.0", "::"):
            raise JobError("the controller listens on one interface only: name its address.")
        try:
            self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        except OSError as error:
            raise JobError(
                f"the controller cannot listen on {address} ({error.strerror}): "
                "set machine.interface to one that all hosts share."
            ) from error
        self._listener.setblocking(False)
        self._token = token
        self.address = address
        self.port = int(self._listener.getsockname()[1])
        self.strangers: dict[int, Stranger] = {}

    def fileno(self) -> int:
        """Give the descriptor that can be read when somebody has come."""
        return self._listener.fileno()

    def admit(self) -> list[Stranger]:
        """Take in who has come; gives the new strangers, whose channels are to be watched."""
        new = []
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError:  # out of descriptors: who waits longest makes room
                self._drop_eldest()
                break
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stranger = Stranger(connection, self._token)
            self.strangers[stranger.channel.fileno()] = stranger
            new.append(stranger)
            if len(self.strangers) > _STRANGERS:
                self._drop_eldest()
        return [stranger for stranger in new if not stranger.channel.closed]

    def hear(self, descriptor: int) -> Channel | None:
        """Hear a stranger; gives its channel once it has proved to be one of us."""
        stranger = self.strangers[descriptor]
        proved = stranger.proved()
        if proved is None:
            return None
        del self.strangers[descriptor]
        if proved:
            return stranger.channel
        stranger.channel.close()
        return None

    def drop_slow(self, now: float) -> None:
        """Hang up on those who proved nothing in time; closing ends their being watched."""
        for descriptor, stranger in list(self.strangers.items()):
            if now < stranger.until:
                break  # they stand in the order of their coming
            del self.strangers[descriptor]
            stranger.channel.close()

    def _drop_eldest(self) -> None:
        if self.strangers:
            eldest = next(iter(self.strangers))
            self.strangers.pop(eldest).channel.close()

    def close(self) -> None:
        """Listen no more and hang up on strangers."""
        self._listener.close()
        while self.strangers:
            self._drop_eldest()


def dial(plate: DoorPlate, seconds: float) -> Channel | None:
    """Connect to a controller and prove to each other who we are; None where that fails.

    Args:
        plate: its door.
        seconds: time for each of the steps.
    """
    try:
        connection = socket.create_connection((plate.address, plate.port), timeout=seconds)
    except OSError:
        return None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Channel(connection, limit=_SMALL)
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        theirs = _read_word(_next(channel, seconds), "nonce")
        ours = secrets.token_hex(_NONCE_BYTES)
        proof = _proof(plate.token, "agent", theirs, ours)
        channel.send({"nonce": ours, "proof": proof})
        answer = _read_word(_next(channel, seconds), "proof")
        if hmac.compare_digest(answer, _proof(plate.token, "controller", ours, theirs)):
            channel.limit = LARGEST
            return channel
    channel.close()
    return None


def _next(channel: Channel, seconds: float) -> dict[str, Any]:
    """Wait for one message.

    Raises:
        ValueError: none came, or more than one.
    """
    wait([channel], seconds)
    (message,) = channel.receive()
    return message
