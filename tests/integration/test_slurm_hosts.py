"""Hosts of a real Slurm as sites have them: with a suffix, a default of memory, without software.

Three virtual hosts; ranks train on this machine's processor.
"""

import sys
from collections.abc import Iterator

import pytest
from virtual_slurm import PATIENCE, VirtualSlurm, serve_campaigns, started

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.launching.batch_jobs import JobRecords

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1500)]

MEMORY = "SelectTypeParameters=CR_Core_Memory\nDefMemPerNode=500\n"
SEARCH = {"trials": 3, "initial": 3, "rungs": [4], "finalists": 2}
MACHINE = {"slots": 1, "max_width": 1, "lease_seconds": 30.0}

ENTER = """\
#!/bin/sh
[ "$SLURMD_NODENAME" = node2-ib ] && exec {python}.gone "$@"
while [ "$1" != {image} ]; do shift; done
shift 2
PYTHONPATH={root} exec {python} "$@"
"""
"""A container program that runs what it is given here; on one host Python is not there."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[VirtualSlurm]:
    folder = tmp_path_factory.mktemp("slurm3")
    with started(folder, 3, cpus=2, suffix="-ib", more_conf=MEMORY) as made:
        yield made


@pytest.fixture
def slurm(cluster, hpo, monkeypatch) -> Iterator[VirtualSlurm]:
    yield from serve_campaigns(cluster, hpo, monkeypatch)


def submit(hpo, run, *, hosts, machine="generic-slurm", **values) -> None:
    """Queue a campaign of three short trials."""
    hpo.card(hpo.molecules(60))
    config = {"search": SEARCH, "ensemble": {"members": 2}, "machine": MACHINE | values}
    order = ("--machine", machine, "--hosts", hosts, "--time", "0:30", "--json")
    done = hpo("submit", hpo.campaign(**config), "--run", run, *order)
    assert done.code == 0, done.err


def events(run, kind) -> list:
    return [e for e in read_journal(run / "events.jsonl") if e["event"] == kind]


def await_end(hpo, run) -> str:
    """Wait until the job has ended; gives what it said."""
    jobs = JobRecords(run)
    hpo.wait_for(lambda: any(job.ended for job in jobs.jobs()), "the end of the job", PATIENCE)
    said = "\n".join(path.read_text() for path in sorted((run / "jobs").glob("*.out")))
    assert jobs.jobs()[0].code == 0, said
    return said


def test_hosts_with_a_suffix_work_whole_and_are_excluded_by_other_names(hpo, slurm):
    run = hpo.folder / "run"
    run.mkdir()
    (run / "exclude.hosts").write_text("Node3-IB.example.org  # slow\nnode33-ib  # mistyped\n")
    submit(hpo, run, hosts=3)
    job = JobRecords(run).jobs()[0].id
    granted = slurm.ask("scontrol", "show", "job", job)
    said = await_end(hpo, run)
    assert f"mem={3 * 4096 // 1024}G" in granted, "whole hosts, and no more than the default of it"
    joined = {e["host"] for e in events(run, "host_joined")}
    slots = {slot for e in events(run, "opened") for slot in e["slots"]}
    assert joined | {slot.partition(":")[0] for slot in slots} == {"node1-ib", "node2-ib"}
    assert "exclude.hosts names 'node33-ib', but no host has that name" in said
    assert "node3-ib.example.org" not in said.lower()


def test_a_host_without_software_is_named_and_the_other_one_works(hpo, slurm):
    run, image, enter = (hpo.folder / name for name in ("run", "image.sif", "enter"))
    image.touch()
    enter.write_text(ENTER.format(python=sys.executable, image=image, root=hpo.root))
    enter.chmod(0o755)
    profile = hpo.folder / "ours.toml"
    container = {"command": [str(enter)]}
    profile.write_text(
        to_toml({"extends": "generic-slurm", "name": "ours", "container": container})
    )
    submit(hpo, run, hosts=2, machine=profile, container=str(image))
    said = await_end(hpo, run)
    sentence = "host node2-ib has no agent, exited with exit code 127"
    assert sentence in said
    (absent,) = events(run, "hosts_absent")
    assert f"{sys.executable}.gone: not found" in absent["hosts"]["node2-ib"]
    assert "on 1 of 2 hosts" in hpo("status", run).out
