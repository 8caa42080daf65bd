"""Stopping rules: end trials before their rung if they are unlikely to catch up with the others.

A rule gets every epoch of every trial in journal order. It keeps sums and sorted lists, so that a
verdict takes nearly constant time. Replaying a journal gives the same verdicts.
"""

import bisect
import math
from collections.abc import Collection
from typing import Protocol

import numpy as np

from hydragnn_hpo.config import SearchConfig

PEERS = 5
"""Least number of other trials at the same epoch before the median rule ends a trial."""

EXPONENTS = np.geomspace(0.125, 4.0, 11)
"""Exponents c of the learning curve ``a + b (epoch + 1)^-c`` that are fitted, [C]."""

SIGMAS = 2.0
"""Residual standard deviations by which a learning curve may end below its fit."""


class PruningRule(Protocol):
    """Judges trials by their epochs; lower objectives are better."""

    def observe(self, trial: str, epoch: int, objective: float) -> None:
        """Take in the objective of one epoch, counted from 1.

        An epoch repeated after an interruption and an objective that is not finite are ignored.

        Args:
            trial: its name.
            epoch: number of the epoch, from 1.
            objective: of this epoch; lower is better.
        """
        ...

    def verdict(self, trial: str, until: int) -> str | None:
        """Return why a trial should end before the epoch ``until``; None if it should go on."""
        ...


class TrialPruner:
    """The stopping rule of a campaign, if it has one."""

    def __init__(self, search: SearchConfig) -> None:
        """Start without epochs; after a restart, ``observe`` those of the journal again."""
        self._judge: PruningRule | None = None
        if search.stop_rule == "median":
            self._judge = MedianRule(grace=search.grace)
        elif search.stop_rule == "curve":
            self._judge = CurveRule(grace=search.grace, rungs=search.rungs, keep=search.finalists)

    def observe(self, trial: str, epoch: int, objective: float, *, until: int) -> str | None:
        """Take in an epoch of a trial; return why it should end now, or None if it should go on.

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
    """Ends a trial whose best objective is worse than the median of the others' running means.

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
        """Return why a trial should end, compared with the others at its epoch; else None."""
        epoch, _, _, best = self._own.get(trial, (0, 0, 0.0, math.inf))
        if epoch < self._grace or epoch >= until:
            return None
        means = self._means[epoch]
        others = len(means) - 1
        if others < PEERS:
            return None
        # The median should exclude the trial's own mean. If the trial is to end, that mean is at
        # least its best value, so it sorts after these places and does not shift them.
        median = (means[(others - 1) // 2] + means[others // 2]) / 2
        if best <= median:
            return None
        return (
            f"after {epoch} epochs its best objective {best:.4g} is worse than {median:.4g}, the "
            f"median of {others} others' running averages"
        )


class CurveRule:
    """Ends a trial whose extrapolated learning curve stays behind the ``keep`` best at its rung.

    Source: after Domhan et al. (2015), "Speeding up automatic hyperparameter optimization of deep
    neural networks by extrapolation of learning curves", IJCAI; one family of curves instead of
    eleven, and least squares instead of sampling.
    """

    def __init__(self, *, grace: int, rungs: Collection[int], keep: int) -> None:
        self._grace, self._keep = grace, keep
        self._curves: dict[str, LearningCurve] = {}
        self._ends: dict[int, list[float]] = {epoch: [] for epoch in rungs}
        """Sorted best objectives of the trials that reached a rung, by its epoch."""

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
        """Return why a trial should end, by the value that its curve can reach; else None."""
        curve = self._curves.get(trial)
        ends = self._ends.get(until, [])
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

    Each epoch has its number as weight, so late ones weigh more. For every exponent ``c`` the sums
    of the linear fit are kept, so that adding an epoch takes constant time.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.count = 0
        self.best = math.inf
        self._sums = np.zeros((6, len(EXPONENTS)))
        """Weighted sums of 1, s, s^2, y, s y and y^2, with s = (epoch + 1)^-c, [6, C]."""

    def add(self, epoch: int, objective: float) -> None:
        """Add the objective of one epoch to the fits."""
        self.epoch, self.count, self.best = epoch, self.count + 1, min(self.best, objective)
        ones = np.ones_like(EXPONENTS)
        shape = (epoch + 1.0) ** -EXPONENTS
        best = self.best
        self._sums += epoch * np.array(
            [ones, shape, shape**2, best * ones, best * shape, best**2 * ones]
        )

    def lowest(self, until: int) -> float | None:
        """Return a plausible lower bound of the curve at the epoch ``until``.

        The lowest value over all exponents within two standard deviations of the best fit (by the
        likelihood ratio), minus ``SIGMAS`` residual standard deviations. None while there are too
        few epochs to fit three parameters.
        """
        free = self.count - 3
        if free < 1:
            return None
        one, s, ss, y, sy, yy = self._sums
        slope = (one * sy - s * y) / (one * ss - s * s)
        level = (y - slope * s) / one
        misfit = np.maximum(yy - level * y - slope * sy, 0.0) / one * self.count
        # Lower limit of the residual variance: the rounding error of a perfect fit.
        noise = max(float(misfit.min()) / free, 1e-12 * self.best**2)
        good = misfit <= misfit.min() + SIGMAS**2 * noise
        ends = level + slope * (until + 1.0) ** -EXPONENTS
        return float(ends[good].min()) - SIGMAS * math.sqrt(noise)
