"""The display follows a campaign from nothing to its end, live and in plain lines."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.cli.display import Display

EVENTS = [
    None,
    {"event": "proposed", "trial": "t0000", "values": {"model.conv": "egnn"}, "until": 4},
    {"event": "placed", "trial": "t0000", "attempt": 1, "width": 2, "slots": ["a", "b"]},
    {"event": "epoch", "trial": "t0000", "reached": 1, "best_objective": 0.75},
    {"event": "ended", "trial": "t0000", "outcome": "stopped", "objective": 0.5, "reached": 4},
    {"event": "promoted", "trials": ["t0000"], "until": 8},
    {"event": "placed", "trial": "t0000", "attempt": 2, "width": 1, "slots": ["a"]},
    {"event": "ended", "trial": "t0000", "outcome": "failed", "reason": "diverged"},
]


def states():
    state = State()
    for event in EVENTS:
        if event is not None:
            state.apply({"time": 0.0, "epoch": 1, **event})
        yield state


@pytest.fixture
def controller():
    return SimpleNamespace(slots={"a": None, "b": None}, ready=False)


def test_every_state_has_a_live_table(controller):
    console = Console(width=100)
    display, seen = Display(3), []
    for state in states():
        with console.capture() as capture:
            console.print(display._table(state, controller))
        seen.append(capture.get())
    assert "0 of 3 trials at rest" in seen[0]
    assert "preparing data" in seen[0]
    assert "best so far" not in seen[3]
    assert "1/4" in seen[3]
    assert "0.7500" in seen[3]
    assert "best so far: t0000 0.5000 (egnn)" in seen[4]
    assert "training the finalists on" in seen[6]
    assert "best so far" not in seen[7]


def test_plain_lines_tell_each_change_once(controller, capsys):
    display = Display(3)
    for state in states():
        display(state, controller)
        display(state, controller)
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "t0000 running   egnn (2 ranks, to epoch 4)",
        "t0000 stopped   egnn (epoch 4, objective 0.5000)",
        "t0000 running   egnn (1 rank, to epoch 8)",
        "t0000 failed    egnn (diverged)",
    ]
