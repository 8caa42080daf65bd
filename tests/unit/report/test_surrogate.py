"""The forest's Shapley values and its skill against slow, obvious computations."""

import itertools
import math

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hydragnn_hpo.config.search_config import ParameterConfig as Parameter
from hydragnn_hpo.report.surrogate import (
    AT_A_TIME,
    draw_uniform,
    fit_forest,
    make_design,
    make_distribution,
    shap_values,
)

SPACE = {
    "conv": Parameter(choices=("gin", "gat", "pna")),
    "heads": Parameter(choices=(1, 2), when={"conv": "gat"}),
    "rate": Parameter(low=1e-4, high=1e-2, log=True),
    "width": Parameter(low=16, high=64, step=16),
    "norm": Parameter(choices=(True, False)),
    "fixed": Parameter(choices=("one",)),
}


def test_a_row_by_hand():
    on = {"conv": "gat", "heads": 2, "rate": 1e-3, "width": 32, "norm": False, "fixed": "one"}
    off = {"conv": "pna", "rate": 1e-2, "width": 64, "norm": True, "fixed": "one"}
    rows = make_design(SPACE).rows([on, off])
    assert rows.tolist() == [
        [0, 1, 0, 1, 1, pytest.approx(math.log(1e-3)), 32, 1],
        [0, 0, 1, 0, 0, pytest.approx(math.log(1e-2)), 64, 0],
    ]


def test_true_is_not_one():
    space = {"a": Parameter(choices=(1, True, "1"))}
    assert make_design(space).rows([{"a": True}]).tolist() == [[0, 1, 0]]


def test_being_on_is_credited_to_what_decides_it():
    design = make_design(SPACE)
    owners = {
        (c.parameter, c.kind): design.names[int(np.argmax(row))]
        for c, row in zip(design.columns, design.credits, strict=True)
    }
    assert owners[("heads", "active")] == "conv"
    assert owners[("heads", "level")] == "heads"
    assert design.credits.sum(axis=1).tolist() == [1.0] * len(design.columns)


def test_two_deciders_share():
    space = {
        "a": Parameter(choices=(0, 1)),
        "b": Parameter(choices=(0, 1)),
        "c": Parameter(low=0.0, high=1.0, when={"a": 1, "b": 1}),
    }
    assert make_design(space).credits[-1].tolist() == [0.5, 0.5, 0.0]


def test_positions_of_what_is_off_are_unknown():
    values = {"conv": "pna", "rate": 1e-3, "width": 16, "norm": True, "fixed": "one"}
    (row,) = make_design(SPACE).positions([values])
    assert row[0] == pytest.approx(5 / 6)
    assert math.isnan(row[1])
    assert row[2] == pytest.approx(0.5)
    assert row[3] == pytest.approx(1 / 8)


def test_draws_are_even_over_the_space_and_heed_constraints():
    drawn = draw_uniform(SPACE, 3000, seed=1, constraints=("width > 16 or conv == 'gin'",))
    assert drawn == draw_uniform(SPACE, 3000, seed=1, constraints=("width > 16 or conv == 'gin'",))
    assert len(drawn) == 3000
    assert all(v["width"] > 16 or v["conv"] == "gin" for v in drawn)
    assert all(("heads" in v) == (v["conv"] == "gat") for v in drawn)
    # of 12 pairs of conv and width, 10 are left, 4 of them with gin
    assert sum(v["conv"] == "gin" for v in drawn) / 3000 == pytest.approx(0.4, abs=0.03)
    assert sum(v["rate"] < 1e-3 for v in drawn) / 3000 == pytest.approx(0.5, abs=0.03)


def test_a_space_that_constraints_empty_gives_no_draws():
    assert (
        draw_uniform({"a": Parameter(low=0.0, high=1.0)}, 4, seed=0, constraints=("a > 2",)) == []
    )


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    rows = rng.random((150, 4))
    values = 2 * rows[:, 0] + rows[:, 1] * (rows[:, 2] > 0.5) + 0.05 * rng.normal(size=150)
    return rows, values, fit_forest(rows, values, seed=5)


def test_shapley_values_are_those_of_their_definition(fitted):
    rows, _, model = fitted
    points = rows[:45:15]
    background = np.random.default_rng(9).random((20, 4))

    def worth(point, players):
        mixed = background.copy()
        mixed[:, list(players)] = point[list(players)]
        return model.model.predict(mixed).mean()

    def part(point, player):
        others = [p for p in range(4) if p != player]
        total = 0.0
        for size in range(4):
            weight = math.factorial(size) * math.factorial(3 - size) / math.factorial(4)
            for players in itertools.combinations(others, size):
                total += weight * (worth(point, (*players, player)) - worth(point, players))
        return total

    expected = [[part(point, player) for player in range(4)] for point in points]
    actual = shap_values(model, points, background)
    assert actual == pytest.approx(np.array(expected), abs=1e-6)


def test_parts_sum_to_the_difference_from_the_average(fitted):
    rows, _, model = fitted
    points = np.concatenate([rows, rows])[: 2 * AT_A_TIME + 3]  # over the ends of calls
    background = np.random.default_rng(1).random((30, 4))
    total = shap_values(model, points, background).sum(axis=1)
    expected = model.model.predict(points) - model.model.predict(background).mean()
    assert total == pytest.approx(expected, abs=1e-6)


def test_skill_is_the_variance_explained_of_rows_that_trees_have_not_seen(fitted):
    rows, values, model = fitted
    unseen = [[] for _ in values]
    trees = model.model
    for tree, seen in zip(trees.estimators_, trees.estimators_samples_, strict=True):
        for row in set(range(len(values))) - set(seen):
            unseen[row].append(tree.predict(rows[row : row + 1])[0])
    errors = values - [np.mean(predictions) for predictions in unseen]
    around = values - values.mean()
    assert model.skill == pytest.approx(1 - errors @ errors / (around @ around))


def test_distributions_mean_what_the_space_means():
    def of(**values):
        return make_distribution(Parameter(**values))

    assert of(choices=("a", 2, True)) == CategoricalDistribution(("a", 2, True))
    assert of(low=1, high=5) == IntDistribution(1, 5)
    assert of(low=1, high=64, log=True) == IntDistribution(1, 64, log=True)
    assert of(low=16, high=60, step=16) == IntDistribution(16, 48, step=16)
    assert of(low=1e-4, high=0.1, log=True) == FloatDistribution(1e-4, 0.1, log=True)
    assert of(low=3.5, high=5.0, step=0.5) == FloatDistribution(3.5, 5.0, step=0.5)
    assert of(low=0, high=1, step=0.25) == FloatDistribution(0.0, 1.0, step=0.25)
    assert of(low=0.0, high=1.0, step=0.3) == FloatDistribution(0.0, 0.9, step=0.3)
