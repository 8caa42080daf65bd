"""What the rules of the verdict read: figures from predictions and labels, and what follows.

Groups, not rows, carry the uncertainty of every figure: structures of one group (one molecule, one
composition) are not independent.

Shapes: R rows of a head that have the label, w components, Q groups of structures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo.config import ELEMENTS, TRUNKS, TrunkSpec
from hydragnn_hpo.file_records import LocalJoining
from hydragnn_hpo.uncertainty import (
    Calibration,
    as_probabilities,
    class_sets,
    flatten_values,
    log_losses,
)
from hydragnn_hpo.uncertainty.calibrate import size_strata
from hydragnn_hpo.uncertainty.paired_comparison import CLEAR, Comparison, compare
from hydragnn_hpo.uncertainty.uncertainty_scores import HeadOnLabels, ause, random_ause, spearman

NOT_LEARNED = 0.95
"""Ratio to the error of predicting a constant above which nothing was learned."""

MEDIAN = 0.9
"""Ratio of the error of the median to that of the mean below which the median is the constant to
beat, as where nearly all values are 0; of a normal or Laplace distribution both err alike."""

BAND, BAND_OF_KINDS = 1.96, 2.58
"""Width of the binomial band around 90 %, in standard deviations: 95 %, and 99 % for kinds of
structures, as many of them are tried."""

FEW_OF_KIND = 10
"""Groups of a kind of structure below which its coverage says nothing."""

MOST_REMEMBERED = 0.02
"""Largest share of test structures with a twin outside of test with which figures are praised."""


class KindCoverage(NamedTuple):
    """The 90 % intervals of one kind of structures."""

    kind: str
    """An element, or a range of sizes."""
    inside: float
    """Share of the values inside."""
    groups: int
    """Groups of structures behind it."""

    @property
    def is_narrow(self) -> bool:
        """Whether its intervals clearly hold too few values."""
        return self.inside < 0.9 - BAND_OF_KINDS * math.sqrt(0.9 * 0.1 / self.groups)


class DataCurve(NamedTuple):
    """The error on ``sel`` of one configuration, trained on shares of the data.

    ``sel`` and not ``val``, on which the configuration and the epoch of each fit are chosen.
    """

    structures: tuple[int, ...]
    """Training structures of each fit, about twice as many each time."""
    maes: tuple[float, ...]
    """Error of each fit, in the unit."""
    z: float
    """Difference of the last two, in standard errors over groups; below 0 where more helped."""
    epochs: int
    """Epochs of each fit."""
    full: int
    """Epochs of the full budget."""

    @property
    def doubles(self) -> bool:
        """Whether errors are known, and the last fit has twice the data, not a few large groups."""
        return all(self.maes) and self.structures[-1] >= 1.5 * self.structures[-2]

    @property
    def gains(self) -> tuple[float, float, float]:
        """Shares by which the error falls.

        Returns:
            That in the last doubling of the data, in the one before, and the mean of both.
        """
        first, before, last = self.maes
        return 1 - last / before, 1 - before / first, 1 - math.sqrt(last / first)

    @property
    def margin(self) -> float:
        """Two standard errors of the last gain; infinite if they are not known."""
        return CLEAR * abs(self.gains[0] / self.z) if self.z else math.inf


class Published(NamedTuple):
    """A published error of the same target."""

    mae: float
    """In the unit of the head."""
    by: str
    """Name of the model."""


class FarValue(NamedTuple):
    """A label, or an error, that is far from all others."""

    id: str
    """Name of its structure."""
    value: float
    """In the unit."""
    median: float
    """Of all others, in the unit."""
    is_error: bool
    """Whether it is an error on the tested structures, and not a label of any split."""


@dataclass(frozen=True)
class HeadEvidence:
    """What is known about one head on labelled structures."""

    name: str
    unit: str
    is_node: bool = False
    """Whether it has one value per atom."""
    has_derivatives: bool = False
    """Whether forces or stress are heads that are derived from it."""
    score: Literal["MAE", "log-loss"] = "MAE"
    """What its error is: the log-loss in nats for classes."""
    classes: tuple[str, ...] = ()
    """Names of its classes."""
    class_groups: tuple[int, ...] = ()
    """Groups of structures that have each class."""
    mae: float = math.nan
    groups: int = 0
    """Groups of structures that the figures rest on."""
    structures: int = 0
    """Test structures with a label; 0 if their twins are not known."""
    remembered: int = 0
    """Those of them with a twin among the structures that the ensemble is made from."""
    spearman: float = math.nan
    """Rank correlation of |error| and sigma; NaN without one."""
    ause: float = math.nan
    random_ause: float = math.nan
    """AUSE of a random order."""
    inside: float = math.nan
    """Share of the values inside the 90 % intervals."""
    calibration_groups: int = 0
    mean: Comparison = Comparison()
    """Against predicting the mean of the training data."""
    median: Comparison = Comparison()
    """Against predicting the median of the labels outside of test; of numbers of structures."""
    elements: Comparison = Comparison()
    """Against ``baselines.CompositionModel``."""
    descriptor: Comparison = Comparison()
    """Against ``local_descriptors.LocalModels``."""
    described_by: str = "local descriptors"
    """What these describe atoms by, as a phrase."""
    single: Comparison = Comparison()
    """Against the trial of lowest validation objective, alone."""
    local: LocalJoining | None = None
    """What a regression on local descriptors adds as a member; None where it was not tried."""
    kinds: tuple[KindCoverage, ...] = ()
    published: Published | None = None
    data: DataCurve | None = None
    far: FarValue | None = None
    """The farthest of the labels, or of the errors, that are far from all others."""

    @property
    def absent(self) -> list[str]:
        """The classes that no structure has; none of a head of numbers."""
        classes = zip(self.classes, self.class_groups, strict=False)
        return [repr(name) for name, groups in classes if not groups]

    @property
    def simplest(self) -> Comparison:
        """Against the better constant: the median where few values hold most of the spread."""
        return self.median if self.median.mae < MEDIAN * self.mean.mae else self.mean

    @property
    def constant(self) -> str:
        """What the better constant is."""
        what = "mean" if self.simplest is self.mean else "median"
        return "frequencies of the classes" if self.score == "log-loss" else what

    @property
    def leaks(self) -> bool:
        """Whether so many test structures have a twin outside of test that no figure is praised."""
        return self.remembered > MOST_REMEMBERED * self.structures

    @property
    def ratio(self) -> float:
        """Its error over that of the better constant; NaN if that is not known."""
        return self.mae / self.simplest.mae if self.simplest.mae > 0 else math.nan

    @property
    def learned(self) -> bool:
        """Whether the error is clearly below that of the better constant, if known."""
        least = self.simplest
        return not least.mae > 0 or (self.beats_constant(self.mae) and least.z <= -CLEAR)

    def beats_constant(self, mae: float) -> bool:
        """Check whether an error is below that of the better constant, if it is known."""
        return not self.simplest.mae > 0 or mae <= NOT_LEARNED * self.simplest.mae

    def is_beaten_by_constant(self, mae: float) -> bool:
        """Check whether a model's error is not known, or not below that of the better constant."""
        return not mae > 0 or mae > NOT_LEARNED * self.simplest.mae

    @property
    def gain(self) -> float:
        """Share by which the error is below that of the best trial."""
        return 1 - self.mae / self.single.mae

    @property
    def published_ratio(self) -> float:
        """Its error over the published one; NaN if there is none."""
        return self.mae / self.published.mae if self.published else math.nan

    @property
    def band(self) -> float:
        """Half the width of the binomial band around 90 %."""
        return BAND * math.sqrt(0.9 * 0.1 / self.groups)

    @property
    def narrow(self) -> list[KindCoverage]:
        """The kinds of structures whose intervals are too narrow, the worst first."""
        return sorted((k for k in self.kinds if k.is_narrow), key=lambda kind: kind.inside)


