"""How much a first campaign searches follows from the data, the time and the machine."""

import tomllib

import pytest

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.data_config import SPLITS, CardConfig, targets_of
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.pipeline.init_templates import HeadHints, choose_heads, render_campaign
from hydragnn_hpo.planning.forecast import ForecastMachine
from hydragnn_hpo.planning.search_budget import (
    BATCHES,
    CROSS_TRIALS,
    MAX_TRIALS,
    MIN_TRIALS,
    TIERS,
    SearchBudget,
    _gains_from_folds,
    choose_batches,
    choose_epochs,
    choose_rungs,
    count_distinct_trials,
    count_trials,
    fit_budget,
    list_budgets,
    set_trials,
)

CARD = CardConfig(
    name="mine",
    files=({"path": "x.xyz"},),
    targets={
        "energy": {"level": "graph", "unit": "eV", "energy": "total"},
        "forces": {
            "level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "energy",
        },
        "size": {"level": "graph", "unit": "1"},
    },
)  # fmt: skip

ABLE = tuple(name for name, spec in CONV_SPECS.items() if spec.forces)


def stats(count, nodes=20):
    """What a data set of equal crystals with 40 neighbours would say."""
    splits = dict(zip(SPLITS, (round(s * count) for s in (0.6, 0.1, 0.1, 0.1, 0.1)), strict=True))
    sizes = {"mean": nodes, "min": nodes, "max": nodes, "total": nodes * count}
    edges = {key: 40 * value for key, value in sizes.items()}
    return {
        "name": "mine",
        "num_graphs": count,
        "cutoff": 5.0,
        "elements": [],
        "degree": {"4.0": 20.0, "5.0": 40.0},
        "nodes": sizes,
        "edges": edges,
        "splits": splits,
        "train_nodes": splits["train"] * nodes,
        "train_edges": splits["train"] * nodes * 40,
        "attributes": {},
        "targets": targets_of(CARD),
    }


def make(budget):
    return parse_config(
        tomllib.loads(render_campaign(CARD, "x", budget=budget)), CampaignConfig, "made"
    )


def fitted(count, minutes, slots=2, nodes=20):
    machine = ForecastMachine(find_profile(None), 1, slots)
    return fit_budget(make, machine, stats(count, nodes), ABLE, 60.0 * minutes)


def test_epochs_of_a_thousand_and_of_a_quarter_and_four_times_as_many():
    assert [choose_epochs(n) for n in (1000, 250, 4000)] == [40, 80, 20]
    assert choose_epochs(10) == 120
    assert choose_epochs(10**7) == 8


def test_an_epoch_has_at_least_six_steps():
    assert choose_batches(10_000) == BATCHES
    assert choose_batches(100) == (16,)
    assert choose_batches(20) == (8,)


def test_trials_for_a_time_by_hand():
    # 10 epochs of all and 30 more of a third: 20 epochs a trial
    assert count_trials(SearchBudget(rungs=(10, 40)), 400.0) == 20
    # 4 of all, 8 of a third, 36 of twelve: 432 + 20 / 3 for each
    assert count_trials(SearchBudget(rungs=(4, 12, 48)), 1024.0) == 88
    # six go to the end in any case: 400 - 6 x 36 = 184 epochs for trials of 20 / 3
    assert count_trials(SearchBudget(rungs=(4, 12, 48)), 400.0) == 27


def test_trials_beside_fits_on_folds_by_hand():
    # ten fits of 1.2 x 40 epochs, two of 30 more: 540 of 1600 epochs; 10 for each trial
    budget = SearchBudget(rungs=(10, 40), fit="cross")
    assert count_trials(budget, 1600.0) == 106
    assert count_trials(budget, 400.0) == 0


