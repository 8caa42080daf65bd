"""Compute mean, calibrated sigma and conformal intervals from the members' predictions.

Mean and spread are accumulated member by member. Sigma and the quantiles that turn it into
intervals are fitted on the calibration split; kinds of structures and elements (``Strata``) have
quantiles of their own, drawn towards those of all where they have few groups.

Shapes: G graphs, R rows of a head (graphs or nodes), w its components, n values, S strata.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from scipy.optimize import brentq, minimize
from scipy.sparse import csr_array
from scipy.special import ndtri

from hydragnn_hpo.config import Bounds
from hydragnn_hpo.data import Columns, GraphSet
from hydragnn_hpo.uncertainty.error_factors import (
    ErrorFactors,
    RowFeatures,
    fit_factors,
    mark_elements,
    predicted_size,
)

By = Literal["all", "size", "chemistry"]
"""Property that defines kinds of structures: none, the number of atoms, or the anions."""

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Nominal coverages of the reported intervals."""

GRID = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Nominal coverages with a quantile, 0.05 to 0.95; include ``LEVELS`` and suffice for a curve."""

PRIOR_GROUPS = 50
"""Groups of its own at which a stratum's scores weigh as much as those of all. Coverage from n own
groups has the variance l (1 - l) / n at the level l (Beta law of split conformal), that from the
rescaled scores of all the variance d^2 of the strata's shapes. The best weight of the own scores is
n / (n + l (1 - l) / d^2): 50 at 90 % for d = 0.042."""

SYMBOLS = np.array(chemical_symbols)
"""Chemical symbols by atomic number."""

GRAPHS_TOGETHER = 1024
"""Graphs read from a store at once; their edges take most of the memory."""

ONE_KIND = 0.9
"""Share of one chemistry from which structures are divided by size instead."""

_FAMILIES = {
    "oxygen": ("O",),
    "halogen": ("F", "Cl", "Br", "I", "At"),
    "chalcogen": ("S", "Se", "Te", "Po"),
    "pnictogen": ("N", "P", "As", "Sb"),
}
"""Elements that form anions, by family; the families present in a structure name its chemistry."""

_STARTS = ((1.0, 0.1), (0.5, 0.5), (0.05, 1.0))
"""Starting points of the fit: sum of the factors, and the constant, in units of the mean square."""
_FEW = 10
"""With fewer values than this only a constant variance is fitted."""


def take_pieces(graphs: GraphSet, indices: np.ndarray) -> Iterator[Columns]:
    """Yield some graphs, ``GRAPHS_TOGETHER`` at a time, at least one piece.

    Args:
        graphs: graphs of a store, or in memory.
        indices: positions of the graphs wanted, [G].
    """
    for first in range(0, max(len(indices), 1), GRAPHS_TOGETHER):
        yield graphs.take(indices[first : first + GRAPHS_TOGETHER])


def clip_to_bounds(values: np.ndarray, bounds: Bounds | None) -> np.ndarray:
    """Return values of which those outside of the bounds are moved to the bound.

    Args:
        values: in the unit of the bounds, any shape.
        bounds: None leaves them as they are.
    """
    return values if bounds is None else np.clip(values, *bounds)


class Moments:
    """Weighted mean and variance over members that are added one by one, in fp64.

    Source: West (1979), Comm. ACM 22, 532, eqs. for weighted data.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        """Start without members; the mean stays within ``bounds``, in the unit."""
        self._bounds = bounds
        self._weight = 0.0
        self._mean: np.ndarray = np.zeros(())
        self._squares: np.ndarray = np.zeros(())
        self._noise: np.ndarray | float = 0.0

    def add(self, values: np.ndarray, weight: float, noise: np.ndarray | None = None) -> None:
        """Add one member.

        Args:
            values: its predictions, [R, w].
            weight: its weight, > 0; only ratios count.
            noise: the variance that it predicts for its own errors, [R, 1]; 0 if None.
        """
        self._weight += weight
        if noise is not None:
            self._noise = self._noise + weight * noise
        values = np.asarray(values, dtype=np.float64)
        change = values - self._mean
        self._mean = self._mean + change * (weight / self._weight)
        # the deviation from the old mean times that from the new one
        self._squares = self._squares + weight * change * (values - self._mean)

    @property
    def mean(self) -> np.ndarray:
        """The weighted mean within the bounds, [R, w]."""
        return clip_to_bounds(self._mean, self._bounds)

    @property
    def variance(self) -> np.ndarray:
        """The weighted variance about the mean, in the unit squared, [R, w]."""
        return np.maximum(self._squares / self._weight, 0.0)

    @property
    def noise(self) -> np.ndarray:
        """The weighted mean v of predicted variances, in the unit squared, [R, 1]; 0 if none."""
        whole: np.ndarray = np.broadcast_to(self._noise / self._weight, (*self._mean.shape[:-1], 1))
        return whole

    @property
    def spread(self) -> np.ndarray:
        """The members' spread s, in the unit, [R, 1]: root mean variance of a row's components.

        The components of a vector share one value, so it does not depend on the choice of axes.
        """
        root: np.ndarray = np.sqrt(self.variance.mean(axis=-1, keepdims=True))
        return root


