"""Run directories to export, and what their journals say, read with plain code."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts

HOSTILE = ("../../evil", ".._.._evil", "<script>alert(1)</script>", "=1+1", "\x1b[2J", "\ud800x")
"""Names of trials that no controller gives; the second is what the first might become."""

MESSAGE = "Traceback\n\x1b]0;owned\x07 <img src=x onerror=alert(1)>, \"q\",\n=cmd|' /C calc'!A0"


def raw_events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["e"] for line in (run / "events.jsonl").read_bytes().splitlines()]


def plainly(run: Path) -> SimpleNamespace:
    """Read a journal of one controller without anything of ours."""
    trials: dict[str, dict[str, Any]] = {}
    epochs: list[tuple[str, dict[str, Any]]] = []
    for e in raw_events(run):
        kind, trial = e["event"], trials.get(e.get("trial", ""), {})
        if kind == "proposed":
            trials[e["trial"]] = {"values": e["values"], "status": "queued", "held": 0.0}
            trials[e["trial"]] |= {"placed": [], "ended": [], "objective": None}
        elif kind == "placed":
            trial["placed"].append(e)
            trial["status"] = "running"
        elif kind == "epoch":
            epochs.append((e["trial"], {**e, "attempt": trial["placed"][-1]["attempt"]}))
            trial["objective"] = e["best_objective"]
        elif kind == "ended":
            trial["ended"].append(e)
            lost = e["outcome"] == "interrupted"
            if trial["status"] == "running":  # some fail before they are placed
                at = trial["placed"][-1]
                trial["held"] += len(at["slots"]) * (e["time"] - at["time"])
            trial["status"] = "queued" if lost else e["outcome"]
            if not lost:
                trial["objective"] = e.get("objective")
        elif kind == "promoted":
            for name in e["trials"]:
                if trials[name]["status"] == "stopped":
                    trials[name]["status"] = "queued"
    for trial in trials.values():
        told = [e for e in trial["ended"] if e["outcome"] != "interrupted"]
        trial["last"] = told[-1] if told else None
    curves: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for name, e in epochs:
        curves[name][e["reached"]] = e
    return SimpleNamespace(trials=trials, epochs=epochs, curves=curves)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished campaign with failures and lost hosts."""
    run = make_campaign(tmp_path_factory.mktemp("made") / "run", trials=60)
    return SimpleNamespace(run=run, facts=read_facts(run), raw=plainly(run.path))


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A campaign at work."""
    run = make_campaign(tmp_path_factory.mktemp("half") / "run", trials=60, seed=2, finished=False)
    return SimpleNamespace(run=run, facts=read_facts(run), raw=plainly(run.path))


def hostile_events() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"event": "opened", "units": {"gap": "eV"}, "slots": ["h:0"], "data": "0" * 64}
    ]
    for place, name in enumerate(HOSTILE):
        values = {"model.conv": "=gin()" if place % 2 else "<b>", "model.layers": place + 1}
        attempt = {"attempt": 1, "until": 2, "width": 1, "slots": ["h:0"]}
        told = {"reached": 1, "objective": 0.5, "best_objective": 0.5, "seconds": 1.0, "width": 1}
        end: dict[str, Any] = {"outcome": "failed", "reason": "bug", "message": MESSAGE}
        if place % 2:
            end = {"outcome": "completed", "objective": 0.5, "val_mae": {"gap": 0.1}, "reached": 2}
        events += [
            {"event": "proposed", "trial": name, "values": values, "until": 2},
            {"event": "placed", "trial": name, **attempt},
            {"event": "epoch", "trial": name, **told},
            {"event": "ended", "trial": name, "attempt": 1, **end},
        ]
    return [{"time": 1.7e9 + k, "epoch": 1, **e} for k, e in enumerate(events)]


CAMPAIGN = """
name = "hostile"
data = [{card = "none"}]
trial = {heads = {gap = {}}}
space = {"model.conv" = ["=gin()", "<b>"], "model.layers" = {low = 1, high = 9}}
search = {trials = 6, finalists = 1, rungs = [2]}
"""


def write_run(path: Path, campaign: str, events: list[dict[str, Any]]) -> RunDir:
    path.mkdir(parents=True)
    (path / "campaign.toml").write_text(campaign)
    (path / "events.jsonl").write_bytes(b"".join(map(encode, events)))
    return RunDir(path)


@pytest.fixture
def hostile(tmp_path: Path) -> Facts:
    """A campaign whose trials have names and messages of somebody who means ill."""
    return read_facts(write_run(tmp_path / "hostile", CAMPAIGN, hostile_events()))


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Facts]:
    """Make a run directory from a campaign and bare events."""

    def make(campaign: str, events: list[dict[str, Any]]) -> Facts:
        timed = [{"time": 1.7e9 + k, "epoch": 1, **e} for k, e in enumerate(events)]
        return read_facts(write_run(tmp_path / "bare", campaign, timed))

    return make
