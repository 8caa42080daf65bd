"""What an epoch goes through: by hand, and by slow loops."""

import itertools
import math
import statistics

import numpy as np
import pytest

from hydragnn_hpo.config.model_config import count_parameters
from hydragnn_hpo.config.trial_config import TrialDataConfig
from hydragnn_hpo.config.trial_size import forward_flops, kept_bytes
from hydragnn_hpo.data.statistics import histogram
from hydragnn_hpo.placement.workload import (
    BACKWARD,
    DERIVATIVES,
    RECOMPUTED,
    TOUCHED,
    epoch_workload,
    graph_cost_spread,
    mean_neighbors,
    mean_triplets,
)


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
