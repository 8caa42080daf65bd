"""Campaigns as batch jobs of a real Slurm: queued, drained, followed, and lost with their host.

Eight virtual hosts of 64 processors and 8 fake GPUs; ranks train on this machine's processor.
"""

import math
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_slurm import VirtualSlurm, missing

from hydragnn_hpo.campaign.state import LOST
from hydragnn_hpo.campaign.status import read_leaderboard
from hydragnn_hpo.launching import batch_jobs
from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords
from hydragnn_hpo.launching.process_control import end_orphans, run_tag
from hydragnn_hpo.layout import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PATIENCE = 600.0
"""Seconds; the machine may be very busy, and Slurm is quick only where it is quiet."""

SEARCH = {"trials": 4, "initial": 4, "rungs": [24], "finalists": 2}
MACHINE = {"slots": 2, "max_width": 1, "lease_seconds": 30.0}
"""Fixed widths, and a set of configurations that depends on the campaign's seed alone."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[VirtualSlurm]:
    if reason := missing():
        pytest.skip(f"no Slurm: {reason}")
    made = VirtualSlurm(tmp_path_factory.mktemp("slurm8"), hosts=8, cpus=64, gpus=8)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def slurm(cluster, hpo, monkeypatch) -> Iterator[VirtualSlurm]:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", PATIENCE)
    yield cluster
    cluster.ask("scancel", "--user=root")
    hpo.wait_for(lambda: not cluster.ask("squeue", "-h").strip(), "an empty queue", PATIENCE)
    cluster.release()
    for run in hpo.folder.glob("run*"):
        end_orphans(run_tag(run))


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


def test_a_submitted_campaign_comes_to_its_ensemble(hpo, slurm):
    run = hpo.folder / "run"
    first = submit(hpo, hpo.root / "workflows" / "ci.toml", run, hosts=2)
    with hpo.held(run, reached=-1, left=1, seconds=PATIENCE):
        states = [job["state"] for job in hpo.json("status", run)["jobs"]]
    hpo.wait_for(lambda: ended(run), "the end of the first job", PATIENCE)
    await_end(hpo, slurm, run)

    own, follower = JobRecords(run).jobs()
    assert (own.id, own.code, own.message.split(";")[0]) == (first, 0, "the campaign is finished")
    assert (follower.after, follower.began, follower.message) == (first, None, "taken back")
    assert "running" in states
    assert {job["state"] for job in hpo.json("status", run)["jobs"]} == {"ended"}
    assert hpo.json("status", run)["finished"]
    assert len(hosts_of(hpo, run)) == 2
    assert hpo.strays(run) == []


def test_jobs_that_follow_each_other_give_what_one_run_gives(hpo, slurm, campaign):
    """Equal to the last bit: on a processor a resumed trial equals an unbroken one (Law 5)."""
    whole, run = hpo.folder / "run-whole", hpo.folder / "run"
    done = hpo("run", campaign, "--run", whole, seconds=PATIENCE)
    assert done.code == 0, done.err
    first = submit(hpo, campaign, run)

    with hpo.held(run, seconds=PATIENCE):
        slurm.ask("scancel", "--batch", "--signal=USR1", first)  # as --signal=B:USR1@300 does
        hpo.wait_for(lambda: hpo.events(run, "asked"), "the question to those who train")
    hpo.wait_for(lambda: ended(run), "the end of the first job", PATIENCE)
    await_end(hpo, slurm, run)

    one, two = (job for job in JobRecords(run).jobs() if job.began)
    assert (one.code, one.message) == (75, "drained; the next job goes on")
    assert (two.after, two.code) == (one.id, 0)
    cut = {e["trial"] for e in hpo.events(run, "ended") if e.get("reason") == "walltime"}
    assert cut, "no trial was cut: it proves nothing"
    assert maes(run) == maes(whole)


def test_a_job_that_is_lost_with_its_host_is_followed(hpo, slurm, campaign):
    run = hpo.folder / "run"
    first = submit(hpo, campaign, run)

    with hpo.held(run, seconds=PATIENCE) as now:
        host = slurm.ask("squeue", "-h", "-j", first, "-o", "%B").strip()
        slurm.signal_host(host, signal.SIGKILL)
    slurm.ask("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
    await_end(hpo, slurm, run)

    one, two = (job for job in JobRecords(run).jobs() if job.began)
    assert (one.ended, two.after, two.code) == (None, first, 0)
    (told, *_) = hpo.json("status", run)["jobs"]
    assert (told["state"], told["why"]) == ("ended", "lost with its hosts, or cancelled")
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


def test_a_cancelled_job_is_drained_and_followed(hpo, slurm, campaign):
    """Slurm signals every process of the job, also the controller, and kills it 3 s later."""
    run = hpo.folder / "run"
    first = submit(hpo, campaign, run)

    with hpo.held(run, seconds=PATIENCE):
        slurm.ask("scancel", first)
        hpo.wait_for(
            lambda: first not in slurm.ask("squeue", "-h", "-o", "%i"), "its end", PATIENCE
        )
    await_end(hpo, slurm, run)

    one, two = (job for job in JobRecords(run).jobs() if job.began)
    assert one.code in (75, None), "drained, or killed before it could say so"
    assert (two.after, two.code) == (first, 0)


def test_an_array_of_allocations_shares_one_campaign(hpo, slurm):
    """The first trains on only when the second is there, which needs hosts and imports, too."""
    run = hpo.folder / "run"

    submit(hpo, made(hpo, lease_seconds=PATIENCE), run, "--allocations", "2")
    with hpo.held(run, seconds=PATIENCE):
        hpo.wait_for(lambda: len(hosts_of(hpo, run)) == 2, "hosts of both", PATIENCE)
    await_end(hpo, slurm, run)

    jobs = JobRecords(run).jobs()
    began = [job for job in jobs if job.began]
    assert [job.task for job in began] == [1, 2]
    assert {job.code for job in began} == {0}, course(run)
    assert {job.message for job in jobs if not job.began} == {"taken back"}
    assert len(hosts_of(hpo, run)) == 2
