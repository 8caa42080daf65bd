"""Calibrate a cross-fitted ensemble: from few nets that did not see a structure to all nets.

C configurations were trained without each of K folds. A structure of a fold is predicted by the C
nets that have not seen it, a new structure by all K x C nets. With t^2(x) the variance at x between
nets of one fold, weights w of the configurations and S = sum of w^2, the squared spread is

    of the C nets of a fold about their mean m_k:   (1 - S) t^2
    of all K x C nets about their mean m:           (1 - S) t^2 + V,   V = mean of (m_k - m)^2

and by the same identity the mean of all nets errs less than that of the C nets, by V in the mean
square. V is mostly due to the structures of which each fold trains, which its C nets share, so
their spread does not show it, and nets that have seen a structure agree on it. V is therefore
measured on structures that no net has seen: those of the test split, without their labels.

If only some of the K x C nets are kept, their mean m' lies off m by chance. Where each
configuration keeps its weight, the mean square of m' - m on these structures is what the mean of
the kept nets errs more, so V is smaller by it; and their spread about m' is measured there, too.

The spread of two or three nets is a bad measurement of t^2. It is shrunk towards its typical value
as much as its scatter says, so that the factor fitted to it also holds for the better measurement
that all nets give.

Shapes: C configurations, M = K C nets, R rows of a head, w components.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import polygamma, psi

from hydragnn_hpo.uncertainty.calibrate import Calibration, calibrate, group_weights
from hydragnn_hpo.uncertainty.error_factors import ErrorFactors, RowFeatures

MOST_DOF = 8.0
"""Most degrees of freedom of a prior. Nets never err equally on all structures, but the scatter of
a few structures, each measured by two nets, may look so by chance."""

_LEAST_DOF = 3.0
"""Fewest degrees of freedom that a posterior is taken to have."""
UNUSUAL = 0.05
"""Share of structures, those of the largest variances, that are left out of means of variances, or
count as the smallest of them."""
GAIN_LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Quantiles of errors that tell what the mean of more nets gains."""
LEAST_OF_SQUARES = 0.7
"""Smallest share of squared errors by quantiles over that by the mean square: where nearly all
structures have the same value, nets differ there by noise alone, and quantiles tell of it alone."""
MOST_CHANCE = 0.5
"""Largest share of the variance of predictions that may be due to the nets, not to the structures,
for factors by predicted value."""
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
    stratum: np.ndarray
    """Name of each row's kind of structure, [R]."""
    features: RowFeatures | None = None
    """Elements and predictions of the rows, for factors of sigma; None for none."""
    singles: np.ndarray | None = None
    """Truth minus the prediction of each of the C nets, [C, R, w], in the unit; None if unknown."""


@dataclass(frozen=True)
class NetVariances:
    """How nets differ on structures that none of them has seen.

    The first three are the parts of a two-way analysis of variance, as shares of the squared spread
    of all nets about their mean.
    """

    folds: float
    """Share of the spread of the means of the folds."""
    configurations: float
    """Share of the spread of the means of the configurations."""
    rest: float
    """Share that neither explains."""
    typical: float
    """Typical squared spread of the means of the folds, in the unit squared."""
    spread: float = 1.0
    """Squared spread of the kept nets about their mean, over that of all nets."""
    gain: float = 1.0
    """What the mean of the kept nets errs less than that of the C nets of a fold, in the mean
    square, over what the mean of all nets does; negative if it errs more."""


