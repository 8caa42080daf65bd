"""``submit`` and what follows, against schedulers that only write down what they are told."""

import json
import re
import stat
from pathlib import Path

import pytest
from fake_schedulers import FakeScheduler, read_options

from hydragnn_hpo.campaign.journal import Journal
from hydragnn_hpo.launching import batch_jobs
from hydragnn_hpo.launching.batch_jobs import JobRecords
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.layout import RunDir

ROOT = Path(__file__).parents[2]
SHORT = ("--hosts", "2", "--time", "1:00")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for a scheduler's answer however busy this machine is."""
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", batch_jobs.SUBMIT_SECONDS)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return FakeScheduler(tmp_path / "bin", monkeypatch, "sbatch", "squeue", "scancel")


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    return FakeScheduler(tmp_path / "bin", monkeypatch, "qsub", "qstat", "qdel", "qselect")


@pytest.fixture
def run(hpo):
    """Name the run directory of a campaign whose data is there."""
    hpo.card(hpo.molecules(20))
    hpo.campaign()
    return hpo.folder / "run"


def submit(hpo, run, *more, machine="generic-slurm", order=SHORT):
    options = ("--machine", machine, "--run", run, *order, *more)
    return hpo.here("submit", "campaign.toml", *options)


def note(run, kind, **values):
    """Let a controller write an event."""
    journal = Journal(RunDir(run).journal, 1, lambda: 5.0)
    journal.append(kind, **values)
    journal.close()


def batch(hpo, monkeypatch, job, *arguments, name="SLURM_JOB_ID"):
    with monkeypatch.context() as patch:
        patch.setenv(name, job)
        patch.setenv("SLURM_NNODES", "7")
        patch.setenv("HYDRAGNN_HPO_END", "99")
        patch.setenv("HYDRAGNN_HPO_BATCH_JOB", job)
        return hpo.here("batch", *arguments)


def test_a_campaign_is_submitted_once(hpo, run, slurm):
    done = submit(hpo, run)

    assert done.code == 0, done.err
    assert slurm.calls == [["sbatch", "--parsable", "001.sh"]]
    assert slurm.last["cwd"] == str(run / "jobs")
    assert "submitted 101 with" in done.out
    script = (run / "jobs" / "001.sh").read_text()
    assert script in done.out
    assert "#SBATCH --nodes=2\n" in script
    assert f"run {run}/jobs/001.toml --run {run} --machine generic-slurm" in script
    assert stat.S_IMODE((run / "jobs").stat().st_mode) == 0o700
    (job,) = JobRecords(run).jobs()
    assert (job.id, job.link, job.jobs, job.hosts, job.script) == ("101", 1, 16, 2, "001.sh")

    again = submit(hpo, run)
    hpo.judge(again, ("batch job 101", "queued (Priority)", "--again"))
    assert submit(hpo, run, "--again").code == 0
    assert [job.script for job in JobRecords(run).jobs()] == ["001.sh", "002.sh"]


def test_what_is_submitted_stands_by_itself(hpo, run, slurm):
    """Whatever becomes of the campaign's file, the job finds what was submitted, and the card."""
    assert submit(hpo, run).code == 0
    (hpo.folder / "campaign.toml").write_text("nonsense")
    copy = run / "jobs" / "001.toml"
    assert f'card = "{hpo.folder}/tiny.toml"' in copy.read_text()

    done = hpo.here("run", copy, "--run", run, "--machine", "workstation", "--dry-run")

    assert done.code == 0, done.err
    assert "6 trials by random" in done.out


def test_settings_change_what_is_submitted(hpo, run, slurm):
    """As ``run`` reads them: the job's copy holds the change, and another key the file's value."""
    assert submit(hpo, run, "--set", "search.trials=4").code == 0
    (copy,) = (run / "jobs").glob("*.toml")
    done = hpo.here("run", copy, "--run", run, "--machine", "workstation", "--dry-run")
    assert "4 trials by random" in done.out, done.err

    report = submit(hpo, run, "--again", "--set", "search.trails=4")
    hpo.judge(report, ("unknown key 'search.trails'", "Did you mean 'trials'?"))
    hpo.judge(submit(hpo, run, "--again", "--set", "trials"), ("--set trials", "KEY=VALUE"))
    assert len(slurm.calls) == 1


