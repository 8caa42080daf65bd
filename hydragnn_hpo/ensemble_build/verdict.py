"""What a scientist should conclude from an ensemble's figures, in sentences: a table of rules.

A rule has a row for each of its cases: the first one that holds speaks, with its sentence and the
reason for its threshold. A row without a sentence ends a rule that lacks what it needs.

To change a sentence or a threshold, change its row; to add a rule, add rows, cases on both sides of
its threshold to ``test_verdict``, and its title to ``TOPICS`` of ``report.sections.headline``.

A field in braces is one of ``WORDS``, or of the evidence (``verdict_evidence``). ``{inside:%}`` is
"90 %", ``{gain:% better|% worse}`` "5 % better", or "5 % worse" if it is negative, and
``{is_node:atom|structure}`` the first word if it is true.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from string import Formatter
from typing import Any, Generic, TypeVar

from hydragnn_hpo.data import FAR
from hydragnn_hpo.ensemble_build.verdict_evidence import (
    FEW_OF_KIND,
    MOST_REMEMBERED,
    NOT_LEARNED,
    HeadEvidence,
    SearchEvidence,
)
from hydragnn_hpo.file_records import VerdictLevel, VerdictSentence
from hydragnn_hpo.uncertainty.paired_comparison import CLEAR

RANKS, RANKS_NOT = 0.3, 0.1
"""Rank correlation of |error| and sigma from which sigma may pick structures, and below which it
may not: at 0.3, 46 % of the third with the largest sigma have errors of the largest third (Gaussian
copula), by chance 33 %."""

FEW_GROUPS = 30
"""Groups below which an error or an interval is rough: its standard error is about a fifth."""

MORE_DATA, MUCH_DATA = 0.05, 0.1
"""Relative gain of twice the training data from which more of it should help, in the last doubling
and in the mean of two that both lower the error, so that one lucky seed does not decide; and the
gain that two standard errors must exclude to say that it hardly helps."""

FEW_TRIALS = 16
"""Trials below which a search that gains nothing at its end may only have been unlucky."""

GAIN = 0.02
"""Relative gain of the last part of a training or a search from which more of it should help."""

MOST_NAMES = 6
"""Names of classes, or kinds of structures, that a sentence lists."""

Evidence = TypeVar("Evidence", HeadEvidence, SearchEvidence)


@dataclass(frozen=True)
class Rule(Generic[Evidence]):
    """A row of the table: one case of a rule."""

    name: str
    """Of the rule; its rows follow each other."""
    level: VerdictLevel | None
    """Whether it is good news, a limit to know, or a reason to act; None where it says nothing."""
    holds: Callable[[Evidence], object]
    """Whether it is the case."""
    because: str = ""
    """Threshold of the rule, and its reason; with fields."""
    sentence: str = ""
    """For a person; with fields."""

    def says(self, sentence: str) -> "Rule[Evidence]":
        """Return the row with its sentence."""
        return replace(self, sentence=sentence)


# Make a row of a table.
_head = Rule[HeadEvidence]
_search = Rule[SearchEvidence]


def otherwise(_: object) -> bool:
    """Return True, the condition of the last case of a rule."""
    return True


def _is_at_random(head: HeadEvidence) -> bool:
    """Check whether sigma does not tell large errors from small ones."""
    return head.spearman < RANKS_NOT or head.ause >= head.random_ause


def _hardly_ranks(head: HeadEvidence) -> bool:
    """Check whether sigma does not clearly rank the errors."""
    return head.spearman < max(RANKS, CLEAR / math.sqrt(head.groups - 1))


def _is_worse_with_forces(head: HeadEvidence) -> bool:
    """Check whether an energy with derivatives is clearly worse than the regression."""
    return head.has_derivatives and head.descriptor.z >= CLEAR


def _has_few_groups(head: HeadEvidence) -> bool:
    """Check whether few groups stand behind the error or the intervals."""
    return min(head.groups, head.calibration_groups or head.groups) < FEW_GROUPS


def _gains_by_data(head: HeadEvidence) -> bool:
    """Check whether the error falls with more data, below that of a constant."""
    if head.data is None or not head.beats_constant(head.data.maes[-1]):
        return False
    gain, earlier, both = head.data.gains
    return min(gain, both) >= MORE_DATA and earlier > 0 and head.data.z <= -CLEAR


def _hardly_gains_by_data(head: HeadEvidence) -> bool:
    """Check whether a large gain by more data is excluded."""
    return head.data is not None and head.data.gains[0] + head.data.margin < MUCH_DATA


# Reasons of the thresholds.
UNTESTED = "a class that no tested structure has cannot be missed"
FEW_COPIES = f"threshold {100 * MOST_REMEMBERED:.0f} % of the test structures"
CONSTANT = f"threshold {NOT_LEARNED}: a constant predicts as well"
CLEARLY = f"threshold {CLEAR:g} standard errors of the difference"
LONE = f"{FAR:g} times the distance of all others from their median, more of few"
QUOTED = "the smallest error that the card names"
FIXED = f"{CLEARLY}; the trial is fixed before test"
ORDERED = (
    f"Spearman of at least {RANKS} and of {CLEAR:g} standard errors, 1 / sqrt(groups - 1), and an "
    "AUSE below that of a random order"
)
BINOMIAL = "a binomial band of 95 % around 90 % for that many groups: +- {band:%}"
MANY_KINDS = f"a binomial band of 99 % around 90 %; kinds of at least {FEW_OF_KIND} groups"
ROUGH = f"threshold {FEW_GROUPS} groups: the standard error of a mean is about a fifth"
THREE_FITS = (
    f"thresholds {100 * MORE_DATA:.0f} % and {CLEAR:g} standard errors (+-) for twice the data, on "
    "sel; three fits of {data.epochs} of {data.full} epochs, of equally many steps"
)
SPREAD = "a spread takes two members"
LAST_EPOCHS = f"threshold {100 * GAIN:.0f} % in the last quarter of the epochs"
TRIED_FIRST = "search.initial_points are chosen before anything is known of the data"
LAST_TRIALS = f"threshold {100 * GAIN:.0f} % in the last third of the trials"
OBJECTIVES = f"threshold {100 * GAIN:.0f} % of the best trial's validation objective"

HEAD_RULES = (
    _head("classes", "warning", lambda head: head.absent, UNTESTED).says(
        "{title} was tested on no structure of {absent} (of {num_classes} classes): whether it "
        "finds such structures is not known; label more of them."
    ),
    _head("leakage", "warning", lambda head: head.leaks, FEW_COPIES).says(
        "SERIOUS: {copies}: errors tell how well these are remembered, not how well new structures "
        "are predicted. Keep what belongs together in one split (split.group in the card)."
    ),
    _head("leakage", "note", lambda head: head.remembered, FEW_COPIES).says("{copies}."),
    _head("mean", "warning", lambda head: head.ratio > NOT_LEARNED, CONSTANT).says(
        "{title} was not learned: {error} is {share}. Check whether it depends on the structure "
        "alone."
    ),
    _head("mean", "warning", lambda head: not head.learned, CLEARLY).says(
        "{title} was not clearly learned: {error} is {share}, which {of_groups} cannot tell from "
        "chance. Label more structures."
    ),
    _head("mean", "good", lambda head: head.simplest.mae > 0, CONSTANT).says(
        "{title}: {error}, {share} ({of_groups})."
    ),
    _head("far", "warning", lambda head: head.far, LONE).says(
        "{title}: the {far.is_error:error|label} of structure {far.id}, {far.value:.3g}{unit}, is "
        "far from all others (median {far.median:.3g}): one wrong label spoils training, errors "
        "and error bars; mend or remove it, and train again."
    ),
    _head("elements", None, lambda head: head.is_beaten_by_constant(head.elements.mae)),
    _head("elements", "warning", lambda head: head.elements.z > -CLEAR, CLEARLY).says(
        "{title}: geometry does not clearly help, {by_elements}; train on more data, or use the "
        "simpler model."
    ),
    _head("elements", "good", otherwise, CLEARLY).says(
        "{title}: the ensemble knows more than the elements tell, {by_elements}."
    ),
    _head("descriptor", None, lambda head: head.is_beaten_by_constant(head.descriptor.mae)),
    _head("descriptor", "warning", _is_worse_with_forces, CLEARLY).says(
        "{title}: {described_by} tell more than the ensemble, {by_descriptor}; the regression is "
        "no member, as it gives no forces or stress: without their heads it may become one."
    ),
    _head("descriptor", "warning", lambda head: head.descriptor.z > -CLEAR, CLEARLY).says(
        "{title}: the ensemble does not clearly know more than {described_by} tell, "
        "{by_descriptor}; train longer, or use more data."
    ),
    _head("descriptor", "good", otherwise, CLEARLY).says(
        "{title}: the ensemble knows more than {described_by} tell, {by_descriptor}."
    ),
    _head("local", "good", lambda head: head.local and head.local["weight"], CLEARLY).says(
        "{title}: a regression on {described_by} is a member, with the weight {local[weight]:.2f}, "
        "as it lowers the error by {local_gain:%}, from {local[mae_without]:.3g}{unit} to "
        "{local[mae_with]:.3g} on the structures that weight the members."
    ),
    _head("published", None, lambda head: not head.published or not head.published.mae),
    _head("published", "good", lambda head: head.published_ratio <= 1, QUOTED).says(
        "{title}: {error}, {beside_published} the published {published.mae:.3g} of {published.by}; "
        "compare the splits before you quote this."
    ),
    _head("published", "note", otherwise, QUOTED).says(
        "{title}: {error}, {beside_published} the published {published.mae:.3g} of {published.by}; "
        "compare the splits before you quote this."
    ),
    _head("single", None, lambda head: not head.single.mae > 0 or not head.learned),
    _head("single", "good", lambda head: head.single.z < -CLEAR, FIXED).says(
        "{title}: the ensemble beats its best trial by {gain:%} ({single.mae:.3g}{unit})."
    ),
    _head("single", "warning", lambda head: head.single.z > CLEAR, FIXED).says(
        "{title}: the ensemble is {loss:%} worse than its best trial ({single.mae:.3g}{unit}): use "
        "that trial, or train it again with new seeds (ensemble build RUN --reseed 3)."
    ),
    _head("single", "note", lambda head: 100 * abs(head.gain) >= 0.5, FIXED).says(
        "{title}: the ensemble is {gain:% better|% worse} than its best trial "
        "({single.mae:.3g}{unit}): {of_groups} cannot tell them apart."
    ),
    _head("single", "note", otherwise, FIXED).says(
        "{title}: the ensemble is as good as its best trial ({single.mae:.3g}{unit}): {of_groups} "
        "cannot tell them apart."
    ),
    _head("ranking", None, lambda head: not math.isfinite(head.spearman) or head.groups < 3),
    _head("ranking", "warning", _is_at_random, ORDERED).says(
        "{title}: sigma does not tell large errors from small ones (Spearman {spearman:.2f}); do "
        "not pick or discard structures by it."
    ),
    _head("ranking", "note", _hardly_ranks, ORDERED).says(
        "{title}: sigma hardly ranks the errors (Spearman {spearman:.2f}, {of_groups}); pick "
        "structures by it only beside another criterion."
    ),
    _head("ranking", "good", otherwise, ORDERED).says(
        "{title}: sigma ranks the errors (Spearman {spearman:.2f}); it may be used to pick "
        "structures."
    ),
    _head("intervals", None, lambda head: not math.isfinite(head.inside) or not head.groups),
    _head("intervals", "warning", lambda head: head.inside < 0.9 - head.band, BINOMIAL).says(
        "{title}: {held}, too few for {of_groups}; treat them as narrower than they should be."
    ),
    _head("intervals", "note", lambda head: head.inside > 0.9 + head.band, BINOMIAL).says(
        "{title}: {held}, more than they need to: errors are smaller than said."
    ),
    _head("intervals", "note", lambda head: head.groups < FEW_GROUPS, BINOMIAL).says(
        "{title}: {held}, which {of_groups} are too few to judge."
    ),
    _head("intervals", "good", otherwise, BINOMIAL).says("{title}: {held} ({of_groups})."),
    _head("kinds", "warning", lambda head: head.narrow, MANY_KINDS).says(
        "{title}: the 90 % {regions} are too narrow for {narrow}."
    ),
    _head("groups", "note", _has_few_groups, ROUGH).says(
        "{title} was tested on {of_groups}{calibrated}: errors and {regions} are rough; label more "
        "structures for test and cal."
    ),
    _head("data", None, lambda head: not head.data or not head.data.doubles),
    _head("data", "note", _gains_by_data, THREE_FITS).says(
        "{title}: more data should help: {doublings}."
    ),
    # Above the error of a constant, the end of a curve that is flat says nothing.
    _head("data", None, lambda head: not head.learned),
    _head("data", "note", _hardly_gains_by_data, THREE_FITS).says(
        "{title}: more data alone should hardly help: {doublings}; longer training, larger nets or "
        "cleaner labels may."
    ),
    _head("data", "note", otherwise, THREE_FITS).says(
        "{title}: whether more data would help cannot be told: {doublings}."
    ),
)
"""Rules on a head, in the order of their sentences."""

SEARCH_RULES = (
    _search("members", "warning", lambda search: search.candidates == 1, SPREAD).says(
        "one trial is all there is: its ensemble has no spread, so all predictions of a head have "
        "the same sigma; run more trials to the full budget."
    ),
    _search("training", "note", lambda search: not search.of_epochs.gain < GAIN, LAST_EPOCHS).says(
        "longer training should help: {best}, the best trial, still gained {of_epochs.gain:%} in "
        "its last {of_epochs.late} of {of_epochs.total} epochs; raise search.rungs."
    ),
    _search("search", "note", lambda search: not search.of_trials.gain < GAIN, LAST_TRIALS).says(
        "more search should help: the last {of_trials.late} of {of_trials.total} trials lowered "
        "the best objective by {of_trials.gain:%}; raise search.trials."
    ),
    _search(
        "search", "note", lambda search: search.of_trials.total >= FEW_TRIALS, LAST_TRIALS
    ).says(
        "more search of this space should hardly help: half of the {of_trials.total} trials came "
        "within {half_loss:%} of the best, and the last {of_trials.late} gained {of_trials.gain:%}."
    ),
    _search(
        "points", "note", lambda search: 0 < search.named < search.of_trials.total, TRIED_FIRST
    ).says("the search gained {named_gain:%} over the {named} settings that it tried first."),
    _search("trunk", None, lambda search: not search.trunk),
    _search("trunk", "note", lambda search: not math.isfinite(search.trunk_loss), OBJECTIVES).says(
        "all members begin from features of {trunk.title}; {seen}"
    ),
    _search("trunk", "note", lambda search: search.trunk_loss <= -GAIN, OBJECTIVES).says(
        "features of {trunk.title} helped: the best trial with them is {trunk_loss:% worse|% "
        "better} than the best without, after as many epochs; {seen}"
    ),
    _search("trunk", "note", lambda search: search.used, OBJECTIVES).says(
        "features of {trunk.title} did not help: the best trial with them is {trunk_loss:% worse|% "
        "better} than the best without; {seen}"
    ),
    _search("trunk", "note", otherwise, OBJECTIVES).says(
        "features of {trunk.title} did not help: the best trial with them is {trunk_loss:% worse|% "
        "better} than the best without; no member reads them."
    ),
)
"""Rules on the search, in the order of their sentences."""

WORDS: dict[str, str | Callable[[HeadEvidence], object]] = {
    "title": lambda head: head.name.replace("_", " "),
    "unit": lambda head: "" if head.unit == "1" else f" {head.unit}",
    "error": "{score} {mae:.3g}{unit}",
    "of_groups": lambda head: f"{head.groups} group{'s' * (head.groups != 1)} of structures",
    "calibrated": lambda head: (
        f", and calibrated on {head.calibration_groups}" if head.calibration_groups else ""
    ),
    "absent": lambda head: _list_first(head.absent),
    "num_classes": lambda head: len(head.classes),
    "copies": "{remembered} of {structures} test structures of {title} have a near copy among "
    "those that the ensemble is made from",
    "share": "{ratio:%} of the error of always predicting the {constant}",
    "by_elements": "as {is_node:the mean of each element|a linear model of the composition} alone "
    "has {elements.mae:.3g}{unit}, the ensemble {mae:.3g}",
    "by_descriptor": "as a regression on {described_by} has {descriptor.mae:.3g}{unit}, the "
    "ensemble {mae:.3g}",
    "local_gain": lambda head: (
        head.local and 1 - head.local["mae_with"] / head.local["mae_without"]
    ),
    "beside_published": lambda head: (
        f"{100 * abs(1 - head.published_ratio):.0f} % "
        f"{'below' if head.published_ratio < 1 else 'above'}"
    ),
    "loss": lambda head: -head.gain,
    "regions": lambda head: "sets" if head.score == "log-loss" else "intervals",
    "held": "the 90 % {regions} hold {inside:%} of the values",
    "narrow": lambda head: _list_first([f"{k.kind} ({100 * k.inside:.0f} %)" for k in head.narrow]),
    "doublings": "from {data.structures[1]:,} to {data.structures[2]:,} training structures the "
    "error {data.gains[0]:fell by %|rose by %}{margin}, in the doubling before it "
    "{data.gains[1]:fell by %|rose by %}",
    "margin": lambda head: (
        f" (+- {100 * head.data.margin:.0f} %)"
        if head.data and math.isfinite(head.data.margin)
        else ""
    ),
    "seen": "{trunk.title} was trained on {trunk.trained_on}: errors on structures that are also "
    "there tell less about new ones.",
}
"""What stands for a field in a sentence, where that is not the field of the evidence."""


def _list_first(names: Sequence[str]) -> str:
    """List at most ``MOST_NAMES`` names, and count the others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class _Template(Formatter):
    """A sentence with fields in braces; its argument is the evidence."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        """Return what stands for a field.

        Args:
            key: the field, up to its first dot or bracket.
            args: the evidence.
            kwargs: nothing.
        """
        word = WORDS.get(str(key))
        if isinstance(word, str):
            return self.vformat(word, args, kwargs)
        return word(args[0]) if word else getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format a share as a percentage, and choose between two words; all else is as usual."""
        first, either, second = format_spec.partition("|")
        if not either and "%" not in first:
            return super().format_field(value, format_spec)
        chosen = not either or (value if isinstance(value, bool) else value >= 0)
        percent = abs(100 * value) if either else 100 * value
        return (first if chosen else second).replace("%", f"{percent:.0f} %")


