"""The link: who may speak over it, what is lost when, and what others can read of it."""

import contextlib
import math
import os
import socket
import stat
import threading
import time

import msgspec
import pytest
import zmq
from processes import until

from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.launching.link import (
    AgentLink,
    BrokenPeer,
    ControllerAddress,
    ControllerLink,
    find_keys,
    read_address,
    read_keys,
)
from hydragnn_hpo.launching.protocol import AskRank, ForkServerReady, Goodbye, Heartbeat, NewRecords

SECONDS = 60.0


@pytest.fixture
def controller(tmp_path):
    link = ControllerLink("127.0.0.1", find_keys(tmp_path))
    yield link
    link.close()


@pytest.fixture
def connect(tmp_path, controller):
    links = []

    def make(keys=None):
        to = ControllerAddress("127.0.0.1", controller.port, 1, 10.0, "run")
        links.append(AgentLink(to, keys or read_keys(tmp_path)))
        return links[-1]

    yield make
    for link in links:
        link.close()


def read(controller, count=1):
    """Return so many messages of agents, in their order."""
    messages = []
    until(lambda: messages.extend(controller.receive(0.05)) or len(messages) >= count, "messages")
    return messages


def test_an_agent_that_waits_wakes_with_a_message(controller, connect):
    """It waits for ten minutes, more than a test may take."""
    agent = connect()
    agent.send(Heartbeat(1.0))
    [(sender, _)] = read(controller)
    thread = threading.Thread(target=agent.wait, args=(600.0,), daemon=True)
    thread.start()
    controller.send(sender, Heartbeat(2.0))
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_keys_and_their_folder_are_for_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        keys = find_keys(tmp_path)
    finally:
        os.umask(before)

    path = tmp_path / "controller" / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_keys(tmp_path) == keys, "a successor has the keys that running agents know"
    assert keys.server_secret != keys.agent_secret


@pytest.mark.parametrize("content", ["", "{}", '{"server_public": 1}', "\0\1\2"])
def test_damaged_keys_are_a_sentence(tmp_path, content):
    find_keys(tmp_path)
    (tmp_path / "controller" / "keys.json").write_text(content)
    with pytest.raises(StorageError, match=r"keys.json: holds no keys .* remove it and run again"):
        find_keys(tmp_path)


@pytest.mark.parametrize("address", ["0.0.0.0", "*", "", "::"])
def test_it_never_listens_on_all_interfaces(tmp_path, address):
    with pytest.raises(JobError, match="one interface only"):
        ControllerLink(address, find_keys(tmp_path))


def test_an_address_of_another_host_is_a_sentence(tmp_path):
    with pytest.raises(JobError, match=r"cannot listen on 192\.0\.2\.1 .*: set machine.interface"):
        ControllerLink("192.0.2.1", find_keys(tmp_path))


def test_messages_without_the_keys_of_the_run_are_ignored(tmp_path, controller, connect):
    ours = read_keys(tmp_path)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other_server, _ = (key.decode() for key in zmq.curve_keypair())
    strangers = [
        connect(msgspec.structs.replace(ours, agent_public=public, agent_secret=secret)),
        connect(msgspec.structs.replace(ours, agent_secret=secret)),
        connect(msgspec.structs.replace(ours, server_public=other_server)),
    ]
    for stranger in strangers:
        stranger.send(Heartbeat(6.66))
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.set(zmq.LINGER, 0)
    plain.connect(f"tcp://127.0.0.1:{controller.port}")
    plain.send_multipart([b"\0" * 7 + b"\1", msgspec.msgpack.encode(Heartbeat(6.66))])
    friend = connect()
    friend.send(Heartbeat(1.0))

    assert [message for _, message in read(controller)] == [Heartbeat(1.0)]
    time.sleep(0.3)
    assert list(controller.receive(0.2)) == []
    refused = strangers[0]
    until(lambda: refused.send(Heartbeat(6.66)) or refused.broken, "the refusal")
    assert not friend.broken
    plain.close()
    context.term()


def test_a_replayed_conversation_is_not_read(tmp_path, controller):
    """What was recorded of an agent on the wire is sent again, byte for byte."""
    proxy = socket.create_server(("127.0.0.1", 0))
    to = ControllerAddress("127.0.0.1", proxy.getsockname()[1], 1, 10.0, "run")
    agent = AgentLink(to, read_keys(tmp_path))
    agent.send(Heartbeat(1.0))
    inner, _ = proxy.accept()
    outer = socket.create_connection(("127.0.0.1", controller.port))
    recorded = bytearray()
    received = []
    for end in (inner, outer):
        end.setblocking(False)

    def forward():
        for source, target in ((inner, outer), (outer, inner)):
            with contextlib.suppress(BlockingIOError):
                chunk = source.recv(1 << 16)
                recorded.extend(chunk if source is inner else b"")
                target.sendall(chunk)
        received.extend(controller.receive(0.01))
        return received

    until(forward, "the message")
    assert [message for _, message in received] == [Heartbeat(1.0)]
    assert b"Heartbeat" not in recorded
    again = socket.create_connection(("127.0.0.1", controller.port))
    again.sendall(recorded)
    time.sleep(0.5)
    assert list(controller.receive(0.2)) == []
    agent.close()
    for end in (inner, outer, again, proxy):
        end.close()


