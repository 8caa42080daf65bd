"""300 files in the shape of strangers' ones: what ``init`` decides is what an expert would.

``variants.py`` draws them and writes down what is right for each column.
"""

import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from variant_draft import ATTRIBUTE, Column, Draft, Truth
from variant_files import write_variant
from variants import draw_variant

from hydragnn_hpo.config import CardConfig, parse_config
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.inspection import UNKNOWN, inspect_files
from hydragnn_hpo.inspection.file_inspection import Inspection
from hydragnn_hpo.inspection.targets import TargetProposal
from hydragnn_hpo.pipeline.init_templates import HeadHints, choose_heads, render_card

SEED, COUNT = 7, 300
FEWEST_RIGHT = 0.97
"""Share of the variants in which everything is decided as an expert would."""

KINDS = {
    "structure": "structure itself says|spells what",
    "serial": "numbers or sorts the structures",
    "identity": r"is text with \d+ value|each class takes|names the run",
    "label": "labels atoms",
    "prediction": "another model predicts|second set|no energy of their calculator",
    "error": "error bar",
    "weight": "weight for training",
    "record": "how a structure was made|simulation was run at|with forces there",
    "split": "holds a split|seems to select structures|numbers or sorts",
    "mask": "seems to select|may mark something",
    "repeat": "one quantity|same numbers",
    "constant": "everywhere",
    "group": "names the run",
}
"""Kinds of columns that are not predicted, and the sentences that say so."""


class Mismatch(NamedTuple):
    """A decision that is not what an expert would make."""

    variant: str
    severity: str
    """``decision``, or one of ``SILENT``."""
    column: str
    sentence: str


SILENT = ("silent unit", "silent target", "leak")
"""Severities that no variant may have."""


class Decisions(NamedTuple):
    """What ``init`` decides about the columns of a file."""

    inspection: Inspection
    targets: dict[str, TargetProposal]
    """By name in the file."""
    heads: set[str]
    """Names in the file."""
    reasons: dict[str, str]
    """Why columns are left out."""


def decide(path: Path, folder: Path) -> Decisions:
    """Inspect a file and choose heads as ``init`` does, without a campaign."""
    seen = inspect_files([path])
    card = tomllib.loads(render_card(seen, folder))
    for target in seen.proposals.targets:
        if target.unit.name == UNKNOWN:
            card["targets"][target.name]["unit"] = target.unit.choices[0]
    asides = {t.name: t.why[-1] if t.why else "" for t in seen.proposals.targets if not t.head}
    config = parse_config(card, CardConfig, where=str(path))
    chosen = choose_heads(config, (), HeadHints(asides))
    targets = {name: t for t in seen.proposals.targets for name in names_of(t)}
    heads = {name for t in seen.proposals.targets if t.name in chosen for name in names_of(t)}
    return Decisions(seen, targets, heads, dict(seen.proposals.left_out))


def names_of(target: TargetProposal) -> tuple[str, ...]:
    """Return the columns of a target."""
    return tuple(target.config.columns or (target.key,))


def find_role(name: str, made: Decisions) -> str:
    """Return the role of a column."""
    if name in made.heads:
        return "head"
    if name in made.targets:
        return "offered"
    if name in made.inspection.proposals.attributes:
        return "attribute"
    return "left_out" if name in made.reasons else "unused"


def judge(draft: Draft, made: Decisions) -> Iterator[tuple[str, str, str]]:
    """Yield severity, column and sentence of each difference from the truth."""
    published = draft.published[0] if draft.published else None
    spectrum = False
    for column in draft.columns:
        faults = list(judge_column(column, made))
        if faults and column.truth.shape == "spectrum":
            faults = [] if spectrum else faults[:1]
            spectrum = True
        if column.name == published and column.name not in made.heads:
            continue
        yield from ((severity, column.name, text) for severity, text in faults)
    for names in draft.one_of:
        chosen = [name for name in names if name in made.heads]
        if len(chosen) != 1:
            severity = "leak" if chosen else "decision"
            yield severity, names[0], f"{len(chosen)} heads of {names}, wanted is one"
    split = made.inspection.split
    if draft.published and (split.published, split.published_test) != draft.published:
        found = (split.published, split.published_test) if split.published else None
        yield "leak", draft.published[0], f"published split {draft.published}, found {found}"
    if draft.groups and split.group not in draft.groups:
        composed = split.group == "composition" and draft.world != "runs"
        if not composed:
            yield "decision", "", f"group {split.group}, wanted one of {draft.groups}"


