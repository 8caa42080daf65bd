"""Kill anything, any time (Law 4): no finished result is lost, and the run goes on by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import freeze, is_due, thaw
from safetensors.torch import load_file

GONE_SECONDS = 120.0
"""Within this time nothing of a killed campaign is left, long before a lease could lapse."""

LEASE_SECONDS = 600.0

EPOCHS = 14


def long_campaign(hpo, **search):
    """Write a campaign whose trials take about a second, with a checkpoint after every epoch."""
    hpo.card(hpo.molecules(80))
    return hpo.campaign(
        trial={"training": {"checkpoint_seconds": 0.0, "global_batch": 4}},
        machine={"slots": 2, "max_width": 1, "lease_seconds": LEASE_SECONDS},
        search={"trials": 5, "rungs": [EPOCHS], "finalists": 3, **search},
    )


def results(run):
    """Give every result that is there: its bytes and the time it was written."""
    paths = run.glob("trials/*/attempts/*/result.json")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def ready_records(metrics):
    """Return the records that an attempt wrote when it was ready to train."""
    records = map(json.loads, metrics.read_text().splitlines())
    return [record for record in records if record["record"] == "ready"]


def rows_of(board):
    """Return the leaderboard's entries of trials that ended, without their places."""
    done = [row for row in board["trials"] if row["status"] == "completed"]
    return {row["trial"]: {key: row[key] for key in row if key != "rank"} for row in done}


def nothing_left(hpo, run):
    hpo.wait_for(lambda: not hpo.strays(run), "the last process to go", GONE_SECONDS)


def is_kept(hpo, run, before, board):
    """See that results are as they were, and what the leaderboard says of them."""
    after = results(run)
    assert {path: after[path] for path in before} == before
    again = rows_of(hpo.json("leaderboard", run))
    assert {trial: again[trial] for trial in board} == board


@pytest.mark.slow
def test_a_controller_that_is_killed_leaves_nothing_and_run_goes_on(hpo):
    campaign = long_campaign(hpo, trials=4, finalists=2)
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run)
    with hpo.held(run, ended=2) as now:
        controller.kill()
        controller.wait()
    nothing_left(hpo, run)
    before = results(run)
    board = rows_of(hpo.json("leaderboard", run))
    assert len(before) >= 2
    assert board

    done = hpo("run", campaign, "--run", run)

    assert done.code == 0, done.err
    is_kept(hpo, run, before, board)
    assert len(rows_of(hpo.json("leaderboard", run))) == 4
    assert (run / "ensemble.zip").exists()
    lost = [e["trial"] for e in hpo.events(run, "ended") if e["reason"] == "host_lost"]
    assert now.trial in lost, "what ran when the controller died was interrupted"
    assert not set(lost) & set(board)
    assert {event["epoch"] for event in hpo.events(run)} == {1, 2}
    assert not list(run.rglob(".*")), "no temporary file is left"
    last = max((run / "trials" / now.trial / "attempts").glob("*/metrics.jsonl"))
    assert [record["resumed"] for record in ready_records(last)] == [True]


@pytest.mark.stress
def test_a_trial_of_an_interrupted_controller_goes_on_where_it_was(hpo):
    campaign = long_campaign(hpo)
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run)
    with hpo.held(run) as now:
        trial = now.trial
        controller.send_signal(signal.SIGINT)
        hpo.wait_for(lambda: hpo.events(run, "asked"), "the question to those who train")
        hpo.wait_for(lambda: is_due(now.rank, signal.SIGTERM), "the signal to who trains")
    _, err = controller.communicate(timeout=300)
    assert controller.returncode == 1
    assert "paused" in err
    assert "Traceback" not in err
    nothing_left(hpo, run)
    *_, end = [e for e in hpo.events(run, "ended") if e["trial"] == trial]
    assert (end["outcome"], end["epoch"]) == ("interrupted", 1)
    assert (run / "trials" / trial / "checkpoints" / "last.safetensors").exists()
    reached = max(e["reached"] for e in hpo.events(run, "checkpoint") if e["trial"] == trial)

    done = hpo("run", campaign, "--run", run)

    assert done.code == 0, done.err
    last = max((run / "trials" / trial / "attempts").glob("*/metrics.jsonl"))
    ready = ready_records(last)
    assert [record["reached"] for record in ready] == [reached], "nothing was trained twice"


