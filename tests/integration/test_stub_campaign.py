"""The real controller, journal and link before stub agents that are killed."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import stub_campaign

pytestmark = pytest.mark.stress


@pytest.fixture
def campaign(hpo):
    hpo.card()
    search = {"trials": 24, "initial": 24, "rungs": [4, 12], "finalists": 4}
    return hpo.campaign(search=search, ensemble={"learning_curve": 0.0})


HERE = ("--machine", "generic-slurm", "--structures", "100000", "--slots", "4")


def start(campaign, *arguments):
    command = [sys.executable, stub_campaign.__file__, str(campaign), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def rehearse(campaign, *arguments):
    """Return what a rehearsal reports."""
    process = start(campaign, *arguments)
    out, err = process.communicate(timeout=300.0)
    assert process.returncode == 0, err
    return json.loads(out)


def stub_pids(hpo):
    """Return the processes of stub agents of this test's rehearsals."""
    name = "stub_agents"
    folder = str(hpo.folder)
    results = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                line = file.read()
        except OSError:
            continue
        if name in line and folder in line and not line.startswith("cat"):
            results.append(int(pid))
    return results


def test_sixteen_hosts_are_rehearsed_once_and_nothing_is_lost(hpo, campaign):
    arguments = ("--hosts", "16", "--minutes", "0.1", "--kills", "0", "--run", hpo.folder / "run")

    result = rehearse(campaign, *HERE, *arguments)

    assert (result["hosts_admitted"], result["trials"], result["results"]) == (16, 24, 24)
    assert (result["results_lost"], result["results_twice"], result["attempts_lost"]) == (0, 0, 0)
    assert result["makespan"] > 0.8 * result["predicted_makespan"], "nothing runs faster than time"
    events = hpo.events(hpo.folder / "run")
    epochs = {e["reached"] for e in events if e["event"] == "epoch"}
    assert epochs == set(range(1, 13))
    first = {e["trial"]: e["seconds"] for e in events if e["event"] == "first_step"}
    assert len(first) == 24
    assert not stub_pids(hpo)


def test_a_campaign_of_commands_is_rehearsed_without_starting_one(hpo):
    argv = [sys.executable, "-c", "raise SystemExit('started')"]
    campaign = hpo.toml(
        "campaign.toml",
        {
            "name": "commands",
            "command": {"argv": argv, "width": 2},
            "space": {"x": {"low": 0.0, "high": 1.0}},
            "search": {"brain": "random", "trials": 6, "initial": 6, "rungs": [3]},
        },
    )
    result = rehearse(campaign, *HERE[:2], "--slots", 4, "--hosts", 4, "--minutes", 0.1)
    assert (result["results"], result["results_lost"], result["results_twice"]) == (6, 0, 0)


def test_stubs_that_die_are_reported_and_leave_no_process(hpo, campaign):
    arguments = ("--hosts", "4", "--speed-up", "1", "--run", hpo.folder / "run")
    process = start(campaign, *HERE, *arguments)
    journal = hpo.folder / "run" / "events.jsonl"
    hpo.wait_for(lambda: journal.exists() and b"first_step" in journal.read_bytes(), "a first step")
    for pid in stub_pids(hpo):
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120.0)
    assert (process.returncode, out) == (1, "")
    assert re.search(r"^error: the stub agents ended \(code -9\): .* 24 trials had a result", err)
    assert len(err.splitlines()) == 1


def test_hundreds_of_hosts_of_which_some_are_killed_lose_and_double_nothing(hpo, campaign):
    arguments = ("--hosts", "200", "--trials", "100", "--minutes", "0.3", "--kills", "10")

    result = rehearse(campaign, *HERE, *arguments)

    assert result["hosts_admitted"] == 200
    assert result["hosts_killed"] > 0
    assert (result["results_lost"], result["results_twice"]) == (0, 0)
    assert result["results"] == result["trials"] == 100
