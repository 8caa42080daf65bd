"""Splits: grouped, seeded, complete, and faithful to what was published."""

import numpy as np
import pytest

from hydragnn_hpo.config.data_config import SPLITS, SplitConfig
from hydragnn_hpo.data.label_sharing import SparseLabels
from hydragnn_hpo.data.splits import assign_splits, propose_shares, propose_split
from hydragnn_hpo.errors import DataError


def grouped(sizes: list[int]) -> list[str]:
    return [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_a_group_never_straddles_two_splits() -> None:
    groups = grouped(np.random.default_rng(0).integers(1, 9, size=60).tolist())
    split = assign_splits(groups, [None] * len(groups), SplitConfig(seed=5), "x")
    homes: dict[str, set[int]] = {}
    for group, home in zip(groups, split.tolist(), strict=True):
        homes.setdefault(group, set()).add(home)
    assert {len(home) for home in homes.values()} == {1}


def test_shares_hold_as_well_as_groups_allow() -> None:
    groups = grouped([3] * 100)
    split = assign_splits(groups, [None] * 300, SplitConfig(seed=1), "x")
    assert np.abs(np.bincount(split) - np.array([180, 30, 30, 30, 30])).max() <= 3


def test_the_seed_decides() -> None:
    groups = grouped([2] * 50)

    def cut(seed: int, order: list[str]) -> list[int]:
        return assign_splits(order, [None] * len(order), SplitConfig(seed=seed), "x").tolist()

    assert cut(1, groups) == cut(1, groups)
    assert cut(1, groups) != cut(2, groups)
    assert cut(1, groups)[::-1] == cut(1, groups[::-1])  # the order of files does not matter


def test_a_published_test_split_is_kept() -> None:
    groups = grouped([2] * 50)
    published = ["train", "val", "test", "train", "test"] * 20
    split = assign_splits(groups, published, SplitConfig(), "x")
    np.testing.assert_array_equal(split == SPLITS.index("test"), np.array(published) == "test")
    rest = np.bincount(split)[:4]
    assert rest.sum() == 60
    assert np.abs(rest - np.array([40, 20 / 3, 20 / 3, 20 / 3])).max() <= 2


def test_five_groups_are_enough_and_four_are_not() -> None:
    split = assign_splits(grouped([50, 1, 1, 1, 1]), [None] * 54, SplitConfig(), "x")
    assert sorted(set(split.tolist())) == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"x: has 4 groups .* for 5 splits; add structures"):
        assign_splits(grouped([9, 9, 9, 9]), [None] * 36, SplitConfig(), "x")


def sparse(groups: list[str], labelled: list[str]) -> list[SparseLabels]:
    return [SparseLabels(np.isin(groups, labelled))]


@pytest.mark.parametrize("seed", range(12))
def test_each_split_gets_labels_of_a_target_that_few_structures_have(seed: int) -> None:
    groups = grouped([1] * 120)
    place = np.arange(120)
    labels = [SparseLabels(place % 20 == 0), SparseLabels(place % 24 == 5)]  # 6 and 5 structures
    plain = assign_splits(groups, [None] * 120, SplitConfig(seed=seed), "x")
    split = assign_splits(groups, [None] * 120, SplitConfig(seed=seed), "x", labels)
    for one in labels:
        assert set(split[one.rows].tolist()) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(np.bincount(split), np.bincount(plain))
    assert (split != plain).sum() <= 2 * 2 * 4  # two structures for each target and split
    again = assign_splits(groups, [None] * 120, SplitConfig(seed=seed), "x", labels)
    np.testing.assert_array_equal(split, again)


def test_what_has_labels_in_each_split_stays_as_it_was() -> None:
    groups = grouped(np.random.default_rng(0).integers(1, 9, size=60).tolist())
    total = len(groups)
    plain = assign_splits(groups, [None] * total, SplitConfig(seed=3), "x")
    half = np.random.default_rng(1).random(total) < 0.5
    labels = [SparseLabels(np.ones(total, bool)), SparseLabels(half)]
    assert {s for s in range(5) if half[plain == s].any()} == {0, 1, 2, 3, 4}
    split = assign_splits(groups, [None] * total, SplitConfig(seed=3), "x", labels)
    np.testing.assert_array_equal(split, plain)


