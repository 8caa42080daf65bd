"""A listener on the wire between controller and agents learns nothing of a campaign."""

import contextlib
import ctypes
import fcntl
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.config.schema import to_toml

NEW_NETWORK = 0x40000000
"""``CLONE_NEWNET`` of ``unshare``, for the calling thread and what it starts."""

GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1
"""``SIOCGIFFLAGS``, ``SIOCSIFFLAGS``, ``IFF_UP``."""

EVERY_PROTOCOL = 0x0003
BUFFER = 64 << 20
MARKER = b"a marker in clear"

MECHANISM = b"CURVE" + bytes(15)
"""How ZeroMQ's greeting names its security mechanism. Source: RFC 37/ZMTP 3.1."""

SECRET = "undisclosed_strength"


class Wire:
    """All packets on the loopback interface of a network that holds one campaign and nothing else.

    One thread lives in that network, and so does what it starts.
    """

    def __init__(self) -> None:
        self._inside = ThreadPoolExecutor(1)
        self._packets = bytearray()
        self._closing = threading.Event()

    def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: this process may not.
        """
        self._socket = self.inside(_open_network)
        self._socket.settimeout(0.1)
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def inside(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function in that network."""
        return self._inside.submit(function, *arguments, **options).result()

    def _listen(self) -> None:
        while True:
            try:
                self._packets += self._socket.recv(1 << 17)
            except TimeoutError:
                if self._closing.is_set():
                    return

    def close(self) -> bytes:
        """Return what was heard until now; no packet may have been dropped."""
        self._closing.set()
        self._listener.join()
        statistics = self._socket.getsockopt(263, 6, 8)  # SOL_PACKET, PACKET_STATISTICS
        self._socket.close()
        self._inside.shutdown()
        packets, dropped = struct.unpack("II", statistics)
        assert packets > 0
        assert dropped == 0, f"{dropped} of {packets} packets were dropped"
        return bytes(self._packets)


def _open_network() -> socket.socket:
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "no network of its own")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, GET_FLAGS, name), 16)
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
    packets.setsockopt(socket.SOL_SOCKET, 33, BUFFER)  # SO_RCVBUFFORCE
    packets.bind(("lo", 0))
    return packets


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    try:
        made.open()
    except OSError as error:
        pytest.skip(f"packets cannot be captured ({error}): run as root.")
    yield made
    with contextlib.suppress(OSError):
        made.close()


def send_marker() -> None:
    """Send the marker over a plain TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(MARKER)
        with server.accept()[0] as end:
            assert end.recv(100) == MARKER


def command_campaign(hpo) -> Path:
    """Write a campaign whose hyperparameters travel: as arguments, and in records."""
    return hpo.fake_campaign(
        trial={"x": 0.5},
        space={"x": None, SECRET: {"low": 0.0, "high": 1.0}},
        search={"trials": 4, "rungs": [2]},
    )


def training_campaign(hpo) -> Path:
    """Write a campaign of which some trials have two ranks, which meet over the same wire."""
    hpo.card(hpo.molecules(60))
    values = {"training.learning_rate": {"low": 1e-3, "high": 4e-3, "log": True}}
    return hpo.campaign(
        space={"model.conv": ["schnet", "painn"], "model.layers": None, **values},
        machine={"slots": 2, "max_width": 2},
        search={"trials": 3, "initial": 3, "rungs": [2], "finalists": 2},
        ensemble={"members": 2},
    )


def words_of(value: Any) -> set[bytes]:
    """Return a value as it would stand in JSON, in MessagePack and in memory."""
    if isinstance(value, float):
        text = {json.dumps(value).encode(), to_toml({"v": value}).split()[-1].encode()}
        return text | {struct.pack(">d", value), struct.pack("<d", value)}
    return {str(value).encode()}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(command_campaign, marks=pytest.mark.slow),
        pytest.param(training_campaign, marks=pytest.mark.stress),
    ],
)
def test_neither_trials_nor_hyperparameters_go_in_clear(hpo, wire, make):
    run = hpo.folder / "run"
    wire.inside(send_marker)

    done = wire.inside(hpo, "run", make(hpo), "--run", run)

    assert done.code == 0, done.err
    traffic = wire.close()
    assert MARKER in traffic, "nothing was captured"
    assert MECHANISM in traffic, "the captured campaign speaks no ZeroMQ with CURVE"
    proposed = [
        event for event in read_journal(run / "events.jsonl") if event["event"] == "proposed"
    ]
    assert len(proposed) >= 3
    words = {event["trial"].encode() for event in proposed}
    for event in proposed:
        for name, value in event["values"].items():
            words |= {name.encode(), *words_of(value)}
    assert [word for word in words if word in traffic] == []
