"""What a campaign that time ended says of a site, counted by hand on a journal of a few lines."""

import pytest

from hydragnn_hpo.campaign.acceptance.short_campaign import (
    OPENING_SECONDS,
    PATIENCE_SECONDS,
    Clock,
    judge,
)
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.layout import RunDir

END = {"outcome": "stopped", "objective": 0.5, "score": [0.5], "reached": 5}
HOSTS = ("a", "b")


def at(time, kind, **values):
    return {"event": kind, "time": time, "epoch": 1, **values}


def placed(time, trial, slots, attempt=1):
    return at(time, "placed", trial=trial, attempt=attempt, width=len(slots), slots=slots)


def journal(*, second="b:0", end=END):
    """Two trials, each 8 of 10 seconds in training; one ends well, one as told."""
    yield at(0.0, "opened", units={}, slots=["a:0", "b:0"])
    for name in ("t0", "t1"):
        yield at(0.0, "proposed", trial=name, values={}, until=5)
    yield placed(10.0, "t0", ["a:0"])
    yield placed(10.0, "t1", [second])
    for name in ("t0", "t1"):
        yield at(11.0, "first_step", trial=name, seconds=1.0)
    for name in ("t0", "t1"):
        told = {"objective": 0.5, "best_objective": 0.5, "seconds": 8.0, "width": 1}
        yield at(19.0, "epoch", trial=name, reached=5, **told)
    yield at(20.0, "ended", trial="t0", **END)
    yield at(20.0, "ended", trial="t1", **end)


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path)
    for name in ("t0", "t1"):
        made.trial(name).attempt(1).mkdir(parents=True)
        (made.trial(name).attempt(1) / "result.json").write_text("{}")
    return made


def states(found):
    return {finding.check: finding.state for finding in found}


def test_a_good_campaign_is_ok(run):
    found, figures = judge(journal(), HOSTS, run)
    assert set(states(found).values()) == {"ok"}
    assert figures["hours"] == pytest.approx(10 / 3600)
    assert figures["trials_per_hour"] == pytest.approx(720.0)  # two in ten seconds
    assert figures["utilization"] == pytest.approx(0.8)


def test_a_host_without_trials_is_named(run):
    found, _ = judge(journal(second="a:1"), HOSTS, run)
    (idle,) = (finding for finding in found if finding.check == "hosts with trials")
    assert (idle.state, idle.hosts, idle.found) == ("wrong", ("b",), "1 of 2")


def test_a_result_that_is_gone_is_missed(run):
    (run.trial("t0").attempt(1) / "result.json").unlink()
    found, _ = judge(journal(), HOSTS, run)
    (kept,) = (finding for finding in found if finding.check == "results kept")
    assert kept.state == "wrong"
    assert "t0" in kept.found


@pytest.mark.parametrize(("reason", "state"), [("bug", "wrong"), ("diverged", "ok")])
def test_a_trial_that_fails_is_told_but_not_one_that_diverges(run, reason, state):
    end = {"outcome": "failed", "reason": reason, "message": "a reason"}
    assert states(judge(journal(end=end), HOSTS, run)[0])["results kept"] == state


def test_losses_that_nobody_asked_for_are_shown(run):
    for reason, state in (("host_lost", "slow"), ("paused", "ok")):
        end = {"outcome": "interrupted", "reason": reason}
        found, _ = judge(journal(end=end), HOSTS, run)
        assert states(found)["attempts lost"] == state


def test_a_campaign_that_placed_nothing_is_wrong(run):
    found, figures = judge([at(0.0, "opened", units={}, slots=["a:0"])], HOSTS, run)
    assert figures["trials_per_hour"] == 0.0
    told = states(found)
    assert told["trials at a rung"] == told["hosts with trials"] == "wrong"


def due(events, *times):
    """Give when, of some times, a campaign of a minute is told to rest."""
    state, told = State(), [0.0]
    clock = Clock(60.0, lambda: told[-1])
    for event in events:
        state.apply(event)
    for time in times:
        told.append(time)
        clock.watch(state, None)
        if clock.due:
            assert clock.pause.wanted
            return time
    return None


def test_time_runs_from_the_first_trial_on():
    begun = [event for event in journal() if event["event"] not in ("ended", "epoch")]
    rested = [event for event in journal() if event.get("trial") != "t1"]
    rested += [event for event in begun if event.get("trial") == "t1"]
    assert due(rested, 100.0, 159.0, 161.0) == 161.0
    late = 160.0 + PATIENCE_SECONDS  # nothing has come to a rung: it is waited for
    assert due(begun, 100.0, 161.0, late - 1.0, late + 1.0) == late + 1.0
    assert due([], 100.0, OPENING_SECONDS - 1.0, OPENING_SECONDS + 1.0) == OPENING_SECONDS + 1.0
