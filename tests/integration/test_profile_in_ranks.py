"""What a machine's profile says, as real ranks find it: forked by an agent, started by an srun."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playing import Play
from processes import find_orphans, until

from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.command_config import CommandConfig
from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.launching import command_rank
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports.local import LocalBackend
from hydragnn_hpo.launching.transports.slurm import slurm_transport
from hydragnn_hpo.layout import RunDir

LOOK = """
import json, os, sys, time
from pathlib import Path
def look(spec):
    cache = Path(os.environ["MY_CACHE"])
    (cache / "entry").write_text("x")
    found = {"environment": dict(os.environ), "mode": cache.stat().st_mode & 0o777}
    path = Path(spec["folder"], "found" + os.environ["RANK"])
    part = Path(spec["folder"], ".part" + os.environ["RANK"])
    part.write_text(json.dumps(found))
    part.rename(path)
    while not Path(spec["folder"], "go").exists():
        time.sleep(0.05)
    return 0
"""
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def site_in(folder: Path) -> SiteConfig:
    (folder / "nvme" / "me").mkdir(parents=True)
    return SiteConfig.model_validate(
        {
            "scratch": f"{folder}/nvme/$SOMEBODY",
            "rank": {
                "environment": {"HSA_X": "profile"},
                "one_host": {"NCCL_NET": "Socket"},
                "many_hosts": {"NCCL_NET": "OFI"},
                "folders": {"MY_CACHE": "{scratch}/cache/{trial}/{host}"},
                "wrapper": "launch/rank/rocm.sh",
            },
        }
    )


NAME = "t0001.1"


class Stage(Play):
    """A backend that runs one job, which looks around."""

    def look(self, *slots: Slot) -> list[dict[str, Any]]:
        """Start the job, and give what its ranks find, while all run."""
        self.start("look", slots, NAME)
        paths = [self.folder / NAME / f"found{rank}" for rank in range(len(slots))]
        self.until(lambda: all(path.exists() for path in paths), "what ranks found")
        return [json.loads(path.read_text()) for path in paths]

    def end(self) -> list[int]:
        (self.folder / NAME / "go").touch()
        return self.wait("ended", NAME)["codes"]


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Iterator[Stage]:
    run, code = tmp_path / "run", tmp_path / "code"
    run.mkdir(), code.mkdir()
    (code / "site_targets.py").write_text(LOOK)
    paths = (str(code), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SOMEBODY", "me")
    monkeypatch.setenv("HSA_X", "a module")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("OTHER", "passes")
    monkeypatch.delenv("HYDRAGNN_HPO_SCRATCH", raising=False)
    stage = Stage(None, run)
    yield stage
    if stage.backend:
        stage.backend.close()
    until(lambda: find_orphans(run_tag(run)) == [], "end of all")


JOBS = {"look": "site_targets:look"}
LEASE = 300.0
"""Outlives whatever keeps this machine from its turns."""


def check(result: dict[str, Any], folder: Path) -> Path:
    """Compare with what the profile says; gives the rank's own folder."""
    environment = result["environment"]
    assert environment["HSA_X"] == "profile"
    assert environment["NCCL_NET"] == "Socket"
    assert environment["OTHER"] == "passes"
    assert environment["ROCR_VISIBLE_DEVICES"] == "6"
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & environment.keys()
    assert environment["HYDRAGNN_HPO_SCRATCH"] == str(folder / "nvme" / "me")
    cache = Path(environment["MY_CACHE"])
    assert cache.is_relative_to(folder / "nvme" / "me")
    assert "t0001.1" in cache.parts
    assert result["mode"] == 0o700
    return cache


def test_a_rank_of_an_agent_finds_what_the_profile_says(stage, tmp_path):
    site = site_in(tmp_path)
    stage.backend = LocalBackend(
        slots=1, run_dir=stage.folder, jobs=JOBS, preload=(), site=site, lease_seconds=LEASE
    )
    (slot,) = stage.backend.slots
    gpu = replace(slot, device="cuda:0", visible="6", variable="ROCR_VISIBLE_DEVICES")

    cache = check(*stage.look(gpu), tmp_path)

    assert (cache / "entry").exists()
    assert stage.end() == [0]
    assert not cache.parent.exists(), "what is of an attempt goes with it"


