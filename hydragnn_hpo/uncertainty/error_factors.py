"""Fit how errors differ by element and by predicted value, where the members' spread is silent.

Members err alike on an element that has few labels, or on large values, and then their spread says
nothing of it. Sigma is multiplied by a factor for each row: the product of one for each element
that it contains and of one for the predicted value, which is interpolated between quantiles. With
errors over sigma drawn from a Laplace distribution that is as wide as the factor, its logarithm is
a sum of weights, and its likelihood is concave in them. A ridge draws them to 0, so that few labels
change nothing. Factors are clipped: a value that nearly all structures share would otherwise
promise no error at all.

Shapes: R rows of a head, w components.

Source: Papadopoulos, Gammerman, Vovk (2008), Normalized nonconformity measures for regression
conformal prediction, IASTED AIA 64 (errors in units of what a second model expects of them).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from scipy.optimize import minimize
from scipy.sparse import csr_array, hstack

RIDGE = 20.0
"""Inverse variance of a weight: elements differ by a fifth or so."""

LARGEST = 3.0
"""Largest factor; the smallest is its inverse."""

SMALLEST = 0.01
"""Errors below this share of the mean count as it: those of a constant have no logarithm."""

FOLDS = 5
"""Parts of the groups: the factors of each are fitted to the others, too."""

_SHARES = np.linspace(0.0, 1.0, 5)
"""Quantiles of the predicted values between which their factor is interpolated."""

_FEW = 20
"""With fewer groups nothing is fitted."""


@dataclass(frozen=True)
class RowFeatures:
    """What the factors of rows depend on."""

    elements: csr_array
    """1 for each element that a row contains, by atomic number, [R, 119]."""
    value: np.ndarray
    """What is predicted, see ``predicted_size``, [R]."""

    def of(self, rows: np.ndarray) -> "RowFeatures":
        """Return those of some rows; ``rows`` is a mask, [R], or positions."""
        kept = np.arange(len(self.value))[rows]
        return RowFeatures(csr_array(self.elements[kept]), self.value[kept])

    def alike(self) -> "RowFeatures":
        """Return features whose predicted values are all the same, which then tell nothing."""
        return RowFeatures(self.elements, np.zeros_like(self.value))


def mark_elements(numbers: np.ndarray, row: np.ndarray, rows: int) -> csr_array:
    """Return 1 for each element that a row contains, by atomic number, [R, 119].

    Args:
        numbers: atomic numbers, [N].
        row: row of each atom, [N]: itself for a target of atoms, else its structure.
        rows: number of rows, R.
    """
    shape = (rows, len(chemical_symbols))
    marked = csr_array((np.ones(len(numbers)), (row, numbers)), shape=shape)
    marked.data.fill(1.0)
    return marked


def predicted_size(mean: np.ndarray) -> np.ndarray:
    """Return predicted values of one component as they are, else their norms, [R].

    Args:
        mean: predictions, [R, w], in the unit; vectors and tensors turned give the same.
    """
    size: np.ndarray = mean[:, 0] if mean.shape[1] == 1 else np.linalg.norm(mean, axis=1)
    return size


@dataclass(frozen=True)
class ErrorFactors:
    """Factors of sigma, all > 0, by element and by predicted value."""

    elements: dict[str, float]
    """Factor of the rows that contain an element, by symbol; 1 for others."""
    values: tuple[float, ...]
    """Predicted values, rising, in the unit, between which the logarithm is interpolated."""
    at_values: tuple[float, ...]
    """Factors at these; beyond them that of the nearest."""

    @property
    def logs(self) -> np.ndarray:
        """Logarithms of the factors by atomic number, [119]."""
        logs = np.zeros(len(chemical_symbols))
        for symbol, factor in self.elements.items():
            logs[atomic_numbers[symbol]] = np.log(factor)
        return logs

    def without(
        self, features: RowFeatures, logs: np.ndarray, weight: np.ndarray
    ) -> "ErrorFactors":
        """Return the factors without what another sigma than that of the fit tells by itself.

        Args:
            features: of some rows, which need no label.
            logs: logarithm of that sigma over the one of the fit, [R].
            weight: weight of each row, [R], > 0.
        """
        weight, knots = weight / weight.sum(), np.array(self.values)
        numbers = [atomic_numbers[symbol] for symbol in self.elements]
        design = _make_design(features, numbers, knots)
        changes = logs - weight @ logs
        middle = weight @ design
        freedom = 1.0 / float(np.square(weight).sum())
        squares = (design * weight[:, None]).T @ design - np.outer(middle, middle)
        ridge = RIDGE * max(float(weight @ np.square(changes)), 1e-12) / freedom
        known = np.linalg.solve(squares + ridge * np.eye(len(squares)), (weight * changes) @ design)
        known[len(numbers) :] -= middle @ known
        elements = zip(self.elements.items(), known, strict=False)
        at_values = np.array(self.at_values) * np.exp(-known[len(numbers) :])
        left = {symbol: factor * math.exp(-log) for (symbol, factor), log in elements}
        return ErrorFactors(left, self.values, tuple(at_values.tolist()))

    def moved(self, before: np.ndarray, after: np.ndarray) -> "ErrorFactors":
        """Return the factors at other predictions of the same rows, as many of which are smaller.

        Args:
            before: predictions that are like those of the fit, [..., R].
            after: those that the factors are for, [R].
        """
        shares = np.searchsorted(np.sort(before.ravel()), self.values, side="right") / before.size
        values, first = np.unique(np.quantile(after, shares), return_index=True)
        at_values = np.array(self.at_values)[first]
        return replace(self, values=tuple(values.tolist()), at_values=tuple(at_values.tolist()))

    @property
    def are_sound(self) -> bool:
        """Whether factors of untrusted origin are of elements, positive, and of rising values."""
        factors = (*self.elements.values(), *self.at_values)
        return (
            self.elements.keys() <= set(chemical_symbols[1:])
            and 0 < len(self.values) == len(self.at_values)
            and all(abs(value) <= 1e30 for value in self.values)
            and all(a < b for a, b in pairwise(self.values))
            and all(1e-9 <= factor <= 1e9 for factor in factors)
        )

    def of_rows(self, features: RowFeatures) -> np.ndarray:
        """Return the factor of each row, between 1 / ``LARGEST`` and ``LARGEST``, [R, 1]."""
        at_value = np.interp(features.value, self.values, np.log(self.at_values))
        return _to_factors(features.elements @ self.logs + at_value)[:, None]


def _to_factors(logs: np.ndarray) -> np.ndarray:
    limit = np.log(LARGEST)
    factors: np.ndarray = np.exp(np.clip(logs, -limit, limit))
    return factors


def fit_factors(
    features: RowFeatures, score: np.ndarray, weight: np.ndarray, group: np.ndarray
) -> tuple[ErrorFactors | None, np.ndarray]:
    """Fit the factors to what errors of labelled rows are in units of sigma.

    Args:
        features: of the rows.
        score: |residual| over sigma, mean of the components, [R].
        weight: weight of each row, [R], > 0; 1 for all rows of a group together.
        group: number of each row's group, [R].

    Returns:
        The factors, None where groups are too few; and the factor of each row by a fit to other
        groups, as that of a new group is, [R].
    """
    parts = _deal_groups(group)
    if parts is None:
        return None, np.ones(len(score))
    symbols = np.flatnonzero(features.elements.sum(axis=0))
    knots = np.unique(np.quantile(features.value, _SHARES))
    design = _make_design(features, symbols, knots)
    own = np.empty(len(score))
    for part in range(FOLDS):
        out = np.flatnonzero(parts == part)
        learned = np.flatnonzero(parts != part)
        weights = _fit_weights(design[learned], score[learned], weight[learned], len(knots))
        own[out] = _to_factors(design[out] @ weights)
    weights = _fit_weights(design, score, weight, len(knots))
    elements, at_values = np.split(np.exp(weights), [len(symbols)])
    names = (chemical_symbols[number] for number in symbols)
    factors = dict(zip(names, elements.tolist(), strict=True))
    return ErrorFactors(factors, tuple(knots.tolist()), tuple(at_values.tolist())), own


def _deal_groups(group: np.ndarray) -> np.ndarray | None:
    """Deal groups to ``FOLDS`` parts at random, always alike; None if there are too few, [R]."""
    names, place = np.unique(group, return_inverse=True)
    if len(names) < _FEW:
        return None
    parts: np.ndarray = np.random.default_rng(0).permutation(len(names))[place] % FOLDS
    return parts


def _make_design(
    features: RowFeatures, numbers: Sequence[int] | np.ndarray, knots: np.ndarray
) -> csr_array:
    """Return which elements rows contain, then the shares of the knots, [R, E + K].

    Args:
        features: of the rows.
        numbers: atomic numbers of the E elements.
        knots: values between which is interpolated, [K].
    """
    parts = (features.elements[:, numbers], csr_array(_interpolation(features.value, knots)))
    return csr_array(hstack(parts, format="csr"))


def _interpolation(values: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Return the share of each knot in what is interpolated at some values, [R, K]."""
    return np.stack([np.interp(values, knots, unit) for unit in np.eye(len(knots))], axis=1)