def test_a_dry_run_leaves_nothing(hpo, run, slurm):
    done = submit(hpo, run, "--dry-run", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["argv"] == ["sbatch", "--parsable", "001.sh"]
    assert report["script"].startswith("#!/bin/bash\n")
    assert (report["jobs"], report["run"], report["scheduler"]) == ([], str(run), "slurm")
    assert not run.exists()
    assert not slurm.was_called


@pytest.mark.parametrize(
    ("hosts", "options", "packs"),
    [("63", (), False), ("64", (), True), ("64", ("--pack", "none"), False)],
)
def test_many_hosts_get_software_of_their_own(hpo, run, slurm, hosts, options, packs):
    """frontier.toml: pack_from = 64."""
    order = ("--hosts", hosts, "--time", "1:00", "--account", "abc")
    done = submit(hpo, run, *options, "--dry-run", machine="frontier", order=order)
    assert done.code == 0, done.err
    assert (f"software onto own disks, from {run}/software" in done.out) == packs


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"space": {"model.conv": ["schent"]}}, {}, ("schnet",)),
        ({}, {"machine": "frontire"}, ("Did you mean 'frontier'",)),
        ({}, {"machine": "workstation"}, ("takes no batch jobs",)),
        ({}, {"machine": "frontier"}, ("name yours with --account",)),
        ({}, {"order": ("--hosts", "2", "--time", "soon")}, ("write hours and minutes",)),
        ({}, {"machine": "generic-pbs", "order": (*SHORT, "--allocations", "2")}, ("'mpiexec'",)),
        ({"launch": {"min_hosts": 3}}, {}, ("min_hosts is 3, but the allocation has 2 hosts",)),
        ({}, {"order": (*SHORT, "--pack", "")}, ("pack",)),
        ({}, {"order": (*SHORT, "--container", "")}, ("container",)),
        ({}, {"run": Path("a\udcffb")}, ("udcff", "UTF-8: choose or link")),
        ({"data": [{"card": "none.toml"}]}, {}, ("none.toml",)),
        ({"data": [{"card": "moved.toml"}]}, {}, ("moved.extxyz", "HYDRAGNN_HPO_DATA")),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_submitted(
    hpo, run, slurm, changes, options, says
):
    card = (hpo.folder / "tiny.toml").read_text()
    (hpo.folder / "moved.toml").write_text(card.replace("tiny.extxyz", "moved.extxyz"))
    hpo.campaign(**changes)
    hpo.judge(submit(hpo, **({"run": run} | options)), says)
    assert not run.exists()
    assert not slurm.was_called


ENVIRONMENT = {
    **{"SBATCH_ACCOUNT": "deflt", "SBATCH_TIMELIMIT": "1:0", "SBATCH_PARTITION": "short"},
    **{"SQUEUE_PARTITION": "short", "SLURM_TIME_FORMAT": "relative", "SCANCEL_STATE": "RUNNING"},
}


