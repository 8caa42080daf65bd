"""Bit-equal columns and stores, and plain data that is equal but for rounding."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stores import read_store

from hydragnn_hpo.data.columns import Columns, arrays_of

Array = NDArray[np.generic]

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


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


def assert_alike(
    found: Any, wanted: Any, *, rel: float, absolute: float = 0.0, at: str = ""
) -> None:
    """Plain data has the same shape and text; floats may differ in their last digits.

    Args:
        found: nested dicts and lists.
        wanted: the same.
        rel: relative tolerance of floats.
        absolute: absolute tolerance of floats.
        at: where in the data this is, for the message.
    """
    if isinstance(wanted, dict):
        assert isinstance(found, dict), at
        assert set(found) == set(wanted), at
        for key, value in wanted.items():
            assert_alike(found[key], value, rel=rel, absolute=absolute, at=f"{at}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list), at
        assert len(found) == len(wanted), at
        for place, value in enumerate(wanted):
            assert_alike(found[place], value, rel=rel, absolute=absolute, at=f"{at}[{place}]")
    elif isinstance(wanted, float):
        assert isinstance(found, float), at
        close = math.isclose(found, wanted, rel_tol=rel, abs_tol=absolute)
        assert close or (math.isnan(found) and math.isnan(wanted)), f"{at}: {found} != {wanted}"
    else:
        assert (type(found), found) == (type(wanted), wanted), at


def golden_text(path: Path, found: str) -> str:
    """Return what a golden file holds; a missing one is written, and the test fails once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
        pytest.fail(f"{path}: was missing and is written; read it, then run the test again.")
    return path.read_text()


def assert_alike_text(found: str, wanted: str, *, rel: float, absolute: float) -> None:
    """Texts are equal between their numbers; numbers are equal within tolerances.

    Args:
        found: any text.
        wanted: the same.
        rel: relative tolerance.
        absolute: absolute tolerance, for numbers that are zero by symmetry.
    """
    assert found.count("\n") == wanted.count("\n")
    lines = zip(found.split("\n"), wanted.split("\n"), strict=True)
    for row, (line, golden) in enumerate(lines, start=1):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", golden), f"line {row}"
        pairs = zip(NUMBER.findall(line), NUMBER.findall(golden), strict=True)
        for number, other in pairs:
            near = math.isclose(float(number), float(other), rel_tol=rel, abs_tol=absolute)
            assert near, f"line {row}: {number} is not {other}"
