"""Jobs on hosts that do not see the run directory: files go there and come back."""

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.schema import dump_config
from hydragnn_hpo.config.trial_config import PlacementConfig
from hydragnn_hpo.launching.fleet.fleet import Fleet
from hydragnn_hpo.launching.fleet.transport import Call, News, agent_argv
from hydragnn_hpo.launching.job import JOBS, Event, Job
from hydragnn_hpo.launching.process_control import (
    AGENT,
    HOST,
    end_tagged,
    find_orphans,
    host_tag,
    run_tag,
)
from hydragnn_hpo.launching.slurm.slurm_backend import SlurmBackend
from hydragnn_hpo.launching.wire.package import TOP
from hydragnn_hpo.layout import TrialDir

SECONDS = 300.0
LEASE = 120.0
"""Agents that get no turn for longer lose their jobs, rightly."""

TARGETS = """
import json, os, time
from pathlib import Path
def work(spec):
    folder = Path(spec["folder"])
    need = Path(spec["need"])
    seen = {"folder": str(folder), "cwd": os.getcwd(), "before": sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())}
    import hydragnn_hpo.units
    seen["code"] = hydragnn_hpo.units.__file__
    seen["need"] = {p.name: p.stat().st_size for p in need.iterdir()}
    print("said on", folder)
    rank = os.environ["RANK"]
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"last.{rank}").write_bytes(os.urandom(spec.get("size", 10)))
    if rank == "0":
        with open(spec["watch"], "a") as file:
            file.write(json.dumps({"record": "checkpoint", "epoch": 1, "step": 0}) + "\\n")
    time.sleep(spec.get("seconds", 0))
    (folder / f"seen.{rank}").write_text(json.dumps(seen))
    return 0
"""


class Islands:
    """Hosts on this computer whose agents have temporary folders and working places of their own.

    They are told no path of the run directory but for what jobs say.
    """

    slots = ()
    outlives = True
    allocation = ""
    address = "127.0.0.1"
    ends_at = math.inf

    def __init__(self, folder: Path, hosts: Sequence[str], path: str | None = None) -> None:
        self.folder, self.hosts, self.path = folder, tuple(hosts), path
        self.agents: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def start(self, hosts: Sequence[str], call: Call) -> None:
        for host in hosts:
            self.end(host)
            home = self.folder / host
            home.mkdir(exist_ok=True)
            life = secrets.token_hex(8)
            tags = {HOST: host_tag(call.plate.tag, host), AGENT: life, "TMPDIR": str(home)}
            environment = os.environ | call.environment(shared_files=False) | tags
            if self.path is not None:
                environment["PYTHONPATH"] = self.path
            with (home / "log").open("ab") as log:
                process = subprocess.Popen(
                    agent_argv(host),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=home,
                    env=environment,
                    start_new_session=True,
                )
            self.agents[host] = (process, life)

    def poll(self) -> list[News]:
        gone = [host for host, (process, _) in self.agents.items() if process.poll() is not None]
        return [News(host, "gone", "ended") for host in gone if self.end(host)]

    def end(self, host: str) -> bool:
        if found := self.agents.pop(host, None):
            process, life = found
            process.kill()
            process.wait()
            end_tagged(AGENT, life)
        return True

    def close(self) -> None:
        for process, _ in self.agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        for host in list(self.agents):
            self.end(host)