class LateGain(NamedTuple):
    """What the last epochs of a training, or trials of a search, gained."""

    total: int
    """All of them."""
    late: int
    """The last ones."""
    gain: float
    """Share by which these lower the lowest objective of those before; 0 of too few."""


@dataclass(frozen=True)
class SearchEvidence:
    """What is known about the search and its best trial."""

    best: str = ""
    """Name of the best trial."""
    objectives: Sequence[float] = ()
    """Validation objectives of the trials, in the order in which they were proposed."""
    named: int = 0
    """How many of these, the first, were ``search.initial_points``."""
    curve: Sequence[float] = ()
    """Validation objective of the best trial after each epoch."""
    candidates: int = 0
    """Trials from which members were chosen."""
    embeddings: Mapping[str, float] = field(default_factory=dict)
    """Best validation objective with each ``model.embedding``, at equal epochs; empty where only
    one was tried."""
    trunks: tuple[str, ...] = ()
    """Embeddings of the trials from which members were chosen."""
    own_trunks: Mapping[str, TrunkSpec] = field(default_factory=dict)
    """What is known of foundation models of the user's, by name."""

    @property
    def of_epochs(self) -> LateGain:
        """What the best trial gained in the last quarter of its epochs."""
        return _measure_late_gain(self.curve, parts=4, least=8)

    @property
    def of_trials(self) -> LateGain:
        """What the search gained in the last third of its trials."""
        return _measure_late_gain(self.objectives, parts=3, least=9)

    @property
    def half_loss(self) -> float:
        """Share by which the best of the first half of the trials is worse than the best of all."""
        half = self.objectives[: len(self.objectives) // 2]
        return min(half, default=math.inf) / min(self.objectives, default=math.nan) - 1

    @property
    def named_gain(self) -> float:
        """Share by which the best of all is below the best of those that were tried first."""
        first = min(self.objectives[: self.named], default=math.nan)
        return 1 - min(self.objectives, default=math.nan) / first

    @property
    def tried(self) -> dict[str, float]:
        """The best validation objective with each foundation model.

        Returns:
            By its name.
        """
        return {name: value for name, value in self.embeddings.items() if name != ELEMENTS}

    @property
    def used(self) -> list[str]:
        """The foundation models that members may read."""
        return [name for name in self.trunks if name != ELEMENTS]

    @property
    def trunk(self) -> TrunkSpec | None:
        """The foundation model of the best trial with one; None without any."""
        name = min(self.tried, key=self.embeddings.__getitem__, default=next(iter(self.used), None))
        return None if name is None else TRUNKS.get(name) or self.own_trunks[name]

    @property
    def trunk_loss(self) -> float:
        """Share by which the best trial with one is worse than without; NaN if one is missing."""
        plain = self.embeddings.get(ELEMENTS, math.nan)
        return min(self.tried.values(), default=math.nan) / plain - 1


def _measure_late_gain(values: Sequence[float], *, parts: int, least: int) -> LateGain:
    """Measure the gain of the last part of the objectives; of fewer than ``least`` it is 0."""
    late = len(values) // parts
    before = min(values[:-late]) if len(values) >= least else 0.0
    return LateGain(len(values), late, 1 - min(values) / before if before > 0 else 0.0)


def cover_kinds(
    inside: np.ndarray, group: np.ndarray, kinds: Mapping[str, np.ndarray]
) -> tuple[KindCoverage, ...]:
    """Compute the coverage of kinds of structures; those of few groups are left out.

    Args:
        inside: share of each row's components inside its interval, [R].
        group: group of each row, [R].
        kinds: mask of the rows of each kind, [R], by name.

    Returns:
        A row for each kind of at least ``FEW_OF_KIND`` groups.
    """
    coverage = []
    for kind, rows in kinds.items():
        groups = len(np.unique(group[rows]))
        if groups >= FEW_OF_KIND:
            coverage.append(KindCoverage(kind, float(inside[rows].mean()), groups))
    return tuple(coverage)


def find_kinds(
    numbers: np.ndarray, sizes: np.ndarray, graph: np.ndarray, element: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Find the rows of each element and of each third by size.

    Args:
        numbers: atomic numbers of all structures, [N].
        sizes: atoms of each structure, [G].
        graph: structure of each row, [R].
        element: atomic number of each row's atom, [R]; None where a row is a structure, which
            belongs to every element that it contains.

    Returns:
        Masks, [R], by symbol or range of sizes; without ranges where there is only one.
    """
    if element is None:
        contains = np.zeros((len(sizes), len(chemical_symbols)), dtype=bool)
        contains[np.repeat(np.arange(len(sizes)), sizes), numbers] = True
        kinds = {chemical_symbols[z]: contains[graph, z] for z in np.unique(numbers)}
    else:
        kinds = {chemical_symbols[z]: element == z for z in np.unique(element)}
    of_size = size_strata(sizes).of_sizes(sizes)[graph]
    names = np.unique(of_size)
    return kinds | {str(name): of_size == name for name in names if len(names) > 1}


def make_data_curve(
    fits: Sequence[tuple[int, np.ndarray]], group: np.ndarray, *, epochs: int, full: int
) -> DataCurve:
    """Make a learning curve from the errors of fits on shares of the data.

    Args:
        fits: training structures and absolute errors, [R], of each fit, the smallest first.
        group: group of each row, [R].
        epochs: of each fit.
        full: epochs of the full budget.
    """
    maes = tuple(float(f"{errors.mean():.6g}") for _, errors in fits)
    last = compare(fits[-1][1], fits[-2][1], group)
    return DataCurve(tuple(count for count, _ in fits), maes, last.z, epochs, full)


@dataclass(frozen=True)
class RowFacts:
    """What is known of the rows of a head beside its predictions."""

    group: np.ndarray
    """Group of structures of each row, [R]."""
    kinds: Mapping[str, np.ndarray]
    """Masks of ``find_kinds``, [R] each."""
    others: Mapping[str, np.ndarray]
    """Predictions of other predictors, [R, w]: ``mean`` of the training data, ``elements``,
    ``descriptor``, and the best trial, ``single``."""


def collect_evidence(
    facts: HeadEvidence, predicted: HeadOnLabels, calibration: Calibration, rows: RowFacts
) -> HeadEvidence:
    """Return what the rules need to know about a head with labelled structures.

    Args:
        facts: name, unit and what else is known beside the figures; ``groups`` if counted.
        predicted: predictions and labels.
        calibration: calibration of the head.
        rows: what else is known of each row.
    """
    truth = predicted.truth
    others = dict(rows.others)
    errors_of = _absolute_errors if calibration.temperature is None else log_losses
    known: dict[str, Any]
    if calibration.temperature is None:
        sigma = predicted.sigma(calibration)
        half = calibration.half_width(sigma, 0.9, predicted.stratum)
        inside = (np.abs(predicted.residual) <= half).mean(axis=1)
        error, of_value = flatten_values(predicted.residual, sigma)
        known = {
            "spearman": spearman(error, of_value),
            "ause": ause(error, of_value),
            "random_ause": random_ause(error),
        }
    else:  # intervals are sets
        sets = class_sets(predicted.mean, calibration, 0.9, predicted.stratum)[1]
        inside = (sets * truth).sum(axis=1)
        if "elements" in others:
            others["elements"] = as_probabilities(others["elements"])
        chosen = [rows.group[truth.argmax(axis=1) == place] for place in range(truth.shape[1])]
        groups_of_classes = tuple(len(np.unique(groups)) for groups in chosen)
        known = {"score": "log-loss", "class_groups": groups_of_classes}
    own = errors_of(predicted.mean, truth)
    known |= {k: compare(own, errors_of(other, truth), rows.group) for k, other in others.items()}
    known |= {
        "mae": float(own.mean()),
        "groups": facts.groups or len(np.unique(rows.group)),
        "inside": float(inside.mean()),
        "calibration_groups": calibration.groups,
        "kinds": cover_kinds(inside, rows.group, rows.kinds),
    }
    return replace(facts, **known)


def _absolute_errors(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the mean absolute error of the components of each row, [R]."""
    return np.asarray(np.abs(truth - values).mean(axis=1))
