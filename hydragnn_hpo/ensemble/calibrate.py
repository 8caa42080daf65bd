"""From what members predict to a mean, its sigma and conformal intervals.

Mean and spread are streamed over members; sigma and intervals are fitted on the calibration
split, where kinds of structures (``Strata``) may have intervals of their own.

Shapes: G graphs, R rows of a head (graphs or nodes), w its components, n values.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from ase.data import atomic_numbers
from scipy.optimize import minimize
from scipy.special import ndtri

from hydragnn_hpo.data import Columns, GraphSet

By = Literal["all", "size", "chemistry"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of truths that intervals are quoted for."""

GRID = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares that have a quantile, ``LEVELS`` among them: enough for a whole calibration curve."""

FEWEST = 50
"""Independent groups that a kind of structures needs for intervals of its own. Coverage then
deviates by about 0.04 (standard deviation of the Beta law of split conformal at 90 %)."""

GRAPHS_TOGETHER = 1024
"""Graphs of a store that are in memory at once: their edges come along."""

_FAMILIES = {
    "oxygen": ("O",),
    "halogen": ("F", "Cl", "Br", "I", "At"),
    "chalcogen": ("S", "Se", "Te", "Po"),
    "pnictogen": ("N", "P", "As", "Sb"),
}
"""Elements that make anions: what a structure holds of them names its chemistry."""

_STARTS = ((1.0, 0.1), (0.5, 0.5), (0.05, 1.0))
_FEW = 10
"""With fewer values than this several parameters cannot be fitted: the constant is used."""


class Moments:
    """Weighted mean and sum of squared deviations of what arrives, in fp64.

    Source: West (1979), Comm. ACM 22, 532, eqs. for weighted data.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._weight = 0.0
        self._mean: np.ndarray = np.zeros(())
        self._squares: np.ndarray = np.zeros(())
        self._noise: np.ndarray | float = 0.0

    def add(self, values: np.ndarray, weight: float, noise: np.ndarray | None = None) -> None:
        """Take one member's prediction in.

        Args:
            values: what it predicts, [R, w].
            weight: its weight, > 0.
            noise: the variance that it predicts for its own errors, [R, 1]; none is 0.
        """
        self._weight += weight
        if noise is not None:
            self._noise = self._noise + weight * noise
        values = np.asarray(values, dtype=np.float64)
        change = values - self._mean
        self._mean = self._mean + change * (weight / self._weight)
        self._squares = self._squares + weight * change * (values - self._mean)

    @property
    def mean(self) -> np.ndarray:
        """Return the weighted mean, shaped like the predictions."""
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        """Return the weighted variance about the mean, in the unit squared."""
        return np.maximum(self._squares / self._weight, 0.0)

    @property
    def noise(self) -> np.ndarray:
        """Return the weighted mean of the variances that members predict, [R, 1]; 0 without any."""
        whole: np.ndarray = np.broadcast_to(self._noise / self._weight, (*self._mean.shape[:-1], 1))
        return whole

    @property
    def spread(self) -> np.ndarray:
        """Return the members' spread of each row, [R, 1]: root mean variance of its components.

        One number for all components of a vector, so that it does not depend on the axes.
        """
        root: np.ndarray = np.sqrt(self.variance.mean(axis=-1, keepdims=True))
        return root


def compute_moments(
    predictions: Sequence[np.ndarray] | np.ndarray,
    weights: Iterable[float],
    noises: Sequence[np.ndarray] | np.ndarray | None = None,
) -> Moments:
    """Gather members' predictions; members of weight 0 are left out.

    Args:
        predictions: of the members, [R, w] each.
        weights: their weights.
        noises: the variances that they predict for their own errors, [R, 1] each.
    """
    moments = Moments()
    each = [None] * len(predictions) if noises is None else noises
    for values, weight, noise in zip(predictions, weights, each, strict=True):
        if weight > 0:
            moments.add(values, float(weight), noise)
    return moments


