"""The door: whoever knows the token comes in, and nobody else costs anything."""

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import replace

import pytest
from processes import SECONDS, until

from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.launching.wire import door as doors
from hydragnn_hpo.launching.wire.channel import Channel, wait
from hydragnn_hpo.launching.wire.door import Door, DoorPlate, dial, door_file

TOKEN = "a token of our own"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(doors, "STRANGER_SECONDS", SECONDS)


@pytest.fixture
def door():
    door = Door("127.0.0.1", TOKEN)
    yield door
    door.close()


@pytest.fixture
def plate(door):
    return DoorPlate(door.address, door.port, 1, TOKEN, 10.0, "tag")


def serve(door, seconds=SECONDS, until=None):
    """Be a controller's loop for a while; gives who came in."""
    admitted = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not admitted and not (until and until()):
        door.admit()
        wait([s.channel for s in door.strangers.values()], 0.02)
        admitted += [c for c in map(door.hear, list(door.strangers)) if c]
        door.drop_slow(time.monotonic())
    return admitted


def call(plate):
    """Dial in a thread; gives a list that will hold the answer."""
    answer = []
    thread = threading.Thread(target=lambda: answer.append(dial(plate, SECONDS)), daemon=True)
    thread.start()
    return answer, thread


def frame(message):
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def shown_out(door, stranger):
    """Serve until a stranger is hung up on; gives what it was told before."""
    told, over = [], []
    stranger.setblocking(False)

    def look():
        with contextlib.suppress(BlockingIOError):
            try:
                told.append(stranger.recv(4096))
            except ConnectionResetError:  # words of it were not read any more
                told.append(b"")
            over.extend(word for word in told if not word)
        return over

    assert serve(door, until=look) == []
    assert over, "it is still inside"
    assert door.strangers == {}
    return b"".join(told)


def test_both_sides_prove_that_they_know_the_token(door, plate):
    answer, thread = call(plate)

    (ours,) = serve(door)
    thread.join(60)
    (theirs,) = answer
    theirs.send({"large": "x" * 100_000})
    got = []
    while not got:
        wait([theirs, ours], 60.0)
        got += ours.receive()

    assert got == [{"large": "x" * 100_000}]
    assert door.strangers == {}
    ours.close()
    theirs.close()


def test_who_has_another_token_is_turned_away(door, plate):
    answer, thread = call(replace(plate, token="another"))

    assert serve(door, until=lambda: not thread.is_alive()) == []
    thread.join(60)
    assert answer == [None]


def test_an_agent_believes_no_controller_that_does_not_know_the_token(plate):
    """It gets nonces, and gives no token away that could be used at the real door."""
    with socket.create_server(("127.0.0.1", 0)) as liar:
        answer, thread = call(replace(plate, port=liar.getsockname()[1]))
        connection, _ = liar.accept()
        connection.sendall(frame({"nonce": "00"}))
        heard = connection.recv(4096)
        connection.sendall(frame({"proof": json.loads(heard[4:])["proof"]}))
        thread.join(60)
        assert answer == [None]
        assert TOKEN.encode() not in heard
        connection.close()


def test_a_proof_is_good_for_one_connection_only(door, plate):
    said = []

    def overhear(self, message, send=Channel.send):
        said.append(message)
        send(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "send", overhear)
        answer, thread = call(plate)
        (ours,) = serve(door)
        thread.join(60)
    (proof,) = [m for m in said if "nonce" in m and "proof" in m]
    with socket.create_connection((plate.address, plate.port)) as thief:
        thief.sendall(frame(proof))
        shown_out(door, thief)
    ours.close()
    answer[0].close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 600) + b"x" * 600,
        struct.pack("!I", 513),
        frame({"nonce": "x"}),
        frame({"nonce": 1, "proof": 2}),
        frame({"nonce": "\u00e9", "proof": "\u00e9"}),
        frame([1, 2]),
        frame(7),
        struct.pack("!I", 400) + b"[" * 400,
        struct.pack("!I", 4) + b"\xff\xfe{}",
        frame({"nonce": "x", "proof": "y"}) * 2,
        b"",
    ],
)
def test_strangers_are_shown_out_at_once(door, plate, said):
    with socket.create_connection((plate.address, plate.port)) as stranger:
        stranger.sendall(said)
        if not said:
            stranger.shutdown(socket.SHUT_WR)
        said_to_them = shown_out(door, stranger)
        assert json.loads(said_to_them[4:]).keys() == {"nonce"}


def test_who_says_nothing_is_shown_out_in_time_and_blocks_nobody(door, plate):
    silent = [socket.create_connection((plate.address, plate.port)) for _ in range(20)]
    answer, thread = call(plate)

    (ours,) = serve(door)
    thread.join(60)
    assert len(door.strangers) == 20
    door.drop_slow(time.monotonic())
    assert len(door.strangers) == 20, "their time is not over"
    door.drop_slow(time.monotonic() + SECONDS)

    assert door.strangers == {}
    for connection in silent:
        connection.settimeout(60)
        assert len(connection.recv(4096)) > 0
        assert connection.recv(4096) == b""
    for connection in (*silent, ours, answer[0]):
        connection.close()


def test_a_crowd_of_strangers_loses_its_eldest(door, plate, monkeypatch):
    monkeypatch.setattr(doors, "_STRANGERS", 3)
    crowd, came = [], []
    for number in range(1, 6):
        crowd.append(socket.create_connection((plate.address, plate.port)))
        until(lambda n=number: came.extend(door.admit()) or len(came) == n, "stranger")

    assert len(door.strangers) == 3
    crowd[0].settimeout(60)
    crowd[0].recv(4096)
    assert crowd[0].recv(4096) == b""
    for connection in crowd:
        connection.close()


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_nobody_listens_on_every_interface(address):
    with pytest.raises(JobError, match="listens on one interface only"):
        Door(address, TOKEN)


def test_an_address_that_is_not_ours_is_said():
    with pytest.raises(JobError, match=r"cannot listen on 192.0.2.1 .*set machine.interface"):
        Door("192.0.2.1", TOKEN)  # TEST-NET-1, RFC 5737


def test_nobody_at_home_is_no_error(door, plate):
    door.close()

    assert dial(plate, 0.5) is None


def test_the_door_file_is_for_our_eyes_only(tmp_path, plate):
    plate.write(tmp_path)

    assert door_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert DoorPlate.read(tmp_path) == plate
    assert DoorPlate.read(tmp_path / "elsewhere") is None


def test_a_damaged_door_file_is_said():
    with pytest.raises(StorageError, match="the door file is damaged"):
        DoorPlate.of({"address": "x"})