def test_labels_are_shared_by_whole_groups_and_published_tests_stay() -> None:
    sizes = np.random.default_rng(4).integers(1, 6, size=50)
    groups = grouped(sizes.tolist())
    total = len(groups)
    labels = sparse(groups, ["g3", "g11", "g29", "g40", "g41"])
    split = assign_splits(groups, [None] * total, SplitConfig(seed=2), "x", labels)
    assert set(split[labels[0].rows].tolist()) == {0, 1, 2, 3, 4}
    for group in set(groups):
        assert len(set(split[np.array(groups) == group].tolist())) == 1
    published = ["test" if group in ("g3", "g7", "g8") else "train" for group in groups]
    split = assign_splits(groups, published, SplitConfig(seed=2), "x", labels)
    np.testing.assert_array_equal(split == 4, np.array(published) == "test")
    assert set(split[labels[0].rows].tolist()) == {0, 1, 2, 3, 4}


def test_fewer_labelled_groups_than_splits_move_nothing() -> None:
    groups = grouped([1] * 60)
    labels = sparse(groups, ["g3", "g11", "g29", "g40"])
    plain = assign_splits(groups, [None] * 60, SplitConfig(seed=2), "x")
    split = assign_splits(groups, [None] * 60, SplitConfig(seed=2), "x", labels)
    np.testing.assert_array_equal(split, plain)


def test_one_target_does_not_take_the_last_label_of_another() -> None:
    """Five groups have both targets, in five splits: each exchange would have to undo another."""
    groups = grouped([1] * 40)
    for seed in range(20):
        labels = [SparseLabels(np.arange(40) % 8 == 0), SparseLabels(np.arange(40) % 8 < 2)]
        split = assign_splits(groups, [None] * 40, SplitConfig(seed=seed), "x", labels)
        for one in labels:
            assert set(split[one.rows].tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("seed", range(12))
def test_the_labels_of_train_know_the_elements_of_those_of_the_other_splits(seed: int) -> None:
    """Six of 90 structures have labels: two of copper and gold, of which one has to teach."""
    rows = np.arange(90) % 15 == 0
    elements = np.zeros((6, 119), dtype=bool)
    elements[:, 29] = True
    elements[2:4, 79] = True
    labels = [SparseLabels(rows, elements)]
    split = assign_splits(grouped([1] * 90), [None] * 90, SplitConfig(seed=seed), "x", labels)
    own = split[rows]
    learned = elements[own == 0].any(axis=0)
    known = own[~(elements & ~learned).any(axis=1)]
    assert set(known.tolist()) == {0, 1, 2, 3, 4}
    plain = assign_splits(grouped([1] * 90), [None] * 90, SplitConfig(seed=seed), "x")
    np.testing.assert_array_equal(np.bincount(split), np.bincount(plain))


def test_labels_of_atoms_count_where_train_knows_one_of_their_elements() -> None:
    rows = np.arange(50) % 10 == 0
    elements = np.zeros((5, 119), dtype=bool)
    elements[:, 1] = True
    elements[np.arange(5), 6 + np.arange(5)] = True  # each has an element of its own
    for whole in (True, False):
        labels = [SparseLabels(rows, elements, whole)]
        split = assign_splits(grouped([1] * 50), [None] * 50, SplitConfig(), "x", labels)
        assert (set(split[rows].tolist()) == {0, 1, 2, 3, 4}) or whole


def test_a_published_split_without_its_test_is_an_error() -> None:
    with pytest.raises(DataError, match=r"no structure is marked '0' .* split.published_test"):
        assign_splits(grouped([1] * 9), ["1"] * 9, SplitConfig(published_test="0"), "x")
    with pytest.raises(DataError, match="no structure is marked 'test' in its published split"):
        assign_splits(grouped([1] * 9), [None] * 9, SplitConfig(published="slpit"), "x")


def test_few_compositions_cannot_be_kept_apart():
    alone = propose_split(500, 500, compositions=1, labels={})
    assert alone.group == "structure"
    assert "not for other substances" in alone.warning
    many = propose_split(1000, 1000, compositions=700, labels={})
    assert (many.group, many.shares, many.warning) == (
        "composition",
        (0.6, 0.1, 0.1, 0.1, 0.1),
        None,
    )
    few = propose_split(1000, 1000, compositions=30, labels={})
    assert few.shares == (0.45, 0.1, 0.1, 0.25, 0.1)
    assert "8 to calibrate with, fewer than 9" in few.warning


@pytest.mark.parametrize("groups", [5, 20, 40, 63, 99, 100, 5000, 30_000, 10**6])
def test_shares_sum_to_one_and_calibrate_where_they_can(groups):
    results = propose_shares(groups)
    assert sum(results) == pytest.approx(1.0)
    assert results[3] * groups >= 9 or results[3] == 0.25
