"""Which graphs are in which step: a function of seed and epoch, never of anything else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import ModelConfig
from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.config.trial_size import angle_cutoff, forward_flops
from hydragnn_hpo.data.batch_sampler import (
    MOVED,
    BatchSampler,
    balance_load,
    choose_share,
    cut_epoch,
    predict_graph_costs,
    shuffle_rows,
)
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.errors import ConfigError


@pytest.fixture
def graphs(columns: Columns) -> Columns:
    """The 18 structures, all but the last two in train."""
    columns.split[:] = 0
    columns.split[-2:] = 1
    return columns


def order(graphs: Columns, seed: int = 3, **training: object) -> BatchSampler:
    return BatchSampler.of(graphs, TrainConfig.model_validate(training), seed)


def mixed(ratios: list[float | None], sizes: list[int], **training: object) -> BatchSampler:
    """Make an order over sets of given sizes; their graphs are numbered end to end."""
    ends = np.cumsum(sizes)
    every = Everything(int(ends[-1]))
    return BatchSampler.of(every, TrainConfig.model_validate(training), 1, ratios, ends.tolist())


class Everything:
    """As much of a ``GraphSet`` as an order needs: all graphs are in train."""

    windows = None

    def __init__(self, count: int) -> None:
        self.count = count
        self.group = np.arange(count)

    def indices_of(self, split: str) -> np.ndarray:
        assert split == "train"
        return np.arange(self.count)


def test_an_epoch_visits_every_graph_once(graphs: Columns) -> None:
    result = order(graphs, global_batch=5)
    steps = result.steps(2)
    assert [len(step) for step in steps] == [5, 5, 5, 1]
    assert result.steps_per_epoch == 4
    assert sorted(np.concatenate(steps).tolist()) == list(range(16))


def test_steps_depend_on_seed_and_epoch_alone(graphs: Columns) -> None:
    def flat(seed: int, epoch: int, batch: int) -> list[int]:
        return np.concatenate(order(graphs, seed, global_batch=batch).steps(epoch)).tolist()

    assert flat(1, 4, 8) == flat(1, 4, 8)
    assert flat(1, 4, 8) == flat(1, 4, 16)
    assert flat(1, 4, 8) != flat(1, 5, 8)
    assert flat(1, 4, 8) != flat(2, 4, 8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 99), count=st.integers(1, 300), buffer=st.integers(1, 80))
def test_large_sets_are_shuffled_window_by_window(seed: int, count: int, buffer: int) -> None:
    rows = np.flatnonzero(np.random.default_rng(seed).random(count) < 0.7)
    windows = np.array([*range(0, count, 16), count])
    results = shuffle_rows(rows, (seed, 1), windows=windows, buffer=buffer)
    assert sorted(results.tolist()) == rows.tolist()
    if len(rows) <= buffer:
        assert results.tolist() == np.random.default_rng([seed, 1]).permutation(rows).tolist()
        return
    # A buffer of rows lies in no more windows than fit into it, and one that is cut at each end.
    held = np.bincount(rows // 16, minlength=len(windows) - 1)
    least = max(int(np.sort(held[held > 0])[: buffer + 1].min()), 1)
    for first in range(0, len(results), buffer):
        touched = set((results[first : first + buffer] // 16).tolist())
        assert len(touched) <= buffer // least + 2


def test_windows_and_rows_are_in_another_order_each_epoch() -> None:
    rows = np.arange(256)
    windows = np.arange(0, 257, 16)
    one = shuffle_rows(rows, (1, 0), windows=windows, buffer=32)
    two = shuffle_rows(rows, (1, 1), windows=windows, buffer=32)
    assert (one[::32] // 16).tolist() != (two[::32] // 16).tolist()
    assert one[:32].tolist() != sorted(one[:32].tolist())


@pytest.mark.parametrize("key", ["batch_atoms", "batch_edges"])
def test_no_step_passes_its_budget(graphs: Columns, key: str) -> None:
    sizes = graphs.num_nodes() if key == "batch_atoms" else graphs.num_edges()
    largest = int(sizes[:16].max())
    result = order(graphs, **{key: 2 * largest})
    for epoch in range(20):
        steps = result.steps(epoch)
        assert len(steps) == result.steps_per_epoch
        assert sorted(np.concatenate(steps).tolist()) == list(range(16))
        loads = [int(sizes[step].sum()) for step in steps]
        assert min(map(len, steps)) > 0
        assert max(loads) <= 2 * largest
    with pytest.raises(ConfigError, match=f"training.{key} is"):
        order(graphs, **{key: 2 * largest - 1})


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    spare=st.integers(0, 200),
    seed=st.integers(0, 99),
)
def test_budgets_leave_no_step_empty(sizes: list[int], spare: int, seed: int) -> None:
    table = np.array(sizes)
    largest = max(1, int(table.max()))
    budget = 2 * largest + spare
    steps = max(1, -(-int(table.sum()) // (budget - largest)))
    steps_of_epoch = BatchSampler(
        (np.arange(len(table)),), None, seed, steps, None, sizes=table
    ).steps(0)
    assert len(steps_of_epoch) == steps
    assert all(len(step) and table[step].sum() <= budget for step in steps_of_epoch)
    assert sorted(np.concatenate(steps_of_epoch).tolist()) == list(range(len(table)))


def test_a_large_graph_may_reach_over_a_whole_step() -> None:
    # 11 atoms in steps of 5.5: the third graph begins at 2, so nothing begins in the second step.
    assert cut_epoch(np.array([1, 1, 9]), 2).tolist() == [2]
    # 21 in steps of 7: graphs begin at 0, 1 and 20; the second step takes what began in the first.
    assert cut_epoch(np.array([1, 19, 1]), 3).tolist() == [1, 2]
    # 10 in steps of 3 1/3: those that begin at 4 and at 7 are the first of theirs.
    assert cut_epoch(np.ones(10, dtype=np.int64), 3).tolist() == [4, 7]


def test_without_ratios_several_sets_are_one() -> None:
    steps = mixed([None, None], [30, 10], global_batch=8).steps(5)
    plain = np.random.default_rng([1, 5]).permutation(40)
    for number, step in enumerate(steps):
        wanted = plain[8 * number : 8 * number + 8].tolist()
        assert step.tolist() == [*(g for g in wanted if g < 30), *(g for g in wanted if g >= 30)]


def test_the_largest_set_is_seen_once_and_ratios_hold_in_every_step() -> None:
    result = mixed([3.0, 1.0], [60, 500], global_batch=40)
    # 500 of the second are a quarter, so 1,500 of the first are drawn: 25 passes.
    assert result.draws == (1500, 500)
    assert result.steps_per_epoch == 50
    steps = result.steps(0)
    every = np.concatenate(steps)
    assert sorted(every[every >= 60].tolist()) == list(range(60, 560))
    assert np.bincount(every[every < 60]).tolist() == [25] * 60
    for step in steps:
        assert abs(int((step < 60).sum()) - 30) <= 1


def drawn_of(sampler: BatchSampler, epochs: int) -> list[np.ndarray]:
    """Give what is drawn from the first four graphs, in the order of the draws."""
    every = [np.concatenate(sampler.steps(epoch)) for epoch in range(epochs)]
    return [rows[rows < 4] for rows in every]


def test_passes_go_on_from_epoch_to_epoch() -> None:
    # 10 draws an epoch from 4 graphs: after 2 epochs each was drawn 5 times.
    result = mixed([1.0, 1.0], [4, 10], global_batch=5)
    drawn = np.concatenate([np.concatenate(result.steps(epoch)) for epoch in (0, 1)])
    assert np.bincount(drawn[drawn < 4]).tolist() == [5, 5, 5, 5]
    passes = np.split(np.concatenate(drawn_of(result, 20))[:40], 10)
    assert len({tuple(one.tolist()) for one in passes}) > 1, "each pass is shuffled anew"
    assert all(sorted(one.tolist()) == [0, 1, 2, 3] for one in passes)
    # What epoch 1 draws does not depend on whether epoch 0 was computed before.
    again = mixed([1.0, 1.0], [4, 10], global_batch=5).steps(1)
    assert [step.tolist() for step in again] == [step.tolist() for step in result.steps(1)]


@pytest.mark.parametrize(
    ("ratios", "draws"), [([None, None], (27, 13)), ([1.0, 1.0], (20, 20)), ([2.0, 1.0], (27, 13))]
)
def test_an_epoch_may_be_a_number_of_steps(ratios: list[float | None], draws: tuple[int]) -> None:
    result = mixed(ratios, [20, 10], global_batch=8, steps_per_epoch=5)
    assert result.draws == draws
    assert [len(step) for step in result.steps(3)] == [8] * 5


def test_one_set_may_have_short_epochs(graphs: Columns) -> None:
    result = order(graphs, global_batch=4, steps_per_epoch=2)
    drawn = np.concatenate([np.concatenate(result.steps(epoch)) for epoch in range(4)])
    assert np.bincount(drawn).tolist() == [2] * 16
    assert replace(result, seed=4).steps(0)[0].tolist() != result.steps(0)[0].tolist()


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(st.integers(1, 1000), max_size=40), world=st.integers(1, 9))
def test_shares_are_a_partition_and_balanced(costs: list[int], world: int) -> None:
    results = balance_load(costs, world)
    assert len(results) == world
    assert sorted(np.concatenate(results).tolist()) == list(range(len(costs)))
    if costs:
        loads = [sum(costs[position] for position in share) for share in results]
        # Graham (1966): when the largest load grew last, its rank had the least of all.
        assert max(loads) <= sum(costs) / world + (1 - 1 / world) * max(costs) + 1e-9


@pytest.mark.parametrize("conv", CONV_SPECS)
def test_a_graph_costs_what_its_conv_does_with_it(columns: Columns, conv: str) -> None:
    model = ModelConfig(conv=conv, features=24, layers=2)
    costs = predict_graph_costs(columns, model)
    moved = MOVED * model.layers * model.features
    for row in (0, 2, 4):
        nodes = int(columns.num_nodes()[row])
        edges = int(columns.num_edges()[row])
        once = forward_flops(model, 0, 0)
        wanted = forward_flops(model, nodes, edges) - once + moved * (nodes + edges)
        if (angle := angle_cutoff(model)) is not None:
            degree = edges / nodes * min(angle / columns.stats.get("cutoff", angle), 1.0) ** 3
            triplets = nodes * degree * max(degree - 1, 0)
            wanted += forward_flops(model, 0, 0, triplets) - once + moved * triplets
        assert costs[row] == pytest.approx(wanted, rel=1e-12)


def test_edges_are_even_where_sizes_are_skewed() -> None:
    # The issue's own bound: 8 ranks, global batch 128, 2 to 200 atoms; random shares reach 1.2.
    random = np.random.default_rng(0)
    ours = []
    for _ in range(50):
        nodes = random.integers(2, 201, size=128)
        edges = (nodes * random.normal(42, 6, 128).clip(12, 80)).astype(int)
        loads = [edges[share].sum() for share in balance_load(nodes + edges, 8)]
        ours.append(max(loads) / np.mean(loads))
    assert np.mean(ours) <= 1.03


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    shares=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    seed=st.integers(0, 99),
)
def test_shares_of_one_seed_are_nested_and_of_whole_groups(
    sizes: list[int], shares: tuple[float, float], seed: int
) -> None:
    group = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = 10 + np.arange(len(group))
    small, large = (choose_share(rows, group, share, seed) for share in sorted(shares))
    assert set(small.tolist()) <= set(large.tolist())
    for share, chosen in zip(sorted(shares), (small, large), strict=True):
        inside = np.isin(rows, chosen)
        assert set(group[inside]).isdisjoint(group[~inside])
        assert share * len(rows) <= len(chosen) + 1e-9
        assert len(chosen) < share * len(rows) + max(sizes)
        assert chosen.tolist() == sorted(chosen.tolist())


@pytest.mark.parametrize("batch", [{"global_batch": 5}, {"batch_atoms": 60}])
def test_a_share_of_the_graphs_takes_as_many_steps(graphs: Columns, batch: dict[str, int]) -> None:
    graphs.group[:] = np.arange(18)
    whole = order(graphs, **batch)
    half = order(graphs, train_share=0.5, share_seed=4, **batch)
    assert half.steps_per_epoch == whole.steps_per_epoch
    assert half.graphs_per_step == whole.graphs_per_step
    for epoch in range(3):
        steps = half.steps(epoch)
        assert np.unique(np.concatenate(steps), return_counts=True)[1].tolist() == [2] * 8
    other = order(graphs, seed=77, train_share=0.5, share_seed=4, **batch)
    assert other.sets[0].tolist() == half.sets[0].tolist(), "the seed of the share decides"
    assert order(graphs, seed=4, train_share=0.5, **batch).sets[0].tolist() == half.sets[0].tolist()


def test_every_data_set_gives_its_share() -> None:
    ends = np.cumsum([30, 10])
    every = Everything(40)
    training = TrainConfig(global_batch=8, train_share=0.5)
    result = BatchSampler.of(every, training, 1, [None, None], ends.tolist())
    assert [len(rows) for rows in result.sets] == [15, 5]
    assert result.draws == (30, 10)
    drawn = np.concatenate(result.steps(0))
    assert len(drawn) == 40
    assert set(drawn.tolist()) == set(np.concatenate(result.sets).tolist())
