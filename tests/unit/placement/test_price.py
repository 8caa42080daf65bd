"""The price before anything ran, by hand; and a trial's own time."""

import itertools
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from hydragnn_hpo.config.model_config import count_parameters
from hydragnn_hpo.config.trial_config import TrialDataConfig
from hydragnn_hpo.config.trial_size import forward_flops, kept_bytes, pass_bytes
from hydragnn_hpo.data.batch_sampler import balance_load
from hydragnn_hpo.data.graph_sizes import histogram
from hydragnn_hpo.placement.cost_model import CostModel
from hydragnn_hpo.placement.price import (
    BACKWARD,
    DERIVATIVES,
    EXPOSED,
    EXPOSED_SHARDED,
    RECOMPUTED,
    TOUCHED,
    RankLayout,
    all_reduce_seconds,
    count_held_bytes,
    epoch_workload,
    estimate_bytes,
    estimate_seconds,
    exposed_communication_seconds,
    graph_cost_spread,
    imbalance,
    mean_neighbors,
    mean_triplets,
    tensor_parallel_share,
)


def test_seconds_by_hand(machine, stats, make_trial):
    work = epoch_workload(make_trial(), stats)
    computed = work.flops / 1e9 + work.moved / 1e8
    started = 3 * (0.01 + 2 * 0.001)
    assert estimate_seconds(work, machine, 1) == pytest.approx(computed + started)
    # 30 graphs alike on 2 ranks: 15 each.
    sent = 3 * exposed_communication_seconds(work, machine, RankLayout.of(work, machine, 2))
    assert estimate_seconds(work, machine, 2) == pytest.approx(computed / 2 + started + sent)
    # On 4 ranks, two have 8 of them, two 7.
    sent = 3 * exposed_communication_seconds(work, machine, RankLayout.of(work, machine, 4))
    assert estimate_seconds(work, machine, 4) == pytest.approx(computed * 8 / 30 + started + sent)


def test_memory_by_hand(machine, stats, make_trial):
    """Weight, gradient, two moments, average and best; the pass of 30 graphs of 10 nodes."""
    trial = make_trial(ema=0.9)
    work = epoch_workload(trial, stats)
    node, edge, *_ = pass_bytes(trial, stats["targets"])
    graph = (node * 1000 + edge * 10_000) / 90
    state = 4 * work.parameters * 6
    assert estimate_bytes(work, machine, 1) == pytest.approx(state + 30 * graph)
    assert estimate_bytes(work, machine, 2) == pytest.approx(state + 15 * graph)
    in_pieces = epoch_workload(make_trial(ema=0.9, micro_batches=5), stats)
    assert estimate_bytes(in_pieces, machine, 1) == pytest.approx(state + 6 * graph)
    # On a CPU: the process, what is written down (all but the gradient), freed blocks.
    cpu = machine.model_copy(update={"device": "cpu", "process_gb": 0.3})
    expected = 0.3e9 + 4 * work.parameters * 11 + 1.6 * 30 * graph
    assert estimate_bytes(work, cpu, 1) == pytest.approx(expected)


def test_sharding_takes_less_memory(machine, stats, make_trial):
    def state(width, **parallel):
        work = epoch_workload(make_trial(parallel=parallel, micro_batches=64), stats)
        return (estimate_bytes(work, machine, width) - work.graph_bytes) / (4 * work.parameters)

    assert state(8) == pytest.approx(5.0)
    assert state(8, shard="gradients") == pytest.approx(5 / 8 + 1), "weights are whole in a step"
    assert state(8, shard="full") == pytest.approx(5 / 8 + 1 / 2), "one round of two is whole"
    assert state(8, shard="hybrid") == pytest.approx(5 / 2 + 1 / 2), "shards within a host of 2"
    assert state(2, tensor=2) == pytest.approx((5 + 1) / 2)


def test_steps_are_cut_until_they_fit(machine, stats, make_trial):
    """As ``training.memory`` does; only a single graph that is too large is told."""
    trial = make_trial(features=64, layers=4)
    work = epoch_workload(trial, stats)
    state = 4 * work.parameters * 5
    room = machine.model_copy(update={"memory_gb": (state + 10 * work.graph_bytes) / 0.8e9})
    assert estimate_bytes(work, room, 1) == pytest.approx(state + 10 * work.graph_bytes)
    tiny = machine.model_copy(update={"memory_gb": 1e-6})
    assert estimate_bytes(work, tiny, 1) == pytest.approx(state + work.graph_bytes)


