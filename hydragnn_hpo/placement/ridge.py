"""Regression on few and noisy observations: named features, each with a prior spread.

Shapes: R observations (rows), C features (columns).

Bayesian linear regression with normal priors (ridge regression whose penalties are the priors'),
made robust by Huber's weights. Sources: Bishop (2006), Pattern Recognition and Machine Learning,
section 3.3; Huber (1964), Ann. Math. Statist. 35, 73.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Features = Mapping[str, float]
Row = tuple[dict[str, float], float]
Floats = NDArray[np.float64]

BEND = 1.5
"""Residuals beyond so many standard deviations count only linearly."""

BENT = 0.89
"""What the weights leave of the variance of normal residuals."""

ROUNDS = 5
"""Times that weights and noise are found again."""

BELIEF = 4.0
"""Observations that the prior guess of the noise is worth."""

STALE = 0.02
"""Share of new observations below which the last fit is good enough."""

MOST_ROWS = 4096
"""Observations that are kept; the oldest are forgotten."""


class Ridge:
    """Predicts a number from named features, with its standard deviation."""

    def __init__(self, priors: Mapping[str, float], noise: float) -> None:
        """Know nothing but the priors.

        Args:
            priors: standard deviation of a feature's coefficient, by the feature's kind: its name
                up to the first colon.
            noise: first guess of the observations' own standard deviation.
        """
        self.priors, self._first_noise = dict(priors), noise
        self._rows: dict[Any, Row] = {}
        self._lent: list[Row] = []
        self._fits = 0
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, int] = {}
        self._spread: Floats = np.zeros((0, 0))
        self._known: dict[str, float] = {}
        self._noise, self._stale = self._first_noise, 0.0

    def put(self, key: Any, features: Features, value: float) -> None:
        """Take in an observation, in place of an earlier one of the same key."""
        _, before = self._rows.get(key, ({}, math.inf))
        if key not in self._rows and len(self._rows) >= MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = (dict(features), value)
        self._stale += min(abs(value - before) / self._noise, 1.0)

    def lend(self, rows: Iterable[Row]) -> None:
        """Take in observations of somebody else, which are not ours to hand on."""
        self._lent = [*self._lent, *rows][-MOST_ROWS:]
        self._stale = len(self._lent) + len(self._rows)

    def rows(self) -> list[Row]:
        """Give our own observations in the order in which they came."""
        return list(self._rows.values())

    @property
    def version(self) -> int:
        """Number of the fit; predictions of one fit are the same."""
        self._refit()
        return self._fits

    @property
    def noise(self) -> float:
        """Standard deviation of an observation whose coefficients are known."""
        self._refit()
        return self._noise

    def predict(self, features: Features) -> float:
        """Give the most likely value; features that were never seen add nothing."""
        self._refit()
        return math.fsum(self._known.get(name, 0.0) * value for name, value in features.items())

    def sigma(self, features: Features) -> float:
        """Give the standard deviation of an observation about its prediction."""
        self._refit()
        row, unseen = np.zeros(len(self._columns)), 0.0
        for name, value in features.items():
            if name in self._columns:
                row[self._columns[name]] = value
            else:
                unseen += (self._prior(name) * value) ** 2
        return math.sqrt(self._noise**2 + unseen + float(row @ self._spread @ row))

    def coefficient(self, name: str) -> float:
        """Give what one unit of a feature adds."""
        self._refit()
        return self._known.get(name, 0.0)

    def _prior(self, name: str) -> float:
        return self.priors[name.split(":", 1)[0]]

    def _refit(self) -> None:
        if self._stale <= STALE * (len(self._rows) + len(self._lent)):
            return
        self._clear()
        self._fits += 1
        table, values = self._table()
        penalty = np.diag([self._prior(name) ** -2.0 for name in self._columns])
        weights = np.ones(len(values))
        for _ in range(ROUNDS):
            weighted = table * (weights / self._noise**2)[:, None]
            self._spread = np.asarray(np.linalg.inv(table.T @ weighted + penalty), dtype=float)
            found = self._spread @ (weighted.T @ values)
            away = np.abs(values - table @ found)
            weights = np.minimum(1.0, BEND * self._noise / np.maximum(away, 1e-12))
            used = len(penalty) - float(np.diag(self._spread) @ np.diag(penalty))
            squares = BELIEF * self._first_noise**2 + float(weights @ away**2) / BENT
            self._noise = math.sqrt(squares / (BELIEF + max(float(weights.sum()) - used, 0.0)))
        self._known = dict(zip(self._columns, found.tolist(), strict=True))

    def _table(self) -> tuple[Floats, Floats]:
        """Lay the observations out, [R, C] and [R]."""
        rows = [*self._lent, *self._rows.values()]
        for features, _ in rows:
            for name in features:
                self._columns.setdefault(name, len(self._columns))
        table = np.zeros((len(rows), len(self._columns)))
        for place, (features, _) in enumerate(rows):
            for name, value in features.items():
                table[place, self._columns[name]] = value
        return table, np.array([value for _, value in rows])
