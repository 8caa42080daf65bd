"""Propose targets for structures without a card: level, shape, unit and derivative, with reasons.

Shapes: G structures, Z kinds of elements.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.config import AxisConfig, TargetConfig
from hydragnn_hpo.data import FAR, make_identifier, mark_far
from hydragnn_hpo.data.build_plan import exceeds_limit
from hydragnn_hpo.data.properties import (
    Property,
    PropertyTable,
    explain_rejection,
    normalize_name,
)
from hydragnn_hpo.data.structure import LARGEST, MISSING_CLASSES, name_class
from hydragnn_hpo.inspection.column_kinds import PropertyColumn, StructureFacts, find_kind
from hydragnn_hpo.inspection.unit_evidence import (
    LEVEL_UNITS,
    find_possible_units,
    fit_light_atoms,
    match_light_atoms,
)
from hydragnn_hpo.sanitize import escape_line, quote
from hydragnn_hpo.units import inside, interpret_unit, is_virial
from hydragnn_hpo.words import count

Array = NDArray[np.float64]

MOST_CLASSES, MIN_OF_CLASS = 10, 5
"""Largest number of texts that are taken for classes, and fewest structures of each."""

MOST_WORDS = 0.01
"""Largest share of structures with a word in place of a number; a build sets as many aside."""

MAX_HEADS = 8
"""Largest number of targets that get a head in the first campaign."""

_DIRECTED = (3, 6, 9)
"""Numbers of components of vectors and tensors, whose lengths are compared."""

UNKNOWN = "?"
"""Unit in a card that the user has to replace; ``CardConfig`` refuses it."""

MOST_SUM_MISS = 0.01
"""Most by which values of atoms may miss a whole number as their common sum, and by which the sum
may be missed as a share of the sum of their magnitudes."""

MIN_FITTED = 12
"""Smallest number of structures for a regression."""

MIN_COMPOSITIONS = 3
"""Compositions whose energies are near those of free atoms only where they are such sums."""

MIN_SIZE_RATIO = 1.3
"""Smallest ratio of the largest to the smallest structure for classifying growth with size."""

COMMON = 0.8
"""Share of one value above which it is named, as a constant then errs little."""

MARGIN = 0.02
"""Smallest difference in explained variance by which one fit counts as better than the other."""

SINGLE_PRECISION = 3e-7
"""Largest relative error of a number that was stored in single precision and multiplied once."""

MIN_EXPLAINED = 0.1
"""Smallest share of the variance that a fit by elements must explain."""

BINDING = 0.03
"""Largest relative difference between the energy of a structure and that of its free atoms; it may
be larger for hydrogen alone, which is not tested."""

FREE_ATOMS = {
    **{1: -0.5, 2: -2.903724, 3: -7.47806, 4: -14.66736, 5: -24.65391, 6: -37.8450},
    **{7: -54.5892, 8: -75.0673, 9: -99.7339, 10: -128.9376, 11: -162.2546, 12: -200.053},
    **{13: -242.346, 14: -289.359, 15: -341.259, 16: -398.110, 17: -460.148, 18: -527.540},
}
"""Energies of free atoms in Hartree, by atomic number.

Source: Chakravorty et al. (1993), Phys. Rev. A 47, 3649, table of exact nonrelativistic energies.
"""

PER_HARTREE = {
    "eV": 27.211386245988,
    "Hartree": 1.0,
    "Rydberg": 2.0,
    "kcal/mol": 627.5094740631,
    "kJ/mol": 2625.4996394799,
}
"""One Hartree in the units of total energies (CODATA 2018)."""

RESULTS = ("energy", "free_energy", "forces", "stress", "charges", "magmoms", "dipole", "magmom")
"""Names of the results of ASE's calculators, which are in eV, angstrom, e and muB."""

_ASE_READERS = ("extxyz", "database", "ase_file")
"""Names of readers whose files are in ASE's units by convention."""

_SUFFIXES = {
    "kcal/mol/angstrom": r"kcal_mol_a(ng(strom)?)?",
    "eV/angstrom^3": r"ev_a(ng(strom)?)?_?3",
    "eV/angstrom": r"ev_(per_)?a(ng(strom)?)?",
    "Hartree/bohr": r"(hartree|ha|eh)_(per_)?(bohr|a0)",
    "meV/atom": r"mev_(per_)?n?atom",
    "eV/atom": r"ev_(per_)?n?atom",
    "kcal/mol": r"kcal_?(per_)?mol",
    "kJ/mol": r"kj_?(per_)?mol",
    "Hartree": r"hartrees?|ha|eh",
    "Rydberg": r"ry(dberg)?",
    "meV": r"mev",
    "eV": r"ev",
    "log10(GPa)": r"log10_gpa",
    "GPa": r"gpa",
    "kbar": r"k_?bar",
    "1/cm": r"cm_?1|1_cm|inverse_cm",
    "muB": r"mu_?b",
    "debye": r"debye",
    "ppm": r"ppm",
    "angstrom": r"ang(strom)?s?",
    "bohr": r"bohr",
    "nm": r"nm",
    "K": r"kelvin",
}
"""Spellings of units at the end of names, as regular expressions; longer ones first."""

_LEVELS = (
    r"gap|homo(?!gen)|lumo|vbm|cbm|fermi|workfunction|work_function|eigenvalue|orbital_energ|"
    r"ioni[sz]ation_(energy|potential)|electron_affinity|(^|_)[va]?i[pe]($|_)"
)

_OF_GAP_POTENTIAL = r"(^|_)gap_(energy|energies|forces?|stress|virial)"
"""Results of a Gaussian approximation potential, as QUIP writes them."""

_USUAL_UNITS = (
    (
        r"shielding|chemical_?shift|(^|_)(cs|sigma|delta)_iso($|_)|nmr.*shift|shift.*nmr|^nmr$",
        "ppm",
        "shieldings and chemical shifts of nuclei",
    ),
    (r"log_?10.*(g|k)_?v?rh|log_[gk]vrh", "log10(GPa)", "decimal logarithms of moduli"),
    (r"modul|(^|_)(bulk|shear|elastic)|pressure", "GPa", "moduli and pressures"),
    (_LEVELS, "eV", "levels and gaps of electrons"),
    (r"hull", "eV/atom", "energies above the hull"),
    (r"(?<!magnetic_)dipole|^mu$", "e*angstrom", "dipoles"),
    (
        r"magmom|magneti[sz]ation|magnetic_(dipole|moment)|spin_density|(^|_)mag($|_)|"
        r"^(?!.*(pole|inertia)).*moment",
        "muB",
        "magnetic moments",
    ),
    (r"dielectric|permittivit", "1", "dielectric tensors"),
    (r"charge|(^|_)born($|_)|mulliken|hirshfeld|bader|(^|_)q($|_)", "e", "charges"),
    (r"phdos|phonon|frequenc|wavenumber", "1/cm", "frequencies of vibrations"),
    (r"temperature|(^|_)t[cm]($|_)|melting", "K", "temperatures"),
)
"""Patterns of names, their usual unit, and what they name; more specific patterns first."""

