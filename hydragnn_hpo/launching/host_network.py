"""Addresses, interfaces and free ports of this host."""

import errno
import fcntl
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping

from hydragnn_hpo.errors import ConfigError, JobError

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR, see netdevice(7)."""

_VNIS = "SLINGSHOT_VNIS"


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of a network interface, None where it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def interfaces() -> dict[str, str]:
    """Return all interfaces of this host that have an IPv4 address.

    Returns:
        Name -> address.
    """
    names = [name for _, name in socket.if_nameindex()]
    return {name: address for name in names if (address := address_of(name))}


def own_address(interface: str | None, towards: str) -> str:
    """Return the address on which this host is reached, for a controller to listen on.

    Args:
        interface: the interface to use; the one that leads ``towards`` if None.
        towards: name or address of another host.

    Raises:
        ConfigError: there is no such interface, or no route to that host.
    """
    if interface is not None:
        known = interfaces()
        if interface not in known:
            raise ConfigError(
                f"machine.interface is '{interface}', but this host has "
                f"{', '.join(known)}: choose one of them."
            )
        return known[interface]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # sends nothing: only asks for the route
        except OSError as error:
            raise ConfigError(
                f"no way leads to host {towards} ({error.strerror}): set machine.interface."
            ) from error
        return str(probe.getsockname()[0])


def network_of_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a Slurm job's VNI alone, by which ranks of different steps connect on Slingshot.

    An agent that replaces a lost one has its own step. Each step has its own VNI, followed by the
    job's if ``--network=job_vni`` was requested; libfabric uses the first.

    Returns:
        Variable to set in the environment of ranks; empty where there is only one VNI.

    Source: Margo, "HPE Slingshot (CXI) network considerations", mochi.readthedocs.io.
    """
    _, several, job = environment.get(_VNIS, "").rpartition(",")
    return {_VNIS: job} if several else {}


def first_there(wanted: Iterable[str]) -> str | None:
    """Return the first of the wanted interfaces that has an address here; None if none has."""
    return next((name for name in wanted if address_of(name)), None)


def interface_of(wanted: Iterable[str], towards: str) -> tuple[str, str]:
    """Find the address at which ranks of other hosts reach those of this host.

    Args:
        wanted: interfaces in order of preference.
        towards: address of the controller; the route to it decides where none of them has one.

    Returns:
        Address and interface.

    Raises:
        ConfigError: there is no route to the controller.
    """
    for name in wanted:
        if address := address_of(name):
            return address, name
    address = own_address(None, towards)
    return address, next((n for n, known in interfaces().items() if known == address), "lo")


FIRST = 20000
COUNT = 10000
REST_SECONDS = 60.0
"""Seconds for which a port is not reused after its job, so that late peers connect to nothing."""


def is_free(port: int) -> bool:
    """Check whether nothing on this host listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


class PortPool:
    """Assigns the ports of one address, below the range of the kernel's ephemeral ports.

    The agent on the host checks whether another program listens on a port, see ``is_free``.
    """

    def __init__(self, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at a port that depends on ``seed`` (a pid), so that controllers spread out."""
        self._next = seed * 7919 % COUNT
        self._clock = clock
        self._taken: set[int] = set()
        self._resting: dict[int, float] = {}

    def take(self) -> int:
        """Return a port that no job uses or has used within ``REST_SECONDS``.

        Raises:
            JobError: all ports are in use.
        """
        now = self._clock()
        for _ in range(COUNT):
            port = FIRST + self._next
            self._next = (self._next + 1) % COUNT
            if port not in self._taken and self._resting.get(port, now) <= now:
                self.reserve(port)
                return port
        raise JobError(
            f"no free port in {FIRST}-{FIRST + COUNT - 1} on this host: end what listens there."
        )

    def reserve(self, port: int) -> None:
        """Mark a port as used by a job."""
        self._resting.pop(port, None)
        self._taken.add(port)

    def give_back(self, port: int) -> None:
        """Return a port to the pool; it is reused after ``REST_SECONDS``."""
        self._taken.discard(port)
        self._resting[port] = self._clock() + REST_SECONDS
