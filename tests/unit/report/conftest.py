"""Run directories to export, and what their journals say, read with plain code."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_campaign import make_campaign
from unit.report.independent import events_of, trials_of

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts

HOSTILE = ("../../evil", ".._.._evil", "<script>alert(1)</script>", "=1+1", "\x1b[2J", "\ud800x")
"""Names of trials that no controller gives; the second is what the first might become."""

MESSAGE = "Traceback\n\x1b]0;owned\x07 <img src=x onerror=alert(1)>, \"q\",\n=cmd|' /C calc'!A0"


def plainly(run: Path) -> SimpleNamespace:
    """Read a journal of one controller without anything of ours."""
    events = events_of(run)
    trials = trials_of(events)
    epochs: list[tuple[str, dict[str, Any]]] = []
    curves: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    attempts: dict[str, int] = {}
    for e in events:
        if e["event"] == "placed":
            attempts[e["trial"]] = e["attempt"]
        elif e["event"] == "epoch":
            epochs.append((e["trial"], {**e, "attempt": attempts[e["trial"]]}))
            curves[e["trial"]][e["reached"]] = e
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
        fields = {"reached": 1, "objective": 0.5, "best_objective": 0.5, "seconds": 1.0, "width": 1}
        end: dict[str, Any] = {"outcome": "failed", "reason": "bug", "message": MESSAGE}
        if place % 2:
            end = {"outcome": "completed", "objective": 0.5, "val_mae": {"gap": 0.1}, "reached": 2}
        events += [
            {"event": "proposed", "trial": name, "values": values, "until": 2},
            {"event": "placed", "trial": name, **attempt},
            {"event": "epoch", "trial": name, **fields},
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
    path.mkdir(parents=True, exist_ok=True)
    (path / "campaign.toml").write_text(campaign)
    (path / "events.jsonl").write_bytes(b"".join(map(encode, events)))
    return RunDir(path)


@pytest.fixture
def hostile(tmp_path: Path) -> Facts:
    """A campaign whose trials have names and messages that are meant to do harm."""
    return read_facts(write_run(tmp_path / "hostile", CAMPAIGN, hostile_events()))


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Facts]:
    """Make a run directory from a campaign and bare events."""

    def make(campaign: str, events: list[dict[str, Any]]) -> Facts:
        timed = [{"time": 1.7e9 + k, "epoch": 1, **e} for k, e in enumerate(events)]
        return read_facts(write_run(tmp_path / "bare", campaign, timed))

    return make
