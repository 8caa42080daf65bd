"""Which properties look like targets, of which kind, in which unit; each judgement with its reason.

Shapes: G structures, N atoms, Z kinds of elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.look.energies import all_electron_unit, counts_of, growth
from hydragnn_hpo.data.look.files import plain
from hydragnn_hpo.data.look.kinds import are_forces, is_attribute, is_stress, slug, useless
from hydragnn_hpo.data.look.properties import Found, Property
from hydragnn_hpo.data.look.units import (
    UNKNOWN,
    Unit,
    is_energy,
    said_unit,
    says_per_atom,
    unit_of,
)
from hydragnn_hpo.data.structure import LARGEST
from hydragnn_hpo.units import inside

MOST_HEADS = 8
"""Targets that get a head at first."""

_ASE_FILES = ("extxyz", "database", "ase_file")
"""Readers of files that are in ASE's units by convention."""


@dataclass(frozen=True)
class Proposal:
    """A target that a card would have."""

    name: str
    key: str
    level: str
    shape: str
    unit: Unit
    energy: str | None = None
    derived_from: str | None = None
    optional: bool = False
    extensive: bool = False
    """Whether it grows with the structure and is no energy."""
    head: bool = True
    """Whether the first campaign predicts it."""
    why: tuple[str, ...] = ()
    spread: str = ""
    """Its values in words."""


