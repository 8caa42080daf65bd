"""A real Ray cluster of four hosts: jobs, other users, and every kind of death."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from playing import SECONDS, Play
from processes import find_orphans, named_so, send, until
from processes import is_alive as alive
from ray_cluster import STORE, RayCluster, make_token

from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.process_control import HOST, end_tagged, find_tagged, host_tag, run_tag
from hydragnn_hpo.launching.transports import ray
from hydragnn_hpo.launching.transports.ray import (
    LOGS,
    ClusterHosts,
    DriverProcess,
    JoinCluster,
    RayTransport,
)

pytestmark = pytest.mark.stress
PYTHONPATH = {"PYTHONPATH": str(Path(__file__).parents[1] / "contracts")}
KINDS = {name: f"rank_targets:{name}" for name in ("nothing", "sleep", "emit", "all_reduce")}
LEASE = 15.0
"""A test may wait for its end."""


class RayPlay(Play):
    """A backend on the cluster."""

    def __init__(self, cluster: RayCluster, folder: Path, hosts: int, preload=()) -> None:
        machine = MachineConfig(
            backend="ray", address=cluster.address, hosts=hosts, lease_seconds=LEASE
        )
        environment = cluster.environment
        transport = RayTransport(machine, run_dir=folder, environment=environment)
        super().__init__(fleet_on(transport, machine, folder, preload, jobs=KINDS), folder)
        self.until(lambda: len(self.events_of("host_joined")) >= hosts, "hosts")

    def driver(self) -> int:
        (only,) = named_so(find_orphans(run_tag(self.folder)), "hpo-ray-driver")
        return only


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for Ray, which imports for seconds, however busy this machine is."""
    monkeypatch.setattr(ray, "_RESERVE_SECONDS", SECONDS)


@pytest.fixture
def open_play(ray_cluster, tmp_path, monkeypatch):
    """Open a backend on some hosts; it and all below it are ended."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH["PYTHONPATH"])
    opened = []

    def make(hosts, **more):
        opened.append(RayPlay(ray_cluster, tmp_path, hosts, **more))
        return opened[-1]

    yield make
    for play in opened:
        play.backend.close()
    assert find_orphans(run_tag(tmp_path)) == []


def test_ranks_on_several_hosts_meet(open_play):
    play = open_play(2, preload=("torch", "torch.distributed", "torch._dynamo"))
    slots = play.backend.slots
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    assert [slot.host for slot in slots] == [host for host in hosts for _ in range(2)]
    assert len(hosts) == 2

    job = play.start("all_reduce", slots)

    assert play.wait("ended", job.id)["codes"] == [0] * 4, job.log.read_text()
    reports = [json.loads((play.folder / f"job/reduced.{rank}").read_text()) for rank in range(4)]
    assert [rank["total"] for rank in reports] == [1.0 + 2 + 3 + 4] * 4


class OtherUser:
    """A driver of another run on the same cluster, and what it reported last."""

    def __init__(self, cluster: RayCluster, folder: Path, hosts: int) -> None:
        join = JoinCluster(cluster.address, "other", hosts, ())
        log = folder / "other.log"
        self.driver = DriverProcess(join, environment=cluster.environment, log=log)
        self.hosts = ClusterHosts((), 0)

    def reserved(self) -> tuple[str, ...]:
        for news in self.driver.channel.receive():
            assert isinstance(news, ClusterHosts), news
            self.hosts = news
        return self.hosts.reserved

    def close(self) -> None:
        self.driver.close()


def test_hosts_are_held_for_one_campaign_until_it_ends(open_play, ray_cluster, tmp_path):
    """Another user gets the hosts that are free, and ours once we leave; we get no more either."""
    play = open_play(3)
    ours = {slot.host for slot in play.backend.slots}
    with contextlib.closing(OtherUser(ray_cluster, tmp_path, hosts=0)) as other:
        play.until(other.reserved, "hosts of another user")
        free = set(ray_cluster.raylets) - ours
        assert set(other.reserved()) == free
        assert len(free) == 1
        with pytest.raises(ConfigError, match="0 of 4 hosts of the Ray cluster .* were free"):
            refused_at_once(ray_cluster, tmp_path / "refused")

        play.backend.close()

        until(lambda: set(other.reserved()) == ours | free, "release", seconds=SECONDS)


def refused_at_once(cluster, folder):
    """Open a second campaign while no host is free."""
    folder.mkdir()
    machine = MachineConfig(backend="ray", address=cluster.address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "_RESERVE_SECONDS", 15.0)
        RayTransport(machine, run_dir=folder, environment=cluster.environment)


def test_a_raylet_that_is_killed_or_hangs_loses_its_host_and_a_new_host_is_used(
    open_play, ray_cluster
):
    """Of one that hangs, agent and all, Ray would say nothing for a minute: its lease decides."""
    play = open_play(4)
    slots = play.backend.slots
    host, hung = slots[2].host, slots[-1].host
    job = play.start("sleep", [slots[0], slots[2]])
    play.start("sleep", slots[-2:], "hangs")
    pids = play.pids()
    hanging = play.pids("hangs")
    tag = host_tag(run_tag(play.folder), hung)
    still = [ray_cluster.raylets[hung], *named_so(find_tagged(HOST, tag), "hpo-agent")]
    assert len(still) == 2

    send(still, signal.SIGSTOP)
    try:
        is_replaced(play, ray_cluster, host, job, pids)
        play.wait("host_lost", count=2)
    finally:
        send(still, signal.SIGCONT)  # whoever has taken its place may have ended the agent

    lost = {event.data["host"]: event.data["reason"] for event in play.events_of("host_lost")}
    assert lost.keys() == {host, hung}
    assert lost[hung].endswith("and its lease has expired")
    assert len(play.events_of("ended", "hangs")) == 1
    assert not any(map(alive, hanging))
    play.wait("host_joined", count=6)
    play.works("again", slots[-2:])


def is_replaced(play, ray_cluster, host, job, pids):
    """See that a killed raylet ends a job, and that a new one in its place is used."""
    ray_cluster.kill(host)

    assert play.wait("ended", job.id)["codes"][1] == -9
    assert not any(map(alive, pids))
    play.until(lambda: host in {e.data["host"] for e in play.events_of("host_lost")}, "its loss")
    assert host not in {slot.host for slot in play.backend.slots}
    play.works("meanwhile")
    new = ray_cluster.add()
    play.until(lambda: new in {slot.host for slot in play.backend.slots}, "the new host")
    play.works("after", [slot for slot in play.backend.slots if slot.host == new])


def test_a_killed_driver_is_replaced(open_play):
    play = open_play(2)
    slots = play.backend.slots
    job = play.start("sleep", slots[:2])
    pids = play.pids()

    os.kill(play.driver(), signal.SIGKILL)

    assert play.wait("ended", job.id)["codes"] == [-9, -9]
    assert not any(map(alive, pids))
    play.wait("host_joined", count=4)
    play.works("after", slots)


CONTROLLER = """
import sys
from pathlib import Path
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.launching.transports.ray import RayTransport
address, folder = sys.argv[1], Path(sys.argv[2])
machine = MachineConfig(backend="ray", address=address, hosts=2, lease_seconds=60)
kinds = {"sleep": "rank_targets:sleep"}
backend = fleet_on(RayTransport(machine, run_dir=folder), machine, folder, (), jobs=kinds)
while len(backend.slots) < 4:
    backend.poll(0.1)