def _fit_weights(
    design: csr_array, score: np.ndarray, weight: np.ndarray, knots: int
) -> np.ndarray:
    """Fit the weights of a design, [p], to scores with a Laplace distribution.

    The mean logarithm is taken off: the quantiles of the intervals tell how wide all of them are.

    Args:
        design: [R, p].
        score: |residual| over sigma, [R].
        weight: of each row, [R].
        knots: number of the last columns, which sum to 1 in each row.
    """
    transposed = csr_array(design.T)
    middle = float(np.average(score, weights=weight))
    score = np.maximum(score, max(SMALLEST * middle, 1e-12))

    def cost(p: np.ndarray) -> tuple[float, np.ndarray]:
        logs = design @ p[1:] + p[0]
        inverse = score * np.exp(-logs)
        slope = weight * (1.0 - inverse)
        value = float(weight @ (logs + inverse)) + 0.5 * RIDGE * float(p[1:] @ p[1:])
        return value, np.r_[slope.sum(), transposed @ slope + RIDGE * p[1:]]

    start = np.zeros(design.shape[1] + 1)
    start[0] = np.log(max(middle, 1e-12))
    weights: np.ndarray = minimize(cost, start, method="L-BFGS-B", jac=True).x[1:]
    weights[-knots:] -= np.average(design @ weights, weights=weight)
    return weights
