"""The acceptance of a site: a real Slurm with virtual hosts, and this computer by itself."""

import json
import os
import subprocess
import sys

import pytest
from processes import find_orphans

from hydragnn_hpo.cli import acceptance
from hydragnn_hpo.cli.acceptance import STEPS
from hydragnn_hpo.host_checks import find_job_hosts
from hydragnn_hpo.launching.process_control import run_tag

pytestmark = [pytest.mark.stress, pytest.mark.timeout(2400)]

SECONDS = 1200.0
COMMAND = [sys.executable, "-m", "hydragnn_hpo", "doctor", "--acceptance", "--minutes", "0.1"]


def accept(*options, environment):
    return subprocess.run(
        [*COMMAND, *map(str, options)],
        env=environment | {"COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def alone(*options):
    """Run the command on this computer, in no job of a scheduler."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("SLURM")}
    return accept(*options, environment=environment)


def test_a_slurm_of_two_hosts_is_accepted(slurm, tmp_path):
    site = tmp_path / "site"
    # names of virtual hosts lead nowhere: ranks that srun starts are told where to meet
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "21987"}
    environment = os.environ | slurm.allocate(2) | meeting

    done = accept("--run", site, "--json", environment=environment)

    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((site / "acceptance.json").read_text())
    result = {f["check"]: f for stage in report["stages"] for f in stage["findings"]}
    assert [stage["name"] for stage in report["stages"]] == list(STEPS)
    assert report["accepted"], [f for f in result.values() if f["state"] == "wrong"]
    assert done.returncode == 0
    assert result["all-reduce sums"]["state"] == "ok"
    assert result["same result: one rank, two hosts"]["state"] == "ok"
    assert result["same result: interrupted and unbroken"]["state"] == "ok"
    assert result["hosts with trials"]["observed"] == "2 of 2"
    assert not find_orphans(run_tag(site / "campaign"))


def test_two_ranks_of_a_workstation_give_what_one_gives(tmp_path, monkeypatch):
    """Steps that are the same on every machine are left out: a kill and a campaign."""
    for step in ("_interruption", "_campaign"):
        monkeypatch.setattr(acceptance, step, lambda site: [])
    machine = {"profile": "workstation", "pack": None, "container": None}
    hosts = find_job_hosts({})
    site = acceptance.Acceptance(machine, hosts, tmp_path / "site", minutes=0.1)

    report, findings = acceptance.accept(site, lambda: [])

    assert [stage["name"] for stage in report["stages"]] == list(STEPS)
    if site.ranks == 1:
        assert "not testable" in findings[0].observed
    else:
        assert [(f.check, f.state) for f in findings] == [("same result: one rank, one host", "ok")]


def test_a_dry_run_starts_and_writes_nothing(tmp_path):
    done = alone("--run", tmp_path / "site", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [name for name in STEPS if f"  {name}: " not in done.stdout] == []
    assert not (tmp_path / "site").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    done = alone("--run", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "choose another with --run" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
