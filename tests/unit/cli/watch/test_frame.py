"""A campaign on a terminal: it fits, whatever there is to show and however small the terminal."""

import itertools
import math

import pytest
from made_campaign import make_campaign
from rich.text import Text

from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.campaign.journal import encode, read_journal
from hydragnn_hpo.campaign.lease import alive
from hydragnn_hpo.cli.watch import sight as module
from hydragnn_hpo.cli.watch.frame import Page, frame
from hydragnn_hpo.cli.watch.sight import Watcher
from hydragnn_hpo.cli.watch.signs import ASCII, STYLES, UNICODE, curve, parts
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("watched") / "run", trials=60, finished=False)


@pytest.fixture
def sight(run, monkeypatch):
    """The campaign as if a controller were at work five seconds after its last event."""
    *_, last = read_journal(run.journal)
    monkeypatch.setattr(module, "alive", lambda _: "process 7 on login1")
    monkeypatch.setattr(module.time, "time", lambda: last["time"] + 5.0)
    return Watcher(run).look()


def lines_of(sight, width=80, height=24, signs=UNICODE, **more):
    return [line.plain for line in frame(sight, "run", Page(width, height, signs), **more)]


SIZES = list(itertools.product((20, 40, 80, 123, 160, 250), (5, 10, 24, 50, 100)))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_any_terminal(sight, width, height):
    for signs in (UNICODE, ASCII):
        lines = frame(sight, "run", Page(width, height, signs), "a note")
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
        assert not [line for line in lines if "\n" in line.plain]
    assert lines[-1].plain.startswith("a note"[: width - 1])


def test_what_is_asked_first_is_on_the_smallest_usual_terminal(sight):
    standing, lines = sight.standing, lines_of(sight)
    said = "\n".join(lines)
    assert lines[0].startswith("run  about ")
    assert lines[0].endswith("run by process 7 on login1")
    assert lines[1].startswith(f"searching: {standing.at_rest} of 60 trials at rest, ")
    assert f"{standing.best.objective:.4g} {standing.best.name} (" in said
    assert f"after {len(sight.best)} results" in said
    for rung in standing.rungs:
        numbers = (rung.epochs, rung.waiting, rung.running, rung.resting)
        assert "".join(f"{n:>9}" for n in numbers) in said
    for reason, number in standing.failures.items():
        assert f"{number} {reason}" in said
    assert "kJ so far (cpu, gpu)" in said
    trials = [line.split()[0] for line in lines[-7:] if line.startswith("t0")]
    assert set(trials) <= {row.trial for row in standing.running}
    assert len(trials) >= 3


def test_a_larger_terminal_shows_all_trials_their_hosts_and_their_pace(sight):
    lines = lines_of(sight, 160, 50)
    title = next(line for line in lines if line.startswith("trial "))
    words = ["trial", "configuration", "ranks", "hosts", "epoch", "ends", "in", "objective"]
    assert title.split() == [*words, "s/epoch"]
    for row in sight.standing.running:
        line = next(line for line in lines if line.startswith(f"{row.trial} "))
        assert row.configuration in line
        assert f"{row.epoch}/{row.until}" in line
    assert sum(not line for line in lines[:40]) >= 3, "blocks stand apart"


def test_bars_are_as_long_as_trials_are_far(sight):
    lines = lines_of(sight, 160, 50, ASCII)
    for row in sight.standing.running:
        line = next(line for line in lines if line.startswith(f"{row.trial} "))
        done, rest = line.count("#"), line.count("-")
        assert done == round((done + rest) * row.epoch / row.until)


def test_the_bar_of_slots_has_the_shares_of_the_ledger(sight):
    width, shares = 1009, sight.standing.losses.shares
    lines = lines_of(sight, width, 50, ASCII)
    place = next(n for n, line in enumerate(lines) if line.startswith("slots"))
    drawn = lines[place + 1].strip()
    assert len(drawn) == 1000
    for cause, share in shares.items():
        assert abs(drawn.count(ASCII.causes[cause]) - 1000 * share) < 1.0


def test_ascii_terminals_get_ascii(sight):
    assert all(line.isascii() for line in lines_of(sight, signs=ASCII, note="note"))