# All of these match names after ``normalize_name``.
_GAP = re.compile(r"((homo_?lumo|direct|indirect|pbe|hse|mbj|opt\w*)_)?(band_?)?gap(_m?ev)?")
_PER_ATOM = re.compile(r"(per_?atom|_pa|peratom)($|_)")

_ENERGY = re.compile(
    r"(^|_)(energy|energies|e|etot|etotal|toten|e_?form|formation|atomi[sz]ation|cohesive|u0|u|"
    r"e_?tot|total_?energy|free_?energy|internal_energy|eform|ef)($|_)|energy"
)
_NO_ENERGY = re.compile(
    r"homo|lumo|gap|hull|fermi|surface|adsor|band|zpve|zero_?point|barrier|activation|reorgani|"
    r"ioni[sz]ation|affinity|kinetic|vibration|solvation|binding|bond|level|error|std|variance|"
    r"uncertainty|excitation|singlet|triplet|strain|lattice|eigenvalue|orbital"
)


_POTENTIAL = re.compile(r"energ(y|ies)|forces?|stress(es)?|virials?")
_PLAIN_WORDS = {"total", "tot", "potential", "pot", "internal", "e", "etot", "etotal", "toten"}
_KIND_WORDS = {
    *_PLAIN_WORDS,
    *("free", "formation", "form", "eform", "ef", "cohesive", "atomization", "atomisation"),
    *("u", "u0", "corrected", "uncorrected", "correction", "raw", "final", "initial", "static"),
    *("electronic", "per", "atom", "atoms", "atomic", "peratom", "pa", "cell", "system", "sum"),
    *("relative", "reaction", "mixing", "consistent", "tensor", "voigt", "cartesian", "structure"),
}
"""Words beside ``_POTENTIAL`` that name no calculator: those of a plain energy, and all."""

_REFERENCES = re.compile(
    r"(^|_)(ref(erence)?|dft|qm|scf|vasp|castep|qe|cp2k|aims|orca|psi4|gaussian|pbe\w*|r?2?scan|"
    r"b3lyp|wb97\w*|hse\w*|mp2|ccsd\w*|abinitio)($|_)"
)
_MODELS = re.compile(
    r"(^|_)(gap|mace|ace|nequip|allegro|chgnet|m3gnet|schnet|painn|gemnet|orb|sevennet|uma|snap|"
    r"mtp|eam|emt|lj|uff|mmff\w*|g?a?ff|g?fn?\d?_?xtb|xtb|ml|mlip|nnp?|model|pred(icted)?|"
    r"prediction|optimi[sz]ed?)($|_)"
)
"""Calculators whose results are usually learned, and those that are usually compared with them."""


def parse_calculator(name: str) -> str:
    """Return the calculator that an energy, force, stress or virial names; empty without one.

    >>> [parse_calculator(name) for name in ("REF_energy", "total_energy_dft", "forces_eV_A")]
    ['ref', 'dft', '']
    """
    name = normalize_name(name)
    if unit := next((u for u in _SUFFIXES.values() if re.search(rf"_({u})$", name)), None):
        name = re.sub(rf"_({unit})$", "", name)
    words = _POTENTIAL.sub("_", name).split("_")
    return "_".join(word for word in words if word and word not in _KIND_WORDS)


def _name_kind(name: str) -> str:
    """Return the kind of an energy: the words that are neither its calculator's nor plain."""
    words = _POTENTIAL.sub("_", normalize_name(name)).split("_")
    return " ".join(word for word in words if word in _KIND_WORDS - _PLAIN_WORDS)


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


def is_energy(name: str) -> bool:
    """Check by name whether a property is an energy of the kind that forces derive from."""
    name = normalize_name(name)
    return bool(_ENERGY.search(name)) and not _NO_ENERGY.search(name)


def is_per_atom(name: str) -> bool:
    """Check by name whether a property is a value per atom."""
    return bool(_PER_ATOM.search(normalize_name(name)))


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


def parse_unit(name: str) -> str | None:
    """Return the unit at the end of a name, as in ``gap_ev`` or ``mu (D)``; None without one."""
    if bracket := re.search(r"[\[(]\s*([^\[\]()]+?)\s*[\])]\s*$", name):
        unit = interpret_unit(bracket[1])
        if unit not in (None, "1"):
            return unit
    name = normalize_name(name)
    matches = (u for u, pattern in _SUFFIXES.items() if re.search(rf"_({pattern})$", name))
    return next(matches, None)


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
        usual = (
            "usual for energies per atom"
            if per_atom
            else "usual for energies in files of structures"
        )
        unit = "eV/atom" if per_atom else "eV"
        return UnitGuess(unit, "guessed", "ASE's unit" if result else usual)
    for pattern, unit, what in _USUAL_UNITS:
        if re.search(pattern, normalize_name(name)):
            unit = "muB/atom" if unit == "muB" and is_per_atom(name) else unit
            return UnitGuess(unit, "guessed", f"usual for {what}")
    return NO_GUESS


def count_elements(numbers: Sequence[NDArray[np.int64]]) -> tuple[Array, list[int]]:
    """Count the atoms of each element.

    Args:
        numbers: atomic numbers of each structure, G arrays.

    Returns:
        Counts, [G, Z], and the atomic numbers of the columns, ascending, [Z].
    """
    kinds = sorted({int(z) for each in numbers for z in np.unique(each)})
    counts = np.array([[np.count_nonzero(each == z) for z in kinds] for each in numbers])
    return counts.astype(np.float64), kinds


def classify_growth(values: Array, counts: Array) -> Literal["extensive", "intensive"] | None:
    """Classify whether a property grows with the structure; None where that stays undecided.

    One coefficient per element is fitted on half of the structures, once to sums over atoms, once
    to means. The fit that explains more of the variance of the other half decides.

    Args:
        values: value of each structure, [G].
        counts: atoms of each element, [G, Z].
    """
    sizes = counts.sum(axis=1)
    few = len(values) < MIN_FITTED or sizes.max() < MIN_SIZE_RATIO * sizes.min()
    if few or np.ptp(values) == 0:
        return None
    # A random half, as every second structure of a file may be of the same kind.
    fit = np.zeros(len(values), dtype=bool)
    fit[np.random.default_rng(0).permutation(len(values))[::2]] = True
    total = explained_variance(values, counts, fit)
    mean = explained_variance(values, counts / sizes[:, None], fit)
    if total > max(mean, 0.5) + MARGIN or (total > 0.999 and total > mean):
        return "extensive"
    # Even a mean that explains little decides where the sum is far worse than no fit at all.
    trusted = mean > MIN_EXPLAINED or total < -1.0
    return "intensive" if trusted and mean > total + MARGIN else None


