"""A forecast runs the campaign's own trials, prices and rules on a simulated machine."""

import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.machine import LimitConfig, find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.planning.forecast import (
    ForecastMachine,
    PricedTrial,
    TrialPricer,
    configuration_of,
    forecast_campaign,
    rung_of,
    sample_configurations,
    shortest_seconds,
)
from hydragnn_hpo.planning.simulator import SimulatedWork
from hydragnn_hpo.resources import resource_path
from hydragnn_hpo.search import space


def campaign(**search):
    values = tomllib.loads(resource_path("workflows/quickstart.toml").read_text())
    values["search"] |= {"rungs": [1, 3, 9], "trials": 9, "finalists": 1, "initial": 3, **search}
    values["ensemble"] = {"members": 6}
    return CampaignConfig.model_validate(values)


def machine(hosts=1, slots=2, **profile):
    quiet = {"cold_start_seconds": 0.0, "start_seconds": 0.0, "restart_seconds": 0.0}
    result = find_profile("workstation").model_copy(update=quiet | profile)
    return ForecastMachine(result, hosts, slots)


class FixedPrice:
    """Ten seconds per epoch on one rank, never wider."""

    widths = (1,)
    sigma = 0.0
    measured = True
    fails = 0.0

    def __init__(self, seconds=10.0):
        self.seconds = seconds

    def tasks_seconds(self, epochs):
        return (self.seconds * epochs,)

    def epoch_seconds(self, width):
        return self.seconds

    def memory(self, width):
        return 0.0


def priced(count, seconds=10.0, lanes=1):
    names = [f"t{number:04d}" for number in range(count)]
    return {name: PricedTrial(name, "gin", FixedPrice(seconds), lanes, 1.0, 1.0) for name in names}


def test_a_sample_lies_in_the_space_leaves_out_what_was_proposed_and_repeats_itself():
    config = campaign(constraints=["model.features < 50"])
    values = sample_configurations(config, 40)
    assert values == sample_configurations(config, 40)
    assert len({space.configuration_key(each) for each in values}) == 40
    for each in values:
        assert all(space.is_in(config.space[name], value) for name, value in each.items())
        assert each["model.features"] < 50
    first = values[:20]
    rest = sample_configurations(config, 20, first)
    assert not {space.configuration_key(each) for each in first} & {
        space.configuration_key(each) for each in rest
    }


def test_one_rung_takes_what_a_division_says():
    """Eight trials of 10 s on two slots: four each, one after another."""
    forecast = forecast_campaign(campaign(rungs=[1]), machine(), priced(8))
    assert forecast.simulated.makespan == pytest.approx(40.0, abs=1.0)
    assert forecast.trials == 8
    assert forecast.host_hours == pytest.approx(forecast.simulated.makespan / 3600)
    assert forecast.widths == {1: 8}
    assert sum(forecast.simulated.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("hosts", "unfinished"), [(1, True), (2, False)])
def test_an_allocation_is_as_long_as_its_size_allows(hosts, unfinished):
    """Eight trials of 10 s take 20 s on four slots, 40 s on two, which may stay for 36 s only."""
    limited = machine(hosts, 2, wall_hours=1.0, limits=(LimitConfig(hosts=1, wall_hours=0.01),))
    forecast = forecast_campaign(campaign(rungs=[1]), limited, priced(8))
    assert bool(forecast.simulated.unfinished) == unfinished


def test_rungs_are_climbed_by_the_campaigns_rule():
    """Of nine trials one in three goes on, twice: 9 x 1, 3 x 2 and 1 x 6 epochs, at least.

    Asynchronous halving promotes whoever is among the best at its time: it may promote more.
    """
    together = forecast_campaign(campaign(promotion="together"), machine(), priced(9))
    assert [rung_of(work.name) for work in together.works] == [1] * 9 + [3] * 3 + [9]
    alone = sum(work.seconds[0] for work in together.works)
    assert alone == 10.0 * (9 * 1 + 3 * 2 + 1 * 6)
    at_once = forecast_campaign(campaign(), machine(), priced(9))
    rungs = [rung_of(work.name) for work in at_once.works]
    assert rungs.count(1) == 9
    assert rungs.count(3) >= 3
    assert rungs.count(9) >= 1
    assert not at_once.simulated.unfinished


@pytest.mark.parametrize("promotion", ["together", "asynchronous"])
def test_the_best_are_trained_again_when_all_rest(promotion):
    """Of those of the last rung as many as there are, nine epochs each from the first one on."""
    plain = campaign(promotion=promotion, finalists=3)
    ensemble = plain.ensemble.model_copy(update={"reseed": 50})
    forecast = forecast_campaign(
        plain.model_copy(update={"ensemble": ensemble}), machine(), priced(9)
    )
    again = [work for work in forecast.works if "again" in work.name]
    assert again == list(forecast.works[-len(again) :])
    last = [configuration_of(w.name) for w in forecast.works[: -len(again)] if rung_of(w.name) == 9]
    assert sorted(configuration_of(work.name) for work in again) == sorted(last)
    assert {(work.seconds, rung_of(work.name)) for work in again} == {((90.0,), 9)}
    assert forecast.trials == 9 + len(last)
    assert not forecast.simulated.unfinished
    begun = min(b.start for b in forecast.simulated.bars if "again" in b.trial)
    assert begun >= max(b.end for b in forecast.simulated.bars if "again" not in b.trial) - 1e-6