COMMAND = """
import json, os
from pathlib import Path
cache = Path(os.environ["MY_CACHE"])
(cache / "entry").write_text("x")
found = {"environment": dict(os.environ), "mode": cache.stat().st_mode & 0o777}
Path("part").write_text(json.dumps(found))
os.rename("part", "found")
"""


@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_a_rank_of_a_launcher_finds_what_the_profile_says(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(command_rank, "site_of", lambda machine: site_in(tmp_path))
    stage.backend = LocalBackend(slots=1, run_dir=stage.folder, preload=(), lease_seconds=LEASE)
    (slot,) = stage.backend.slots
    gpu = replace(slot, device="cuda:0", visible="6", variable="ROCR_VISIBLE_DEVICES")
    trial = RunDir(stage.folder).trial("t0001")
    folder = trial.attempt(1)
    folder.mkdir(parents=True)
    command = CommandConfig(argv=("{python}", "-c", COMMAND), launcher="mpiexec")
    spec = command_rank.spec_of(command, trial, attempt=1, epochs=1, slots=(gpu,))
    files = {"log": folder / "log", "watch": None}
    stage.backend.start(Job(NAME, "command", 1, spec, slots=(gpu,), **files))

    stage.wait("ended", NAME)
    assert (folder / "found").exists(), (folder / "log").read_text()
    cache = check(json.loads((folder / "found").read_text()), tmp_path)
    assert not cache.exists(), "what is of an attempt goes with it"


PROFILE = """
extends = "generic-slurm"
name = "mine"
interfaces = ["none0", "lo"]
[rank.one_host]
NCCL_NET = "Socket"
[rank.many_hosts]
NCCL_NET = "OFI"
[rank.folders]
MY_CACHE = "{scratch}/{trial}/{host}"
[step]
agents = ["--comment=of-the-profile"]
"""


@pytest.mark.stress
def test_ranks_of_two_hosts_of_a_real_slurm_find_what_the_profile_says(
    stage, tmp_path, slurm, monkeypatch
):
    (tmp_path / "mine.toml").write_text(PROFILE)
    machine = MachineConfig(backend="slurm", hosts=2, slots=1, profile=str(tmp_path / "mine.toml"))
    for name, value in slurm.allocate(2).items():
        monkeypatch.setenv(name, value)
    transport = slurm_transport(machine, stage.folder)
    backend = fleet_on(transport, machine, stage.folder, (), jobs=JOBS)
    stage.backend = backend
    stage.have(2)

    seen = [each["environment"] for each in stage.look(*backend.slots)]

    result = seen[0]
    assert (result["NCCL_NET"], result["WORLD_SIZE"], result["LOCAL_WORLD_SIZE"]) == (
        "OFI",
        "2",
        "1",
    )
    assert (result["MASTER_ADDR"], result["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    assert "SLURM_PROCID" not in result, "an agent's number is no rank's"
    assert result["SLURM_JOB_ID"] == os.environ["SLURM_JOB_ID"]
    hosts = {slot.host for slot in backend.slots}
    caches = {each["MY_CACHE"] for each in seen}
    assert {Path(cache).name for cache in caches} == hosts
    assert all(Path(cache).is_dir() for cache in caches)
    assert stage.end() == [0, 0]
    until(lambda: not any(Path(cache).exists() for cache in caches), "end of the folders")


def test_a_person_who_set_the_scratch_knows_better(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", "/mine")
    site = site_in(tmp_path)
    stage.backend = LocalBackend(
        slots=1, run_dir=stage.folder, jobs=JOBS, preload=(), site=site, lease_seconds=LEASE
    )

    (result,) = stage.look(stage.backend.slots[0])

    assert result["environment"]["HYDRAGNN_HPO_SCRATCH"] == "/mine"
    assert stage.end() == [0]
