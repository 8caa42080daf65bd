"""Values far from all others, measured by median and median absolute deviation.

Energies are looked at after what the elements explain is taken away, node values after the
median of their element: otherwise composition dominates. Elements are fitted on all splits, in
rounds that leave outliers out.

Source: modified z-score, Iglewicz and Hoaglin (1993), "How to Detect and Handle Outliers".

Shapes: G graphs, N nodes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hydragnn_hpo.data.check.scan import Scan
from hydragnn_hpo.data.statistics import ELEMENTS

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

    @property
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


def spread_of(scan: Scan, name: str, limit: float) -> Spread:
    """Measure the values of a target.

    Args:
        scan: of the store.
        name: of the target.
        limit: robust z-score from which a value is an outlier.
    """
    target, values = scan.stats["targets"][name], scan.scores[name]
    scalar = target["shape"] == "scalar"
    if target["level"] == "node":
        return _by_own_element(
            scan, values, "median of the element" if scalar else "median norm of the element"
        )
    if scalar and target["energy"] is not None:
        return _by_composition(scan, values, target["energy"] == "total", limit)
    return _plain(values, "median" if scalar else "median norm")


def centre_and_scale(values: Array) -> tuple[float, float]:
    """Give median and robust standard deviation of known values.

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


def _plain(values: Array, subtracted: str) -> Spread:
    middle, scale = centre_and_scale(values[np.isfinite(values)])
    return _measured(subtracted, values - middle, np.full(len(values), scale))


def _by_own_element(scan: Scan, values: Array, subtracted: str) -> Spread:
    """Measure nodes among those of their element."""
    middles, scales = np.zeros((2, ELEMENTS))
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(scan.numbers[known], kind="stable")]
    cuts = np.flatnonzero(np.diff(scan.numbers[order])) + 1
    for rows in np.split(order, cuts) if len(order) else []:
        number = scan.numbers[rows[0]]
        middles[number], scales[number] = centre_and_scale(values[rows])
    rest = values - middles[scan.numbers]
    return _measured(subtracted, rest, scales[scan.numbers])


def _by_composition(scan: Scan, values: Array, total: bool, limit: float) -> Spread:
    """Measure energies after a fit over composition: counts for totals, fractions otherwise."""
    nodes = scan.num_nodes.astype(np.float64)
    weights = np.ones(len(scan.numbers)) if total else 1.0 / np.repeat(nodes, scan.num_nodes)
    shape = (scan.num_graphs, ELEMENTS)
    design = csr_array((weights, (scan.graph_of_node, scan.numbers)), shape=shape)
    known = np.isfinite(values)
    used, rest, scale = known, values, 0.0
    for _ in range(ROUNDS if known.any() else 0):
        rest = values - _fitted(design, values, used)
        if total:
            # Errors of totals grow with size; what is usual is counted per atom.
            rest = rest / nodes
        middle, scale = centre_and_scale(rest[known])
        rest = rest - middle
        far = float(np.abs(rest[used]).max())
        if scale == 0.0 or far <= limit * scale:
            break
        # Only the farthest leave: they draw sound structures of their elements away, too.
        used = known & (np.abs(rest) <= max(far / 2, limit * scale))
    return _measured("fit over composition", rest, np.full(len(values), scale))


def _fitted(design: csr_array, values: Array, used: NDArray[np.bool_]) -> Array:
    """Predict by one number per element and a constant, fitted on the rows that are used."""
    rows = design[np.flatnonzero(used)]
    centre = np.asarray(rows.mean(axis=0)).reshape(-1)
    mean = float(values[used].mean())
    gram = (rows.T @ rows).toarray() - len(values[used]) * np.outer(centre, centre)
    right = rows.T @ (values[used] - mean)
    numbers = np.linalg.solve(gram + RIDGE * np.eye(ELEMENTS), right)
    found: Array = mean + design @ numbers - centre @ numbers
    return found


def _measured(subtracted: str, rest: Array, scale: Array) -> Spread:
    z = np.divide(rest, scale, out=np.zeros(len(rest)), where=scale > 0)
    return Spread(subtracted, rest, scale, np.where(np.isfinite(z), z, 0.0))