def compute_moments(
    predictions: Sequence[np.ndarray] | np.ndarray,
    weights: Iterable[float],
    noises: Sequence[np.ndarray] | np.ndarray | None = None,
    bounds: Bounds | None = None,
) -> Moments:
    """Return the moments of members' predictions; members of weight 0 are left out.

    Args:
        predictions: predictions of the M members, [R, w] each.
        weights: weights of the M members, >= 0.
        noises: variances that members predict for their own errors, [R, 1] each; 0 if None.
        bounds: of the mean, in the unit.
    """
    moments = Moments(bounds)
    each = [None] * len(predictions) if noises is None else noises
    for values, weight, noise in zip(predictions, weights, each, strict=True):
        if weight > 0:
            moments.add(values, float(weight), noise)
    return moments


@dataclass(frozen=True)
class Strata:
    """Rule that assigns each structure a kind from its atoms alone."""

    by: By = "all"
    """``all``: there is one kind; ``size``: by number of atoms; ``chemistry``: by anions."""
    edges: tuple[int, ...] = ()
    """For ``size``: most atoms of each kind except the last, which has no limit; ascending."""
    atoms: Literal["structure", "element"] = "structure"
    """Stratum of a row of a node-level head: the kind of its structure, or its atom's element."""

    def names(self, columns: Columns) -> np.ndarray:
        """Return the name of each structure's kind, [G]."""
        if self.by == "size":
            return self.of_sizes(columns.num_nodes())
        if self.by == "chemistry":
            return _chemistries(columns)
        return np.full(columns.num_graphs, "all")

    def names_of_rows(self, columns: Columns, *, node: bool) -> np.ndarray:
        """Return the name of each row's stratum, [R].

        Args:
            columns: some graphs.
            node: True for one row per node, False for one row per graph.
        """
        if node and self.atoms == "element":
            return SYMBOLS[columns.numbers]
        names = self.names(columns)
        return np.repeat(names, columns.num_nodes()) if node else names

    def of_rows(self, graphs: GraphSet, indices: np.ndarray, *, node: bool) -> np.ndarray:
        """Return the name of each row's stratum, [R].

        Args:
            graphs: graphs of a store, or in memory.
            indices: positions of the graphs wanted, [G].
            node: True for one row per node, False for one row per graph.
        """
        parts = take_pieces(graphs, indices)
        return np.concatenate([self.names_of_rows(part, node=node) for part in parts])

    def describe(self, *, node: bool) -> str:
        """Return in words what the stratum of a row is.

        Args:
            node: True for one row per node, False for one row per graph.
        """
        if node and self.atoms == "element":
            return "the symbol of the atom's element"
        kinds = {
            "all": "all: there is one",
            "size": "number of atoms of the structure",
            "chemistry": "anions of the structure",
        }
        return kinds[self.by]

    def of_sizes(self, atoms: np.ndarray) -> np.ndarray:
        """Return the name of each structure's kind by its number of atoms, [G]."""
        starts = (1, *(edge + 1 for edge in self.edges))
        names = [f"{a} to {b} atoms" for a, b in zip(starts, self.edges, strict=False)]
        names.append(f"{starts[-1]} or more atoms")
        return np.array(names)[np.searchsorted(self.edges, atoms)]


