"""Predict the cost of trials: formulas, corrected by measurements; probabilities of failure.

The correction is Bayesian linear regression with normal priors (ridge regression whose penalties
are the priors' inverse variances), made robust by Huber weights. Sources: Bishop (2006), Pattern
Recognition and Machine Learning, section 3.3; Huber (1964), Ann. Math. Statist. 35, 73.

Shapes: R observations (rows), C features (columns).
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, NonNegativeInt, ValidationError

from hydragnn_hpo.config import (
    Config,
    ProfileConfig,
    Scalar,
    TrialConfig,
    find_profile,
    validation_sentence,
)
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.placement.price import CommandQuote, Price, Quote, epoch_workload

Features = Mapping[str, float]
Row = tuple[dict[str, float], float]
Floats = NDArray[np.float64]

BEND = 1.5
"""Residual, in standard deviations, from which the loss is linear, not quadratic (Huber)."""

BENT = 0.89
"""Share of the variance of normal residuals that remains under Huber weights."""

ROUNDS = 5
"""Iterations that recompute Huber weights and noise."""

BELIEF = 4.0
"""Weight of the first guess of the noise, as a number of observations."""

STALE = 0.02
"""Share of new observations up to which the last fit is reused."""

MOST_ROWS = 4096
"""Maximum number of observations kept; the oldest are dropped."""


class Ridge:
    """Robust linear regression of a number on named features, with standard deviations."""

    def __init__(self, priors: Mapping[str, float], noise: float) -> None:
        """Start with the priors alone.

        Args:
            priors: standard deviation of a feature's coefficient, by kind of feature; the kind is
                the part of its name before the first colon.
            noise: first guess of the standard deviation of an observation.
        """
        self.priors = dict(priors)
        self._first_noise = noise
        self._rows: dict[Any, Row] = {}
        self._lent: list[Row] = []
        self._fits = 0
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, int] = {}
        self._spread: Floats = np.zeros((0, 0))
        self._known: dict[str, float] = {}
        self._noise = self._first_noise
        self._stale = 0.0

    def put(self, key: Any, features: Features, value: float) -> None:
        """Add an observation; it replaces an earlier one with the same key.

        Args:
            key: identity of the observation.
            features: values of the features by name.
            value: logarithm of measured over predicted.
        """
        _, before = self._rows.get(key, ({}, math.inf))
        if key not in self._rows and len(self._rows) >= MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = (dict(features), value)
        self._stale += min(abs(value - before) / self._noise, 1.0)

    def lend(self, rows: Iterable[Row]) -> None:
        """Add observations of another campaign; ``rows`` does not return them."""
        self._lent = [*self._lent, *rows][-MOST_ROWS:]
        self._stale = len(self._lent) + len(self._rows)

    def rows(self) -> list[Row]:
        """Return the observations of this campaign, oldest key first."""
        return list(self._rows.values())

    @property
    def version(self) -> int:
        """Number of the fit; predictions change only with this number."""
        self._refit()
        return self._fits

    @property
    def noise(self) -> float:
        """Standard deviation of an observation if all coefficients were known exactly."""
        self._refit()
        return self._noise

    def predict(self, features: Features) -> float:
        """Return the most likely value; features without observations add 0."""
        self._refit()
        return math.fsum(self._known.get(name, 0.0) * value for name, value in features.items())

    def sigma(self, features: Features) -> float:
        """Return the standard deviation of an observation about its prediction."""
        self._refit()
        row = np.zeros(len(self._columns))
        unseen = 0.0
        for name, value in features.items():
            if name in self._columns:
                row[self._columns[name]] = value
            else:
                unseen += (self._prior(name) * value) ** 2
        return math.sqrt(self._noise**2 + unseen + float(row @ self._spread @ row))

    def coefficient(self, name: str) -> float:
        """Return the coefficient of a feature."""
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
            fitted = self._spread @ (weighted.T @ values)
            away = np.abs(values - table @ fitted)
            weights = np.minimum(1.0, BEND * self._noise / np.maximum(away, 1e-12))
            used = len(penalty) - float(np.diag(self._spread) @ np.diag(penalty))
            squares = BELIEF * self._first_noise**2 + float(weights @ away**2) / BENT
            self._noise = math.sqrt(squares / (BELIEF + max(float(weights.sum()) - used, 0.0)))
        self._known = dict(zip(self._columns, fitted.tolist(), strict=True))

    def _table(self) -> tuple[Floats, Floats]:
        """Return features, [R, C], and values, [R], of all observations."""
        rows = [*self._lent, *self._rows.values()]
        for features, _ in rows:
            for name in features:
                self._columns.setdefault(name, len(self._columns))
        table = np.zeros((len(rows), len(self._columns)))
        for place, (features, _) in enumerate(rows):
            for name, value in features.items():
                table[place, self._columns[name]] = value
        return table, np.array([value for _, value in rows])


PRIOR, WORTH = 0.05, 4.0
"""Assumed share of failing trials, and the weight of this assumption as a number of trials."""

MOST = 0.95
"""Upper limit of a predicted probability of failure."""


class FailureModel:
    """Estimates probabilities of failure from counts of ended and failed trials by cause."""

    def __init__(self) -> None:
        """Start with empty counts."""
        self.counts: dict[str, list[int]] = {}
        self._lent: dict[str, list[int]] = {}

    @property
    def ends(self) -> int:
        """Number of trials that ended."""
        return self.counts.get("all", [0])[0]

    def put(self, causes: tuple[str, ...], *, failed: bool) -> None:
        """Count a trial that ended, under each of its possible causes of failure."""
        for cause in ("all", *causes):
            _count(self.counts, cause, 1, int(failed))

    def lend(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add ends and failures of another campaign by cause; ``counts`` leaves them out."""
        for cause, (ends, failures) in counts.items():
            _count(self._lent, cause, ends, failures)

    def rate(self, cause: str) -> float:
        """Return the share of trials with this cause that failed, smoothed towards ``PRIOR``."""
        own = self.counts.get(cause, [0, 0])
        lent = self._lent.get(cause, [0, 0])
        return (own[1] + lent[1] + WORTH * PRIOR) / (own[0] + lent[0] + WORTH)

    def fails(self, causes: tuple[str, ...]) -> float:
        """Return the probability of failure: each cause multiplies the rate of all trials."""
        rate_of_all = probability = self.rate("all")
        for cause in causes:
            probability *= self.rate(cause) / rate_of_all
        return min(probability, MOST)