def explained_variance(values: Array, weights: Array, fit: NDArray[np.bool_]) -> float:
    """Fit one coefficient per element; return the share of variance it explains on other rows.

    Args:
        values: value of each structure, [G].
        weights: weight of each element, [G, Z].
        fit: whether a row is fitted, [G]; the others measure the fit.

    Returns:
        1 for a perfect fit, 0 for one as good as the mean, below 0 for a worse one.
    """
    held = ~fit
    residual = values[held] - weights[held] @ fit_elements(values[fit], weights[fit])
    variance = max(float(np.var(values[held])) * len(residual), 1e-300)
    return 1.0 - float((residual**2).sum()) / variance


def fit_elements(values: Array, weights: Array) -> Array:
    """Return the coefficient of each element of least squares with a small penalty, [Z]."""
    penalty = 1e-6 * np.eye(weights.shape[1]) * max(float((weights**2).mean()), 1e-12)
    gram = weights.T @ weights + penalty * len(weights)
    return np.asarray(np.linalg.solve(gram, weights.T @ values), dtype=np.float64)


SAME_ENERGY = 0.999
"""Correlation beside the elements from which two total energies are one quantity twice."""

HEAVY = 1.8
"""Standard deviation over mean absolute deviation from which tails are heavy: 1.25 is that of a
normal distribution, 1.41 of a Laplace distribution, 1.57 of Student's with 3 degrees."""


def has_heavy_tails(values: Array, weights: Array) -> bool:
    """Check whether few values hold most of the spread that is left beside the elements.

    Args:
        values: value of each structure, [G].
        weights: weight of each element, [G, Z].
    """
    rest = values - weights @ fit_elements(values, weights)
    deviation = float(np.abs(rest - np.median(rest)).mean())
    return len(values) >= MIN_FITTED and bool(rest.std() > HEAVY * deviation > 0.0)


NEAR_ZERO = 0.05
"""Root mean square of forces in eV/angstrom below which they may be what relaxations leave: the
optimizers of ASE stop there."""

DISPLACEMENT = 0.1
"""Distance in angstrom over which forces are compared with energies, as large as vibrations of
atoms at room temperature."""

LEAST_TOLD = 0.1
"""Share of the spread of energies that forces near zero must tell to be learned."""


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


def recognise_total_energy(values: Array, counts: Array, kinds: Sequence[int]) -> str | None:
    """Recognise the unit of all-electron total energies by the energies of free atoms.

    Energies from pseudopotentials or tight binding lack those of core electrons and are not
    recognised. Where only heavy elements lack them, a fit of all elements has the energies of light
    ones among its coefficients.

    Args:
        values: energy of each structure, [G].
        counts: atoms of each element, [G, Z].
        kinds: atomic numbers, [Z].

    Returns:
        A unit of ``PER_HARTREE``; None where none fits.
    """
    known = np.array([FREE_ATOMS.get(z, np.nan) for z in kinds])
    atoms = counts @ np.nan_to_num(known)
    heavy = (counts * (np.array(kinds) > 2)).sum(axis=1)
    used = (counts[:, np.isnan(known)].sum(axis=1) == 0) & (heavy > 0) & (values != 0)
    compositions = len(np.unique(counts[used], axis=0))
    if used.sum() >= MIN_FITTED or compositions >= MIN_COMPOSITIONS:
        ratio = values[used] / atoms[used]
        middle = float(np.median(ratio))
        spread = float(np.ptp(np.quantile(ratio, [0.1, 0.9])))
        for unit, factor in PER_HARTREE.items():
            if abs(middle / factor - 1.0) < BINDING and spread < 2 * BINDING * factor:
                return unit
    return match_light_atoms(fit_light_atoms(values, counts, kinds), PER_HARTREE)


@dataclass(frozen=True)
class TargetProposal:
    """A target for a new card, and the reasons for it."""

    name: str
    """Name in the card, an identifier."""
    config: TargetConfig
    """The target in the card. It is not validated, as its unit may be known to the user alone."""
    unit: UnitGuess
    """Its unit, and how certain it is."""
    head: bool = True
    """Whether the first campaign predicts the target."""
    heavy_tailed: bool = False
    """Whether few structures hold most of its spread, see ``has_heavy_tails``."""
    why: tuple[str, ...] = ()
    """Reasons for these values, for comments in the card."""
    spread: str = ""
    """Range of its values, in words."""

    @property
    def key(self) -> str:
        """Name in the file."""
        return self.config.key or self.name

    @property
    def lines(self) -> Mapping[str, object]:
        """Lines of the target in a card: the fields that differ from their default.

        Returns:
            Value by field, in the order of ``TargetConfig``, but ``key`` first, ``optional`` last.
        """
        unwritten = {"unit"} if self.config.shape == "class" else set[str]()
        unwritten |= {"key"} if self.key == self.name else set()
        fields = self.config.model_dump(exclude_defaults=True, exclude=unwritten)
        fields |= {"axis": self.config.axis} if self.config.axis is not None else {}
        return dict(sorted(fields.items(), key=lambda f: (f[0] != "key", f[0] == "optional")))

    def with_fields(self, **fields: Any) -> Self:
        """Return the proposal with other ``fields`` of its ``config``."""
        return replace(self, config=self.config.model_copy(update=fields))

    def with_unit(self, unit: UnitGuess) -> Self:
        """Return the proposal with another unit."""
        changed = self.with_fields(unit=unit.name, unit_guessed=unit.sure == "guessed")
        return replace(changed, unit=unit)


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


@dataclass(frozen=True)
class TargetProposals:
    """Role of each property of a data set in the new card."""

    targets: tuple[TargetProposal, ...]
    """Targets, energies first."""
    attributes: tuple[str, ...]
    """Names of the properties that are attributes."""
    left_out: tuple[tuple[str, str], ...]
    """Name of each other property, and the reason why it is left out."""
    warnings: tuple[str, ...]
    """Warnings for the user."""


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
    proposer = _Proposer(structures, table, reader, units, stated or {})
    named = {*forced, *wanted}
    kept = {name for name in table.numbers if {name, make_identifier(name, "target")} & named}
    rejected = proposer.reject(kept)
    for prop in sorted(table.numbers.values(), key=proposer.rank_dependence):
        reason = None if prop.name in forced else rejected.get(prop.name)
        proposer.add(prop, reason, forced=prop.name in kept)
    heads = list(_limit_heads(_keep_one_calculator([*proposer.choose_totals()])))
    # A word in a number that no head predicts would set its structure aside.
    aside = [t.key for t in heads if not (t.head or t.config.energy or t.config.derived_from)]
    words = [key for key in aside if key in table.texts and key not in kept]
    left_out = [(key, "is text in some structures, and not predicted") for key in words]
    numbers = [target for target in heads if target.key not in words]
    return TargetProposals(
        tuple(_ask_for_heads_only(numbers, wanted)),
        tuple(proposer.attributes),
        (*proposer.left_out, *left_out),
        tuple(proposer.warnings),
    )