def size_strata(atoms: np.ndarray) -> Strata:
    """Return strata by size whose limits divide some structures into thirds.

    Args:
        atoms: numbers of atoms of the structures to calibrate on, [G].
    """
    thirds = np.quantile(atoms, (1 / 3, 2 / 3), method="inverted_cdf").astype(int)
    edges = sorted(set(thirds.tolist()) - {int(atoms.max())})
    return Strata("size", tuple(edges))


def choose_strata(graphs: GraphSet, indices: np.ndarray) -> Strata:
    """Return strata that suit some structures: elements of atoms, and kinds of structures.

    The kinds are those of ``chemistry`` if the most frequent of them has at most ``ONE_KIND`` of
    the structures, else thirds by size.

    Args:
        graphs: graphs of a store, or in memory.
        indices: positions of the structures to calibrate on, [G]; at least one.
    """
    chemistry = Strata("chemistry", atoms="element")
    _, counts = np.unique(chemistry.of_rows(graphs, indices, node=False), return_counts=True)
    if counts.max() <= ONE_KIND * len(indices):
        return chemistry
    return replace(size_strata(graphs.num_nodes()[indices]), atoms="element")


def _chemistries(columns: Columns) -> np.ndarray:
    """Return for each structure ``organic`` (has C and H), its anions, or ``no anion``, [G]."""
    table = np.zeros(128, dtype=np.int64)
    for bit, family in enumerate((("C",), ("H",), *_FAMILIES.values())):
        for symbol in family:
            table[atomic_numbers[symbol]] |= 1 << bit
    if not columns.num_graphs:
        return np.zeros(0, dtype="U1")
    bits = np.bitwise_or.reduceat(table[columns.numbers], columns.node_offset[:-1])
    kinds, place = np.unique(bits, return_inverse=True)
    return np.array([_name_of_kind(int(kind)) for kind in kinds])[place]


def _name_of_kind(kind: int) -> str:
    """Return the name of a kind: bits 0 and 1 mark carbon and hydrogen, further bits the anions."""
    if kind & 3 == 3:
        return "organic"
    names = [name for bit, name in enumerate(_FAMILIES, start=2) if kind & (1 << bit)]
    return "+".join(names) or "no anion"


def graph_of_row(graphs: GraphSet, indices: np.ndarray, *, node: bool) -> np.ndarray:
    """Return the position of each row's graph among the graphs wanted, [R].

    Args:
        graphs: graphs of a store, or in memory.
        indices: positions of the graphs wanted, [G].
        node: True for one row per node, False for one row per graph.
    """
    positions = np.arange(len(indices))
    return np.repeat(positions, graphs.num_nodes()[indices]) if node else positions


def largest_per_graph(values: np.ndarray, graph: np.ndarray, graphs: int) -> np.ndarray:
    """Return each graph's largest value, [G]; -inf for a graph without rows.

    Args:
        values: one number per row, [R].
        graph: position of each row's graph, [R].
        graphs: number of graphs, G.
    """
    largest = np.full(graphs, -np.inf)
    np.maximum.at(largest, graph, values)
    return largest


def key(level: float) -> str:
    """Return the key of a level in tables of quantiles, as ``0.9``."""
    return f"{level:g}"


def group_weights(group: np.ndarray) -> tuple[np.ndarray, int]:
    """Weight values so that the weights of each group sum to 1.

    Args:
        group: number of each value's group, [n].

    Returns:
        Weight of each value, 1 over the size of its group, [n]; and the number of groups.
    """
    _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    weights: np.ndarray = 1.0 / counts[place]
    return weights, len(counts)