def _count(counts: dict[str, list[int]], cause: str, ends: int, failures: int) -> None:
    known = counts.get(cause, [0, 0])
    counts[cause] = [known[0] + ends, known[1] + failures]


def failure_causes(config: TrialConfig) -> tuple[str, ...]:
    """Return the possible causes of failure of a trial: its conv and its learning rate.

    Returns:
        Names such as ``conv:schnet`` and ``rate:1e-3``; rates are rounded to half a decade.
    """
    decade = round(2 * math.log10(config.training.learning_rate)) / 2
    return (f"conv:{config.model.conv}", f"rate:1e{decade:g}")


def probability_above(expected: float, limit: float, sigma: float) -> float:
    """Return the probability that a lognormal quantity exceeds a limit.

    Args:
        expected: median of the quantity.
        limit: in the unit of ``expected``; may be infinite.
        sigma: standard deviation of the quantity's logarithm.
    """
    if math.isinf(limit):
        return 0.0
    return 0.5 * math.erfc(math.log(limit / expected) / (sigma * math.sqrt(2.0)))


Values = Mapping[str, Scalar]

SECONDS_PRIORS = {
    "machine": 0.7,
    "width": 0.15,
    "conv": 0.4,
    "flops": 0.15,
    "steps": 0.1,
    "value": 0.5,
}
"""Expected error of the logarithm of a time by source (standard deviation): the machine's speed,
each doubling of the width, the conv, each e-fold of operations and of steps, a command's value."""

MEMORY_PRIORS = {"machine": 0.2, "conv": 0.25, "value": 0.5}

NOISE = 0.15
"""Standard deviation of the logarithm of cost among trials with the same features; a first guess,
corrected by measurements."""