@pytest.mark.parametrize(
    ("training", "most", "expected"),
    [
        ({}, 64, (1, 2, 4, 8)),  # 32 graphs, 4 on each
        ({"min_graphs_per_rank": 16}, 64, (1, 2)),
        ({"min_graphs_per_rank": 11}, 64, (1, 2)),
        ({"min_graphs_per_rank": 64}, 64, (1,)),
        ({}, 3, (1, 2)),
        ({}, 1, (1,)),
        # Two ranks that share maps see the same graphs.
        ({"parallel": {"tensor": 2}}, 64, (1, 2, 4, 8, 16)),
    ],
)
def test_widths_are_powers_of_two_with_enough_graphs(
    machine, training, most, expected, stats, make_trial
):
    costs = CostModel(stats, machine, max_width=most)
    assert costs.price(make_trial(**training)).widths == expected


def test_too_little_memory_leaves_the_wider_ones(machine, stats, make_trial):
    trial = make_trial(parallel={"shard": "full"}, features=256, layers=8, micro_batches=64)
    work = epoch_workload(trial, stats)
    between = (estimate_bytes(work, machine, 1) + estimate_bytes(work, machine, 2)) / 2
    little = machine.model_copy(update={"memory_gb": between / 1e9})
    price = CostModel(stats, little).price(trial)
    assert price.widths == (2, 4, 8)
    assert 0.0 < price.fails < 1.0
    none = CostModel(stats, machine.model_copy(update={"memory_gb": 1e-6})).price(trial)
    assert none.widths == (8,)
    assert none.fails > 0.9


def test_tasks_have_the_seconds_of_some_epochs(machine, stats, make_trial):
    price = CostModel(stats, machine).price(make_trial())
    assert price.tasks_seconds(10) == tuple(10 * price.epoch_seconds(w) for w in price.widths)


def test_a_trial_that_ran_is_priced_by_its_own_time(machine, stats, make_trial):
    costs = CostModel(stats, machine)
    trial = make_trial()
    other = make_trial(features=24)
    before = costs.price(trial)
    costs.observe(trial, 2, 7.0)
    after = costs.price(trial)
    assert (before.measured, after.measured, costs.price(other).measured) == (False, True, False)
    assert after.epoch_seconds(2) == pytest.approx(7.0)
    assert after.sigma < before.sigma
    ratio = after.epoch_seconds(4) / after.epoch_seconds(2)
    assert ratio == pytest.approx(before.epoch_seconds(4) / before.epoch_seconds(2), rel=0.1)
    for seconds in (7.0, 7.0, 7.0, 100.0):  # one epoch that was disturbed
        costs.observe(trial, 2, seconds)
    assert costs.price(trial).epoch_seconds(2) == pytest.approx(7.0)
    costs.observe(trial, 8, 3.0)
    assert costs.price(trial).epoch_seconds(8) == pytest.approx(3.0)
    assert costs.price(trial).epoch_seconds(2) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("cutoff", "expected"),
    [
        (3.0, 4.0),
        (4.0, 10.0),
        ((0.5 * (27 + 64)) ** (1 / 3), 7.0),  # half way by volume
        (1.5, 4.0 / 8.0),
        (12.0, 10.0),
    ],
)
def test_neighbors_grow_with_the_volume(stats, cutoff, expected):
    assert mean_neighbors(stats, cutoff) == pytest.approx(expected)


def test_an_epoch_by_hand(stats, make_trial):
    trial = make_trial()
    work = epoch_workload(trial, stats)
    assert (work.sizes.nodes, work.sizes.edges, work.sizes.steps) == (1000, 10_000, 3)
    assert work.flops == pytest.approx(3.0 * forward_flops(trial.model, 1000, 10_000))
    assert work.moved == pytest.approx(8.0 * kept_bytes(trial.model, 1000, 10_000))
    assert (BACKWARD, TOUCHED) == (3.0, 8.0)
    assert work.steps == 3
    assert work.graphs_per_step == 30
    assert work.parameters == count_parameters(trial.model, trial.heads, stats["targets"]) > 0
    assert (work.spread, work.largest) == (0.0, 1.0)


def test_what_multiplies_an_epoch(stats, make_trial):
    plain = epoch_workload(make_trial(), stats)
    again = epoch_workload(make_trial(parallel={"recompute": True}), stats)
    assert again.flops / plain.flops == pytest.approx(RECOMPUTED)
    pieces = epoch_workload(make_trial(micro_batches=4), stats)
    assert (pieces.steps, pieces.flops) == (4 * plain.steps, plain.flops)
    half = epoch_workload(make_trial(precision="bf16"), stats)
    assert half.flops / plain.flops == pytest.approx(0.5)
    assert half.moved / plain.moved == pytest.approx(0.7)
    # Half as many graphs to validate as to train on: a third of half of a training pass.
    validated = epoch_workload(make_trial(), {**stats, "splits": {"train": 90, "val": 45}})
    assert validated.flops / plain.flops == pytest.approx(1 + 0.5 / 3)
    derived = {"e": {"level": "node", "shape": "vector", "derived_from": "x"}}
    forces = epoch_workload(make_trial(), {**stats, "targets": derived})
    assert forces.flops / plain.flops == pytest.approx(DERIVATIVES)
    assert forces.steps / plain.steps == pytest.approx(DERIVATIVES)


