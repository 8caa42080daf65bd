"""One step of a real Slurm for every job: where ranks run, and how they end."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_alive
from virtual_slurm import VirtualSlurm, until

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching.job import Event, Job
from hydragnn_hpo.launching.launchers.processes import ProcessBackend
from hydragnn_hpo.launching.launchers.steps import Steps
from hydragnn_hpo.launching.process_control import find_orphans, run_tag

pytestmark = pytest.mark.slow

CONTRACTS = Path(__file__).parents[1] / "contracts"
LEASE, SHORT_LEASE = 60.0, 8.0
"""Outlives what keeps a busy machine from its turns; a test may wait for the end of the other."""

NAMES = ("place", "sleep", "polite", "stubborn", "nothing", "all_reduce")
TARGETS = {name: f"rank_targets:{name}" for name in NAMES} | {"place": "step_targets:place"}
PLACE = """
import json, os
from pathlib import Path
def place(spec):
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME")
    names += ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")
    seen = {name: os.environ.get(name) for name in names}
    Path(spec["folder"], f"place.{seen['RANK']}").write_text(json.dumps(seen))
    return int(seen["RANK"])
"""


class Control:
    """A backend of steps on three virtual hosts with two slots each."""

    def __init__(self, slurm: VirtualSlurm, folder: Path, lease_seconds: float) -> None:
        self.slurm, self.folder = slurm, folder
        launcher = Steps.find(os.environ, slots=2)
        self.backend = ProcessBackend(
            launcher,
            lease_seconds=lease_seconds,
            run_dir=folder,
            site=SiteConfig(interfaces=("lo",)),
            jobs=TARGETS,
        )
        self.events: list[Event] = []

    def start(self, kind: str, *slots: str, name: str = "job", **spec: Any) -> Job:
        folder = self.folder / name
        folder.mkdir()
        known = {slot.name: slot for slot in self.backend.slots}
        chosen = tuple(known[slot] for slot in slots)
        spec |= {"folder": str(folder), "metrics": str(folder / "metrics.jsonl")}
        files = (folder / "log", folder / "lease", folder / "metrics.jsonl")
        job = Job(name, kind, len(chosen), spec, *files, chosen)
        self.backend.start(job)
        return job

    def wait(self, kind: str, job: str = "job", seconds: float = 400.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not (found := [e for e in self.events if (e.kind, e.job) == (kind, job)]):
            assert time.monotonic() < deadline, f"no {kind} of {job} in {self.events}"
            self.events += self.backend.poll(0.2)
        return found[0].data

    def steps(self) -> list[str]:
        return self.slurm.ask("squeue", "-h", "-s", "-o", "%j").split()


@pytest.fixture
def control(request, slurm, tmp_path, monkeypatch) -> Iterator[Control]:
    for name, value in slurm.allocate(3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x3)")  # as salloc sets it
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "step_targets.py").write_text(PLACE)
    monkeypatch.setenv("PYTHONPATH", f"{CONTRACTS}{os.pathsep}{tmp_path}")
    control = Control(slurm, run, getattr(request, "param", LEASE))
    yield control
    control.backend.close()
    until(lambda: not find_orphans(run_tag(run)), "end of all")


short_lease = pytest.mark.parametrize("control", [SHORT_LEASE], indirect=True, ids=["short"])


def test_ranks_run_where_their_slots_are_with_the_number_that_slurm_gives(control):
    slots = ("node3:1", "node1:0", "node3:0")
    job = control.start("place", *slots)

    assert control.wait("ended")["codes"] == [0, 1, 2]
    seen = [json.loads((job.log.parent / f"place.{rank}").read_text()) for rank in range(3)]
    assert [one["SLURMD_NODENAME"] for one in seen] == ["node3", "node3", "node1"]
    assert [one["SLURM_PROCID"] for one in seen] == [one["RANK"] for one in seen]
    assert [one["SLURM_LOCALID"] for one in seen] == [one["LOCAL_RANK"] for one in seen]
    assert all(one["OMP_NUM_THREADS"] == one["SLURM_CPUS_PER_TASK"] for one in seen)


def test_ranks_of_two_hosts_compute_together(control):
    job = control.start("all_reduce", "node1:0", "node2:0")

    assert control.wait("ended")["codes"] == [0, 0], job.log.read_text()
    seen = [json.loads((job.log.parent / f"reduced.{rank}").read_text()) for rank in range(2)]
    assert [one["total"] for one in seen] == [3.0, 3.0]


def test_jobs_share_a_host_and_end_one_by_one(control):
    control.start("polite", "node1:0", name="first")
    control.start("stubborn", "node1:1", name="second")
    for name in ("first", "second"):
        control.wait("started", name)
        until((control.folder / name / "pid.0").exists, name)
    assert sorted(set(control.steps()) & {"first", "second"}) == ["first", "second"]

    control.backend.stop("first", grace=300.0)
    assert control.wait("ended", "first")["codes"] == [0]
    assert not [e for e in control.events if (e.kind, e.job) == ("ended", "second")]
    control.backend.stop("second", grace=0.2)
    assert control.wait("ended", "second")["codes"] == [-9]


@short_lease
def test_a_lost_host_ends_its_job_once_no_rank_of_it_can_be_alive(control):
    """srun itself may well say 0."""
    control.start("stubborn", "node1:0", "node2:0")
    control.start("stubborn", "node3:0", name="other")
    pids = control.wait("started")["pids"]
    control.wait("started", "other")

    control.slurm.signal_host("node2", signal.SIGKILL)

    codes = control.wait("ended")["codes"]
    assert all(code != 0 for code in codes)
    assert not any(map(is_alive, pids))
    control.events += control.backend.poll(0.5)
    assert not [e for e in control.events if (e.kind, e.job) == ("ended", "other")]


@short_lease
def test_ranks_of_a_frozen_host_do_not_work_on_beside_their_successors(control):
    control.start("stubborn", "node2:0")
    (pid,) = control.wait("started")["pids"]
    began = time.monotonic()
    control.slurm.signal_host("node2", signal.SIGSTOP)
    control.backend.stop("job", grace=0.1)

    codes = control.wait("ended")["codes"]

    assert codes == [-9]
    assert time.monotonic() - began > SHORT_LEASE
    control.slurm.signal_host("node2", signal.SIGCONT)
    until(lambda: not is_alive(pid), "end of the thawed rank")
