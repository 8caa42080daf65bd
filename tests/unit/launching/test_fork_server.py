"""How the end of a fork server is explained."""

import os
import signal

import pytest
from processes import until

from hydragnn_hpo.config import OUT_OF_MEMORY
from hydragnn_hpo.launching import fork_server
from hydragnn_hpo.launching.fork_server import ForkServerProcess
from hydragnn_hpo.leases import RankLease


@pytest.fixture
def kills(monkeypatch):
    """Count the kernel's kills for lack of memory as a test says."""
    counted = [3]
    monkeypatch.setattr(fork_server, "count_memory_kills", lambda: counted[0])
    return counted


@pytest.fixture
def server(kills):
    server = ForkServerProcess("token", (), RankLease.create())
    until(lambda: server.receive(), "its first word")
    yield server
    server.end()


def kill(server):
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: server.ended, "its end")


def test_ranks_of_a_server_that_was_killed_for_memory_are_too(server, kills):
    server.ping(0.0)
    kills[0] += 1
    server.ping(1.0)  # the kernel counts first, and takes its time
    kill(server)
    assert server.exit_code() == OUT_OF_MEMORY


def test_kills_of_others_before_are_not_its_own(server, kills):
    kills[0] += 1
    server.ping(0.0)
    server.ping(1.0)
    kill(server)
    assert server.exit_code() == -signal.SIGKILL


def test_a_server_that_ends_otherwise_was_not_killed(server, kills):
    server.socket.close()  # as if its agent were gone
    until(lambda: server.process.poll() is not None, "its end")
    kills[0] += 1
    assert server.exit_code() == -signal.SIGKILL
