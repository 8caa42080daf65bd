"""Linear regressions whose penalty is the one that predicts other rows best.

Rows of invariant numbers have a constant beside their features, which is 0 where they are sums over
atoms. Rows that turn with the structure
have features for each component and share the weights, so that predictions turn, too; they have no
constant.

Shapes: R rows, W components that turn together, D features, T values.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import log_softmax

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
"""Penalties to choose from, relative to the mean square of the features."""

_STEPS, _CHANGE = 100, 1e-5
"""Most steps of the search for the weights of classes, and the relative change of the loss in one
step at which it ends: a smaller one changes no log-loss in the fourth digit."""

_PATIENCE = 2
"""Penalties in a row that may predict the other rows worse before smaller ones are left out."""


class Rows(NamedTuple):
    """Labelled rows of a target."""

    features: np.ndarray
    """[R, D], or [R, W, D] where they turn with the structure."""
    values: np.ndarray
    """Labels, [R, T], or [R, W]; of classes one-hot."""
    start: np.ndarray
    """What a regression adds to, of the same shape; of classes logarithms of probabilities."""

    def take(self, rows: np.ndarray) -> Self:
        """Return some of the rows."""
        return type(self)(*(part[rows] for part in self))

    def join(self, other: Self) -> Self:
        """Return these rows and others after them."""
        return type(self)(*map(np.concatenate, zip(self, other, strict=True)))


class Fit(NamedTuple):
    """A regression, and how well it predicts the rows that chose its penalty."""

    weights: np.ndarray
    """As ``apply_weights`` takes them; 0 for fewer than two rows."""
    error: float
    """Sum of the errors of those rows, before they are fitted, too; infinite without any."""


def apply_weights(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what a regression adds, [R, T], or [R, W] for features that turn.

    Args:
        features: [R, D], or [R, W, D].
        weights: with a constant last, [D + 1, T], or [D, 1].
    """
    turns = features.ndim == 3
    values: np.ndarray = features @ weights if turns else features @ weights[:-1] + weights[-1]
    return values[..., 0] if turns else values


def fit_ridge(train: Rows, val: Rows, *, refit: bool = False, constant: bool = True) -> Fit:
    """Fit a ridge regression with the penalty that predicts ``val`` best; the largest without any.

    Errors are absolute; those of rows that turn are lengths, which do not depend on the axes.

    Args:
        train: rows to fit.
        val: rows that choose the penalty.
        refit: whether ``val``, too, is fitted with that penalty.
        constant: whether rows of invariant numbers have a constant, or 0.
    """

    def score(rows: Rows, weights: np.ndarray) -> float:
        residual = rows.start + apply_weights(rows.features, weights) - rows.values
        if rows.features.ndim == 3:
            return float(np.linalg.norm(residual, axis=1).sum())
        return float(np.abs(residual).sum())

    solve = partial(_solve_ridge, constant=constant)
    return _fit(solve, score, train, val, refit=refit, patience=len(PENALTIES))


def fit_softmax(train: Rows, val: Rows, *, refit: bool = False) -> Fit:
    """Fit a multinomial logistic regression with the penalty of the smallest log-loss on ``val``.

    Args:
        train: rows to fit.
        val: rows that choose the penalty; without any it is the largest.
        refit: whether ``val``, too, is fitted with that penalty.
    """

    def score(rows: Rows, weights: np.ndarray) -> float:
        logits = rows.start + apply_weights(rows.features, weights)
        return float(-(rows.values * log_softmax(logits, axis=1)).sum())

    return _fit(_solve_softmax, score, train, val, refit=refit, patience=_PATIENCE)


_Solve = Callable[[Rows, Sequence[float]], Iterator[tuple[float, np.ndarray]]]


def _fit(
    solve: _Solve,
    score: Callable[[Rows, np.ndarray], float],
    train: Rows,
    val: Rows,
    *,
    refit: bool,
    patience: int,
) -> Fit:
    """Fit with the penalty of the smallest score on ``val``, the largest penalty first.

    Args:
        solve: yields penalties and weights.
        score: error of weights on rows.
        train: rows to fit.
        val: rows that choose the penalty.
        refit: whether ``val``, too, is fitted with that penalty.
        patience: penalties in a row that may be worse than the best before.
    """
    turns = train.features.ndim == 3
    width = train.features.shape[-1]
    best = np.zeros((width, 1) if turns else (width + 1, train.values.shape[1]))
    smallest = np.inf
    if len(train.values) < 2:
        return Fit(best, smallest)
    chosen = PENALTIES[-1]
    worse = 0
    for penalty, weights in solve(train, PENALTIES[::-1]):
        if not len(val.values):
            return Fit(weights, smallest)
        error, worse = score(val, weights), worse + 1
        if error < smallest:
            best = weights
            smallest = error
            chosen = penalty
            worse = 0
        if worse >= patience:
            break
    if refit:
        [(_, best)] = solve(train.join(val), (chosen,))
    return Fit(best, smallest)