def _keep_one_calculator(targets: Sequence[TargetProposal]) -> list[TargetProposal]:
    """Return targets, without heads for second sets of a quantity, as of another calculator.

    The first by rank is predicted: that of a reference, else the one with forces, else the first.
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

    def rank(target: TargetProposal) -> tuple[bool, bool, bool]:
        key = normalize_name(target.key)
        with_them = {target.name, target.config.derived_from} & with_forces
        return not _REFERENCES.search(key), bool(_MODELS.search(key)), not with_them

    chosen = {target.name: min(alike, key=rank) for alike in sets.values() for target in alike}
    kept = []
    for target in targets:
        first = chosen.get(target.name, target)
        derived_from = target.config.derived_from
        energy = chosen.get(derived_from or "")
        second = first is not target or (energy is not None and energy.name != derived_from)
        if second and first is target and energy is not None:
            why = f"of {derived_from}, a second set of {energy.name}"
            target = replace(target, head=False, why=(*target.why, why))
        elif second:
            why = f"a second set of {first.name}, which is predicted: uncomment one of them"
            target = replace(target, head=False, why=(*target.why, why))
        kept.append(target)
    return kept


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
        if len(of_it) > 1 or _REFERENCES.search(name) or _MODELS.search(name) or not name
    }


def _name_quantity(target: TargetProposal, calculators: Set[str]) -> str | None:
    """Return the name of a quantity without its calculator; None where it names an unknown one."""
    name = normalize_name(target.key)
    if target.config.energy is not None:
        known = parse_calculator(name) in calculators
        return f"{target.config.energy} energy {_name_kind(name)}".rstrip() if known else None
    if target.config.derived_from or "force" in name:
        return "derivative" if parse_calculator(name) in calculators else None
    for calculator in sorted(calculators - {""}, key=len, reverse=True):
        for without in (name.removeprefix(f"{calculator}_"), name.removesuffix(f"_{calculator}")):
            if without != name:
                return without
    return name


def _limit_heads(targets: Sequence[TargetProposal]) -> Iterator[TargetProposal]:
    """Yield targets, with a head for at most ``MAX_HEADS``: the most target-like, then the first.

    Energies and their derivatives go first, then quantities that have a unit by their name.
    """

    def rank(target: TargetProposal) -> int:
        if target.config.energy is not None or target.config.derived_from is not None:
            return 0
        return 1 if target.unit.sure != "unknown" and target.config.shape != "class" else 2

    heads = [target.name for target in sorted(targets, key=rank) if target.head]
    for target in targets:
        if target.head and target.name in heads[MAX_HEADS:]:
            why = f"more than {MAX_HEADS} heads at first: uncomment what you want"
            target = replace(target, head=False, why=(*target.why, why))
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
        needed = head or target.config.energy is not None or target.config.derived_from is not None
        if target.unit.name == UNKNOWN and not needed:
            target = target.with_unit(replace(target.unit, name="1"))
        yield target


Relation = Literal["multiple", "total", "per atom"]
"""How a property follows from another one: as a multiple, times or by the number of atoms."""

MARK = "may mark something rather than measure it: not predicted at first"
"""Reason why a property of 0 and 1 gets no head."""


class _Proposer:
    """Proposes properties one by one; later proposals depend on earlier ones."""

    def __init__(
        self,
        structures: Sequence[Atoms],
        table: PropertyTable,
        reader: str,
        units: Mapping[str, str],
        stated: Mapping[str, str],
    ) -> None:
        self.structures = structures
        self.table = table
        self.units = units
        self.stated = stated
        forces = [prop for prop in table.numbers.values() if prop.is_forces]
        self.has_forces = any(explain_rejection(prop) is None for prop in forces)
        names = (*table.numbers, *table.texts)
        self.facts = StructureFacts(structures, names, self.has_forces)
        self.offered: dict[str, str] = {}
        derivatives = (p.name for p in table.numbers.values() if p.is_forces or p.is_stress)
        self.calculators = {parse_calculator(name) for name in derivatives}
        self.counts, self.kinds = count_elements([atoms.numbers for atoms in structures])
        self.recognised = dict(self._recognise_totals())
        # Total energies in another unit show that the file is not in ASE's.
        self.in_ase_units = reader in _ASE_READERS and set(self.recognised.values()) <= {"eV"}
        self.are_molecules = not any(atoms.pbc.any() for atoms in structures)
        self.targets: list[TargetProposal] = []
        self.left_out: list[tuple[str, str]] = list(table.ragged.items())
        self.attributes: list[str] = []
        self.warnings: list[str] = []

    def _recognise_totals(self) -> Iterator[tuple[str, str]]:
        """Yield names and units of total energies whose unit is recognised by their values."""
        for name, prop in self.table.numbers.items():
            if prop.scalar and not is_per_atom(name) and prop.known.any():
                values, counts = prop.values[prop.known, 0], self.counts[prop.structure[prop.known]]
                unit = recognise_total_energy(values, counts, self.kinds)
                if unit is not None:
                    yield name, unit

    def rank_dependence(self, prop: Property) -> int:
        """Return the rank of a property: 0 for energies, 1 for their derivatives, 2 for others."""
        if prop.scalar and is_energy(self._strip_calculator(prop.name)):
            return 0
        return 1 if prop.is_forces or prop.is_stress else 2

    def _strip_calculator(self, name: str) -> str:
        """Return a name without its calculator if that has forces, so that GAP is no band gap."""
        calculator = parse_calculator(name)
        known = calculator in self.calculators and _POTENTIAL.search(normalize_name(name))
        return normalize_name(name).replace(calculator, "") if calculator and known else name

    def reject(self, kept: Collection[str]) -> dict[str, str]:
        """Return why properties cannot or need not be targets, by name.

        Args:
            kept: names of properties that stay even if they select or repeat something.

        Returns:
            Reason by name of a property, to be read after that name.
        """
        reasons = {}
        for name, prop in self.table.numbers.items():
            reason = explain_rejection(prop)
            if reason is None and name not in kept:
                reason = self._explain_kind(prop)
            if reason is not None:
                reasons[name] = reason
        reasons |= self._choose_energy(kept)
        reasons |= self._find_words({*self.table.numbers} - {*reasons}, kept)
        free = [
            prop
            for name, prop in self.table.numbers.items()
            if not (name in reasons or (prop.is_attribute and name not in kept))
        ]
        return reasons | self._find_repeats(free, kept)

    def _explain_kind(self, prop: Property) -> str | None:
        """Return why a property is no target by its kind, and keep why it is but offered."""
        kind = None if prop.is_attribute else find_kind(PropertyColumn(prop.name, prop), self.facts)
        if kind is None or not kind.offered:
            return None if kind is None else kind.why
        self.offered[prop.name] = kind.why
        return None

    def _find_words(self, names: Set[str], kept: Collection[str]) -> dict[str, str]:
        """Return why numbers that are words in many structures are left out, beside others.

        Args:
            names: names of properties that can be targets.
            kept: names of those that stay.
        """
        reasons = {}
        read = len(self.structures)
        for name in (names & self.table.texts.keys()) - {*kept}:
            words = self.table.texts[name]
            other = self.rank_dependence(self.table.numbers[name]) == 2
            if other and exceeds_limit(words.total(), read, MOST_WORDS):
                example = escape_line(min(words))[:40]
                reasons[name] = f"is text in {words.total()} of {read}, as '{example}'"
        return reasons if names - {*reasons} else {}

    def _choose_energy(self, kept: Collection[str]) -> dict[str, str]:
        """Return why one of the two energies of ASE's calculators is left out.

        With smearing ``energy`` is extrapolated to no smearing, and forces are derivatives of
        ``free_energy``.

        Args:
            kept: names of properties that stay.
        """
        both = {"energy", "free_energy"}
        if not self.in_ase_units or not both <= set(self.table.numbers) or both & set(kept):
            return {}
        if self.has_forces:
            return {"energy": "is free_energy without smearing, and forces belong to free_energy"}
        return {"free_energy": "is energy with smearing"}

    def _find_repeats(
        self, properties: Sequence[Property], kept: Collection[str]
    ) -> dict[str, str]:
        """Return why properties are the same quantity as another one, by name.

        Of two the total energy stays, else the one whose unit is known, else the first one.

        Args:
            properties: properties that can be targets.
            kept: names of those that stay even if they repeat another one.

        Returns:
            Reason by name of a property, to be read after that name.
        """

        def rank(prop: Property) -> tuple[int, bool, bool]:
            known = self._unit(prop).sure == "said"
            return self.rank_dependence(prop), is_per_atom(prop.name), not known

        reasons: dict[str, str] = {}
        chosen: list[Property] = []
        for prop in sorted(properties, key=rank):
            pairs = ((other, self._relate(prop, other)) for other in chosen)
            other, relation = next(((o, r) for o, r in pairs if r is not None), (prop, None))
            if relation is None or prop.name in kept:
                chosen.append(prop)
                continue
            way, factor = relation
            energy = 0 in (self.rank_dependence(prop), self.rank_dependence(other))
            if way == "total" and energy and other.name not in kept:
                chosen[chosen.index(other)] = prop
                reasons[other.name] = _explain_repeat(prop.name, "per atom", 1.0 / factor)
            else:
                reasons[prop.name] = _explain_repeat(other.name, way, factor)
        return reasons

    def _relate(self, prop: Property, other: Property) -> tuple[Relation, float] | None:
        """Return how a property follows from another one, and a factor; None if it does not."""
        alike = (
            prop.level == other.level
            and prop.values.shape == other.values.shape
            and np.array_equal(prop.structure, other.structure)
            and np.array_equal(prop.known, other.known)
        )
        if not alike:
            return None
        known = prop.known
        values, others = prop.values[known], other.values[known]
        if np.allclose(values, others, rtol=1e-9, atol=1e-12):
            return "multiple", 1.0
        if prop.scalar:
            sizes = self.counts[prop.structure[known]].sum(axis=1, keepdims=True)
            total = constant_factor(values, others, sizes)
            mean = constant_factor(others, values, sizes)
            # Where all structures are alike in size, every factor is both.
            likely = len(np.unique(sizes)) > 1 or is_per_atom(other.name)
            if total is not None and likely:
                return "total", total
            likely = len(np.unique(sizes)) > 1 or is_per_atom(prop.name)
            if mean is not None and likely:
                return "per atom", 1.0 / mean
        factor = constant_factor(values, others)
        return None if factor is None else ("multiple", factor)

    def choose_totals(self) -> Iterator[TargetProposal]:
        """Yield the targets; total energies that tell the same as an earlier one have no head.

        Those are energies with other corrections, as at 0 K and at 298 K: beside what the elements
        explain, one is nearly the other.
        """
        chosen: list[TargetProposal] = []
        for target in self.targets:
            is_total = target.head and (target.config.energy == "total" or target.config.extensive)
            first = next((t for t in chosen if is_total and self._repeats(t, target)), None)
            if first is not None:
                why = f"nearly {first.name} beside what the elements explain: a second set of it"
                target = replace(target, head=False, why=(*target.why, why))
            elif is_total:
                chosen.append(target)
            yield target

    def _repeats(self, first: TargetProposal, second: TargetProposal) -> bool:
        """Check whether two energies differ by little but what the elements explain."""
        one, other = (self.table.numbers[target.key] for target in (first, second))
        if not np.array_equal(one.structure, other.structure):
            return False
        values = np.hstack([one.values, other.values])
        rows = np.isfinite(values).all(axis=1)
        counts = self.counts[one.structure[rows]]
        rest = values[rows] - counts @ np.linalg.lstsq(counts, values[rows], rcond=None)[0]
        if rows.sum() < max(MIN_FITTED, 2 * len(self.kinds)) or not rest.std(axis=0).all():
            return False
        return float(np.corrcoef(rest.T).min()) > SAME_ENERGY

    def add(self, prop: Property, rejected: str | None, *, forced: bool) -> None:
        """Propose a property as target or attribute, or leave it out with a reason.

        Args:
            prop: the property.
            rejected: reason to leave it out, unless it is an attribute.
            forced: whether it must be a target.
        """
        if rejected is None and prop.is_attribute and not forced:
            if prop.present == len(self.structures) and prop.known.all():
                self.attributes.append(prop.name)
                return
            rejected = "is a known property that some structures lack"
        if rejected is not None:
            self.left_out.append((prop.name, rejected))
            return
        proposal = self._propose(prop)
        if isinstance(proposal, str):
            self.left_out.append((prop.name, proposal))
            return
        self._warn(prop, total=proposal.config.energy == "total")
        why = proposal.why
        optional = prop.present < len(self.structures) or bool(prop.missing)
        if optional:
            known = 1.0 - prop.missing / max(len(prop.values), 1)
            share = 100.0 * (1.0 - known * prop.present / len(self.structures))
            why = (*why, f"missing in {share:.3g} % of what was read")
        if prop.name in self.offered and not forced:
            proposal = replace(proposal, head=False)
            why = (*why, self.offered[prop.name])
        head = proposal.head and not prop.constant
        proposal = proposal.with_fields(optional=optional or proposal.config.optional)
        self.targets.append(replace(proposal, why=why, head=head))

    def _propose(self, prop: Property) -> TargetProposal | str:
        """Return a target, or a reason to leave the property out."""
        start = _start_proposal(
            make_identifier(prop.name, "target", {target.name for target in self.targets}),
            self._unit(prop),
            _describe_spread(prop),
            key=prop.name,
            level=prop.level,
            min=0.0 if _is_gap(prop) else None,
        )
        if prop.is_forces:
            return self._propose_forces(start.with_fields(shape="vector"), prop)
        if prop.is_stress:
            return self._propose_stress(start.with_fields(shape="tensor"))
        if prop.shape == "spectrum":
            kind = "structure" if prop.level == "graph" else "atom"
            why = (
                f"{prop.width} numbers in each {kind}: taken for a spectrum, whose values do not "
                "turn with the structure; drop it if they do",
            )
            start = start.with_fields(shape="spectrum", size=prop.width)
            if prop.columns:
                why = (f"{prop.width} numbered columns of one unit: taken for one spectrum",)
                start = start.with_fields(
                    key=None, columns=tuple(prop.columns), axis=_find_axis(prop)
                )
            return replace(start, why=why)
        if prop.shape is not None and not prop.is_mark:
            return self._propose_directed(start, prop.shape)
        if prop.level == "graph":
            return self._propose_scalar(start, prop)
        if prop.is_mark:
            return replace(start, why=(MARK,), head=False)
        return start.with_fields(sum=_find_common_sum(prop)) if prop.width == 1 else start

    def _propose_directed(
        self, start: TargetProposal, shape: Literal["vector", "tensor"]
    ) -> TargetProposal:
        """Propose a vector or tensor that is no derivative of an energy."""
        periodic = any(atoms.pbc.any() for atoms in self.structures)
        origin: Literal["mass", "none"] | None = None
        why = f"a {shape} of its own: only convs that carry vectors can predict it"
        if start.config.level == "graph":
            origin = "none" if periodic else "mass"
            if not periodic:
                why = f"a {shape} of molecules, from charges, positions and vectors of atoms"
        return replace(start.with_fields(shape=shape, origin=origin), why=(why,), head=False)

    def _unit(self, prop: Property, *, per_atom: bool = False) -> UnitGuess:
        declared = self._find_declared_unit(prop)
        if declared is not None:
            return declared
        if prop.is_forces or prop.is_stress:
            return UnitGuess(_usual_unit(prop), "guessed", "ASE's unit")
        result = prop.name in RESULTS and self.in_ase_units
        name = self._strip_calculator(prop.name)
        guess = guess_unit(name, per_atom=per_atom, result=result)
        if self._names_level(prop) and guess.name == "eV":
            return self._judge_level(prop, guess)
        if guess.name == "e*angstrom":
            return self._judge_dipole(prop, guess)
        return guess

    def _find_declared_unit(self, prop: Property) -> UnitGuess | None:
        """Return the unit that the user, the file or a name says; None without one."""
        if prop.name in self.units:
            return UnitGuess(self.units[prop.name], "said", "you said so")
        if prop.name in self.stated:
            text = escape_line(self.stated[prop.name])[:40]
            if unit := interpret_unit(self.stated[prop.name]):
                return UnitGuess(unit, "said", f"the file states it: {text}")
            why = f"the file states '{text}', which is no unit known here"
            if prop.is_forces or prop.is_stress:
                return ask_unit(prop.name, why, [_usual_unit(prop)])
            return UnitGuess("1", "unknown", f"{why}: numbers stay as they are in the file")
        unit = parse_unit(prop.name)
        return UnitGuess(unit, "said", f"the name ends in it: {unit}") if unit else None

    def _names_level(self, prop: Property) -> bool:
        """Check by its name whether a property of structures is a level or gap of electrons."""
        name = normalize_name(self._strip_calculator(prop.name))
        named = re.search(_LEVELS, name) and not re.search(_OF_GAP_POTENTIAL, name)
        return prop.level == "graph" and bool(named)

    def _judge_level(self, prop: Property, guess: UnitGuess) -> UnitGuess:
        """Judge the guessed unit of a level or gap by possible sizes and by what stands beside it.

        Args:
            prop: the property.
            guess: what is usual.
        """
        known = find_possible_units(prop, self.structures)
        possible = LEVEL_UNITS if known is None else known
        possible = tuple(unit for unit in possible if unit in self.possible_of_all) or possible
        for name, unit in self.units_beside:
            if name != prop.name and unit in possible:
                why = f"as {escape_line(name)[:60]} beside it"
                return UnitGuess(unit, "guessed" if known is None else "recognised", why)
        if guess.name in possible:
            return guess
        middle = float(np.median(np.abs(prop.values[prop.known])))
        why = f"not {guess.name}, as a median of {middle:.3g} {guess.name} is impossible"
        return ask_unit(prop.name, why, possible or LEVEL_UNITS)

    @cached_property
    def possible_of_all(self) -> set[str]:
        """Units in which all levels and gaps whose unit nothing says have possible sizes."""
        units = set(LEVEL_UNITS)
        for prop in self.table.numbers.values():
            if self._names_level(prop) and self._find_declared_unit(prop) is None:
                units &= set(find_possible_units(prop, self.structures) or LEVEL_UNITS)
        return units

    @cached_property
    def units_beside(self) -> list[tuple[str, str]]:
        """Names and units of levels that say theirs, and of total energies that are recognised."""
        levels = [prop for prop in self.table.numbers.values() if self._names_level(prop)]
        declared = [(prop.name, self._find_declared_unit(prop)) for prop in levels]
        return [
            *((name, unit.name) for name, unit in declared if unit is not None),
            *self.recognised.items(),
        ]

    def _judge_dipole(self, prop: Property, guess: UnitGuess) -> UnitGuess:
        """Ask for the unit of dipoles of molecules, but where ASE's is the convention.

        Args:
            prop: the property.
            guess: what is usual.
        """
        if normalize_name(prop.name) == "mu" and not self.are_molecules:
            return NO_GUESS
        if self.in_ase_units or not self.are_molecules:
            return guess
        why = "debye or e*angstrom is not known"
        return ask_unit(prop.name, why, ("debye", "e*angstrom", "e*bohr"))

    def _find_energy(self, name: str) -> TargetProposal | str:
        """Return the energy of the calculator of forces or a stress, or why there is none.

        Total energies go before energies per atom.
        """
        known = [target for target in self.targets if target.config.energy is not None]
        totals = [target for target in known if target.config.energy == "total"] or known
        calculator = parse_calculator(name)
        # ASE's forces are consistent with the free energy.
        order = ("free", "")
        of_it = [target for target in totals if parse_calculator(target.key) == calculator]
        kinds = [_name_kind(target.key) for target in of_it]
        if of_it:
            return of_it[next((kinds.index(kind) for kind in order if kind in kinds), 0)]
        if not totals:
            return "no energy was found that they could be derived from"
        other = parse_calculator(totals[0].key)
        if not (calculator or totals[1:] or other in self.calculators or _MODELS.search(other)):
            return totals[0]
        listed = ", ".join(target.name for target in totals)
        return f"there is no energy of their calculator, only {listed}"

    def _propose_forces(self, start: TargetProposal, prop: Property) -> TargetProposal | str:
        energy = self._find_energy(start.key)
        if isinstance(energy, str):
            return replace(start, why=(energy,), head=False)
        gradient = f"minus the gradient of {energy.name}"
        if (why := self._explain_near_zero(prop, start.unit, energy)) is not None:
            return _derive(replace(start, head=False), energy, gradient, why)
        return _derive(start, energy, gradient)

    def _explain_near_zero(
        self, prop: Property, unit: UnitGuess, energy: TargetProposal
    ) -> str | None:
        """Return why forces near zero get no head, by ``measure_told_share``; None for others.

        Args:
            prop: the forces.
            unit: their unit.
            energy: the energy that they are derived from.
        """
        if UNKNOWN in (unit.name, energy.unit.name):
            return None
        forces = prop.values[prop.known] * inside(unit.name)[0]
        size = float(np.sqrt((forces**2).sum(axis=1).mean())) if len(forces) else math.inf
        of_it = self.table.numbers[energy.key]
        structure = of_it.structure[of_it.known]
        if not size < NEAR_ZERO or not len(structure):
            return None
        sizes = self.counts[structure].sum(axis=1)
        energies = of_it.values[of_it.known, 0] * inside(energy.unit.name)[0]
        energies = energies / sizes if energy.config.energy == "total" else energies
        share = measure_told_share(forces, energies, self.counts[structure] / sizes[:, None])
        if share >= LEAST_TOLD:
            return None
        return (
            f"next to zero ({size:.1g} eV/angstrom): over {DISPLACEMENT:g} angstrom they tell "
            f"{100 * share:.1g} % of what the energies differ by beyond their elements, so that "
            "learning them would cost the energy; uncomment the head if you want them"
        )

    def _propose_stress(self, start: TargetProposal) -> TargetProposal | str:
        energy = self._find_energy(start.key)
        if isinstance(energy, str):
            return f"needs an energy: {energy}"
        crystals = [atoms.pbc.all() for atoms in self.structures]
        if not any(crystals):
            return "needs three periodic directions"
        if start.unit.name in ("GPa", "kbar"):
            start = start.with_unit(replace(start.unit, name=f"{start.unit.name}(stress)"))
        what = f"the strain derivative of {energy.name}, positive when tensile, as in ASE"
        if inside(start.unit.name)[1] == "eV":
            start = start.with_unit(replace(start.unit, name=f"{start.unit.name}(virial)"))
        if is_virial(start.unit.name):
            what = f"the strain derivative of {energy.name}: stress = -virial / volume"
        missing = () if all(crystals) else ("structures without three periodic directions lack it",)
        return _derive(
            replace(start.with_fields(optional=not all(crystals)), head=False),
            energy,
            what,
            *missing,
            "left to you: signs and units of stress differ between programs, and it costs time",
        )

    def _propose_scalar(self, start: TargetProposal, prop: Property) -> TargetProposal:
        """Propose a number per structure as energy, total or per atom, or as another target."""
        name = escape_line(prop.name)
        per_atom = is_per_atom(prop.name)
        values, counts = prop.values[prop.known, 0], self.counts[prop.structure[prop.known]]
        growth = classify_growth(values, counts)
        recognised = self.recognised.get(prop.name)
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
        without_unit = unit.sure == "unknown" and unit.name != UNKNOWN
        without_head = self.has_forces and without_unit and energy is None
        if extensive:
            why.append("extensive: it grows with the number of atoms, as a sum over them")
        if len(np.unique(values)) == 2:
            is_number = extensive or energy is not None or not without_unit
            if not is_number and (classes := _find_two_classes(values)):
                return _make_two_classes(start, classes, why, is_mark=prop.is_mark)
            why.append("has two values only: learned as a number, 'near which of the two'")
        else:
            why += _explain_common(values)
        if prop.is_mark:
            why.append(MARK)
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

    def _energy_unit(self, prop: Property, energy: str | None, recognised: str | None) -> UnitGuess:
        """Choose the unit of a scalar by its name, its values and the kind of file.

        Args:
            prop: the property.
            energy: ``total`` or ``per_atom``; None if it is no energy.
            recognised: unit from ``recognise_total_energy``.
        """
        name = escape_line(prop.name)
        unit = self._unit(prop, per_atom=energy == "per_atom")
        if energy == "per_atom" and prop.name not in self.units and inside(unit.name)[1] == "eV":
            unit = replace(unit, name=f"{unit.name}/atom")
        if recognised is not None and unit.sure != "said":
            why = "as it is near the energies of free atoms in it"
            return UnitGuess(recognised, "recognised", why)
        if recognised is not None and inside(unit.name)[0] != inside(recognised)[0]:
            self.warnings.append(
                f"{name} is said to be in {unit.name}, but its size is that of energies in "
                f"{recognised}: look at the card."
            )
        in_doubt = energy == "total" or (self.are_molecules and is_energy(prop.name))
        must_ask = unit.sure == "guessed" and in_doubt and not self.in_ase_units
        if must_ask or (energy is not None and unit.sure == "unknown"):
            why = "an energy, but not in which unit" if must_ask else unit.why
            per_atom = "/atom" if energy == "per_atom" else ""
            return ask_unit(prop.name, why, [f"{choice}{per_atom}" for choice in LEVEL_UNITS])
        return unit

    def _classify_energy(self, prop: Property, growth: str | None) -> tuple[str | None, list[str]]:
        """Classify a scalar as energy.

        Args:
            prop: the property.
            growth: result of ``classify_growth``.

        Returns:
            ``total``, ``per_atom`` or None for no energy, and the reasons.
        """
        declared = self._find_declared_unit(prop)
        inner = None if declared is None or declared.sure != "said" else inside(declared.name)[1]
        is_named = is_energy(self._strip_calculator(prop.name))
        if not is_named or inner not in (None, "eV", "eV/atom"):
            return None, []
        if inner == "eV/atom" and growth != "extensive":
            return "per_atom", ["its unit says per atom"]
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

    def _warn(self, prop: Property, *, total: bool) -> None:
        """Add warnings about infinite values, text, and values far from all others.

        Args:
            prop: the property.
            total: whether it is a total energy, which is compared per atom.
        """
        name = escape_line(prop.name)
        if prop.infinite:
            self.warnings.append(
                f"{name} is infinite, or more than {LARGEST:g}, in {prop.infinite} places: up to "
                "1 % of the structures are set aside by themselves, mend more."
            )
        if texts := self.table.texts.get(prop.name):
            self.warnings.append(
                f"{name} is text in {texts.total()} structures, as "
                f"'{escape_line(min(texts))[:40]}': up to 1 % are set aside by themselves; where a "
                "value is missing, leave the cell empty."
            )
        self._warn_of_far(prop, name, total=total)

    def _warn_of_far(self, prop: Property, name: str, *, total: bool) -> None:
        """Add a warning about values, or lengths of vectors, that are far from all others.

        Args:
            prop: the property.
            name: its name, to be shown.
            total: whether it is a total energy, which is compared per atom.
        """
        if prop.scalar:
            values = compared = prop.values[prop.known, 0]
        elif prop.width in _DIRECTED:
            values = compared = _largest_sizes(prop)
        else:
            return
        if not len(values):
            return
        if total:
            compared = values / self.counts[prop.structure[prop.known]].sum(axis=1)
        low, middle, high = np.quantile(compared, [0.05, 0.5, 0.95])
        away = np.abs(compared - middle)
        far = mark_far(compared)
        if prop.scalar:
            far |= away > FAR * max(high - low, float(np.std(compared)) / 2.0, 1e-12)
        if far.any():
            what = "values" if prop.scalar else "structures"
            self.warnings.append(
                f"{name} has {int(far.sum())} of {len(values)} {what} far from all others"
                f"{' per atom' if total else ''} (as {values[away.argmax()]:.4g}, the median is "
                f"{np.median(values):.4g}): wrong, or a marker for missing values? 'dataset "
                "check' names them."
            )


def _find_axis(prop: Property) -> AxisConfig | None:
    """Return the axis of a spectrum of numbered columns; None where its steps are not equal."""
    points = list(prop.columns.values())
    unit = re.sub(r"^.*\d|[\W_]", "", next(iter(prop.columns)))[:20]
    axis = AxisConfig(first=points[0], last=points[-1], unit=unit or "1")
    return axis if np.allclose(axis.points(len(points)), points) else None


def _usual_unit(prop: Property) -> str:
    """Return ASE's unit of forces, a stress or a virial."""
    if prop.is_forces:
        return "eV/angstrom"
    return "eV(virial)" if "virial" in normalize_name(prop.name) else "eV/angstrom^3"