def measure_variances(predictions: np.ndarray, shares: np.ndarray) -> NetVariances:
    """Measure how nets differ on structures that none of them has seen; labels are not needed.

    The structures on which nets are furthest apart are left out: a few that are like nothing in the
    training data would outweigh all others.

    Args:
        predictions: of the nets, [C, K, R, w], in the unit.
        shares: weights of the nets, [C, K], summing to 1; 0 for nets that are not kept.
    """
    weights = shares.sum(axis=1)
    means = np.tensordot(weights, predictions, 1)  # [K, R, w]
    within = np.tensordot(weights, np.square(predictions - means), 1).mean(axis=(0, 2))
    configurations = predictions.mean(axis=1)
    middle = means.mean(axis=0)
    persistent = np.tensordot(weights, np.square(configurations - middle), 1).mean(axis=-1)
    folds = means.var(axis=0).mean(axis=-1)
    usual = are_usual(folds + within)
    total = max(float((folds + within)[usual].mean()), np.finfo(float).tiny)
    share, others = (float(part[usual].mean()) / total for part in (folds, persistent))
    kept = np.tensordot(shares, predictions, 2)  # [R, w]
    off = np.square(kept - middle).mean(axis=-1)[usual].mean()
    spread = np.tensordot(shares, np.square(predictions - kept), 2).mean(axis=-1)[usual].mean()
    return NetVariances(
        folds=share,
        configurations=others,
        rest=max(1.0 - share - others, 0.0),
        typical=float(cap_unusual(folds).mean()),
        spread=float(spread) / total,
        gain=1.0 - float(off) / max(share * total, np.finfo(float).tiny),
    )


def are_usual(variance: np.ndarray) -> np.ndarray:
    """Return which values are not among the ``UNUSUAL`` largest, at least one, [n]."""
    usual: np.ndarray = variance <= np.quantile(variance, 1.0 - UNUSUAL)
    return usual


def cap_unusual(variance: np.ndarray) -> np.ndarray:
    """Return variances of which the ``UNUSUAL`` largest are as large as the smallest of them, [n].

    Left out they would make the mean of a skewed distribution too small.
    """
    capped: np.ndarray = np.minimum(variance, np.quantile(variance, 1.0 - UNUSUAL))
    return capped


@dataclass(frozen=True)
class UnseenRows:
    """One head on structures that no net has seen; labels are not needed."""

    variance: np.ndarray
    """Unbiased variance of one net, from the C nets of each fold, in the unit squared, [K, R]."""
    spread: np.ndarray
    """Spread of the kept nets about their mean, in the unit, [R, 1]."""
    noise: np.ndarray | float
    """Mean of the variances that the kept nets predict, [R, 1], in the unit squared."""
    group: np.ndarray
    """Number of each row's group, [R]."""
    features: RowFeatures
    """Elements of the rows, and the mean of the kept nets."""
    values: np.ndarray
    """Mean of the C nets of each fold, see ``predicted_size``, [K, R]."""

    @property
    def chance(self) -> float:
        """Share of the variance of these means that is due to the fold, not to the row."""
        return float(self.values.var(axis=0, ddof=1).mean()) / max(float(self.values.var()), _TINY)


