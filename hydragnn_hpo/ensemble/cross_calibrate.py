"""Calibrate a cross-fitted ensemble: from few nets that did not see a structure to all nets.

C configurations were trained without each of K folds. A structure of a fold is predicted by the C
nets that have not seen it, a new structure by all K x C nets. With t^2(x) the variance of one net
at x, of which the share r is that of its data and seed and the rest that of its configuration, and
with weights w of the configurations, S = sum of w^2, the expected squared spread about the mean is

    of the C nets:          (1 - S) t^2
    of all K x C nets:      g t^2,   g = (1 - S) (1 - r) + (1 - S / K) r

and the mean of all nets varies less than that of the C nets, by  S r (1 - 1/K) t^2.

The spread of two or three nets is a bad measurement of t^2. It is shrunk towards its typical value
as much as its scatter says, so that the factor fitted to it also holds for the better measurement
that all nets give.

Shapes: C configurations, M = K C nets, R rows of a head, w components.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import polygamma, psi

from hydragnn_hpo.ensemble.calibrate import (
    Calibration,
    calibrate,
    group_weights,
    largest_per_graph,
)

MOST_DOF = 8.0
"""Most degrees of freedom of a prior. Nets never err equally on all structures, but the scatter of
a few structures, each measured by two nets, may look so by chance."""

_LEAST_DOF = 3.0
"""Fewest degrees of freedom that a posterior is taken to have."""
_TINY = 1e-12
"""Smallest squared spread, as a share of the mean one: two nets can agree by chance."""


@dataclass(frozen=True)
class SpreadPrior:
    """Distribution of the variance of a net over structures: scaled inverse chi-squared.

    Source: Smyth (2004), Stat. Appl. Genet. Mol. Biol. 3, 3, where genes have what structures have.
    """

    dof: float
    """Degrees of freedom: how much the prior weighs beside a measurement; infinite where nets agree
    on all structures."""
    variance: float
    """Typical variance, in the unit squared."""

    def share(self, dof: float) -> tuple[float, float]:
        """Return factor and constant of the expected variance, given a measured one.

        Args:
            dof: degrees of freedom of the measurement, > 0.

        Returns:
            The factor of the measured variance, and a variance in the unit squared to add to it:
            the mean of the posterior, which is the same distribution with more degrees of freedom.
        """
        if math.isinf(self.dof):
            return 0.0, self.variance
        total = max(self.dof + dof, _LEAST_DOF) - 2.0  # with fewer there is no mean
        return dof / total, self.dof * self.variance / total


def fit_spread_prior(measured: np.ndarray, dof: float, weight: np.ndarray) -> SpreadPrior:
    """Fit the distribution of variances of which measurements are known.

    Args:
        measured: unbiased variances, in the unit squared, [n].
        dof: degrees of freedom of each measurement, > 0.
        weight: weight of each measurement, [n], > 0.

    Source: Smyth (2004), section 6.2: moments of the logarithm.
    """
    weight = weight / weight.sum()
    mean = float(weight @ measured)
    if mean <= 0.0:
        return SpreadPrior(math.inf, 0.0)
    logs = np.log(np.maximum(measured, _TINY * mean)) - psi(dof / 2) + math.log(dof / 2)
    centre = float(weight @ logs)
    excess = float(weight @ np.square(logs - centre)) - float(polygamma(1, dof / 2))
    half = _invert_trigamma(max(excess, float(polygamma(1, MOST_DOF / 2))))
    return SpreadPrior(2 * half, math.exp(centre + float(psi(half)) - math.log(half)))


def _invert_trigamma(value: float) -> float:
    """Return x > 0 with trigamma(x) = ``value``, by Newton's method as Smyth (2004) has it."""
    x = 0.5 + 1.0 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1.0 - now / value) / float(polygamma(2, x))
        x += step
        if abs(step) <= 1e-10 * x:
            break
    return x


@dataclass(frozen=True)
class OutOfFold:
    """One head on all structures outside the test split, by the nets that have not seen them."""

    residual: np.ndarray
    """Truth minus the mean of the C nets, [R, w], in the unit."""
    variance: np.ndarray
    """Unbiased variance of one net, from the C nets, [R, 1], in the unit squared."""
    noise: np.ndarray | float
    """Mean of the variances that the C nets predict, [R, 1], in the unit squared."""
    group: np.ndarray
    """Number of each row's group, [R]."""
    graph: np.ndarray
    """Position of each row's structure, [R]."""
    stratum: np.ndarray
    """Name of each row's kind of structure, [R]."""


