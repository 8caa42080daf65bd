"""Kill -9 of the controller at any moment: the journal is readable, no result is lost or redone."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

KILLS, TRIALS = 10, 24
FAKE = Path(__file__).with_name("fake_trial.py")


def fake_campaign(hpo, *, trials, seconds, **search):
    """Write a campaign of fake trials whose epochs take so many seconds."""
    return hpo.toml(
        "campaign.toml",
        {
            "name": "fake",
            "trial": {"seconds": seconds},
            "space": {"x": {"low": 0.0, "high": 1.0}},
            "command": {
                "argv": ["{python}", str(FAKE), "{trial}", "{folder}", "{checkpoints}", "{epochs}"]
                + [str(hpo.folder)],
            },
            "machine": {"slots": 4, "lease_seconds": 120.0},
            "search": {"brain": "random", "trials": trials, "rungs": [2, 4], **search},
        },
    )


def results(run):
    """Return the bytes of every result that is there."""
    return {path: path.read_bytes() for path in run.glob("trials/*/attempts/*/result.json")}


def kill_somewhere(hpo, run, controller, moments):
    """Kill a controller while it starts, or once it has written down a few events more.

    It is never over before: however fast it is, and late we are, its last trials wait for us. Where
    they are all that is left a controller is killed at some moment.
    """
    before = len(hpo.events(run))
    more = moments.randrange(1, 25)
    if moments.random() < 0.3 or (hpo.folder / "waits").exists():
        time.sleep(moments.uniform(0.0, 1.0))  # no state is waited for: any moment will do
    else:
        hpo.wait_for(
            lambda: (
                controller.poll() is not None
                or len(hpo.events(run)) >= before + more
                or (hpo.folder / "waits").exists()
            ),
            f"{more} events",
        )
    assert controller.poll() is None, controller.stderr.read()
    controller.kill()
    controller.wait()


@pytest.mark.stress
def test_ten_kills_lose_nothing_and_repeat_nothing(hpo):
    campaign = fake_campaign(hpo, trials=TRIALS, seconds=0.15, finalists=4)
    run = hpo.folder / "run"
    moments = random.Random(5)
    known = {}
    for _ in range(KILLS):
        kill_somewhere(hpo, run, hpo.start("run", campaign, "--run", run), moments)
        hpo.wait_for(lambda: not hpo.strays(run), "the last process to go")
        now = results(run)
        assert {path: now.get(path) for path in known} == known, "a result was lost or changed"
        known = now
        hpo.events(run)
    assert known, "no trial came to its end between the kills"
    (hpo.folder / "open").touch()
    done = hpo("run", campaign, "--run", run)
    assert done.code == 0, done.err
    now = results(run)
    assert {path: now.get(path) for path in known} == known, "a result was lost or changed"
    trained = [(path.parts[-4], json.loads(content)["epochs"]) for path, content in now.items()]
    assert max(Counter(trained).values()) == 1, "a trial was trained twice to the same rung"
    board = hpo.json("leaderboard", run, "--top", "100")["trials"]
    assert len(board) == TRIALS
    assert all(row["objective"] is not None for row in board)
    ended = [e for e in hpo.events(run, "ended") if e["outcome"] == "stopped"]
    assert Counter(e["trial"] for e in ended) == Counter(trial for trial, _ in trained)
    for path, content in now.items():
        row = next(row for row in board if row["trial"] == path.parts[-4])
        result = json.loads(content)
        assert result["epochs"] < row["epochs"] or result["objective"] == row["objective"]
