"""Planted effects are found, noise is not believed, and odd campaigns are one sentence."""

import itertools

import numpy as np
import pytest
from made_campaign import EFFECTS, make_campaign

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.config.search_config import ParameterConfig as Parameter
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.importance import (
    SWARM_HALF_HEIGHT,
    Effect,
    Importance,
    analyse_importance,
    beeswarm_offsets,
    fanova,
    ped_anova,
)
from hydragnn_hpo.report.observations import Target, TrialObservation, list_targets, observe_trials
from hydragnn_hpo.report.page_blocks import Doubtful
from hydragnn_hpo.report.sections import importance as section
from hydragnn_hpo.report.surrogate import draw_uniform
from hydragnn_hpo.search import active_parameters

MAE = Target("mae", "objective")
FAILURE = Target("failure", "P(failure)", log=False)


X = {"low": 0.0, "high": 1.0}
WORTH = itertools.count(1.0)


def campaign(space):
    plain = {
        "name": "planted",
        "command": {"argv": ["true"]},
        "space": space,
        "search": {"trials": 10, "rungs": [1], "finalists": 1},
    }
    return parse_config(plain, CampaignConfig, "campaign")


def draw(space, count, seed=0):
    """Return the active values of evenly drawn configurations."""
    named = {
        name: one if isinstance(one, dict) else one.model_dump(exclude_unset=True)
        for name, one in space.items()
    }
    config = campaign(named)
    return [active_parameters(config.space, v) for v in draw_uniform(config, count, seed=seed)]


