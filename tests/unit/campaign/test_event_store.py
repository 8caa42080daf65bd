"""A run's figures, counted by hand on a journal of a few lines."""

import pytest

from hydragnn_hpo.campaign.event_store import JournalFold


def events():
    def at(time, kind, **values):
        return {"event": kind, "time": time, "epoch": 1, **values}

    end = {"outcome": "stopped", "objective": 0.5, "score": [0.5], "reached": 4}
    yield at(0.0, "zygote_ready", import_seconds=3.0)
    yield at(0.0, "opened", units={}, slots=["local:0", "local:1"])
    for name in ("t0", "t1"):
        yield at(1.0, "proposed", trial=name, values={}, until=4)
    yield at(2.0, "placed", trial="t0", attempt=1, width=2, slots=["local:0", "local:1"])
    yield at(3.0, "first_step", trial="t0", seconds=1.0)
    yield at(
        7.0, "epoch", trial="t0", reached=1, objective=0.5, best_objective=0.5, seconds=4.0, width=2
    )
    yield at(8.0, "ended", trial="t0", **end)
    yield at(8.0, "placed", trial="t1", attempt=1, width=1, slots=["local:0"])
    yield at(10.0, "first_step", trial="t1", seconds=2.0)
    yield at(11.0, "ended", trial="t1", outcome="interrupted", reason="stale")
    yield at(11.0, "placed", trial="t1", attempt=2, width=1, slots=["local:1"])
    yield at(12.0, "first_step", trial="t1", seconds=1.0)
    yield at(12.0, "ended", trial="t1", outcome="failed", reason="diverged")


def test_figures_of_a_short_run():
    actual = JournalFold(events()).figures()
    losses = actual.pop("losses")
    assert actual == {
        "trials": 2,
        "failed": 1,
        "stopped": 1,
        "attempts": 3,
        "wide_attempts": 1,
        "restarts": {"stale": 1},
        "first_step_seconds": 1.0,
        "cold_start_seconds": 4.0,
        "slot_seconds": 20.0,  # two slots, from 2 s to 12 s
        "utilization": pytest.approx(8 / 20),  # four seconds on two slots
        "energy_joules": None,
        "energy_idle_joules": None,
        "energy_parts": None,
    }
    shares = {"training": 8, "start_up": 2 + 2 + 1, "ending": 2, "lost": 1, "tail": 4}
    expected = {cause: seconds / 20 for cause, seconds in shares.items()}
    assert {c: s for c, s in losses.items() if s} == pytest.approx(expected)


def test_figures_of_a_run_that_never_placed_a_trial():
    result = JournalFold([]).figures()
    assert result["trials"] == result["slot_seconds"] == 0
    assert result["utilization"] is None
    assert result["first_step_seconds"] is None
    assert result["cold_start_seconds"] is None