def test_orders_to_the_terminal_are_spelt_out(tmp_path):
    run = RunDir(tmp_path)
    made = make_campaign(tmp_path / "made", trials=12, finished=False)
    run.campaign.write_bytes(made.campaign.read_bytes())
    evil = "\x1b]0;owned\x07\x1b[2J\r\n"
    slots = [f"{evil}:0"]
    events = [
        {"event": "opened", "units": {}, "slots": slots},
        {"event": "proposed", "trial": evil, "values": {evil: evil}, "until": 3},
        {"event": "placed", "trial": evil, "attempt": 1, "width": 1, "slots": slots},
        {"event": "host_lost", "host": evil, "reason": evil},
        {"event": "host_warned", "host": evil, "reason": evil},
        {"event": "unread", "reason": evil},
        {"event": "proposed", "trial": "u", "values": {"a": 1}, "until": 3},
        {"event": "ended", "trial": "u", "outcome": "failed", "reason": evil},
    ]
    run.journal.write_bytes(
        b"".join(encode({"time": float(n), "epoch": 1, **e}) for n, e in enumerate(events))
    )
    lines = lines_of(Watcher(run).look(), 300, 50)
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[2J" in "\n".join(lines)


def test_causes_all_have_a_sign_and_a_colour():
    assert set(UNICODE.causes) == set(ASCII.causes) == set(STYLES) == set(CAUSES)
    assert len(set(UNICODE.causes.values())) == len(set(ASCII.causes.values())) == len(CAUSES)
    assert all(len(sign) == 1 == Text(sign).cell_len for sign in UNICODE.causes.values())


def test_parts_by_hand():
    assert parts({"a": 0.5, "b": 0.3, "c": 0.2}, 5) == {"a": 3, "b": 1, "c": 1}
    assert parts({"a": 1.0, "b": 0.0}, 7) == {"a": 7, "b": 0}
    assert parts({"a": 0.0, "b": 0.0}, 7) == {"a": 0, "b": 0}


def test_curves_by_hand():
    assert curve([8.0, 4.0, 2.0, 1.0], 9, ASCII) == "#+-_"
    assert curve([-1.0, 0.0], 9, ASCII) == "_#", "not all positive: a linear scale"
    assert curve([3.0, 3.0], 9, ASCII) == "__"
    assert curve([100.0, 9.0, 10.0, 1.0], 2, ASCII) == "#_", "each column shows its newest"
    assert curve([], 9, ASCII) == curve([1.0], 0, ASCII) == ""


def test_the_best_so_far_is_a_running_minimum(run, sight):
    slow, least = [], math.inf
    for event in read_journal(run.journal):
        if event["event"] == "ended" and event["outcome"] in ("stopped", "completed"):
            least = min(least, event["score"])
            slow.append(least)
    assert list(sight.best) == slow
    assert len(slow) > 20


def test_looking_again_reads_only_what_is_new(tmp_path, run, monkeypatch):
    copy, whole = RunDir(tmp_path), run.journal.read_bytes().splitlines(keepends=True)
    copy.campaign.write_bytes(run.campaign.read_bytes())
    copy.journal.write_bytes(b"".join(whole[:100]))
    watcher = Watcher(copy)
    watcher.look()
    applied = []
    monkeypatch.setattr(watcher.reckoning, "apply", applied.append)
    copy.journal.write_bytes(b"".join(whole[:103]))
    watcher.look()
    assert len(applied) == 3


def test_a_run_that_was_begun_anew_is_followed_anew(tmp_path, run):
    copy, whole = RunDir(tmp_path), run.journal.read_bytes().splitlines(keepends=True)
    copy.campaign.write_bytes(run.campaign.read_bytes())
    copy.journal.write_bytes(b"".join(whole[:200]))
    watcher = Watcher(copy)
    many = watcher.look().standing
    copy.journal.write_bytes(b"".join(whole[:30]))
    few = watcher.look().standing
    assert sum(few.counts.values()) < sum(many.counts.values())
    copy.journal.unlink()
    with pytest.raises(RunError, match="was removed"):
        watcher.look()


def test_without_anybody_at_work_there_is_nothing_to_wait_for(run):
    assert alive(run.path) is None
    sight = Watcher(run).look()
    assert (sight.goes_on, sight.course, sight.standing.ends_in) == (False, "not running", None)