def test_a_cap_on_neighbours_leaves_fewer_edges(stats, make_trial):
    trial = make_trial()
    capped = trial.model_copy(update={"model": trial.model.model_copy(update={"max_neighbors": 6})})
    assert epoch_workload(capped, stats).sizes.edges == 6000


def test_several_data_sets_cost_what_is_drawn_of_them(stats, make_trial):
    """90 graphs of 1000 nodes once, and 30 draws, three passes, of 10 graphs of 50 nodes."""
    sets = [{"train": 90, "train_nodes": 1000}, {"train": 10, "train_nodes": 50}]
    entries = tuple(TrialDataConfig(store="x", ratio=ratio) for ratio in (3.0, 1.0))
    work = epoch_workload(
        make_trial().model_copy(update={"data": entries}), {**stats, "sets": sets}
    )
    assert work.sizes.nodes == 1000 + 3 * 50
    assert work.sizes.steps == 4, "120 graphs in steps of 32"


def test_triplets_are_counted_by_the_histogram_of_neighbours(stats):
    """Nodes with 0, 1, 2 and 8 neighbours, counted one pair of edges after the other."""
    degrees = [0, 1, 2, 2, 8]
    slow = sum(len(list(itertools.permutations(range(d), 2))) for d in degrees)
    counts = np.bincount(degrees).tolist()
    few = {"degree": {"4.0": 13 / 5}, "degrees": {"4.0": {"all": counts}}}
    assert mean_triplets(few, 4.0) == pytest.approx(slow / 5)
    # Half the neighbours within a smaller cutoff: a quarter of the pairs.
    closer = 4.0 * 0.5 ** (1 / 3)
    assert mean_triplets(few, closer) == pytest.approx(slow / 5 / 4)
    assert mean_triplets(stats, 4.0) == 10.0 * 9.0, "no histogram: all nodes alike"


def test_the_spread_of_graphs_from_a_histogram_and_without_one():
    sizes = np.random.default_rng(0).integers(100, 2000, 5000)
    summary = {"mean": sizes.mean(), "min": sizes.min(), "max": sizes.max()}
    expected = statistics.pstdev(sizes.tolist()) / sizes.mean()
    values, counts = np.unique(sizes, return_counts=True)
    full = {"edges": summary, "histograms": {"edges": histogram(values, counts)}}
    for known in (full, {"edges": summary}):
        spread, largest = graph_cost_spread(known)
        assert spread == pytest.approx(expected, rel=0.03)
        assert largest == sizes.max() / sizes.mean()
    assert math.isclose(graph_cost_spread({"nodes": {"mean": 3.0, "min": 3, "max": 3}})[0], 0.0)


DRAWS = {
    "uniform": lambda random, n: random.integers(2, 201, n).astype(float),
    "lognormal": lambda random, n: np.exp(random.normal(0.0, 0.5, n)),
    "exponential": lambda random, n: random.exponential(1.0, n) + 0.05,
    "narrow": lambda random, n: random.integers(18, 23, n).astype(float),
    "alike": lambda random, n: np.ones(n),
}


def graphs(costs, batch):
    spread = costs.std() / costs.mean()
    largest = costs.max() / costs.mean()
    return SimpleNamespace(spread=spread, largest=largest, graphs_per_step=batch)


@pytest.mark.parametrize(("batch", "measured"), [(16, 1.11), (32, 1.03), (64, 1.008)])
def test_imbalance_that_was_measured(batch, measured):
    """Uniform 2-200 atoms on 8 ranks: reference/stack.md."""
    costs = np.arange(2.0, 201.0)
    assert imbalance(graphs(costs, batch), 8) - 1 == pytest.approx(measured - 1, rel=0.2)


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("each", [1, 2, 4, 16])
@pytest.mark.parametrize("sizes", DRAWS)
def test_imbalance_of_shares_that_were_made(sizes, each, ranks):
    """The formula is within a quarter of the mean of real shares of drawn graphs."""
    random = np.random.default_rng(7)
    pool = DRAWS[sizes](random, 4000)
    results = []
    for _ in range(20):
        costs = random.choice(pool, each * ranks)
        loads = [costs[rows].sum() for rows in balance_load(costs, ranks)]
        results.append(max(loads) / np.mean(loads))
    assert imbalance(graphs(pool, each * ranks), ranks) == pytest.approx(np.mean(results), rel=0.25)


