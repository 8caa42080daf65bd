"""The forest's Shapley values and its skill against slow, obvious computations."""

import itertools
import math

import numpy as np
import pytest

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.config.search_config import ParameterConfig as Parameter
from hydragnn_hpo.report.surrogate import (
    AT_A_TIME,
    draw_uniform,
    encode,
    encode_active,
    fit_forest,
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


def campaign(space, *constraints):
    plain = {name: one.model_dump(exclude_unset=True) for name, one in space.items()}
    search = {"trials": 10, "rungs": [1], "finalists": 1, "constraints": list(constraints)}
    named = {"name": "drawn", "command": {"argv": ["true"]}, "space": plain, "search": search}
    return parse_config(named, CampaignConfig, "campaign")


def test_a_row_by_hand():
    on = {"conv": "gat", "heads": 2, "rate": 1e-3, "width": 32, "norm": False, "fixed": "one"}
    off = {"conv": "pna", "rate": 1e-2, "width": 64, "norm": True, "fixed": "one"}
    assert encode(SPACE, [on, off]) == pytest.approx(
        np.array(
            [[1 / 2, 3 / 4, 1 / 2, 3 / 8, 3 / 4, 1 / 2], [5 / 6, 1 / 4, 1, 7 / 8, 1 / 4, 1 / 2]]
        )
    )
    assert encode(SPACE, [off | {"width": 640}])[0, 3] == 1.0


def test_true_is_not_one():
    space = {"a": Parameter(choices=(1, True, "1"))}
    assert encode(space, [{"a": True}]).tolist() == [[0.5]]


def test_positions_of_what_is_off_are_unknown():
    values = {"conv": "pna", "rate": 1e-3, "width": 16, "norm": True, "fixed": "one"}
    (row,) = encode_active(SPACE, [values])
    assert row[0] == pytest.approx(5 / 6)
    assert math.isnan(row[1])
    assert row[2] == pytest.approx(0.5)
    assert row[3] == pytest.approx(1 / 8)


def test_draws_are_even_over_the_space_and_heed_constraints():
    config = campaign(SPACE, "width > 16 or conv == 'gin'")
    drawn = draw_uniform(config, 3000, seed=1)
    assert drawn == draw_uniform(config, 3000, seed=1)
    assert len(drawn) == 3000
    assert all(v["width"] > 16 or v["conv"] == "gin" for v in drawn)
    assert all(v.keys() == SPACE.keys() for v in drawn)
    # of 12 pairs of conv and width, 10 are left, 4 of them with gin
    assert sum(v["conv"] == "gin" for v in drawn) / 3000 == pytest.approx(0.4, abs=0.03)
    assert sum(v["rate"] < 1e-3 for v in drawn) / 3000 == pytest.approx(0.5, abs=0.03)


def test_a_space_that_constraints_empty_gives_no_draws():
    config = campaign({"a": Parameter(low=0.0, high=1.0)}, "a > 2")
    assert draw_uniform(config, 4, seed=0) == []


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
        return model.predict(mixed).mean()

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
    expected = model.predict(points) - model.predict(background).mean()
    assert total == pytest.approx(expected, abs=1e-6)


def test_skill_is_the_variance_explained_of_rows_that_trees_have_not_seen(fitted):
    rows, values, model = fitted
    unseen = [[] for _ in values]
    trees = model
    for tree, seen in zip(trees.estimators_, trees.estimators_samples_, strict=True):
        for row in set(range(len(values))) - set(seen):
            unseen[row].append(tree.predict(rows[row : row + 1])[0])
    errors = values - [np.mean(predictions) for predictions in unseen]
    around = values - values.mean()
    assert model.oob_score_ == pytest.approx(1 - errors @ errors / (around @ around))