def test_what_was_requested_wins_over_the_environment(hpo, run, slurm, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    done = submit(hpo, run, "--account", "mine", "--queue", "batch")
    assert done.code == 0, done.err
    assert "SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_TIMELIMIT of the environment" in done.err
    assert " was requested" not in done.err
    (options,) = read_options(slurm.folder).values()
    assert (options["a"], options["P"], options["l"]) == ("mine", "batch", "01:00:00")
    assert set(slurm.last["environment"]) & set(ENVIRONMENT) == set()
    assert hpo.json("status", run)["jobs"][0]["state"] == "queued"


def test_an_account_of_the_environment_fills_in(hpo, run, slurm, monkeypatch):
    monkeypatch.setenv("SBATCH_ACCOUNT", "deflt")
    done = submit(hpo, run)
    assert (done.code, done.err) == (0, "")
    assert "#SBATCH --account=deflt\n" in (run / "jobs" / "001.sh").read_text()


def test_what_a_site_changes_is_told(hpo, run, slurm):
    """A plugin of Slurm, or what stands before the real sbatch."""
    real = (slurm.folder / "sbatch").rename(slurm.folder / "real")
    (slurm.folder / "sbatch").write_text(f'#!/bin/sh\nSBATCH_ACCOUNT=site exec {real} "$@"\n')
    (slurm.folder / "sbatch").chmod(0o755)
    done = submit(hpo, run, "--account", "mine")
    assert done.code == 0
    assert "batch job 101 has --account site, and mine was requested" in done.err


def test_a_greeting_of_sbatch_hides_no_job(hpo, run, slurm):
    (slurm.folder / "greetings").write_text("   Welcome\n---\n101\nbye")
    assert submit(hpo, run, "--jobs", "3").code == 0
    assert [(job.id, job.jobs) for job in JobRecords(run).jobs()] == [("101", 3)]
    hpo.judge(submit(hpo, run), ("batch job 101", "queued (Priority)", "--again"))


def test_a_job_whose_number_is_unknown_is_not_submitted_again(hpo, run, slurm, monkeypatch):
    """It runs, as its script knows the limit of its chain, and the record what it is."""
    (slurm.folder / "greetings").write_text("welcome")
    squeue = (slurm.folder / "squeue").rename(slurm.folder / "away")
    look = ("may be queued", "squeue --name=hpo-ci", "--again")
    hpo.judge(submit(hpo, run, "--jobs", "3"), look, code=1)
    hpo.judge(submit(hpo, run), look)
    assert len(slurm.calls) == 1
    assert "job without a number: unknown (may be queued" in hpo.here("status", run).out

    (slurm.folder / "greetings").unlink()
    squeue.rename(slurm.folder / "squeue")
    slurm.stands(j101="RUNNING")
    begun = batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh", "--jobs", "3")

    assert begun.code == 0, begun.err
    first, second = JobRecords(run).jobs()
    assert (first.id, first.link, first.jobs, first.hosts) == ("101", 1, 3, 2)
    assert (second.id, second.link, second.jobs, second.after) == ("102", 2, 3, "101")
    hpo.judge(submit(hpo, run), ("batch job 101", "running", "--again"))


def test_a_job_without_any_record_knows_the_limit_of_its_chain(hpo, run, slurm, monkeypatch):
    assert submit(hpo, run).code == 0
    (run / "jobs" / "101.submitted.json").unlink()
    monkeypatch.setattr("hydragnn_hpo.cli.batch_command.RECORD_SECONDS", 0.0)
    slurm.stands(j101="RUNNING")
    begun = batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh", "--jobs", "16")
    assert (begun.code, slurm.calls[-1][0]) == (0, "sbatch")
    assert JobRecords(run).find("101").jobs == 16


def begin(hpo, run, slurm, monkeypatch):
    """Submit a run, and let its first job begin, which queues the next."""
    assert submit(hpo, run).code == 0
    slurm.stands(j101="RUNNING")
    assert batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh").code == 0


def test_a_chain_that_was_cancelled_says_so(hpo, run, slurm, monkeypatch):
    """``scancel`` of the running job and of the one behind it: nothing goes on."""
    begin(hpo, run, slurm, monkeypatch)
    (run / "data" / "tiny.bp").mkdir(parents=True)
    (run / "data" / "tiny.bp" / "index.json").write_text("{}")
    slurm.stands(j101="COMPLETING", j102="CANCELLED")
    assert batch(hpo, monkeypatch, "101", "end", run, "--code", "75").code == 75
    first, second = hpo.json("status", run)["jobs"]
    assert first["why"] == "drained; the next job was cancelled: submit again to go on"
    assert second["why"] == "cancelled before it began"
    assert len(slurm.calls) == 2, "nothing is queued instead"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("PENDING:JobHeldUser", "held (its user holds it"),
        ("PENDING:PartitionTimeLimit", "queued (will never start as requested: more time than"),
        ("SUSPENDED", "suspended (its processes are stopped"),
        ("FAILED", "ended (failed before it began)"),
        ("TIMEOUT", "ended (timed out before it began)"),
    ],
)
def test_status_tells_what_the_scheduler_says_in_words(hpo, run, slurm, state, words):
    assert submit(hpo, run).code == 0
    slurm.stands(j101=state)
    assert f"job 101: {words}" in hpo.here("status", run).out


