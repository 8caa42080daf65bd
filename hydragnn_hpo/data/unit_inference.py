"""Infer from name and values the unit of a number, and whether it grows with the structure.

Shapes: G structures, Z kinds of elements.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.properties import Array, normalize_name

UNKNOWN = "?"
"""Unit in a card that only the user knows; ``CardConfig`` refuses it."""

MIN_FITTED = 12
"""Structures below which a regression is not trusted."""

MIN_SIZE_RATIO = 1.3
"""Largest over smallest structure below which growth with the size cannot be judged."""

MARGIN = 0.02
"""Part of the variance by which one fit must be better than the other."""

MIN_EXPLAINED = 0.1
"""Part of the variance that elements must explain for a fit to be trusted."""

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

BINDING = 0.03
"""Largest relative difference between the energy of a molecule and that of its free atoms, but for
molecules of hydrogen alone."""

_SUFFIXES = {
    "kcal/mol/angstrom": r"kcal_mol_a(ng(strom)?)?",
    "eV/angstrom^3": r"ev_a(ng(strom)?)?_?3",
    "eV/angstrom": r"ev_(per_)?a(ng(strom)?)?",
    "Hartree/bohr": r"(hartree|ha|eh)_(per_)?(bohr|a0)",
    "meV/atom": r"mev_(per_)?atom",
    "eV/atom": r"ev_(per_)?atom",
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
    "angstrom": r"ang(strom)?s?",
    "bohr": r"bohr",
    "nm": r"nm",
    "K": r"kelvin",
}
"""Spellings of units at the end of names, the longer ones first."""

_USUAL_UNITS = (
    (r"log_?10.*(g|k)_?v?rh|log_[gk]vrh", "log10(GPa)", "decimal logarithms of moduli"),
    (r"modul|(^|_)(bulk|shear|elastic)|pressure", "GPa", "moduli and pressures"),
    (
        r"gap|homo|lumo|vbm|cbm|fermi|workfunction|work_function",
        "eV",
        "levels and gaps of electrons",
    ),
    (r"hull", "eV/atom", "energies above the hull"),
    (r"(magmom|magneti[sz]ation|moment|spin_density|(^|_)mag($|_))", "muB", "magnetic moments"),
    (r"charge|mulliken|hirshfeld|bader|(^|_)q($|_)", "e", "charges"),
    (r"phdos|phonon|frequenc|wavenumber", "1/cm", "frequencies of vibrations"),
    (r"temperature|(^|_)t[cm]($|_)|melting", "K", "temperatures"),
)
"""Units that are usual for names, special names first."""

_PER_ATOM = re.compile(r"(per_?atom|_pa|peratom)($|_)")

_ENERGY = re.compile(
    r"(^|_)(energy|energies|e|etot|etotal|toten|e_?form|formation|atomi[sz]ation|cohesive|u0|u|"
    r"e_?tot|total_?energy|free_?energy|internal_energy|eform|ef)($|_)|energy"
)
_NO_ENERGY = re.compile(
    r"homo|lumo|gap|hull|fermi|surface|adsor|band|zpve|zero_?point|barrier|activation|reorgani|"
    r"ioni[sz]ation|affinity|kinetic|vibration|solvation|binding|bond|level|error|std|variance|"
    r"uncertainty|excitation|singlet|triplet|strain|lattice"
)


@dataclass(frozen=True)
class UnitGuess:
    """A unit and its certainty."""

    name: str
    sure: Literal["said", "recognised", "guessed", "unknown"]
    why: str


def is_energy(name: str) -> bool:
    """Check whether a name means an energy that forces could be derivatives of."""
    name = normalize_name(name)
    return bool(_ENERGY.search(name)) and not _NO_ENERGY.search(name)


def is_per_atom(name: str) -> bool:
    """Check whether a name says that a value is one per atom."""
    return bool(_PER_ATOM.search(normalize_name(name)))


def parse_unit(name: str) -> str | None:
    """Return the unit at the end of a name, as in ``gap_ev`` or ``gap [eV]``."""
    name = normalize_name(name)
    matches = (u for u, pattern in _SUFFIXES.items() if re.search(rf"_({pattern})$", name))
    return next(matches, None)


def guess_unit(name: str, *, per_atom: bool = False, result: bool = False) -> UnitGuess:
    """Guess the unit of a scalar property.

    Args:
        name: of the property.
        per_atom: whether it is known to be an energy per atom.
        result: whether it is a result of ASE's calculators.
    """
    unit = parse_unit(name)
    if unit is not None:
        return UnitGuess(unit, "said", f"the name ends in it: {unit}")
    if is_energy(name):
        if per_atom or is_per_atom(name):
            why = "ASE's unit" if result else "usual for energies per atom"
            return UnitGuess("eV/atom", "guessed", why)
        why = "ASE's unit" if result else "usual for energies in files of structures"
        return UnitGuess("eV", "guessed", why)
    for pattern, unit, what in _USUAL_UNITS:
        if re.search(pattern, normalize_name(name)):
            unit = "muB/atom" if unit == "muB" and is_per_atom(name) else unit
            return UnitGuess(unit, "guessed", f"usual for {what}")
    return UnitGuess("1", "unknown", "nothing says it: numbers stay as they are in the file")


def count_elements(numbers: Sequence[NDArray[np.int64]]) -> tuple[Array, list[int]]:
    """Count the atoms of each element.

    Returns:
        Counts, [G, Z], and the atomic numbers of the columns.
    """
    kinds = sorted({int(z) for each in numbers for z in np.unique(each)})
    counts = np.array([[np.count_nonzero(each == z) for z in kinds] for each in numbers])
    return counts.astype(np.float64), kinds


def classify_growth(values: Array, counts: Array) -> Literal["extensive", "intensive"] | None:
    """Classify whether a number grows with the structure; None where the data do not tell.

    A number per element is fitted on half of the structures, once as a sum over atoms, once as a
    mean. What explains more of the variance of the other half wins.
    """
    sizes = counts.sum(axis=1)
    few = len(values) < MIN_FITTED or sizes.max() < MIN_SIZE_RATIO * sizes.min()
    if few or np.ptp(values) == 0:
        return None
    fit = np.zeros(len(values), dtype=bool)  # files have an order: every other row may be alike
    fit[np.random.default_rng(0).permutation(len(values))[::2]] = True
    total = explained_variance(values, counts, fit)
    mean = explained_variance(values, counts / sizes[:, None], fit)
    if total > max(mean, 0.5) + MARGIN or (total > 0.999 and total > mean):
        return "extensive"
    trusted = mean > MIN_EXPLAINED or total < -1.0  # a sum that is worse than no fit is none
    return "intensive" if trusted and mean > total + MARGIN else None


def explained_variance(values: Array, weights: Array, fit: NDArray[np.bool_]) -> float:
    """Fit one number per element, and return the part of the variance explained on other rows.

    Args:
        values: of each structure, [G].
        weights: of each element, [G, Z].
        fit: rows to fit, [G].
    """
    held = ~fit
    design, right = weights[fit], values[fit]
    penalty = 1e-6 * np.eye(design.shape[1]) * max(float((design**2).mean()), 1e-12)
    numbers = np.linalg.solve(design.T @ design + penalty * len(design), design.T @ right)
    residual = values[held] - weights[held] @ numbers
    variance = max(float(np.var(values[held])) * len(residual), 1e-300)
    return 1.0 - float((residual**2).sum()) / variance


def recognise_total_energy(values: Array, counts: Array, kinds: Sequence[int]) -> str | None:
    """Recognise the unit of all-electron total energies by the energies of free atoms.

    Pseudopotentials and tight binding leave out the core: their energies resemble nothing.

    Args:
        values: of each structure, [G].
        counts: atoms of each element, [G, Z].
        kinds: atomic numbers, [Z].
    """
    known = np.array([FREE_ATOMS.get(z, np.nan) for z in kinds])
    atoms = counts @ np.nan_to_num(known)
    heavy = (counts * (np.array(kinds) > 2)).sum(axis=1)
    used = (counts[:, np.isnan(known)].sum(axis=1) == 0) & (heavy > 0) & (values != 0)
    if used.sum() < MIN_FITTED:
        return None
    ratio = values[used] / atoms[used]
    middle, spread = float(np.median(ratio)), float(np.ptp(np.quantile(ratio, [0.1, 0.9])))
    for unit, factor in PER_HARTREE.items():
        if abs(middle / factor - 1.0) < BINDING and spread < 2 * BINDING * factor:
            return unit
    return None
