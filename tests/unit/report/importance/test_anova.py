import math

import numpy as np
import pytest
from made_campaign import planted

from hydragnn_hpo.config.search import ParameterConfig as Parameter
from hydragnn_hpo.report.importance import anova
from hydragnn_hpo.report.importance.design import uniform


def divergence(column, best):
    """Give sum of p (q / p - 1)^2 over the values of a column: the paper's equation 16.

    Source: Watanabe, Bansal and Hutter (2023), arXiv:2304.10255.
    """
    total = 0.0
    for value in np.unique(column):
        p, q = np.mean(column == value), np.mean(column[best] == value)
        total += p * (q / p - 1.0) ** 2
    return total


def test_ped_anova_is_the_formula_of_its_paper():
    space = {"a": Parameter(low=1, high=6), "b": Parameter(choices=tuple("wxyz"))}
    rows = uniform(space, 3000, seed=0)
    rng = np.random.default_rng(1)
    values = np.array([r["a"] + 2.0 * (r["b"] == "x") for r in rows]) + rng.normal(size=3000)
    best = values <= np.sort(values)[299]
    parts = {name: divergence(np.array([r[name] for r in rows]), best) for name in space}
    found = anova.ped_anova(space, rows, values, share=0.1)
    # Optuna smooths both densities a little
    assert found == pytest.approx(
        {name: part / sum(parts.values()) for name, part in parts.items()}, abs=0.02
    )


def test_fanova_is_the_variance_of_the_marginals():
    # f = 3 x + y over [0, 1]^2, z nothing: variances 9 / 12 and 1 / 12
    space = {name: Parameter(low=0.0, high=1.0) for name in "xyz"}
    rows = uniform(space, 1000, seed=2)
    values = np.array([3.0 * row["x"] + row["y"] for row in rows])
    found = anova.fanova(space, rows, values, seed=0)
    assert found == pytest.approx({"x": 0.9, "y": 0.1, "z": 0.0}, abs=0.02)


def test_fanova_takes_logarithms_where_the_search_does():
    # log10 rate is even over [-4, -1]: half of the space is below 10^-2.5
    space = {"rate": Parameter(low=1e-4, high=1e-1, log=True), "x": Parameter(low=0.0, high=1.0)}
    rows = uniform(space, 1000, seed=3)
    values = np.array([float(r["rate"] < 10**-2.5) + float(r["x"] < 0.5) for r in rows])
    found = anova.fanova(space, rows, values, seed=0)
    assert found == pytest.approx({"rate": 0.5, "x": 0.5}, abs=0.03)


def test_too_few_good_trials_are_no_basis():
    space = {"x": Parameter(low=0.0, high=1.0)}
    rows = uniform(space, 50, seed=0)
    values = np.array([row["x"] for row in rows])
    assert anova.ped_anova(space, rows[:49], values[:49], share=0.1) is None
    assert anova.ped_anova(space, rows, values, share=0.1) == {"x": 1.0}


def test_a_parameter_that_acts_only_where_it_is_on():
    space = {
        "conv": Parameter(choices=("gin", "gat")),
        "heads": Parameter(choices=(1, 2, 4, 8), when={"conv": "gat"}),
        "idle": Parameter(low=0.0, high=1.0, when={"conv": "gin"}),
    }
    rows = uniform(space, 600, seed=5)
    values = np.array([r.get("heads", 4.5) for r in rows]) + 0.1 * np.arange(600) / 600
    for found in (
        anova.fanova(space, rows, values, seed=0),
        anova.ped_anova(space, rows, values, share=0.1),
    ):
        assert found["heads"] > 10 * found["idle"]


def test_constants_and_spaces_of_one_value():
    space = {"one": Parameter(choices=("a",)), "x": Parameter(low=0.0, high=1.0)}
    rows = uniform(space, 60, seed=1)
    values = np.array([row["x"] for row in rows])
    assert anova.fanova(space, rows, values, seed=0)["one"] == pytest.approx(0.0, abs=1e-12)
    assert anova.ped_anova(space, rows, values, share=0.1) == {"one": 0.0, "x": 1.0}
    assert anova.fanova(space, rows, np.ones(60), seed=0) == {"one": 0.0, "x": 0.0}


def test_steps_that_do_not_meet_the_upper_end():
    # 0, 0.3, 0.6, 0.9: the range ends at 1
    space = {"x": Parameter(low=0.0, high=1.0, step=0.3), "n": Parameter(low=1, high=9, step=3)}
    rows = uniform(space, 100, seed=1)
    values = np.array([row["x"] for row in rows])
    assert anova.ped_anova(space, rows, values, share=0.1)["x"] > 0.9
    assert anova.fanova(space, rows, values, seed=0)["x"] > 0.9


def test_planted_values_by_the_formula():
    """What PED-ANOVA must find in made campaigns: features first, then rate and layers."""
    rng = np.random.default_rng(0)
    values = {
        "training.learning_rate": 10 ** rng.uniform(-4, -1, 20_000),
        "model.features": rng.integers(1, 9, 20_000) * 16,
        "model.layers": rng.integers(1, 6, 20_000),
    }
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    scores = np.array([planted(row) for row in rows])
    best = scores <= np.sort(scores)[1999]
    tenths = np.floor(10 * (np.log10(values["training.learning_rate"]) + 4) / 3)
    columns = {**values, "training.learning_rate": tenths}
    parts = {name: divergence(column, best) for name, column in columns.items()}
    assert all(math.isfinite(part) for part in parts.values())
    assert max(parts, key=parts.get) == "model.features"
