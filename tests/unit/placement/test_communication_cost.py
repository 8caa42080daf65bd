"""What ranks lose to each other: against measured shares, and by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from hydragnn_hpo.data.batch_sampler import balance_load
from hydragnn_hpo.placement.communication_cost import (
    EXPOSED,
    EXPOSED_SHARDED,
    RankLayout,
    all_reduce_seconds,
    exposed_communication_seconds,
    imbalance,
    tensor_parallel_share,
)
from hydragnn_hpo.placement.workload import epoch_workload

DRAWS = {
    "uniform": lambda random, n: random.integers(2, 201, n).astype(float),
    "lognormal": lambda random, n: np.exp(random.normal(0.0, 0.5, n)),
    "exponential": lambda random, n: random.exponential(1.0, n) + 0.05,
    "narrow": lambda random, n: random.integers(18, 23, n).astype(float),
    "alike": lambda random, n: np.ones(n),
}


def graphs(costs, batch):
    spread, largest = costs.std() / costs.mean(), costs.max() / costs.mean()
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
    found = []
    for _ in range(20):
        costs = random.choice(pool, each * ranks)
        loads = [costs[rows].sum() for rows in balance_load(costs, ranks)]
        found.append(max(loads) / np.mean(loads))
    assert imbalance(graphs(pool, each * ranks), ranks) == pytest.approx(np.mean(found), rel=0.25)


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
