"""Which address and interface of this host others reach."""

import fcntl
import socket
import struct

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.channel import Channel

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR, see netdevice(7)."""


def address_of(interface: str) -> str | None:
    """Give the IPv4 address of a network interface, None where it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def interfaces() -> dict[str, str]:
    """Give all interfaces of this host that have an IPv4 address."""
    names = [name for _, name in socket.if_nameindex()]
    return {name: address for name in names if (address := address_of(name))}


def own_address(interface: str | None, towards: str) -> str:
    """Give the address on which this host is reached, for a controller to listen on.

    Args:
        interface: the interface to use; the one that leads ``towards`` if None.
        towards: name or address of another host.

    Raises:
        ConfigError: there is no such interface, or no way to that host.
    """
    if interface is not None:
        found = interfaces()
        if interface not in found:
            raise ConfigError(
                f"machine.interface is '{interface}', but this host has "
                f"{', '.join(found)}: choose one of them."
            )
        return found[interface]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # sends nothing: only asks for the route
        except OSError as error:
            raise ConfigError(
                f"no way leads to host {towards} ({error.strerror}): set machine.interface."
            ) from error
        return str(probe.getsockname()[0])


def interface_of(wanted: str | None, channel: Channel) -> tuple[str, str]:
    """Give address and interface at which ranks of other hosts reach ours.

    Args:
        wanted: the interface to use, where this host has it.
        channel: to the controller; its own end tells the rest.
    """
    if wanted is not None and (address := address_of(wanted)):
        return address, wanted
    address = channel.own_address()
    names = [name for name, known in interfaces().items() if known == address]
    return address, names[0] if names else "lo"