def test_garbage_and_thousands_of_half_open_connections_keep_no_agent_out(controller, connect):
    strangers = [
        socket.create_connection(("127.0.0.1", controller.port), SECONDS) for _ in range(2000)
    ]
    for number, stranger in enumerate(strangers[:500]):
        stranger.setblocking(False)
        stranger.send(os.urandom(100) if number % 2 else b"GET / HTTP/1.1\r\n\r\n" * 5)
    agent = connect()
    agent.send(Heartbeat(1.0))

    assert [message for _, message in read(controller)] == [Heartbeat(1.0)]
    for stranger in strangers:
        stranger.close()


FRAMES = {
    "one frame": [b"x"],
    "three frames": [b"\0" * 7 + b"\1", b"x", b"y"],
    "short number": [b"\1", msgspec.msgpack.encode(Heartbeat(1.0))],
    "no MessagePack": [b"\0" * 7 + b"\2", b"\xc1\xc1"],
    "unknown type": [b"\0" * 7 + b"\2", msgspec.msgpack.encode(["Sudo", 1])],
    "wrong fields": [b"\0" * 7 + b"\2", msgspec.msgpack.encode(["Heartbeat", "soon"])],
    "order of the controller": [b"\0" * 7 + b"\2", msgspec.msgpack.encode(Goodbye("x"))],
    "no finite number": [b"\0" * 7 + b"\2", msgspec.msgpack.encode(ForkServerReady(math.nan, 1))],
    "a list": [b"\0" * 7 + b"\2", msgspec.msgpack.encode([1, 2, 3])],
    "an object": [b"\0" * 7 + b"\2", msgspec.msgpack.encode({"kind": "beat"})],
    "endless nesting": [b"\0" * 7 + b"\2", b"\x91" * 1_000_000],
    "number again": [b"\0" * 7 + b"\1", msgspec.msgpack.encode(Heartbeat(2.0))],
    "number left out": [b"\0" * 7 + b"\3", msgspec.msgpack.encode(Heartbeat(2.0))],
}


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES)
def test_nonsense_from_an_agent_with_the_keys_ends_its_conversation_alone(
    tmp_path, controller, connect, frames
):
    keys = read_keys(tmp_path)
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.curve_serverkey = keys.server_public.encode()
    peer.curve_publickey = keys.agent_public.encode()
    peer.curve_secretkey = keys.agent_secret.encode()
    peer.set(zmq.LINGER, 0)
    peer.connect(f"tcp://127.0.0.1:{controller.port}")
    peer.send_multipart([b"\0" * 7 + b"\1", msgspec.msgpack.encode(Heartbeat(1.0))])
    read(controller)

    peer.send_multipart(frames)

    ((_, broken),) = read(controller)
    assert isinstance(broken, BrokenPeer)
    peer.send_multipart([b"\0" * 7 + b"\4", msgspec.msgpack.encode(Heartbeat(3.0))])
    connect().send(Heartbeat(5.0))
    assert [message for _, message in read(controller)] == [Heartbeat(5.0)]
    peer.close()
    context.term()


def test_an_agent_that_another_controller_knew_begins_again(controller, connect):
    agent = connect()
    agent.send(Heartbeat(1.0))
    ((peer, _),) = read(controller)
    controller.forget(peer)

    agent.send(Heartbeat(2.0))

    until(lambda: list(controller.receive(0.05)) or agent.receive() or agent.broken, "restart")
    assert agent.broken


def test_orders_that_were_lost_end_the_conversation(controller, connect):
    """ZeroMQ drops what it cannot deliver, and does not say so: the next number does."""
    agent = connect()
    agent.send(Heartbeat(1.0))
    ((peer, _),) = read(controller)
    controller.send(peer, AskRank("j", "yield"))
    controller._peers[peer].sent += 1
    controller.send(peer, AskRank("j", "stop"))

    orders = []
    until(lambda: orders.extend(agent.receive()) or agent.broken, "the gap")
    assert orders == [AskRank("j", "yield")]


def test_what_waits_to_be_read_is_known(controller, connect):
    agent = connect()
    for number in range(3):
        agent.send(NewRecords("j", [{"text": "x" * 1000}], number))
    assert agent.unread > 3000
    messages = read(controller, 3)
    assert [message.offset for _, message in messages] == [0, 1, 2]
    assert controller.received(messages[0][0]) == 3

    agent.acknowledge(2)

    assert 1000 < agent.unread < 2000


def test_an_address_is_read_as_it_was_written(tmp_path):
    assert read_address(tmp_path) is None
    (tmp_path / "controller").mkdir()
    address = ControllerAddress("10.0.0.1", 5555, 3, 10.0, "run", "77")
    address.write(tmp_path)
    assert read_address(tmp_path) == address
    (tmp_path / "controller" / "address.json").write_text("{")
    with pytest.raises(StorageError, match=r"address\.json: cannot be read .*: run again"):
        read_address(tmp_path)
