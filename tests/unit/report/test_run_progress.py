"""The display follows a campaign from nothing to its end, live and in plain lines."""

import builtins
import math
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.report import run_progress as module
from hydragnn_hpo.report.run_progress import RunProgress

SCORES = {"objective": 0.75, "best_objective": 0.75}
EVENTS = [
    {"event": "opened", "units": {}, "slots": ["a:0", "a:1"]},
    {"event": "proposed", "trial": "t0000", "values": {"model.conv": "egnn"}, "until": 4},
    {"event": "placed", "trial": "t0000", "attempt": 1, "width": 2, "slots": ["a:0", "a:1"]},
    {"event": "epoch", "trial": "t0000", "reached": 1, "seconds": 1.0, "width": 2, **SCORES},
    {
        "event": "ended",
        "trial": "t0000",
        "outcome": "stopped",
        "reached": 4,
        "objective": 0.5,
        "best_epoch": 3,
    },
    {"event": "promoted", "trials": ["t0000"], "until": 8},
    {"event": "placed", "trial": "t0000", "attempt": 2, "width": 1, "slots": ["a:0"]},
    {"event": "ended", "trial": "t0000", "outcome": "failed", "reason": "diverged"},
]


def event_store_of(events=()):
    """What a journal folds to, with a clock that stands at the last event."""
    fold = JournalFold()
    fold.time = 0.0
    fold.clock = lambda: fold.time
    for event in events:
        take(fold, event)
    return fold


def take(event_store, event):
    event_store.time += 1.0
    event_store.apply({"time": event_store.time, "epoch": 1, **event})


def controller_of(event_store, rungs=(4, 8)):
    config = SimpleNamespace(name="campaign", search=SimpleNamespace(rungs=rungs))
    return SimpleNamespace(event_store=event_store, config=config, ends_in=90.0, ready=True)


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Look at every turn, and sum up never."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(module, "DISPLAY_SHARE", 1e9)
    monkeypatch.setattr(module, "SUMMARY_SECONDS", math.inf)


def test_plain_lines_tell_each_change_once(capsys):
    display = RunProgress(3)
    event_store = event_store_of()
    for event in EVENTS:
        take(event_store, event)
        for _ in range(2):
            display(event_store.state, controller_of(event_store))
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "t0000 running   egnn (2 ranks, to epoch 4)",
        "t0000 stopped   egnn (epoch 4, best 0.5000 at epoch 3)",
        "t0000 running   egnn (1 rank, to epoch 8)",
        "t0000 failed    egnn (diverged)",
    ]


def test_a_trial_that_rested_and_went_on_between_two_looks_is_reported(capsys):
    display = RunProgress(3)
    event_store = event_store_of(EVENTS[:4])
    display(event_store.state, controller_of(event_store))
    for event in EVENTS[4:7]:
        take(event_store, event)
    display(event_store.state, controller_of(event_store))
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "t0000 running   egnn (2 ranks, to epoch 4)",
        "t0000 rested    egnn (epoch 4, best 0.5000)",
        "t0000 running   egnn (1 rank, to epoch 8)",
    ]


def test_plain_lines_sum_up_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(module, "SUMMARY_SECONDS", 0.0)
    event_store = event_store_of(EVENTS[:4])
    RunProgress(3)(event_store.state, controller_of(event_store))
    last = capsys.readouterr().out.splitlines()[-1]
    assert "searching: 0 of 3 trials at rest, 0 waiting, 1 running, about 1.5 min left;" in last
    assert "2 slots on 1 host: 100 % train now, 100 % so far" in last


def test_who_goes_on_gets_no_report_of_what_happened_before(capsys):
    display = RunProgress(3)
    event_store = event_store_of(EVENTS[:6])
    display.begin(event_store.state)
    display(event_store.state, controller_of(event_store))
    take(event_store, EVENTS[6])
    display(event_store.state, controller_of(event_store))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("going on, 0 of 3 trials at rest")
    assert [line.split(" s  ")[1] for line in lines] == [
        "t0000 running   egnn (1 rank, to epoch 8)"
    ]


def test_quiet_says_nothing(capsys):
    display = RunProgress(3, quiet=True)
    event_store = event_store_of(EVENTS)
    display.begin(event_store.state)
    display(event_store.state, controller_of(event_store))
    assert capsys.readouterr().out == ""


def test_looks_keep_their_distance(monkeypatch, capsys):
    monkeypatch.setattr(module, "REFRESH_SECONDS", 3600.0)
    display = RunProgress(3)
    event_store = event_store_of(EVENTS[:3])
    display(event_store.state, controller_of(event_store))
    for event in EVENTS[3:]:
        take(event_store, event)
        display(event_store.state, controller_of(event_store))
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_slow_look_is_followed_by_a_long_pause(monkeypatch):
    """Whatever a look costs, it takes a fiftieth of the time at most."""
    monkeypatch.setattr(module, "DISPLAY_SHARE", 0.02)
    display = RunProgress(3)
    event_store = event_store_of(EVENTS[:3])
    monkeypatch.setattr(display, "_lines", lambda *_: time.sleep(0.02))
    began = time.monotonic()
    display(event_store.state, controller_of(event_store))
    assert display._due - began >= 1.0


def test_a_terminal_gets_a_live_table(monkeypatch, capsys):
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True)
    with RunProgress(3) as display:
        assert display.live is not None
        outputs = []
        monkeypatch.setattr(display.live, "update", lambda what, refresh: outputs.append(what))
        event_store = event_store_of(EVENTS[:4])
        display(event_store.state, controller_of(event_store))
        display(event_store.state, controller_of(event_store, rungs=(8,)))
    assert len(outputs) == 2
    assert display.live.is_started is False


class ZMQInteractiveShell:
    """Named as the shell of a kernel is."""


class Cell:
    """What IPython shows below a cell: a place that can be replaced."""

    def __init__(self):
        self.outputs = []

    def display(self, value, display_id=None):
        assert display_id is True, "shown in a new place below the cell"
        self.outputs.append(value)
        return self

    def update(self, value):
        self.outputs.append(value)


@pytest.fixture
def notebook(monkeypatch):
    """Stand in for the kernel of a notebook: IPython is no dependency."""
    cell = Cell()
    ipython = ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    ipython.display = ModuleType("IPython.display")
    ipython.display.display = cell.display
    ipython.display.HTML = str
    # rich shows by itself whatever is printed in a notebook, which it knows by this name
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return cell


def test_a_notebook_gets_a_table_that_is_replaced_in_its_place(notebook, capsys):
    event_store = event_store_of(EVENTS[:4])
    with RunProgress(3) as display:
        display(event_store.state, controller_of(event_store))
        display._due = 0.0
        display(event_store.state, controller_of(event_store))
    first, *pages = notebook.outputs
    assert first == ""
    assert len(pages) == 2
    assert all(page.startswith("<pre") and "t0000" in page and "egnn" in page for page in pages)
    assert "\x1b" not in pages[0]
    assert capsys.readouterr().out == "", "no lines beside the table"


def test_a_quiet_notebook_shows_nothing(notebook):
    event_store = event_store_of(EVENTS[:4])
    with RunProgress(3, quiet=True) as display:
        display(event_store.state, controller_of(event_store))
    assert notebook.outputs == []


def test_only_a_kernel_is_a_notebook(notebook, monkeypatch):
    assert module.in_notebook()
    for shell in (None, object()):  # a script that imports IPython; its terminal
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda shell=shell: shell)
        assert not module.in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not module.in_notebook()
