"""Bit-equal columns and stores, for tests of everything that copies graphs."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, arrays_of
from hydragnn_hpo.data.store_parts import read_store

Array = NDArray[np.generic]


def assert_same_arrays(found: Columns, expected: Columns) -> None:
    """Assert that what a store keeps of both is equal, byte by byte."""
    left, right = arrays_of(found), arrays_of(expected)
    assert set(left) == set(right)
    for name, array in left.items():
        _assert_same(array, right[name], name)


def assert_same_columns(found: Columns, expected: Columns) -> None:
    """Assert that both are equal, what is derived from the arrays included."""
    assert_same_arrays(found, expected)
    for name in ("node_offset", "edge_offset", "edge_translation", "windows"):
        _assert_same(getattr(found, name), getattr(expected, name), name)
    _assert_same(found.ids.offset, expected.ids.offset, "offsets of the names")
    assert (found.levels, found.stats) == (expected.levels, expected.stats)


def _assert_same(found: Array | None, expected: Array | None, name: str) -> None:
    if found is None or expected is None:
        assert found is expected, name
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
    assert found.tobytes() == expected.tobytes(), name


def assert_same_store(found: Path, expected: Path) -> None:
    """Assert that two stores hold equal graphs and say the same about them."""
    assert_same_columns(read_store(found), read_store(expected))
    for name in ("windows.npy", "card.toml", "quarantine.jsonl"):
        both = [path / name for path in (found, expected)]
        assert both[0].is_file() == both[1].is_file(), name
        assert not both[0].is_file() or both[0].read_bytes() == both[1].read_bytes(), name
