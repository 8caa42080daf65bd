"""What speaks for the unit of a property: who says it, what values show, what is usual.

Shapes: G structures, Z kinds of elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.name_patterns import (
    NAMES,
    USUAL_UNITS,
    find_suffix,
    is_energy,
    is_per_atom,
    normalize_name,
    parse_calculator,
)
from hydragnn_hpo.data.properties import Property, PropertyTable, explain_rejection
from hydragnn_hpo.inspection.element_fits import Array, count_elements
from hydragnn_hpo.inspection.free_atoms import recognise_total_energy
from hydragnn_hpo.sanitize import escape_line
from hydragnn_hpo.units import inside, interpret_unit

UNKNOWN = "?"
"""Unit in a card that the user has to replace; ``CardConfig`` refuses it."""

RESULTS = ("energy", "free_energy", "forces", "stress", "charges", "magmoms", "dipole", "magmom")
"""Names of the results of ASE's calculators, which are in eV, angstrom, e and muB."""

_ASE_READERS = ("extxyz", "database", "ase_file")
"""Names of readers whose files are in ASE's units by convention."""


@dataclass(frozen=True)
class UnitGuess:
    """A unit, and how certain it is."""

    name: str
    """The unit, as in a card."""
    sure: Literal["said", "recognised", "guessed", "unknown"]
    """``said``: by the user, the file or the property's name; ``recognised``: by values;
    ``guessed``: by what is usual; ``unknown``: values stay as they are, or the user is asked."""
    why: str
    """The reason, for a comment in the card."""
    choices: tuple[str, ...] = ()
    """Units to choose from, where the user is asked."""


NO_GUESS = UnitGuess("1", "unknown", "nothing says it: numbers stay as they are in the file")


def ask_unit(name: str, why: str, choices: Sequence[str]) -> UnitGuess:
    """Return a unit that the user has to write before anything is trained.

    Args:
        name: name of the property.
        why: why it is not known, in a few words.
        choices: units to choose from.
    """
    name = escape_line(name)[:60]
    how = f"write it, or give --unit '{name}={choices[0]}'"
    return UnitGuess(UNKNOWN, "unknown", f"{why}: {how}", tuple(choices))


SHORT_UNITS = {"D": ("debye", "dipoles"), "K": ("K", "temperatures")}
"""Units of one letter at the end of names, and the key in ``USUAL_UNITS`` of what has them."""


def find_foreign_unit(name: str) -> str | None:
    """Return the unit at the end of a name that is none of those known here; None without one."""
    ending = NAMES["foreign_unit"].search(name)
    return ending[0].strip(" _[]()/-") if ending else None


def parse_unit(name: str) -> str | None:
    """Return the unit at the end of a name, as in ``gap_ev`` or ``mu (D)``; None without one."""
    if find_foreign_unit(name) is not None:
        return None
    if last := NAMES["last_word"].search(name):
        short, quantity = SHORT_UNITS.get(last[1], ("", ""))
        if short and USUAL_UNITS[quantity].search(name[: last.start()]):
            return short
    if bracket := NAMES["unit_in_brackets"].search(name):
        unit = interpret_unit(bracket[1])
        if unit not in (None, "1"):
            return unit
    return find_suffix(name)


def guess_unit(name: str, *, per_atom: bool = False, result: bool = False) -> UnitGuess:
    """Guess the unit of a scalar property by its name.

    Args:
        name: name of the property.
        per_atom: whether it is an energy per atom, whatever its name.
        result: whether it is a result of ASE's calculators.
    """
    if unit := parse_unit(name):
        return UnitGuess(unit, "said", f"the name ends in it: {unit}")
    if is_energy(name):
        per_atom = per_atom or is_per_atom(name)
        usual = "energies per atom" if per_atom else "energies in files of structures"
        unit = "eV/atom" if per_atom else "eV"
        return UnitGuess(unit, "guessed", "ASE's unit" if result else f"usual for {usual}")
    for quantity in USUAL_UNITS.values():
        if quantity.search(name):
            per = "/atom" if quantity.unit == "muB" and is_per_atom(name) else ""
            return UnitGuess(quantity.unit + per, "guessed", f"usual for {quantity.says}")
    return NO_GUESS


LEVEL_UNITS = ("eV", "meV", "Hartree", "Rydberg", "kcal/mol", "kJ/mol")
"""Units that levels and gaps of electrons may have."""

MIN_VALUES = 3
"""Smallest number of values whose median says something."""

NONMETALS = (1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 33, 34, 35, 36, 52, 53, 54)
"""Atomic numbers of elements whose molecules have gaps."""