def test_the_longest_trial_is_summed_over_its_rungs():
    """All go on to the last rung: three epochs each, and one is slow."""
    config = campaign(rungs=[1, 3], finalists=9)
    trials = priced(9) | {"t0004": PricedTrial("t0004", "gin", FixedPrice(100.0), 1, 1.0, 1.0)}
    assert forecast_campaign(config, machine(), trials).longest == ("t0004", 300.0)


def test_points_that_are_named_go_on_more_often_than_others():
    """Their made-up results are at most .6 of those of others: 12.5 are among the best 20."""
    points = [{"model.features": 8 * number} for number in range(2, 32)]
    config = campaign(
        rungs=[1, 3], trials=60, finalists=20, promotion="together", initial_points=points
    )
    works = forecast_campaign(config, machine(), priced(60)).works
    best = {work.name.split("@")[0] for work in works if rung_of(work.name) == 3}
    assert len(best) == 20
    assert sum(name < "t0030" for name in best) >= 12  # 12.5 expected, 10 of equals


def test_the_quickest_width_is_one_that_wastes_no_more_than_half():
    """Efficiencies 1, 0.8, 0.5 and 0.31: the widest is not allowed."""
    work = SimulatedWork("t0@1", (1, 2, 4, 8), (40.0, 25.0, 20.0, 16.0))
    assert shortest_seconds(work) == 20.0


def test_a_rank_with_lanes_takes_several_slots():
    forecast = forecast_campaign(campaign(rungs=[1]), machine(slots=4), priced(4, lanes=4))
    assert forecast.simulated.makespan == pytest.approx(40.0, abs=1.0)
    assert forecast.widths == {1: 4}


def test_several_goals_are_climbed_by_their_front():
    config = campaign(objective=["weighted", "parameters"])
    forecast = forecast_campaign(config, machine(), priced(9))
    assert [rung_of(work.name) for work in forecast.works].count(9) >= 1


def test_values_that_make_no_trial_are_left_out():
    def refuse(name, values):
        raise ConfigError("no.")

    pricing = TrialPricer(campaign(), machine(), SimpleNamespace(), refuse)
    assert pricing.price("t0000", {}) is None


def test_prices_of_what_never_ran_are_not_exact():
    """The planner believes the price, the simulation takes a little more or less."""
    costs = SimpleNamespace(price_values=lambda values, widths: unmeasured)
    unmeasured = FixedPrice()
    unmeasured.measured = False
    pricing = TrialPricer(campaign(), machine(), costs, lambda name, values: {})
    works = [pricing.price(f"t{number:04d}", {}).work(0, 1) for number in range(200)]
    factors = [work.seconds[0] / work.planned_seconds()[0] for work in works]
    assert {work.planned_seconds() for work in works} == {(10.0,)}
    assert 0.4 < min(factors) < 0.8 < 1.25 < max(factors) < 2.5
    again = pricing.price("t0000", {}).work(0, 1)
    assert again.seconds == works[0].seconds


def test_the_learning_curve_is_a_part_of_the_forecast():
    """Nine trials to epoch 1, three to 3, and one to 9, of 10 s each: 9 + 6 + 6 = 21 epochs.

    A share of 1 pays for 21 / 3 = 7 epochs each; the default, .1, for less than one.
    """

    def works(share, **changes):
        config = campaign(promotion="together")
        ensemble = config.ensemble.model_copy(update={"learning_curve": share})
        config = config.model_copy(update={"ensemble": ensemble})
        forecast = forecast_campaign(config, machine(), priced(9), **changes)
        assert forecast.trials == 9
        return {work.name: work.seconds for work in forecast.works if work.name.count("@") == 2}

    results = works(1.0)
    assert sorted(name.partition("@")[2] for name in results) == ["0.25@7", "0.5@7", "1@7"]
    assert set(results.values()) == {(70.0,)}
    assert len({configuration_of(name) for name in results}) == 1
    assert works(0.1) == works(0.0) == {}
    assert len(set(works(9.0).values())) == 1
    assert set(works(9.0).values()) == {(90.0,)}, "no more than the full budget"


def test_fits_on_folds_are_a_part_of_the_forecast():
    """Two of three finalists in three folds; a fit costs what its own price says."""
    config = campaign(promotion="together", finalists=3)
    ensemble = config.ensemble.model_copy(
        update={"fit": "cross", "configurations": 2, "folds": 3, "learning_curve": 0.0}
    )
    config = config.model_copy(update={"ensemble": ensemble})
    trials = {name: replace(each, fold=FixedPrice(12.0)) for name, each in priced(9).items()}
    forecast = forecast_campaign(config, machine(), trials)
    fits = {work.name: work.seconds for work in forecast.works if "@fold" in work.name}
    last = config.search.rungs[-1]
    assert sorted(name.partition("@")[2] for name in fits) == sorted(
        f"fold{fold}@{last}" for fold in (0, 1, 2) for _ in range(2)
    )
    assert set(fits.values()) == {(12.0 * last,)}
    assert forecast.trials == 9