@dataclass(frozen=True)
class Judged:
    """What became of all properties."""

    targets: tuple[Proposal, ...]
    attributes: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names and reasons."""
    warnings: tuple[str, ...]


@dataclass
class _Judge:
    """What judgements need, and what comes of them."""

    structures: Sequence[Atoms]
    reader: str
    units: Mapping[str, str]
    forced: Sequence[str]
    has_forces: bool
    counts: NDArray[np.float64]
    kinds: list[int]
    targets: list[Proposal] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def judged(
    structures: Sequence[Atoms],
    found: Found,
    *,
    reader: str,
    units: Mapping[str, str],
    forced: Sequence[str] = (),
) -> Judged:
    """Judge every property.

    Args:
        structures: those that were read.
        found: their properties.
        reader: how they were read.
        units: of properties, as a person says.
        forced: properties that a card must have, because they have no names in the file.

    Raises:
        ConfigError: a person's unit is not known.
    """
    counts, kinds = counts_of([atoms.numbers for atoms in structures])
    forces = any(are_forces(one) for one in found.numbers.values())
    judge = _Judge(structures, reader, units, forced, forces, counts, kinds)
    for unit in units.values():
        inside(unit)
    judge.left_out += [(name, why) for name, why in found.odd.items()]
    for one in _in_order(found.numbers.values()):
        _enter(judge, one, found)
    _limit_heads(judge)
    return Judged(
        tuple(judge.targets),
        tuple(judge.attributes),
        tuple(judge.left_out),
        tuple(judge.warnings),
    )


def _in_order(properties: object) -> list[Property]:
    """Put energies first, then what is derived from them, then the others as in the file."""

    def place(one: Property) -> int:
        if one.level == "graph" and one.width == 1 and is_energy(one.name):
            return 0
        return 1 if are_forces(one) or is_stress(one) else 2

    return sorted(properties, key=place)  # type: ignore[call-overload,no-any-return]


def _enter(judge: _Judge, one: Property, found: Found) -> None:
    """Make a property a target or an attribute, or leave it out with a reason."""
    forced = one.name in judge.forced
    why = None if forced else useless(one)
    if why is None and not forced and is_attribute(one):
        if one.present == len(judge.structures) and one.known.all():
            judge.attributes.append(one.name)
        else:
            judge.left_out.append((one.name, "is a known property that some structures lack"))
        return
    if why is None and not forced:
        why = _copy_of(judge, one, found)
    proposal = _proposal(judge, one) if why is None else None
    if proposal is None:
        if why is not None:
            judge.left_out.append((one.name, why))
        return
    _warn(judge, one, found)
    lacking = one.present < len(judge.structures) or bool(one.missing)
    share = 100.0 * (1.0 - _share(judge, one))
    why_optional = (f"missing in {share:.3g} % of what was read",) if lacking else ()
    judge.targets.append(
        replace(
            proposal,
            name=_free(judge, one.name),
            optional=lacking,
            why=(*proposal.why, *why_optional),
            spread=_spread(one),
            head=proposal.head and not one.constant,
        )
    )


def _share(judge: _Judge, one: Property) -> float:
    """Give the part of the structures, or of atoms, that have a value."""
    there = one.present / len(judge.structures)
    return there * (1.0 - one.missing / max(len(one.values), 1))


def _copy_of(judge: _Judge, one: Property, found: Found) -> str | None:
    """Name a target that has the same numbers."""
    for target in judge.targets:
        other = found.numbers[target.key]
        alike = other.level == one.level and other.values.shape == one.values.shape
        if alike and np.allclose(other.values, one.values, rtol=1e-9, atol=1e-12, equal_nan=True):
            return f"has the same numbers as {plain(target.key)}"
    return None


def _proposal(judge: _Judge, one: Property) -> Proposal | None:
    """Make a target of a property; its name, and whether it is optional, come later."""
    if are_forces(one):
        return _forces(judge, one)
    if is_stress(one):
        return _stress(judge, one)
    if one.level == "graph":
        return _of_structure(judge, one)
    unit = _unit(judge, one)
    if one.width == 1:
        return Proposal("", one.name, "node", "scalar", unit)
    why = ("a vector of its own: only convs that see directions can predict it",)
    return Proposal("", one.name, "node", "vector", unit, why=why, head=False)


def _unit(judge: _Judge, one: Property, *, per_atom: bool = False) -> Unit:
    if one.name in judge.units:
        return Unit(judge.units[one.name], "said", "you said so")
    result = one.result and judge.reader in _ASE_FILES
    return unit_of(one.name, per_atom=per_atom, result=result)


def _forces(judge: _Judge, one: Property) -> Proposal | None:
    energies = [t for t in judge.targets if t.energy == "total"]
    if not energies:
        why = ("no total energy was found that these forces could be derived from",)
        unit = _unit_like(judge, one, "eV/angstrom")
        return Proposal("", one.name, "node", "vector", unit, why=why, head=False)
    energy = max(energies, key=lambda t: _common(t.key, one.name))
    unit = _unit_like(judge, one, "eV/angstrom")
    if energy.unit.name != "eV" and unit.sure == "guessed":
        judge.left_out.append(
            (one.name, f"is in an unknown unit, beside an energy in {energy.unit.name}")
        )
        return None
    why = (f"minus the gradient of {energy.name}",)
    return Proposal("", one.name, "node", "vector", unit, derived_from=energy.name, why=why)


def _stress(judge: _Judge, one: Property) -> Proposal | None:
    energies = [t for t in judge.targets if t.energy == "total"]
    unit = _unit_like(judge, one, "eV/angstrom^3")
    if unit.name in ("GPa", "kbar"):
        unit = replace(unit, name=f"{unit.name}(stress)")
    if not energies or not all(atoms.pbc.all() for atoms in judge.structures):
        missing = "a total energy" if not energies else "three periodic directions everywhere"
        judge.left_out.append((one.name, f"needs {missing}"))
        return None
    if energies[0].unit.name != "eV" and unit.sure == "guessed":
        unit_of_energy = energies[0].unit.name
        judge.left_out.append(
            (one.name, f"is in an unknown unit, beside an energy in {unit_of_energy}")
        )
        return None
    why = (
        f"the strain derivative of {energies[0].name}, positive when tensile, as in ASE",
        "left to you: signs and units of stress differ between programs, and it costs time",
    )
    return Proposal(
        *("", one.name, "graph", "tensor", unit), derived_from=energies[0].name, why=why, head=False
    )


def _unit_like(judge: _Judge, one: Property, usual: str) -> Unit:
    """Tell the unit of a derivative."""
    if one.name in judge.units:
        return Unit(judge.units[one.name], "said", "you said so")
    said = said_unit(one.name)
    return (
        Unit(said, "said", "the name ends in it") if said else Unit(usual, "guessed", "ASE's unit")
    )


def _common(one: str, other: str) -> int:
    """Count the letters that two names begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _of_structure(judge: _Judge, one: Property) -> Proposal:
    """Judge a number per structure: an energy, total or per atom, or something else."""
    rows = one.known
    values, counts = one.values[rows, 0], judge.counts[one.where[rows]]
    grows = growth(values, counts)
    electrons = None
    if grows != "intensive" and not says_per_atom(one.name):
        electrons = all_electron_unit(values, counts, judge.kinds)
    per_atom = says_per_atom(one.name)
    energy, why = _energy(judge, one, grows, known=electrons is not None)
    unit = _unit(judge, one, per_atom=energy == "per_atom")
    if electrons is not None and unit.sure != "said":
        unit = Unit(electrons, "recognised", "it is near the energies of free atoms in this unit")
    elif electrons is not None and inside(unit.name)[0] != inside(electrons)[0]:
        judge.warnings.append(
            f"{plain(one.name)} is said to be in {unit.name}, but its size is that of energies in "
            f"{electrons}: look at the card."
        )
    if energy == "total" and unit.sure == "guessed" and judge.reader not in _ASE_FILES:
        said = f"an energy, but not in which unit: write it, or give --unit '{plain(one.name)}=eV'"
        unit = Unit(UNKNOWN, "unknown", said)
    if per_atom and grows == "extensive":
        judge.warnings.append(
            f"{plain(one.name)} is named a value per atom but grows with the structure: look at "
            "the card."
        )
    extensive = grows == "extensive" and energy is None and not per_atom
    more = ["grows with the structure"] if extensive else []
    if len(np.unique(values)) == 2:
        more.append("has two values only: learned as a number, 'near which of the two'")
    aside = judge.has_forces and unit.sure == "unknown" and energy is None
    if aside:
        more.append("not predicted at first: with forces there, a potential seems to be wanted")
    return Proposal(
        *("", one.name, "graph", "scalar", unit),
        energy=energy,
        extensive=extensive,
        head=not aside,
        why=(*why, *more),
    )