def test_graphs_that_do_not_divide():
    alike = graphs(np.ones(5), 6)
    assert imbalance(alike, 4) == pytest.approx(2 / 1.5), "one rank of four has two of six graphs"
    assert imbalance(alike, 8) == pytest.approx(8 / 6), "two of eight have none"
    assert imbalance(alike, 1) == 1.0


def test_ranks_lie_on_as_few_hosts_as_hold_them(machine, stats, make_trial):
    work = epoch_workload(make_trial(), stats)
    assert RankLayout.of(work, machine, 1) == RankLayout(1, 1, 1, 1)
    eight = RankLayout.of(work, machine, 8)
    assert (eight.local, eight.hosts, eight.data) == (2, 4, 8)
    shared = epoch_workload(make_trial(parallel={"tensor": 2}), stats)
    assert RankLayout.of(shared, machine, 8) == RankLayout(8, 2, 4, 2)
    assert tensor_parallel_share(RankLayout.of(shared, machine, 8)) == pytest.approx(1 - 0.7 / 2)


def test_a_sum_over_ranks_by_hand(machine, stats, make_trial):
    """100 MB: 10 us and 100 GB/s within a host, 20 us and 20 GB/s between hosts."""
    two, eight = (
        RankLayout.of(epoch_workload(make_trial(), stats), machine, width) for width in (2, 8)
    )
    within = 2 * 1 * 10e-6 + 2 * (1 / 2) * 1e8 / 100e9
    assert all_reduce_seconds(two, machine, 1e8) == pytest.approx(within)
    between = 2 * 2 * 20e-6 + 2 * (3 / 4) * 1e8 / 20e9
    assert all_reduce_seconds(eight, machine, 1e8) == pytest.approx(within + between)


def test_what_is_sent_in_a_step(machine, stats, make_trial):
    def sent(width, **parallel):
        work = epoch_workload(make_trial(parallel=parallel), stats)
        return exposed_communication_seconds(
            work, machine, RankLayout.of(work, machine, width)
        ), 4 * work.parameters

    assert sent(1)[0] == 0.0
    seconds, size = sent(2)
    start, carry = 2 * 10e-6, size / 100e9
    assert seconds == pytest.approx(start + EXPOSED * carry)
    # Gathered again for the backward pass: one and a half times as much, less of it hidden.
    assert sent(2, shard="full")[0] == pytest.approx(
        start + EXPOSED_SHARDED * (1.5 * (start + carry) - start)
    )
    # Gradients and gathered weights are as many bytes as a sum.
    assert sent(2, shard="gradients")[0] == pytest.approx(start + EXPOSED_SHARDED * carry)
    # One pair that shares wide maps: 30 graphs a step; four sums of nodes' features a round.
    nodes = 1000 / 3 * 16 * 4 / 100e9
    assert sent(2, tensor=2)[0] == pytest.approx(
        start + EXPOSED_SHARDED * carry / 2 + 4 * 2 * (start + nodes)
    )


def test_graphs_that_ranks_hold_together_count_by_parts(machine, stats, make_trial):
    """1000 nodes of 26 bytes and 10,000 edges of 26: a third of them, then all."""
    stats = {**stats, "nodes": {**stats["nodes"], "total": 1000}}
    stats["edges"] = {"mean": 100.0, "min": 100, "max": 100, "total": 10_000}
    stats["sets"] = [{"train": 30, "train_nodes": 200}, {"train": 60, "train_nodes": 400}]
    whole = 26 * 1000 + 26 * 10_000

    def read_by(*access):
        data = tuple(TrialDataConfig(store="x", access=one) for one in access)
        return make_trial().model_copy(update={"data": data})

    assert count_held_bytes(read_by("stage", "windows"), stats) == 0
    assert count_held_bytes(read_by("distributed", "stage"), stats) == pytest.approx(whole / 3)
    assert count_held_bytes(read_by("distributed", "distributed"), stats) == whole
    held = epoch_workload(read_by("distributed", "distributed"), stats)
    work = epoch_workload(read_by("stage", "stage"), stats)
    cpu = machine.model_copy(update={"device": "cpu"})
    for width in (1, 2, 4):
        more = estimate_bytes(held, cpu, width) - estimate_bytes(work, cpu, width)
        assert more == pytest.approx(whole / width)
        assert estimate_bytes(held, machine, width) == estimate_bytes(work, machine, width)