@dataclass(frozen=True)
class Strata:
    """Kinds of structures, told apart before anything is predicted."""

    by: By = "all"
    """Not at all, by the number of atoms, or by the anions among the elements."""
    edges: tuple[int, ...] = ()
    """For ``size``: most atoms of each kind but the last, rising."""

    def names(self, columns: Columns) -> np.ndarray:
        """Return the name of each structure's kind, [G]; of all the same for ``all``."""
        if self.by == "size":
            return self.of_sizes(columns.num_nodes())
        if self.by == "chemistry":
            return _chemistries(columns)
        return np.full(columns.num_graphs, "all")

    def of_rows(self, graphs: GraphSet, indices: np.ndarray, *, node: bool) -> np.ndarray:
        """Return the kind of structure of each row of a node- or graph-level head, [R].

        Args:
            graphs: of a store, or in memory.
            indices: of the graphs.
            node: whether the head has a row for each node.
        """
        names = [
            self.names(graphs.take(indices[first : first + GRAPHS_TOGETHER]))
            for first in range(0, max(len(indices), 1), GRAPHS_TOGETHER)
        ]
        whole = np.concatenate(names)
        return np.repeat(whole, graphs.num_nodes()[indices]) if node else whole

    def of_sizes(self, atoms: np.ndarray) -> np.ndarray:
        """Return the name of each structure's kind by its number of atoms, [G]."""
        starts = (1, *(edge + 1 for edge in self.edges))
        names = [f"{a} to {b} atoms" for a, b in zip(starts, self.edges, strict=False)]
        names.append(f"{starts[-1]} or more atoms")
        return np.array(names)[np.searchsorted(self.edges, atoms)]


def size_strata(atoms: np.ndarray) -> Strata:
    """Cut by size so that each third of some structures has its own kind.

    Args:
        atoms: numbers of atoms of the structures to calibrate on, [G].
    """
    thirds = np.quantile(atoms, (1 / 3, 2 / 3), method="inverted_cdf").astype(int)
    edges = sorted(set(thirds.tolist()) - {int(atoms.max())})
    return Strata("size", tuple(edges))


def _chemistries(columns: Columns) -> np.ndarray:
    """Return names: ``organic`` (carbon and hydrogen), by their anions, or ``no anion``."""
    table = np.zeros(128, dtype=np.int64)
    for bit, family in enumerate((("C",), ("H",), *_FAMILIES.values())):
        for symbol in family:
            table[atomic_numbers[symbol]] |= 1 << bit
    if not columns.num_graphs:
        return np.zeros(0, dtype="U1")
    found = np.bitwise_or.reduceat(table[columns.numbers], columns.node_offset[:-1])
    kinds, place = np.unique(found, return_inverse=True)
    return np.array([_named(int(kind)) for kind in kinds])[place]


def _named(kind: int) -> str:
    if kind & 3 == 3:
        return "organic"
    names = [name for bit, name in enumerate(_FAMILIES, start=2) if kind & (1 << bit)]
    return "+".join(names) or "no anion"


def graph_of_row(graphs: GraphSet, indices: np.ndarray, *, node: bool) -> np.ndarray:
    """Return the position of the graph of each row of a node- or graph-level head, [R].

    Args:
        graphs: of a store, or in memory.
        indices: of the graphs.
        node: whether the head has a row for each node.
    """
    positions = np.arange(len(indices))
    return np.repeat(positions, graphs.num_nodes()[indices]) if node else positions


def largest_per_graph(values: np.ndarray, graph: np.ndarray, graphs: int) -> np.ndarray:
    """Return each graph's largest value, [G]; -inf for a graph without rows.

    Args:
        values: one number per row, [R].
        graph: position of each row's graph, [R].
        graphs: how many graphs there are.
    """
    largest = np.full(graphs, -np.inf)
    np.maximum.at(largest, graph, values)
    return largest


def key(level: float) -> str:
    """Return the name of a level in tables, as ``0.9``."""
    return f"{level:g}"