(folder / "job").mkdir()
spec = {"folder": str(folder / "job")}
here = folder / "job"
slots = backend.slots[1:3]
backend.start(Job("job", "sleep", 2, spec, here / "log", here / "m", slots))
while True:
    backend.poll(1.0)
"""


def test_the_next_controller_takes_over_what_runs(open_play, ray_cluster, tmp_path):
    command = [sys.executable, "-c", CONTROLLER, ray_cluster.address, str(tmp_path)]
    with subprocess.Popen(command, env=ray_cluster.environment | PYTHONPATH) as controller:
        paths = [tmp_path / "job" / f"pid.{rank}" for rank in range(2)]
        until(lambda: all(path.exists() for path in paths), "ranks", seconds=SECONDS)
        controller.kill()
    pids = [json.loads(path.read_text()) for path in paths]

    play = open_play(2)

    assert play.wait("adopted", "job")
    assert all(map(alive, pids))
    play.backend.stop("job", grace=0.0)
    play.wait("ended", "job")
    play.works("after", play.backend.slots)


def with_token(cluster, path):
    return cluster.environment | {"RAY_AUTH_TOKEN_PATH": str(make_token(path))}


def test_a_wrong_token_is_refused_before_ray_is_joined(ray_cluster, tmp_path):
    machine = MachineConfig(backend="ray", address=ray_cluster.address)
    environment = with_token(ray_cluster, tmp_path / "wrong")
    with pytest.raises(ConfigError, match="refuses our token"):
        RayTransport(machine, run_dir=tmp_path, environment=environment)
    assert not (tmp_path / LOGS / "ray-driver.log").exists(), "Ray itself would try again"


@pytest.fixture
def unguarded(tmp_path):
    """Address of a head that demands no token."""
    with socket.create_server(("127.0.0.20", 0)) as server:
        port = server.getsockname()[1]
    start = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", "--head"]
    start += [f"--port={port}", "--node-ip-address=127.0.0.20", "--num-cpus=0"]
    start += ["--include-dashboard=false", f"--object-store-memory={STORE}"]
    tag = {"HYDRAGNN_HPO_TEST": str(tmp_path)}
    head = subprocess.Popen(start, env=os.environ | tag | {"RAY_AUTH_MODE": "disabled"})
    try:
        until(lambda: is_listening("127.0.0.20", port), "head", seconds=SECONDS)
        yield f"127.0.0.20:{port}"
    finally:
        head.terminate()
        head.wait()
        end_tagged("HYDRAGNN_HPO_TEST", str(tmp_path))


def is_listening(host, port):
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False


def test_a_cluster_that_anybody_may_use_is_not_joined(unguarded, ray_cluster, tmp_path):
    machine = MachineConfig(backend="ray", address=unguarded)
    with pytest.raises(ConfigError, match="demands no token"):
        RayTransport(machine, run_dir=tmp_path, environment=ray_cluster.environment)
