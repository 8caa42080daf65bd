"""A real Ray cluster of four hosts: jobs, other users, and every kind of death."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_alive as alive
from processes import named_so, send
from ray_cluster import RayCluster

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.process_control import (
    HOST,
    find_orphans,
    find_tagged,
    host_tag,
    run_tag,
)
from hydragnn_hpo.launching.ray import cluster as ray_cluster_module
from hydragnn_hpo.launching.ray import membership
from hydragnn_hpo.launching.ray.cluster import CLUSTER, StartedCluster, missing
from hydragnn_hpo.launching.ray.credentials import make_token, ray_environment
from hydragnn_hpo.launching.ray.inside import LOGS
from hydragnn_hpo.launching.ray.member import member_argv
from hydragnn_hpo.launching.ray.membership import Membership
from hydragnn_hpo.launching.ray.ray_backend import RayBackend

pytestmark = pytest.mark.slow
TARGETS = Path(__file__).parents[1] / "contracts"
KINDS = {name: f"rank_targets:{name}" for name in ("nothing", "sleep", "emit", "all_reduce")}
LEASE, SHORT_LEASE = 30.0, 8.0
"""Outlives what keeps a busy machine from its turns; a test may wait for the end of the other."""

SECONDS = 240.0
PATIENCE = 8.0
"""Seconds that a job waits for its slots: more than the cluster needs to give them back."""


class Play:
    """A backend on the cluster, and all events it told."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.token = cluster.folder / "token"
        self.events = []

    def open(self, hosts: int, lease_seconds: float = LEASE, **more) -> RayBackend:
        machine = MachineConfig(
            backend="ray",
            address=self.cluster.address,
            hosts=hosts,
            lease_seconds=lease_seconds,
        )
        more = {"jobs": KINDS, "preload": ()} | more
        self.backend = RayBackend(machine, run_dir=self.folder, token=self.token, **more)
        self.until(lambda: len(self.told("host_joined")) >= hosts)
        return self.backend

    def start(self, kind: str, slots, name: str = "job", **spec) -> Job:
        folder = self.folder / name
        folder.mkdir()
        watch = folder / "metrics.jsonl"
        spec |= {"folder": str(folder), "metrics": str(watch)}
        job = Job(
            name, kind, len(slots), spec, folder / "log", folder / "lease", watch, tuple(slots)
        )
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
    monkeypatch.setattr(ray_cluster_module, "_HEAD_SECONDS", 3 * SECONDS)
    monkeypatch.setattr(membership, "_JOIN_SECONDS", 3 * SECONDS)


@pytest.fixture
def play(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TARGETS))
    play = Play(ray_cluster, tmp_path)
    yield play
    if hasattr(play, "backend"):
        play.backend.close()
    assert find_orphans(run_tag(tmp_path)) == []


def member_of(address, environment, log):
    """Join a cluster as somebody else."""
    member = Membership(address, tag="other", environment=environment, log=log)
    member.wait()
    return member


def test_ranks_on_several_hosts_meet_and_their_slots_are_nobody_elses(play):
    backend = play.open(hosts=2, preload=("torch", "torch.distributed", "torch._dynamo"))
    slots = backend.slots
    assert [slot.host.split("-")[0] for slot in slots] == ["host1", "host1", "host2", "host2"]

    job = play.start("all_reduce", slots)

    assert play.wait("ended", job.id).data["codes"] == [0] * 4, job.log.read_text()
    shown = [json.loads((play.folder / f"job/reduced.{rank}").read_text()) for rank in range(4)]
    assert [rank["total"] for rank in shown] == [1.0 + 2 + 3 + 4] * 4


