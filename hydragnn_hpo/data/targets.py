"""Propose the targets of unknown data: level, shape, unit and derivative of each, with reasons.

Shapes: G structures, N atoms.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.properties import (
    RESULTS,
    Property,
    PropertyTable,
    explain_rejection,
    make_identifier,
)
from hydragnn_hpo.data.structure import LARGEST
from hydragnn_hpo.data.unit_inference import (
    UNKNOWN,
    UnitGuess,
    classify_growth,
    count_elements,
    guess_unit,
    is_energy,
    is_per_atom,
    parse_unit,
    recognise_total_energy,
)
from hydragnn_hpo.sanitize import escape_line
from hydragnn_hpo.units import inside

MAX_HEADS = 8
"""Targets that get a head in the first campaign."""

_ASE_READERS = ("extxyz", "database", "ase_file")
"""Readers of files that are in ASE's units by convention."""


@dataclass(frozen=True)
class TargetProposal:
    """A target as a card would have it."""

    name: str
    key: str
    level: str
    shape: str
    unit: UnitGuess
    energy: str | None = None
    derived_from: str | None = None
    optional: bool = False
    extensive: bool = False
    """Whether it grows with the structure and is no energy."""
    head: bool = True
    """Whether the first campaign predicts it."""
    why: tuple[str, ...] = ()
    spread: str = ""
    """Range of its values, in words."""