class Stage:
    """A fleet on islands, and what it told."""

    def __init__(
        self,
        folder: Path,
        preload: Sequence[str],
        jobs: dict[str, str],
        path: str | None = None,
    ) -> None:
        self.run = folder / "run"
        self.run.mkdir(exist_ok=True)
        self.islands = Islands(folder, ("a", "b"), path)
        self.fleet = Fleet(
            self.islands,
            run_dir=self.run,
            lease_seconds=LEASE,
            slots=2,
            shared_files=False,
            jobs=jobs,
            preload=preload,
        )
        self.fleet.await_hosts(SECONDS)
        self.events: list[Event] = []

    def start(self, job: Job) -> None:
        self.fleet.start(job)

    def slot(self, name: str) -> Any:
        return {slot.name: slot for slot in self.fleet.slots}[name]

    def wait(self, kind: str, job: str, seconds: float = SECONDS) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not (found := [e for e in self.events if (e.kind, e.job) == (kind, job)]):
            assert time.monotonic() < deadline, f"no {kind} of {job} in {self.events}"
            self.events += self.fleet.poll(0.2)
        return found[-1].data

    def until(self, look: Any, what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not look():
            assert time.monotonic() < deadline, f"no {what}"
            self.events += self.fleet.poll(0.1)


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Iterator[Stage]:
    (tmp_path / "targets.py").write_text(TARGETS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    stage = Stage(tmp_path, (), {"work": "targets:work"})
    yield stage
    stage.fleet.close()
    assert find_orphans(run_tag(stage.run)) == []


def job(stage: Stage, name: str, *slots: str, **spec: Any) -> Job:
    folder, need = stage.run / "trials" / "t", stage.run / "data" / "s.bp"
    place = folder / "attempts" / name
    place.mkdir(parents=True)
    (folder / "trial.toml").write_text("a = 1\n")
    need.mkdir(parents=True, exist_ok=True)
    (need / "md.0").write_bytes(bytes(2_000_000))
    chosen = tuple(stage.slot(slot) for slot in slots)
    watch = place / "metrics.jsonl"
    spec |= {"folder": str(folder.resolve()), "need": str(need.resolve()), "watch": str(watch)}
    files = (place / "log", place / "lease", watch, chosen, folder / "control", folder)
    return Job(name, "work", len(chosen), spec, *files, (need,))


def test_a_job_works_on_copies_and_what_it_made_is_here_when_it_has_ended(stage):
    made = job(stage, "j", "a:0", size=3_000_000)
    stage.start(made)

    assert stage.wait("ended", "j")["codes"] == [0]
    seen = json.loads((made.folder / "seen.0").read_text())
    assert not Path(seen["folder"]).is_relative_to(stage.run)
    assert Path(seen["folder"]).is_relative_to(stage.islands.folder / "a")
    assert seen["before"] == ["attempts/j/log", "trial.toml"]
    assert seen["need"] == {"md.0": 2_000_000}
    assert (made.folder / "checkpoints" / "last.0").stat().st_size == 3_000_000
    assert "said on" in made.log.read_text()
    records = [event.data["record"] for event in stage.events if event.kind == "record"]
    assert records == ["checkpoint"]
    assert not made.lease.exists()


def test_ranks_on_two_hosts_bring_home_what_each_of_them_made(stage):
    made = job(stage, "j", "a:0", "b:0")
    stage.start(made)

    assert stage.wait("ended", "j")["codes"] == [0, 0]
    for rank, host in ((0, "a"), (1, "b")):
        seen = json.loads((made.folder / f"seen.{rank}").read_text())
        assert Path(seen["folder"]).is_relative_to(stage.islands.folder / host)
    assert "said on" in made.log.read_text()
    assert "said on" in made.log.with_name("log.b").read_text()


def test_a_checkpoint_is_here_before_its_host_is_lost(stage):
    made = job(stage, "first", "a:0", seconds=1500)
    stage.start(made)
    kept = made.folder / "checkpoints" / "last.0"
    stage.until(kept.exists, "checkpoint")

    process, _ = stage.islands.agents["a"]
    os.kill(process.pid, signal.SIGKILL)

    assert stage.wait("ended", "first")["codes"] == [-9]
    again = job(stage, "second", "b:0")
    stage.start(again)
    assert stage.wait("ended", "second")["codes"] == [0]
    seen = json.loads((made.folder / "seen.0").read_text())
    assert "checkpoints/last.0" in seen["before"]


def test_a_host_with_other_code_uses_ours(tmp_path, monkeypatch):
    (tmp_path / "targets.py").write_text(TARGETS)
    other = tmp_path / "other"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TOP, other / "hydragnn_hpo", ignore=ignored)
    with (other / "hydragnn_hpo" / "units.py").open("a") as file:
        file.write("OTHER = True\n")
    path = f"{other}{os.pathsep}{tmp_path}"
    stage = Stage(tmp_path, ("hydragnn_hpo.units",), {"work": "targets:work"}, path)
    try:
        made = job(stage, "j", "a:0")
        stage.start(made)
        assert stage.wait("ended", "j")["codes"] == [0], made.log.read_text()
    finally:
        stage.fleet.close()
    code = json.loads((made.folder / "seen.0").read_text())["code"]
    assert code.startswith(str(tmp_path / "a"))
    assert code.endswith(f"{TOP}/units.py")


def test_a_host_with_the_same_code_uses_its_own(stage):
    made = job(stage, "j", "a:0")
    stage.start(made)
    stage.wait("ended", "j")
    code = json.loads((made.folder / "seen.0").read_text())["code"]
    assert code == f"{TOP}/units.py"


@pytest.mark.slow
def test_a_trial_goes_on_on_another_host_that_has_never_seen_it(tiny_store, tmp_path, hpo):
    """Real trainings: one to epoch 2 on one host, then from its checkpoint to 4 on the other."""
    stage = Stage(tmp_path, ("hydragnn_hpo.training.trial",), dict(JOBS))
    try:
        data = tmp_path / "run" / "data"
        data.mkdir()
        store = data / "tiny.bp"
        for path in [path for path in tiny_store.rglob("*") if path.is_file()]:
            copy = store / path.relative_to(tiny_store)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        changes = {"data": {"store": "../../data/tiny.bp"}}
        trial = TrialDir(hpo.trial("run/trials/t0000", **changes))
        for attempt, (slot, epochs) in enumerate((("a:0", 2), ("b:0", 4)), start=1):
            place = trial.attempt(attempt)
            place.mkdir(parents=True)
            placement = PlacementConfig(attempt=attempt, epochs=epochs)
            (place / "placement.toml").write_text(dump_config(placement))
            spec = {"trial_dir": str(trial.path.resolve()), "attempt": attempt, "one_host": True}
            files = (place / "log", place / "lease", place / "metrics.jsonl")
            slots = (stage.slot(slot),)
            name = f"t0000.{attempt}"
            more = {"control": trial.control, "folder": trial.path, "needs": (store,)}
            stage.start(Job(name, "train", 1, spec, *files, slots, **more))
            ended = stage.wait("ended", name)
            assert ended["codes"] == [0], (place / "log").read_text()
            result = json.loads((place / "result.json").read_text())
            assert result["epochs"] == epochs
        lines = (place / "metrics.jsonl").read_text().splitlines()
        (ready,) = [r for r in map(json.loads, lines) if r["record"] == "ready"]
        assert (ready["resumed"], ready["reached"]) == (True, 2)
        assert (place / "predictions.safetensors").exists()
    finally:
        stage.fleet.close()


@pytest.mark.slow
def test_hosts_of_slurm_work_without_the_run_directory_too(slurm, tmp_path, monkeypatch):
    for name, value in slurm.allocate(2).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "targets.py").write_text(TARGETS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    machine = MachineConfig(backend="slurm", slots=1, lease_seconds=LEASE, shared_files=False)
    with SlurmBackend(machine, run_dir=run, jobs={"work": "targets:work"}, preload=()) as fleet:
        fleet.await_hosts(SECONDS)
        stage = Stage.__new__(Stage)
        stage.run, stage.fleet, stage.events = run, fleet, []
        made = job(stage, "j", "node1:0", "node2:0", size=1_000_000)
        stage.start(made)
        assert stage.wait("ended", "j")["codes"] == [0, 0]
    for rank in (0, 1):
        seen = json.loads((made.folder / f"seen.{rank}").read_text())
        assert not Path(seen["folder"]).is_relative_to(run)
        assert (made.folder / "checkpoints" / f"last.{rank}").stat().st_size == 1_000_000
