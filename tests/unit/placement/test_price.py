"""The price before anything ran, by hand; and a trial's own time."""

import pytest

from hydragnn_hpo.config.trial_size import pass_bytes
from hydragnn_hpo.placement.communication_cost import RankLayout, exposed_communication_seconds
from hydragnn_hpo.placement.cost_model import CostModel
from hydragnn_hpo.placement.price import estimate_bytes, estimate_seconds
from hydragnn_hpo.placement.workload import epoch_workload


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


def test_smaller_batches_mean_more_steps(machine, stats, make_trial):
    """What each step costs beside arithmetic does not get less with more ranks."""
    small, large = (epoch_workload(make_trial(batch=b), stats) for b in (1, 90))
    more = estimate_seconds(small, machine, 1) - estimate_seconds(large, machine, 1)
    assert more == pytest.approx(89 * 0.012)


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
    ],
)
def test_widths_are_powers_of_two_with_enough_graphs(
    machine, training, most, expected, stats, make_trial
):
    costs = CostModel(stats, machine, max_width=most)
    assert costs.price(make_trial(**training)).widths == expected


def test_ranks_that_share_maps_see_the_same_graphs(machine, stats, make_trial):
    price = CostModel(stats, machine).price(make_trial(parallel={"tensor": 2}))
    assert price.widths[-1] == 16


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
    costs, trial, other = CostModel(stats, machine), make_trial(), make_trial(features=24)
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
