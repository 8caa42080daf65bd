"""A fleet on several hosts of a real Slurm: jobs across hosts, and everything that can be lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playing import SECONDS, Play
from processes import find_orphans, is_alive, named_so, open_lease
from virtual_slurm import VirtualSlurm, until

from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.launching.process_control import HOST, find_tagged, host_tag, run_tag
from hydragnn_hpo.launching.transports.slurm import slurm_transport

pytestmark = pytest.mark.stress

TESTS = Path(__file__).parents[1]
LEASE, SHORT_LEASE = 30.0, 8.0
"""Outlives what keeps a busy machine from its turns; a test may wait for the end of the other."""

TARGETS = ("nothing", "sleep", "tick", "all_reduce")
JOBS = {name: f"rank_targets:{name}" for name in TARGETS}


class Controller(Play):
    """A backend on some hosts of a Slurm."""

    def __init__(
        self, folder: Path, preload: tuple[str, ...] = (), lease_seconds: float = LEASE
    ) -> None:
        machine = MachineConfig(backend="slurm", slots=2, lease_seconds=lease_seconds)
        transport = slurm_transport(machine, folder)
        super().__init__(fleet_on(transport, machine, folder, preload, jobs=JOBS), folder)


def named(folder: Path, host: str, name: str) -> list[int]:
    """Return the processes of one host of a run that the kernel shows by this name."""
    return named_so(find_tagged(HOST, host_tag(run_tag(folder), host)), name)


@pytest.fixture
def allocation(slurm, monkeypatch) -> VirtualSlurm:
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "contracts"))
    for name, value in slurm.allocate(2).items():
        monkeypatch.setenv(name, value)
    return slurm


@pytest.fixture
def control(allocation, tmp_path) -> Iterator[Callable[..., Controller]]:
    """Make a controller; it and all below it are ended."""
    made = []

    def make(preload: tuple[str, ...] = (), lease_seconds: float = LEASE) -> Controller:
        made.append(Controller(tmp_path, preload, lease_seconds))
        return made[-1]

    yield make
    for host in allocation.hosts:
        allocation.signal_host(host, signal.SIGCONT)
    for controller in made:
        controller.backend.close()
    # The step that a killed controller had started ends once its agents have gone.
    until(lambda: find_orphans(run_tag(tmp_path)) == [], "end of all processes")


def test_ranks_of_two_hosts_train_together(control):
    fleet = control(("torch", "torch.distributed", "torch._dynamo"))
    fleet.have(4)

    job = fleet.start("all_reduce", fleet.backend.slots)

    assert fleet.wait("ended", "job")["codes"] == [0] * 4, job.log.read_text()
    reports = [json.loads((fleet.folder / "job" / f"reduced.{r}").read_text()) for r in range(4)]
    assert [rank["total"] for rank in reports] == [1.0 + 2 + 3 + 4] * 4
    assert [rank["local"] for rank in reports] == [[r % 2, 2] for r in range(4)]
    hosts = [event.data["host"] for event in fleet.events_of("host_joined")]
    assert sorted(hosts) == ["node1", "node2"]
    assert [slot.name for slot in job.slots] == ["node1:0", "node1:1", "node2:0", "node2:1"]


def test_a_rank_that_fails_ends_its_peers_on_other_hosts(control):
    fleet = control()
    fleet.have(4)
    fleet.start("sleep", fleet.slots("node2:0", "node1:1", "node1:0"))
    pids = fleet.pids()
    assert len(pids) == 3

    os.kill(pids[1], signal.SIGKILL)

    ended = fleet.wait("ended", "job")
    assert (ended["codes"], ended["first"]) == ([-15, -9, -15], 1)
    assert not any(map(is_alive, pids))


def test_no_rank_of_a_frozen_host_outlives_its_lease(allocation, control):
    """Nobody may run its trial before; thawed, it may not do one more step."""
    fleet = control(lease_seconds=SHORT_LEASE)
    fleet.have(4)
    fleet.start("tick", fleet.slots("node2:0"))
    (pid,) = fleet.pids()
    ticks = fleet.folder / "job" / "ticks"
    fleet.until(ticks.exists, "ticks")
    lease = open_lease(pid)

    allocation.signal_host("node2", signal.SIGSTOP)
    over = lease.read()
    os.close(lease.descriptor)

    assert fleet.wait("ended", "job")["codes"] == [-9]
    assert time.monotonic() > over
    assert fleet.wait("host_lost")["host"] == "node2"
    assert is_alive(pid)
    written = ticks.read_bytes()
    allocation.signal_host("node2", signal.SIGCONT)
    fleet.until(lambda: not is_alive(pid), "end of the thawed rank")
    assert ticks.read_bytes() == written
    fleet.have(4)


def test_a_daemon_that_is_killed_takes_no_job_along(allocation, control):
    fleet = control()
    fleet.have(4)
    fleet.start("sleep", fleet.slots("node2:0"), seconds=16.0)
    fleet.pids()

    allocation.end_daemon("node2")

    assert fleet.wait("ended", "job")["codes"] == [0]
    assert not fleet.events_of("host_lost")


def test_a_host_that_is_down_does_not_keep_the_others_away(allocation, control):
    allocation.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")

    fleet = control()
    fleet.have(2)

    fleet.start("nothing", fleet.backend.slots)
    assert fleet.wait("ended", "job")["codes"] == [0, 0]


CONTROLLER = """
import os, sys, time
from pathlib import Path
tests, folder = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(tests), str(tests / "integration"), str(tests.parent)]
from test_slurm import Controller
from hydragnn_hpo.launching.transports import transport
transport._MODULE = "impatient_agent"
fleet = Controller(folder, lease_seconds=float(sys.argv[3]))
fleet.have(4)
fleet.start("tick", fleet.slots("node1:0", "node2:0"))
while True:
    fleet.backend.poll(1.0)
