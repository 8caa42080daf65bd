"""Folds: whole groups, every graph but those of test once, and statistics without the fold."""

from dataclasses import replace

import numpy as np
import pytest
from unit.training.conftest import TARGETS, make_columns

from hydragnn_hpo.config.data_config import SPLITS, MixedConfig
from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.data.columns import without_edges
from hydragnn_hpo.data.folds import NONE, deal_folds, leave_fold_out
from hydragnn_hpo.data.mixture import Mixture
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.errors import DataError

TEST = SPLITS.index("test")


@pytest.fixture
def graphs():
    """40 graphs in 20 groups of unequal size, 4 of them in test, and one outside of all splits."""
    made = make_columns()
    group = np.sort(np.random.default_rng(1).integers(0, 20, 40)).astype(np.int32)
    split = made.split.copy()
    split[np.flatnonzero(split != TEST)[0]] = -1
    stats = {**made.stats, "name": "made"}
    return replace(made, group=group, split=split, stats=stats)


def training(fold, folds=4, seed=3):
    return TrainConfig(fold=fold, folds=folds, fold_seed=seed)


@pytest.mark.parametrize("folds", [2, 5, 9])
def test_each_graph_outside_test_is_in_one_fold_with_all_of_its_group(graphs, folds):
    fold = deal_folds(graphs, folds, seed=3)
    free = (graphs.split >= 0) & (graphs.split != TEST)
    np.testing.assert_array_equal(fold == NONE, ~free)
    sizes = np.bincount(fold[free], minlength=folds)
    largest = np.bincount(graphs.group[free]).max()
    assert len(sizes) == folds
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= largest
    for group in np.unique(graphs.group[free]):
        assert len(set(fold[free & (graphs.group == group)].tolist())) == 1


def test_the_seed_decides_and_too_few_groups_are_refused(graphs):
    assert deal_folds(graphs, 4, 3).tolist() == deal_folds(graphs, 4, 3).tolist()
    assert deal_folds(graphs, 4, 3).tolist() != deal_folds(graphs, 4, 4).tolist()
    few = replace(graphs, group=(graphs.group % 3).astype(np.int32))
    with pytest.raises(DataError, match="has 3 groups .* for 4 folds; lower ensemble.folds"):
        deal_folds(few, 4, 3)


def test_a_fold_is_validated_on_and_the_others_are_trained_on(graphs):
    fold = deal_folds(graphs, 4, 3)
    left = leave_fold_out(graphs, training(2))
    np.testing.assert_array_equal(left.indices_of("val"), np.flatnonzero(fold == 2))
    rest = np.flatnonzero((fold != 2) & (fold != NONE))
    np.testing.assert_array_equal(left.indices_of("train"), rest)
    np.testing.assert_array_equal(left.indices_of("test"), graphs.indices_of("test"))
    assert not len(left.indices_of("sel"))
    assert not len(left.indices_of("cal"))
    assert left.stats["splits"] == {
        "train": len(rest), "val": int((fold == 2).sum()), "sel": 0, "cal": 0, "test": 4,
    }  # fmt: skip
    assert leave_fold_out(graphs, TrainConfig()) is graphs


def test_statistics_of_targets_know_nothing_of_the_fold(graphs):
    left = leave_fold_out(graphs, training(1))
    light = replace(without_edges(graphs), split=left.split)
    assert left.stats["targets"] == fit_target_stats(light, TARGETS)
    assert left.stats["targets"] != graphs.stats["targets"]
    fold = deal_folds(graphs, 4, 3)
    energies = graphs.targets["energy"].copy()
    energies[fold == 1] += 1000.0
    other = leave_fold_out(
        replace(graphs, targets={**graphs.targets, "energy": energies}), training(1)
    )
    assert other.stats["targets"]["energy"] == left.stats["targets"]["energy"]


def test_several_data_sets_are_dealt_together(graphs):
    sets = Mixture([graphs, graphs], [MixedConfig(), MixedConfig(prefix="b_")])
    alone, both = (leave_fold_out(each, training(0)) for each in (graphs, sets))
    assert sets.indices_of("sel").size, "the sets themselves stay as they were"
    fold = deal_folds(sets, 4, 3)
    np.testing.assert_array_equal(both.indices_of("val"), np.flatnonzero(fold == 0))
    rows = both.indices_of("train")
    known = both.take(rows).targets["energy"][both.take(rows).masks["energy"]]
    assert both.stats["targets"]["energy"]["mean"] == pytest.approx(known.mean())
    assert alone.stats["targets"]["push"]["mean"] == 0.0
