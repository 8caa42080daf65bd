"""What a scientist should conclude from an ensemble's figures, in sentences.

Each sentence comes from a rule with a threshold and its reason; a rule that has nothing to say, or
lacks what it needs, says nothing. Structures of one group (one molecule, one composition) are not
independent, so groups, not rows, carry the uncertainty of every statement.

Shapes: R rows of a head that have the label, w components, Q groups of structures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo.config import (
    ELEMENTS,
    TRUNKS,
    TrunkSpec,
)
from hydragnn_hpo.data import FAR
from hydragnn_hpo.ensemble.calibrate import Calibration, size_strata
from hydragnn_hpo.ensemble.class_probabilities import as_probabilities, class_sets, log_losses
from hydragnn_hpo.ensemble.uncertainty_scores import (
    HeadOnLabels,
    ause,
    flatten_values,
    random_ause,
    spearman,
)
from hydragnn_hpo.file_records import LocalJoining, VerdictLevel, VerdictSentence

NOT_LEARNED = 0.95
"""Ratio to the error of predicting a constant above which nothing was learned."""

MEDIAN = 0.9
"""Ratio of the error of the median to that of the mean below which the median is the constant to
beat, as where nearly all values are 0; of a normal or Laplace distribution both err alike."""

CLEAR = 2.0
"""Standard errors that a difference must have: one in twenty is chance."""

RANKS, RANKS_NOT = 0.3, 0.1
"""Rank correlation of |error| and sigma from which sigma may pick structures, and below which it
may not: at 0.3, 46 % of the third with the largest sigma have errors of the largest third (Gaussian
copula), by chance 33 %."""

BAND, BAND_OF_KINDS = 1.96, 2.58
"""Width of the binomial band around 90 %, in standard deviations: 95 %, and 99 % for kinds of
structures, as many of them are tried."""

FEW_OF_KIND = 10
"""Groups of a kind of structure below which its coverage says nothing."""

FEW_GROUPS = 30
"""Groups below which an error or an interval is rough: its standard error is about a fifth."""

MOST_REMEMBERED = 0.02
"""Largest share of test structures with a twin outside of test with which figures are praised."""

MOST_KINDS = 6
"""Kinds of structures that a sentence names."""

MORE_DATA, MUCH_DATA = 0.05, 0.1
"""Relative gain of twice the training data from which more of it should help, in the last doubling
and in the mean of two that both lower the error, so that one lucky seed does not decide; and the
gain that two standard errors must exclude to say that it hardly helps."""

GAIN = 0.02
"""Relative gain of the last part of a training or a search from which more of it should help."""


class Comparison(NamedTuple):
    """The ensemble against another predictor on the same rows; NaN where there is no such one."""

    mae: float = math.nan
    """Error of the other predictor, in the unit."""
    z: float = math.nan
    """Difference ensemble minus other, in standard errors over groups; 0 where there are none."""


class KindCoverage(NamedTuple):
    """The 90 % intervals of one kind of structures."""

    kind: str
    """An element, or a range of sizes."""
    inside: float
    """Share of the values inside."""
    groups: int
    """Groups of structures behind it."""


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
    def absent(self) -> tuple[str, ...]:
        """The classes that no structure has.

        Returns:
            Their names; none of a head of numbers.
        """
        return tuple(
            name
            for name, groups in zip(self.classes, self.class_groups, strict=False)
            if not groups
        )

    @property
    def simplest(self) -> Comparison:
        """Against the better constant: the median where few values hold most of the spread."""
        return self.median if self.median.mae < MEDIAN * self.mean.mae else self.mean

    @property
    def constant(self) -> str:
        """The simplest prediction, in words."""
        what = "mean" if self.simplest is self.mean else "median"
        what = "frequencies of the classes" if self.score == "log-loss" else what
        return f"always predicting the {what}"

    @property
    def regions(self) -> str:
        """What covers a value: intervals, or sets of classes."""
        return "sets" if self.score == "log-loss" else "intervals"

    @property
    def leaks(self) -> bool:
        """Whether so many test structures have a twin outside of test that no figure is praised."""
        return self.remembered > MOST_REMEMBERED * self.structures

    @property
    def learned(self) -> bool:
        """Whether the error is clearly below that of the better constant, if known."""
        least = self.simplest
        return not least.mae > 0 or (self.beats_mean(self.mae) and least.z <= -CLEAR)

    def beats_mean(self, mae: float) -> bool:
        """Check whether an error is below that of the better constant, if it is known."""
        return not self.simplest.mae > 0 or mae <= NOT_LEARNED * self.simplest.mae

    @property
    def title(self) -> str:
        """Name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def in_unit(self) -> str:
        """The unit behind a number; nothing for a pure number."""
        return "" if self.unit == "1" else f" {self.unit}"

    @property
    def error(self) -> str:
        """The error with its name and unit."""
        return f"{self.score} {self.mae:.3g}{self.in_unit}"

    @property
    def of_groups(self) -> str:
        """The number of groups, in words."""
        return f"{self.groups} group{'s' * (self.groups != 1)} of structures"


