"""Figures as compact JSON: arrays of numbers travel as bytes, as plotly.js reads them.

Source: plotly.js, "typed array specification" (``bdata``, ``dtype``, ``shape``), 2026-11-22.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

SHORT = 8
"""Shorter lists stay readable."""

_KINDS = {
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "float32": "f4",
}


def plain(value: Any) -> Any:
    """Give plain data for JSON; what is not finite becomes null.

    Args:
        value: a figure or any part of it. Arrays of floats keep 7 digits; whole numbers beyond 32
            bits become floats.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, (list, tuple)):
        return _list(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def _list(values: list[Any] | tuple[Any, ...]) -> Any:
    if len(values) > SHORT and all(type(value) in (int, float) for value in values):
        return _array(np.asarray(values))
    return [plain(value) for value in values]


def _array(values: np.ndarray) -> Any:
    if values.dtype.kind not in "iuf" or values.size <= SHORT or values.ndim > 2:
        return [plain(value) for value in values.tolist()]
    narrow = _narrow(values)
    code = _KINDS[narrow.dtype.name]
    found = {"dtype": code, "bdata": base64.b64encode(narrow.tobytes()).decode()}
    if values.ndim == 2:
        found["shape"] = ", ".join(map(str, values.shape))
    return found


def _narrow(values: np.ndarray) -> np.ndarray:
    """Give the smallest type that holds the values; floats keep 7 digits."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, "<f4")
    low, high = int(values.min()), int(values.max())
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        limits = np.iinfo(name)
        if limits.min <= low and high <= limits.max:
            return np.ascontiguousarray(values, np.dtype(name).newbyteorder("<"))
    return np.ascontiguousarray(values, "<f4")