@dataclass(frozen=True)
class LevelRange:
    """Possible sizes of a kind of level in molecules, in eV."""

    key: str
    """Key in ``NAMES`` of the pattern of its names."""
    low: float
    """Smallest possible median of the magnitudes."""
    high: float
    """Largest possible value of 95 % of the magnitudes."""
    nonmetals: bool = False
    """Whether ``low`` is that of molecules without metals."""
    periodic: bool = False
    """Whether ``high`` is that of crystals as well."""


LEVEL_RANGES = (
    # Between singlets and triplets, or spins, gaps can be as small as they like.
    LevelRange("gaps_of_spins", 0.0, 26.0),
    # Dyes and polymers have gaps of 1 eV; helium has an excitation energy of 21 eV.
    LevelRange("gaps", 0.5, 26.0, nonmetals=True, periodic=True),
    # From the clusters of alkali metals, 2 to 4 eV, to helium, 24.6 eV.
    LevelRange("filled_levels", 2.0, 26.0),
    # Levels of small basis sets lie up to 0.6 Hartree above the vacuum.
    LevelRange("empty_levels", 0.0, 20.0),
    # Against the vacuum or the mean potential, which moves them by a few tens of eV at most.
    LevelRange("bulk_levels", 0.0, 40.0, periodic=True),
)
"""Ranges of levels; the first that matches a name counts. Others, such as all eigenvalues, have
none: those of cores lie hundreds of eV deep."""


def find_possible_units(prop: Property, structures: Sequence[Atoms]) -> tuple[str, ...] | None:
    """Return the units of ``LEVEL_UNITS`` in which a level or gap of electrons has a possible size.

    Args:
        prop: the property, of structures.
        structures: all structures.

    Returns:
        None where no range is known: for several numbers, and names without one.
    """
    allowed = next((one for one in LEVEL_RANGES if NAMES[one.key].search(prop.name)), None)
    if allowed is None or not prop.scalar:
        return None
    known = np.flatnonzero(prop.known)
    sizes = np.abs(prop.values[known, 0])
    owners = [structures[prop.structure[row]] for row in known]
    molecules = np.array([not atoms.pbc.any() for atoms in owners], dtype=bool)
    typical = molecules
    if allowed.nonmetals and len(owners):
        owner = np.repeat(np.arange(len(owners)), [len(atoms) for atoms in owners])
        is_metal = ~np.isin(np.concatenate([atoms.numbers for atoms in owners]), NONMETALS)
        typical = molecules & (np.bincount(owner, weights=is_metal, minlength=len(owners)) == 0)
    bounded = np.ones_like(molecules) if allowed.periodic else molecules
    low = float(np.median(sizes[typical])) if typical.sum() >= MIN_VALUES else np.inf
    high = float(np.quantile(sizes[bounded], 0.95)) if bounded.sum() >= MIN_VALUES else 0.0

    def is_possible(unit: str) -> bool:
        return low * inside(unit)[0] >= allowed.low and high * inside(unit)[0] <= allowed.high

    return tuple(filter(is_possible, LEVEL_UNITS))


