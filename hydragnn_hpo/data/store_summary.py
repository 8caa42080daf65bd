"""Scan the values of a store for outliers, and summarize the values of each split.

Outliers are measured by median and median absolute deviation (MAD). Composition explains most of
the spread of energies, so a fit with one coefficient per element is subtracted first. From node
values the median of their element is subtracted. The fit uses all splits, in rounds that leave
outliers out.

Source: modified z-score, Iglewicz and Hoaglin (1993), "How to Detect and Handle Outliers".

Shapes: G graphs, N nodes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.columns import Arrays, Names, join_arrays, offsets
from hydragnn_hpo.data.graph_sizes import ELEMENTS
from hydragnn_hpo.data.store_index import Index, read_checked_stats, read_index
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.file_records import StoreStats

_LIGHT = ("numbers", "num_nodes", "num_edges", "split", "group", "id_size", "id_text")


@dataclass(frozen=True, eq=False)
class Scan:
    """Data of a large store that fit into memory: light columns, one number per target value."""

    stats: StoreStats
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
    """By target, the value of a scalar, or the norm of a vector or tensor, [G] or [N]; NaN where
    missing."""

    classes: dict[str, NDArray[np.int64]]
    """By target of classes, the place of each label's class, [G] or [N]; -1 where missing."""

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
    """Yield the arrays of each window of a store, compared with their checksums.

    Args:
        index: index of the store.
        names: columns to read; None means all.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    with WindowReader(index) as reader:
        for window in range(len(index.windows)):
            yield reader.read(window, window + 1, names)


def scan_store(index: Index, stats: StoreStats) -> Scan:
    """Read the light columns of a store, window by window.

    Raises:
        DataError: a part is missing, cut off or altered.
    """
    columns = [column.name for column in index.columns]
    kinds = ("target.", "attribute.")
    names = (*_LIGHT, *(name for name in columns if name.startswith(kinds)))
    windows = []
    for arrays in read_windows(index, names):
        for name in [name for name in arrays if name.startswith("target.")]:
            target = name.removeprefix("target.")
            if stats["targets"][target]["shape"] == "class":
                arrays[f"class.{target}"] = _find_class(arrays[name])
            arrays[name] = _score(arrays[name])
        windows.append(arrays)
    joined = join_arrays(windows)
    named = {name.partition(".")[::2]: array for name, array in joined.items()}
    return Scan(
        stats=stats,
        numbers=joined["numbers"],
        num_nodes=joined["num_nodes"],
        num_edges=joined["num_edges"],
        split=joined["split"],
        group=joined["group"],
        ids=Names(joined["id_text"], offsets(joined["id_size"])),
        attributes={name: v for (kind, name), v in named.items() if kind == "attribute"},
        scores={name: v for (kind, name), v in named.items() if kind == "target"},
        classes={name: v for (kind, name), v in named.items() if kind == "class"},
    )


def _find_class(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of the class of each row, -1 where it is missing."""
    return np.where(np.isnan(values).any(axis=1), -1, values.argmax(axis=1))


