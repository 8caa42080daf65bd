"""Campaigns as batch jobs of a real Slurm: queued, drained, followed, and lost with their host.

Four virtual hosts of 64 processors and 8 fake GPUs; ranks train on this machine's processor.
"""

import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_slurm import PATIENCE, VirtualSlurm, serve_campaigns, started

from hydragnn_hpo.campaign.state import LOST
from hydragnn_hpo.campaign.status import read_leaderboard
from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.layout import RunDir

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1500)]

SEARCH = {"trials": 4, "initial": 4, "rungs": [20], "finalists": 2}
MACHINE = {"slots": 2, "max_width": 1, "lease_seconds": 30.0}
"""Fixed widths, and a set of configurations that depends on the campaign's seed alone."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[VirtualSlurm]:
    with started(tmp_path_factory.mktemp("slurm4"), 4, cpus=64, gpus=8) as made:
        yield made


@pytest.fixture
def slurm(cluster, hpo, monkeypatch) -> Iterator[VirtualSlurm]:
    yield from serve_campaigns(cluster, hpo, monkeypatch)


@pytest.fixture
def campaign(hpo):
    """Write a campaign of four fixed trials that takes some seconds."""
    return made(hpo)


def made(hpo, **machine) -> Path:
    hpo.card(hpo.molecules(60))
    training = {"global_batch": 8, "checkpoint_seconds": 0.0}
    return hpo.campaign(
        search=SEARCH,
        machine=MACHINE | machine,
        trial={"training": training},
        ensemble={"members": 2},
    )


def submit(hpo, campaign, run: Path, *more: str, hosts: int = 1) -> str:
    """Queue a campaign; gives the number of the first job."""
    order = ("--machine", "generic-slurm", "--hosts", hosts, "--time", "0:30", *more)
    done = hpo("submit", campaign, "--run", run, *order, "--json")
    assert done.code == 0, done.err
    return JobRecords(run).jobs()[0].id


def ended(run: Path) -> list[BatchJob]:
    return [job for job in JobRecords(run).jobs() if job.ended is not None]


def began(run: Path) -> list[BatchJob]:
    return [job for job in JobRecords(run).jobs() if job.began]


def course(run: Path) -> str:
    """Give what all jobs said, for a test that fails."""
    return "\n".join(path.read_text() for path in sorted((run / "jobs").glob("*.out")))


def await_end(hpo, slurm, run: Path) -> None:
    hpo.wait_for(lambda: not slurm.ask("squeue", "-h").strip(), "the end of all jobs", PATIENCE)
    assert (run / "ensemble.zip").exists(), course(run)


def hosts_of(hpo, run: Path) -> set[str]:
    """Name the hosts that were there at the beginning, or came."""
    opened = {slot.partition(":")[0] for e in hpo.events(run, "opened") for slot in e["slots"]}
    return opened | {e["host"] for e in hpo.events(run, "host_joined")}


def maes(run: Path) -> dict[str, dict[str, float]]:
    return {row.trial: row.val_mae for row in read_leaderboard(RunDir(run)).rows}


def test_jobs_that_follow_each_other_give_what_one_run_gives(hpo, slurm, campaign):
    """Equal to the last bit: on a processor a resumed trial equals an unbroken one (Law 5).

    The first job is told that its end is near, as ``--signal=B:USR1@300`` does; the second is
    cancelled: Slurm signals each of its processes, the controller's too, and kills it 3 s later.
    """
    whole, run = hpo.folder / "run-whole", hpo.folder / "run"
    done = hpo("run", campaign, "--run", whole, seconds=PATIENCE)
    assert done.code == 0, done.err
    first = submit(hpo, campaign, run, hosts=2)

    with hpo.held(run, seconds=PATIENCE):
        states = [job["state"] for job in hpo.json("status", run)["jobs"]]
        slurm.ask("scancel", "--batch", "--signal=USR1", first)
        hpo.wait_for(lambda: hpo.events(run, "asked"), "the question to those who train")
    hpo.wait_for(lambda: ended(run), "the end of the first job", PATIENCE)
    hpo.wait_for(lambda: len(began(run)) == 2, "the second job", PATIENCE)
    second = began(run)[1].id
    with hpo.held(run, reached=-1, left=1, seconds=PATIENCE):
        slurm.ask("scancel", second)
        hpo.wait_for(
            lambda: second not in slurm.ask("squeue", "-h", "-o", "%i"), "its end", PATIENCE
        )
    await_end(hpo, slurm, run)

    one, two, three = began(run)
    assert (one.id, one.code, one.message) == (first, 75, "drained; the next job goes on")
    assert (two.after, three.after) == (one.id, two.id)
    assert two.code in (75, None), "drained, or killed before it could say so"
    assert (three.code, three.message.split(";")[0]) == (0, "the campaign is finished")
    (rest,) = (job for job in JobRecords(run).jobs() if not job.began)
    assert (rest.after, rest.message) == (three.id, "taken back")
    cut = {e["trial"] for e in hpo.events(run, "ended") if e.get("reason") == "walltime"}
    assert cut, "no trial was cut: it proves nothing"
    assert maes(run) == maes(whole)
    assert "running" in states
    assert {job["state"] for job in hpo.json("status", run)["jobs"]} == {"ended"}
    assert len(hosts_of(hpo, run)) == 2
    assert hpo.strays(run) == []


def test_a_job_that_is_lost_with_its_host_is_followed(hpo, slurm, campaign):
    run = hpo.folder / "run"
    first = submit(hpo, campaign, run)

    with hpo.held(run, seconds=PATIENCE) as now:
        host = slurm.ask("squeue", "-h", "-j", first, "-o", "%B").strip()
        slurm.signal_host(host, signal.SIGKILL)
    slurm.ask("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
    await_end(hpo, slurm, run)

    one, two = began(run)
    assert (one.ended, two.after, two.code) == (None, first, 0)
    (job_status, *_) = hpo.json("status", run)["jobs"]
    assert job_status["state"] == "ended"
    assert job_status["why"] == f"lost with its hosts: see jobs/{first}.out"
    lost = {e["trial"] for e in hpo.events(run, "ended") if e.get("reason") in LOST}
    assert now.trial in lost
    before = [e for e in hpo.events(run, "checkpoint") if e["epoch"] == 1]
    after = [e for e in hpo.events(run, "epoch") if e["epoch"] > 1]
    for trial in lost:
        saved_last = max((e["reached"] for e in before if e["trial"] == trial), default=0)
        again = [e["reached"] for e in after if e["trial"] == trial]
        first_again = min(again, default=math.inf)  # another one may have trained to its end
        assert first_again > saved_last, "no epoch before the last checkpoint was lost"
    assert now.trial in {e["trial"] for e in after}


def test_an_array_of_allocations_shares_one_campaign(hpo, slurm):
    """The first trains on only when the second is there, which needs hosts and imports, too."""
    run = hpo.folder / "run"

    submit(hpo, made(hpo, lease_seconds=PATIENCE), run, "--allocations", "2")
    with hpo.held(run, seconds=PATIENCE):
        hpo.wait_for(lambda: len(hosts_of(hpo, run)) == 2, "hosts of both", PATIENCE)
    await_end(hpo, slurm, run)

    assert [job.task for job in began(run)] == [1, 2]
    assert {job.code for job in began(run)} == {0}, course(run)
    others = [job for job in JobRecords(run).jobs() if not job.began]
    assert {job.message for job in others} == {"taken back"}
    assert len(hosts_of(hpo, run)) == 2


# -- what a site does to jobs, and what status says of it ------------------------------


def why(hpo, run: Path) -> str:
    """Give what ``status`` says of the newest job."""
    return hpo.here("status", run).out.strip().splitlines()[-1]


def test_a_job_that_fails_before_it_runs_says_so(hpo, slurm, campaign):
    machine = hpo.folder / "ours.toml"
    batch = "[batch]\nmodules = ['nothere']\n"
    machine.write_text(f"extends = 'generic-slurm'\nname = 'ours'\nsource = ['here']\n{batch}")
    run = hpo.folder / "run"
    order = ("--machine", machine, "--hosts", "1", "--time", "0:30")
    assert hpo("submit", campaign, "--run", run, *order).code == 0
    hpo.wait_for(lambda: not slurm.ask("squeue", "-h").strip(), "its end", PATIENCE)
    (job,) = JobRecords(run).jobs()
    ended = f"ended (failed before 'run' began, with exit code 127: see jobs/{job.id}.out)"
    assert ended in why(hpo, run)


def test_jobs_that_wait_or_stand_still_are_told_in_the_words_of_their_reason(hpo, slurm, campaign):
    """Reasons as Slurm 22.05 gives them; root's hold counts as an administrator's."""
    partition = ("scontrol", "update", "PartitionName=all")
    run = hpo.folder / "run"
    slurm.ask(*partition, "MaxTime=5")
    try:
        first = submit(hpo, campaign, run)
        tell = {
            "will never start as requested: more time than its partition": (),
            "held (an administrator holds it": ("scontrol", "hold", first),
        }
        for words, command in tell.items():
            if command:
                slurm.ask(*command)
            hpo.wait_for(lambda words=words: words in why(hpo, run), words, PATIENCE)
    finally:
        slurm.ask(*partition, "MaxTime=INFINITE")
    slurm.ask("scontrol", "release", first)
    with hpo.held(run, seconds=PATIENCE):
        slurm.ask("scontrol", "suspend", first)
        state = hpo.json("status", run)["jobs"][0]["state"]
        slurm.ask("scontrol", "resume", first)
    assert state == "suspended"
    slurm.ask("scancel", "--user=root")
    hpo.wait_for(lambda: not slurm.ask("squeue", "-h").strip(), "an empty queue", PATIENCE)
    one, two = hpo.json("status", run)["jobs"]
    assert (two["state"], two["why"]) == ("ended", "cancelled before it began")
    assert one["why"] in ("cancelled", "drained; the next job was cancelled: submit again to go on")


def test_a_job_that_was_suspended_for_long_goes_on(hpo, slurm):
    """Its agents look for a controller for a minute; the time in which they stood still is none."""
    run = hpo.folder / "run"
    first = submit(hpo, made(hpo, lease_seconds=5.0), run, "--jobs", "1")
    with hpo.held(run, seconds=PATIENCE):
        slurm.ask("scontrol", "suspend", first)
        time.sleep(75.0)
        slurm.ask("scontrol", "resume", first)
    await_end(hpo, slurm, run)
    (job,) = JobRecords(run).jobs()
    assert (job.code, job.message) == (0, "the campaign is finished")
    assert "was cancelled" not in course(run)


def test_a_job_that_a_greeting_hides_is_found_by_its_comment(hpo, slurm, campaign, monkeypatch):
    folder = hpo.folder / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f'#!/bin/sh\n{shutil.which("sbatch")} "$@" >/dev/null && echo "   Welcome, thank you"\n'
    )
    (folder / "sbatch").chmod(0o755)
    slurm.ask("scontrol", "update", "PartitionName=all", "State=DOWN")
    try:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            first = submit(hpo, campaign, hpo.folder / "run", "--jobs", "3")
        listed = slurm.ask("squeue", "-h", "-o", "%i %k").split()
    finally:
        slurm.ask("scontrol", "update", "PartitionName=all", "State=UP")
    assert listed == [first, f"hydragnn-hpo:{run_tag(hpo.folder / 'run')}"]


def test_a_controller_whose_allocation_is_taken_away_ends_with_that_sentence(hpo, slurm):
    """As at a drain: the next one goes on. Nobody would tell it to look for other slots."""
    held = slurm.allocate(1)
    run = hpo.folder / "run"
    process = hpo.start("run", made(hpo), "--run", run, "--machine", "generic-slurm", **held)
    with hpo.held(run, seconds=PATIENCE):
        slurm.ask("scancel", held["SLURM_JOB_ID"])
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"Slurm job {held['SLURM_JOB_ID']} has ended"), err
    assert "run the same command again" in last
