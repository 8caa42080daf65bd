"""Kill -9 of the controller at any moment: the journal is readable, no result is lost or redone."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

KILLS = 30
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
                "argv": ["{python}", str(FAKE), "{trial}", "{folder}", "{checkpoints}", "{epochs}"],
                "env": {"RAN_LOG": str(hpo.folder / "ran.log")},
            },
            "machine": {"slots": 4},
            "search": {"brain": "random", "trials": trials, "rungs": [2, 4], **search},
        },
    )


def results(run):
    """Give the bytes of every result that is there."""
    return {path: path.read_bytes() for path in run.glob("trials/*/attempts/*/result.json")}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_thirty_kills_lose_nothing_and_repeat_nothing(hpo):
    campaign, run = fake_campaign(hpo, trials=60, seconds=0.15, finalists=10), hpo.folder / "run"
    moments, known, kills = random.Random(5), {}, 0
    while kills < KILLS:
        controller = hpo.start("run", campaign, "--run", run)
        time.sleep(moments.uniform(0.7, 2.2))
        if controller.poll() is not None:
            assert controller.returncode == 0, controller.stderr.read()
            break
        controller.kill()
        controller.wait()
        kills += 1
        hpo.wait_for(lambda: not hpo.strays(run), "the last process to go", 5.0)
        found = results(run)
        assert {path: found.get(path) for path in known} == known, "a result was lost or changed"
        known = found
        hpo.events(run)
    assert kills >= 20, "the campaign ended before it was killed often enough"
    done = hpo("run", campaign, "--run", run)
    assert done.code == 0, done.err
    ran = Counter((hpo.folder / "ran.log").read_text().splitlines())
    assert max(ran.values()) == 1, "a trial was trained twice to the same rung"
    board = hpo.json("leaderboard", run, "--top", "100")["trials"]
    assert len(board) == 60
    assert all(row["objective"] is not None for row in board)
    ended = [e for e in hpo.events(run, "ended") if e["outcome"] == "stopped"]
    assert Counter(e["trial"] for e in ended) == Counter(line.split()[0] for line in ran)
    for path, content in results(run).items():
        row = next(row for row in board if row["trial"] == path.parts[-4])
        result = json.loads(content)
        assert result["epochs"] < row["epochs"] or result["objective"] == row["objective"]