OWN_NOISE = 0.05
"""Standard deviation of the logarithm of epoch time within one trial."""

BEYOND = 1.2
"""Assumed memory of a trial that ran out of it, over what its slot has or what was predicted,
whichever is larger."""

EPOCHS = 5
"""A trial's measured time at a width is the median of this many latest epochs."""

FORMAT = 1
"""Version of the file that ``CostModel.save`` writes."""


def _is_known(feature: str) -> str:
    if feature.split(":")[0] not in SECONDS_PRIORS:
        raise ValueError(f"unknown feature '{feature}'")
    return feature


_Row = tuple[dict[Annotated[str, AfterValidator(_is_known)], float], float]


class _SavedCostModel(Config):
    """Content of a cost model's file."""

    format: Literal[1]
    seconds: list[_Row]
    memory: list[_Row]
    ends: dict[str, tuple[NonNegativeInt, NonNegativeInt]]


@dataclass
class _TrialFeatures:
    """Features, measurements and latest price of one trial."""

    trial: TrialConfig | Values
    """The key object; the reference keeps Python from reusing its ``id``."""
    quote: Quote | CommandQuote
    causes: tuple[str, ...]
    epochs: dict[int, deque[float]] = field(default_factory=dict)
    """Seconds of its latest epochs, by width."""
    price: Price | None = None
    """Latest price; None before the first request."""
    version: tuple[int, ...] = ()
    """Version of the models that ``price`` was computed with."""


