"""Doctor on a laptop, and on a real Slurm of which two hosts are broken."""

import json
import os

import pytest
from virtual_slurm import started

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.host_checks import doctor
from hydragnn_hpo.host_checks.host_probe import HostFacts, NetworkFacts
from hydragnn_hpo.launching.excluded_hosts import read_excluded

PROFILE = """\
extends = "generic-slurm"
name = "small"
description = "hosts of two slots"
source = ["a test"]
slots_per_host = 2
[layout]
cores_of_slot = ["0", "1"]
[step]
agents = ["--gpus-per-node=2"]
"""

TRAIN = """
import json, sys
from pathlib import Path
part = Path(sys.argv[1]) / "part"
part.write_text(json.dumps({"status": "completed", "objective": 1.0, "epochs": 1}))
part.rename(part.with_name("result.json"))
"""


def states(report):
    """Give state by check and host; what concerns no host stands under ''."""
    result = {}
    for finding in report["findings"]:
        for host in finding["hosts"] or [""]:
            result.setdefault(finding["check"], {})[host] = finding["state"]
    return result


@pytest.mark.slow
def test_a_laptop_loses_nothing(hpo):
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "110"}
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PBS_"))]:
        environment[name] = ""
    done = hpo("doctor", "--json", **environment)

    assert done.code in (0, 1), done.err
    report = json.loads(done.out)
    assert report["machine"] == "workstation"
    (host,) = report["hosts"]
    results = states(report)
    assert len(results) >= 15
    # what a full disk, or a busy one or processor, may make slow or wrong is not judged here
    well = ("scheduler", "answer", "cores", "memory", "devices (driver)", "versions")
    assert {name: set(results[name].values()) for name in well} == {name: {"ok"} for name in well}
    assert set(results["shared rename"]) == set(results["scratch"]) == {host}
    assert list(hpo.folder.iterdir()) == [], "nothing is left behind"


def test_a_login_host_is_not_taken_for_a_host_of_the_machine(tmp_path, monkeypatch):
    answers = doctor.Answers({"login1": HostFacts("login1", 0.0, network=NetworkFacts({}, ()))})
    monkeypatch.setattr(doctor, "_probe_hosts", lambda *_: answers)
    for kind, judged in (("here", False), ("slurm", True)):
        hosts = doctor.JobHosts(kind, ("login1",))
        results = doctor.examine_hosts(
            find_profile("frontier"), hosts, folder=tmp_path, environment={}
        )
        checks = {finding.check: finding.state for finding in results}
        assert ("fabric interfaces" in checks) == judged
        assert checks.get("hosts of frontier") == (None if judged else "unknown")


def test_advice_names_the_profile_as_a_command_line_needs_it(tmp_path, monkeypatch):
    """A file of one's own is not found by its name."""
    answers = doctor.Answers({"login1": HostFacts("login1", 0.0, network=NetworkFacts({}, ()))})
    monkeypatch.setattr(doctor, "_probe_hosts", lambda *_: answers)
    results = doctor.examine_hosts(
        find_profile("frontier"),
        doctor.JobHosts("here", ("login1",)),
        folder=tmp_path,
        environment={},
        machine="my sites/ours.toml",
    )
    (unseen,) = (finding for finding in results if finding.check == "hosts of frontier")
    assert unseen.cure.endswith("then hydragnn-hpo doctor --machine 'my sites/ours.toml'.")


@pytest.fixture
def broken_slurm(tmp_path_factory):
    """A Slurm of four hosts: node2 is confined to one core, node4 has lost a GPU."""
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        pytest.skip("this test needs the cores 0 and 1.")
    folder = tmp_path_factory.mktemp("broken")
    with started(folder, 4, gpus=2, gpus_of={"node4": 1}, cores_of={"node2": {0}}) as cluster:
        yield cluster


@pytest.mark.stress
def test_broken_hosts_are_found_written_down_and_left_alone(broken_slurm, hpo):
    held = broken_slurm.allocate(4)
    profile = hpo.folder / "small.toml"
    profile.write_text(PROFILE)

    done = hpo(
        "doctor", "--machine", profile, "--run", "run", "--quick", "--json", seconds=800, **held
    )

    assert done.code == 1, done.err
    report = json.loads(done.out)
    assert report["hosts"] == ["node1", "node2", "node3", "node4"]
    result = states(report)
    bad = {check: [h for h, s in by.items() if s == "wrong"] for check, by in result.items()}
    assert bad["options of steps"] == [""], "node4 cannot give two"
    assert bad["affinity"] == ["node2"]
    assert bad["devices (Slurm)"] == ["node4"]
    assert result["shared exclusive creation"] == {"": "ok"}
    excluded = read_excluded(hpo.folder / "run" / "exclude.hosts")
    assert {"node2", "node4"} <= set(excluded), report["notes"]
    assert "slot 1" in excluded["node2"]
    assert "devices (Slurm): 1, expected 2" in excluded["node4"]

    (hpo.folder / "train.py").write_text(TRAIN)
    values = {
        "name": "commands",
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {"brain": "random", "trials": 6, "rungs": [1], "finalists": 1},
        "command": {"argv": ["{python}", "{here}/train.py", "{folder}"]},
        "machine": {"backend": "slurm", "slots": 1, "lease_seconds": 120.0},
    }
    campaign = hpo.toml("campaign.toml", values)
    done = hpo("run", campaign, "--run", "run", "--json", seconds=800, **held)

    assert done.code == 0, done.err
    placed = hpo.events(hpo.folder / "run", "placed")
    hosts = {slot.partition(":")[0] for event in placed for slot in event["slots"]}
    assert len(placed) == 6
    assert hosts <= {"node1", "node3"} - set(excluded)  # a busy one of these may be slow
    status = hpo.json("status", "run")
    assert status["standing"]["hosts"]["excluded"] == len(excluded)


@pytest.mark.stress
def test_two_hosts_sum_together(slurm, hpo):
    held = slurm.allocate(2)

    done = hpo("doctor", "--json", seconds=800, **held)

    assert done.code in (0, 1), done.err  # a busy machine is slow
    report = json.loads(done.out)
    assert report["machine"] == "generic-slurm"
    pairs = {f["check"]: f for f in report["findings"] if f["hosts"] == ["node1", "node2"]}
    assert pairs["all-reduce sums"]["state"] == "ok", pairs
    assert pairs["network used"]["state"] == "ok"
    assert pairs["all-reduce bus bandwidth"]["figure"] > 0
    assert not [f for f in report["findings"] if f["state"] == "wrong"]
    assert list(hpo.folder.iterdir()) == [], "nothing is left behind"
