"""Ports: one per job, rested before they are used again."""

import socket

import pytest

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.host import ports
from hydragnn_hpo.launching.host.ports import PortPool


@pytest.fixture
def clock():
    now = [100.0]

    def read():
        return now[0]

    read.now = now
    return read


def test_ports_are_in_range_and_differ(clock):
    pool = PortPool(4711, clock)

    taken = [pool.take() for _ in range(500)]

    assert len(set(taken)) == 500
    assert all(20000 <= port < 30000 for port in taken)


def test_controllers_begin_at_different_places(clock):
    starts = [PortPool(pid, clock).take() for pid in range(1000, 1010)]

    assert len(set(starts)) == 10
    assert min(abs(a - b) for a in starts for b in starts if a != b) > 100


def test_a_port_rests_before_it_is_used_again(clock, monkeypatch):
    monkeypatch.setattr(ports, "COUNT", 2)
    pool = PortPool(0, clock)
    first, second = pool.take(), pool.take()
    pool.give_back(first)

    clock.now[0] += 59.0
    with pytest.raises(JobError, match="no free port in 20000-20001"):
        pool.take()
    clock.now[0] += 2.0
    assert pool.take() == first
    assert second != first


def test_a_port_that_a_job_brings_is_not_given_to_another(clock, monkeypatch):
    monkeypatch.setattr(ports, "COUNT", 3)
    pool = PortPool(0, clock)
    pool.reserve(20001)

    assert [pool.take(), pool.take()] == [20000, 20002]


def test_a_port_that_someone_listens_on_is_not_free():
    rested = []
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert not ports.is_free(port)
        rested.append(ports.is_free(port))
    assert any(rested), "of 20 one is not taken by others meanwhile"