def _largest_sizes(prop: Property) -> Array:
    """Return the largest length of a vector, or norm of a tensor, of each structure with one."""
    lengths = np.linalg.norm(prop.values[prop.known], axis=1)
    _, first = np.unique(prop.structure[prop.known], return_index=True)  # structures are in order
    return np.asarray(np.maximum.reduceat(lengths, first)) if len(first) else lengths


def _find_two_classes(values: Array) -> tuple[str, ...]:
    """Return the names of two whole values as classes; none where they are not whole."""
    if not (values == np.round(values)).all():
        return ()
    return tuple(name_class(value) for value in np.unique(values).tolist())


NO_UNIT = UnitGuess("1", "said", "classes have none")


def _make_two_classes(
    start: TargetProposal, classes: tuple[str, ...], why: Sequence[str], *, is_mark: bool
) -> TargetProposal:
    """Return the proposal for two whole numbers, which are taken for classes.

    Args:
        start: the target so far.
        classes: names of the two classes.
        why: reasons so far.
        is_mark: whether they may mark something, so that no head predicts them at first.
    """
    taken = "has two whole values only: taken for two classes; for a number drop shape and classes"
    reasons = (*why, taken, MARK) if is_mark else (*why, taken)
    return _make_class(start, classes, reasons, head=not is_mark)


