"""Addresses and interfaces of this host."""

import socket

import pytest

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching import host_network
from hydragnn_hpo.launching.host_network import PortPool


def test_an_interface_that_is_not_there_is_reported():
    with pytest.raises(ConfigError, match="machine.interface is 'hsn7', but this host has .*lo"):
        host_network.own_address("hsn7", "127.0.0.1")
    with pytest.raises(ConfigError, match="no way leads to host no.such.host.invalid"):
        host_network.own_address(None, "no.such.host.invalid")


def test_ranks_are_reached_as_the_agent_reaches_its_controller():
    assert host_network.own_address(None, "127.0.0.1") == "127.0.0.1"
    assert host_network.own_address("lo", "192.0.2.1") == "127.0.0.1"
    assert host_network.interface_of((), "127.0.0.1") == ("127.0.0.1", "lo")
    assert host_network.interface_of(("none0", "lo"), "192.0.2.1") == ("127.0.0.1", "lo")
    assert host_network.interface_of(("none0",), "127.0.0.1") == ("127.0.0.1", "lo")


@pytest.mark.parametrize(
    ("networks", "kept"),
    [("1027", {}), (None, {}), ("1027,1031", {"SLINGSHOT_VNIS": "1031"})],
)
def test_ranks_of_several_steps_meet_on_the_network_of_their_job(networks, kept):
    """Slurm lists a step's VNI first, then the job's; libfabric takes the first."""
    environment = {} if networks is None else {"SLINGSHOT_VNIS": networks}
    assert host_network.network_of_job(environment) == kept


@pytest.fixture
def clock():
    now = [100.0]

    def read():
        return now[0]

    read.now = now
    return read


def test_ports_are_in_range_and_differ_also_between_controllers(clock):
    pool = PortPool(4711, clock)
    taken = [pool.take() for _ in range(500)]
    assert len(set(taken)) == 500
    assert all(20000 <= port < 30000 for port in taken)

    starts = [PortPool(pid, clock).take() for pid in range(1000, 1010)]
    assert min(abs(a - b) for a in starts for b in starts if a is not b) > 100


def test_a_port_rests_before_it_is_used_again(clock, monkeypatch):
    monkeypatch.setattr(host_network, "COUNT", 2)
    pool = PortPool(0, clock)
    first = pool.take()
    second = pool.take()
    pool.give_back(first)

    clock.now[0] += 59.0
    with pytest.raises(JobError, match="no free port in 20000-20001"):
        pool.take()
    clock.now[0] += 2.0
    assert pool.take() == first
    assert second != first


def test_a_port_that_a_job_brings_is_not_given_to_another(clock, monkeypatch):
    monkeypatch.setattr(host_network, "COUNT", 3)
    pool = PortPool(0, clock)
    pool.reserve(20001)

    assert [pool.take(), pool.take()] == [20000, 20002]


def test_a_port_that_someone_listens_on_is_not_free():
    rested = []
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert not host_network.is_free(port)
        rested.append(host_network.is_free(port))
    assert any(rested), "of 20 one is not taken by others meanwhile"