"""


@pytest.fixture
def first_controller(allocation, tmp_path) -> Iterator[Callable[[float], subprocess.Popen[bytes]]]:
    """Make a controller in a process of its own, whose job of two ranks has begun to tick."""
    made = []

    def make(lease_seconds: float) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", CONTROLLER, str(TESTS), str(tmp_path), str(lease_seconds)]
        made.append(subprocess.Popen(argv))
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "job" / "ticks").exists() or len(ranks(tmp_path)) < 2:
            assert time.monotonic() < deadline, "no two ranks that tick"
            time.sleep(0.05)
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait()


def ranks(folder: Path) -> list[int]:
    return [pid for host in ("node1", "node2") for pid in named(folder, host, "hpo-rank")]


def test_a_new_controller_adopts_what_a_killed_one_had_started(first_controller, control):
    first = first_controller(LEASE)
    folder = Path(first.args[4])
    running = ranks(folder)
    assert len(running) == 2

    first.kill()
    first.wait()
    fleet = control()

    adopted = fleet.wait("adopted", "job")
    assert adopted["slots"] == ["node1:0", "node2:0"]
    assert ranks(folder) == running
    fleet.until(lambda: len(fleet.events_of("record", "job")) > 10, "records")
    (folder / "job" / "go").touch()
    assert fleet.wait("ended", "job")["codes"] == [0, 0]
    lines = (folder / "job" / "metrics.jsonl").read_text().splitlines()
    assert [event.data for event in fleet.events_of("record", "job")] == list(
        map(json.loads, lines)
    )
    assert len(fleet.events_of("ended", "job")) == 1
    assert fleet.backend.settled
    fleet.start("nothing", fleet.backend.slots, "next")
    assert fleet.wait("ended", "next")["codes"] == [0] * 4


def test_without_a_controller_ranks_end_with_their_lease_and_agents_cancel_their_batch_job(
    allocation, first_controller, monkeypatch
):
    """The same holds for a network that is cut. Else all hosts would idle until the wall-time."""
    job = os.environ["SLURM_JOB_ID"]
    monkeypatch.setenv("HYDRAGNN_HPO_BATCH_JOB", job)
    first = first_controller(SHORT_LEASE)
    folder = Path(first.args[4])

    first.send_signal(signal.SIGSTOP)

    until(lambda: not ranks(folder), "end of the ranks")
    state = ("squeue", "-h", "-j", job, "-o", "%T")
    assert allocation.ask(*state).strip() == "RUNNING", "ranks end long before agents give up"
    until(lambda: allocation.ask(*state).strip() != "RUNNING", "end", SECONDS)
    log = "".join(path.read_text() for path in (folder / "agents").glob("*.log"))
    assert f"found no controller: it cancels batch job {job}" in log
