"""Steps and shares: Law 1 begins here."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.loader import epoch_steps, graph_costs, shares


def test_an_epoch_visits_every_graph_once() -> None:
    train = np.arange(100, 150)
    steps = epoch_steps(train, global_batch=16, seed=3, epoch=2)
    assert [len(step) for step in steps] == [16, 16, 16, 2]
    assert sorted(np.concatenate(steps).tolist()) == train.tolist()


def test_steps_depend_on_seed_and_epoch_alone() -> None:
    def flat(seed: int, epoch: int, batch: int) -> list[int]:
        return np.concatenate(epoch_steps(np.arange(50), batch, seed, epoch)).tolist()

    assert flat(1, 4, 8) == flat(1, 4, 8)
    assert flat(1, 4, 8) == flat(1, 4, 16)
    assert flat(1, 4, 8) != flat(1, 5, 8)
    assert flat(1, 4, 8) != flat(2, 4, 8)


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(st.integers(1, 1000), max_size=40), world=st.integers(1, 9))
def test_shares_are_a_partition_and_balanced(costs: list[int], world: int) -> None:
    found = shares(costs, world)
    assert len(found) == world
    assert sorted(np.concatenate(found).tolist()) == list(range(len(costs)))
    if costs:
        loads = [sum(costs[position] for position in share) for share in found]
        # Graham (1966): when the largest load grew last, its rank had the least of all.
        assert max(loads) <= sum(costs) / world + (1 - 1 / world) * max(costs) + 1e-9


def test_shares_of_uniform_sizes_balance_as_measured() -> None:
    costs = np.random.default_rng(0).integers(2, 200, size=64)
    loads = [costs[share].sum() for share in shares(costs, 8)]
    assert max(loads) / np.mean(loads) < 1.03


def test_shares_may_be_empty() -> None:
    assert [len(share) for share in shares([5.0, 1.0], 4)] == [1, 1, 0, 0]
    assert [len(share) for share in shares([], 3)] == [0, 0, 0]


def test_a_graph_costs_its_nodes_and_edges(columns: Columns) -> None:
    costs = graph_costs(columns)
    assert costs[2] == 1  # a single atom
    assert costs.sum() == len(columns.numbers) + len(columns.edges)
