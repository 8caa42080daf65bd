"""Whose energy it was: counted by hand, and every joule of it once."""

import random

import pytest

from hydragnn_hpo.campaign.records.energy import (
    REMEMBERED_SECONDS,
    Energy,
    Holders,
    divide,
    portions,
)
from hydragnn_hpo.campaign.records.summary import summarize
from hydragnn_hpo.campaign.state import fold
from hydragnn_hpo.launching.host.counters.sample import Sample
from hydragnn_hpo.launching.job import Slot


def gpus(count=4, host="h"):
    return [Slot(host, number, (number,), "cuda:0", str(number)) for number in range(count)]


def placed(trial, slots, time, attempt=1):
    width = {"width": len(slots), "attempt": attempt}
    return {"event": "placed", "trial": trial, "slots": slots, "time": time, **width}


def ended(trial, time):
    return {"event": "ended", "trial": trial, "time": time, "outcome": "interrupted"}


def holders(*events):
    found = Holders()
    for event in events:
        found.apply(event)
    return found


def test_who_held_a_slot_and_for_how_long():
    found = holders(
        placed("a", ["h:0", "h:1"], 100.0), ended("a", 110.0),
        placed("b", ["h:0"], 112.0), placed("c", ["h:1"], 125.0),
    )  # fmt: skip
    assert found.of("h:0", 100.0, 130.0) == {"a": 10.0, "b": 18.0}
    assert found.of("h:1", 105.0, 130.0) == {"a": 5.0, "c": 5.0}
    assert found.of("h:1", 110.0, 125.0) == {}
    assert found.of("h:9", 0.0, 1e9) == {}


def test_a_trial_that_comes_back_is_on_its_new_slots_only():
    found = holders(placed("a", ["h:0"], 0.0), placed("a", ["h:1"], 10.0, attempt=2))
    assert found.of("h:0", 0.0, 20.0) == {"a": 10.0}
    assert found.of("h:1", 0.0, 20.0) == {"a": 10.0}


def test_what_is_long_over_is_forgotten():
    found = holders()
    for number in range(1000):
        found.apply(placed(f"t{number}", ["h:0"], 10.0 * number))
        found.apply(ended(f"t{number}", 10.0 * number + 10.0))
    assert len(found._holds["h:0"]) <= REMEMBERED_SECONDS / 10.0 + 2
    assert found.of("h:0", 9990.0, 10_000.0) == {"t999": 10.0}


def test_a_host_by_hand():
    """Two cards of two devices; 30 s; a on slots 0 and 1 for all of it, b on slot 2 for 10 s."""
    sample = Sample(30.0, ("host",), 1200.0, ((("0", "1"), 600.0), (("2", "3"), 300.0)))
    held = {"h:0": {"a": 30.0}, "h:1": {"a": 30.0}, "h:2": {"b": 10.0}}
    shares = divide(portions(sample, gpus()), held, 30.0)
    # a: its card, 600, and half of the rest, 600. b: a third of half of its card, 50, and a
    # third of a quarter of the rest, 100.
    assert shares.trials == {"a": pytest.approx(1200.0), "b": pytest.approx(150.0)}
    assert shares.idle == pytest.approx(2100.0 - 1350.0)


def test_slots_that_share_a_device_share_its_energy():
    lanes = [Slot("h", n, (n,), "cuda:0", "0") for n in range(2)]
    found = portions(Sample(30.0, ("card",), None, ((("0", "GPU-a"), 80.0),)), lanes)
    assert found == [(80.0, ("h:0", "h:1"))]
    shares = divide(found, {"h:0": {"a": 30.0}, "h:1": {"b": 15.0}}, 30.0)
    assert shares.trials == {"a": 40.0, "b": 20.0}
    assert shares.idle == 20.0


def test_a_card_of_another_name_belongs_to_those_who_have_one():
    """Slices of a GPU are named by ids that no counter knows."""
    slices = [Slot("h", n, (n,), "cuda:0", f"MIG-{n}") for n in range(2)]
    sample = Sample(30.0, ("card",), None, ((("0", "GPU-a"), 80.0),))
    assert portions(sample, slices) == [(80.0, ("h:0", "h:1"))]


def test_a_card_that_is_nobodys_is_idle():
    two = gpus(2)
    sample = Sample(10.0, ("host",), 0.0, tuple(((str(n),), 5.0) for n in range(4)))
    shares = divide(portions(sample, two), {s.name: {"a": 10.0} for s in two}, 10.0)
    assert (shares.trials, shares.idle) == ({"a": 10.0}, 10.0)
    processors = [Slot("h", n, (n,), "cpu") for n in range(2)]
    assert portions(sample, processors)[0] == (5.0, ())


def test_what_was_counted_is_what_is_charged_and_what_is_idle():
    draw = random.Random(5)
    for _ in range(200):
        slots = gpus(draw.randint(1, 8))
        cards = tuple(((str(n),), draw.uniform(0.0, 9e3)) for n in range(draw.randint(0, 8)))
        sample = Sample(30.0, (), draw.choice((None, draw.uniform(0.0, 3e4))), cards)
        held = {}
        for slot in slots:
            cut = sorted(draw.uniform(0.0, 30.0) for _ in range(2))
            held[slot.name] = {f"t{draw.randint(0, 3)}": cut[0], "x": cut[1] - cut[0]}
        shares = divide(portions(sample, slots), held, 30.0)
        everything = sum(shares.trials.values()) + shares.idle
        assert everything == pytest.approx(sample.joules or 0.0)
        assert shares.idle > -1e-9


def energy(time, trials, idle, **more):
    told = {"watts": 700.0, "hosts": 2, "parts": ["cpu"], **more}
    return {"event": "energy", "time": time, "epoch": 1, "trials": trials, "idle": idle, **told}


def story():
    def at(time, kind, **values):
        return {"event": kind, "time": time, "epoch": 1, **values}

    yield at(0.0, "opened", units={}, slots=["h:0", "h:1"])
    for name in ("a", "b"):
        yield at(0.0, "proposed", trial=name, values={}, until=4)
    yield at(0.0, "placed", trial="a", attempt=1, width=1, slots=["h:0"])
    yield energy(30.0, {"a": [900.0, 30.0]}, 100.0)
    yield at(40.0, "ended", trial="a", outcome="stopped", objective=1.0, score=1.0)
    yield energy(60.0, {"a": [300.0, 6.0]}, 200.0, watts=650.0, parts=["card"])


def test_the_state_holds_sums_and_what_is_unknown_stays_unknown():
    state = fold(story())
    assert state.trials["a"].energy == 1200.0
    assert state.trials["a"].metered_share == pytest.approx(36.0 / 40.0)
    assert state.trials["b"].energy is None
    assert state.trials["b"].metered_share is None
    assert state.energy == Energy(1500.0, 300.0, 650.0, 2, ("card", "cpu"))
    assert fold([]).energy.joules is None


def test_figures_of_a_run():
    found = summarize(story())
    assert found["energy_joules"] == 1500.0
    assert found["energy_idle_joules"] == 300.0
    assert found["energy_parts"] == ["card", "cpu"]
    nothing = summarize([])
    assert nothing["energy_joules"] is nothing["energy_idle_joules"] is None
    assert nothing["energy_parts"] is None
