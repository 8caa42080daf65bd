"""What a scientist should conclude from an ensemble's figures, in sentences.

Each sentence comes from a rule with a threshold and its reason; a rule that has nothing to say, or
lacks what it needs, says nothing. Structures of one group (one molecule, one composition) are not
independent, so groups, not rows, carry the uncertainty of every statement.

Shapes: R rows of a head that have the label, w components, Q groups of structures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from ase.data import chemical_symbols

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
"""Ratio to the error of predicting the mean above which nothing was learned."""

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
    """The ensemble against another predictor on the same rows."""

    mae: float
    """Error of the other predictor, in the unit."""
    z: float
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
    mean: Comparison | None = None
    """Against predicting the mean of the training data."""
    elements: Comparison | None = None
    """Against ``baselines.CompositionModel``."""
    descriptor: Comparison | None = None
    """Against ``local_descriptors.LocalModels``."""
    single: Comparison | None = None
    """Against the trial of lowest validation objective, alone."""
    local: LocalJoining | None = None
    """What a regression on local descriptors adds as a member; None where it was not tried."""
    kinds: tuple[KindCoverage, ...] = ()
    published: Published | None = None
    data: DataCurve | None = None
    far: FarValue | None = None
    """The farthest of the labels, or of the errors, that are far from all others."""

    @property
    def is_class(self) -> bool:
        """Whether it predicts classes."""
        return self.score == "log-loss"

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
    def constant(self) -> str:
        """The simplest prediction, in words."""
        what = "frequencies of the classes" if self.is_class else "mean"
        return f"always predicting the {what}"

    @property
    def regions(self) -> str:
        """What covers a value: intervals, or sets of classes."""
        return "sets" if self.is_class else "intervals"

    @property
    def leaks(self) -> bool:
        """Whether so many test structures have a twin outside of test that no figure is praised."""
        return self.remembered > MOST_REMEMBERED * self.structures

    @property
    def learned(self) -> bool:
        """Whether the error is clearly below that of always predicting the mean, if known."""
        if self.mean is None or not self.mean.mae:
            return True
        return self.beats_mean(self.mae) and self.mean.z <= -CLEAR

    def beats_mean(self, mae: float) -> bool:
        """Check whether an error is below that of always predicting the mean, if it is known."""
        return self.mean is None or not self.mean.mae or mae <= NOT_LEARNED * self.mean.mae


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
    if calibration.temperature is not None:
        return _collect_class_evidence(head, predicted, calibration, rows)
    residual = predicted.residual
    sigma = predicted.sigma(calibration)
    error, of_value = flatten_values(residual, sigma)
    half = calibration.half_width(sigma, 0.9, predicted.stratum)
    inside = (np.abs(residual) <= half).mean(axis=1)
    own = np.abs(residual).mean(axis=1)
    rivals = {
        key: compare(own, np.abs(predicted.truth - other).mean(axis=1), rows.group)
        for key, other in rows.others.items()
    }
    return replace(
        head,
        mae=float(np.abs(residual).mean()),
        groups=len(np.unique(rows.group)),
        spearman=spearman(error, of_value),
        ause=ause(error, of_value),
        random_ause=random_ause(error),
        inside=float(inside.mean()),
        calibration_groups=calibration.groups,
        kinds=cover_kinds(inside, rows.group, rows.kinds),
        mean=rivals.get("mean"),
        elements=rivals.get("elements"),
        descriptor=rivals.get("descriptor"),
        single=rivals.get("single"),
    )


def _collect_class_evidence(
    head: HeadEvidence, predicted: HeadOnLabels, calibration: Calibration, rows: RowFacts
) -> HeadEvidence:
    """Complete the evidence of a class: its errors are log-losses, its intervals sets."""
    own = log_losses(predicted.mean, predicted.truth)
    others = dict(rows.others)
    if "elements" in others:
        others["elements"] = as_probabilities(others["elements"])
    rivals = {
        key: compare(own, log_losses(other, predicted.truth), rows.group)
        for key, other in others.items()
    }
    sets = class_sets(predicted.mean, calibration, 0.9, predicted.stratum)[1]
    inside = (sets * predicted.truth).sum(axis=1)
    chosen = predicted.truth.argmax(axis=1)
    return replace(
        head,
        score="log-loss",
        class_groups=tuple(
            len(np.unique(rows.group[chosen == place])) for place in range(len(head.classes))
        ),
        mae=float(own.mean()),
        groups=len(np.unique(rows.group)),
        inside=float(inside.mean()),
        calibration_groups=calibration.groups,
        kinds=cover_kinds(inside, rows.group, rows.kinds),
        mean=rivals.get("mean"),
        elements=rivals.get("elements"),
        descriptor=rivals.get("descriptor"),
        single=rivals.get("single"),
    )


def judge(
    heads: Sequence[HeadEvidence], search: SearchEvidence | None = None
) -> list[VerdictSentence]:
    """Return the sentences of all rules, head by head, and those on the search.

    A head of classes one of which was never seen is not praised.
    """
    sentences = [
        _tone_down(sentence) if head.leaks else sentence
        for head in heads
        for sentence in (rule(head) for rule in HEAD_RULES)
        if sentence is not None and not (head.absent and sentence["level"] == "good")
    ]
    of_search = [rule(search) for rule in SEARCH_RULES] if search else []
    return sentences + [sentence for sentence in of_search if sentence is not None]


def _say(
    rule: str, level: VerdictLevel, sentence: str, *, head: HeadEvidence | None = None, because: str
) -> VerdictSentence:
    name = head.name if head else None
    return {"rule": rule, "head": name, "level": level, "sentence": sentence, "because": because}


def _tone_down(sentence: VerdictSentence) -> VerdictSentence:
    """Return a sentence that is no good news."""
    return {**sentence, "level": "note"} if sentence["level"] == "good" else sentence


def _title(head: HeadEvidence) -> str:
    return head.name.replace("_", " ")


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


def _amount(value: float, head: HeadEvidence) -> str:
    """Return an error with its unit; ``1`` is none."""
    return f"{value:.3g}" + f" {head.unit}" * (head.unit != "1")


def _of_groups(count: int) -> str:
    return f"{count} group{'s' * (count != 1)} of structures"


def judge_classes(head: HeadEvidence) -> VerdictSentence | None:
    """Name the classes that no structure has: nothing is known about their predictions."""
    if not head.absent:
        return None
    named = ", ".join(map(repr, head.absent[:MOST_KINDS]))
    more = f" and {len(head.absent) - MOST_KINDS} more" if len(head.absent) > MOST_KINDS else ""
    return _say(
        "classes",
        "warning",
        f"{_title(head)} was tested on no structure of {named}{more} (of {len(head.classes)} "
        "classes): whether it finds such structures is not known; label more of them.",
        head=head,
        because="a class that no tested structure has cannot be missed",
    )


def judge_leakage(head: HeadEvidence) -> VerdictSentence | None:
    """Warn where test structures have twins among those that the ensemble is made from."""
    if not head.remembered:
        return None
    shown = (
        f"{head.remembered} of {head.structures} test structures of {_title(head)} have a near "
        "copy among those that the ensemble is made from"
    )
    because = f"threshold {100 * MOST_REMEMBERED:.0f} % of the test structures"
    if not head.leaks:
        return _say("leakage", "note", f"{shown}.", head=head, because=because)
    return _say(
        "leakage",
        "warning",
        f"SERIOUS: {shown}: errors tell how well these are remembered, not how well new structures "
        "are predicted. Keep what belongs together in one split (split.group in the card).",
        head=head,
        because=because,
    )


def judge_mean(head: HeadEvidence) -> VerdictSentence | None:
    """Compare the error with that of always predicting the mean."""
    if head.mean is None or not head.mean.mae:
        return None
    ratio = head.mae / head.mean.mae
    because = f"threshold {NOT_LEARNED}: a constant predicts as well"
    error = f"{head.score} {_amount(head.mae, head)}"
    if ratio > NOT_LEARNED:
        return _say(
            "mean",
            "warning",
            f"{_title(head)} was not learned: {error} is {100 * ratio:.0f} % of the error of "
            f"{head.constant}. Check whether it depends on the structure alone.",
            head=head,
            because=because,
        )
    if not head.learned:
        return _say(
            "mean",
            "warning",
            f"{_title(head)} was not clearly learned: {error} is {100 * ratio:.0f} % of the error "
            f"of {head.constant}, which {_of_groups(head.groups)} cannot tell from "
            "chance. Label more structures.",
            head=head,
            because=f"threshold {CLEAR:g} standard errors of the difference",
        )
    return _say(
        "mean",
        "good",
        f"{_title(head)}: {error}, {100 * ratio:.0f} % of the error of {head.constant} "
        f"({_of_groups(head.groups)}).",
        head=head,
        because=because,
    )


def judge_far(head: HeadEvidence) -> VerdictSentence | None:
    """Name a structure whose label or error is far from all others."""
    if head.far is None:
        return None
    structure, value, median, is_error = head.far
    what = "error" if is_error else "label"
    return _say(
        "far",
        "warning",
        f"{_title(head)}: the {what} of structure {structure}, {_amount(value, head)}, is far from "
        f"all others (median {median:.3g}): one wrong label spoils training, errors and error "
        "bars; mend or remove it, and train again.",
        head=head,
        because=f"{FAR:g} times the distance of all others from their median, more of few",
    )


def judge_elements(head: HeadEvidence) -> VerdictSentence | None:
    """Compare the error with that of a model that sees only elements."""
    if head.elements is None or not head.elements.mae:
        return None
    other, z = head.elements
    if head.mean and other > NOT_LEARNED * head.mean.mae:
        return None  # elements alone say no more than the mean
    because = f"threshold {CLEAR:g} standard errors of the difference"
    model = "the mean of each element" if head.is_node else "a linear model of the composition"
    known = f"{model} alone has {_amount(other, head)}"
    if z > -CLEAR:
        return _say(
            "elements",
            "warning",
            f"{_title(head)}: geometry does not clearly help, as {known}, the ensemble "
            f"{head.mae:.3g}; train on more data, or use the simpler model.",
            head=head,
            because=because,
        )
    return _say(
        "elements",
        "good",
        f"{_title(head)}: the ensemble knows more than the elements tell, as {known}, the ensemble "
        f"{head.mae:.3g}.",
        head=head,
        because=because,
    )


def judge_descriptor(head: HeadEvidence) -> VerdictSentence | None:
    """Compare the error with that of a regression on local descriptors."""
    if head.descriptor is None or not head.descriptor.mae:
        return None
    other, z = head.descriptor
    if head.mean and other > NOT_LEARNED * head.mean.mae:
        return None  # the descriptors say no more than the mean
    because = f"threshold {CLEAR:g} standard errors of the difference"
    known = f"a regression on local descriptors has {_amount(other, head)}"
    if z > -CLEAR:
        return _say(
            "descriptor",
            "warning",
            f"{_title(head)}: the ensemble does not clearly know more than local descriptors "
            f"tell, as {known}, the ensemble {head.mae:.3g}; train longer, or use more data.",
            head=head,
            because=because,
        )
    return _say(
        "descriptor",
        "good",
        f"{_title(head)}: the ensemble knows more than local descriptors tell, as {known}, the "
        f"ensemble {head.mae:.3g}.",
        head=head,
        because=because,
    )


def judge_local(head: HeadEvidence) -> VerdictSentence | None:
    """Name the regression on local descriptors that is a member, and what it gains."""
    if head.local is None or not head.local["weight"]:
        return None
    before, after = head.local["mae_without"], head.local["mae_with"]
    gain = f"{100 * (1 - after / before):.0f} %"
    return _say(
        "local",
        "good",
        f"{_title(head)}: a regression on local descriptors is a member, with the weight "
        f"{head.local['weight']:.2f}, as it lowers the error by {gain}, "
        f"from {_amount(before, head)} to {after:.3g} on the structures that weight the members.",
        head=head,
        because=f"threshold {CLEAR:g} standard errors of the difference",
    )


def judge_single(head: HeadEvidence) -> VerdictSentence | None:
    """Compare the ensemble with its best trial alone."""
    if head.single is None or not head.single.mae or not head.learned:
        return None
    other, z = head.single
    change = 100 * (1 - head.mae / other)
    because = (
        f"threshold {CLEAR:g} standard errors of the difference; the trial is fixed before test"
    )
    if z < -CLEAR:
        level: VerdictLevel = "good"
        sentence = f"the ensemble beats its best trial by {change:.0f} % ({_amount(other, head)})."
    elif z > CLEAR:
        level = "warning"
        sentence = (
            f"the ensemble is {-change:.0f} % worse than its best trial ({_amount(other, head)}): "
            "use that trial, or train it again with new seeds (ensemble build RUN --reseed 3)."
        )
    else:
        level = "note"
        way = f"{abs(change):.0f} % {'better' if change >= 0 else 'worse'} than"
        way = way if abs(change) >= 0.5 else "as good as"
        sentence = (
            f"the ensemble is {way} its best trial ({_amount(other, head)}): "
            f"{_of_groups(head.groups)} cannot tell them apart."
        )
    return _say("single", level, f"{_title(head)}: {sentence}", head=head, because=because)


def judge_ranking(head: HeadEvidence) -> VerdictSentence | None:
    """Check whether sigma ranks errors."""
    rho = head.spearman
    if not math.isfinite(rho) or head.groups < 3:
        return None
    chance = CLEAR / math.sqrt(head.groups - 1)
    worse = head.ause >= head.random_ause
    because = (
        f"Spearman of at least {RANKS} and of {CLEAR:g} standard errors, 1 / sqrt(groups - 1), "
        "and an AUSE below that of a random order"
    )
    shown = f"Spearman {rho:.2f}"
    if rho < RANKS_NOT or worse:
        return _say(
            "ranking",
            "warning",
            f"{_title(head)}: sigma does not tell large errors from small ones ({shown}); do not "
            "pick or discard structures by it.",
            head=head,
            because=because,
        )
    if rho < max(RANKS, chance):
        return _say(
            "ranking",
            "note",
            f"{_title(head)}: sigma hardly ranks the errors ({shown}, {_of_groups(head.groups)}); "
            "pick structures by it only beside another criterion.",
            head=head,
            because=because,
        )
    return _say(
        "ranking",
        "good",
        f"{_title(head)}: sigma ranks the errors ({shown}); it may be used to pick structures.",
        head=head,
        because=because,
    )


def judge_intervals(head: HeadEvidence) -> VerdictSentence | None:
    """Check whether 90 % intervals hold 90 %."""
    if not math.isfinite(head.inside) or not head.groups:
        return None
    band = BAND * math.sqrt(0.9 * 0.1 / head.groups)
    because = f"a binomial band of 95 % around 90 % for that many groups: +- {100 * band:.0f} %"
    shown = f"the 90 % {head.regions} hold {100 * head.inside:.0f} % of the values"
    if head.inside < 0.9 - band:
        return _say(
            "intervals",
            "warning",
            f"{_title(head)}: {shown}, too few for {_of_groups(head.groups)}; treat them as "
            "narrower than they should be.",
            head=head,
            because=because,
        )
    if head.inside > 0.9 + band:
        return _say(
            "intervals",
            "note",
            f"{_title(head)}: {shown}, more than they need to: errors are smaller than said.",
            head=head,
            because=because,
        )
    if head.groups < FEW_GROUPS:
        return _say(
            "intervals",
            "note",
            f"{_title(head)}: {shown}, which {_of_groups(head.groups)} are too few to judge.",
            head=head,
            because=because,
        )
    return _say(
        "intervals",
        "good",
        f"{_title(head)}: {shown} ({_of_groups(head.groups)}).",
        head=head,
        because=because,
    )


def judge_kinds(head: HeadEvidence) -> VerdictSentence | None:
    """Name the elements and sizes whose intervals hold too few values."""

    def is_low(kind: KindCoverage) -> bool:
        return kind.inside < 0.9 - BAND_OF_KINDS * math.sqrt(0.9 * 0.1 / kind.groups)

    low = sorted(filter(is_low, head.kinds), key=lambda kind: kind.inside)
    if not low:
        return None
    named = ", ".join(f"{k.kind} ({100 * k.inside:.0f} %)" for k in low[:MOST_KINDS])
    more = f" and {len(low) - MOST_KINDS} more" if len(low) > MOST_KINDS else ""
    return _say(
        "kinds",
        "warning",
        f"{_title(head)}: the 90 % {head.regions} are too narrow for {named}{more}.",
        head=head,
        because=f"a binomial band of 99 % around 90 %; kinds of at least {FEW_OF_KIND} groups",
    )


def judge_groups(head: HeadEvidence) -> VerdictSentence | None:
    """Warn where few groups of structures stand behind error and intervals."""
    fewest = min(head.groups, head.calibration_groups or head.groups)
    if fewest >= FEW_GROUPS:
        return None
    calibrated = f", and calibrated on {head.calibration_groups}" if head.calibration_groups else ""
    return _say(
        "groups",
        "note",
        f"{_title(head)} was tested on {_of_groups(head.groups)}{calibrated}: errors and "
        f"{head.regions} are rough; label more structures for test and cal.",
        head=head,
        because=f"threshold {FEW_GROUPS} groups: the standard error of a mean is about a fifth",
    )


def judge_published(head: HeadEvidence) -> VerdictSentence | None:
    """Compare the error with a published one."""
    if head.published is None or not head.published.mae:
        return None
    mae, by = head.published
    ratio = head.mae / mae
    way = "below" if ratio < 1 else "above"
    return _say(
        "published",
        "good" if ratio <= 1 else "note",
        f"{_title(head)}: {head.score} {_amount(head.mae, head)}, "
        f"{100 * abs(1 - ratio):.0f} % {way} the published {mae:.3g} of {by}; "
        "compare the splits before you quote this.",
        head=head,
        because="the smallest error that the card names",
    )


def _change(gain: float) -> str:
    return f"{'fell' if gain >= 0 else 'rose'} by {100 * abs(gain):.0f} %"


def judge_data(head: HeadEvidence) -> VerdictSentence | None:
    """Judge from a learning curve whether more training data should help."""
    if head.data is None or not all(head.data.maes):
        return None
    curve, (first, before, last) = head.data, head.data.maes
    gain = 1 - last / before
    earlier = 1 - before / first
    both = 1 - math.sqrt(last / first)
    margin = CLEAR * abs(gain / curve.z) if curve.z else math.inf
    few, many = curve.structures[-2:]
    if many < 1.5 * few:
        return None  # a few large groups: it is no doubling
    shown = f"from {few:,} to {many:,} training structures the error {_change(gain)}"
    shown += f" (+- {100 * margin:.0f} %)" if math.isfinite(margin) else ""
    shown += f", in the doubling before it {_change(earlier)}"
    because = (
        f"thresholds {100 * MORE_DATA:.0f} % and {CLEAR:g} standard errors (+-) for twice the "
        f"data, on sel; three fits of {curve.epochs} of {curve.full} epochs, of equally many steps"
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
    return _say("data", "note", f"{_title(head)}: {sentence}", head=head, because=because)


def judge_training(search: SearchEvidence) -> VerdictSentence | None:
    """Check whether the best trial was still getting better when it ended."""
    curve = list(search.curve)
    if len(curve) < 8:
        return None
    before = min(curve[: -(len(curve) // 4)])
    gain = 1 - min(curve) / before if before > 0 else 0.0
    if gain < GAIN:
        return None
    return _say(
        "training",
        "note",
        f"longer training should help: {search.best}, the best trial, still gained "
        f"{100 * gain:.0f} % in its last {len(curve) // 4} of {len(curve)} epochs; raise "
        "search.rungs.",
        because=f"threshold {100 * GAIN:.0f} % in the last quarter of the epochs",
    )


def judge_search(search: SearchEvidence) -> VerdictSentence | None:
    """Check whether the search was still finding better trials when it ended."""
    count = len(search.objectives)
    if count < 9:
        return None
    before = min(search.objectives[: count - count // 3])
    gain = 1 - min(search.objectives) / before if before > 0 else 0.0
    if gain < GAIN:
        return None
    return _say(
        "search",
        "note",
        f"more search should help: the last {count // 3} of {count} trials lowered the best "
        f"objective by {100 * gain:.0f} %; raise search.trials.",
        because=f"threshold {100 * GAIN:.0f} % in the last third of the trials",
    )


def judge_members(search: SearchEvidence) -> VerdictSentence | None:
    """Warn where a single trial is the whole ensemble."""
    if search.candidates != 1:
        return None
    return _say(
        "members",
        "warning",
        "one trial is all there is: its ensemble has no spread, so all predictions of a head have "
        "the same sigma; run more trials to the full budget.",
        because="a spread takes two members",
    )


HEAD_RULES: tuple[Callable[[HeadEvidence], VerdictSentence | None], ...] = (
    judge_classes,
    judge_leakage,
    judge_mean,
    judge_far,
    judge_elements,
    judge_descriptor,
    judge_local,
    judge_published,
    judge_single,
    judge_ranking,
    judge_intervals,
    judge_kinds,
    judge_groups,
    judge_data,
)
SEARCH_RULES: tuple[Callable[[SearchEvidence], VerdictSentence | None], ...] = (
    judge_members,
    judge_training,
    judge_search,
)