def _make_class(
    start: TargetProposal, classes: tuple[str, ...], why: tuple[str, ...], *, head: bool
) -> TargetProposal:
    """Return a target of several classes.

    Args:
        start: name, key and level.
        classes: names of the classes.
        why: reasons, for comments in the card.
        head: whether the first campaign predicts it.
    """
    of_classes = start.with_unit(NO_UNIT).with_fields(shape="class", classes=classes)
    return replace(of_classes, why=why, head=head)


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
        proposal = _make_class(start, tuple(sorted(known)), reasons, head=key not in offered)
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


def _derive(start: TargetProposal, energy: TargetProposal, *why: str) -> TargetProposal | str:
    """Return a target as the derivative of an energy, or a reason to leave it out.

    Args:
        start: the target.
        energy: energy that it is a derivative of.
        why: reasons, for comments in the card.
    """
    if energy.unit.name not in ("eV", "eV/atom") and start.unit.sure == "guessed":
        if start.config.level != "node":
            return f"is in an unknown unit, beside an energy in {energy.unit.name}"
        energies = energy.unit.choices or (energy.unit.name,)
        above = dict.fromkeys(unit.removesuffix("/atom") for unit in energies)
        choices = [f"{unit}/{length}" for unit in above for length in ("angstrom", "bohr")]
        start = start.with_unit(ask_unit(start.key, "forces in no unit that is said", choices))
    return replace(start.with_fields(derived_from=energy.name), why=why)


def _explain_repeat(name: str, way: Relation, factor: float) -> str:
    """Return the reason to leave out a property that follows from a target.

    Args:
        name: name of the target in the file.
        way: how the property follows from it.
        factor: factor of the relation.
    """
    name = escape_line(name)[:60]
    times = "" if abs(factor - 1.0) < 1e-4 else f" times {factor:.6g}"
    if way == "multiple" and factor == 1.0:
        return f"has the same numbers as {name}"
    atoms = {"multiple": "", "total": " times the number of atoms", "per atom": " per atom"}[way]
    return f"is {name}{atoms}{times}: one quantity, and {name} is the target"


def _is_gap(prop: Property) -> bool:
    """Check whether a property is a gap by its name, and nowhere below 0."""
    named = _GAP.fullmatch(normalize_name(prop.name)) is not None
    return named and prop.width == 1 and not bool((prop.values < 0.0).any())


def _find_common_sum(prop: Property) -> float | None:
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


def _describe_spread(prop: Property) -> str:
    values = prop.values[prop.known]
    if prop.width == 1:
        return f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}"
    return f"components {values.min():.3g} to {values.max():.3g}"
