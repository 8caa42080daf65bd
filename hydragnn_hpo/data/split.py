"""Share structures out over train, val, sel, cal and test (Law 6).

Shapes: G graphs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import SPLITS, SplitConfig
from hydragnn_hpo.errors import DataError

TEST = SPLITS.index("test")


def split_of(
    groups: Sequence[str] | NDArray[np.int32],
    published: Sequence[str | None],
    config: SplitConfig,
    name: str,
) -> NDArray[np.int8]:
    """Give the split of every structure as an index into ``SPLITS``, [G].

    Groups are shuffled by the seed and go one by one to the split that lacks the most. None
    straddles two of the splits cut here; a published test split is kept as it is.

    Args:
        groups: group of each structure: names, or numbers in the order of the names.
        published: published split of each structure, if any.
        config: shares, seed, and which published value means test.
        name: of the data set, for errors.

    Raises:
        DataError: a split would be empty, or the published test split has no structure.
    """
    result = np.full(len(groups), -1, dtype=np.int8)
    fixed = _fixed(published, config, name)
    result[fixed] = TEST
    shares = np.array(config.shares)
    if fixed.any():
        shares[TEST] = 0.0
    rows = _rows_of_groups(np.asarray(groups)[~fixed])
    wanted = int((shares > 0).sum())
    if len(rows) < wanted:
        raise DataError(
            f"{name}: has {len(rows)} groups (split.group = {config.group!r}) for {wanted} splits; "
            "add structures or choose another split.group."
        )
    free = np.flatnonzero(~fixed)
    result[free] = _fill(rows, shares / shares.sum(), config.seed, len(free))
    return result


def _fixed(published: Sequence[str | None], config: SplitConfig, name: str) -> NDArray[np.bool_]:
    """Tell which structures the published split puts into test."""
    fixed = np.array([value == config.published_test for value in published], dtype=bool)
    if any(value is not None for value in published) and not fixed.any():
        raise DataError(
            f"{name}: no structure is marked '{config.published_test}' in its published split; "
            "set split.published_test to the value that means test."
        )
    return fixed


def _rows_of_groups(groups: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Give the rows of each group, groups in alphabetical order."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(counts)[:-1])


def _fill(
    rows: Sequence[NDArray[np.int64]], shares: NDArray[np.float64], seed: int, total: int
) -> NDArray[np.int8]:
    """Deal shuffled groups to the split that lacks the most; none with a share stays empty."""
    result = np.full(total, -1, dtype=np.int8)
    lacking = shares * total
    empty = set(np.flatnonzero(shares > 0).tolist())
    order = np.random.default_rng(seed).permutation(len(rows))
    for done, group in enumerate(order):
        choice = sorted(empty) if len(rows) - done <= len(empty) else range(len(shares))
        split = max(choice, key=lambda option: (lacking[option], -option))
        result[rows[group]] = split
        lacking[split] -= len(rows[group])
        empty.discard(split)
    return result