@dataclass(frozen=True)
class TargetProposals:
    """What each property of a data set becomes."""

    targets: tuple[TargetProposal, ...]
    attributes: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names and reasons."""
    warnings: tuple[str, ...]


def propose_targets(
    structures: Sequence[Atoms],
    table: PropertyTable,
    *,
    reader: str,
    units: Mapping[str, str],
    forced: Sequence[str] = (),
) -> TargetProposals:
    """Propose a target, an attribute or nothing for every property.

    Args:
        structures: the structures that were read.
        table: their properties.
        reader: name of the reader, or ``several``.
        units: of properties, as given by the user.
        forced: properties that a card must have, because they have no names in the file.

    Raises:
        ConfigError: a unit of the user is not known.
    """
    for unit in units.values():
        inside(unit)
    proposer = _Proposer(structures, table, reader, units)
    for prop in _sort_by_dependence(table.numbers.values()):
        proposer.add(prop, forced=prop.name in forced)
    return TargetProposals(
        tuple(_limit_heads(proposer.targets)),
        tuple(proposer.attributes),
        tuple(proposer.left_out),
        tuple(proposer.warnings),
    )


def _sort_by_dependence(properties: Iterable[Property]) -> list[Property]:
    """Sort energies first, then what is derived from them, then the others as in the file."""

    def rank(prop: Property) -> int:
        if prop.level == "graph" and prop.width == 1 and is_energy(prop.name):
            return 0
        return 1 if prop.is_forces or prop.is_stress else 2

    return sorted(properties, key=rank)


def _limit_heads(targets: Iterable[TargetProposal]) -> Iterable[TargetProposal]:
    """Take the heads after the first ``MAX_HEADS`` from the first campaign."""
    heads = 0
    for target in targets:
        heads += target.head
        if target.head and heads > MAX_HEADS:
            why = f"more than {MAX_HEADS} heads at first: uncomment what you want"
            target = replace(target, head=False, why=(*target.why, why))
        yield target


class _Proposer:
    """Judge the properties of a data set one by one; later ones depend on earlier ones."""

    def __init__(
        self,
        structures: Sequence[Atoms],
        table: PropertyTable,
        reader: str,
        units: Mapping[str, str],
    ) -> None:
        self.structures = structures
        self.table = table
        self.reader = reader
        self.units = units
        self.has_forces = any(prop.is_forces for prop in table.numbers.values())
        self.counts, self.kinds = count_elements([atoms.numbers for atoms in structures])
        self.targets: list[TargetProposal] = []
        self.left_out: list[tuple[str, str]] = list(table.ragged.items())
        self.attributes: list[str] = []
        self.warnings: list[str] = []

    def add(self, prop: Property, *, forced: bool) -> None:
        """Make a property a target or an attribute, or leave it out with a reason."""
        if not forced:
            reason = explain_rejection(prop)
            if reason is None and prop.is_attribute:
                if prop.present == len(self.structures) and prop.known.all():
                    self.attributes.append(prop.name)
                    return
                reason = "is a known property that some structures lack"
            reason = reason or self._find_copy(prop)
            if reason is not None:
                self.left_out.append((prop.name, reason))
                return
        proposal = self._propose(prop)
        if proposal is None:
            return
        self._warn(prop)
        why = proposal.why
        optional = prop.present < len(self.structures) or bool(prop.missing)
        if optional:
            known = 1.0 - prop.missing / max(len(prop.values), 1)
            share = 100.0 * (1.0 - known * prop.present / len(self.structures))
            why = (*why, f"missing in {share:.3g} % of what was read")
        head = proposal.head and not prop.constant
        self.targets.append(replace(proposal, optional=optional, why=why, head=head))

    def _find_copy(self, prop: Property) -> str | None:
        """Return a reason if an earlier target has the same numbers."""
        for target in self.targets:
            other = self.table.numbers[target.key]
            alike = other.level == prop.level and other.values.shape == prop.values.shape
            if alike and np.allclose(
                other.values, prop.values, rtol=1e-9, atol=1e-12, equal_nan=True
            ):
                return f"has the same numbers as {escape_line(target.key)}"
        return None

    def _propose(self, prop: Property) -> TargetProposal | None:
        start = TargetProposal(
            name=self._find_free_name(prop.name),
            key=prop.name,
            level=prop.level,
            shape="scalar",
            unit=self._unit(prop),
            spread=_describe_spread(prop),
        )
        if prop.is_forces:
            return self._propose_forces(replace(start, shape="vector"))
        if prop.is_stress:
            return self._propose_stress(replace(start, shape="tensor"))
        if prop.level == "graph":
            return self._propose_scalar(start, prop)
        if prop.width == 1:
            return start
        why = ("a vector of its own: only convs that see directions can predict it",)
        return replace(start, shape="vector", why=why, head=False)

    def _find_free_name(self, name: str) -> str:
        """Return the name of a target that no other has."""
        taken = {target.name for target in self.targets}
        first = free = make_identifier(name, "target")
        number = 2
        while free in taken:
            free, number = f"{first}_{number}", number + 1
        return free

    def _unit(self, prop: Property, *, per_atom: bool = False) -> UnitGuess:
        if prop.name in self.units:
            return UnitGuess(self.units[prop.name], "said", "you said so")
        if prop.is_forces or prop.is_stress:
            if unit := parse_unit(prop.name):
                return UnitGuess(unit, "said", "the name ends in it")
            usual = "eV/angstrom" if prop.is_forces else "eV/angstrom^3"
            return UnitGuess(usual, "guessed", "ASE's unit")
        result = prop.name in RESULTS and self.reader in _ASE_READERS
        return guess_unit(prop.name, per_atom=per_atom, result=result)

    def _propose_forces(self, start: TargetProposal) -> TargetProposal | None:
        energies = [target for target in self.targets if target.energy == "total"]
        if not energies:
            why = ("no total energy was found that these forces could be derived from",)
            return replace(start, why=why, head=False)
        energy = max(energies, key=lambda target: _common_prefix(target.key, start.key))
        why = (f"minus the gradient of {energy.name}",)
        return self._derive(start, energy, why)

    def _propose_stress(self, start: TargetProposal) -> TargetProposal | None:
        energies = [target for target in self.targets if target.energy == "total"]
        if not energies or not all(atoms.pbc.all() for atoms in self.structures):
            missing = "three periodic directions everywhere" if energies else "a total energy"
            self.left_out.append((start.key, f"needs {missing}"))
            return None
        if start.unit.name in ("GPa", "kbar"):
            unit = replace(start.unit, name=f"{start.unit.name}(stress)")
            start = replace(start, unit=unit)
        why = (
            f"the strain derivative of {energies[0].name}, positive when tensile, as in ASE",
            "left to you: signs and units of stress differ between programs, and it costs time",
        )
        return self._derive(replace(start, head=False), energies[0], why)

    def _derive(
        self, start: TargetProposal, energy: TargetProposal, why: tuple[str, ...]
    ) -> TargetProposal | None:
        """Derive a target from an energy, unless its unit can only be guessed."""
        if energy.unit.name != "eV" and start.unit.sure == "guessed":
            reason = f"is in an unknown unit, beside an energy in {energy.unit.name}"
            self.left_out.append((start.key, reason))
            return None
        return replace(start, derived_from=energy.name, why=why)

    def _propose_scalar(self, start: TargetProposal, prop: Property) -> TargetProposal:
        """Judge a number per structure: an energy, total or per atom, or something else."""
        name, per_atom = escape_line(prop.name), is_per_atom(prop.name)
        values, counts = prop.values[prop.known, 0], self.counts[prop.structure[prop.known]]
        growth = classify_growth(values, counts)
        recognised = None
        if growth != "intensive" and not per_atom:
            recognised = recognise_total_energy(values, counts, self.kinds)
        energy: str | None = "total"
        if recognised is not None:
            why = ["a total energy: about the sum of those of its free atoms"]
        else:
            energy, why = self._classify_energy(prop, growth)
        unit = self._energy_unit(prop, energy, recognised)
        if per_atom and growth == "extensive":
            self.warnings.append(
                f"{name} is named a value per atom but grows with the structure: look at the card."
            )
        extensive = growth == "extensive" and energy is None and not per_atom
        aside = self.has_forces and unit.sure == "unknown" and energy is None
        if extensive:
            why.append("grows with the structure")
        if len(np.unique(values)) == 2:
            why.append("has two values only: learned as a number, 'near which of the two'")
        if aside:
            why.append("not predicted at first: with forces there, a potential seems to be wanted")
        return replace(
            start, unit=unit, energy=energy, extensive=extensive, head=not aside, why=tuple(why)
        )

    def _energy_unit(self, prop: Property, energy: str | None, recognised: str | None) -> UnitGuess:
        """Choose the unit of a scalar by its name, its values and the kind of file.

        Args:
            prop: the property.
            energy: kind of energy, if it is one.
            recognised: unit of all-electron energies that its values fit, if any.
        """
        name = escape_line(prop.name)
        unit = self._unit(prop, per_atom=energy == "per_atom")
        if recognised is not None and unit.sure != "said":
            why_unit = "it is near the energies of free atoms in this unit"
            unit = UnitGuess(recognised, "recognised", why_unit)
        elif recognised is not None and inside(unit.name)[0] != inside(recognised)[0]:
            self.warnings.append(
                f"{name} is said to be in {unit.name}, but its size is that of energies in "
                f"{recognised}: look at the card."
            )
        if energy == "total" and unit.sure == "guessed" and self.reader not in _ASE_READERS:
            why_unit = f"an energy, but not in which unit: write it, or give --unit '{name}=eV'"
            unit = UnitGuess(UNKNOWN, "unknown", why_unit)
        return unit

    def _classify_energy(self, prop: Property, growth: str | None) -> tuple[str | None, list[str]]:
        """Classify a number as total energy, energy per atom, or None, with the reason."""
        if not is_energy(prop.name):
            return None, []
        if is_per_atom(prop.name):
            if growth == "extensive":
                return None, []
            return "per_atom", ["its name says per atom"]
        if growth == "extensive":
            return "total", ["a total energy: the composition explains it as a sum over atoms"]
        if growth == "intensive":
            return "per_atom", ["an energy per atom: it does not grow with the structure"]
        if prop.name in RESULTS:
            return "total", ["ASE's results are total energies"]
        if self.has_forces:
            return "total", ["there are forces: taken for the total energy that they derive from"]
        return None, [
            "an energy of structures that are alike in size: total or per atom is not known"
        ]

    def _warn(self, prop: Property) -> None:
        """Warn of infinities, texts, and values far from all others."""
        name = escape_line(prop.name)
        if prop.infinite:
            self.warnings.append(
                f"{name} is infinite, or more than {LARGEST:g}, in {prop.infinite} places: up to "
                "1 % of the structures are set aside by themselves, mend more."
            )
        if texts := self.table.texts.get(prop.name):
            self.warnings.append(
                f"{name} is text in {self.table.text_counts[prop.name]} structures, as "
                f"'{escape_line(min(texts))[:40]}': up to 1 % are set aside by themselves; where a "
                "value is missing, leave the cell empty."
            )
        if prop.level != "graph" or prop.width != 1:
            return
        values = prop.values[prop.known, 0]
        if is_energy(prop.name):
            values = values / self.counts[prop.structure[prop.known]].sum(axis=1)
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        far = np.abs(values - middle) > 20.0 * max(high - low, float(np.std(values)) / 2.0, 1e-12)
        if far.any():
            worst = float(values[np.abs(values - middle).argmax()])
            self.warnings.append(
                f"{name} has {int(far.sum())} of {len(values)} values far from all others (as "
                f"{worst:.4g}, the median is {middle:.4g}): a marker for missing values? 'dataset "
                "check' names them."
            )


def _common_prefix(one: str, other: str) -> int:
    """Count the letters that two names begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _describe_spread(prop: Property) -> str:
    values = prop.values[prop.known]
    if prop.width == 1:
        return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}"
    return f"components {values.min():.3g} to {values.max():.3g}"