def _list_first(names: Sequence[str]) -> str:
    """List at most ``MOST_KINDS`` names, and count the others."""
    more = f" and {len(names) - MOST_KINDS} more" if len(names) > MOST_KINDS else ""
    return ", ".join(names[:MOST_KINDS]) + more


@dataclass(frozen=True)
class SearchEvidence:
    """What is known about the search and its best trial."""

    best: str = ""
    """Name of the best trial."""
    objectives: Sequence[float] = ()
    """Validation objectives of the trials, in the order in which they were proposed."""
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


def compare(errors: np.ndarray, other: np.ndarray, group: np.ndarray) -> Comparison:
    """Compare the absolute errors of the ensemble with those of another predictor.

    The standard error of the mean difference treats groups as the independent units.

    Args:
        errors: absolute errors of the ensemble, [R].
        other: absolute errors of the other predictor, [R].
        group: group of each row, [R].
    """
    _, place = np.unique(group, return_inverse=True)
    by_group = np.bincount(place, errors - other)
    spread = math.sqrt(len(by_group) * by_group.var(ddof=1)) if len(by_group) > 1 else 0.0
    z = float(by_group.sum() / spread) if spread else 0.0
    return Comparison(float(f"{other.mean():.6g}"), z)  # threads decide the last digits of a sum


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
    head: HeadEvidence, predicted: HeadOnLabels, calibration: Calibration, rows: RowFacts
) -> HeadEvidence:
    """Complete what the rules need to know about a head by its figures on labelled structures.

    Args:
        head: name, unit and what else is known already.
        predicted: predictions and labels.
        calibration: calibration of the head.
        rows: what else is known of each row.
    """
    truth = predicted.truth
    others = dict(rows.others)
    known: dict[str, Any]
    if calibration.temperature is None:
        residual = predicted.residual
        sigma = predicted.sigma(calibration)
        half = calibration.half_width(sigma, 0.9, predicted.stratum)
        inside = (np.abs(residual) <= half).mean(axis=1)
        error, of_value = flatten_values(residual, sigma)
        known = {
            "spearman": spearman(error, of_value),
            "ause": ause(error, of_value),
            "random_ause": random_ause(error),
        }
    else:  # errors are log-losses, intervals sets
        sets = class_sets(predicted.mean, calibration, 0.9, predicted.stratum)[1]
        inside = (sets * truth).sum(axis=1)
        if "elements" in others:
            others["elements"] = as_probabilities(others["elements"])
        chosen = [rows.group[truth.argmax(axis=1) == place] for place in range(len(head.classes))]
        groups_of_classes = tuple(len(np.unique(groups)) for groups in chosen)
        known = {"score": "log-loss", "class_groups": groups_of_classes}

    def errors_of(values: np.ndarray) -> np.ndarray:
        if calibration.temperature is not None:
            return log_losses(values, truth)
        errors: np.ndarray = np.abs(truth - values).mean(axis=1)
        return errors

    own = errors_of(predicted.mean)
    known |= {key: compare(own, errors_of(other), rows.group) for key, other in others.items()}
    return replace(
        head,
        mae=float(own.mean()),
        groups=len(np.unique(rows.group)),
        inside=float(inside.mean()),
        calibration_groups=calibration.groups,
        kinds=cover_kinds(inside, rows.group, rows.kinds),
        **known,
    )


