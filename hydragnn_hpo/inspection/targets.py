"""Propose targets for structures without a card: level, shape, unit and derivative, with reasons.

Shapes: G structures, Z kinds of elements.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from ase import Atoms

from hydragnn_hpo.config import AxisConfig, TargetConfig
from hydragnn_hpo.data import FAR, make_identifier, mark_far
from hydragnn_hpo.data.build_plan import exceeds_limit
from hydragnn_hpo.data.name_patterns import NAMES, is_energy, is_per_atom, parse_calculator
from hydragnn_hpo.data.properties import Property, PropertyTable, explain_rejection
from hydragnn_hpo.data.structure import LARGEST, MISSING_CLASSES, name_class
from hydragnn_hpo.inspection.column_kinds import PropertyColumn, StructureFacts, find_kind
from hydragnn_hpo.inspection.element_fits import Array, classify_growth, has_heavy_tails
from hydragnn_hpo.inspection.relations import (
    derive,
    drop_equal_totals,
    explain_repeats,
    find_common_sum,
    keep_one_calculator,
)
from hydragnn_hpo.inspection.target_proposals import TargetProposal, TargetProposals
from hydragnn_hpo.inspection.unit_evidence import (
    RESULTS,
    UNKNOWN,
    PropertyFacts,
    UnitGuess,
    find_energy_unit,
    find_foreign_unit,
    find_said_unit,
    find_unit,
)
from hydragnn_hpo.sanitize import escape_line, quote
from hydragnn_hpo.units import inside
from hydragnn_hpo.words import count

MOST_CLASSES, MIN_OF_CLASS = 10, 5
"""Largest number of texts that are taken for classes, and fewest structures of each."""

MOST_WORDS = 0.01
"""Largest share of structures with a word in place of a number; a build sets as many aside."""

MAX_HEADS = 8
"""Largest number of targets that get a head in the first campaign."""

_DIRECTED = (3, 6, 9)
"""Numbers of components of vectors and tensors, whose lengths are compared."""

COMMON = 0.8
"""Share of one value above which it is named, as a constant then errs little."""

TWO_CLASSES = (
    "has two whole values only: taken for two classes; for a number drop shape and classes"
)
"""Reason why two whole numbers are classes."""

MARK = "may mark something rather than measure it: not predicted at first"
"""Reason why a property of 0 and 1 gets no head."""


def _start_proposal(name: str, unit: UnitGuess, spread: str, **fields: Any) -> TargetProposal:
    """Return a proposal of which only the fields are known that do not depend on others.

    Args:
        name: name in the card.
        unit: its unit.
        spread: range of its values, in words.
        fields: those of ``TargetConfig`` that are known.
    """
    config = TargetConfig.model_construct(None, unit=unit.name, **fields)
    return TargetProposal(name, config, unit, spread=spread).with_unit(unit)


def propose_targets(
    structures: Sequence[Atoms],
    table: PropertyTable,
    *,
    reader: str,
    units: Mapping[str, str],
    stated: Mapping[str, str] | None = None,
    forced: Sequence[str] = (),
    wanted: Sequence[str] = (),
) -> TargetProposals:
    """Propose to make each property a target or an attribute, or to leave it out.

    Args:
        structures: structures that were read.
        table: their properties.
        reader: name of their reader, or ``several``.
        units: units from the user, by the name of the property in the file.
        stated: units that the file states, in any spelling, by the same name.
        forced: names given to unnamed columns, which the card cannot leave out.
        wanted: names of targets that stay even if they select or repeat something.

    Raises:
        ConfigError: a unit from the user is unknown.
    """
    for unit in units.values():
        inside(unit)
    facts = PropertyFacts(structures, table, reader, units, stated or {})
    named = {*forced, *wanted}
    kept = {name for name in table.numbers if {name, make_identifier(name, "target")} & named}
    rejected, offered = _reject(facts, kept)
    targets: list[TargetProposal] = []
    attributes: list[str] = []
    left_out = [*table.ragged.items()]
    warnings: list[str] = []
    for prop in sorted(table.numbers.values(), key=facts.rank_dependence):
        reason = None if prop.name in forced else rejected.get(prop.name)
        if reason is None and prop.is_attribute and prop.name not in kept:
            if prop.present == len(structures) and prop.known.all():
                attributes.append(prop.name)
                continue
            reason = "is a known property that some structures lack"
        proposal = reason or _propose(prop, facts, targets)
        if isinstance(proposal, str):
            left_out.append((prop.name, proposal))
            continue
        warnings += _warn(prop, proposal, facts)
        waits = () if prop.name in kept else offered.get(prop.name, ())
        targets.append(_complete(proposal, prop, len(structures), waits))
    one_set = [*keep_one_calculator([*drop_equal_totals(targets, facts)])]
    heads = list(targets if wanted else _limit_heads(one_set))
    # A word in a number that no head predicts would set its structure aside.
    aside = [target.key for target in heads if not (target.head or target.is_potential)]
    words = [key for key in aside if key in table.texts and key not in kept]
    left_out += [(key, "is text in some structures, and not predicted") for key in words]
    numbers = [target for target in heads if target.key not in words]
    proposals = tuple(_ask_for_heads_only(numbers, wanted))
    return TargetProposals(proposals, tuple(attributes), tuple(left_out), tuple(warnings))


def _reject(
    facts: PropertyFacts, kept: Collection[str]
) -> tuple[dict[str, str], dict[str, tuple[str]]]:
    """Return why properties cannot or need not be targets, and why others wait, by name.

    Args:
        facts: those of the data set.
        kept: names of properties that stay even if they select or repeat something.

    Returns:
        Reasons by name of a property, to be read after that name.
    """
    numbers = facts.table.numbers
    known = StructureFacts(facts.structures, (*numbers, *facts.table.texts), facts.has_forces)
    reasons: dict[str, str] = {}
    offered: dict[str, tuple[str]] = {}
    for name, prop in numbers.items():
        reason = explain_rejection(prop)
        if reason is None and name not in kept and not prop.is_attribute:
            kind = find_kind(PropertyColumn(name, prop), known)
            if kind is not None and kind.offered:
                offered[name] = (kind.why,)
            elif kind is not None:
                reason = kind.why
        if reason is not None:
            reasons[name] = reason
    reasons |= _choose_energy(facts, kept)
    reasons |= _find_words(facts, {*numbers} - {*reasons}, kept)
    inputs = {name for name, prop in numbers.items() if prop.is_attribute and name not in kept}
    free = [prop for name, prop in numbers.items() if name not in {*reasons, *inputs}]
    return reasons | explain_repeats(free, kept, facts), offered


def _find_words(facts: PropertyFacts, names: Set[str], kept: Collection[str]) -> dict[str, str]:
    """Return why numbers that are words in many structures are left out, beside others.

    Args:
        facts: those of the data set.
        names: names of properties that can be targets.
        kept: names of those that stay.
    """
    reasons = {}
    read = len(facts.structures)
    for name in (names & facts.table.texts.keys()) - {*kept}:
        words = facts.table.texts[name]
        other = facts.rank_dependence(facts.table.numbers[name]) == 2
        if other and exceeds_limit(words.total(), read, MOST_WORDS):
            example = escape_line(min(words))[:40]
            reasons[name] = f"is text in {words.total()} of {read}, as '{example}'"
    return reasons if names - {*reasons} else {}


def _choose_energy(facts: PropertyFacts, kept: Collection[str]) -> dict[str, str]:
    """Return why one of the two energies of ASE's calculators is left out.

    With smearing ``energy`` is extrapolated to no smearing, and forces are derivatives of
    ``free_energy``.

    Args:
        facts: those of the data set.
        kept: names of properties that stay.
    """
    both = {"energy", "free_energy"}
    if not facts.in_ase_units or not both <= set(facts.table.numbers) or both & set(kept):
        return {}
    if facts.has_forces:
        return {"energy": "is free_energy without smearing, and forces belong to free_energy"}
    return {"free_energy": "is energy with smearing"}


def _complete(
    proposal: TargetProposal, prop: Property, structures: int, waits: Sequence[str]
) -> TargetProposal:
    """Add to a proposal which values are missing, and why its property waits.

    Args:
        proposal: the proposal.
        prop: its property.
        structures: number of structures.
        waits: why the user has to decide about it; empty where there is nothing to decide.
    """
    why = proposal.why
    optional = prop.present < structures or bool(prop.missing)
    if optional:
        known = 1.0 - prop.missing / max(len(prop.values), 1)
        share = 100.0 * (1.0 - known * prop.present / structures)
        why = (*why, f"missing in {share:.3g} % of what was read")
    head = proposal.head and not (waits or prop.constant)
    proposal = proposal.with_fields(optional=optional or proposal.config.optional)
    return replace(proposal, why=(*why, *waits), head=head)


def _limit_heads(targets: Sequence[TargetProposal]) -> Iterator[TargetProposal]:
    """Yield targets, with a head for at most ``MAX_HEADS``: the most target-like, then the first.

    Energies and their derivatives go first, then quantities that have a unit by their name.
    """

    def rank(target: TargetProposal) -> int:
        if target.is_potential:
            return 0
        return 1 if target.unit.sure != "unknown" and target.config.shape != "class" else 2

    heads = [target.name for target in sorted(targets, key=rank) if target.head]
    for target in targets:
        if target.head and target.name in heads[MAX_HEADS:]:
            why = f"more than {MAX_HEADS} heads at first: uncomment what you want"
            target = target.without_head(why)
        yield target


def _ask_for_heads_only(
    targets: Iterable[TargetProposal], wanted: Collection[str]
) -> Iterator[TargetProposal]:
    """Yield targets; the user is not asked for units that no head needs.

    Args:
        targets: all targets.
        wanted: names of targets from the user, which alone get heads; empty for those proposed.
    """
    for target in targets:
        head = bool({target.name, target.key} & set(wanted)) if wanted else target.head
        if target.unit.name == UNKNOWN and not (head or target.is_potential):
            target = target.with_unit(replace(target.unit, name="1"))
        yield target


def _propose(
    prop: Property, facts: PropertyFacts, targets: Sequence[TargetProposal]
) -> TargetProposal | str:
    """Return a target, or a reason to leave the property out.

    Args:
        prop: the property.
        facts: those of the data set.
        targets: those before it.
    """
    start = _start_proposal(
        make_identifier(prop.name, "target", {target.name for target in targets}),
        find_unit(prop, facts),
        _describe_spread(prop),
        key=prop.name,
        level=prop.level,
        min=0.0 if _is_gap(prop) else None,
    )
    if prop.is_forces:
        return derive(start.with_fields(shape="vector"), prop, targets, facts)
    if prop.is_stress:
        return derive(start.with_fields(shape="tensor"), prop, targets, facts)
    if prop.shape == "spectrum":
        kind = "structure" if prop.level == "graph" else "atom"
        why = (
            f"{prop.width} numbers in each {kind}: taken for a spectrum, whose values do not "
            "turn with the structure; drop it if they do",
        )
        start = start.with_fields(shape="spectrum", size=prop.width)
        if prop.columns:
            why = (f"{prop.width} numbered columns of one unit: taken for one spectrum",)
            start = start.with_fields(key=None, columns=tuple(prop.columns), axis=_find_axis(prop))
        return replace(start, why=why)
    if prop.shape is not None and not prop.is_mark:
        return _propose_directed(start, prop.shape, facts)
    if prop.level == "graph":
        return _propose_scalar(start, prop, facts)
    if prop.is_mark:
        return replace(start, why=(MARK,), head=False)
    return start.with_fields(sum=find_common_sum(prop)) if prop.width == 1 else start


def _propose_directed(
    start: TargetProposal, shape: Literal["vector", "tensor"], facts: PropertyFacts
) -> TargetProposal:
    """Propose a vector or tensor that is no derivative of an energy."""
    origin: Literal["mass", "none"] | None = None
    why = f"a {shape} of its own: only convs that carry vectors can predict it"
    if start.config.level == "graph":
        origin = "mass" if facts.are_molecules else "none"
        if facts.are_molecules:
            why = f"a {shape} of molecules, from charges, positions and vectors of atoms"
    return replace(start.with_fields(shape=shape, origin=origin), why=(why,), head=False)


def _propose_scalar(start: TargetProposal, prop: Property, facts: PropertyFacts) -> TargetProposal:
    """Propose a number per structure as energy, total or per atom, or as another target."""
    values = prop.values[prop.known, 0]
    counts = facts.count_atoms(prop)
    growth = classify_growth(values, counts)
    energy, why = _classify_energy(prop, growth, facts)
    unit = find_energy_unit(prop, facts, energy)
    extensive = growth == "extensive" and energy is None and not is_per_atom(prop.name)
    without_unit = unit.sure == "unknown" and unit.name != UNKNOWN
    without_head = facts.has_forces and without_unit and energy is None
    if extensive:
        why.append("extensive: it grows with the number of atoms, as a sum over them")
    kinds = np.unique(values)
    is_number = extensive or energy is not None or not without_unit
    is_class = len(kinds) == 2 and not is_number and bool((kinds == np.round(kinds)).all())
    if is_class:
        why.append(TWO_CLASSES)
    elif len(kinds) == 2:
        why.append("has two values only: learned as a number, 'near which of the two'")
    else:
        why += _explain_common(values)
    if prop.is_mark:
        why.append(MARK)
    if is_class:
        return _make_class(start, map(name_class, kinds.tolist()), why, head=not prop.is_mark)
    if without_head:
        why.append("not predicted at first: with forces there, a potential seems to be wanted")
    is_sum = extensive or energy == "total"
    weights = counts if is_sum else counts / counts.sum(axis=1, keepdims=True)
    return replace(
        start.with_unit(unit).with_fields(energy=energy, extensive=extensive),
        heavy_tailed=has_heavy_tails(values, weights),
        head=not (without_head or prop.is_mark),
        why=tuple(why),
    )


def _classify_energy(
    prop: Property, growth: str | None, facts: PropertyFacts
) -> tuple[str | None, list[str]]:
    """Classify a scalar as energy.

    Args:
        prop: the property.
        growth: result of ``classify_growth``.
        facts: those of the data set.

    Returns:
        ``total``, ``per_atom`` or None for no energy, and the reasons.
    """
    if prop.name in facts.recognised:
        return "total", ["a total energy: about the sum of those of its free atoms"]
    unit = find_said_unit(prop, facts)
    inner = inside(unit.name)[1] if unit else None
    is_named = is_energy(facts.strip_calculator(prop)) and find_foreign_unit(prop.name) is None
    if not is_named or inner not in (None, "eV", "eV/atom"):
        return None, []
    of_forces = facts.has_forces and parse_calculator(prop.name) in facts.calculators
    if inner == "eV/atom" and growth != "extensive":
        return "per_atom", ["its unit says per atom"]
    if is_per_atom(prop.name):
        if growth == "extensive" and not of_forces:
            return None, []
        return "per_atom", ["its name says per atom"]
    if growth == "extensive":
        return "total", ["a total energy: the composition explains it as a sum over atoms"]
    if of_forces:
        return "total", ["there are forces: taken for the total energy that they derive from"]
    if growth == "intensive" and inner is None:
        return "per_atom", ["an energy per atom: it does not grow with the structure"]
    if growth == "intensive":
        return None, ["it does not grow with the structure, and nothing says per atom"]
    if prop.name in RESULTS:
        return "total", ["ASE's results are total energies"]
    if facts.has_forces:
        return "total", ["there are forces: taken for the total energy that they derive from"]
    return None, ["an energy of structures that are alike in size: total or per atom is not known"]


def _warn(prop: Property, proposal: TargetProposal, facts: PropertyFacts) -> Iterator[str]:
    """Yield warnings about a doubtful unit, infinite values, text, and values far from all others.

    Args:
        prop: the property.
        proposal: what it is proposed to be.
        facts: those of the data set.
    """
    name = escape_line(prop.name)
    if prop.scalar:
        unit = proposal.unit.name
        recognised = facts.recognised.get(prop.name)
        if recognised is not None and inside(unit)[0] != inside(recognised)[0]:
            what = f"{name} is said to be in {unit}, but its size is that of energies in"
            yield f"{what} {recognised}: look at the card."
        counts = facts.count_atoms(prop)
        values = prop.values[prop.known, 0]
        if is_per_atom(prop.name) and classify_growth(values, counts) == "extensive":
            grows = "is named a value per atom but grows with the structure"
            yield f"{name} {grows}: look at the card."
    if prop.infinite:
        yield (
            f"{name} is infinite, or more than {LARGEST:g}, in {prop.infinite} places: up to "
            "1 % of the structures are set aside by themselves, mend more."
        )
    if texts := facts.table.texts.get(prop.name):
        yield (
            f"{name} is text in {texts.total()} structures, as "
            f"'{escape_line(min(texts))[:40]}': up to 1 % are set aside by themselves; where a "
            "value is missing, leave the cell empty."
        )
    yield from _warn_of_far(prop, name, facts if proposal.config.energy == "total" else None)


def _warn_of_far(prop: Property, name: str, facts: PropertyFacts | None) -> Iterator[str]:
    """Yield a warning about values, or lengths of vectors, that are far from all others.

    Args:
        prop: the property.
        name: its name, to be shown.
        facts: those of the data set for a total energy, which is compared per atom; else None.
    """
    if prop.scalar:
        values = compared = prop.values[prop.known, 0]
    elif prop.width in _DIRECTED:
        values = compared = _largest_sizes(prop)
    else:
        return
    if not len(values):
        return
    if facts is not None:
        compared = values / facts.count_atoms(prop).sum(axis=1)
    low, middle, high = np.quantile(compared, [0.05, 0.5, 0.95])
    away = np.abs(compared - middle)
    far = mark_far(compared)
    if prop.scalar:
        far |= away > FAR * max(high - low, float(np.std(compared)) / 2.0, 1e-12)
    if far.any():
        what = "values" if prop.scalar else "structures"
        yield (
            f"{name} has {int(far.sum())} of {len(values)} {what} far from all others"
            f"{' per atom' if facts is not None else ''} (as {values[away.argmax()]:.4g}, the "
            f"median is {np.median(values):.4g}): wrong, or a marker for missing values? 'dataset "
            "check' names them."
        )


def _find_axis(prop: Property) -> AxisConfig | None:
    """Return the axis of a spectrum of numbered columns; None where its steps are not equal."""
    points = list(prop.columns.values())
    unit = NAMES["before_axis_unit"].remove(next(iter(prop.columns)))[:20]
    axis = AxisConfig(first=points[0], last=points[-1], unit=unit or "1")
    return axis if np.allclose(axis.points(len(points)), points) else None


def _largest_sizes(prop: Property) -> Array:
    """Return the largest length of a vector, or norm of a tensor, of each structure with one."""
    lengths = np.linalg.norm(prop.values[prop.known], axis=1)
    _, first = np.unique(prop.structure[prop.known], return_index=True)  # structures are in order
    return np.asarray(np.maximum.reduceat(lengths, first)) if len(first) else lengths


NO_UNIT = UnitGuess("1", "said", "classes have none")


def _make_class(
    start: TargetProposal, classes: Iterable[str], why: Iterable[str], *, head: bool
) -> TargetProposal:
    """Return a target of several classes.

    Args:
        start: name, key and level.
        classes: names of the classes.
        why: reasons, for comments in the card.
        head: whether the first campaign predicts it.
    """
    of_classes = start.with_unit(NO_UNIT).with_fields(shape="class", classes=tuple(classes))
    return replace(of_classes, why=tuple(why), head=head)


def propose_classes(
    texts: Mapping[str, Counter[str]],
    structures: int,
    taken: Collection[str],
    offered: Mapping[str, str],
) -> list[TargetProposal]:
    """Propose to make properties that are text with few values targets of classes.

    Args:
        texts: for each property the number of structures with each text.
        structures: number of structures.
        taken: names of targets that there are already.
        offered: why some properties get no head at first.
    """
    proposals = list[TargetProposal]()
    names = set(taken)
    for key, counts in texts.items():
        known = _count_classes(counts)
        if refuse_classes(counts) is not None:
            continue
        name = make_identifier(key, "target", names)
        names.add(name)
        shown = ", ".join(f"{escape_line(text)[:40]} ({n})" for text, n in sorted(known.items()))
        start = _start_proposal(name, NO_UNIT, shown, key=key, level="graph")
        why = f"text with {len(known)} values: taken for classes; drop the target if they are none"
        reasons = (why, offered[key]) if key in offered else (why,)
        proposal = _make_class(start, sorted(known), reasons, head=key not in offered)
        proposals.append(proposal.with_fields(optional=sum(known.values()) < structures))
    return proposals


def _count_classes(counts: Counter[str]) -> Counter[str]:
    return Counter({text.strip(): n for text, n in counts.items() if text not in MISSING_CLASSES})


def refuse_classes(counts: Counter[str]) -> str | None:
    """Return why a property that is text cannot be a target of classes; None if it can be one.

    Args:
        counts: number of structures with each text.
    """
    known = _count_classes(counts)
    if len(known) == 1:
        return f"is {quote(next(iter(known)), 40)} everywhere"
    if not 2 <= len(known) <= MOST_CLASSES:
        few = f"is text with {count(len(known), 'value')}, and classes are 2 to {MOST_CLASSES}"
        return f"{few}: leave it out, or group its values"
    name, fewest = known.most_common()[-1]
    if fewest < MIN_OF_CLASS:
        held = f"is text; {quote(name, 40)} is that of {count(fewest, 'structure')} only"
        return f"{held}, each class takes {MIN_OF_CLASS}: add structures of it, or drop them"
    if not all(text.isascii() and text.isprintable() for text in known):
        return "is text, and names of classes are ASCII: rename its values"
    return None


def _explain_common(values: Array) -> Iterator[str]:
    """Yield a sentence where nearly all values are the same."""
    unique, counts = np.unique(values, return_counts=True)
    share = counts.max() / len(values)
    if len(unique) > 2 and share > COMMON:
        usual = unique[counts.argmax()]
        yield (
            f"{100 * share:.0f} % of its values are {usual:g}: always predicting that has an error "
            f"of {np.abs(values - usual).mean():.3g}, so look at the errors of the others"
        )


def _is_gap(prop: Property) -> bool:
    """Check whether a property is a gap by its name, and nowhere below 0."""
    named = NAMES["gap"].search(prop.name) is not None
    return named and prop.width == 1 and not bool((prop.values < 0.0).any())


def _describe_spread(prop: Property) -> str:
    values = prop.values[prop.known]
    if prop.width == 1:
        return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}"
    return f"components {values.min():.3g} to {values.max():.3g}"
