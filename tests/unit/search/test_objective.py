"""Goals read from results, Pareto fronts, and one number of several."""

import math
import random
import tomllib

import pytest

from hydragnn_hpo.campaign.outcome import RESERVED_KEYS
from hydragnn_hpo.config.model_config import HeadConfig
from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.config.search_config import SearchConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import FinishedResult
from hydragnn_hpo.search.objective import (
    TRAINED_NUMBERS,
    check_objective,
    finite_or_none,
    goal_label,
    goals,
    lacks_number,
    pareto_front,
    pareto_layers,
    rank_points,
    read_epoch_objective,
    read_objective,
)
from hydragnn_hpo.training.epoch import compute_objective as trained

RESULT = {
    "objective": 0.4,
    "val_mae": {"gap": 0.3, "energy": 2.0},
    "parameters": 12000,
    "train_seconds": 34.5,
    "reason": None,
    "nested": {"deeper": {"still": 7}},
    "done": True,
    "lost": math.nan,
}
SPREADS = {"gap": 1.5, "energy": 4.0}


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("weighted", 0.4),
        ("val_mae.gap", 0.3),
        ("parameters", 12000.0),
        ("nested.deeper.still", 7.0),
        # (1 * 0.3 / 1.5 + 3 * 2.0 / 4.0) / (1 + 3) by hand
        ({"gap": 1.0, "energy": 3.0}, 0.425),
        (("val_mae.energy", "train_seconds"), (2.0, 34.5)),
        ("val_mae.charge", None),
        ("reason", None),
        ("done", None),
        ("lost", None),
        ("val_mae", None),
        ({"gap": 1.0, "charge": 1.0}, None),
        (("weighted", "peak_bytes"), None),
    ],
)
def test_goals_are_read_from_a_result(objective, expected):
    actual = read_objective(objective, RESULT, SPREADS)
    assert actual == (pytest.approx(expected) if expected is not None else None)
    assert isinstance(actual, tuple) == isinstance(expected, tuple)


def test_a_table_over_all_heads_is_the_trainers_own_objective():
    weights = {"gap": 0.1, "energy": 2.0}
    heads = {name: HeadConfig(weight=weight) for name, weight in weights.items()}
    expected = trained(RESULT["val_mae"], SPREADS, heads)
    assert read_objective(weights, RESULT, SPREADS) == pytest.approx(expected, rel=1e-14)


def test_stopping_rules_watch_the_first_goal():
    record = {"objective": 0.7, "val_mae": {"gap": 0.5}}
    assert read_epoch_objective(("val_mae.gap", "parameters"), record) == 0.5
    assert read_epoch_objective("weighted", record) == 0.7
    assert read_epoch_objective("parameters", record) is None


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        ("val_mae.gab", "Did you mean 'gap'"),
        ({"enrgy": 1.0}, "Did you mean 'energy'"),
        (("weighted", "weighted"), "'weighted' is named twice"),
        ("wieghted", "Did you mean 'weighted'"),
        ("parameter", "Did you mean 'parameters'"),
        ("gap", "unknown number of a training's result 'gap'"),
        ("__class__", "unknown number of a training's result '__class__'"),
        ("epochs", "unknown number of a training's result 'epochs'"),
    ],
)
def test_goals_about_unknown_heads_are_refused(objective, sentence):
    check_objective(("val_mae.gap", "joules", {"energy": 1.0}), ["gap", "energy"])
    with pytest.raises(ConfigError, match=sentence):
        check_objective(objective, ["gap", "energy"])


def test_a_command_may_write_any_number_but_knows_no_spreads_of_heads():
    check_objective(("tokens_per_second", "val_mae.x"), None)
    with pytest.raises(ConfigError, match="weights of heads are for trainings"):
        check_objective({"x": 1.0}, None)


def test_every_number_that_may_be_minimized_reaches_the_journal():
    """A goal whose name the journal uses itself would leave all trials without a score."""
    written = set(FinishedResult.__annotations__) | {"weighted", "joules"}
    assert set(TRAINED_NUMBERS) <= written - set(RESERVED_KEYS)


@pytest.mark.parametrize(
    ("objective", "result", "lacking"),
    [
        ("weighted", {"objective": 0.1}, False),
        ("weighted", {"objective": math.nan}, False),
        ("weighted", {"speed": 0.1}, True),
        ("val_mae.gap", {"val_mae": {"gap": 0.1}}, False),
        ("val_mae.gap", {"val_mae": {}}, True),
        (("objective", "speed"), {"objective": 0.1}, True),
        ("speed", {"speed": "fast"}, True),
    ],
)
def test_a_number_that_is_not_finite_is_not_lacking(objective, result, lacking):
    assert lacks_number(objective, result) is lacking


def test_a_goal_is_called_by_its_name_or_its_weights():
    labels = [goal_label(goal) for goal in goals(("weighted", {"gap": 1.0, "energy": 0.5}))]
    assert labels == ["weighted", "1 gap + 0.5 energy"]


@pytest.mark.parametrize(
    "objective",
    ["weighted", {"gap": 1.0}, ["weighted", "parameters"], ["parameters", {"gap": 2.0}]],
)
def test_objectives_survive_a_file(objective):
    made = parse_config(
        {"trials": 9, "rungs": [3], "objective": objective}, SearchConfig, where="test"
    )
    again = parse_config(tomllib.loads(dump_config(made)), SearchConfig, where="file")
    assert again.objective == made.objective


def points_of(count, seed, coarse):
    generator = random.Random(seed)
    draw = (lambda: float(generator.randrange(5))) if coarse else generator.random
    return [(draw(), draw(), draw()) for _ in range(count)]


def dominates(one, other):
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_layers_are_peeled_one_by_one_and_the_first_is_the_front(coarse, seed):
    points = points_of(60, seed, coarse)
    left = set(range(60))
    expected = {}
    layer = 0
    while left:
        front = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        expected |= dict.fromkeys(front, layer)
        left, layer = left - front, layer + 1
    assert pareto_layers(points) == [expected[i] for i in range(60)]
    assert pareto_front(points) == [i for i in range(60) if expected[i] == 0]


def test_one_goal_is_ranked_by_value_and_then_by_age():
    assert rank_points([0.3, 0.1, 0.3, 0.2]) == [1, 3, 0, 2]
    assert rank_points([(0.3,), (0.1,)]) == [1, 0]
    assert rank_points([(1.0, 1.0)] * 4) == [0, 1, 2, 3]
    assert pareto_front([]) == rank_points([]) == []


def test_several_goals_are_ranked_by_front_and_then_by_loneliness():
    # One front: its ends (0, 10) and (10, 0) first; then by gaps of the neighbours over 10 + 10:
    # (1, 8): 4 + 6 = 1.0 of (0,10)..(4,4); (4, 4): 4 + 5 from (1,8) to (5,3) = 0.9;
    # (5, 3): 6 + 4 = 1.0 from (4,4) to (10,0). The sixth lies behind (4, 4).
    points = [(4.0, 4.0), (5.0, 3.0), (1.0, 8.0), (0.0, 10.0), (10.0, 0.0), (4.0, 5.0)]
    assert rank_points(points) == [3, 4, 1, 2, 0, 5]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (0.5, 0.5),
        ((0.5, 2.0), (0.5, 2.0)),
        (None, None),
        (math.nan, None),
        ((0.5, math.inf), None),
    ],
)
def test_what_is_not_finite_is_a_failure(point, expected):
    assert finite_or_none(point) == expected
