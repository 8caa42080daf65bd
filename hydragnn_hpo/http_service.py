"""HTTP services: a listening socket, serving on it until a signal, and the token of a service.

Knows floor 0 only, so that the dashboard runs without torch.
"""

import asyncio
import hmac
import ipaddress
import os
import secrets
import signal
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hydragnn_hpo.errors import ConfigError

HEAD_SECONDS = 10.0
"""Time from a connection, or the first byte of a further request, to the end of its headers."""
CONNECTIONS = 256
"""Most connections at a time."""
TOKEN_VARIABLE = "HYDRAGNN_HPO_TOKEN"
"""Environment variable that may hold the token."""
SHORTEST_TOKEN = 16
"""Fewest characters of a token that a person chose."""


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP that closes a connection whose headers do not arrive; uvicorn would wait for ever."""

    _header_timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the timeout runs while headers are incomplete."""
        self._start_timeout()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._stop_timeout()
        super().connection_lost(exc)

    def _start_timeout(self) -> None:
        if self._header_timeout is None and self.conn.their_state is h11.IDLE:
            self._header_timeout = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timeout(self) -> None:
        if self._header_timeout is not None:
            self._header_timeout.cancel()
            self._header_timeout = None


def is_loopback(host: str) -> bool:
    """Check whether only this computer can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes any free one.

    Raises:
        ConfigError: the address is not of this computer, or not free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen()  # early clients wait and are not refused
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or "
            "--host."
        ) from error
    return opened


def serve_on(opened: socket.socket, app: ASGIApp, *, grace: float) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new requests and answer those in progress.

    Args:
        opened: the listening socket.
        app: the ASGI application.
        grace: seconds for the answers in progress.
    """
    config = uvicorn.Config(
        app,
        http=HeaderTimeoutProtocol,
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
    # uvicorn re-raises the signal after shutdown, so install a no-op handler for it.
    before = {
        number: signal.signal(number, _ignore_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        uvicorn.Server(config).run(sockets=[opened])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the server has stopped already."""


# -- token -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """The secret that a client must send."""

    text: str
    """Printable ASCII without blanks."""
    made: bool
    """Whether it was generated just now and has to be shown."""

    def fits(self, header: str | None) -> bool:
        """Check in constant time whether an ``Authorization`` header is ``Bearer TOKEN``."""
        kind, _, sent = (header or "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode(), self.text.encode())
        return same and kind.lower() == "bearer"


def find_token(file: Path | None, environment: Mapping[str, str]) -> Token:
    """Return the token of a file, else of the environment, else generate one.

    Args:
        file: a file that only its owner may read.
        environment: may hold ``HYDRAGNN_HPO_TOKEN``.

    Raises:
        ConfigError: the file is missing or open to others, or the token is too short.
    """
    if file is not None:
        return Token(_sound(_read(file), str(file)), made=False)
    if TOKEN_VARIABLE in environment:
        return Token(_sound(environment[TOKEN_VARIABLE].strip(), TOKEN_VARIABLE), made=False)
    return Token(secrets.token_urlsafe(32), made=True)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4096)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give a file that holds the token."
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path}: others may read it; chmod 600 it, and change the token.")
    return content.decode("ascii", errors="replace").strip()


def _sound(text: str, where: str) -> str:
    if len(text) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in text):
        raise ConfigError(
            f"{where}: a token has at least {SHORTEST_TOKEN} printable ASCII characters and no "
            "blanks; openssl rand -hex 32 makes one."
        )
    return text