def test_without_a_scheduler_this_is_reported(hpo, run, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    hpo.judge(submit(hpo, run), ("no 'sbatch' on PATH", "--dry-run"))
    assert not run.exists()


def test_what_the_scheduler_refuses_is_reported(hpo, run, slurm):
    (slurm.folder / "refuse").write_text("sbatch: error: Invalid account")
    hpo.judge(submit(hpo, run), ("'sbatch' refuses", "Invalid account"), code=1)
    assert JobRecords(run).jobs() == []


def test_a_finished_run_is_not_submitted(hpo, run, slurm):
    assert submit(hpo, run).code == 0
    note(run, "finished")
    slurm.stands()
    hpo.judge(submit(hpo, run), ("is finished",))


def test_status_knows_the_jobs(hpo, run, slurm):
    assert submit(hpo, run, "--jobs", "3").code == 0
    (job_status,) = hpo.json("status", run)["jobs"]
    assert (job_status["id"], job_status["state"], job_status["why"]) == (
        "101",
        "queued",
        "Priority",
    )
    assert "not running, batch job 101 is queued" in hpo.here("status", run).out
    assert "job 101: queued (Priority), 1 of at most 3, 2 hosts" in hpo.here("status", run).out
    slurm.stands(j101="RUNNING")
    assert hpo.json("status", run)["jobs"][0]["state"] == "running"
    slurm.stands()
    assert hpo.json("status", run)["jobs"][0]["state"] == "ended"
    (slurm.folder / "squeue").unlink()
    assert hpo.json("status", run)["jobs"][0]["state"] == "unknown"


def test_a_job_is_followed_and_takes_its_successor_back(hpo, run, slurm, monkeypatch):
    assert submit(hpo, run).code == 0
    slurm.stands(j101="RUNNING")

    begun = batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh")

    assert begun.code == 0, begun.err
    assert slurm.calls[-1] == ["sbatch", "--parsable", "--dependency=afterany:101", "001.sh"]
    assert slurm.last["cwd"] == str(run / "jobs")
    handed_on = slurm.last["environment"]
    assert not [
        n for n in handed_on if n.startswith(("SLURM_", "HYDRAGNN_HPO_END", "HYDRAGNN_HPO_BATCH"))
    ]
    assert [(j.id, j.link, j.after) for j in JobRecords(run).jobs()] == [
        *(("101", 1, None), ("102", 2, "101")),
    ]
    assert batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh").code == 0
    assert len(slurm.calls) == 2, "a job that begins twice has one successor"

    ended = batch(hpo, monkeypatch, "101", "end", run, "--code", "75")

    assert ended.code == 75
    assert "without a finished epoch" in ended.err
    assert "taken back: 102" in ended.err
    assert slurm.calls[-1] == ["scancel", "--state=PENDING", "102"]
    assert [j["state"] for j in hpo.json("status", run)["jobs"]] == ["ended", "ended"]


def test_after_progress_the_chain_goes_on(hpo, run, slurm, monkeypatch):
    begin(hpo, run, slurm, monkeypatch)
    (run / "data" / "tiny.bp").mkdir(parents=True)
    (run / "data" / "tiny.bp" / "index.json").write_text("{}")
    assert batch(hpo, monkeypatch, "101", "end", run, "--code", "75").code == 0
    assert slurm.calls[-1][0] == "sbatch", "nothing is taken back"
    assert hpo.json("status", run)["jobs"][1]["state"] == "queued"


def test_a_job_that_may_not_submit_goes_on_alone(hpo, run, slurm, monkeypatch):
    assert submit(hpo, run).code == 0
    (slurm.folder / "refuse").write_text("sbatch: error: Access denied")
    begun = batch(hpo, monkeypatch, "101", "begin", run, "--script", "001.sh")
    assert begun.code == 0
    assert "Access denied" in begun.err


def test_batch_is_for_scripts_alone(hpo, run, slurm):
    assert submit(hpo, run).code == 0
    hpo.judge(hpo.here("batch", "begin", run, "--script", "x"), ("this is no batch job",))


def test_stop_keeps_one_job_that_finishes_the_campaign(hpo, run, slurm, monkeypatch):
    begin(hpo, run, slurm, monkeypatch)
    done = hpo.here("stop", run)
    assert "taken back: batch job 102" in done.out
    assert slurm.calls[-1] == ["scancel", "--state=PENDING", "102"]


def test_a_job_that_has_just_begun_is_not_taken_back(hpo, run, slurm):
    """Nobody has written down yet that it began, but the scheduler knows."""
    assert submit(hpo, run).code == 0
    assert submit(hpo, run, "--again").code == 0
    slurm.stands(j101="PENDING", j102="RUNNING")
    assert "taken back: batch job 101" in hpo.here("stop", run).out
    assert slurm.calls[-1] == ["scancel", "--state=PENDING", "101"]


def test_stop_leaves_the_only_job_in_the_queue(hpo, run, slurm):
    assert submit(hpo, run).code == 0
    assert "batch job 101, still queued, does it" in hpo.here("stop", run).out
    assert len(slurm.calls) == 1


def test_pause_says_that_a_job_is_queued(hpo, run, slurm):
    assert submit(hpo, run).code == 0
    hpo.judge(hpo.here("pause", run), ("nothing to pause", "batch job 101 is queued"))


def test_allocations_are_an_array_of_slurm(hpo, run, slurm, monkeypatch):
    assert submit(hpo, run, "--allocations", "2").code == 0
    script = (run / "jobs" / "001.sh").read_text()
    assert "#SBATCH --array=1-2\n" in script
    assert " --join </dev/null" in script
    assert [job.id for job in JobRecords(run).jobs()] == ["101_1", "101_2"]
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_ARRAY_JOB_ID", "101")
        patch.setenv("SLURM_ARRAY_TASK_ID", "2")
        assert batch(hpo, patch, "103", "begin", run, "--script", "001.sh").code == 0
    assert slurm.calls[-1][2:] == ["--dependency=afterany:101_2", "--array=2", "001.sh"]
    assert JobRecords(run).find("102_2").link == 2


def test_allocations_outlast_the_loss_of_their_controller(hpo, run, slurm):
    """On another host it is missed 30 s after its last sign (leases.py), not earlier."""
    hpo.campaign(machine={"lease_seconds": None})
    assert submit(hpo, run, "--allocations", "2").code == 0
    assert "lease_seconds = 60.0" in (run / "jobs" / "001.toml").read_text()
    assert submit(hpo, run, "--again").code == 0
    assert "lease_seconds = 10.0" in (run / "jobs" / "002.toml").read_text()
    hpo.campaign(machine={"lease_seconds": 20.0})
    assert submit(hpo, run, "--allocations", "2", "--again").code == 0
    assert "lease_seconds = 20.0" in (run / "jobs" / "003.toml").read_text()


def test_a_task_that_nobody_wrote_down_is_followed_by_one_task(hpo, run, slurm, monkeypatch):
    """The script asks for the whole array: without its number each task queued all once more."""
    assert submit(hpo, run, "--allocations", "2").code == 0
    monkeypatch.setattr("hydragnn_hpo.cli.batch_command.RECORD_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_ARRAY_JOB_ID", "150")
        patch.setenv("SLURM_ARRAY_TASK_ID", "2")
        assert batch(hpo, patch, "151", "begin", run, "--script", "001.sh").code == 0
    assert slurm.calls[-1][2:] == ["--dependency=afterany:150_2", "--array=2", "001.sh"]
    assert JobRecords(run).find("150_2").link == 2
    for path in JobRecords(run).folder.glob("1[05]*_2.*"):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_ARRAY_JOB_ID", "101")
        patch.setenv("SLURM_ARRAY_TASK_ID", "2")
        assert batch(hpo, patch, "103", "begin", run, "--script", "001.sh").code == 0
    assert JobRecords(run).find("101_2").link == 1, "whoever submitted was ended between the two"


def test_a_job_that_could_not_be_taken_back_does_nothing(hpo, run, slurm, monkeypatch):
    """A person paused the campaign, and the scheduler did not answer at that moment."""
    begin(hpo, run, slurm, monkeypatch)
    (slurm.folder / "squeue").unlink()
    ended = batch(hpo, monkeypatch, "101", "end", run, "--code", "1")
    assert "'squeue' gives no answer, so 102 stay queued" in ended.err
    before = len(slurm.calls)

    begun = batch(hpo, monkeypatch, "102", "begin", run, "--script", "001.sh")

    assert begun.code == 1
    assert "job 101 has ended the chain: 'run' ended with code 1" in begun.err
    assert len(slurm.calls) == before, "and nothing is queued behind it"


def test_a_chain_of_pbs(hpo, run, pbs, monkeypatch):
    assert submit(hpo, run, machine="generic-pbs").code == 0
    first, second = [f"{n}.pbs-0001" for n in (101, 102)]
    (pbs.folder / "jobs").write_text(json.dumps({first: "R"}))

    assert (
        batch(hpo, monkeypatch, first, "begin", run, "--script", "001.sh", name="PBS_JOBID").code
        == 0
    )

    assert pbs.calls[-1] == ["qsub", "-W", f"depend=afterany:{first}", "001.sh"]
    assert [job["state"] for job in hpo.json("status", run)["jobs"]] == ["running", "queued"]
    note(run, "finished")
    ended = batch(hpo, monkeypatch, first, "end", run, "--code", "0", name="PBS_JOBID")
    assert ended.code == 0
    assert pbs.calls[-1] == ["qdel", second], "what runs is not in there"


def test_a_job_of_pbs_that_a_greeting_hides_is_found_by_its_folder(hpo, run, pbs):
    (pbs.folder / "greetings").write_text("   Welcome\n42\nof 1000 hours used")
    other = hpo.folder / "other"
    for place, number in ((other, 101), (run, 102)):
        assert submit(hpo, place, machine="generic-pbs").code == 0
        assert [job.id for job in JobRecords(place).jobs()] == [f"{number}.pbs-0001"]
    assert [job["state"] for job in hpo.json("status", run)["jobs"]] == ["queued"]


GOLDENS = ROOT / "tests" / "unit" / "launching" / "batch" / "golden"
BODY = "# Python and the package of whoever submitted"


@pytest.mark.parametrize(
    ("machine", "sent"), [("frontier", "sbatch --parsable"), ("aurora", "qsub")]
)
def test_a_profile_gets_its_golden_script(hpo, machine, sent, monkeypatch):
    """Heads of the others: ``unit/launching/batch``."""
    for name in ("HYDRAGNN_HPO_DATA", "LC_ALL"):  # they are handed on to a job, as they should
        monkeypatch.delenv(name, raising=False)
    hpo.toml("alloys.toml", hpo.ci_campaign(name="alloys"))
    run = hpo.folder / "runs" / "alloys"
    order = ("--hosts", "2", "--time", "1:30:00", "--queue", "debug", "--account", "mat123")
    done = hpo.here("submit", "alloys.toml", "--machine", machine, *order, "--dry-run")
    assert done.code == 0, done.err
    head, body = done.out.split(BODY)
    golden_head = (GOLDENS / f"{machine}-two.sh").read_text()
    golden_head = golden_head.replace("/lustre/me/runs/alloys", str(run))
    golden_head = re.sub("hydragnn-hpo:.*", f"hydragnn-hpo:{run_tag(run)}", golden_head)
    assert head == golden_head
    golden = (GOLDENS / "body.sh").read_text().partition(BODY)[2]
    program = re.search(r"^program=\((\S+) ", body, re.MULTILINE)[1]
    places = {"/sw/env/bin/python": program, "/lustre/me/runs/alloys": run, "/home/me": hpo.folder}
    for place, here in places.items():
        golden = golden.replace(place, str(here))
    golden += f"would submit, in {run}/jobs: {sent} 001.sh\n"
    assert body.replace(f" --machine {machine}", "") == golden
