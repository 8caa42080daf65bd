"""Thousands of lines: who speaks is heard, what must wait goes out, who leaves is forgotten."""

import socket
import time

import pytest

from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.switchboard import Switchboard


@pytest.fixture
def board():
    board = Switchboard()
    yield board
    board.close()


@pytest.fixture
def ends():
    sockets = socket.socketpair()
    for end in sockets:  # some sites let them hold megabytes
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    pair = [Channel(end) for end in sockets]
    yield pair
    for end in pair:
        end.close()


def test_a_line_that_has_news_is_served(board, ends):
    heard = []
    board.add(ends[1], lambda: heard.extend(ends[1].receive()))
    ends[0].send({"a": 1})

    board.wait(60.0)

    assert heard == [{"a": 1}]
    began = time.monotonic()
    board.wait(0.1)
    assert time.monotonic() - began > 0.09


def test_what_finds_no_room_goes_out_later(board, ends):
    got = []
    board.add(ends[0], ends[0].receive)
    board.add(ends[1], lambda: got.extend(ends[1].receive()))
    for number in range(50):
        board.send(ends[0], {"number": number, "text": "x" * 100_000})
    assert ends[0].unsent

    deadline = time.monotonic() + 60
    while len(got) < 50 and time.monotonic() < deadline:
        board.wait(0.1)

    assert [message["number"] for message in got] == list(range(50))
    assert not ends[0].unsent
    began = time.monotonic()
    board.wait(0.1)  # nothing wants to be written any more
    assert time.monotonic() - began > 0.09


def test_a_descriptor_that_is_used_again_is_another_line(board):
    heard = []
    first = [Channel(end) for end in socket.socketpair()]
    board.add(first[1], lambda: heard.append("first"))
    number = first[1].fileno()
    for end in first:
        end.close()
    second = [Channel(end) for end in socket.socketpair()]
    assert number in [end.fileno() for end in second]
    for end in second:
        board.add(end, lambda: heard.append("second"))

    second[0].send({})
    board.wait(60.0)

    assert heard == ["second"]
    for end in second:
        end.close()


def test_who_is_removed_is_not_called(board, ends):
    board.add(ends[1], lambda: pytest.fail("called"))
    ends[0].send({})

    board.remove(ends[1])
    board.wait(0.05)
    board.remove(ends[1])