def _score(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one number per row: the value of a scalar, else the root of the sum of squares.

    That is the length of a vector, and 1 for a class, which is stored as one number for each class.
    """
    if values.shape[1] == 1:
        return values[:, 0]
    return np.asarray(np.linalg.norm(values, axis=1), dtype=np.float64)


FEWEST = 10
"""Smallest number of values among which outliers are searched."""

ROUNDS = 30
"""Largest number of fits; after each, values more than half as far as the farthest are left out."""

RIDGE = 0.1
"""Ridge penalty, in structures; it pulls the coefficients of rare elements towards 0."""

MAD_TO_STD = 1.4826
"""Standard deviation over median absolute deviation, for normal values: 1 / 0.6745."""

MEAN_TO_STD = 1.2533
"""Standard deviation over mean absolute deviation, for normal values: sqrt(pi / 2)."""

CUT = 100.0
"""Number of scales at which deviations are clipped in ``Spread.usual``."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spread:
    """Deviation of each value of a target from its expected value."""

    subtracted: str
    """Name of the expected value that was subtracted, in words."""

    rest: Array
    """Residuals in the target's unit, total energies per atom, [G] or [N]; NaN where missing."""

    scale: Array
    """Robust standard deviation that each value is measured by, [G] or [N]."""

    z: Array
    """Robust z-score, [G] or [N]; 0 where missing."""

    @cached_property
    def usual(self) -> float:
        """Estimate one standard deviation for all values from the mean absolute deviation.

        Deviations are clipped at ``CUT`` scales, so that outliers add little. Unlike ``scale``,
        the result averages over elements, so it is not 0 for an element whose values are all 0.
        """
        known = np.isfinite(self.rest)
        if not known.any():
            return 0.0
        off = np.abs(self.rest[known])
        scale = self.scale[known]
        return MEAN_TO_STD * float(np.where(scale > 0, np.minimum(off, CUT * scale), off).mean())


def measure_spread(scan: Scan, name: str, limit: float) -> Spread:
    """Measure how far each value of a target is from the others.

    Args:
        scan: scan of the store.
        name: name of the target.
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
    """Compute median and robust standard deviation of values without NaN.

    Where at least half of the values are equal, as in band gaps of metals, the MAD is 0. The
    deviations of the others are used then, or the mean absolute deviation of all where these are
    fewer than ``FEWEST``.

    Returns:
        Both in the unit of the values. The standard deviation is 0 where all values are equal, or
        there are fewer than ``FEWEST``.
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
    """Measure node values against those of the same element."""
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
    used = known
    rest = values
    scale = 0.0
    for _ in range(ROUNDS if known.any() else 0):
        rest = values - _fit_composition(design, values, used)
        if total:
            # Errors of total energies grow with the size, so they are compared per atom.
            rest = rest / nodes
        middle, scale = robust_center_and_scale(rest[known])
        rest = rest - middle
        far = float(np.abs(rest[used]).max())
        if scale == 0.0 or far <= limit * scale:
            break
        # Only the farthest are left out: they distort the fit of good structures, which may look
        # like outliers only because of them.
        used = known & (np.abs(rest) <= max(far / 2, limit * scale))
    return _make_spread("fit over composition", rest, np.full(len(values), scale))


def _fit_composition(design: csr_array, values: Array, used: NDArray[np.bool_]) -> Array:
    """Fit one coefficient per element and a constant on the used rows; predict all rows, [G]."""
    rows = design[np.flatnonzero(used)]
    centre = np.asarray(rows.mean(axis=0)).reshape(-1)
    mean = float(values[used].mean())
    gram = (rows.T @ rows).toarray() - len(values[used]) * np.outer(centre, centre)
    right = rows.T @ (values[used] - mean)
    numbers = np.linalg.solve(gram + RIDGE * np.eye(ELEMENTS), right)
    predicted: Array = mean + design @ numbers - centre @ numbers
    return predicted


def _make_spread(subtracted: str, rest: Array, scale: Array) -> Spread:
    z = np.divide(rest, scale, out=np.zeros(len(rest)), where=scale > 0)
    return Spread(subtracted, rest, scale, np.where(np.isfinite(z), z, 0.0))


BINS = 40
"""Bins of the histogram of a target."""

REACH = 8.0
"""Half the width of a histogram, in robust standard deviations, where values reach farther."""

TAIL = 0.5
"""A histogram covers at least the values from this percentile to 100 minus it."""


class StoreFiles(TypedDict):
    """Sizes of a store on disk and in memory."""

    path: str
    """Path of the store."""
    bytes: int
    """Bytes of all columns in memory."""
    file_bytes: int
    """Bytes of the files of all parts."""
    windows: int
    """Number of windows."""
    parts: int
    """Number of parts."""
    quarantined: int
    """Number of bad structures that were set aside."""


class SplitValues(TypedDict):
    """Values of a target in one split; the norms of vectors and tensors."""

    classes: NotRequired[dict[str, int]]
    """Number of labels of each class; absent for other shapes."""

    values: int
    """Number of known values."""
    missing: float
    """Share of values that are missing, 0 to 1."""
    mean: float | None
    """In the target's unit; this and the next four are None where no value is known."""
    std: float | None
    """Standard deviation."""
    median: float | None
    min: float | None
    max: float | None
    counts: list[int]
    """Number of values in each bin; values beyond the bins are in the first and the last."""


class TargetValues(TypedDict):
    """Values of a target in every split."""

    bins: list[float]
    """Edges of the bins, in the target's unit, ``BINS`` + 1 of them."""
    train: SplitValues
    val: SplitValues
    sel: SplitValues
    cal: SplitValues
    test: SplitValues


class StoreOverview(StoreStats):
    """The statistics of a store, with its sizes and the values of its targets by split."""

    store: StoreFiles
    """Sizes of the store."""
    target_splits: dict[str, TargetValues]
    """Values by target."""


def describe_store(path: Path) -> StoreOverview:
    """Return the statistics of a store, its sizes, and the values of its targets by split.

    Raises:
        DataError: ``path`` is not a store, or the store is damaged.
    """
    index = read_index(path)
    stats = read_checked_stats(index)
    files = sum(int(entry["bytes"]) for part in index.parts for entry in part.files)
    store: StoreFiles = {
        "path": str(path),
        "bytes": index.nbytes,
        "file_bytes": files,
        "windows": len(index.windows),
        "parts": len(index.parts),
        "quarantined": int(stats.get("quarantined", 0)),
    }
    scan = scan_store(index, stats)
    by_target = {name: _describe_target(scan, name) for name in scan.scores}
    return {**stats, "store": store, "target_splits": by_target}


def _describe_target(scan: Scan, name: str) -> TargetValues:
    values = scan.scores[name]
    by_node = scan.stats["targets"][name]["level"] == "node"
    split = np.repeat(scan.split, scan.num_nodes) if by_node else scan.split
    edges = _choose_bins(values[np.isfinite(values)])
    classes = scan.stats["targets"][name].get("classes") or ()
    by_split = {}
    for number, split_name in enumerate(SPLITS):
        described = _describe_split(values[split == number], edges)
        if name in scan.classes:
            labels = scan.classes[name][split == number]
            counted = np.bincount(labels[labels >= 0], minlength=len(classes)).tolist()
            described["classes"] = dict(zip(classes, counted, strict=True))
        by_split[split_name] = described
    return cast("TargetValues", {"bins": edges.tolist(), **by_split})


def _describe_split(values: Array, edges: Array) -> SplitValues:
    known = values[np.isfinite(values)]
    counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), edges)
    empty = not len(known)
    return {
        "values": len(known),
        "missing": 1.0 - len(known) / len(values) if len(values) else 0.0,
        "mean": None if empty else float(known.mean()),
        "std": None if empty else float(known.std()),
        "median": None if empty else float(np.median(known)),
        "min": None if empty else float(known.min()),
        "max": None if empty else float(known.max()),
        "counts": counts.tolist(),
    }


def _choose_bins(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return edges of bins, [BINS + 1], so that outliers do not push all others into one bin."""
    if not len(values):
        return np.linspace(0.0, 1.0, BINS + 1)
    middle, scale = robust_center_and_scale(values)
    low = float(values.min())
    high = float(values.max())
    if scale > 0:
        tails = np.percentile(values, (TAIL, 100.0 - TAIL))
        low = max(low, min(float(tails[0]), middle - REACH * scale))
        high = min(high, max(float(tails[1]), middle + REACH * scale))
    if not high > low:
        half_width = max(abs(low), 1.0) * 0.5
        low, high = low - half_width, high + half_width
    assert math.isfinite(low)
    assert math.isfinite(high)
    return np.linspace(low, high, BINS + 1)
