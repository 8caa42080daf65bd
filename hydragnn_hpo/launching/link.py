"""The encrypted link between the controller and its agents: ZeroMQ with CURVE.

The controller binds a ROUTER socket to one address of its host; each agent connects a DEALER
socket. Both sides authenticate with keys that were generated for the run and are stored in
``RUN/controller/keys.json`` (mode 0600, in a folder of mode 0700). A connection without these keys
fails in its handshake, and all traffic is encrypted. On a shared file system the file mode protects
the keys from other users, but not from the administrators of a host that mounts the file system.

ZeroMQ reconnects by itself but does not report whether messages were lost. So each message carries
a sequence number, and a missing number ends the conversation: the agent starts a new one, in which
both sides exchange what they know (``Hello``, ``Welcome``).
"""

import contextlib
import logging
import math
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

import hydragnn_hpo
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.launching.framed_socket import FramedSocket
from hydragnn_hpo.launching.protocol import HostsLeave, NewRecords, News, Order, Restart

logger = logging.getLogger(__name__)

FOLDER = "controller"
"""Name of the folder in a run directory that holds the controller's files."""

ADDRESS = "HYDRAGNN_HPO_CONTROLLER"
"""Environment variable of an agent: path of the file with the controller's address."""

_NUMBER = struct.Struct("!Q")
_LARGEST = 1 << 28
"""Size limit of one message in bytes."""

_BACKLOG = 4096
_HANDSHAKE_MS = 30_000
"""Time limit of a CURVE handshake. Thousands of agents may connect at the same time: if the limit
is too short, every handshake times out and is retried, and no agent ever connects."""

_QUEUED_ORDERS = 10_000
"""Orders queued for one agent; further ones are dropped, and the agent sends ``Hello`` again."""

_AT_ONCE = 10_000
"""Most messages that one call of ``ControllerLink.receive`` reads."""

_LAST_WORDS_MS = 1000
_RECONNECT_MS = (100, 2000)
_KEEPALIVE_SECONDS = 60


class Keys(msgspec.Struct, frozen=True):
    """The CURVE keys of a run, Z85-encoded."""

    server_public: str
    server_secret: str
    agent_public: str
    agent_secret: str


class ControllerAddress(msgspec.Struct, frozen=True):
    """Where the controller of a run listens, and which controller it is."""

    address: str
    port: int
    epoch: int
    """Number of the controller: one more than that of the previous controller."""

    lease_seconds: float
    run: str
    """Tag of the run, see ``process_control.run_tag``."""

    allocation: str = ""
    """Allocation that the controller runs in; empty if hosts of other allocations cannot join."""

    version: str = hydragnn_hpo.__version__
    has_foreign_hosts: bool = False
    """Whether hosts of other allocations have joined."""

    def write(self, run_dir: Path) -> None:
        """Write the address to the file that agents read.

        Raises:
            StorageError: the file cannot be written.
        """
        write_text(address_file(run_dir), msgspec.json.encode(self).decode(), private=True)


def address_file(run_dir: Path) -> Path:
    """Return the path of the file with the controller's address."""
    return run_dir / FOLDER / "address.json"


def read_address(run_dir: Path) -> ControllerAddress | None:
    """Return the address of a run's current or last controller; None if there was none.

    Raises:
        StorageError: the file cannot be read.
    """
    path = address_file(run_dir)
    try:
        return msgspec.json.decode(path.read_bytes(), type=ControllerAddress)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(f"{path}: cannot be read ({error}): run again.") from error


def remove_address(run_dir: Path) -> None:
    """Remove the address file when the controller ends."""
    address_file(run_dir).unlink(missing_ok=True)


def find_keys(run_dir: Path) -> Keys:
    """Return the keys of a run; generate them if there are none.

    Raises:
        StorageError: the keys cannot be read or written.
    """
    path = run_dir / FOLDER / "keys.json"
    with storage(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            server = zmq.curve_keypair()
            agent = zmq.curve_keypair()
            made = Keys(*(key.decode() for key in (*server, *agent)))
            write_text(path, msgspec.json.encode(made).decode(), private=True)
    return read_keys(run_dir)


def read_keys(run_dir: Path) -> Keys:
    """Return the keys of a run.

    Raises:
        StorageError: the keys are missing or damaged.
    """
    path = run_dir / FOLDER / "keys.json"
    with storage(path):
        content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=Keys)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path}: holds no keys ({error}): remove it and run again.") from error


@dataclass
class _Peer:
    """Message counts of one conversation with an agent."""

    sent: int = 0
    received: int = 0


