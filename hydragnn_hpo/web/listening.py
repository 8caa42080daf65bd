"""Listen, serve until told to stop, and keep nobody waiting who says nothing."""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hydragnn_hpo.errors import ConfigError

HEAD_SECONDS = 10.0
"""Time from a connection, or the first byte of a further request, to the end of its headers."""
CONNECTIONS = 256
"""Most connections at a time."""


class Impatient(H11Protocol):
    """HTTP that ends a connection whose headers do not arrive; uvicorn would wait for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; the clock runs while headers are not whole."""
        self._arm()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clock."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._late is None and self.conn.their_state is h11.IDLE:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _disarm(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def is_loopback(host: str) -> bool:
    """Say whether only this computer reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Open the socket; port 0 takes any free one.

    Raises:
        ConfigError: the address is not ours or not free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen()  # who comes before we serve has to wait, and is not sent away
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or "
            "--host."
        ) from error
    return opened


class _Server(uvicorn.Server):
    """A server that says when it is asked to stop, so that answers without end can end."""

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping()
        super().handle_exit(sig, frame)


def serve_on(
    opened: socket.socket,
    app: ASGIApp,
    *,
    grace: float,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT: no new requests then, those inside are answered.

    Args:
        opened: where to listen.
        app: who answers.
        grace: seconds for the answers that are being given when it shall stop.
        stopping: called, inside a signal handler, when it shall stop.
    """
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    # uvicorn raises the signal anew when it has stopped; it shall find somebody at home.
    before = {number: signal.signal(number, _noted) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(config, stopping).run(sockets=[opened])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _noted(number: int, frame: object) -> None:
    """Stopping was asked for and is done."""