def judge(
    heads: Sequence[HeadEvidence], search: SearchEvidence | None = None
) -> list[VerdictSentence]:
    """Return the sentences of all rules, head by head, and those on the search.

    A head of classes one of which was never seen is not praised.
    """
    sentences = list[VerdictSentence]()
    for head in heads:
        for rule, judge_head in HEAD_RULES.items():
            assessment = judge_head(head)
            if assessment is None or (head.absent and assessment.level == "good"):
                continue
            if head.leaks and assessment.level == "good":
                assessment = assessment._replace(level="note")
            sentences.append(_say(rule, assessment, head.name))
    if search is not None:
        assessments = {rule: judge_part(search) for rule, judge_part in SEARCH_RULES.items()}
        sentences += [_say(rule, known) for rule, known in assessments.items() if known is not None]
    return sentences


def _say(rule: str, assessment: "Assessment", head: str | None = None) -> VerdictSentence:
    level, sentence, because = assessment
    return {"rule": rule, "head": head, "level": level, "sentence": sentence, "because": because}


def judge_missing(name: str, splits: Sequence[str]) -> VerdictSentence:
    """Name a head that the ensemble leaves out, as some splits have no label of it.

    Args:
        name: name of the head.
        splits: the splits without labels of it.
    """
    return {
        "rule": "missing",
        "head": name,
        "level": "warning",
        "sentence": f"{name.replace('_', ' ')} is not in the ensemble: no structure of the split "
        f"{' or '.join(map(repr, splits))} has a label of an element that has labels in train. "
        "Label more structures, or raise the shares in the card's [split], and start the campaign "
        "with another --run.",
        "because": "members are weighted, calibrated and tested on labels of val, sel, cal and "
        "test",
    }


class Assessment(NamedTuple):
    """What a rule says."""

    level: VerdictLevel
    """Whether it is good news, a limit to know, or a reason to act."""
    sentence: str
    """For a person."""
    because: str
    """Threshold of the rule, and its reason."""


_CLEARLY = f"threshold {CLEAR:g} standard errors of the difference"


def judge_classes(head: HeadEvidence) -> Assessment | None:
    """Name the classes that no structure has: nothing is known about their predictions."""
    if not head.absent:
        return None
    named = _list_first([repr(name) for name in head.absent])
    return Assessment(
        "warning",
        f"{head.title} was tested on no structure of {named} (of {len(head.classes)} classes): "
        "whether it finds such structures is not known; label more of them.",
        "a class that no tested structure has cannot be missed",
    )


def judge_leakage(head: HeadEvidence) -> Assessment | None:
    """Warn where test structures have twins among those that the ensemble is made from."""
    if not head.remembered:
        return None
    shown = (
        f"{head.remembered} of {head.structures} test structures of {head.title} have a near copy "
        "among those that the ensemble is made from"
    )
    because = f"threshold {100 * MOST_REMEMBERED:.0f} % of the test structures"
    if not head.leaks:
        return Assessment("note", f"{shown}.", because)
    return Assessment(
        "warning",
        f"SERIOUS: {shown}: errors tell how well these are remembered, not how well new structures "
        "are predicted. Keep what belongs together in one split (split.group in the card).",
        because,
    )


def judge_mean(head: HeadEvidence) -> Assessment | None:
    """Compare the error with that of always predicting the mean."""
    if not head.simplest.mae > 0:
        return None
    ratio = head.mae / head.simplest.mae
    share = f"{100 * ratio:.0f} % of the error of {head.constant}"
    because = f"threshold {NOT_LEARNED}: a constant predicts as well"
    if ratio > NOT_LEARNED:
        return Assessment(
            "warning",
            f"{head.title} was not learned: {head.error} is {share}. Check whether it depends on "
            "the structure alone.",
            because,
        )
    if not head.learned:
        return Assessment(
            "warning",
            f"{head.title} was not clearly learned: {head.error} is {share}, which "
            f"{head.of_groups} cannot tell from chance. Label more structures.",
            _CLEARLY,
        )
    return Assessment("good", f"{head.title}: {head.error}, {share} ({head.of_groups}).", because)


def judge_far(head: HeadEvidence) -> Assessment | None:
    """Name a structure whose label or error is far from all others."""
    if head.far is None:
        return None
    structure, value, median, is_error = head.far
    return Assessment(
        "warning",
        f"{head.title}: the {'error' if is_error else 'label'} of structure {structure}, "
        f"{value:.3g}{head.in_unit}, is far from all others (median {median:.3g}): one wrong label "
        "spoils training, errors and error bars; mend or remove it, and train again.",
        f"{FAR:g} times the distance of all others from their median, more of few",
    )


