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


def assert_same_arrays(actual: Columns, expected: Columns) -> None:
    """Assert that what a store keeps of both is equal, byte by byte."""
    left = arrays_of(actual)
    right = arrays_of(expected)
    assert set(left) == set(right)
    for name, array in left.items():
        _assert_same(array, right[name], name)


def assert_same_columns(actual: Columns, expected: Columns) -> None:
    """Assert that both are equal, what is derived from the arrays included."""
    assert_same_arrays(actual, expected)
    for name in ("node_offset", "edge_offset", "edge_translation", "windows"):
        _assert_same(getattr(actual, name), getattr(expected, name), name)
    _assert_same(actual.ids.offset, expected.ids.offset, "offsets of the names")
    assert (actual.levels, actual.stats) == (expected.levels, expected.stats)


def _assert_same(actual: Array | None, expected: Array | None, name: str) -> None:
    if actual is None or expected is None:
        assert actual is expected, name
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
    assert actual.tobytes() == expected.tobytes(), name


def assert_same_store(actual: Path, expected: Path) -> None:
    """Assert that two stores hold equal graphs and say the same about them."""
    assert_same_columns(read_store(actual), read_store(expected))
    for name in ("windows.npy", "card.toml", "quarantine.jsonl"):
        both = [path / name for path in (actual, expected)]
        assert both[0].is_file() == both[1].is_file(), name
        assert not both[0].is_file() or both[0].read_bytes() == both[1].read_bytes(), name


def assert_alike(
    actual: Any, wanted: Any, *, rel: float, absolute: float = 0.0, at: str = ""
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
        assert isinstance(actual, dict), at
        assert set(actual) == set(wanted), at
        for key, value in wanted.items():
            assert_alike(actual[key], value, rel=rel, absolute=absolute, at=f"{at}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(actual, list), at
        assert len(actual) == len(wanted), at
        for place, value in enumerate(wanted):
            assert_alike(actual[place], value, rel=rel, absolute=absolute, at=f"{at}[{place}]")
    elif isinstance(wanted, float):
        assert isinstance(actual, float), at
        close = math.isclose(actual, wanted, rel_tol=rel, abs_tol=absolute)
        assert close or (math.isnan(actual) and math.isnan(wanted)), f"{at}: {actual} != {wanted}"
    else:
        assert (type(actual), actual) == (type(wanted), wanted), at


def golden_text(path: Path, result: str) -> str:
    """Return what a golden file holds; a missing one is written, and the test fails once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result)
        pytest.fail(f"{path}: was missing and is written; read it, then run the test again.")
    return path.read_text()


def assert_alike_text(actual: str, wanted: str, *, rel: float, absolute: float) -> None:
    """Texts are equal between their numbers; numbers are equal within tolerances.

    Args:
        found: any text.
        wanted: the same.
        rel: relative tolerance.
        absolute: absolute tolerance, for numbers that are zero by symmetry.
    """
    assert actual.count("\n") == wanted.count("\n")
    lines = zip(actual.split("\n"), wanted.split("\n"), strict=True)
    for row, (line, golden) in enumerate(lines, start=1):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", golden), f"line {row}"
        pairs = zip(NUMBER.findall(line), NUMBER.findall(golden), strict=True)
        for number, other in pairs:
            near = math.isclose(float(number), float(other), rel_tol=rel, abs_tol=absolute)
            assert near, f"line {row}: {number} is not {other}"
