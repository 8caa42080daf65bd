"""Which trials are ended before their rung, because others are ahead of them for good.

A rule is fed every epoch of every trial in the journal's order and judges in constant time or
nearly so: what it knows is kept in sums and sorted lists. Feeding a journal again gives the same
verdicts.
"""

import bisect
import math
from collections.abc import Collection
from typing import Protocol

import numpy as np

from hydragnn_hpo.config import SearchConfig

PEERS = 5
"""Others that must have come as far before the median rule judges."""

EXPONENTS = np.geomspace(0.125, 4.0, 11)
"""How fast a learning curve may fall: powers of the epoch, [C]."""

SIGMAS = 2.0
"""Residual deviations by which a learning curve may end below its fit."""


class PruningRule(Protocol):
    """Judges trials by their epochs; lower objectives are better."""

    def observe(self, trial: str, epoch: int, objective: float) -> None:
        """Take in the objective of one epoch, counted from 1.

        An epoch that a trial repeats after it was interrupted, and an objective that is not
        finite, change nothing.

        Args:
            trial: its name.
            epoch: number of the epoch, from 1.
            objective: of this epoch; lower is better.
        """
        ...

    def verdict(self, trial: str, until: int) -> str | None:
        """Return why a trial should end now, although it may train on; None: it goes on."""
        ...


class TrialPruner:
    """The stopping rule of a campaign, if it has one."""

    def __init__(self, search: SearchConfig) -> None:
        """Know nothing yet; after a restart, feed it the epochs of the journal again."""
        self._judge: PruningRule | None = None
        if search.stop_rule == "median":
            self._judge = MedianRule(grace=search.grace)
        elif search.stop_rule == "curve":
            self._judge = CurveRule(grace=search.grace, rungs=search.rungs, keep=search.finalists)

    def observe(self, trial: str, epoch: int, objective: float, *, until: int) -> str | None:
        """Take in an epoch of a trial, and say why it should end now; None: it goes on.

        Args:
            trial: its name.
            epoch: number of the epoch, from 1.
            objective: of this epoch; lower is better.
            until: epoch of its rung.
        """
        if self._judge is None:
            return None
        self._judge.observe(trial, epoch, objective)
        return self._judge.verdict(trial, until)


