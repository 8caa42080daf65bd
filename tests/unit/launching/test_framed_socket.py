"""Framed sockets: whole messages, in order, and never a wait."""

import socket
import struct
import time

import msgspec
import pytest

from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable


@pytest.fixture
def ends():
    sockets = socket.socketpair()
    for end in sockets:  # some sites let them hold megabytes
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    pair = [FramedSocket(end, dict) for end in sockets]
    yield pair
    for end in pair:
        end.close()


def test_a_message_that_comes_in_pieces_is_given_once_it_is_whole():
    here, there = socket.socketpair()
    framed = FramedSocket(here, dict)
    body = msgspec.msgpack.encode({"a": 1})
    frame = struct.pack("!I", len(body)) + body
    for byte in frame[:-1]:
        there.send(bytes([byte]))
        assert framed.receive() == []

    there.send(frame[-1:])

    assert framed.receive() == [{"a": 1}]
    there.close()
    framed.close()


@pytest.mark.timeout(300)  # nobody reads: to wait for room would be to wait for ever
def test_what_finds_no_room_waits_without_blocking(ends):
    for number in range(50):
        ends[0].send({"number": number, "text": "x" * 100_000})
    assert ends[0].unsent > 0

    got = []
    while len(got) < 50:
        wait_readable(ends, 0.1)
        got += ends[1].receive()

    assert [message["number"] for message in got] == list(range(50))
    assert ends[0].unsent == 0


def test_the_last_words_of_a_peer_are_received_and_speaking_to_a_closed_one_is_no_error(ends):
    ends[0].send({"a": 1})
    ends[0].close()

    ends[1].send({"a": 1})
    ends[1].send({"a": 2})

    assert ends[1].receive() == [{"a": 1}]
    assert ends[1].closed


def test_wait_returns_when_a_descriptor_can_be_read_or_in_time(ends):
    here, there = socket.socketpair()
    began = time.monotonic()
    wait_readable([ends[1]], 0.1, also=[here.fileno()])
    assert time.monotonic() - began > 0.09
    there.send(b"x")

    wait_readable([ends[1]], 1200.0, also=[here.fileno()])

    assert time.monotonic() - began < 600.0
    here.close()
    there.close()