class _OneKey:
    """Credentials provider of the authenticator: accepts one public key."""

    def __init__(self, public: str) -> None:
        self._allowed = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        """Check whether a client's public key is that of this run's agents."""
        return key == self._allowed


class BrokenPeer(msgspec.Struct, frozen=True):
    """Yielded by ``ControllerLink.receive`` when a conversation with an agent has failed."""

    reason: str


def _require_finite(content: object) -> None:
    """Raise ``ValueError`` if a number anywhere in a message is not finite."""
    if isinstance(content, float) and not math.isfinite(content):
        raise ValueError(f"{content} is no finite number")
    parts = content.values() if isinstance(content, dict) else content
    for part in parts if isinstance(parts, Iterable) and not isinstance(parts, str) else ():
        _require_finite(part)


class ControllerLink:
    """The controller's end: one socket for all agents, told apart by their ZeroMQ identities."""

    def __init__(self, address: str, keys: Keys) -> None:
        """Listen on any free port.

        Args:
            address: of the loopback interface or the private network; never all interfaces.
            keys: keys of the run.

        Raises:
            JobError: the address does not belong to this host, or means all interfaces.
        """
        if address in ("", "*", "0.0.0.0", "::"):
            raise JobError("the controller listens on one interface only: name its address.")
        self._peers: dict[bytes, _Peer] = {}
        self._decoder = msgspec.msgpack.Decoder(News)
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            credentials_provider=_OneKey(keys.agent_public)
        )
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_publickey = keys.server_public.encode()
        self._socket.curve_secretkey = keys.server_secret.encode()
        self._socket.router_handover = True  # an agent that reconnects gets its queue back
        self._socket.set(zmq.BACKLOG, _BACKLOG)
        self._socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self._socket.set(zmq.MAXMSGSIZE, _LARGEST)
        self._socket.set(zmq.SNDHWM, _QUEUED_ORDERS)
        self._socket.set(zmq.LINGER, _LAST_WORDS_MS)
        _keep_alive(self._socket)
        try:
            self.port = self._socket.bind_to_random_port(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise JobError(
                f"the controller cannot listen on {address} ({error.strerror}): "
                "set machine.interface to one that all hosts share."
            ) from error

    def send(self, peer: bytes, message: Order) -> None:
        """Send a message to an agent; its next ``Hello`` makes up for one that is not delivered."""
        known = self._peers.get(peer)
        if known is None:
            return
        known.sent += 1
        body = msgspec.msgpack.encode(message)
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([peer, _NUMBER.pack(known.sent), body], zmq.NOBLOCK)

    def receive(self, seconds: float) -> Iterator[tuple[bytes, News | BrokenPeer]]:
        """Yield the messages that have arrived; wait at most ``seconds`` for the first.

        Yields:
            Identity of the agent, and its message. A conversation starts with message number 1.
            A missing number or an unreadable message ends it with a ``BrokenPeer``.
        """
        if not self._socket.poll(_milliseconds(seconds)):
            return
        for _ in range(_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            identity, *parts = frames
            yield from self._read(identity, parts)

    def _read(
        self, identity: bytes, parts: list[bytes]
    ) -> Iterator[tuple[bytes, News | BrokenPeer]]:
        known = self._peers.get(identity)
        try:
            number, body = parts
            (count,) = _NUMBER.unpack(number)
            message = self._decoder.decode(body)
            if not isinstance(message, NewRecords):  # a record of a command may hold any number
                _require_finite(msgspec.to_builtins(message))
        except (ValueError, struct.error, msgspec.MsgspecError, RecursionError) as error:
            if known:
                yield identity, BrokenPeer(f"sent a message that cannot be read ({error})")
                self.forget(identity)
            return
        if known is None and count == 1:
            known = self._peers[identity] = _Peer()
        if known is None or count != known.received + 1:
            yield from self._restart(identity, known)
            return
        known.received = count
        yield identity, message

    def _restart(
        self, identity: bytes, known: _Peer | None
    ) -> Iterator[tuple[bytes, News | BrokenPeer]]:
        """Restart the conversation of an agent that lost messages or knew another controller."""
        self._peers.setdefault(identity, _Peer())
        self.send(identity, Restart())
        if known:
            yield identity, BrokenPeer("lost messages on their way")
        self.forget(identity)

    def received(self, peer: bytes) -> int:
        """Return the number of messages read in the current conversation with an agent."""
        known = self._peers.get(peer)
        return known.received if known else 0

    def forget(self, peer: bytes) -> None:
        """End a conversation; ``Restart`` answers any further message of it."""
        self._peers.pop(peer, None)

    def close(self) -> None:
        """Stop listening; queued messages have one more second to be sent."""
        self._socket.close()
        self._authenticator.stop()
        self._context.term()


class AgentLink:
    """An agent's end of one conversation."""

    def __init__(
        self, to: ControllerAddress, keys: Keys, context: zmq.Context[Any] | None = None
    ) -> None:
        """Connect; messages are queued until the controller can be reached.

        Args:
            to: address of the controller.
            keys: keys of the run.
            context: ZeroMQ context shared with other links; created and owned if omitted.
        """
        self.broken = False
        """Whether messages were lost, so that a new conversation must be started."""

        self._sent = self._received = 0
        self._unread: list[tuple[int, int]] = []
        self._decoder = msgspec.msgpack.Decoder(Order)
        self._shares_context = context is not None
        self._context = context or zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.curve_serverkey = keys.server_public.encode()
        self._socket.curve_publickey = keys.agent_public.encode()
        self._socket.curve_secretkey = keys.agent_secret.encode()
        self._socket.identity = os.urandom(16).replace(b"\0", b"\1")
        self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS[0])
        self._socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1])
        self._socket.set(zmq.MAXMSGSIZE, _LARGEST)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        _keep_alive(self._socket)
        self._socket.connect(f"tcp://{to.address}:{to.port}")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a message may have arrived.

        ``send`` may clear that state: after each ``send``, call ``receive`` before waiting on it.
        """
        return self._socket.fileno()

    def wait(self, seconds: float, sockets: Sequence[FramedSocket[Any]] = ()) -> None:
        """Wait at most ``seconds`` until a message has arrived or one of ``sockets`` is readable.

        Data queued on ``sockets`` is sent meanwhile.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        opened = {end.fileno(): end for end in sockets if not end.closed}
        for descriptor, end in opened.items():
            poller.register(descriptor, zmq.POLLIN | (zmq.POLLOUT if end.unsent else 0))
        for ready, mask in poller.poll(_milliseconds(seconds)):
            if mask & zmq.POLLOUT and isinstance(ready, int):
                opened[ready].flush()

    def send(self, message: News) -> None:
        """Send a message; it is queued while the controller cannot be reached.

        Set ``broken`` if the controller has refused the keys: ZeroMQ then drops the connection.
        """
        self._sent += 1
        body = msgspec.msgpack.encode(message)
        self._unread.append((self._sent, len(body)))
        try:
            self._socket.send_multipart([_NUMBER.pack(self._sent), body], zmq.NOBLOCK)
        except zmq.Again:
            self.broken = True

    def receive(self) -> list[Order]:
        """Return the messages that have arrived; set ``broken`` if one is missing or unreadable."""
        messages: list[Order] = []
        while not self.broken:
            try:
                number, body = self._socket.recv_multipart(zmq.NOBLOCK)
                (count,) = _NUMBER.unpack(number)
                message = self._decoder.decode(body)
            except zmq.Again:
                break
            except (ValueError, struct.error, msgspec.MsgspecError, RecursionError) as error:
                logger.warning("the controller sent a message that cannot be read (%s)", error)
                self.broken = True
                break
            self._received += 1
            self.broken = count != self._received or isinstance(message, Restart)
            if not self.broken:
                messages.append(message)
        return messages

    def acknowledge(self, received: int) -> None:
        """Note that the controller has read the first ``received`` messages."""
        self._unread = [sent for sent in self._unread if sent[0] > received]

    @property
    def unread(self) -> int:
        """Bytes sent in messages that the controller has not acknowledged."""
        return sum(size for _, size in self._unread)

    def close(self, last_words: bool = False) -> None:
        """End the conversation.

        Args:
            last_words: wait up to one second until queued messages are sent.
        """
        self._socket.close(_LAST_WORDS_MS if last_words else 0)
        if not self._shares_context:
            self._context.term()


def announce_leaving(run_dir: Path, hosts: Sequence[str], ends_at: float) -> None:
    """Notify the controller of a run that it will lose some hosts.

    Args:
        run_dir: directory of the run.
        hosts: ids of the hosts.
        ends_at: when they leave, in seconds since the epoch.

    Raises:
        StorageError: the controller's address or the keys cannot be read.
    """
    address = read_address(run_dir)
    if address is not None and address.port:
        link = AgentLink(address, read_keys(run_dir))
        link.send(HostsLeave(tuple(hosts), ends_at))
        link.close(last_words=True)


def _milliseconds(seconds: float) -> int:
    return max(0, math.ceil(seconds * 1000))


def _keep_alive(link: zmq.Socket[bytes]) -> None:
    """Enable TCP keepalive, so that the kernel closes connections to hosts that are gone."""
    link.set(zmq.TCP_KEEPALIVE, 1)
    link.set(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_SECONDS)