def judge_elements(head: HeadEvidence) -> Assessment | None:
    """Compare the error with that of a model that sees only elements."""
    model = "the mean of each element" if head.is_node else "a linear model of the composition"
    return _compare_with_simpler(
        head,
        head.elements,
        model=f"{model} alone",
        weak=("geometry does not clearly help", "train on more data, or use the simpler model"),
        strong="the ensemble knows more than the elements tell",
    )


def judge_descriptor(head: HeadEvidence) -> Assessment | None:
    """Compare the error with that of a regression on local descriptors."""
    return _compare_with_simpler(
        head,
        head.descriptor,
        model=f"a regression on {head.described_by}",
        weak=(
            f"the ensemble does not clearly know more than {head.described_by} tell",
            "train longer, or use more data",
        ),
        strong=f"the ensemble knows more than {head.described_by} tell",
    )


def _compare_with_simpler(
    head: HeadEvidence, other: Comparison, *, model: str, weak: tuple[str, str], strong: str
) -> Assessment | None:
    """Compare the error with that of a simpler model; None where that says no more than the mean.

    Args:
        head: the head.
        other: the ensemble against the model.
        model: the model, in words.
        weak: what is said where the ensemble is not clearly better, and what to do.
        strong: what is said where it is.
    """
    if not other.mae > 0 or other.mae > NOT_LEARNED * head.simplest.mae:
        return None
    errors = f"as {model} has {other.mae:.3g}{head.in_unit}, the ensemble {head.mae:.3g}"
    if other.z > -CLEAR:
        claim, advice = weak
        return Assessment("warning", f"{head.title}: {claim}, {errors}; {advice}.", _CLEARLY)
    return Assessment("good", f"{head.title}: {strong}, {errors}.", _CLEARLY)


def judge_local(head: HeadEvidence) -> Assessment | None:
    """Name the regression on local descriptors that is a member, and what it gains."""
    if head.local is None or not head.local["weight"]:
        return None
    before = head.local["mae_without"]
    after = head.local["mae_with"]
    gain = 100 * (1 - after / before)
    return Assessment(
        "good",
        f"{head.title}: a regression on {head.described_by} is a member, with the weight "
        f"{head.local['weight']:.2f}, as it lowers the error by {gain:.0f} %, from "
        f"{before:.3g}{head.in_unit} to {after:.3g} on the structures that weight the members.",
        _CLEARLY,
    )


def judge_single(head: HeadEvidence) -> Assessment | None:
    """Compare the ensemble with its best trial alone."""
    other, z = head.single
    if not other > 0 or not head.learned:
        return None
    change = 100 * (1 - head.mae / other)
    reference = f"its best trial ({other:.3g}{head.in_unit})"
    level: VerdictLevel = "note"
    if z < -CLEAR:
        level = "good"
        sentence = f"beats its best trial by {change:.0f} % ({other:.3g}{head.in_unit})."
    elif z > CLEAR:
        level = "warning"
        sentence = (
            f"is {-change:.0f} % worse than {reference}: use that trial, or train it again with "
            "new seeds (ensemble build RUN --reseed 3)."
        )
    else:
        way = f"{abs(change):.0f} % {'better' if change >= 0 else 'worse'} than"
        way = way if abs(change) >= 0.5 else "as good as"
        sentence = f"is {way} {reference}: {head.of_groups} cannot tell them apart."
    because = f"{_CLEARLY}; the trial is fixed before test"
    return Assessment(level, f"{head.title}: the ensemble {sentence}", because)


def judge_ranking(head: HeadEvidence) -> Assessment | None:
    """Check whether sigma ranks errors."""
    rho = head.spearman
    if not math.isfinite(rho) or head.groups < 3:
        return None
    because = (
        f"Spearman of at least {RANKS} and of {CLEAR:g} standard errors, 1 / sqrt(groups - 1), "
        "and an AUSE below that of a random order"
    )
    level: VerdictLevel = "good"
    if rho < RANKS_NOT or head.ause >= head.random_ause:
        level = "warning"
        sentence = (
            f"does not tell large errors from small ones (Spearman {rho:.2f}); do not pick or "
            "discard structures by it."
        )
    elif rho < max(RANKS, CLEAR / math.sqrt(head.groups - 1)):
        level = "note"
        sentence = (
            f"hardly ranks the errors (Spearman {rho:.2f}, {head.of_groups}); pick structures by "
            "it only beside another criterion."
        )
    else:
        sentence = f"ranks the errors (Spearman {rho:.2f}); it may be used to pick structures."
    return Assessment(level, f"{head.title}: sigma {sentence}", because)