class MedianRule:
    """Ends a trial whose best is worse than the median of the others' running averages.

    Source: Golovin et al. (2017), Google Vizier, doi:10.1145/3097983.3098043.
    """

    def __init__(self, *, grace: int) -> None:
        self._grace = grace
        self._own: dict[str, tuple[int, int, float, float]] = {}
        """Epoch, number of epochs seen, their mean, and the best, by trial."""
        self._means: dict[int, list[float]] = {}
        """Running averages of all trials at each epoch, sorted."""

    def observe(self, trial: str, epoch: int, objective: float) -> None:
        """Take in the objective of one epoch.

        Args:
            trial: its name.
            epoch: number of the epoch, from 1; one that was observed already changes nothing.
            objective: of this epoch; lower is better.
        """
        last, count, mean, best = self._own.get(trial, (0, 0, 0.0, math.inf))
        if epoch <= last or not math.isfinite(objective):
            return
        mean += (objective - mean) / (count + 1)
        self._own[trial] = (epoch, count + 1, mean, min(best, objective))
        bisect.insort(self._means.setdefault(epoch, []), mean)

    def verdict(self, trial: str, until: int) -> str | None:
        """Compare a trial with the others at its epoch."""
        epoch, _, _, best = self._own.get(trial, (0, 0, 0.0, math.inf))
        if epoch < self._grace or epoch >= until:
            return None
        means = self._means[epoch]
        others = len(means) - 1
        if others < PEERS:
            return None
        # Without its own mean. That stands behind these places if the trial is to end: what is
        # best is no worse than the mean.
        median = (means[(others - 1) // 2] + means[others // 2]) / 2
        if best <= median:
            return None
        return (
            f"after {epoch} epochs its best objective {best:.4g} is worse than {median:.4g}, the "
            f"median of {others} others' running averages"
        )


class CurveRule:
    """Ends a trial whose learning curve, drawn on, stays behind as many as are kept.

    Source: after Domhan et al. (2015), "Speeding up automatic hyperparameter optimization of deep
    neural networks by extrapolation of learning curves", IJCAI; one family of curves instead of
    eleven, and least squares instead of sampling.
    """

    def __init__(self, *, grace: int, rungs: Collection[int], keep: int) -> None:
        self._grace, self._keep = grace, keep
        self._curves: dict[str, LearningCurve] = {}
        self._ends: dict[int, list[float]] = {epoch: [] for epoch in rungs}
        """Best objectives of the trials that came to a rung, sorted."""

    def observe(self, trial: str, epoch: int, objective: float) -> None:
        """Take in the objective of one epoch.

        Args:
            trial: its name.
            epoch: number of the epoch, from 1; one that was observed already changes nothing.
            objective: of this epoch; lower is better.
        """
        curve = self._curves.setdefault(trial, LearningCurve())
        if epoch <= curve.epoch or not math.isfinite(objective):
            return
        curve.add(epoch, objective)
        if epoch in self._ends:
            bisect.insort(self._ends[epoch], curve.best)

    def verdict(self, trial: str, until: int) -> str | None:
        """Compare where a trial can get to with what others reached there."""
        curve, ends = self._curves.get(trial), self._ends.get(until, [])
        if curve is None or len(ends) < self._keep or not self._grace <= curve.epoch < until:
            return None
        limit = ends[self._keep - 1]
        if curve.best <= limit or (reached := curve.lowest(until)) is None or reached <= limit:
            return None
        return (
            f"after {curve.epoch} epochs its learning curve reaches {reached:.4g} at best at epoch "
            f"{until}, where {self._keep} others came to {limit:.4g}"
        )


class LearningCurve:
    """A trial's best objective over epochs: ``y = a + b (epoch + 1)^-c``, fitted as it grows.

    Late epochs weigh more: each counts with its number. For every exponent ``c`` the sums of the
    linear fit are kept, so that an epoch more costs the same however long the curve is.
    """

    def __init__(self) -> None:
        self.epoch, self.count, self.best = 0, 0, math.inf
        self._sums = np.zeros((6, len(EXPONENTS)))
        """Weighted sums of 1, s, s^2, y, s y and y^2, with s = (epoch + 1)^-c, [6, C]."""

    def add(self, epoch: int, objective: float) -> None:
        """Append an epoch."""
        self.epoch, self.count, self.best = epoch, self.count + 1, min(self.best, objective)
        ones, shape, best = np.ones_like(EXPONENTS), (epoch + 1.0) ** -EXPONENTS, self.best
        self._sums += epoch * np.array(
            [ones, shape, shape**2, best * ones, best * shape, best**2 * ones]
        )

    def lowest(self, until: int) -> float | None:
        """Return the lowest value that the curve may well have at an epoch.

        The lowest among the exponents that fit nearly as well as the best one (one that is two
        deviations away by the likelihood ratio), less ``SIGMAS`` residual deviations. None while
        there are too few epochs for three parameters.
        """
        free = self.count - 3
        if free < 1:
            return None
        one, s, ss, y, sy, yy = self._sums
        slope = (one * sy - s * y) / (one * ss - s * s)
        level = (y - slope * s) / one
        misfit = np.maximum(yy - level * y - slope * sy, 0.0) / one * self.count
        # Rounding leaves this much of a perfect fit.
        noise = max(float(misfit.min()) / free, 1e-12 * self.best**2)
        good = misfit <= misfit.min() + SIGMAS**2 * noise
        ends = level + slope * (until + 1.0) ** -EXPONENTS
        return float(ends[good].min()) - SIGMAS * math.sqrt(noise)
