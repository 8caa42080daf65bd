"""Splits: grouped, seeded, complete, and faithful to what was published."""

import numpy as np
import pytest

from hydragnn_hpo.config.data_config import SPLITS, SplitConfig
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
