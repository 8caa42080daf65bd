"""Verbs that look at a campaign, and verbs that ask something of it."""

import json
import os
import socket

import pytest

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.campaign.user_requests import read_requests
from hydragnn_hpo.cli import status_command
from hydragnn_hpo.layout import RunDir

VALUES = {"model.conv": "schnet", "model.layers": 2, "training.learning_rate": 0.005}


def at(kind, **values):
    return {"event": kind, "time": 0.0, "epoch": 1, **values}


EVENTS = [
    at("opened", units={}, slots=["local:0"]),
    *[at("proposed", trial=f"t000{n}", values=VALUES, until=3) for n in range(3)],
    at("placed", trial="t0000", attempt=1, width=1, slots=["local:0"]),
    at("ended", trial="t0000", outcome="failed", reason="diverged", message="loss is inf."),
    at("placed", trial="t0001", attempt=1, width=1, slots=["local:0"]),
]


@pytest.fixture
def run(hpo):
    """A run directory that no process works on."""
    run_dir = RunDir(hpo.folder / "run")
    hpo.toml("run/campaign.toml", hpo.ci_campaign())
    run_dir.journal.write_bytes(b"".join(map(encode, EVENTS)))
    return run_dir


@pytest.fixture
def controller(run):
    """A lease that this process holds, as a controller would."""
    (run.path / "controller").mkdir()
    lease = run.path / "controller" / "000001.lease"
    lease.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))


def requests_of(run):
    return [r.model_dump(exclude_defaults=True) for _, r in read_requests(run)]


def test_each_verb_leaves_its_wish(hpo, run, controller):
    (hpo.folder / "mine.toml").write_text(
        '[[trial]]\n"model.conv" = "egnn"\nmodel.layers = 1\ntraining.learning_rate = 0.002\n'
    )
    for command in (
        ("cancel", "run", "t0001"),
        ("retry", "run", "t0000"),
        ("add-trials", "run", "5"),
        ("add-trials", "run", "--values", "mine.toml"),
        ("pause", "run"),
        ("stop", "run"),
    ):
        done = hpo.here(*command)
        assert done.code == 0, done.err
        assert done.out.startswith(f"sent to process {os.getpid()} on ")
    mine = {"model.conv": "egnn", "model.layers": 1, "training.learning_rate": 0.002}
    assert requests_of(run) == [
        {"request": "cancel", "trial": "t0001"},
        {"request": "retry", "trial": "t0000"},
        {"request": "add-trials", "count": 5},
        {"request": "add-trials", "values": (mine,)},
        {"request": "pause"},
        {"request": "stop"},
    ]


def test_a_dry_run_leaves_nothing(hpo, run, controller):
    done = hpo.here("cancel", "run", "t0001", "--dry-run")
    assert done.out == "would send: t0001 is ended, other trials get its slots.\n"
    assert not run.requests.exists()
    hpo.refused("cancel", "run", "t0009", "--dry-run", says=("no trial 't0009'",))


def test_json_holds_the_wish_and_its_file(hpo, run, controller):
    plain = hpo.json("retry", "run", "t0000")
    assert plain["request"] == {"request": "retry", "trial": "t0000"}
    assert [hpo.folder / plain["file"]] == [path for path, _ in read_requests(run)]
    assert plain["controller"].startswith("process ")


def test_nonsense_is_refused_and_leaves_nothing(hpo, run):
    (hpo.folder / "list.toml").write_text("trial = [1]\n")
    (hpo.folder / "table.toml").write_text("[trial]\nmodel.layers = 1\n")
    (hpo.folder / "far.toml").write_text(
        '[[trial]]\nmodel.conv = "egnn"\nmodel.layers = 9\ntraining.learning_rate = 0.002\n'
    )
    for command, says in {
        ("cancel", "run", "t0000"): ("t0000 has ended already (diverged)",),
        ("retry", "run", "t0001"): ("t0001 is running",),
        ("retry", "run", "../x"): ("trial",),
        ("add-trials", "run"): ("takes a number of trials",),
        ("add-trials", "run", "3", "--values", "far.toml"): ("not both",),
        ("add-trials", "run", "--values", "far.toml"): ("model.layers = 9", "1 to 2"),
        ("add-trials", "run", "--values", "list.toml"): ("list.toml", "[[trial]]"),
        ("add-trials", "run", "--values", "table.toml"): ("table.toml", "[[trial]]"),
        ("add-trials", "run", "--values", "none.toml"): ("none.toml", "cannot be read"),
        ("stop", "elsewhere"): ("holds no campaign",),
    }.items():
        hpo.refused(*command, says=says)
    assert not run.requests.exists()


def test_status_as_json(hpo, run, controller):
    plain = hpo.json("status", "run")
    assert plain["controller"].startswith(f"process {os.getpid()} on ")
    assert plain["running"] == {"t0001": {"epoch": 0, "until": 3, "slots": ["local:0"]}}
    assert (plain["trials"], plain["failed"], plain["attempts"]) == (3, 1, 2)
    assert plain["standing"]["rungs"][0]["waiting"] == 1


def test_watching_ends_with_the_campaign(hpo, run, controller, monkeypatch):
    def finish(seconds):
        """What happens while the watcher waits for its next look."""
        rest = [at("ended", trial="t0001", outcome="stopped", score=0.5), at("finished")]
        with run.journal.open("ab") as file:
            file.writelines(map(encode, rest))

    monkeypatch.setattr(status_command.time, "sleep", finish)
    lines = hpo.here("status", "run", "--watch").out.splitlines()
    assert lines[0].startswith("searching: 1 of 6 trials at rest")
    assert lines[-2].startswith("finished: 2 of 6 trials at rest")
    assert len(lines) == 3, "only what has changed is said"
    assert lines[-1] == "run: finished"