def _solve_ridge(
    rows: Rows, penalties: Sequence[float], *, constant: bool
) -> Iterator[tuple[float, np.ndarray]]:
    """Solve ridge regressions with several penalties.

    Args:
        rows: the rows.
        penalties: relative to the mean square of the features.
        constant: whether rows of invariant numbers have a constant, or 0.

    Yields:
        Each penalty, and the weights as ``apply_weights`` takes them.
    """
    features = rows.features
    values = rows.values - rows.start
    turns = features.ndim == 3
    width = features.shape[-1]
    if turns:
        features, values = features.reshape(-1, width), values.reshape(-1, 1)
    free = constant and not turns
    mean = features.mean(axis=0) if free else np.zeros(width)
    middle = values.mean(axis=0) if free else np.zeros(values.shape[1])
    centred, rest = features - mean, values - middle
    dual = len(centred) < width
    gram = centred @ centred.T if dual else centred.T @ centred
    right = rest if dual else centred.T @ rest
    scale = max(float(np.trace(gram)) / width, 1e-30)
    for penalty in penalties:
        solved = cho_solve(cho_factor(gram + penalty * scale * np.eye(len(gram))), right)
        weights = centred.T @ solved if dual else solved
        last = () if turns else ((middle - mean @ weights)[None],)
        yield penalty, np.concatenate([weights, *last])


def _solve_softmax(rows: Rows, penalties: Sequence[float]) -> Iterator[tuple[float, np.ndarray]]:
    """Solve logistic regressions with several penalties, each from the solution before.

    The variables are scaled by a Cholesky factor of an upper bound of the second derivatives
    (Boehning 1992, Ann. Inst. Stat. Math. 44, 197), so that few steps suffice. The constants have
    the penalty 1: a class without rows keeps a probability.

    Args:
        rows: the rows.
        penalties: relative to the mean square of the features.

    Yields:
        Each penalty, and the weights with a constant last, [D + 1, T].
    """
    mean = rows.features.mean(axis=0)
    shape = (rows.features.shape[1] + 1, rows.values.shape[1])
    centred = np.concatenate([rows.features - mean, np.ones((len(rows.features), 1))], axis=1)
    gram = centred.T @ centred
    scale = max(float(np.trace(gram[:-1, :-1])) / max(shape[0] - 1, 1), 1e-30)
    weights = np.zeros(shape)
    for penalty in penalties:
        damping = np.append(np.full(shape[0] - 1, penalty * scale), 1.0)
        factor, _ = cho_factor(0.5 * gram + np.diag(damping), lower=True)
        weights = _minimize_log_loss(rows, centred, weights, damping, np.tril(factor))
        yield penalty, np.concatenate([weights[:-1], weights[-1:] - mean @ weights[:-1]])


def _minimize_log_loss(
    rows: Rows, features: np.ndarray, weights: np.ndarray, damping: np.ndarray, factor: np.ndarray
) -> np.ndarray:
    """Minimize the sum of the log-loss and of half the damped squares of the weights.

    Args:
        rows: the rows.
        features: their features and 1, [R, D + 1].
        weights: where to begin, [D + 1, T].
        damping: penalty of each feature, [D + 1].
        factor: lower triangle L; the transpose of L times the weights is searched, [D + 1, D + 1].
    """

    def cost(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        tried = solve_triangular(factor, scaled.reshape(weights.shape), lower=True, trans=1)
        logs = log_softmax(rows.start + features @ tried, axis=1)
        slope = features.T @ (np.exp(logs) - rows.values) + damping[:, None] * tried
        loss = 0.5 * float((damping @ np.square(tried)).sum()) - float((rows.values * logs).sum())
        return loss, solve_triangular(factor, slope, lower=True).ravel()

    start = (factor.T @ weights).ravel()
    options = {"maxiter": _STEPS, "ftol": _CHANGE}
    fit = minimize(cost, start, method="L-BFGS-B", jac=True, options=options)
    solved: np.ndarray = solve_triangular(factor, fit.x.reshape(weights.shape), lower=True, trans=1)
    return solved