def test_others_do_not_get_the_slots_of_a_job_until_it_ends(play, tmp_path):
    backend = play.open(hosts=2, patience=PATIENCE)
    slots = backend.slots
    other = member_of(play.cluster.address, play.cluster.environment, tmp_path / "other.log")
    play.start("sleep", slots[:3], "ours")
    play.wait("started", "ours")

    def asks(slot, patience):
        order = [[slot.host, {"CPU": 1.0}]]
        other.say("reserve", job=f"{time.monotonic()}", slots=order, patience=patience)
        answers = []
        play.until(lambda: answers.extend(other.read()) or answers)
        return answers[0]["event"]

    try:
        assert asks(slots[0], 1.0) == "refused"
        assert asks(slots[3], SECONDS) == "reserved"
        play.start("nothing", slots[3:], "refused")
        refused = play.wait("ended", "refused")
        assert refused.data["error"] == (
            "its slots were not free on the Ray cluster for 8 s: others use them."
        )
        backend.stop("ours", grace=0.0)
        play.wait("ended", "ours")
        assert asks(slots[0], SECONDS) == "reserved"
    finally:
        other.close()
    play.works("after", slots[:1])


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
from hydragnn_hpo.launching.ray.ray_backend import RayBackend
address, folder, token = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
machine = MachineConfig(backend="ray", address=address, hosts=2, lease_seconds=60)
kinds = {"sleep": "rank_targets:sleep"}
backend = RayBackend(machine, run_dir=folder, token=token, jobs=kinds, preload=())
while len(backend.slots) < 4:
    backend.poll(0.1)
(folder / "job").mkdir()
spec = {"folder": str(folder / "job")}
here = folder / "job"
slots = backend.slots[1:3]
backend.start(Job("job", "sleep", 2, spec, here / "log", here / "lease", here / "m", slots))
while True:
    backend.poll(1.0)
"""


def test_the_next_controller_takes_over_what_runs(play):
    command = [sys.executable, "-c", CONTROLLER, play.cluster.address]
    with subprocess.Popen([*command, str(play.folder), str(play.token)]) as controller:
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


def test_a_wrong_token_is_said_at_once(ray_cluster, tmp_path):
    machine = MachineConfig(backend="ray", address=ray_cluster.address)
    wrong = make_token(tmp_path / "wrong")
    with pytest.raises(ConfigError, match="refuses our token"):
        RayBackend(machine, run_dir=tmp_path, token=wrong)
    assert not (tmp_path / LOGS / "ray-driver.log").exists(), "Ray itself would try again"


def test_a_cluster_of_our_own_names_who_is_missing_and_leaves_nothing(tmp_path):
    tag = run_tag(tmp_path)
    environment = ray_environment(os.environ, make_token(tmp_path / "token"))
    started = StartedCluster("127.0.0.20", tag=tag, environment=environment, logs=tmp_path)
    try:
        started.add(member_argv(started.address, name="n1"), "n1")
        member = member_of(started.address, environment, tmp_path / "log")
        assert missing(["n1", "n2"], member.hosts) == ["n2"]
        member.close()
        processes = find_tagged(CLUSTER, tag)
        assert len(processes) > 3
    finally:
        started.close()
    assert not any(map(alive, processes))


def test_inside_a_slurm_allocation_a_cluster_is_started_and_ended(play, slurm, monkeypatch):
    environment = os.environ | slurm.allocate(2, minutes=30)
    monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
    machine = MachineConfig(backend="ray", slots=1, lease_seconds=LEASE)

    play.backend = RayBackend(
        machine, run_dir=play.folder, environment=environment, jobs=KINDS, preload=()
    )

    play.wait("host_joined", count=2)
    assert [slot.host.rpartition("-")[0] for slot in play.backend.slots] == ["node1", "node2"]
    assert 0 < play.backend.ends_at - time.time() <= 30 * 60
    play.works("job", play.backend.slots)
    play.backend.close()
    assert find_tagged(CLUSTER, run_tag(play.folder)) == []
    assert slurm.ask("squeue", "-h", "-s", "-j", environment["SLURM_JOB_ID"]) == ""


def test_a_cluster_that_anybody_may_use_is_not_joined(tmp_path):
    environment = ray_environment(os.environ, make_token(tmp_path / "token"))
    open_door = environment | {"RAY_AUTH_MODE": "disabled"}
    started = StartedCluster(
        "127.0.0.20", tag=run_tag(tmp_path), environment=open_door, logs=tmp_path
    )
    machine = MachineConfig(backend="ray", address=started.address)
    try:
        with pytest.raises(ConfigError, match="demands no token"):
            RayBackend(machine, run_dir=tmp_path, token=tmp_path / "token")
    finally:
        started.close()