@dataclass(frozen=True)
class CrossDesign:
    """How the nets of a cross-fitted ensemble go together."""

    shares: np.ndarray
    """Weights of the nets, [C, K], summing to 1; 0 for nets that are not kept."""
    variances: NetVariances
    """How the nets differ on structures that none of them has seen."""
    largest: np.ndarray
    """Largest spread of the kept nets within each of these structures, in the unit, [G]."""
    unseen: UnseenRows | None = None
    """These structures, for factors of sigma; None for none."""

    @property
    def weights(self) -> np.ndarray:
        """Weights of the configurations, [C]."""
        weights: np.ndarray = self.shares.sum(axis=1)
        return weights

    @property
    def folds(self) -> int:
        """Number of folds, K."""
        return int(self.shares.shape[1])

    @property
    def few(self) -> float:
        """Share of the spread of all nets that the C nets of a fold have, too."""
        return self.variances.configurations + self.variances.rest

    @property
    def growth(self) -> float:
        """Squared spread of all nets over that of the C nets of a fold; needs ``few`` > 0."""
        return 1.0 + self.variances.folds / self.few

    @property
    def concentration(self) -> float:
        """Sum S of the squared weights: 1 / C for equal ones, 1 for a single configuration."""
        return float(np.square(self.weights).sum())

    def unbiased_variance(self, predictions: np.ndarray) -> np.ndarray:
        """Return the variance of one net from the C nets of each fold, in the unit squared, [K, R].

        It is 0 with a single configuration.

        Args:
            predictions: of the nets, [C, K, R, w], in the unit.
        """
        left = 1.0 - self.concentration
        mean = np.tensordot(self.weights, predictions, 1)
        square = np.tensordot(self.weights, np.square(predictions - mean), 1).mean(axis=-1)
        variance: np.ndarray = square / left if left > 1e-9 else np.zeros_like(square)
        return variance

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
        """Return the degrees of freedom of the spread of the kept nets; ``width`` as above.

        They are at most one less than the effective number of these nets.
        """
        few = self.few_dof(1)
        others = _effective(self.shares.sum(axis=0)) - 1.0
        parts = (
            (self.variances.configurations, few),
            (self.variances.folds, others),
            (self.variances.rest, few * others),
        )
        inverse = sum(part**2 / dof for part, dof in parts if dof > 1e-9)
        total = sum(part for part, _ in parts)
        most = _effective(self.shares.ravel()) - 1.0
        return width * min(total**2 / inverse, most) if inverse > 0.0 else 0.0


def _effective(shares: np.ndarray) -> float:
    """Return how many equal shares vary a mean as these do; they sum to 1."""
    return 1.0 / float(np.square(shares).sum())


def calibrate_cross(known: OutOfFold, design: CrossDesign, scale: float) -> Calibration:
    """Calibrate the mean and spread of all nets from what few nets say about unseen structures.

    Args:
        known: labelled rows of the head, as nets that have not seen them predict them.
        design: weights of the nets, and how they differ.
        scale: the target's standard deviation, in the unit; keeps b > 0 if all residuals are 0.

    Returns:
        For the spread of the kept nets about their mean, as ``Moments`` computes it.
    """
    (known, rows) = _forget_chance(known, design.unseen)
    width = known.residual.shape[1]
    dof = design.few_dof(width)
    weight = group_weights(known.group)[0]
    prior, shrunk = _shrink(known.variance[:, 0], dof, weight)
    left = 1.0 - design.concentration
    variances = design.variances
    usable = dof > 1e-9 and design.few > 0.0 and variances.spread > 1e-9
    fitted = calibrate(
        known.residual,
        np.sqrt(shrunk)[:, None],
        group=known.group,
        largest=design.largest,
        scale=scale,
        noise=known.noise,
        stratum=known.stratum,
        least=design.concentration,  # the mean of the C nets errs as much by them alone
        features=known.features,
    )
    sigma = fitted.sigma(np.sqrt(shrunk)[:, None], known.noise)
    kept = _predict_gain(known, design, sigma, fitted.factors, usable=usable)
    a, b, c = (kept * each for each in (fitted.a, fitted.b, fitted.c))
    factor, added = prior.share(design.all_dof(width)) if usable else (0.0, float(shrunk.mean()))
    # t^2 from the spread of the kept nets, which is that many times as large
    growth = design.growth * left * variances.spread if usable else math.inf
    final = replace(fitted, a=a * factor / growth, b=b + a * added, c=c)
    return replace(final, factors=_carry_factors(fitted, final, rows, prior.share(dof)))


