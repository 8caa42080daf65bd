"""Probabilities of classes: temperature, sets of classes, and their scores.

The members' probabilities are averaged, then sharpened or softened by one temperature, and end at
what so many structures can say. A set holds
the most probable class and every class whose probability is not below a threshold, which is the
conformal quantile of 1 - p(true class): such sets are the smallest on average for their coverage.

Shapes: R rows of a head (graphs or nodes), C classes.

Source: Guo et al. (2017), On calibration of modern neural networks, ICML (temperature); Sadinle,
Lei, Wasserman (2019), J. Am. Stat. Assoc. 114, 223 (least ambiguous sets); Laplace (1774), Mem.
Acad. R. Sci. 6, 621 (rule of succession).
"""

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import rankdata

from hydragnn_hpo.uncertainty.calibrate import (
    Calibration,
    conformal_quantiles,
    conformal_tables,
    group_weights,
)

SMALLEST = 1e-12
"""Smallest probability whose logarithm is taken."""

LEAST_LIKELY = 0.01
"""Smallest probability in which a linear model of one-hot labels is read."""

HOTTEST = 20.0
"""Largest temperature, and the inverse of the smallest one."""

BINS = 10
"""Bins of equal count of a reliability diagram."""


def log_losses(probability: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return minus the logarithm of the probability of the true class, in nats, [..., R].

    Args:
        probability: of each class, [..., R, C].
        truth: 1 for the true class, 0 for others, [R, C].
    """
    losses: np.ndarray = -np.log(np.maximum((probability * truth).sum(axis=-1), SMALLEST))
    return losses


def temper(probability: np.ndarray, temperature: float) -> np.ndarray:
    """Return the probabilities to the power 1 / temperature, normalised, [R, C].

    Above 1 they become more alike; the order of the classes stays.
    """
    logs = np.log(np.maximum(probability, SMALLEST)) / temperature
    powers = np.exp(logs - logs.max(axis=-1, keepdims=True))
    tempered: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return tempered


def largest_probability(groups: int) -> float:
    """Return the probability of a class after as many groups that all have it: (n + 1) / (n + 2).

    This is the rule of succession; more certainty than that has no data behind it.
    """
    return (groups + 1.0) / (groups + 2.0)


def cap_probabilities(probability: np.ndarray, groups: int) -> np.ndarray:
    """Return probabilities of which none is above ``largest_probability``, [..., C].

    The other classes of a row share what is taken away in proportion; their order stays.

    Args:
        probability: of each class, [..., C]; rows of NaN stay.
        groups: groups of structures that the probabilities were calibrated on.
    """
    cap = largest_probability(groups)
    most = probability.max(axis=-1, keepdims=True)
    is_most = np.arange(probability.shape[-1]) == probability.argmax(axis=-1)[..., None]
    others = np.where(is_most, 0.0, probability + np.finfo(float).tiny)
    shared = (1.0 - cap) * others / others.sum(axis=-1, keepdims=True)
    capped: np.ndarray = np.where(most > cap, np.where(is_most, cap, shared), probability)
    return capped


def calibrate_probabilities(probability: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Return the calibrated probabilities of a head of classes, [..., C].

    Args:
        probability: mean of the members, [..., C]; rows of NaN stay.
        calibration: of the head.
    """
    assert calibration.temperature is not None, "no head of classes"
    return cap_probabilities(temper(probability, calibration.temperature), calibration.groups)


def fit_temperature(probability: np.ndarray, truth: np.ndarray, weight: np.ndarray) -> float:
    """Return the temperature of the smallest weighted log-loss.

    It is so high that the mean of the largest probabilities is at most ``largest_probability``.

    Args:
        probability: mean of the members, [R, C].
        truth: one-hot labels, [R, C].
        weight: weight of each row, [R], > 0; those of a group sum to 1.
    """
    groups = round(float(weight.sum()))
    limit = float(np.log(HOTTEST))

    def excess(log_temperature: float) -> float:
        tempered = temper(probability, float(np.exp(log_temperature)))
        confidence = np.average(tempered.max(axis=1), weights=weight)
        return float(confidence) - largest_probability(groups)

    def cost(log_temperature: float) -> float:
        tempered = temper(probability, float(np.exp(log_temperature)))
        return float(weight @ log_losses(cap_probabilities(tempered, groups), truth))

    if excess(limit) >= 0.0:
        return HOTTEST
    lowest = -limit if excess(-limit) <= 0.0 else float(brentq(excess, -limit, limit))
    fit = minimize_scalar(cost, bounds=(lowest, limit), method="bounded")
    usual = max(lowest, 0.0)
    return float(np.exp(fit.x if fit.fun < cost(usual) else usual))


def calibrate_classes(
    probability: np.ndarray,
    truth: np.ndarray,
    *,
    group: np.ndarray,
    largest: np.ndarray,
    stratum: np.ndarray | str = "all",
) -> Calibration:
    """Fit the temperature, then the thresholds of the sets; each group weighs the same.

    The sets hold the class of a *new* group with the nominal share or more, on average over all
    structures (a marginal guarantee: for one class it may be less).

    Args:
        probability: mean of the members on structures that trained none of them, [R, C].
        truth: one-hot labels, [R, C].
        group: number of each row's group, [R].
        largest: largest spread of each calibration structure, [G].
        stratum: name of each row's stratum, [R], if strata have their own sets.
    """
    weight, groups = group_weights(group)
    temperature = fit_temperature(probability, truth, weight)
    calibrated = cap_probabilities(temper(probability, temperature), groups)
    scores = 1.0 - (calibrated * truth).sum(axis=1)
    return Calibration(
        a=1.0,
        b=SMALLEST,
        quantiles=conformal_quantiles(scores, group),
        spread99=float(np.quantile(largest, 0.99)),
        rows=len(scores),
        groups=groups,
        tables=conformal_tables(scores, group, np.broadcast_to(stratum, group.shape)),
        temperature=temperature,
    )


def class_std(probability: np.ndarray) -> np.ndarray:
    """Return the standard deviation of whether the most probable class is true, [R, 1]."""
    most = probability.max(axis=-1, keepdims=True)
    std: np.ndarray = np.sqrt(most * (1.0 - most))
    return std


def class_sets(
    probability: np.ndarray,
    calibration: Calibration,
    level: float = 0.9,
    stratum: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sets of classes as intervals of what is 1 for the true class and 0 for others.

    Args:
        probability: calibrated probabilities, [R, C]; rows of NaN give NaN.
        calibration: of the head.
        level: share of the rows whose set holds the true class.
        stratum: name of each row's stratum, [R].

    Returns:
        Lower ends, 1 for a class that is alone in its set, and upper ends, 1 for all classes in
        the set, [R, C] each.
    """
    threshold = calibration.half_width(np.ones((len(probability), 1)), level, stratum)
    most = probability >= probability.max(axis=-1, keepdims=True)
    inside = (1.0 - probability <= threshold + SMALLEST) | most
    high = np.where(np.isnan(probability), np.nan, inside)
    low = np.where(inside.sum(axis=1, keepdims=True) == 1, high, 0.0 * high)
    return low, high


def as_probabilities(values: np.ndarray) -> np.ndarray:
    """Return predictions of a linear model of one-hot labels as probabilities, [R, C]."""
    positive = np.maximum(values, LEAST_LIKELY)
    shares: np.ndarray = positive / positive.sum(axis=1, keepdims=True)
    return shares


def area_under_curve(score: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive row has a larger score than a negative one.

    Ties count one half; NaN if all rows are of one kind.

    Args:
        score: of each row, [R].
        positive: whether a row is positive, [R].

    Source: Hanley and McNeil (1982), Radiology 143, 29 (the rank statistic).
    """
    count = int(positive.sum())
    others = int((~positive).sum())
    if not count or not others:
        return float("nan")
    ranks = float(rankdata(score)[positive].sum())
    return (ranks - count * (count + 1) / 2) / (count * others)


def mean_area_under_curve(probability: np.ndarray, truth: np.ndarray) -> float:
    """Return the AUC of two classes, or the mean over classes of each against the rest."""
    chosen = range(1, 2) if truth.shape[1] == 2 else range(truth.shape[1])
    areas = [area_under_curve(probability[:, c], truth[:, c] > 0.5) for c in chosen]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")


def bin_by_confidence(
    probability: np.ndarray, truth: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare the largest probability with how often that class is true.

    Args:
        probability: of each class, [R, C].
        truth: one-hot labels, [R, C].

    Returns:
        Mean confidence, share of right classes, and number of rows, by bin of equal count.
    """
    confidence = probability.max(axis=1)
    right = truth[np.arange(len(truth)), probability.argmax(axis=1)]
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, min(BINS, max(len(order) // 10, 1)))]
    return (
        np.array([confidence[part].mean() for part in parts]),
        np.array([right[part].mean() for part in parts]),
        np.array([len(part) for part in parts]),
    )


def score_classes(
    probability: np.ndarray, truth: np.ndarray, frequencies: np.ndarray
) -> dict[str, float]:
    """Score probabilities of classes.

    Args:
        probability: of each class, [R, C].
        truth: one-hot labels, [R, C].
        frequencies: of the classes in the training data, [C], the prediction to beat.

    Returns:
        ``rows``; ``mae``, the log-loss in nats, under the name of every head's error; ``rmse``,
        the root of the Brier score; ``accuracy``; ``auc``; ``ece``, the expected calibration
        error; ``mean_baseline_mae``, the log-loss of the frequencies; ``ratio_to_mean``.
    """
    confidence, right, count = bin_by_confidence(probability, truth)
    own = float(log_losses(probability, truth).mean())
    baseline = float(log_losses(np.broadcast_to(frequencies, truth.shape), truth).mean())
    return {
        "rows": len(truth),
        "mae": own,
        "rmse": float(np.sqrt(np.square(probability - truth).sum(axis=1).mean())),
        "accuracy": float((probability.argmax(axis=1) == truth.argmax(axis=1)).mean()),
        "auc": mean_area_under_curve(probability, truth),
        "ece": float(count @ np.abs(confidence - right) / count.sum()),
        "mean_baseline_mae": baseline,
        "ratio_to_mean": own / baseline if baseline else 0.0,
    }


def count_confusions(probability: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Count the rows of each true class, [C], by the most probable class: [C, C]."""
    counts = np.zeros((truth.shape[1],) * 2)
    np.add.at(counts, (truth.argmax(axis=1), probability.argmax(axis=1)), 1.0)
    return counts