def _energy(
    judge: _Judge, one: Property, grows: str | None, *, known: bool
) -> tuple[str | None, tuple[str, ...]]:
    """Say whether a number is an energy, total or per atom, and why."""
    if known:
        return "total", ("a total energy: about the sum of those of its free atoms",)
    if not is_energy(one.name):
        return None, ()
    if says_per_atom(one.name):
        return ("per_atom", ("its name says per atom",)) if grows != "extensive" else (None, ())
    if grows == "extensive":
        return "total", ("a total energy: the composition explains it as a sum over atoms",)
    if grows == "intensive":
        return "per_atom", ("an energy per atom: it does not grow with the structure",)
    if one.result:
        return "total", ("ASE's results are total energies",)
    if judge.has_forces:
        return "total", ("there are forces: taken for the total energy that they derive from",)
    return None, ("an energy of structures that are alike in size: total or per atom is not known",)


def _warn(judge: _Judge, one: Property, found: Found) -> None:
    """Notice infinities, texts, and values that stand far from all others."""
    name = plain(one.name)
    if one.infinite:
        judge.warnings.append(
            f"{name} is infinite, or more than {LARGEST:g}, in {one.infinite} places: up to 1 % of "
            "the structures are set aside by themselves, mend more."
        )
    if texts := found.texts.get(one.name):
        judge.warnings.append(
            f"{name} is text in {found.text_counts[one.name]} structures, as "
            f"'{plain(min(texts))[:40]}': up to 1 % are set aside by themselves; where a value is "
            "missing, leave the cell empty."
        )
    if one.level != "graph" or one.width != 1:
        return
    values = one.values[one.known, 0]
    if is_energy(one.name):
        values = values / judge.counts[one.where[one.known]].sum(axis=1)
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    far = np.abs(values - middle) > 20.0 * max(high - low, float(np.std(values)) / 2.0, 1e-12)
    if far.any():
        worst = float(values[np.abs(values - middle).argmax()])
        judge.warnings.append(
            f"{name} has {int(far.sum())} of {len(values)} values far from all others (as "
            f"{worst:.4g}, the median is {middle:.4g}): a marker for missing values? 'dataset "
            "check' names them."
        )


def _spread(one: Property) -> str:
    values = one.values[one.known]
    if one.width == 1:
        return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}"
    return f"components {values.min():.3g} to {values.max():.3g}"


def _free(judge: _Judge, name: str) -> str:
    """Give a target's name that no other has."""
    made, taken = slug(name, "target"), {target.name for target in judge.targets}
    number = 2
    while made in taken:
        made, number = f"{slug(name, 'target')}_{number}", number + 1
    return made


def _limit_heads(judge: _Judge) -> None:
    """Leave a first campaign some heads, the first ones; those of forces with their energies."""
    heads = 0
    for number, target in enumerate(judge.targets):
        if not target.head:
            continue
        heads += 1
        if heads > MOST_HEADS:
            why = (*target.why, f"more than {MOST_HEADS} heads at first: uncomment what you want")
            judge.targets[number] = replace(target, head=False, why=why)