def group_weights(group: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the share of each value in its group, [n], and the number of groups."""
    _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    weights: np.ndarray = 1.0 / counts[place]
    return weights, len(counts)


def conformal_rank(count: int, level: float) -> int:
    """Return the rank, from 1, of the score that covers ``level`` of new values.

    Source: Vovk et al. (2005), Algorithmic learning in a random world: ceil((n + 1) level).
    """
    return math.ceil((count + 1) * level - 1e-9)


def conformal_quantiles(scores: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Return for every level of ``GRID``, by ``key(level)``, the score that covers a new group.

    The groups' distributions of scores are pooled with equal weight, and one more group
    whose scores are all infinite stands for the new one; with one value per group this is
    the score of the conformal rank. With too few groups no finite interval has the
    guarantee; then the larger of the largest score and the Gaussian quantile stands in
    (``Calibration.guaranteed`` tells).

    Args:
        scores: residual over sigma, [n].
        group: number of each value's group, [n].

    Source: Dunn, Wasserman, Ramdas (2023), J. Am. Stat. Assoc. 118, 2491 (pooling CDFs).
    """
    weight, groups = group_weights(group)
    order = np.argsort(scores, kind="stable")
    rising, covered = scores[order], np.cumsum(weight[order])
    return {key(level): _quantile(rising, covered, level, groups) for level in GRID}


def conformal_tables(
    scores: np.ndarray, group: np.ndarray, stratum: np.ndarray
) -> dict[str, dict[str, float]]:
    """Return own quantiles for the strata that have enough groups.

    A kind that is missing here takes the quantiles of all, as the only kind there is does.

    Args:
        scores: residual over sigma, [n].
        group: number of each value's group, [n].
        stratum: name of each value's kind of structure, [n].

    Source: Vovk, Lindsay, Nouretdinov, Gammerman (2003), Mondrian confidence machine.
    """
    tables: dict[str, dict[str, float]] = {}
    names = np.unique(stratum).tolist()
    for name in names if len(names) > 1 else ():
        here = stratum == name
        if len(np.unique(group[here])) >= FEWEST:
            tables[str(name)] = conformal_quantiles(scores[here], group[here])
    return tables


def _quantile(rising: np.ndarray, covered: np.ndarray, level: float, groups: int) -> float:
    place = int(np.searchsorted(covered, (groups + 1) * level - 1e-9))
    if place >= len(rising):
        return max(float(rising[-1]), float(ndtri(0.5 + level / 2)))
    return float(rising[place])


def fit_variance(
    known: np.ndarray, square: np.ndarray, weight: np.ndarray, floor: float
) -> tuple[np.ndarray, float]:
    """Fit factors f >= 0 and b >= ``floor`` of sigma^2 = known f + b by weighted likelihood.

    Args:
        known: variances that may explain the squared residuals, [n, p]; the members'
            variance, the variance that members predict.
        square: squared residuals, [n].
        weight: how much each value counts, [n], > 0.
        floor: smallest b, in the unit squared, > 0.

    Returns:
        The factors, [p], 0 where a known variance is the same everywhere, and b; the closed
        form f = 0, b = mean square where there are few values, and where no fit is better.
        Never less likely than f = 1, b = ``floor``.
    """
    weight = weight / weight.sum()
    constant = max(float(weight @ square), floor)
    factors, unit = np.zeros(known.shape[1]), weight @ known
    used = np.flatnonzero(np.ptp(known, axis=0) > 1e-12 * np.maximum(unit, floor))
    if len(square) < _FEW or not len(used):
        return factors, constant
    x, y = known[:, used] / unit[used], square / constant
    low = max(floor / constant, 1e-9)
    bounds = [(0.0, 1e6)] * len(used) + [(low, 1e6)]
    best, lowest = np.r_[np.zeros(len(used)), 1.0], 0.5 * float(weight @ y)
    for start in (*_starts(len(used)), np.r_[unit[used] / constant, low]):
        found = minimize(
            _cost, start, args=(x, y, weight), jac=True, bounds=bounds, method="L-BFGS-B"
        )
        if np.isfinite(found.fun) and found.fun < lowest - 1e-12:
            best, lowest = found.x, float(found.fun)
    factors[used] = best[:-1] * constant / unit[used]
    return factors, max(float(best[-1]) * constant, floor)


def _cost(
    p: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the negative log likelihood and its slope; factors [p - 1], then the constant."""
    sigma2 = x @ p[:-1] + p[-1]
    slope = 0.5 * weight * (1.0 / sigma2 - y / np.square(sigma2))
    value = 0.5 * float(weight @ (np.log(sigma2) + y / sigma2))
    return value, np.r_[slope @ x, slope.sum()]


def _starts(count: int) -> list[np.ndarray]:
    """Return starting points: all variances together, and each alone."""
    shares = [np.full(count, 1.0 / count), *(np.eye(count) if count > 1 else ())]
    return [np.r_[factor * share, constant] for factor, constant in _STARTS for share in shares]


@dataclass(frozen=True)
class Calibration:
    """How one head's spread s becomes sigma: sigma^2 = a s^2 + c v + b."""

    a: float
    """Factor of the members' variance, >= 0."""
    b: float
    """Variance that the members do not see, in the unit squared, > 0."""
    quantiles: dict[str, float]
    """By level, as ``"0.9"``: the interval is mean -+ quantile * sigma."""
    spread99: float
    """99th percentile over the calibration structures of their largest spread, in the unit."""
    rows: int
    """Values (rows times components) that it was fitted on."""
    groups: int
    """Groups of structures they come from: what counts as independent."""
    c: float = 0.0
    """Factor of the variance that members predict for their own errors, >= 0."""
    tables: dict[str, dict[str, float]] = field(default_factory=dict)
    """Quantiles of kinds of structures that have their own, see ``Strata``."""

    def sigma(self, spread: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
        """Return the calibrated standard deviation, in the unit.

        Args:
            spread: of the members, in the unit.
            noise: mean of the variances that members predict, in the unit squared.
        """
        root: np.ndarray = np.sqrt(self.a * np.square(spread) + self.c * noise + self.b)
        return root

    def half_width(
        self, sigma: np.ndarray, level: float = 0.9, stratum: np.ndarray | None = None
    ) -> np.ndarray:
        """Return half the interval that covers ``level``, in the unit.

        Args:
            sigma: calibrated standard deviation, [R, 1].
            level: share to cover, one that has a quantile.
            stratum: name of each row's kind of structure, [R]; all alike if left out.
        """
        quantile = np.full(np.shape(sigma), self.quantiles[key(level)])
        if stratum is not None:
            for name, table in self.tables.items():
                quantile[stratum == name] = table[key(level)]
        half: np.ndarray = quantile * sigma
        return half

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the levels that have a quantile, rising."""
        return tuple(sorted(float(name) for name in self.quantiles))

    def guaranteed(self, level: float) -> bool:
        """Check whether there were enough groups for the conformal guarantee at a level."""
        return conformal_rank(self.groups, level) <= self.groups


def calibrate(
    residual: np.ndarray,
    spread: np.ndarray,
    *,
    group: np.ndarray,
    largest: np.ndarray,
    scale: float,
    noise: np.ndarray | float = 0.0,
    stratum: np.ndarray | str = "all",
) -> Calibration:
    """Fit the affine map by Gaussian likelihood, then conformal quantiles.

    Each group (copies of a molecule, atoms of one structure, components of a vector) weighs
    the same, and the intervals are those of a value of a *new* group.

    Args:
        residual: truth minus mean, [R, w], in the unit.
        spread: the members' spread, [R, 1], in the unit.
        group: number of each row's group, [R].
        largest: for each calibration structure its largest spread, in the unit.
        scale: the target's standard deviation; keeps b above zero when all fits perfectly.
        noise: mean of the variances that members predict, [R, 1], in the unit squared.
        stratum: name of each row's kind of structure, [R], if kinds have their own intervals.
    """
    width, kinds = residual.shape[1], np.broadcast_to(stratum, group.shape)
    variances = np.concatenate((np.square(spread), np.broadcast_to(noise, spread.shape)), axis=1)
    weight, groups = group_weights(each := np.repeat(group, width))
    squares, floor = np.square(residual).ravel(), (1e-6 * scale) ** 2
    factors, b = fit_variance(np.repeat(variances, width, axis=0), squares, weight, floor)
    scores = (np.abs(residual) / np.sqrt(variances @ factors + b)[:, None]).ravel()
    return Calibration(
        a=float(factors[0]),
        b=b,
        quantiles=conformal_quantiles(scores, each),
        spread99=float(np.quantile(largest, 0.99)),
        rows=residual.size,
        groups=groups,
        c=float(factors[1]),
        tables=conformal_tables(scores, each, np.repeat(kinds, width)),
    )
