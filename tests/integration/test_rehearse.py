"""``rehearse``: the real controller, journal and link before stub agents that are killed."""

import json
import os
import re
import signal
import sys

import pytest

pytestmark = pytest.mark.stress


@pytest.fixture
def campaign(hpo):
    hpo.card()
    search = {"trials": 24, "initial": 24, "rungs": [4, 12], "finalists": 4}
    return hpo.campaign(search=search, ensemble={"learning_curve": 0.0})


HERE = ("--machine", "generic-slurm", "--structures", "100000", "--slots", "4")


def stub_pids(hpo):
    """Return the processes of stub agents of this test's rehearsals."""
    name, folder = "stub_agents", str(hpo.folder)
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

    done = hpo("rehearse", campaign, *HERE, *arguments, "--json")

    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["hosts_admitted"], result["trials"], result["results"]) == (16, 24, 24)
    assert (result["results_lost"], result["results_twice"], result["attempts_lost"]) == (0, 0, 0)
    assert result["makespan"] > 0.8 * result["predicted_makespan"], "nothing runs faster than time"
    events = hpo.events(hpo.folder / "run")
    epochs = {e["reached"] for e in events if e["event"] == "epoch"}
    assert epochs == set(range(1, 13))
    first = {e["trial"]: e["seconds"] for e in events if e["event"] == "first_step"}
    assert len(first) == 24
    assert not stub_pids(hpo)
    hpo.judge(hpo.here("rehearse", campaign, *HERE, *arguments), ("has been run already",), code=1)


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
    done = hpo("rehearse", campaign, *HERE[:2], "--slots", "4", "--hosts", "4", "--minutes", "0.1")
    assert done.code == 0, done.err
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert lines["results"].startswith("6 trials with one; 0 lost, 0 counted twice")
    assert re.fullmatch(r".* predicted, .* rehearsed \(.* times\)", lines["makespan"])


def test_stubs_that_die_are_reported_and_leave_no_process(hpo, campaign):
    arguments = ("--hosts", "4", "--speed-up", "1", "--run", hpo.folder / "run")
    process = hpo.start("rehearse", campaign, *HERE, *arguments)
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

    done = hpo("rehearse", campaign, *HERE, *arguments, "--json")

    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["hosts_admitted"], result["problems"]) == (200, [])
    assert result["hosts_killed"] > 0
    assert (result["results_lost"], result["results_twice"]) == (0, 0)
    assert result["results"] == result["trials"] == 100
