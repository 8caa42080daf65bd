"""Summarize a store for people: its statistics, its files, and its targets split by split."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.outliers import Scan, robust_center_and_scale, scan_store
from hydragnn_hpo.data.store_index import read_checked_stats, read_index

BINS = 40
"""Bins of the histogram of a target."""

REACH = 8.0
"""Robust standard deviations around the median that the bins cover at most."""

TAIL = 0.5
"""Percent of the values at each end that may lie beyond the bins."""


def describe_store(path: Path) -> dict[str, Any]:
    """Return the statistics of a store, with ``store`` and ``target_splits`` beside them.

    ``store`` tells its bytes, windows, parts and structures set aside; ``target_splits`` the
    values of every target in every split, see ``describe_targets``.

    Raises:
        DataError: this is no store, or it is damaged.
    """
    index = read_index(path)
    stats = read_checked_stats(index)
    files = sum(int(entry["bytes"]) for part in index.parts for entry in part.files)
    store = {
        "path": str(path),
        "bytes": index.nbytes,
        "file_bytes": files,
        "windows": len(index.windows),
        "parts": len(index.parts),
        "quarantined": int(stats.get("quarantined", 0)),
    }
    scan = scan_store(index, stats)
    return stats | {"store": store, "target_splits": describe_targets(scan)}


def describe_targets(scan: Scan) -> dict[str, Any]:
    """Describe every target in every split; vectors by their norms.

    Returns:
        By target ``bins`` (edges; the first and last bin hold what lies beyond, too) and by
        split ``values``, ``missing`` (a share), ``mean``, ``std``, ``median``, ``min``, ``max``
        and ``counts`` per bin. A split without values has None for its numbers.
    """
    return {name: _describe(scan, name) for name in scan.scores}


def _describe(scan: Scan, name: str) -> dict[str, Any]:
    values = scan.scores[name]
    by_node = scan.stats["targets"][name]["level"] == "node"
    split = np.repeat(scan.split, scan.num_nodes) if by_node else scan.split
    edges = _choose_bins(values[np.isfinite(values)])
    described: dict[str, Any] = {"bins": edges.tolist()}
    for number, which in enumerate(SPLITS):
        described[which] = _describe_split(values[split == number], edges)
    return described


def _describe_split(values: NDArray[np.float64], edges: NDArray[np.float64]) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    missing = 1.0 - len(known) / len(values) if len(values) else 0.0
    names = ("mean", "std", "median", "min", "max")
    numbers: list[float | None] = [None] * len(names)
    if len(known):
        functions = (np.mean, np.std, np.median, np.min, np.max)
        numbers = [float(function(known)) for function in functions]
    counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), edges)
    return {
        "values": len(known),
        "missing": missing,
        **dict(zip(names, numbers, strict=True)),
        "counts": counts.tolist(),
    }


def _choose_bins(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cover what is usual, so that one value that went astray does not squeeze all others."""
    if not len(values):
        return np.linspace(0.0, 1.0, BINS + 1)
    middle, scale = robust_center_and_scale(values)
    low, high = float(values.min()), float(values.max())
    if scale > 0:
        tails = np.percentile(values, (TAIL, 100.0 - TAIL))
        low = max(low, min(float(tails[0]), middle - REACH * scale))
        high = min(high, max(float(tails[1]), middle + REACH * scale))
    if not high > low:
        room = max(abs(low), 1.0) * 0.5
        low, high = low - room, high + room
    assert math.isfinite(low)
    assert math.isfinite(high)
    return np.linspace(low, high, BINS + 1)