def _predict_gain(
    known: OutOfFold,
    design: CrossDesign,
    sigma: np.ndarray,
    factors: ErrorFactors | None,
    *,
    usable: bool,
) -> float:
    """Predict the squared errors of the mean of all nets over those of the mean of the C nets.

    In the mean square all nets err less by V. Few errors that are far larger than all others rule
    a mean square, so the quantiles are asked, too: from single nets to the mean of the C nets the
    variance falls by (1 - S) t^2, and from these to all nets by V.

    Args:
        known: labelled rows of the head.
        design: weights of the nets, and how they differ.
        sigma: standard deviation of the mean of the C nets, without factors, [R, 1].
        factors: those of sigma; None for none.
        usable: whether the spread of the C nets tells anything.
    """
    weight = group_weights(known.group)[0]
    variances = design.variances
    mean_square = float(weight @ cap_unusual(np.square(sigma[:, 0]))) / float(weight.sum())
    # the mean over the folds has at least its share of the variance
    least = 1.0 / design.folds
    kept = max(1.0 - variances.gain * variances.typical / mean_square, least)
    if not usable or known.singles is None:
        return kept
    factor = 1.0 if factors is None or known.features is None else factors.of_rows(known.features)
    scores = np.abs(np.stack((known.residual, *known.singles))) / (factor * sigma)
    levels = np.quantile(
        scores.mean(axis=-1), GAIN_LEVELS, axis=1, weights=weight, method="inverted_cdf"
    )  # [levels, 1 + C]
    before = np.square(levels[:, 1:]) @ design.weights
    share = np.maximum(before / np.maximum(np.square(levels[:, 0]), _TINY) - 1.0, 0.0)
    further = variances.gain * variances.folds / design.few
    by_level = np.maximum(1.0 - further * share, least)
    return float(np.clip(by_level.mean(), LEAST_OF_SQUARES * kept, kept))


def _forget_chance(
    known: OutOfFold, rows: UnseenRows | None
) -> tuple[OutOfFold, UnseenRows | None]:
    """Return rows whose factors depend on what is predicted only where that is not mostly chance.

    Otherwise the means of the C nets that are far out are those that err, and the means of all nets
    are not so.

    Args:
        known: labelled rows of the head.
        rows: those that no net has seen; None for no factors.
    """
    if rows is None or known.features is None or rows.chance <= MOST_CHANCE:
        return known, rows
    alike = replace(rows, features=rows.features.alike(), values=np.zeros_like(rows.values))
    return replace(known, features=known.features.alike()), alike


def _carry_factors(
    fitted: Calibration,
    final: Calibration,
    rows: UnseenRows | None,
    share: tuple[float, float],
) -> ErrorFactors | None:
    """Return the factors of sigma without what the spread of all nets tells by itself.

    It is a better measurement than the spread of the C nets, beside which the factors were fitted,
    so it also differs more between elements and values. The mean of all nets is less often far out
    by chance, where the C nets err: factors at predicted values go with how many are smaller.

    Args:
        fitted: the calibration of the C nets.
        final: that of all nets.
        rows: what both spreads are compared on.
        share: factor and constant that shrink the variance of the C nets.
    """
    if fitted.factors is None or rows is None:
        return fitted.factors
    few = np.sqrt(share[0] * rows.variance + share[1])[..., None]
    before = np.log([fitted.sigma(spread, rows.noise) for spread in few]).mean(axis=0)
    logs = np.log(final.sigma(rows.spread, rows.noise)) - before
    moved = fitted.factors.moved(rows.values, rows.features.value)
    return moved.without(rows.features, logs[:, 0], group_weights(rows.group)[0])


def _shrink(measured: np.ndarray, dof: float, weight: np.ndarray) -> tuple[SpreadPrior, np.ndarray]:
    """Shrink measured variances towards what is typical.

    Args:
        measured: unbiased variances, in the unit squared, [n].
        dof: degrees of freedom of each measurement; one net, with 0, says nothing of its variance.
        weight: weight of each measurement, [n], > 0.

    Returns:
        The prior, and the shrunk variances, [n].
    """
    if dof <= 1e-9:
        return SpreadPrior(math.inf, 0.0), np.zeros_like(measured)
    prior = fit_spread_prior(measured, dof, weight)
    factor, constant = prior.share(dof)
    return prior, factor * measured + constant
