"""Scan the values of a store: what is far from all others, and what each split holds.

Outliers are measured by median and median absolute deviation. Energies are looked at after what
the elements explain is taken away, node values after the median of their element: otherwise
composition dominates. Elements are fitted on all splits, in rounds that leave outliers out.

Source: modified z-score, Iglewicz and Hoaglin (1993), "How to Detect and Handle Outliers".

Shapes: G graphs, N nodes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.columns import Arrays, Names, join_arrays, offsets
from hydragnn_hpo.data.graph_sizes import ELEMENTS
from hydragnn_hpo.data.store_index import Index, read_checked_stats, read_index
from hydragnn_hpo.data.store_parts import WindowReader

_LIGHT = ("numbers", "num_nodes", "num_edges", "split", "group", "id_size", "id_text")


@dataclass(frozen=True, eq=False)
class Scan:
    """The light columns of a store, and one number per value of every target."""

    stats: dict[str, Any]
    """The content of ``stats.json``."""

    numbers: NDArray[np.int16]
    """Atomic numbers, [N]."""

    num_nodes: NDArray[np.int32]
    """Nodes of each graph, [G]."""

    num_edges: NDArray[np.int32]
    """Edges of each graph, [G]."""

    split: NDArray[np.int8]
    """Index into ``SPLITS``, [G]."""

    group: NDArray[np.int32]
    """Group of each structure, [G]."""

    ids: Names
    """Names of the structures."""

    attributes: dict[str, NDArray[np.float64]]
    """Known properties of whole structures, [G]."""

    scores: dict[str, NDArray[np.float64]]
    """A scalar target's value, the norm of a vector or tensor, [G] or [N]; NaN where missing."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return len(self.num_nodes)

    @cached_property
    def node_offset(self) -> NDArray[np.int64]:
        """First node of each graph, and the end, [G + 1]."""
        return offsets(self.num_nodes.astype(np.int64))

    @property
    def graph_of_node(self) -> NDArray[np.int64]:
        """Row of each node's graph, [N]."""
        return np.repeat(np.arange(self.num_graphs), self.num_nodes)


def read_windows(index: Index, names: tuple[str, ...] | None = None) -> Iterator[Arrays]:
    """Return the windows of a store one by one, each compared with its checksums.

    Args:
        index: of the store.
        names: only these columns; all if left out.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    with WindowReader(index) as reader:
        for window in range(len(index.windows)):
            yield reader.read(window, window + 1, names)


def scan_store(index: Index, stats: dict[str, Any]) -> Scan:
    """Read the light columns of a store, window by window.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    there = [column.name for column in index.columns]
    wanted = ("target.", "attribute.")
    names = (*_LIGHT, *(name for name in there if name.startswith(wanted)))
    windows = []
    for arrays in read_windows(index, names):
        for name in arrays:
            if name.startswith("target."):
                arrays[name] = _score(arrays[name])
        windows.append(arrays)
    found = join_arrays(windows)
    named = {name.partition(".")[::2]: array for name, array in found.items()}
    return Scan(
        stats=stats,
        numbers=found["numbers"],
        num_nodes=found["num_nodes"],
        num_edges=found["num_edges"],
        split=found["split"],
        group=found["group"],
        ids=Names(found["id_text"], offsets(found["id_size"])),
        attributes={name: v for (kind, name), v in named.items() if kind == "attribute"},
        scores={name: v for (kind, name), v in named.items() if kind == "target"},
    )