def conformal_quantiles(scores: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Compute the scores that cover the values of a new group at every level of ``GRID``.

    The groups' distributions of scores are pooled with equal weight, and one more group whose
    scores are all infinite represents the new one; with one value per group this is the score of
    the conformal rank. With too few groups no finite score has the guarantee (see
    ``Calibration.guaranteed``), and the larger of the largest score and the Gaussian quantile is
    used.

    Args:
        scores: |residual| over sigma, [n].
        group: number of each value's group, [n].

    Returns:
        Quantile of the scores by ``key(level)``, dimensionless.

    Source: Dunn, Wasserman, Ramdas (2023), J. Am. Stat. Assoc. 118, 2491 (pooling CDFs).
    """
    weight, groups = group_weights(group)
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    covered = np.cumsum(weight[order])
    return {key(level): _quantile(rising, covered, level, groups) for level in GRID}


def conformal_tables(
    scores: np.ndarray, group: np.ndarray, stratum: np.ndarray
) -> dict[str, dict[str, float]]:
    """Compute separate quantiles for each stratum, drawn towards those of all.

    Divided by the scales of their strata (``_Scales``), scores differ in shape alone. A stratum's
    quantiles are its scale times those of a mix of its own n groups, of all groups weighing as
    much as ``PRIOR_GROUPS`` (or as there are), and of one infinite group. With many groups they
    tend to those of the stratum alone, whose coverage is guaranteed. The scale that divides a
    score does not know the score's group, as that of a new group does not, so the coverage of all
    strata together stays the one of the level.

    Args:
        scores: |residual| over sigma, [n].
        group: number of each value's group, [n].
        stratum: name of each value's stratum, [n].

    Returns:
        Quantile by level, by stratum. Empty if there is only one stratum.

    Source: Vovk et al. (2003), Mondrian confidence machine; ``PRIOR_GROUPS`` derives the weight.
    """
    names, place = np.unique(stratum, return_inverse=True)
    if len(names) < 2:
        return {}
    scales = _Scales(scores, group, place)
    scores = scores / scales.without_own_group()
    order = np.argsort(scores, kind="stable")
    rising, own, place = scores[order], scales.weights[order], place[order]
    weight, groups = group_weights(group)
    prior = min(PRIOR_GROUPS, groups)
    of_all = np.cumsum(weight[order]) * (prior / groups)
    tables = {}
    for stratum_place, (name, scale) in enumerate(zip(names, scales.of_strata(), strict=True)):
        covered = of_all + np.cumsum(np.where(place == stratum_place, own, 0.0))
        count = int(scales.groups[stratum_place]) + prior
        tables[str(name)] = {
            key(level): float(scale) * _quantile(rising, covered, level, count) for level in GRID
        }
    return tables


class _Scales:
    """Scale of the scores of each stratum, drawn towards the mean of all in logarithms.

    The mean score m of a stratum with n groups has the variance c^2 / n in logarithms, where c is
    the coefficient of variation of the means of groups, alike for all strata. The true values are
    taken to be normal about a common mean with the variance t^2, and the estimate is then
    mean + t^2 / (t^2 + c^2 / n) (log m - mean). t^2 makes the weighted squares of the deviations
    equal to their expectation, S - 1.

    Source: Efron, Morris (1975), J. Am. Stat. Assoc. 70, 311 (shrinkage); Paule, Mandel (1982),
    J. Res. Natl. Bur. Stand. 87, 377 (t^2).
    """

    def __init__(self, scores: np.ndarray, group: np.ndarray, place: np.ndarray) -> None:
        """Estimate the common mean and the variances.

        Args:
            scores: |residual| over sigma, [n].
            group: number of each value's group, [n].
            place: number of each value's stratum, from 0, [n].
        """
        pairs, pair = np.unique(np.stack((place, group)), axis=1, return_inverse=True)
        self._pair = pair.reshape(-1)
        stratum = pairs[0]
        sizes = np.bincount(self._pair)
        self.weights = 1.0 / sizes[self._pair]
        """Weight of each value, [n]: those of a pair sum to 1."""
        means = np.bincount(self._pair, scores) / sizes
        self._stratum, self._own_means = stratum, means
        self.groups = np.bincount(stratum)
        """Number of groups of each stratum, [S]."""
        self._smallest = max(1e-6 * float(means.mean()), 1e-300)  # has a logarithm
        self._means = np.bincount(stratum, means) / self.groups
        ratio = means / np.maximum(self._means, self._smallest)[stratum]
        freedom = max(len(means) - len(self.groups), 1)
        self._variance = max(float(np.square(ratio - 1.0).sum()) / freedom, 1e-12)
        logs = self._logs(self._means)
        variances = self._variance / self.groups
        self._between = _variance_between(logs, variances)
        self._middle = float(np.average(logs, weights=1.0 / (variances + self._between)))

    def of_strata(self) -> np.ndarray:
        """Return the scale of each stratum, > 0, [S]."""
        return self._shrink(self._means, self.groups)

    def without_own_group(self) -> np.ndarray:
        """Return for each value the scale of its stratum without its group, > 0, [n].

        A stratum that has no other group takes the common mean.
        """
        groups = self.groups[self._stratum]
        others = groups * self._means[self._stratum] - self._own_means
        return self._shrink(others / np.maximum(groups - 1, 1), groups - 1)[self._pair]

    def _shrink(self, means: np.ndarray, groups: np.ndarray) -> np.ndarray:
        # B = t^2 / (t^2 + c^2 / n), written so that n = 0 gives 0
        share = groups * self._between / (groups * self._between + self._variance)
        scale: np.ndarray = np.exp(self._middle + share * (self._logs(means) - self._middle))
        return scale

    def _logs(self, means: np.ndarray) -> np.ndarray:
        logs: np.ndarray = np.log(np.maximum(means, self._smallest))
        return logs


def _variance_between(values: np.ndarray, variances: np.ndarray) -> float:
    """Return the variance of true values about their mean by Paule and Mandel, >= 0.

    Args:
        values: estimates, [S].
        variances: variance of each estimate about its true value, > 0, [S].
    """

    def excess(between: float) -> float:
        weight = 1.0 / (variances + between)
        deviation = values - np.average(values, weights=weight)
        return float(weight @ np.square(deviation)) - (len(values) - 1)

    if excess(0.0) <= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, np.square(np.ptp(values)) * len(values)))


def _quantile(rising: np.ndarray, covered: np.ndarray, level: float, groups: int) -> float:
    """Return the quantile of one level.

    Args:
        rising: sorted scores, [n].
        covered: cumulative weight of the scores, [n]; the last element is ``groups``.
        level: share of a new group to cover.
        groups: number of groups, or the sum of their weights.
    """
    place = int(np.searchsorted(covered, (groups + 1) * level - 1e-9))
    if place >= len(rising):
        return max(float(rising[-1]), float(ndtri(0.5 + level / 2)))
    return float(rising[place])


def fit_variance(
    known: np.ndarray,
    square: np.ndarray,
    weight: np.ndarray,
    floor: float,
    least: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, float]:
    """Fit sigma^2 = known f + b by weighted Gaussian likelihood, f >= 0 and b >= ``floor``.

    Args:
        known: variances that may explain the squared residuals, in the unit squared, [n, p]:
            the members' variance, and the variance that members predict.
        square: squared residuals, in the unit squared, [n].
        weight: weight of each value, [n], > 0.
        floor: smallest b, in the unit squared, > 0.
        least: smallest factors, [p], or one for all.

    Returns:
        The factors f, [p], and b. The factor of a constant variance is 0. With few values, or if
        no fit is better, f = 0 and b = mean square. Otherwise the likelihood is never below that
        of f = 1, b = ``floor``.
    """
    weight = weight / weight.sum()
    constant = max(float(weight @ square), floor)
    factors = np.zeros(known.shape[1])
    unit = weight @ known
    used = np.flatnonzero(np.ptp(known, axis=0) > 1e-12 * np.maximum(unit, floor))
    if len(square) < _FEW or not len(used):
        return factors, constant
    x, y = known[:, used] / unit[used], square / constant  # of order 1, for the optimizer
    low = max(floor / constant, 1e-9)
    lows = np.minimum(np.broadcast_to(least, unit.shape)[used] * unit[used] / constant, 1.0)
    bounds = [*((float(least_factor), 1e6) for least_factor in lows), (low, 1e6)]
    best = np.r_[lows, 1.0]
    lowest = math.inf if lows.any() else 0.5 * float(weight @ y)
    for start in (*_starts(len(used)), np.r_[unit[used] / constant, low]):
        fit = minimize(_cost, start, (x, y, weight), "L-BFGS-B", jac=True, bounds=bounds)
        if np.isfinite(fit.fun) and fit.fun < lowest - 1e-12:
            best = fit.x
            lowest = float(fit.fun)
    factors[used] = best[:-1] * constant / unit[used]
    return factors, max(float(best[-1]) * constant, floor)


def _cost(
    p: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the negative log likelihood of Gaussians per value, and its gradient, [q + 1].

    Args:
        p: the factors, then the constant, [q + 1].
        x: known variances, [n, q].
        y: squared residuals, [n].
        weight: of the values, [n], summing to 1.
    """
    sigma2 = x @ p[:-1] + p[-1]
    slope = 0.5 * weight * (1.0 / sigma2 - y / np.square(sigma2))
    value = 0.5 * float(weight @ (np.log(sigma2) + y / sigma2))
    return value, np.r_[slope @ x, slope.sum()]


def _starts(count: int) -> list[np.ndarray]:
    """Return starting points, [count + 1] each: the factor is split evenly, or on one variance."""
    shares = [np.full(count, 1.0 / count), *(np.eye(count) if count > 1 else ())]
    return [np.r_[factor * share, constant] for factor, constant in _STARTS for share in shares]


def groups_for(level: float) -> int:
    """Return the fewest groups with the conformal guarantee at a level between 0 and 1.

    With n groups the score of rank ceil((n + 1) level) covers it; a rank above n is infinite.

    Source: Vovk et al. (2005), Algorithmic learning in a random world.
    """
    return math.ceil(level / (1.0 - level) - 1e-9)


@dataclass(frozen=True)
class Calibration:
    """How one head's spread s and predicted variance v become sigma: sigma^2 = a s^2 + c v + b.

    Source: Musil et al. (2019), J. Chem. Theory Comput. 15, 906 (the members' variance scaled by
    likelihood); for the intervals see ``conformal_quantiles``.
    """

    a: float
    """Factor of the members' variance s^2, >= 0."""
    b: float
    """Variance that neither s nor v explains, in the unit squared, > 0."""
    quantiles: dict[str, float]
    """Quantile by level, as ``"0.9"``; the interval is mean -+ quantile * sigma."""
    spread99: float
    """99th percentile of the largest spread within each calibration structure, in the unit."""
    rows: int
    """Number of values (rows times components) used for the fit."""
    groups: int
    """Number of independent groups of structures that the values come from."""
    c: float = 0.0
    """Factor of the variance v that members predict for their own errors, >= 0."""
    tables: dict[str, dict[str, float]] = field(default_factory=dict)
    """Quantiles by stratum, then by level; strata that are missing use ``quantiles``."""
    temperature: float | None = None
    """Temperature of the probabilities of classes, see ``class_probabilities``; the quantiles are
    then thresholds of 1 - p. None for numbers."""
    factors: ErrorFactors | None = None
    """Factors of sigma by element and predicted value; None where groups were too few, for classes,
    and in files of earlier versions."""

    def sigma(
        self,
        spread: np.ndarray,
        noise: np.ndarray | float = 0.0,
        factor: np.ndarray | float = 1.0,
    ) -> np.ndarray:
        """Return the calibrated standard deviation, in the unit, shaped like ``spread``.

        Args:
            spread: spread of the members, in the unit, [R, 1] or [R, w].
            noise: mean of the variances that members predict, in the unit squared, [R, 1].
            factor: factor of each row, see ``factor_of_rows``, [R, 1].
        """
        root: np.ndarray = np.sqrt(self.a * np.square(spread) + self.c * noise + self.b)
        return factor * root

    def factor_of_rows(self, columns: Columns, mean: np.ndarray, *, node: bool) -> np.ndarray:
        """Return the factor of sigma of each row, [R, 1]; 1 where there are none.

        Args:
            columns: the structures.
            mean: predictions, [R, w], in the unit.
            node: True for one row per node, False for one row per graph.
        """
        if self.factors is None:
            return np.ones((len(mean), 1))
        return self.factor(elements_of_rows(columns, node=node), mean)

    def factor(self, elements: csr_array, mean: np.ndarray) -> np.ndarray:
        """Return the factor of sigma of each row, [R, 1]; 1 where there are none.

        Args:
            elements: 1 for each element that a row contains, [R, 119].
            mean: predictions, [R, w], in the unit.
        """
        if self.factors is None:
            return np.ones((len(mean), 1))
        return self.factors.of_rows(RowFeatures(elements, predicted_size(mean)))

    def half_width(
        self, sigma: np.ndarray, level: float = 0.9, stratum: np.ndarray | None = None
    ) -> np.ndarray:
        """Return half the width of the interval that covers ``level``, in the unit, [R, 1].

        Args:
            sigma: calibrated standard deviation, [R, 1].
            level: share to cover; it needs a quantile.
            stratum: name of each row's stratum, [R]; if None, every row uses the overall
                quantiles.

        Raises:
            KeyError: the level has no quantile.
        """
        quantile = np.full(np.shape(sigma), self.quantiles[key(level)])
        if stratum is not None:
            for name, table in self.tables.items():
                quantile[stratum == name] = table[key(level)]
        half: np.ndarray = quantile * sigma
        return half

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels that have a quantile.

        Returns:
            Shares between 0 and 1, ascending.
        """
        return tuple(sorted(float(name) for name in self.quantiles))

    def guaranteed(self, level: float) -> bool:
        """Check whether there were enough groups for the conformal guarantee at a level."""
        return self.groups >= groups_for(level)


def elements_of_rows(columns: Columns, *, node: bool) -> csr_array:
    """Return 1 for each element that a row contains, by atomic number, [R, 119].

    Args:
        columns: some graphs.
        node: True for one row per node, False for one row per graph.
    """
    numbers = np.asarray(columns.numbers)
    graphs = columns.num_graphs
    if node:
        return mark_elements(numbers, np.arange(len(numbers)), len(numbers))
    return mark_elements(numbers, np.repeat(np.arange(graphs), columns.num_nodes()), graphs)


def calibrate(
    residual: np.ndarray,
    spread: np.ndarray,
    *,
    group: np.ndarray,
    largest: np.ndarray,
    scale: float,
    noise: np.ndarray | float = 0.0,
    stratum: np.ndarray | str = "all",
    least: float = 0.0,
    features: RowFeatures | None = None,
) -> Calibration:
    """Fit the affine map to sigma^2 by Gaussian likelihood, factors, then conformal quantiles.

    Each group (copies of a molecule, atoms of one structure, components of a vector) weighs the
    same, and the intervals cover the values of a *new* group.

    Args:
        residual: truth minus mean, [R, w], in the unit.
        spread: the members' spread, [R, 1], in the unit.
        group: number of each row's group, [R].
        largest: largest spread of each calibration structure, in the unit, [G].
        scale: the target's standard deviation, in the unit; keeps b > 0 if all residuals are 0.
        noise: mean of the variances that members predict, [R, 1], in the unit squared.
        stratum: name of each row's stratum, [R], if strata have their own intervals.
        least: smallest factor of the squared spread.
        features: elements and predictions of the rows, for factors of sigma; None for none.
    """
    width = residual.shape[1]
    kinds = np.broadcast_to(stratum, group.shape)
    variances = np.concatenate((np.square(spread), np.broadcast_to(noise, spread.shape)), axis=1)
    weight, groups = group_weights(each := np.repeat(group, width))
    squares = np.square(residual).ravel()
    floor = (1e-6 * scale) ** 2
    known = np.repeat(variances, width, axis=0)
    lows = np.array((least, 0.0))
    factors, b = fit_variance(known, squares, weight, floor, lows)
    scores = np.abs(residual) / np.sqrt(variances @ factors + b)[:, None]
    by_row, scores = _divide_by_factors(scores, features, group)
    quantiles = conformal_quantiles(scores.ravel(), each)
    tables = conformal_tables(scores.ravel(), each, np.repeat(kinds, width))
    (a, c) = factors.tolist()
    spread99 = float(np.quantile(largest, 0.99))
    return Calibration(a, b, quantiles, spread99, residual.size, groups, c, tables, factors=by_row)


def _divide_by_factors(
    scores: np.ndarray, features: RowFeatures | None, group: np.ndarray
) -> tuple[ErrorFactors | None, np.ndarray]:
    """Fit factors of sigma, and divide the scores by those that do not know them.

    Args:
        scores: |residual| over sigma without factors, [R, w].
        features: elements and predictions of the rows; None for no factors.
        group: number of each row's group, [R].

    Returns:
        The factors, None for none; the scores, [R, w].
    """
    if features is None:
        return None, scores
    factors, own = fit_factors(features, scores.mean(axis=1), group_weights(group)[0], group)
    return factors, scores / own[:, None]
