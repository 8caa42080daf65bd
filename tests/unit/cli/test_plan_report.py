"""Advice, and numbers in words, of forecasts made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hydragnn_hpo.campaign import FeaturesPrice
from hydragnn_hpo.campaign.forecast import Forecast, ForecastMachine
from hydragnn_hpo.cli.plan_report import advice_lines, report_lines, report_plain
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.placement.simulator import CAUSES, Bar, SimulatedWork, SimulationResult

SLOTS, HOUR = 80, 3600.0


def forecast(hours=1.0, longest=0.5, works=8, **shares):
    """Ten hosts of eight slots; what is not named of the slot-time is training."""
    whole = SLOTS * hours * HOUR
    spent = {cause: shares.get(cause, 0.0) * whole for cause in CAUSES}
    spent["training"] = whole - sum(spent.values())
    bars = tuple(
        Bar(f"t{n:04d}@4", (f"h:{n}",), 0.0, longest * HOUR, "training") for n in range(works)
    )
    simulated = SimulationResult(
        bars, hours * HOUR, SLOTS, spent, useful_seconds=0.9 * spent["training"], restarts=1
    )
    each = [SimulatedWork(bar.trial, (1,), (longest * HOUR,)) for bar in bars]
    machine = ForecastMachine(find_profile("frontier"), 10, 8)
    price = SimpleNamespace(sigma=0.0)
    priced = {"t0000": SimpleNamespace(price=price, label="gin")}
    return Forecast(machine, priced, 0, simulated, tuple(each))


def test_the_longest_trial_is_the_bound():
    """80 % of 80 slots idle: the work of 14.4 keeps 18 slots, so three hosts, busy at 80 %."""
    (message,) = advice_lines(forecast(longest=0.9, tail=0.8))
    assert message == (
        "with 8 trials on 10 hosts the longest trial is the bound: more trials or fewer hosts. "
        "3 hosts would take about as long."
    )


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"longest": 0.2, "tail": 0.8}, "with 8 trials on 10 hosts the last rungs are the bound"),
        ({"held": 0.2}, "let trials be narrower"),
        ({"brain": 0.2}, "slots wait for the brain"),
        ({"start-up": 0.2}, "starting takes long"),
    ],
)
def test_each_loss_has_its_advice(shares, says):
    (message,) = advice_lines(forecast(**shares))
    assert says in message


def test_what_is_small_needs_no_advice():
    assert list(advice_lines(forecast(tail=0.05, held=0.04, brain=0.09))) == []
    assert list(advice_lines(forecast(hours=0.1, **{"start-up": 0.3}))) == []


def test_what_is_left_undone_and_what_is_no_trial_is_reported():
    result = forecast()
    undone = replace(result.simulated, unfinished={"t0000@4": 0.5})
    messages = list(advice_lines(replace(result, simulated=undone, refused=3)))
    assert messages[0].startswith(
        "1 trial would not be finished when the allocation ends after 60.0 min"
    )
    assert messages[1].startswith("3 of 4 drawn configurations are no valid trial")


def planned(result):
    search = SimpleNamespace(rungs=(1, 4), finalists=2)
    config = SimpleNamespace(name="mine", search=search)
    features = (FeaturesPrice("CHGNet 0.3.0", 120.0, 24_000_000),)
    return SimpleNamespace(config=config, data="a store", forecast=result, features=features)


def test_what_a_person_reads():
    assert list(report_lines(planned(forecast(tail=0.05)))) == [
        "mine: 8 trials, epochs 1 -> 4, 2 finalists",
        "machine      frontier: 10 hosts of 8 slots",
        "data         a store",
        "first        features of CHGNet 0.3.0: 2.0 min on one slot, 24 MB on disk",
        "takes        60.0 min, 10 host-hours",
        "useful       86 % of slot-time is work that one rank would have, too",
        "slot-time      95 %  training and validation",
        "              5.0 %  idle, nothing is left to start",
        "attempts     8 x 1 rank; 1 restart for a better width",
        "longest      t0000: 30.0 min on as many ranks as are efficient",
        "trust        prices follow what ran before",
    ]


def test_the_fits_of_the_learning_curve_have_a_line_of_their_own():
    """Two of the eight pieces of work are fits, of half an hour each on one rank."""
    result = replace(forecast(), curve=frozenset({"t0006", "t0007"}))
    lines = list(report_lines(planned(result)))
    assert lines[0] == "mine: 6 trials, epochs 1 -> 4, 2 finalists"
    assert lines[4] == (
        "then         2 fits of the best trial for the learning curve, to epoch 4: 60.0 min on one "
        "slot"
    )
    report = report_plain(planned(result))["forecast"]
    assert (report["trials"], report["curve_fits"]) == (6, 2)


def test_many_widths_are_written_in_short():
    result = forecast()
    bars = tuple(
        Bar(work.name, tuple("abcdefgh"[: 1 + n]), 0.0, 1.0, "training")
        for n, work in enumerate(result.works)
    )
    lines = list(
        report_lines(planned(replace(result, simulated=replace(result.simulated, bars=bars))))
    )
    line = next(line for line in lines if line.startswith("attempts"))
    assert "8, of 1 to 8 ranks, half of them up to 5" in line
