"""Addresses and interfaces of this host."""

import socket

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host import network
from hydragnn_hpo.launching.wire.channel import Channel


def test_loopback_is_an_interface():
    assert network.address_of("lo") == "127.0.0.1"
    assert network.interfaces()["lo"] == "127.0.0.1"
    assert network.address_of("none0") is None


def test_the_way_to_a_host_decides_where_we_listen():
    assert network.own_address(None, "127.0.0.1") == "127.0.0.1"
    assert network.own_address("lo", "192.0.2.1") == "127.0.0.1"


def test_an_interface_that_is_not_there_is_said():
    with pytest.raises(ConfigError, match="machine.interface is 'hsn7', but this host has .*lo"):
        network.own_address("hsn7", "127.0.0.1")
    with pytest.raises(ConfigError, match="no way leads to host no.such.host.invalid"):
        network.own_address(None, "no.such.host.invalid")


def test_ranks_are_reached_as_the_agent_reaches_its_controller():
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = Channel(socket.create_connection(server.getsockname()))
        assert network.interface_of((), channel) == ("127.0.0.1", "lo")
        assert network.interface_of(("none0", "lo"), channel) == ("127.0.0.1", "lo")
        assert network.interface_of(("none0",), channel) == ("127.0.0.1", "lo")
        channel.close()


@pytest.mark.parametrize(
    ("found", "kept"),
    [("1027", {}), (None, {}), ("1027,1031", {"SLINGSHOT_VNIS": "1031"})],
)
def test_ranks_of_several_steps_meet_on_the_network_of_their_job(found, kept):
    """Slurm lists a step's VNI first, then the job's; libfabric takes the first."""
    environment = {} if found is None else {"SLINGSHOT_VNIS": found}
    assert network.network_of_job(environment) == kept
