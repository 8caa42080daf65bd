"""Splits: grouped, seeded, complete, and faithful to what was published."""

import numpy as np
import pytest

from hydragnn_hpo.config.data import SPLITS, SplitConfig
from hydragnn_hpo.data.split import split_of
from hydragnn_hpo.errors import DataError


def grouped(sizes: list[int]) -> list[str]:
    return [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_a_group_never_straddles_two_splits() -> None:
    groups = grouped(np.random.default_rng(0).integers(1, 9, size=60).tolist())
    split = split_of(groups, [None] * len(groups), SplitConfig(seed=5), "x")
    homes: dict[str, set[int]] = {}
    for group, home in zip(groups, split.tolist(), strict=True):
        homes.setdefault(group, set()).add(home)
    assert {len(home) for home in homes.values()} == {1}


def test_shares_hold_as_well_as_groups_allow() -> None:
    groups = grouped([3] * 100)
    split = split_of(groups, [None] * 300, SplitConfig(seed=1), "x")
    assert np.abs(np.bincount(split) - np.array([180, 30, 30, 30, 30])).max() <= 3


def test_the_seed_decides() -> None:
    groups = grouped([2] * 50)

    def cut(seed: int, order: list[str]) -> list[int]:
        return split_of(order, [None] * len(order), SplitConfig(seed=seed), "x").tolist()

    assert cut(1, groups) == cut(1, groups)
    assert cut(1, groups) != cut(2, groups)
    assert cut(1, groups)[::-1] == cut(1, groups[::-1])  # the order of files does not matter


def test_a_published_test_split_is_kept() -> None:
    groups = grouped([2] * 50)
    published = ["train", "val", "test", "train", "test"] * 20
    split = split_of(groups, published, SplitConfig(), "x")
    np.testing.assert_array_equal(split == SPLITS.index("test"), np.array(published) == "test")
    rest = np.bincount(split)[:4]
    assert rest.sum() == 60
    assert np.abs(rest - np.array([40, 20 / 3, 20 / 3, 20 / 3])).max() <= 2


def test_five_groups_are_enough_and_four_are_not() -> None:
    split = split_of(grouped([50, 1, 1, 1, 1]), [None] * 54, SplitConfig(), "x")
    assert sorted(set(split.tolist())) == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"x: has 4 groups .* for 5 splits; add structures"):
        split_of(grouped([9, 9, 9, 9]), [None] * 36, SplitConfig(), "x")


def test_a_published_split_without_its_test_is_an_error() -> None:
    with pytest.raises(DataError, match=r"no structure is marked '0' .* split.published_test"):
        split_of(grouped([1] * 9), ["1"] * 9, SplitConfig(published_test="0"), "x")