def judge_intervals(head: HeadEvidence) -> Assessment | None:
    """Check whether 90 % intervals hold 90 %."""
    if not math.isfinite(head.inside) or not head.groups:
        return None
    band = BAND * math.sqrt(0.9 * 0.1 / head.groups)
    level: VerdictLevel = "note"
    if head.inside < 0.9 - band:
        level = "warning"
        judged = f", too few for {head.of_groups}; treat them as narrower than they should be."
    elif head.inside > 0.9 + band:
        judged = ", more than they need to: errors are smaller than said."
    elif head.groups < FEW_GROUPS:
        judged = f", which {head.of_groups} are too few to judge."
    else:
        level = "good"
        judged = f" ({head.of_groups})."
    return Assessment(
        level,
        f"{head.title}: the 90 % {head.regions} hold {100 * head.inside:.0f} % of the values"
        f"{judged}",
        f"a binomial band of 95 % around 90 % for that many groups: +- {100 * band:.0f} %",
    )


def judge_kinds(head: HeadEvidence) -> Assessment | None:
    """Name the elements and sizes whose intervals hold too few values."""

    def is_low(kind: KindCoverage) -> bool:
        return kind.inside < 0.9 - BAND_OF_KINDS * math.sqrt(0.9 * 0.1 / kind.groups)

    low = sorted(filter(is_low, head.kinds), key=lambda kind: kind.inside)
    if not low:
        return None
    named = _list_first([f"{kind.kind} ({100 * kind.inside:.0f} %)" for kind in low])
    return Assessment(
        "warning",
        f"{head.title}: the 90 % {head.regions} are too narrow for {named}.",
        f"a binomial band of 99 % around 90 %; kinds of at least {FEW_OF_KIND} groups",
    )


def judge_groups(head: HeadEvidence) -> Assessment | None:
    """Warn where few groups of structures stand behind error and intervals."""
    count = head.calibration_groups
    if min(head.groups, count or head.groups) >= FEW_GROUPS:
        return None
    calibrated = f", and calibrated on {count}" if count else ""
    return Assessment(
        "note",
        f"{head.title} was tested on {head.of_groups}{calibrated}: errors and {head.regions} are "
        "rough; label more structures for test and cal.",
        f"threshold {FEW_GROUPS} groups: the standard error of a mean is about a fifth",
    )


def judge_published(head: HeadEvidence) -> Assessment | None:
    """Compare the error with a published one."""
    if head.published is None or not head.published.mae:
        return None
    mae, by = head.published
    ratio = head.mae / mae
    return Assessment(
        "good" if ratio <= 1 else "note",
        f"{head.title}: {head.error}, {100 * abs(1 - ratio):.0f} % "
        f"{'below' if ratio < 1 else 'above'} the published {mae:.3g} of {by}; compare the splits "
        "before you quote this.",
        "the smallest error that the card names",
    )


def _change(gain: float) -> str:
    return f"{'fell' if gain >= 0 else 'rose'} by {100 * abs(gain):.0f} %"


def judge_data(head: HeadEvidence) -> Assessment | None:
    """Judge from a learning curve whether more training data should help."""
    if head.data is None or not all(head.data.maes):
        return None
    curve = head.data
    first, before, last = curve.maes
    gain = 1 - last / before
    earlier = 1 - before / first
    both = 1 - math.sqrt(last / first)
    margin = CLEAR * abs(gain / curve.z) if curve.z else math.inf
    few, many = curve.structures[-2:]
    if many < 1.5 * few:
        return None  # a few large groups: it is no doubling
    known = f" (+- {100 * margin:.0f} %)" if math.isfinite(margin) else ""
    shown = (
        f"from {few:,} to {many:,} training structures the error {_change(gain)}{known}, in the "
        f"doubling before it {_change(earlier)}"
    )
    if min(gain, both) >= MORE_DATA and earlier > 0 and curve.z <= -CLEAR and head.beats_mean(last):
        sentence = f"more data should help: {shown}."
    elif not head.learned:
        return None  # a curve that has not fallen below the mean says nothing about its end
    elif gain + margin < MUCH_DATA:
        sentence = (
            f"more data alone should hardly help: {shown}; longer training, larger nets or "
            "cleaner labels may."
        )
    else:
        sentence = f"whether more data would help cannot be told: {shown}."
    because = (
        f"thresholds {100 * MORE_DATA:.0f} % and {CLEAR:g} standard errors (+-) for twice the "
        f"data, on sel; three fits of {curve.epochs} of {curve.full} epochs, of equally many steps"
    )
    return Assessment("note", f"{head.title}: {sentence}", because)