@pytest.mark.stress
def test_the_run_outlives_a_rank_a_zygote_and_an_agent(hpo):
    campaign = long_campaign(hpo, trials=6)
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run)
    interrupted = []
    for part in ("hpo-rank", "hpo-zygote", "hpo-agent"):
        with hpo.held(run, ended=len(interrupted) + 1) as now:
            seen = len(hpo.events(run, "ended"))
            os.kill(now.rank if part == "hpo-rank" else hpo.named(run, part)[0], signal.SIGKILL)

        def lost(seen=seen, trial=now.trial):
            new = [e for e in hpo.events(run, "ended")[seen:] if e["reason"] == "host_lost"]
            return trial in [e["trial"] for e in new]

        hpo.wait_for(lost, f"the loss of {now.trial}, whose {part} was killed")
        interrupted.append(now.trial)
    out, err = controller.communicate(timeout=800)
    assert controller.returncode == 0, err
    kinds = [event["event"] for event in hpo.events(run)]
    assert "zygote_lost" in kinds
    assert "agent_lost" in kinds
    last = {event["trial"]: event["outcome"] for event in hpo.events(run, "ended")}
    assert set(last.values()) == {"completed"}
    assert len(last) == 6
    for trial in set(interrupted):
        starts = sorted((run / "trials" / trial / "attempts").glob("*/metrics.jsonl"))
        assert len(starts) > 1
        assert [record["resumed"] for record in ready_records(starts[-1])] == [True]
    nothing_left(hpo, run)


IN_BATCH_JOB = {"PBS_JOBID": "7.pbs-0001", "HYDRAGNN_HPO_BATCH_JOB": "7.pbs-0001"}


@pytest.mark.parametrize(
    ("number", "environment", "says", "code"),
    [
        (signal.SIGTERM, {}, "paused", 1),
        (signal.SIGTERM, IN_BATCH_JOB, "the scheduler ends the allocation", 75),
    ],
)
def test_a_signal_while_the_controller_starts_counts(hpo, number, environment, says, code):
    """SIGTERM is a person's, but for a batch job, where the next one goes on (75)."""
    campaign = long_campaign(hpo)
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run, **environment)
    hpo.wait_for(lambda: list(run.glob("controller/*.lease")), "the lease")
    controller.send_signal(number)
    assert says in controller.communicate(timeout=300)[1]
    assert controller.returncode == code
    nothing_left(hpo, run)


def test_a_second_controller_is_sent_away(hpo):
    campaign = long_campaign(hpo)
    run = hpo.folder / "run"
    controller = hpo.start("run", campaign, "--run", run)
    hpo.wait_for(lambda: list(run.glob("controller/*.lease")), "the first controller's lease")
    hpo.wait_for(lambda: hpo.json("status", run)["controller"], "the controller in the status")
    freeze([controller.pid])  # so that it cannot be done before the second comes
    hpo.refused("run", campaign, "--run", run, says=(str(controller.pid), "run", "wait"))
    assert controller.poll() is None
    assert hpo.json("status", run)["controller"]
    controller.send_signal(signal.SIGINT)
    thaw([controller.pid])
    assert "paused" in controller.communicate(timeout=300)[1]
    nothing_left(hpo, run)


GATED = """
import time
from pathlib import Path
from hydragnn_hpo.cli.command_line import main
from hydragnn_hpo.training.stepper import Stepper
take = Stepper.take_step
def taking(self, *arguments, **options):
    while options["epoch"] == 6 and not Path("gate").exists():
        time.sleep(0.02)
    return take(self, *arguments, **options)
Stepper.take_step = taking
main()
"""
"""However fast it is: before its sixth epoch a trial waits for a file."""


def weights(trial: Path):
    return load_file(trial / "checkpoints" / "best.safetensors")


@pytest.mark.stress
def test_a_trial_by_hand_that_is_requested_to_end_goes_on_and_equals_an_unbroken_one(hpo):
    """Of a campaign, and killed: ``test_resume.py``."""
    hpo.store()
    settings = {"training": {"epochs": 8, "ema": 0.9}}
    whole = hpo.trial("whole", **settings)
    cut = hpo.trial("cut", **settings)
    done = hpo("trial", whole)
    assert done.code == 0, done.err
    process = subprocess.Popen(
        [sys.executable, "-c", GATED, "trial", cut], cwd=hpo.folder, stderr=subprocess.PIPE
    )
    hpo.started.append(process)
    metrics = cut / "attempts" / "001" / "metrics.jsonl"

    def checkpoints():
        return metrics.read_text().count('"checkpoint"') >= 3

    hpo.wait_for(metrics.exists, "the first record")
    hpo.wait_for(checkpoints, "three checkpoints")
    process.send_signal(signal.SIGTERM)
    (hpo.folder / "gate").touch()
    process.communicate(timeout=300)
    assert process.returncode == 3
    assert not (cut / "attempts" / "001" / "result.json").exists(), "it ended too late"
    done = hpo("trial", cut)
    assert done.code == 0, done.err
    [ready] = ready_records(cut / "attempts" / "002" / "metrics.jsonl")
    before = map(json.loads, metrics.read_text().splitlines())
    assert ready["step"] >= max(r["step"] for r in before if r["record"] == "checkpoint") >= 3
    one, two = (
        json.loads((place / "attempts" / name / "result.json").read_text())
        for place, name in ((whole, "001"), (cut, "002"))
    )
    for key in ("objective", "val_mae", "best_epoch", "epochs"):
        assert one[key] == two[key]
    first = weights(whole)
    second = weights(cut)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.equal(second[name]), f"{name} differs in a bit"
    predicted = whole / "attempts" / "001" / "predictions.safetensors"
    assert predicted.read_bytes() == (cut / "attempts" / "002" / predicted.name).read_bytes()
