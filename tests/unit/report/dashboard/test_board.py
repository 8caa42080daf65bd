"""The board follows a run, makes what is new, spares the machine, and survives what goes wrong."""

import threading
import time
from types import SimpleNamespace

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.dashboard import board as module
from hydragnn_hpo.report.dashboard.board import Board
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.live_facts import LiveFacts
from hydragnn_hpo.report.page.blocks import Number, Numbers, Section

EVIL = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("board") / "run", trials=20)


@pytest.fixture
def run(whole, tmp_path):
    """A run directory whose journal can grow."""
    found = RunDir(tmp_path / "run")
    found.path.mkdir()
    found.campaign.write_bytes(whole.campaign.read_bytes())
    return found


@pytest.fixture
def lines(whole):
    return whole.journal.read_bytes().splitlines(keepends=True)


def count(facts):
    number = Number("events", "events", len(facts.events))
    return Section("count", "Count", "How many.", (Numbers((number,)),))


def turn(board):
    """One turn of the thread, as it is caught there."""
    board._thread = SimpleNamespace(start=lambda: None)
    board._turn()


def test_facts_that_grow_are_the_facts_of_one_reading(run, lines):
    growing = LiveFacts(run)
    for number in range(1, len(lines), 37):
        run.journal.write_bytes(b"".join(lines[:number]))
        found, slow = growing.read(), read_facts(run)
        assert found.events == slow.events
        assert found.figures == slow.figures
        assert found.losses == slow.losses
        assert list(found.trials) == list(slow.trials)
        for name, trial in found.trials.items():
            assert trial.attempts == slow.trials[name].attempts
            assert trial.epochs == slow.trials[name].epochs
            assert vars(trial.trial) == vars(slow.trials[name].trial)


def test_a_section_is_made_when_there_is_something_new(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "SECTION_SHARE", 1e9)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    made = []
    board = Board(run, {"count": lambda facts: made.append(len(facts.events)) or count(facts)})
    turn(board)
    versions = [board.parts["count"].version]
    run.journal.write_bytes(b"".join(lines[:50]))
    for _ in range(3):
        turn(board)
    versions.append(board.parts["count"].version)
    assert made == [0, 50]
    assert len(set(versions)) == 2
    assert board.news()["sections"] == {"count": versions[1]}


def test_what_is_the_same_is_no_news(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "SECTION_SHARE", 1e9)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    told = []
    board = Board(run, {"same": lambda facts: count(SimpleNamespace(events=())), "none": empty})
    board._changed = lambda: told.append(board.news())
    run.journal.write_bytes(b"".join(lines[:50]))
    turn(board)
    assert len(told) == 4, "as of when, how it stands, and two sections"
    run.journal.write_bytes(b"".join(lines[:90]))
    turn(board)
    assert len(told) == 7, "as of when, and two sections that are as they were"
    assert told[-1]["sections"] == told[-2]["sections"]


def empty(facts):
    return None


def test_a_slow_section_is_made_seldom_and_at_the_end_at_once(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    made = []

    def slow(facts):
        made.append(clock[0])
        clock[0] += 10.0

    board = Board(run, {"slow": slow})
    for number in range(1, len(lines) - 1, len(lines) // 40):
        run.journal.write_bytes(b"".join(lines[:number]))
        turn(board)
        clock[0] += 60.0
    assert len(made) >= 4
    assert min(b - a for a, b in zip(made, made[1:], strict=False)) >= 10.0 / module.SECTION_SHARE
    run.journal.write_bytes(b"".join(lines))
    clock[0] += 1.0
    turn(board)
    assert made[-1] == clock[0] - 10.0
    assert board.news()["state"] == "finished"


def test_one_section_that_fails_takes_nobody_along(run, lines, caplog):
    def broken(facts):
        raise ZeroDivisionError(EVIL)

    run.journal.write_bytes(b"".join(lines[:50]))
    board = Board(run, {"broken": broken, "count": count})
    turn(board)
    turn(board)
    ((_, drawn), _) = board.made()
    assert "could not be made" in drawn.html
    assert EVIL not in drawn.html
    assert "&lt;script&gt;" in drawn.html
    assert caplog.text.count("ZeroDivisionError: ") == 1, "said once"
    assert board.parts["count"].version


@pytest.fixture
def live(run, lines, monkeypatch):
    """A board at work in its thread."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.01)
    run.journal.write_bytes(b"".join(lines[:50]))
    board = Board(run, {"count": count})
    changed = threading.Event()
    board.start(changed.set)
    yield board
    board.stop()
    board._thread.join(timeout=60)
    assert not board._thread.is_alive()


def wait_for(board, state):
    end = time.monotonic() + 60
    while state not in board.news()["state"]:
        assert time.monotonic() < end, board.news()
        time.sleep(0.01)


def test_a_run_that_is_removed_is_told_and_taken_up_when_it_is_back(live, run, lines, tmp_path):
    wait_for(live, "not running")
    run.path.rename(tmp_path / "aside")
    wait_for(live, "holds no campaign")
    with pytest.raises(RunError):
        live.document().result(timeout=60)
    (tmp_path / "aside").rename(run.path)
    wait_for(live, "not running")
    run.journal.write_bytes(b"".join(lines[:10]))  # begun anew
    end = time.monotonic() + 60
    while live._facts is None or len(live._facts.events) != 10:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_journal_that_is_damaged_is_told(live, run, lines):
    wait_for(live, "not running")
    run.journal.write_bytes(b"".join(lines[:50]) + b"rubbish\n" + lines[50])
    wait_for(live, "is damaged")


def test_a_journal_that_is_not_there_yet_is_waited_for(run, lines, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    board = Board(run, {"count": count})
    turn(board)
    assert board.news()["state"] == "not begun"
    run.journal.write_bytes(b"".join(lines[:50]) + lines[50][:30])
    board._read_due = 0.0
    turn(board)
    assert board.news()["state"] == "not running"
    assert len(board._facts.events) == 50


def test_nothing_in_the_run_directory_is_written(live, run):
    wait_for(live, "not running")
    assert sorted(path.name for path in run.path.rglob("*")) == ["campaign.toml", "events.jsonl"]


def test_without_a_campaign_there_is_no_board(tmp_path):
    with pytest.raises(RunError, match="holds no campaign"):
        Board(RunDir(tmp_path), {})
