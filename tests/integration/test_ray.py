"""A real Ray cluster of four hosts: jobs, other users, and every kind of death."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_alive as alive
from processes import named_so, send, until
from ray_cluster import STORE, RayCluster, make_token

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.process_control import (
    HOST,
    end_tagged,
    find_orphans,
    find_tagged,
    host_tag,
    run_tag,
)
from hydragnn_hpo.launching.transports import ray
from hydragnn_hpo.launching.transports.ray import (
    LOGS,
    ClusterHosts,
    DriverProcess,
    JoinCluster,
    JoinFailed,
    RayBackend,
)

pytestmark = pytest.mark.slow
PYTHONPATH = {"PYTHONPATH": str(Path(__file__).parents[1] / "contracts")}
KINDS = {name: f"rank_targets:{name}" for name in ("nothing", "sleep", "emit", "all_reduce")}
LEASE, SHORT_LEASE = 30.0, 8.0
"""Outlives what keeps a busy machine from its turns; a test may wait for the end of the other."""

SECONDS = 240.0


class Play:
    """A backend on the cluster, and all events it told."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.events = []

    def open(self, hosts: int, lease_seconds: float = LEASE, **more) -> RayBackend:
        machine = MachineConfig(
            backend="ray",
            address=self.cluster.address,
            hosts=hosts,
            lease_seconds=lease_seconds,
        )
        more = {"jobs": KINDS, "preload": ()} | more
        self.backend = RayBackend(
            machine, run_dir=self.folder, environment=self.cluster.environment, **more
        )
        self.until(lambda: len(self.told("host_joined")) >= hosts)
        return self.backend

    def start(self, kind: str, slots, name: str = "job", **spec) -> Job:
        folder = self.folder / name
        folder.mkdir()
        watch = folder / "metrics.jsonl"
        spec |= {"folder": str(folder), "metrics": str(watch)}
        job = Job(name, kind, len(slots), spec, folder / "log", watch, tuple(slots))
        self.backend.start(job)
        return job

    def told(self, kind: str, job: str | None = None):
        return [event for event in self.events if (event.kind, event.job) == (kind, job)]

    def until(self, look, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, f"waited in vain: {self.events}"
            self.events += self.backend.poll(0.1)

    def wait(self, kind: str, job: str | None = None, count: int = 1):
        self.until(lambda: len(self.told(kind, job)) >= count)
        return self.told(kind, job)[-1]

    def of_host(self, host: str, name: str) -> int:
        """Find the one process of ours on a host by the name that the kernel shows."""
        (only,) = named_so(find_tagged(HOST, host_tag(run_tag(self.folder), host)), name)
        return only

    def driver(self) -> int:
        (only,) = named_so(find_orphans(run_tag(self.folder)), "hpo-ray-driver")
        return only

    def works(self, name: str, slots=None) -> None:
        self.start("nothing", slots or self.backend.slots[:1], name)
        assert self.wait("ended", name).data["codes"] == [0] * len(slots or [0]), self.events


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for Ray, which imports for seconds, however busy this machine is."""
    monkeypatch.setattr(ray, "_RESERVE_SECONDS", SECONDS)


@pytest.fixture
def play(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH["PYTHONPATH"])
    play = Play(ray_cluster, tmp_path)
    yield play
    if hasattr(play, "backend"):
        play.backend.close()
    assert find_orphans(run_tag(tmp_path)) == []


def test_ranks_on_several_hosts_meet(play):
    backend = play.open(hosts=2, preload=("torch", "torch.distributed", "torch._dynamo"))
    slots = backend.slots
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    assert [slot.host for slot in slots] == [host for host in hosts for _ in range(2)]
    assert len(hosts) == 2

    job = play.start("all_reduce", slots)

    assert play.wait("ended", job.id).data["codes"] == [0] * 4, job.log.read_text()
    shown = [json.loads((play.folder / f"job/reduced.{rank}").read_text()) for rank in range(4)]
    assert [rank["total"] for rank in shown] == [1.0 + 2 + 3 + 4] * 4


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


def test_hosts_are_held_for_one_campaign_until_it_ends(play, tmp_path):
    """Another user gets the hosts that are free, and ours once we leave; we get no more either."""
    ours = {slot.host for slot in play.open(hosts=3).slots}
    with contextlib.closing(OtherUser(play.cluster, tmp_path, hosts=0)) as other:
        play.until(other.reserved)
        free = set(play.cluster.raylets) - ours
        assert set(other.reserved()) == free
        assert len(free) == 1
        with pytest.raises(ConfigError, match="0 of 4 hosts of the Ray cluster .* were free"):
            refused_at_once(play, tmp_path / "refused")

        play.backend.close()

        until(lambda: set(other.reserved()) == ours | free, "release", seconds=SECONDS)


def refused_at_once(play, folder):
    """Open a second campaign while no host is free."""
    folder.mkdir()
    machine = MachineConfig(backend="ray", address=play.cluster.address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "_RESERVE_SECONDS", 15.0)
        RayBackend(machine, run_dir=folder, environment=play.cluster.environment)


def test_a_killed_agent_is_replaced_and_its_job_ends(play):
    slots = play.open(hosts=2).slots
    host = slots[0].host
    job = play.start("sleep", [slots[1], slots[2]])
    pids = play.wait("started", job.id).data["pids"]

    os.kill(play.of_host(host, "hpo-agent"), signal.SIGKILL)

    assert play.wait("ended", job.id).data["codes"][0] == -9
    assert not any(map(alive, pids))
    play.wait("host_joined", count=3)
    assert [event.data["host"] for event in play.told("host_lost")] == [host]
    assert len(play.told("ended", job.id)) == 1
    play.works("after", [slots[1], slots[2]])


def test_a_host_that_hangs_is_fenced_by_its_lease(play):
    """Raylet and agent stand still: Ray would notice after a minute, and no lease be over."""
    slots = play.open(hosts=4, lease_seconds=SHORT_LEASE).slots
    host = slots[-1].host
    job = play.start("sleep", slots[-2:])
    elsewhere = play.start("sleep", slots[:1], "elsewhere")
    pids = play.wait("started", job.id).data["pids"]
    play.wait("started", elsewhere.id)
    stopped = [play.cluster.raylets[host], play.of_host(host, "hpo-agent")]

    send(stopped, signal.SIGSTOP)
    try:
        play.until(lambda: not any(map(alive, pids)))
        lost = play.wait("host_lost")
    finally:
        send(stopped, signal.SIGCONT)  # whoever has taken its place may have ended the agent
    assert lost.data["host"] == host
    assert lost.data["reason"].endswith("and its lease is over")
    assert len(play.told("ended", job.id)) == 1
    assert not play.told("ended", elsewhere.id)
    play.wait("host_joined", count=5)
    play.works("after", slots[-2:])


def test_a_killed_raylet_loses_its_host_and_a_new_host_is_used(play):
    slots = play.open(hosts=4).slots
    host = slots[2].host
    job = play.start("sleep", [slots[0], slots[2]])
    pids = play.wait("started", job.id).data["pids"]

    play.cluster.kill(host)

    assert play.wait("ended", job.id).data["codes"][1] == -9
    assert not any(map(alive, pids))
    assert play.wait("host_lost").data["host"] == host
    assert host not in {slot.host for slot in play.backend.slots}
    play.works("meanwhile")
    new = play.cluster.add()
    play.until(lambda: new in {slot.host for slot in play.backend.slots})
    play.works("after", [slot for slot in play.backend.slots if slot.host == new])


def test_a_killed_driver_is_replaced(play):
    slots = play.open(hosts=2).slots
    job = play.start("sleep", slots[:2])
    pids = play.wait("started", job.id).data["pids"]

    os.kill(play.driver(), signal.SIGKILL)

    assert play.wait("ended", job.id).data["codes"] == [-9, -9]
    assert not any(map(alive, pids))
    play.wait("host_joined", count=4)
    play.works("after", slots)


CONTROLLER = """
import sys
from pathlib import Path
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.transports.ray import RayBackend
address, folder = sys.argv[1], Path(sys.argv[2])
machine = MachineConfig(backend="ray", address=address, hosts=2, lease_seconds=60)
kinds = {"sleep": "rank_targets:sleep"}
backend = RayBackend(machine, run_dir=folder, jobs=kinds, preload=())
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


def test_the_next_controller_takes_over_what_runs(play):
    command = [sys.executable, "-c", CONTROLLER, play.cluster.address]
    command += [str(play.folder)]
    with subprocess.Popen(command, env=play.cluster.environment | PYTHONPATH) as controller:
        shown = [play.folder / "job" / f"pid.{rank}" for rank in range(2)]
        deadline = time.monotonic() + SECONDS
        while not all(path.exists() for path in shown):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        controller.kill()
    pids = [json.loads(path.read_text()) for path in shown]

    play.open(hosts=2)

    assert play.wait("adopted", "job").job == "job"
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
        RayBackend(machine, run_dir=tmp_path, environment=environment)
    assert not (tmp_path / LOGS / "ray-driver.log").exists(), "Ray itself would try again"


def test_a_cluster_that_cannot_be_joined_is_reported_with_the_reason(ray_cluster, tmp_path):
    """As after the head was lost, or from a host that is not in the cluster."""
    join = JoinCluster(ray_cluster.address, "other", 0, ())
    environment = with_token(ray_cluster, tmp_path / "wrong")
    driver = DriverProcess(join, environment=environment, log=tmp_path / "log")
    with contextlib.closing(driver):
        (news,) = until(driver.channel.receive, "news", seconds=SECONDS)
        assert isinstance(news, JoinFailed)
        until(lambda: driver.channel.receive() or driver.channel.closed, "end", seconds=SECONDS)


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
        RayBackend(machine, run_dir=tmp_path, environment=ray_cluster.environment)