@dataclass(frozen=True)
class PropertyFacts:
    """What all properties of a data set tell together, before any of them is judged."""

    structures: Sequence[Atoms]
    """The structures that were read."""
    table: PropertyTable
    """Their properties."""
    reader: str
    """Name of their reader, or ``several``."""
    units: Mapping[str, str]
    """Units from the user, by name of a property."""
    stated: Mapping[str, str]
    """Units that the file states, in any spelling, by name of a property."""

    @cached_property
    def has_forces(self) -> bool:
        """Whether there are forces that can be a target."""
        forces = (prop for prop in self.table.numbers.values() if prop.is_forces)
        return any(explain_rejection(prop) is None for prop in forces)

    @cached_property
    def calculators(self) -> set[str]:
        """Calculators in the names of forces and stresses."""
        properties = self.table.numbers.values()
        return {parse_calculator(p.name) for p in properties if p.is_forces or p.is_stress}

    @cached_property
    def are_molecules(self) -> bool:
        """Whether no structure is periodic."""
        return not any(atoms.pbc.any() for atoms in self.structures)

    @cached_property
    def elements(self) -> tuple[Array, list[int]]:
        """The elements of all structures.

        Returns:
            Atoms of each element, [G, Z], and the atomic numbers, [Z].
        """
        return count_elements([atoms.numbers for atoms in self.structures])

    def count_atoms(self, prop: Property) -> Array:
        """Return the atoms of each element, [G, Z], of the structures with known values."""
        return self.elements[0][prop.structure[prop.known]]

    @cached_property
    def recognised(self) -> Mapping[str, str]:
        """Units of the total energies whose values are near those of free atoms, by name."""
        units = {}
        for name, prop in self.table.numbers.items():
            if prop.scalar and not is_per_atom(name) and prop.known.any():
                values = prop.values[prop.known, 0]
                unit = recognise_total_energy(values, self.count_atoms(prop), self.elements[1])
                if unit is not None:
                    units[name] = unit
        return units

    @cached_property
    def in_ase_units(self) -> bool:
        """Whether ASE's units are the convention, and no total energy shows another one."""
        return self.reader in _ASE_READERS and set(self.recognised.values()) <= {"eV"}

    @cached_property
    def possible_of_all(self) -> set[str]:
        """Units in which all levels and gaps whose unit nothing says have possible sizes."""
        units = set(LEVEL_UNITS)
        for prop in self.table.numbers.values():
            declared = find_said_unit(prop, self) or prop.name in self.stated
            if is_level(prop, self) and not declared:
                units &= set(find_possible_units(prop, self.structures) or LEVEL_UNITS)
        return units

    @cached_property
    def units_beside(self) -> Sequence[tuple[str, str]]:
        """Names and units of levels that say theirs, and of total energies that are recognised."""
        levels = [prop for prop in self.table.numbers.values() if is_level(prop, self)]
        declared = ((prop.name, find_said_unit(prop, self)) for prop in levels)
        return [*((name, unit.name) for name, unit in declared if unit), *self.recognised.items()]

    def strip_calculator(self, prop: Property) -> str:
        """Return a name without its calculator if that has forces, so that GAP is no band gap."""
        calculator = parse_calculator(prop.name)
        known = calculator in self.calculators and NAMES["potential"].search(prop.name)
        stripped = normalize_name(prop.name).replace(calculator, "")
        return stripped if calculator and known else prop.name

    def rank_dependence(self, prop: Property) -> int:
        """Return the rank of a property: 0 for energies, 1 for their derivatives, 2 for others."""
        if prop.scalar and is_energy(self.strip_calculator(prop)):
            return 0
        return 1 if prop.is_forces or prop.is_stress else 2


def is_level(prop: Property, facts: PropertyFacts) -> bool:
    """Check by its name whether a property of structures is a level or gap of electrons."""
    name = facts.strip_calculator(prop)
    named = USUAL_UNITS["levels"].search(name) and not NAMES["of_gap_potential"].search(name)
    return prop.level == "graph" and bool(named)


def _judge_level(prop: Property, facts: PropertyFacts, guess: UnitGuess) -> UnitGuess:
    """Judge the guessed unit of a level or gap by possible sizes and by what stands beside it."""
    known = find_possible_units(prop, facts.structures)
    possible = LEVEL_UNITS if known is None else known
    possible = tuple(unit for unit in possible if unit in facts.possible_of_all) or possible
    for name, unit in facts.units_beside:
        if name != prop.name and unit in possible:
            why = f"as {escape_line(name)[:60]} beside it"
            by_name = name not in {*facts.recognised, *facts.units, *facts.stated}
            in_doubt = known is None or (by_name and guess.name in possible)
            return UnitGuess(unit, "guessed" if in_doubt else "recognised", why)
    if guess.name in possible:
        return guess
    middle = float(np.median(np.abs(prop.values[prop.known])))
    why = f"not {guess.name}, as a median of {middle:.3g} {guess.name} is impossible"
    return ask_unit(prop.name, why, possible or LEVEL_UNITS)


def _judge_dipole(prop: Property, facts: PropertyFacts, guess: UnitGuess) -> UnitGuess:
    """Ask for the unit of dipoles of molecules, but where ASE's is the convention."""
    if normalize_name(prop.name) == "mu" and not facts.are_molecules:
        return NO_GUESS
    if facts.in_ase_units or not facts.are_molecules:
        return guess
    why = "debye or e*angstrom is not known"
    return ask_unit(prop.name, why, ("debye", "e*angstrom", "e*bohr"))


def _usual_of_derivative(prop: Property) -> str | None:
    """Return ASE's unit of forces, a stress or a virial; None for others."""
    if prop.is_forces:
        return "eV/angstrom"
    if not prop.is_stress:
        return None
    return "eV(virial)" if "virial" in normalize_name(prop.name) else "eV/angstrom^3"