class CostModel:
    """Predicts the cost of trials and learns from measurements.

    Trials are identified by object identity: pass the same object each time. Each machine has its
    own factor and slope, so observations from another machine only teach ratios between trials.
    """

    def __init__(
        self,
        stats: StoreStats | None,
        profile: ProfileConfig | None = None,
        *,
        max_width: int = 64,
    ) -> None:
        """Start with the formulas alone.

        Args:
            stats: statistics of the data, as in ``stats.json``; None for trials of a command.
            profile: machine profile; this computer if left out.
            max_width: maximum number of ranks of a trial.
        """
        self.stats, self.max_width = stats, max_width
        self.profile = profile or find_profile()
        self._times = Ridge(SECONDS_PRIORS, NOISE)
        self._bytes = Ridge(MEMORY_PRIORS, NOISE)
        self._chances = FailureModel()
        self._seen: dict[int, _TrialFeatures] = {}

    def price(self, config: TrialConfig) -> Price:
        """Return the price of a trial according to all observations so far."""
        return self._priced(self._trial(config))

    def price_values(self, values: Values, widths: tuple[int, ...] = (1,)) -> Price:
        """Return the price of a command from its searched values and all observations so far.

        Args:
            values: searched values, the same object each time.
            widths: allowed numbers of ranks, ascending.
        """
        return self._priced(self._command(values, widths))

    def observe(self, config: TrialConfig, width: int, seconds: float) -> None:
        """Learn from the time of one epoch, training and validation together.

        Args:
            config: the trial, the same object each time.
            width: number of ranks.
            seconds: time of the epoch; ignored unless > 0.
        """
        self._learn(self._trial(config), width, seconds)

    def observe_values(self, values: Values, width: int, seconds: float) -> None:
        """Learn from the time of one epoch of a command.

        Args:
            values: searched values of the command, the same object each time.
            width: number of ranks.
            seconds: time of the epoch; ignored unless > 0.
        """
        self._learn(self._command(values, (width,)), width, seconds)

    def observe_memory(self, config: TrialConfig, width: int, size: float) -> None:
        """Learn from the peak memory of a rank, ``peak_bytes`` of its record.

        Args:
            config: the trial, the same object each time.
            width: number of ranks.
            size: peak memory of one rank in bytes; 0 if it was not measured.
        """
        quote = self._trial(config).quote
        if size > 0.0:
            ratio = math.log(size / quote.bytes(width))
            self._bytes.put((id(config), width), _for_memory(quote.features), ratio)

    def observe_end(self, config: TrialConfig, reason: str | None) -> None:
        """Learn from the end of a trial.

        Running out of memory is learned as a memory size (``BEYOND``), not as a failure.

        Args:
            config: the trial, the same object each time.
            reason: why it failed; None if it did not.
        """
        seen = self._trial(config)
        full = reason == "out_of_memory"
        self._chances.put(seen.causes, failed=reason is not None and not full)
        if full and math.isfinite(self.profile.memory_bytes):
            width = seen.quote.widths[0]
            least = max(self.profile.memory_bytes, seen.quote.bytes(width))
            self.observe_memory(config, width, BEYOND * least)

    def save(self, path: Path) -> None:
        """Write the observations of this campaign, without those loaded from others."""
        content = {
            "format": FORMAT,
            "seconds": self._times.rows(),
            "memory": self._bytes.rows(),
            "ends": self._chances.counts,
        }
        write_json(path, content)

    def load(self, path: Path) -> None:
        """Add the observations of another campaign, from this machine or another one.

        Raises:
            StorageError: the file cannot be read, or is not a cost model of this version.
        """
        try:
            saved = _SavedCostModel.model_validate(read_json(path))
        except ValidationError as error:
            raise StorageError(
                f"{path}: holds no costs of this version "
                f"({validation_sentence(error, _SavedCostModel)}); leave it out."
            ) from error
        self._times.lend(saved.seconds)
        self._bytes.lend(saved.memory)
        self._chances.lend(saved.ends)
        for seen in self._seen.values():
            seen.version = ()

    @property
    def _slope(self) -> str:
        return f"width:{self.profile.name}"

    def _trial(self, config: TrialConfig) -> _TrialFeatures:
        """Return the features of a trial; compute them at the first call."""
        if id(config) not in self._seen:
            assert self.stats is not None, "only trainings have a formula, and they have data"
            quote = Quote(epoch_workload(config, self.stats), self.profile, self.max_width)
            self._seen[id(config)] = _TrialFeatures(config, quote, failure_causes(config))
        return self._seen[id(config)]

    def _command(self, values: Values, widths: tuple[int, ...]) -> _TrialFeatures:
        if id(values) not in self._seen:
            quote = CommandQuote(values, self.profile, widths)
            self._seen[id(values)] = _TrialFeatures(values, quote, ("command",))
        return self._seen[id(values)]

    def _learn(self, seen: _TrialFeatures, width: int, seconds: float) -> None:
        if not seconds > 0.0:
            return
        epochs = seen.epochs.setdefault(width, deque(maxlen=EPOCHS))
        settled = len(epochs) == EPOCHS
        epochs.append(seconds)
        seen.version = ()
        if not settled:
            ratio = statistics.median(epochs) / seen.quote.seconds(width)
            features = seen.quote.features | {self._slope: math.log2(width)}
            self._times.put((id(seen.trial), width), features, math.log(ratio))

    def _priced(self, seen: _TrialFeatures) -> Price:
        version = (self._times.version, self._bytes.version, self._chances.ends)
        if seen.price is None or seen.version != version:
            seen.price = self._made(seen)
            seen.version = version
        return seen.price

    def _made(self, seen: _TrialFeatures) -> Price:
        quote = seen.quote
        memory = _for_memory(seen.quote.features)
        limit = self.profile.memory_bytes
        factor = math.exp(self._bytes.predict(memory))
        fits = [width for width in quote.widths if factor * quote.bytes(width) <= limit]
        widths = tuple(fits) or quote.widths[-1:]
        full = probability_above(factor * quote.bytes(widths[0]), limit, self._bytes.sigma(memory))
        own = {width: statistics.median(epochs) for width, epochs in seen.epochs.items()}
        return Price(
            quote=quote,
            widths=widths,
            factor=math.exp(self._times.predict(quote.features)),
            slope=self._times.coefficient(self._slope),
            memory_factor=factor,
            sigma=OWN_NOISE if own else self._times.sigma(quote.features),
            fails=1.0 - (1.0 - self._chances.fails(seen.causes)) * (1.0 - full),
            own=own,
        )


def _for_memory(features: Mapping[str, float]) -> dict[str, float]:
    """Keep the features of kinds that correct the memory formula."""
    return {name: value for name, value in features.items() if name.split(":")[0] in MEMORY_PRIORS}