def _apply(
    rules: Sequence[Rule[Evidence]], evidence: Evidence, head: str | None
) -> Iterator[VerdictSentence]:
    """Return what each rule says in its first case that holds.

    Args:
        rules: rows of the table.
        evidence: what they read.
        head: name of the head that it is about; None of the search.
    """
    write = partial(_Template().vformat, args=(evidence,), kwargs={})
    for rule, rows in groupby(rules, key=lambda row: row.name):
        row = next((row for row in rows if row.holds(evidence)), None)
        if row is not None and row.level is not None:
            yield {
                "rule": rule,
                "head": head,
                "level": row.level,
                "sentence": write(row.sentence),
                "because": write(row.because),
            }


def judge(
    heads: Sequence[HeadEvidence], search: SearchEvidence | None = None
) -> list[VerdictSentence]:
    """Return the sentences of all rules, head by head, and those on the search.

    A head of classes one of which was never seen is not praised.
    """
    sentences = list[VerdictSentence]()
    for head in heads:
        for one in _apply(HEAD_RULES, head, head.name):
            if one["level"] != "good":
                sentences.append(one)
            elif not head.absent:
                sentences.append({**one, "level": "note" if head.leaks else "good"})
    return sentences + ([] if search is None else list(_apply(SEARCH_RULES, search, None)))


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