def judge_training(search: SearchEvidence) -> Assessment | None:
    """Check whether the best trial was still getting better when it ended."""
    epochs = len(search.curve)
    gain = _late_gain(search.curve, epochs // 4) if epochs >= 8 else 0.0
    if gain < GAIN:
        return None
    return Assessment(
        "note",
        f"longer training should help: {search.best}, the best trial, still gained "
        f"{100 * gain:.0f} % in its last {epochs // 4} of {epochs} epochs; raise search.rungs.",
        f"threshold {100 * GAIN:.0f} % in the last quarter of the epochs",
    )


def judge_search(search: SearchEvidence) -> Assessment | None:
    """Check whether the search was still finding better trials when it ended."""
    count = len(search.objectives)
    gain = _late_gain(search.objectives, count // 3) if count >= 9 else 0.0
    if gain < GAIN:
        return None
    return Assessment(
        "note",
        f"more search should help: the last {count // 3} of {count} trials lowered the best "
        f"objective by {100 * gain:.0f} %; raise search.trials.",
        f"threshold {100 * GAIN:.0f} % in the last third of the trials",
    )


def _late_gain(values: Sequence[float], late: int) -> float:
    """Return the share by which the last ``late`` values lower the lowest of those before."""
    before = min(values[:-late])
    return 1 - min(values) / before if before > 0 else 0.0


def judge_members(search: SearchEvidence) -> Assessment | None:
    """Warn where a single trial is the whole ensemble."""
    if search.candidates != 1:
        return None
    return Assessment(
        "warning",
        "one trial is all there is: its ensemble has no spread, so all predictions of a head have "
        "the same sigma; run more trials to the full budget.",
        "a spread takes two members",
    )


def judge_trunk(search: SearchEvidence) -> Assessment | None:
    """Judge whether features of a foundation model helped, and name what that model has seen."""
    used = [name for name in search.trunks if name != ELEMENTS]
    tried = {name: value for name, value in search.embeddings.items() if name != ELEMENTS}
    if not used and not tried:
        return None
    name = min(tried, key=lambda one: tried[one], default=used[0] if used else "")
    spec = TRUNKS.get(name) or search.own_trunks[name]
    title = spec.title
    plain = search.embeddings.get(ELEMENTS, math.nan)
    helped = 1.0 - tried.get(name, math.nan) / plain
    seen = (
        f"{title} was trained on {spec.trained_on}: errors on structures that are also "
        "there tell less about new ones."
    )
    because = f"threshold {100 * GAIN:.0f} % of the best trial's validation objective"
    if not math.isfinite(helped):
        return Assessment("note", f"all members begin from features of {title}; {seen}", because)
    if helped < GAIN:
        change = f"{abs(100 * helped):.0f} % {'better' if helped > 0 else 'worse'}"
        return Assessment(
            "note",
            f"features of {title} did not help: the best trial with them is {change} than the best "
            f"without; {seen if used else 'no member reads them.'}",
            because,
        )
    return Assessment(
        "note",
        f"features of {title} helped: the best trial with them is {100 * helped:.0f} % better than "
        f"the best without, after as many epochs; {seen}",
        because,
    )


HEAD_RULES: dict[str, Callable[[HeadEvidence], Assessment | None]] = {
    "classes": judge_classes,
    "leakage": judge_leakage,
    "mean": judge_mean,
    "far": judge_far,
    "elements": judge_elements,
    "descriptor": judge_descriptor,
    "local": judge_local,
    "published": judge_published,
    "single": judge_single,
    "ranking": judge_ranking,
    "intervals": judge_intervals,
    "kinds": judge_kinds,
    "groups": judge_groups,
    "data": judge_data,
}
SEARCH_RULES: dict[str, Callable[[SearchEvidence], Assessment | None]] = {
    "members": judge_members,
    "training": judge_training,
    "search": judge_search,
    "trunk": judge_trunk,
}
"""Rules by name, in the order of their sentences."""
