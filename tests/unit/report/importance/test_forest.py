"""The forest's Shapley values and its skill against slow, obvious computations."""

import itertools
import math

import numpy as np
import pytest

from hydragnn_hpo.report.importance import forest


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    rows = rng.random((150, 4))
    values = 2 * rows[:, 0] + rows[:, 1] * (rows[:, 2] > 0.5) + 0.05 * rng.normal(size=150)
    return rows, values, forest.fit(rows, values, seed=5)


def test_shapley_values_are_those_of_their_definition(fitted):
    rows, _, model = fitted
    points, background = rows[:45:15], np.random.default_rng(9).random((20, 4))

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
    found = forest.shap_values(model, points, background)
    assert found == pytest.approx(np.array(expected), abs=1e-6)


def test_parts_sum_to_the_difference_from_the_average(fitted):
    rows, _, model = fitted
    points = np.concatenate([rows, rows])[: 2 * forest.AT_A_TIME + 3]  # over the ends of calls
    background = np.random.default_rng(1).random((30, 4))
    total = forest.shap_values(model, points, background).sum(axis=1)
    expected = model.model.predict(points) - model.model.predict(background).mean()
    assert total == pytest.approx(expected, abs=1e-6)


def test_skill_is_the_out_of_bag_r2_of_scikit_learn(fitted):
    from sklearn.ensemble import ExtraTreesRegressor

    rows, values, model = fitted
    known = ExtraTreesRegressor(
        forest.TREES,
        max_depth=forest.DEPTH,
        min_samples_leaf=forest.LEAF,
        bootstrap=True,
        oob_score=True,
        random_state=5,
    ).fit(rows, values)
    assert model.skill == pytest.approx(known.oob_score_, abs=1e-6)


def test_of_noise_there_is_no_skill():
    rng = np.random.default_rng(0)
    skills = [forest.fit(rng.random((60, 5)), rng.normal(size=60), seed=s).skill for s in range(5)]
    assert max(skills) < 0.3