def test_labels_train_on_folds_where_the_time_is_enough_and_they_are_scarce():
    kinds = {}
    for count, minutes in ((300, 240), (300, 5), (200_000, 240)):
        budget, seen = fitted(count, minutes)
        config = make(budget)
        kinds[count, minutes] = config.ensemble.fit
        folds = [work for work in seen.works if "@fold" in work.name]
        assert len(folds) == (10 if config.ensemble.fit == "cross" else 0)
        if folds:
            assert (config.search.promotion, config.search.finalists) == ("together", 2)
            assert budget.trials >= CROSS_TRIALS
            assert "every label" in budget.why[1]
    assert kinds == {(300, 240): "cross", (300, 5): "split", (200_000, 240): "split"}
    many = dict(zip(SPLITS, (9200, 200, 200, 200, 200), strict=True))
    assert not _gains_from_folds({**stats(10_000), "splits": many}), "train is most of the data"


def test_scopes_go_from_thorough_to_little():
    results = list(list_budgets(100_000, ABLE))
    widest = [max(budget.features) for budget in results]
    assert widest == sorted(widest, reverse=True)
    assert results[-1].steps == 30
    assert all(budget.steps is None for budget in list_budgets(500, ABLE))
    assert all(set(budget.batches) == set(BATCHES) for budget in results)


def test_a_number_of_trials_has_its_points_and_finalists():
    budget = next(list_budgets(1000, ABLE))
    fewest, few, some, many = (set_trials(budget, count) for count in (1, 12, 32, 10**6))
    assert (fewest.trials, many.trials) == (MIN_TRIALS, MAX_TRIALS)
    assert [(b.points, b.initial) for b in (fewest, few, some, many)] == [
        *((6, 2), (8, 2), (8, 4), (8, 50))
    ]
    assert (few.finalists, some.finalists, many.finalists) == (6, 8, 12)
    assert len(few.convs or ()) == 8


@pytest.mark.parametrize(
    ("last", "rungs"),
    [(120, (8, 30, 120)), (40, (2, 10, 40)), (16, (2, 4, 16)), (12, (3, 12)), (6, (2, 6))],
)
def test_rungs_are_a_sixteenth_and_a_quarter_where_these_are_epochs_apart(last, rungs):
    assert choose_rungs(last) == rungs


def test_few_structures_to_validate_on_bound_the_trials():
    assert [count_distinct_trials(n) for n in (1, 2, 20)] == [24, 32, 320]
    budget, _ = fitted(20, 60)
    assert budget.trials == 32
    assert "by chance among 2 structures to validate on" in budget.why[0]
    assert "by chance" not in fitted(2000, 60)[0].why[0]


@pytest.mark.parametrize(("count", "minutes"), [(200, 10), (2000, 10), (2000, 120)])
def test_a_campaign_fits_its_time_in_the_simulation(count, minutes):
    budget, seen = fitted(count, minutes)
    assert seen.simulated.makespan <= 60.0 * minutes
    assert MIN_TRIALS <= budget.trials <= MAX_TRIALS
    assert make(budget).search.trials == budget.trials
    assert str(budget.trials) in budget.why[0]


def test_more_time_means_more_search():
    short = fitted(1000, 5)[0]
    long = fitted(1000, 120)[0]
    assert long.trials * long.rungs[1] * max(long.features) > (
        short.trials * short.rungs[1] * max(short.features)
    )


def test_what_cannot_be_passed_over_in_time_gets_short_epochs():
    budget, _ = fitted(200_000, 10, nodes=60)
    assert budget.features == TIERS[-1][0]
    assert budget.steps is not None
    assert make(budget).trial["training"]["steps_per_epoch"] == budget.steps
    assert "not a whole pass" in budget.why[1]


def test_forces_bring_their_energy():
    assert choose_heads(CARD, ["forces"]) == ("energy", "forces")


def test_what_is_known_of_the_data_is_heeded():
    hints = HeadHints({"forces": "later,\nperhaps"})
    made = render_campaign(CARD, "x", hints=hints)
    content = tomllib.loads(made)
    assert set(content["trial"]["heads"]) == {"energy", "size"}
    assert "# later, perhaps\n# [trial.heads.forces]" in made