def _score(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one number per row: the value of a scalar, the norm of a vector or tensor."""
    if values.shape[1] == 1:
        return values[:, 0]
    return np.asarray(np.linalg.norm(values, axis=1), dtype=np.float64)


FEWEST = 10
"""Fewer values than this have no outliers."""

ROUNDS = 30
"""Most fits of the elements; each leaves out what is more than half as far as the farthest."""

RIDGE = 0.1
"""Pull of an element's number towards 0, in structures: rare elements stay small."""

MAD_TO_STD = 1.4826
"""Median absolute deviation to standard deviation, for normal values."""

MEAN_TO_STD = 1.2533
"""Mean absolute deviation to standard deviation, for normal values."""

CUT = 100.0
"""Scales after which a value counts no more for the spread of all."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spread:
    """A target's values against what is usual."""

    subtracted: str
    """What was taken away first."""

    rest: Array
    """What is left, [G] or [N]; NaN where missing."""

    scale: Array
    """Robust standard deviation that each value is measured by, [G] or [N]."""

    z: Array
    """Robust z-score, [G] or [N]; 0 where missing."""

    @cached_property
    def usual(self) -> float:
        """How far values are from what is expected of them, as a standard deviation.

        One for all, outliers cut to ``CUT`` of their scale: zeros of one element do not count
        as less than the target's own spread.
        """
        known = np.isfinite(self.rest)
        if not known.any():
            return 0.0
        off, scale = np.abs(self.rest[known]), self.scale[known]
        return MEAN_TO_STD * float(np.where(scale > 0, np.minimum(off, CUT * scale), off).mean())


def measure_spread(scan: Scan, name: str, limit: float) -> Spread:
    """Measure the values of a target.

    Args:
        scan: of the store.
        name: of the target.
        limit: robust z-score from which a value is an outlier.
    """
    target, values = scan.stats["targets"][name], scan.scores[name]
    scalar = target["shape"] == "scalar"
    if target["level"] == "node":
        return _measure_by_element(
            scan, values, "median of the element" if scalar else "median norm of the element"
        )
    if scalar and target["energy"] is not None:
        return _measure_by_composition(scan, values, target["energy"] == "total", limit)
    return _measure_plain(values, "median" if scalar else "median norm")


def robust_center_and_scale(values: Array) -> tuple[float, float]:
    """Return median and robust standard deviation of known values.

    Where half of the values or more are one (no gap, no moment), the others are measured among
    themselves, or by the mean absolute deviation if they are fewer than ``FEWEST``. The scale is
    0 only where all are one.
    """
    if len(values) < FEWEST:
        return (float(np.median(values)) if len(values) else 0.0), 0.0
    middle = float(np.median(values))
    off = np.abs(values - middle)
    nothing = 1e-12 * max(1.0, abs(middle))
    scale = MAD_TO_STD * float(np.median(off))
    if scale <= nothing:
        others = off[off > nothing]
        many = len(others) >= FEWEST
        scale = MAD_TO_STD * float(np.median(others)) if many else MEAN_TO_STD * float(off.mean())
    return middle, scale if scale > nothing else 0.0


def _measure_plain(values: Array, subtracted: str) -> Spread:
    middle, scale = robust_center_and_scale(values[np.isfinite(values)])
    return _make_spread(subtracted, values - middle, np.full(len(values), scale))


def _measure_by_element(scan: Scan, values: Array, subtracted: str) -> Spread:
    """Measure nodes among those of their element."""
    middles, scales = np.zeros((2, ELEMENTS))
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(scan.numbers[known], kind="stable")]
    cuts = np.flatnonzero(np.diff(scan.numbers[order])) + 1
    for rows in np.split(order, cuts) if len(order) else []:
        number = scan.numbers[rows[0]]
        middles[number], scales[number] = robust_center_and_scale(values[rows])
    rest = values - middles[scan.numbers]
    return _make_spread(subtracted, rest, scales[scan.numbers])


def _measure_by_composition(scan: Scan, values: Array, total: bool, limit: float) -> Spread:
    """Measure energies after a fit over composition: counts for totals, fractions otherwise."""
    nodes = scan.num_nodes.astype(np.float64)
    weights = np.ones(len(scan.numbers)) if total else 1.0 / np.repeat(nodes, scan.num_nodes)
    shape = (scan.num_graphs, ELEMENTS)
    design = csr_array((weights, (scan.graph_of_node, scan.numbers)), shape=shape)
    known = np.isfinite(values)
    used, rest, scale = known, values, 0.0
    for _ in range(ROUNDS if known.any() else 0):
        rest = values - _fit_composition(design, values, used)
        if total:
            # Errors of totals grow with size; what is usual is counted per atom.
            rest = rest / nodes
        middle, scale = robust_center_and_scale(rest[known])
        rest = rest - middle
        far = float(np.abs(rest[used]).max())
        if scale == 0.0 or far <= limit * scale:
            break
        # Only the farthest leave: they draw sound structures of their elements away, too.
        used = known & (np.abs(rest) <= max(far / 2, limit * scale))
    return _make_spread("fit over composition", rest, np.full(len(values), scale))


def _fit_composition(design: csr_array, values: Array, used: NDArray[np.bool_]) -> Array:
    """Predict by one number per element and a constant, fitted on the rows that are used."""
    rows = design[np.flatnonzero(used)]
    centre = np.asarray(rows.mean(axis=0)).reshape(-1)
    mean = float(values[used].mean())
    gram = (rows.T @ rows).toarray() - len(values[used]) * np.outer(centre, centre)
    right = rows.T @ (values[used] - mean)
    numbers = np.linalg.solve(gram + RIDGE * np.eye(ELEMENTS), right)
    found: Array = mean + design @ numbers - centre @ numbers
    return found


def _make_spread(subtracted: str, rest: Array, scale: Array) -> Spread:
    z = np.divide(rest, scale, out=np.zeros(len(rest)), where=scale > 0)
    return Spread(subtracted, rest, scale, np.where(np.isfinite(z), z, 0.0))


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