def _find_users(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    unit = facts.units.get(prop.name)
    return UnitGuess(unit, "said", "you said so") if unit is not None else None


def _find_stated(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    text = facts.stated.get(prop.name)
    unit = interpret_unit(text) if text is not None else None
    shown = escape_line(text or "")[:40]
    return UnitGuess(unit, "said", f"the file states it: {shown}") if unit else None


def _find_named(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    unit = parse_unit(prop.name) if prop.name not in facts.stated else None
    return UnitGuess(unit, "said", f"the name ends in it: {unit}") if unit else None


def _find_foreign(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    unit = find_foreign_unit(prop.name) if prop.name not in facts.stated else None
    why = f"the name ends in {unit}, which is no unit known here: numbers stay as in the file"
    return UnitGuess("1", "unknown", why) if unit is not None else None


def _find_recognised(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    unit = facts.recognised.get(prop.name)
    why = "as it is near the energies of free atoms in it"
    return UnitGuess(unit, "recognised", why) if unit is not None else None


def _find_not_understood(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess | None:
    if prop.name not in facts.stated:
        return None
    text = escape_line(facts.stated[prop.name])[:40]
    why = f"the file states '{text}', which is no unit known here"
    if usual := _usual_of_derivative(prop):
        return ask_unit(prop.name, why, [usual])
    return UnitGuess("1", "unknown", f"{why}: numbers stay as they are in the file")


def _find_usual(prop: Property, facts: PropertyFacts, per_atom: bool) -> UnitGuess:
    if usual := _usual_of_derivative(prop):
        return UnitGuess(usual, "guessed", "ASE's unit")
    result = prop.name in RESULTS and facts.in_ase_units
    guess = guess_unit(facts.strip_calculator(prop), per_atom=per_atom, result=result)
    if guess.name == "eV" and is_level(prop, facts):
        return _judge_level(prop, facts, guess)
    return _judge_dipole(prop, facts, guess) if guess.name == "e*angstrom" else guess


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of evidence for a unit."""

    says: str
    """What the evidence is, in words."""
    find: Callable[[Property, PropertyFacts, bool], UnitGuess | None]
    """Returns the unit of a property, which may be known to be an energy per atom; None without
    such evidence."""


SAID = (
    EvidenceKind("the user said it", _find_users),
    EvidenceKind("the file states it, and it is a unit known here", _find_stated),
    EvidenceKind("the name ends in it", _find_named),
)
"""Evidence that leaves no doubt, by rank."""

EVIDENCE = (
    *SAID,
    EvidenceKind("the name ends in a unit that is not known here", _find_foreign),
    EvidenceKind("values are near the energies of free atoms", _find_recognised),
    EvidenceKind("the file states what is no unit known here", _find_not_understood),
    EvidenceKind("it is usual for the quantity, and possible; else it is unknown", _find_usual),
)
"""All evidence for units by rank: the first that is found decides."""


def find_said_unit(prop: Property, facts: PropertyFacts) -> UnitGuess | None:
    """Return the unit that the user, the file or a name says; None without one."""
    units = (kind.find(prop, facts, False) for kind in SAID)
    return next((unit for unit in units if unit is not None), None)


def find_unit(prop: Property, facts: PropertyFacts, *, per_atom: bool = False) -> UnitGuess:
    """Return the unit of a property by the evidence of the highest rank.

    Args:
        prop: the property.
        facts: those of the data set.
        per_atom: whether it is an energy per atom, whatever its name.
    """
    units = (kind.find(prop, facts, per_atom) for kind in EVIDENCE)
    return next(unit for unit in units if unit is not None)


def find_energy_unit(prop: Property, facts: PropertyFacts, energy: str | None) -> UnitGuess:
    """Return the unit of a number of structures; a guess about energies is not enough.

    Args:
        prop: the property.
        facts: those of the data set.
        energy: ``total`` or ``per_atom``; None if it is no energy.
    """
    unit = find_unit(prop, facts, per_atom=energy == "per_atom")
    per_atom = "/atom" if energy == "per_atom" else ""
    is_said = unit.sure == "said" and not is_per_atom(prop.name)
    if per_atom and not (is_said or prop.name in facts.units) and inside(unit.name)[1] == "eV":
        unit = replace(unit, name=f"{unit.name}/atom")
    in_doubt = energy == "total" or (facts.are_molecules and is_energy(prop.name))
    must_ask = unit.sure == "guessed" and in_doubt and not facts.in_ase_units
    if must_ask or (energy is not None and unit.sure == "unknown"):
        why = "an energy, but not in which unit" if must_ask else unit.why
        return ask_unit(prop.name, why, [f"{choice}{per_atom}" for choice in LEVEL_UNITS])
    return unit
