"""How large an epoch is: by hand, and as the order of graphs has it."""

import tomllib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.config.trial_size import compute_epoch_size, count_draws
from hydragnn_hpo.errors import ConfigError, DataError

STATS = {
    "splits": {"train": 90},
    "train_nodes": 1000,
    "train_edges": 9000,
    "nodes": {"max": 40},
    "edges": {"max": 500},
}


def training(**values):
    return TrainConfig.model_validate(values)


@given(
    counts=st.lists(st.integers(1, 100_000), min_size=2, max_size=4),
    ratios=st.lists(st.floats(0.01, 100.0), min_size=4, max_size=4),
)
def test_the_largest_set_is_drawn_once(counts, ratios):
    ratios = ratios[: len(counts)]
    results = count_draws(counts, ratios, training())
    largest = counts.index(max(counts))
    assert results[largest] == counts[largest]
    for count, ratio in zip(results, ratios, strict=True):
        exact = counts[largest] * ratio / ratios[largest]
        assert abs(count - exact) <= 0.5 + 1e-6 * exact or count == 1


@given(
    counts=st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    steps=st.integers(1, 50),
    batch=st.integers(1, 50),
)
def test_steps_of_an_epoch_are_full(counts, steps, batch):
    config = training(steps_per_epoch=steps, global_batch=batch)
    assume(min(counts) * steps * batch >= sum(counts))
    results = count_draws(counts, [None] * len(counts), config)
    assert sum(results) == steps * batch
    for count, drawn in zip(counts, results, strict=True):
        assert abs(drawn - steps * batch * count / sum(counts)) < 1


def test_a_set_of_which_an_epoch_has_no_graph_is_named():
    assert count_draws([5, 3], [None, None], training()) is None, "every graph once"
    with pytest.raises(DataError, match="data set 2 has no structure in its training split"):
        count_draws([5, 0], [None, None], training())
    with pytest.raises(ConfigError, match="steps_per_epoch is 1: data set 2 would have no graph"):
        count_draws([1000, 1], [None, None], training(steps_per_epoch=1, global_batch=5))


@pytest.mark.parametrize(
    ("values", "graphs", "nodes", "steps", "per_step"),
    [
        ({}, 90, 1000, 3, 30),
        ({"global_batch": 100}, 90, 1000, 1, 90),
        # 1000 atoms in steps that hold 140 - 40 of them whatever comes next.
        ({"batch_atoms": 140}, 90, 1000, 10, 9),
        ({"batch_atoms": 141}, 90, 1000, 10, 9),
        ({"batch_edges": 1000}, 90, 1000, 18, 5),
        # 8 full steps of 45 graphs are four passes.
        ({"global_batch": 45, "steps_per_epoch": 8}, 360, 4000, 8, 45),
    ],
)
def test_an_epoch_by_hand(values, graphs, nodes, steps, per_step):
    result = compute_epoch_size(STATS, training(**values), [None])
    assert (result.graphs, result.nodes, result.steps) == (graphs, pytest.approx(nodes), steps)
    assert result.graphs_per_step == per_step


def test_a_fit_on_folds_goes_through_all_but_one_of_them():
    """90 + 60 graphs outside test in 3 folds: 100 of them in a training, 10 / 9 of train."""
    splits = {"train": 90, "val": 20, "sel": 20, "cal": 20, "test": 50}
    result = compute_epoch_size({**STATS, "splits": splits}, training(fold=1, folds=3), [None])
    assert (result.graphs, result.steps) == (100, 4)
    assert result.nodes == pytest.approx(1000 * 10 / 9)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"fold": 5}, "fold is 5 of 5 folds, which count from 0"),
        ({"fold": 1, "train_share": 0.5}, "fold and train_share exclude each other"),
        ({"fold": 1, "schedule": "plateau"}, "no validation split for schedule = 'plateau'"),
    ],
)
def test_a_fold_is_one_of_the_folds_and_leaves_no_validation(values, says):
    with pytest.raises(ConfigError, match=says):
        parse_config(values, TrainConfig, "made")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"batch_atoms": 79}, "training.batch_atoms is 79, the largest graph has 40 atoms: .* 80"),
        ({"batch_edges": 999}, "training.batch_edges is 999, .* 500 edges: set at least 1000"),
    ],
)
def test_a_budget_holds_the_largest_graph_twice(values, says):
    with pytest.raises(ConfigError, match=says):
        compute_epoch_size(STATS, training(**values), [None])


@pytest.mark.parametrize("values", [{}, {"batch_atoms": 100}, {"batch_edges": 100}])
def test_a_resolved_training_is_read_back(values):
    config = training(**values)
    assert parse_config(tomllib.loads(dump_config(config)), TrainConfig, "x") == config


def test_there_is_one_way_to_say_how_large_a_step_is():
    assert training().global_batch == 32
    assert training(batch_atoms=100).global_batch is None
    for values in ({"global_batch": 8, "batch_atoms": 100}, {"batch_edges": 9, "batch_atoms": 9}):
        first, second = sorted(values, key=list(TrainConfig.model_fields).index)
        with pytest.raises(ConfigError, match=f"{first} and {second} exclude each other"):
            parse_config(values, TrainConfig, "x")
    with pytest.raises(ConfigError, match="steps_per_epoch goes with global_batch"):
        parse_config({"batch_atoms": 9, "steps_per_epoch": 2}, TrainConfig, "x")