def judge_column(column: Column, made: Decisions) -> Iterator[tuple[str, str]]:
    """Yield severity and sentence of each wrong decision about a column."""
    truth = column.truth
    role = find_role(column.name, made)
    target = made.targets.get(column.name)
    if role not in truth.roles:
        why = made.reasons.get(column.name) or (target.why[-1] if target and target.why else "")
        severity = "leak" if truth.leak and role == "head" else "decision"
        yield severity, f"{role}, wanted {'/'.join(truth.roles)} {truth.kinds} ({why})"
    elif role in ("left_out", "offered") and truth.kinds:
        why = made.reasons.get(column.name) or " ".join(target.why if target else ())
        if not any(re.search(KINDS[kind], why) for kind in truth.kinds):
            yield "decision", f"not predicted as it '{why}', wanted {truth.kinds}"
    if target is not None and truth.roles != ATTRIBUTE:
        yield from judge_unit(target, truth, is_head=role == "head" and role in truth.roles)
        if role == "head" and role in truth.roles:
            yield from judge_shape(target, truth)
        elif target.config.derived_from and truth.derived_from:
            yield from judge_origin(target, truth, made)
    if target is not None and role == "head":
        yield from judge_origin(target, truth, made)


def judge_unit(target: TargetProposal, truth: Truth, *, is_head: bool) -> Iterator[tuple[str, str]]:
    """Yield what is wrong about the unit of a target."""
    unit = target.unit
    right = unit.name == (truth.unit or "1") or target.config.shape == "class"
    open_unit = unit.sure == "unknown" and not (truth.stated and truth.unit)
    if right or open_unit:
        return
    if unit.sure in ("said", "recognised"):
        yield "silent unit", f"{unit.name} ({unit.sure}, {unit.why}), right is {truth.unit}"
    elif is_head and (truth.stated or truth.evident or truth.unit is None):
        how = "stated" if truth.stated else "evident"
        yield "decision", f"unit {unit.name} ({unit.sure}), right is {truth.unit} ({how})"


def judge_shape(target: TargetProposal, truth: Truth) -> Iterator[tuple[str, str]]:
    """Yield what is wrong about level, shape and energy of a target."""
    config = target.config
    if (config.level, config.shape) != (truth.level, truth.shape):
        yield "decision", f"{config.level} {config.shape}, wanted {truth.level} {truth.shape}"
    if config.energy not in truth.energy and truth.shape == "scalar":
        severity = "silent target" if config.energy or "total" in truth.energy else "decision"
        yield severity, f"energy = {config.energy}, wanted {truth.energy}"


def judge_origin(
    target: TargetProposal, truth: Truth, made: Decisions
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong about the energy of a derivative."""
    energy = target.config.derived_from
    key = next((t.key for t in made.targets.values() if t.name == energy), None)
    if key != truth.derived_from:
        yield "silent target", f"derived from {key}, wanted {truth.derived_from}"


def judge_variant(number: int, folder: Path) -> list[Mismatch]:
    """Write and inspect one variant; return what is wrong."""
    draft = draw_variant(SEED, number)
    title = f"{number} {draft.world} {draft.container}"
    path = write_variant(draft, folder / str(number))
    try:
        made = decide(path, folder)
    except DataError as error:
        text = str(error).replace(str(folder), "")
        return [Mismatch(title, "decision", "", f"refused: {text}")]
    return [Mismatch(title, *found) for found in judge(draft, made)]


@pytest.mark.slow
@pytest.mark.stress
def test_files_of_strangers_are_read_as_by_an_expert(tmp_path: Path) -> None:
    """At least 97 % of the files entirely, and in none of them anything wrong in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [judge_variant(number, tmp_path) for number in range(COUNT)]
    wrong = [mismatch for result in results for mismatch in result]
    listed = "\n".join(" | ".join(mismatch) for mismatch in wrong)
    silent = [mismatch for mismatch in wrong if mismatch.severity in SILENT]
    right = sum(not result for result in results)
    assert right >= FEWEST_RIGHT * COUNT, f"{right} of {COUNT} are right:\n{listed}"
    assert not silent, f"wrong in silence:\n{listed}"
