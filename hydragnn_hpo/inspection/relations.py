"""How properties depend on each other: one quantity twice, derivatives of an energy, sums of atoms.

Shapes: G structures, N nodes, T components, Z kinds of elements.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from hydragnn_hpo.data.name_patterns import (
    NAMES,
    is_per_atom,
    normalize_name,
    parse_calculator,
    parse_energy_kind,
)
from hydragnn_hpo.data.properties import Property
from hydragnn_hpo.inspection.element_fits import MIN_FITTED, Array, fit_elements
from hydragnn_hpo.inspection.target_proposals import TargetProposal
from hydragnn_hpo.inspection.unit_evidence import (
    UNKNOWN,
    PropertyFacts,
    UnitGuess,
    ask_unit,
    find_said_unit,
)
from hydragnn_hpo.sanitize import escape_line
from hydragnn_hpo.units import inside, is_virial

SINGLE_PRECISION = 3e-7
"""Largest relative error of a number that was stored in single precision and multiplied once."""

SAME_ENERGY = 0.999
"""Correlation beside the elements from which two total energies are one quantity twice."""

MOST_SUM_MISS = 0.01
"""Most by which values of atoms may miss a whole number as their common sum, and by which the sum
may be missed as a share of the sum of their magnitudes."""

NEAR_ZERO = 0.05
"""Root mean square of forces in eV/angstrom below which they may be what relaxations leave: the
optimizers of ASE stop there."""

DISPLACEMENT = 0.1
"""Distance in angstrom over which forces are compared with energies, as large as vibrations of
atoms at room temperature."""

LEAST_TOLD = 0.1
"""Share of the spread of energies that forces near zero must tell to be learned."""


def constant_factor(values: Array, others: Array, sizes: Array | float = 1.0) -> float | None:
    """Return the factor by which all values are multiples of others, but for rounding.

    Numbers that differ by more than the last digits with which they are written are no multiples:
    energies at 0 K and at 298 K stay apart.

    Args:
        values: of each structure or atom, [G, T] or [N, T].
        others: as many.
        sizes: numbers with which ``others`` are multiplied first, [G, 1].

    Returns:
        The factor; None where there is none, or where there are too few values to tell.
    """
    scaled = others * sizes
    square = float(np.vdot(scaled, scaled))
    spread = float(values.std())
    if len(values) < MIN_FITTED or square == 0.0 or spread == 0.0:
        return None
    factor = float(np.vdot(values, scaled)) / square
    rest = np.abs(values - factor * scaled)
    rounded = _last_digit(values) + abs(factor) * _last_digit(others) * sizes
    allowed = 0.6 * rounded + SINGLE_PRECISION * np.abs(values)
    same = (rest <= allowed).all() and np.sqrt((rest**2).mean()) <= 0.01 * spread
    return factor if same else None


def _last_digit(values: Array) -> float:
    """Return the largest power of ten, from 1 to 1e-12, of which all values are multiples."""
    for digits in range(12):
        if np.allclose(values, np.round(values, digits), rtol=1e-14, atol=0.0):
            return float(10.0**-digits)
    return 1e-12


@dataclass(frozen=True)
class RepeatKind:
    """A way in which a property is the quantity of another one over again."""

    needs: Callable[[Property, Property, Array], bool]
    """Whether the property and the other one, of structures of these sizes, may be so related."""
    check: Callable[[Array, Array, Array], float | None]
    """Returns the factor by which values follow from others, [n, T] both, and sizes, [n, 1]; None
    where they do not."""
    says: str
    """Why the property is left out, with places for the name of the other one and the factor."""

    def explain(self, name: str, factor: float) -> str:
        """Return why a property is left out that follows by a factor from the target ``name``."""
        times = "" if abs(factor - 1.0) < 1e-4 else f" times {factor:.6g}"
        return self.says.format(name=escape_line(name)[:60], times=times)


def _differ(sizes: Array) -> bool:
    # Where all structures are alike in size, every factor is both a total and a mean.
    return len(np.unique(sizes)) > 1


SAME = RepeatKind(
    lambda prop, other, sizes: True,
    lambda values, others, sizes: 1.0 if np.allclose(values, others, 1e-9, 1e-12) else None,
    "has the same numbers as {name}",
)
TOTAL = RepeatKind(
    lambda prop, other, sizes: prop.scalar and (_differ(sizes) or is_per_atom(other.name)),
    constant_factor,
    "is {name} times the number of atoms{times}: one quantity, and {name} is the target",
)
MEAN = RepeatKind(
    lambda prop, other, sizes: prop.scalar and (_differ(sizes) or is_per_atom(prop.name)),
    lambda values, others, sizes: (mean := constant_factor(others, values, sizes)) and 1.0 / mean,
    "is {name} per atom{times}: one quantity, and {name} is the target",
)
MULTIPLE = RepeatKind(
    lambda prop, other, sizes: True,
    lambda values, others, sizes: constant_factor(values, others),
    "is {name}{times}: one quantity, and {name} is the target",
)
REPEATS = (SAME, TOTAL, MEAN, MULTIPLE)
"""All ways; the first that fits counts."""


def relate(prop: Property, other: Property, sizes: Array) -> tuple[RepeatKind, float] | None:
    """Return how a property follows from another one; None if it does not.

    Args:
        prop: the property.
        other: the other one.
        sizes: number of atoms of each structure, [G].

    Returns:
        The first kind of ``REPEATS`` that fits, and its factor.
    """
    alike = (
        prop.level == other.level
        and prop.values.shape == other.values.shape
        and np.array_equal(prop.structure, other.structure)
        and np.array_equal(prop.known, other.known)
    )
    if not alike:
        return None
    known = prop.known
    of_known = sizes[prop.structure[known], None]
    for kind in REPEATS:
        if kind.needs(prop, other, of_known):
            factor = kind.check(prop.values[known], other.values[known], of_known)
            if factor is not None:
                return kind, factor
    return None


def explain_repeats(
    properties: Sequence[Property], kept: Collection[str], facts: PropertyFacts
) -> dict[str, str]:
    """Return why properties are the same quantity as another one, by name.

    Of two the total energy stays, else the one whose unit is known, else the first one.

    Args:
        properties: properties that can be targets.
        kept: names of those that stay even if they repeat another one.
        facts: those of the data set.

    Returns:
        Reason by name of a property, to be read after that name.
    """

    def rank(prop: Property) -> tuple[int, bool, bool]:
        known = find_said_unit(prop, facts) is not None
        return facts.rank_dependence(prop), is_per_atom(prop.name), not known

    sizes = facts.elements[0].sum(axis=1)
    reasons: dict[str, str] = {}
    chosen: list[Property] = []
    for prop in sorted(properties, key=rank):
        pairs = ((other, relate(prop, other, sizes)) for other in chosen)
        other, relation = next(((o, r) for o, r in pairs if r is not None), (prop, None))
        if relation is None or prop.name in kept:
            chosen.append(prop)
            continue
        kind, factor = relation
        energy = 0 in (facts.rank_dependence(prop), facts.rank_dependence(other))
        if kind is TOTAL and energy and other.name not in kept:
            chosen[chosen.index(other)] = prop
            reasons[other.name] = MEAN.explain(prop.name, 1.0 / factor)
        else:
            reasons[prop.name] = kind.explain(other.name, factor)
    return reasons


def drop_equal_totals(
    targets: Sequence[TargetProposal], facts: PropertyFacts
) -> Iterator[TargetProposal]:
    """Yield the targets; total energies that tell the same as an earlier one have no head.

    Those are energies with other corrections, as at 0 K and at 298 K: beside what the elements
    explain, one is nearly the other.
    """
    chosen: list[TargetProposal] = []
    for target in targets:
        is_total = target.head and (target.config.energy == "total" or target.config.extensive)
        equal = (t for t in chosen if is_total and _are_equal_totals(t, target, facts))
        if (first := next(equal, None)) is not None:
            why = f"nearly {first.name} beside what the elements explain: a second set of it"
            target = target.without_head(why)
        elif is_total:
            chosen.append(target)
        yield target


def _are_equal_totals(first: TargetProposal, second: TargetProposal, facts: PropertyFacts) -> bool:
    """Check whether two energies differ by little but what the elements explain."""
    one, other = (facts.table.numbers[target.key] for target in (first, second))
    common, *places = np.intersect1d(one.structure, other.structure, return_indices=True)
    values = np.hstack([one.values[places[0]], other.values[places[1]]])
    rows = np.isfinite(values).all(axis=1)
    counts = facts.elements[0][common[rows]]
    rest = values[rows] - counts @ np.linalg.lstsq(counts, values[rows], rcond=None)[0]
    if rows.sum() < max(MIN_FITTED, 2 * counts.shape[1]) or not rest.std(axis=0).all():
        return False
    return float(np.corrcoef(rest.T).min()) > SAME_ENERGY


def keep_one_calculator(targets: Sequence[TargetProposal]) -> Iterator[TargetProposal]:
    """Yield targets, without heads for second sets of a quantity, as of another calculator.

    The first by rank is predicted: one of no other model, plain names with forces, then that of a
    reference, then another one with forces.
    """
    calculators = _find_calculators(targets)
    with_forces = {t.config.derived_from for t in targets if t.config.level == "node"} - {None}
    sets: dict[tuple[str, ...], list[TargetProposal]] = {}
    for target in targets:
        quantity = _name_quantity(target, calculators)
        if quantity is not None:
            # Without forces a free energy may be another quantity, as of molecules at 298 K.
            quantity = quantity.replace(" free", "") if with_forces else quantity
            kind = (quantity, target.config.level, target.config.shape)
            sets.setdefault(kind, []).append(target)

    def rank(target: TargetProposal) -> tuple[bool, bool, bool, bool]:
        with_them = {target.name, target.config.derived_from} & with_forces
        return (
            bool(NAMES["models"].search(target.key)),
            not with_them or bool(parse_calculator(target.key)),
            not NAMES["references"].search(target.key),
            not with_them,
        )

    chosen = {target.name: min(alike, key=rank) for alike in sets.values() for target in alike}
    for target in targets:
        first = chosen.get(target.name, target)
        derived_from = target.config.derived_from
        energy = chosen.get(derived_from or "")
        if first is not target:
            why = f"a second set of {first.name}, which is predicted: uncomment one of them"
            target = target.without_head(why)
        elif energy is not None and energy.name != derived_from:
            target = target.without_head(f"of {derived_from}, a second set of {energy.name}")
        yield target


def _find_calculators(targets: Sequence[TargetProposal]) -> set[str]:
    """Return the calculators in the names of targets: those known, and those of two quantities."""
    quantities: dict[str, set[str]] = {}
    for target in targets:
        config = target.config
        if config.energy is not None or config.derived_from or "force" in target.key.lower():
            calculator = parse_calculator(target.key)
            quantities.setdefault(calculator, set()).add(f"{config.level} {config.shape}")
    return {
        name
        for name, of_it in quantities.items()
        if len(of_it) > 1
        or NAMES["references"].search(name)
        or NAMES["models"].search(name)
        or not name
    }


def _name_quantity(target: TargetProposal, calculators: Set[str]) -> str | None:
    """Return the name of a quantity without its calculator; None where it names an unknown one."""
    name = normalize_name(target.key)
    if target.config.energy is not None:
        known = parse_calculator(name) in calculators
        return (
            f"{target.config.energy} energy {parse_energy_kind(name)}".rstrip() if known else None
        )
    if target.config.derived_from or "force" in name:
        return "derivative" if parse_calculator(name) in calculators else None
    for calculator in sorted(calculators - {""}, key=len, reverse=True):
        for without in (name.removeprefix(f"{calculator}_"), name.removesuffix(f"_{calculator}")):
            if without != name:
                return without
    return name


LEFT_TO_USER = "left to you: signs and units of stress differ between programs, and it costs time"
"""Reason why a stress gets no head."""


@dataclass(frozen=True)
class DerivativeKind:
    """A way in which a property is the derivative of an energy."""

    applies: Callable[[Property, str], bool]
    """Whether it is that of a property in a unit."""
    says: str
    """What the property is, with a place for the name of the energy."""


DERIVATIVES = (
    DerivativeKind(lambda prop, unit: prop.is_forces, "minus the gradient of {}"),
    DerivativeKind(
        lambda prop, unit: is_virial(unit),
        "the strain derivative of {}: stress = -virial / volume",
    ),
    DerivativeKind(
        lambda prop, unit: prop.is_stress,
        "the strain derivative of {}, positive when tensile, as in ASE",
    ),
)
"""All ways; the first that applies counts."""


def derive(
    start: TargetProposal, prop: Property, targets: Sequence[TargetProposal], facts: PropertyFacts
) -> TargetProposal | str:
    """Return forces or a stress as the derivative of an energy, or a reason to leave them out.

    Args:
        start: the target so far.
        prop: its property.
        targets: those before it, with all energies.
        facts: those of the data set.
    """
    energy = find_energy(start.key, targets, facts.calculators)
    if isinstance(energy, str):
        return start.without_head(energy) if prop.is_forces else f"needs an energy: {energy}"
    reasons: list[str] = []
    if prop.is_forces:
        doubt = explain_near_zero(prop, start.unit, energy, facts)
    else:
        doubt = LEFT_TO_USER
        crystals = [atoms.pbc.all() for atoms in facts.structures]
        if not any(crystals):
            return "needs three periodic directions"
        if not all(crystals):
            reasons.append("structures without three periodic directions lack it")
        start = start.with_unit(_say_strain(start.unit)).with_fields(optional=bool(reasons))
    kind = next(kind for kind in DERIVATIVES if kind.applies(prop, start.unit.name))
    reasons.insert(0, kind.says.format(energy.name))
    if energy.unit.name not in ("eV", "eV/atom") and start.unit.sure == "guessed":
        if prop.is_stress:
            return f"is in an unknown unit, beside an energy in {energy.unit.name}"
        energies = energy.unit.choices or (energy.unit.name,)
        above = dict.fromkeys(unit.removesuffix("/atom") for unit in energies)
        choices = [f"{unit}/{length}" for unit in above for length in ("angstrom", "bohr")]
        start = start.with_unit(ask_unit(start.key, "forces in no unit that is said", choices))
    start = replace(start.with_fields(derived_from=energy.name), why=tuple(reasons))
    return start if doubt is None else start.without_head(doubt)


def _say_strain(unit: UnitGuess) -> UnitGuess:
    """Return the unit of a stress or a virial as a card spells it."""
    if unit.name == UNKNOWN:
        return unit
    kind = "(stress)" if unit.name in ("GPa", "kbar") else ""
    kind = "(virial)" if inside(unit.name)[1] == "eV" else kind
    return replace(unit, name=unit.name + kind)


def find_energy(
    name: str, targets: Sequence[TargetProposal], calculators: Set[str]
) -> TargetProposal | str:
    """Return the energy of the calculator of forces or a stress, or why there is none.

    Those of the same calculator go first, and of them total energies before those per atom.

    Args:
        name: name of the forces or the stress.
        targets: those known.
        calculators: those of forces and stresses.
    """
    known = [target for target in targets if target.config.energy is not None]
    totals = [target for target in known if target.config.energy == "total"] or known
    calculator = parse_calculator(name)
    # ASE's forces are consistent with the free energy.
    order = ("free", "")
    named = [target for target in known if parse_calculator(target.key) == calculator]
    of_it = [target for target in named if target.config.energy == "total"] or named
    kinds = [parse_energy_kind(target.key) for target in of_it]
    if of_it:
        return of_it[next((kinds.index(kind) for kind in order if kind in kinds), 0)]
    if not totals:
        return "no energy was found that they could be derived from"
    other = parse_calculator(totals[0].key)
    if not (calculator or totals[1:] or other in calculators or NAMES["models"].search(other)):
        return totals[0]
    listed = ", ".join(target.name for target in totals)
    return f"there is no energy of their calculator, only {listed}"


def measure_told_share(forces: Array, energies: Array, fractions: Array) -> float:
    """Return the share of the spread of energies that forces tell.

    That is ``DISPLACEMENT * sqrt(mean(|F|^2)) / std(e - sum_Z c_Z x_Z)``, with the least squares
    coefficients ``c_Z`` of the elements: the change of the energy of an atom that moves along its
    force, over the spread of the energies per atom that the composition leaves. Small displacements
    have small forces and energies nearly alike, strained crystals small forces and energies that
    differ.

    Args:
        forces: F, in eV/angstrom, [N, 3].
        energies: e, in eV/atom, [G].
        fractions: share x_Z of each element in the atoms, [G, Z].

    Returns:
        Infinity where the elements tell all energies.
    """
    spread = float((energies - fractions @ fit_elements(energies, fractions)).std())
    size = float(np.sqrt((forces**2).sum(axis=1).mean()))
    return DISPLACEMENT * size / spread if spread > 0.0 else math.inf


def explain_near_zero(
    prop: Property, unit: UnitGuess, energy: TargetProposal, facts: PropertyFacts
) -> str | None:
    """Return why forces near zero get no head, by ``measure_told_share``; None for others.

    Args:
        prop: the forces.
        unit: their unit.
        energy: the energy that they are derived from.
        facts: those of the data set.
    """
    guessed = unit.sure == "guessed" and not facts.in_ase_units
    if guessed or UNKNOWN in (unit.name, energy.unit.name):
        return None
    forces = prop.values[prop.known] * inside(unit.name)[0]
    size = float(np.sqrt((forces**2).sum(axis=1).mean())) if len(forces) else math.inf
    of_it = facts.table.numbers[energy.key]
    structure = of_it.structure[of_it.known]
    if not size < NEAR_ZERO or not len(structure):
        return None
    counts = facts.count_atoms(of_it)
    sizes = counts.sum(axis=1)
    energies = of_it.values[of_it.known, 0] * inside(energy.unit.name)[0]
    energies = energies / sizes if energy.config.energy == "total" else energies
    share = measure_told_share(forces, energies, counts / sizes[:, None])
    if share >= LEAST_TOLD:
        return None
    return (
        f"next to zero ({size:.1g} eV/angstrom): over {DISPLACEMENT:g} angstrom they tell "
        f"{100 * share:.1g} % of what the energies differ by beyond their elements, so that "
        "learning them would cost the energy; uncomment the head if you want them"
    )


def find_common_sum(prop: Property) -> float | None:
    """Return the whole number to which the values of every structure sum, as charges do to 0.

    Returns:
        None where there is none, where values are missing or all equal, and where structures are
        too few.
    """
    if not prop.known.all() or prop.present < MIN_FITTED or prop.constant:
        return None
    values = prop.values[:, 0]
    sums = np.bincount(prop.structure, weights=values)
    sizes = np.bincount(prop.structure, weights=np.abs(values))
    has_it = np.isin(np.arange(len(sums)), prop.structure)
    total = round(float(sums[has_it].mean()))
    allowed = MOST_SUM_MISS * np.minimum(1.0, sizes[has_it].mean())
    fits = bool((np.abs(sums[has_it] - total) <= allowed).all())
    return float(total) if fits else None