def rows_of(config, count, of, key="mae", seed=0):
    return [TrialObservation(v, {key: of(v)}) for v in draw(config.space, count, seed)]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.stress) for seed in (1, 2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planted_ranking_is_found(tmp_path, seed):
    run = make_campaign(tmp_path / "run", trials=300, seed=seed, failures=False, energy=False)
    facts = read_facts(run)
    importance = analyse_importance(facts.config, observe_trials(facts), MAE)
    ranked = list(EFFECTS)  # the largest first
    assert importance.doubt is None
    assert importance.skill > 0.6
    assert list(importance.effects)[:3] == ranked
    by_variance = sorted(importance.effects, key=lambda name: -importance.effects[name].fanova)
    assert by_variance[:3] == ranked
    by_best = sorted(importance.effects, key=lambda name: -importance.effects[name].ped_anova)
    assert set(by_best[:3]) == set(ranked)
    assert by_best[0] == "model.features"  # most divergent by the formula of PED-ANOVA
    least = {name: importance.effects[name].least_at for name in ranked}
    low, high = map(float, least["training.learning_rate"].split(" to "))
    assert low < 10 ** (-4 + 0.4 * 3) < high  # the planted optimum
    assert least["model.features"] in ("96 to 128", "112 to 128")
    assert least["model.layers"] in ("4 to 5", "5")


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_not_believed(tmp_path, seed):
    run = make_campaign(tmp_path / "run", trials=110, seed=seed, noise_only=True)
    facts = read_facts(run)
    rows = observe_trials(facts)
    targets = list_targets(rows, facts.config.search.objective)
    for target in targets:
        if target.key.startswith("mae"):
            importance = analyse_importance(facts.config, rows, target)
            assert importance.skill < 0.3
            assert "explains too little" in importance.doubt
            assert importance.effects


def test_what_the_search_has_settled_still_counts():
    # All but a few trials stand at the best rate; the others say that it matters most.
    config = campaign({"rate": X, "x": X})
    rng = np.random.default_rng(4)
    rates = np.concatenate([rng.uniform(0.0, 0.05, 180), rng.uniform(0.0, 1.0, 40)])
    rows = [
        TrialObservation({"rate": r, "x": x}, {"mae": float(np.exp(3.0 * r + 0.3 * x))})
        for r, x in zip(rates, rng.random(220), strict=True)
    ]
    importance = analyse_importance(config, rows, MAE)
    assert list(importance.effects) == ["rate", "x"]
    # against the space 3 |rate - 0.5| on average, against the trials 3 |rate - mean rate|
    assert importance.effects["rate"].shap == pytest.approx(
        3 * np.abs(rates - 0.5).mean(), rel=0.15
    )
    assert 3 * np.abs(rates - rates.mean()).mean() < 0.5 * importance.effects["rate"].shap


def test_a_switch_is_not_the_credit_of_what_it_switches_on():
    # gat is twice as bad whatever its heads are
    space = {
        "conv": {"choices": ["gin", "gat"]},
        "heads": {"choices": [1, 2, 4], "when": {"conv": "gat"}},
    }
    config = campaign(space)
    rng = np.random.default_rng(0)
    rows = rows_of(config, 200, lambda v: (1.0 + (v["conv"] == "gat")) * rng.uniform(0.95, 1.05))
    importance = analyse_importance(config, rows, MAE)
    assert importance.effects["conv"].shap_share > 0.9
    assert importance.effects["conv"].least_at == "gin"
    assert importance.effects["conv"].shap == pytest.approx(0.5 * np.log(2.0), rel=0.1)


def test_zero_is_no_logarithm():
    config = campaign({"n": {"low": 0, "high": 5}})
    rows = rows_of(config, 60, lambda v: float(v["n"]))
    (target,) = list_targets(rows, "weighted")
    assert not target.log
    assert analyse_importance(config, rows, target).doubt is None


@pytest.mark.parametrize(
    ("one", "count", "of", "message"),
    [
        (X, 5, lambda v: v["x"], "5 trials say something"),
        (X, 1, lambda v: v["x"], "1 trial says something"),
        (X, 30, lambda v: 0.5, "the same in all trials"),
        (X, 6, lambda v: v["x"] + 1.0, "6 trials are too few"),
        ({"choices": ["only"]}, 30, lambda v: next(WORTH), "one configuration"),
    ],
)
def test_odd_campaigns_are_one_sentence(one, count, of, message):
    config = campaign({"x": one})
    assert message in analyse_importance(config, rows_of(config, count, of), MAE).doubt


@pytest.mark.parametrize(
    ("failures", "message"),
    [(40, "All trials failed"), (0, "No trial failed"), (3, "3 of 40 trials"), (37, "37 of 40")],
)
def test_too_few_failures_or_too_few_others(failures, message):
    config = campaign({"x": X})
    drawn = draw(config.space, 40, 0)
    rows = [TrialObservation(v, {"failure": float(n < failures)}) for n, v in enumerate(drawn)]
    assert message in analyse_importance(config, rows, FAILURE).doubt


def test_failures_have_causes():
    config = campaign({"rate": X, "x": X})
    rng = np.random.default_rng(0)
    rows = rows_of(
        config, 120, lambda v: float(rng.random() < (0.8 if v["rate"] > 0.7 else 0.02)), "failure"
    )
    importance = analyse_importance(config, rows, FAILURE)
    assert importance.doubt is None
    effect = importance.effects["rate"]
    assert min(effect.shap_share, effect.fanova, effect.ped_anova) > 0.5


def test_all_failures_are_compared_with_all_trials_however_shares_round():
    # 14 / 100 * 100 is above 14: a trial that did not fail would count, and with it all of them
    config = campaign({"x": X, "c": {"choices": ["a", "b"]}})
    drawn = sorted(draw(config.space, 100, 0), key=lambda v: v["x"])
    rows = [TrialObservation(v, {"failure": float(n < 14)}) for n, v in enumerate(drawn)]
    assert analyse_importance(config, rows, FAILURE).effects["x"].ped_anova > 0.8


def divergence(column, best):
    """Return sum of p (q / p - 1)^2 over the values of a column: the paper's equation 16.

    Source: Watanabe, Bansal and Hutter (2023), arXiv:2304.10255.
    """
    total = 0.0
    for value in np.unique(column):
        p = np.mean(column == value)
        q = np.mean(column[best] == value)
        total += p * (q / p - 1.0) ** 2
    return total


def test_ped_anova_is_the_formula_of_its_paper():
    space = {"a": Parameter(low=1, high=6), "b": Parameter(choices=tuple("wxyz"))}
    rows = draw(space, 3000, 0)
    rng = np.random.default_rng(1)
    values = np.array([r["a"] + 2.0 * (r["b"] == "x") for r in rows]) + rng.normal(size=3000)
    best = values <= np.sort(values)[299]
    parts = {name: divergence(np.array([r[name] for r in rows]), best) for name in space}
    actual = ped_anova(space, rows, values, share=0.1)
    # Optuna smooths both densities a little
    assert actual == pytest.approx(
        {name: part / sum(parts.values()) for name, part in parts.items()}, abs=0.02
    )


def test_fanova_is_the_variance_of_the_marginals():
    # f = 3 x + y over [0, 1]^2, z nothing: variances 9 / 12 and 1 / 12
    space = {name: Parameter(low=0.0, high=1.0) for name in "xyz"}
    rows = draw(space, 1000, 2)
    values = np.array([3.0 * row["x"] + row["y"] for row in rows])
    actual = fanova(space, rows, values, seed=0)
    assert actual == pytest.approx({"x": 0.9, "y": 0.1, "z": 0.0}, abs=0.02)


def test_fanova_takes_logarithms_where_the_search_does():
    # log10 rate is even over [-4, -1]: half of the space is below 10^-2.5
    space = {"rate": Parameter(low=1e-4, high=1e-1, log=True), "x": Parameter(low=0.0, high=1.0)}
    rows = draw(space, 1000, 3)
    values = np.array([float(r["rate"] < 10**-2.5) + float(r["x"] < 0.5) for r in rows])
    actual = fanova(space, rows, values, seed=0)
    assert actual == pytest.approx({"rate": 0.5, "x": 0.5}, abs=0.03)


def test_too_few_good_trials_are_no_basis():
    space = {"x": Parameter(low=0.0, high=1.0)}
    rows = draw(space, 50, 0)
    values = np.array([row["x"] for row in rows])
    assert ped_anova(space, rows[:49], values[:49], share=0.1) is None
    assert ped_anova(space, rows, values, share=0.1) == {"x": 1.0}


def test_a_parameter_that_acts_only_where_it_is_on_anova():
    space = {
        "conv": Parameter(choices=("gin", "gat")),
        "heads": Parameter(choices=(1, 2, 4, 8), when={"conv": "gat"}),
        "idle": Parameter(low=0.0, high=1.0, when={"conv": "gin"}),
    }
    rows = draw(space, 600, 5)
    values = np.array([r.get("heads", 4.5) for r in rows]) + 0.1 * np.arange(600) / 600
    for importance in (
        fanova(space, rows, values, seed=0),
        ped_anova(space, rows, values, share=0.1),
    ):
        assert importance["heads"] > 10 * importance["idle"]


def test_constants_and_spaces_of_one_value():
    space = {"one": Parameter(choices=("a",)), "x": Parameter(low=0.0, high=1.0)}
    rows = draw(space, 60, 1)
    values = np.array([row["x"] for row in rows])
    assert fanova(space, rows, values, seed=0)["one"] == pytest.approx(0.0, abs=1e-12)
    assert ped_anova(space, rows, values, share=0.1) == {"one": 0.0, "x": 1.0}
    assert fanova(space, rows, np.ones(60), seed=0) == {"one": 0.0, "x": 0.0}


def test_steps_that_do_not_meet_the_upper_end():
    # 0, 0.3, 0.6, 0.9: the range ends at 1
    space = {"x": Parameter(low=0.0, high=1.0, step=0.3), "n": Parameter(low=1, high=9, step=3)}
    rows = draw(space, 100, 1)
    values = np.array([row["x"] for row in rows])
    assert ped_anova(space, rows, values, share=0.1)["x"] > 0.9
    assert fanova(space, rows, values, seed=0)["x"] > 0.9


def test_values_outside_of_the_space_count_at_its_ends():
    """A person may add trials with any values."""
    space = {"n": Parameter(low=1, high=4), "x": Parameter(low=0.0, high=1.0)}
    rows = [*draw(space, 60, 1), {"n": 9, "x": 2.0}]
    values = np.array([row["n"] for row in rows], dtype=float)
    assert ped_anova(space, rows, values, share=0.1)["n"] > 0.5
    assert fanova(space, rows, values, seed=0)["n"] > 0.9


def test_points_at_one_place_stand_apart_and_within_their_line():
    for alone in ([0.0, 1.0, 2.0], [], [0.5, 0.5, 0.5]):
        assert beeswarm_offsets(np.array(alone)).tolist() == [0.0] * len(alone)
    heights = beeswarm_offsets(np.array([0.0] * 50 + [1.0]))
    assert len(set(heights[:50])) == 50
    assert np.abs(heights).max() <= SWARM_HALF_HEIGHT
    assert heights.sum() == pytest.approx(0.0, abs=1e-9)


NAMES = ("model.conv", "model.features")


def importance(doubt=None, ped_anova=0.5):
    effects = {name: Effect(0.1, 0.5, 0.4, ped_anova, "2 to 3") for name in reversed(NAMES)}
    shap = np.linspace(-1.0, 1.0, 40).reshape(20, 2)
    at = np.where(np.arange(40).reshape(20, 2) % 5, 0.5, np.nan)
    return Importance(Target("mae", "objective"), 20, 0.7, doubt, effects, NAMES, shap, at)


def test_what_cannot_be_trusted_is_greyed_out_on_the_page():
    sure, doubted = (section._blocks(importance(d), with_bars=True) for d in (None, "too few"))
    assert not any(isinstance(block, Doubtful) for block in sure)
    (grey,) = doubted
    assert isinstance(grey, Doubtful)
    assert [block.key for block in grey.blocks] == ["mae.bars", "mae.swarm", "mae"]


@pytest.mark.parametrize(("ped_anova", "count"), [(0.5, "three"), (None, "two")])
def test_methods_without_a_number_are_neither_counted_nor_listed(ped_anova, count):
    result = importance(ped_anova=ped_anova)
    bars, _, table = section._blocks(result, with_bars=True)
    assert f"by {count} methods" in bars.caption
    assert len(bars.data) == (3 if count == "three" else 2)
    assert ("ped_anova" in [column.key for column in table.columns]) == (count == "three")


def test_an_importance_is_trusted_from_ten_trials_a_parameter_and_half_of_the_variance():
    config = campaign({"x": X, "y": X, "z": X})
    few, enough = (
        analyse_importance(config, rows_of(config, count, lambda v: v["x"] + 1.0), MAE)
        for count in (29, 30)
    )
    assert "29 trials are too few for 3 parameters: 30 are needed" in few.doubt
    assert enough.skill > 0.5
    assert enough.doubt is None
    rng = np.random.default_rng(1)
    noisy = rows_of(config, 200, lambda v: v["x"] + 1.0 + 0.45 * rng.normal())
    importance = analyse_importance(config, noisy, MAE)
    assert importance.skill < 0.5
    assert "0.5 is needed" in importance.doubt