@dataclass(frozen=True)
class CrossDesign:
    """How the nets of a cross-fitted ensemble go together."""

    weights: np.ndarray
    """Weights of the configurations, [C], summing to 1."""
    folds: int
    """Number of folds, K."""
    seed_share: float
    """Share r of a net's variance that comes from its data and seed, 0 to 1."""

    @property
    def concentration(self) -> float:
        """Sum S of the squared weights: 1 / C for equal ones, 1 for a single configuration."""
        return float(np.square(self.weights).sum())

    @property
    def between(self) -> float:
        """Squared spread of the configurations' means over the variance of a net."""
        r = self.seed_share
        return (1.0 - self.concentration) * (1.0 - r + r / self.folds)

    @property
    def within(self) -> float:
        """Squared spread of the nets of a configuration over the variance of a net."""
        return self.seed_share * (1.0 - 1.0 / self.folds)

    @property
    def spread(self) -> float:
        """Squared spread g of all nets over the variance of a net."""
        return self.between + self.within

    @property
    def gain(self) -> float:
        """How much less the mean of all nets varies than that of C nets, over that of a net."""
        return self.concentration * self.within

    def few_dof(self, width: int) -> float:
        """Return the degrees of freedom of the spread of C nets; ``width`` is that of a row.

        The spread is a quadratic form of the nets with the matrix A = diag(w) - w w^T, which has
        tr(A)^2 / tr(A^2) of them: C - 1 for equal weights, 1 for any two nets.

        Source: Satterthwaite (1946), Biometrics Bull. 2, 110.
        """
        matrix = np.diag(self.weights) - np.outer(self.weights, self.weights)
        square = float(np.square(matrix).sum())
        return width * float(np.trace(matrix)) ** 2 / square if square > 1e-18 else 0.0

    def all_dof(self, width: int) -> float:
        """Return the degrees of freedom of the spread of all nets; ``width`` is that of a row."""
        dofs = (self.few_dof(1), (self.folds - 1) / self.concentration)
        parts = zip((self.between, self.within), dofs, strict=True)
        inverse = sum(part**2 / dof for part, dof in parts if dof > 1e-9)
        return width * self.spread**2 / inverse if inverse > 0.0 else 0.0


def calibrate_cross(
    known: OutOfFold, design: CrossDesign, graphs: int, scale: float
) -> Calibration:
    """Calibrate the mean and spread of all nets from what few nets say about unseen structures.

    Args:
        known: labelled rows of the head, as nets that have not seen them predict them.
        design: weights of the configurations and number of folds.
        graphs: number of structures, G.
        scale: the target's standard deviation, in the unit; keeps b > 0 if all residuals are 0.

    Returns:
        For the spread of all K x C nets about their mean, as ``Moments`` computes it.
    """
    width = known.residual.shape[1]
    dof, weight = design.few_dof(width), group_weights(known.group)[0]
    measured = known.variance[:, 0]
    if dof > 1e-9:
        prior = fit_spread_prior(measured, dof, weight)
        factor, constant = prior.share(dof)
        shrunk = factor * measured + constant
    else:  # one net says nothing about its variance
        prior, shrunk = SpreadPrior(math.inf, 0.0), np.zeros_like(measured)
    fitted = calibrate(
        known.residual,
        np.sqrt(shrunk)[:, None],
        group=known.group,
        largest=_largest(np.sqrt(design.spread * shrunk), known.graph, graphs),
        scale=scale,
        noise=known.noise,
        stratum=known.stratum,
        least=design.concentration,  # the mean of the C nets errs as much by them alone
    )
    mean = float(weight @ shrunk) / float(weight.sum())
    return _transfer(fitted, design, prior, mean=mean, width=width)


def _largest(spread: np.ndarray, graph: np.ndarray, graphs: int) -> np.ndarray:
    """Return the largest spread of each structure that has a row."""
    largest = largest_per_graph(spread, graph, graphs)
    known: np.ndarray = largest[np.isfinite(largest)]
    return known


def _transfer(
    fitted: Calibration, design: CrossDesign, prior: SpreadPrior, *, mean: float, width: int
) -> Calibration:
    """Return the calibration for the spread of all nets.

    Args:
        fitted: calibration for the shrunk variance of a net, and the mean of C nets.
        design: weights of the configurations and number of folds.
        prior: what variances were shrunk towards.
        mean: mean of the shrunk variances, in the unit squared.
        width: components of a row.
    """
    a, concentration = fitted.a, design.concentration
    gain = design.gain / concentration
    # The residuals of C nets hold S t^2: the fit has put it into a, or where it cannot, into b.
    slope = a - gain * min(a, concentration)
    left = gain * max(concentration - a, 0.0) * mean
    constant = max(fitted.b - left, fitted.b / design.folds)
    factor, added = prior.share(design.all_dof(width)) if design.spread else (0.0, mean)
    return replace(
        fitted,
        a=slope * factor / design.spread if factor else 0.0,
        b=constant + slope * added,
    )


def estimate_seed_share(predictions: np.ndarray, weights: np.ndarray, seen: np.ndarray) -> float:
    """Estimate which share of a net's variance comes from its data and seed.

    The nets that have seen a structure are compared: those of one configuration differ by data and
    seed, the means of the configurations by what is left. It is assumed that having seen the
    structure makes both smaller by the same factor.

    Args:
        predictions: of the nets, [C, K, R, w], in the unit.
        weights: of the configurations, [C], summing to 1.
        seen: which nets of a configuration were trained on each row, [K, R]; the same number for
            each row.

    Returns:
        Between 0 and 1; 0.5 with fewer than two nets to compare, 1 for one configuration.
    """
    count = int(seen[:, 0].sum())
    if np.count_nonzero(weights) < 2:
        return 1.0
    if count < 2:
        return 0.5
    chosen = np.argsort(~seen, axis=0, kind="stable")[:count]  # [count, R]
    nets = np.take_along_axis(predictions, chosen[None, :, :, None], axis=1)
    within = float(np.tensordot(weights, nets.var(axis=1, ddof=1), 1).mean())
    means = nets.mean(axis=1)
    middle = np.tensordot(weights, means, 1)
    spread = float(np.tensordot(weights, np.square(means - middle), 1).mean())
    between = spread / (1.0 - float(np.square(weights).sum())) - within / count
    total = within + max(between, 0.0)
    return within / total if total > 0.0 else 0.5
