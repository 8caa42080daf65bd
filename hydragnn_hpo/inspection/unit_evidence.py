"""Evidence for units: possible sizes of levels of electrons, and energies of atoms in totals.

Shapes: G structures, Z kinds of elements.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.properties import Property, normalize_name
from hydragnn_hpo.units import inside

Array = NDArray[np.float64]

LEVEL_UNITS = ("eV", "meV", "Hartree", "Rydberg", "kcal/mol", "kJ/mol")
"""Units that levels and gaps of electrons may have."""

MIN_VALUES = 3
"""Smallest number of values whose median says something."""

NONMETALS = (1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 33, 34, 35, 36, 52, 53, 54)
"""Atomic numbers of elements whose molecules have gaps."""


@dataclass(frozen=True)
class LevelRange:
    """Possible sizes of a kind of level in molecules, in eV."""

    pattern: str
    """Matches its names after ``normalize_name``."""
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
    LevelRange(r"singlet|triplet|(^|_)s_?t_|spin", 0.0, 26.0),
    # Dyes and polymers have gaps of 1 eV; helium has an excitation energy of 21 eV.
    LevelRange(r"gap", 0.5, 26.0, nonmetals=True, periodic=True),
    # From the clusters of alkali metals, 2 to 4 eV, to helium, 24.6 eV.
    LevelRange(r"homo|ioni[sz]ation|(^|_)[va]?i[pe]($|_)", 2.0, 26.0),
    # Levels of small basis sets lie up to 0.6 Hartree above the vacuum.
    LevelRange(r"lumo|affinity", 0.0, 20.0),
    # Against the vacuum or the mean potential, which moves them by a few tens of eV at most.
    LevelRange(r"fermi|vbm|cbm|work_?function", 0.0, 40.0, periodic=True),
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
    name = normalize_name(prop.name)
    allowed = next((one for one in LEVEL_RANGES if re.search(one.pattern, name)), None)
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


LIGHT_ATOMS = {1: -0.5, 6: -37.8450, 7: -54.5892, 8: -75.0673, 9: -99.7339}
"""Energies in Hartree of free atoms that are hardly ever given pseudopotentials in molecules.

Source: as of ``targets.FREE_ATOMS``.
"""

LIGHT_MISS = {1: 0.5}
"""Largest relative difference to them by bonds, by atomic number; ``MISS`` for others."""

MISS = 0.03

MIN_FREEDOM = 5
"""Smallest number of structures beyond the number of coefficients of a fit."""


def fit_light_atoms(values: Array, counts: Array, kinds: Sequence[int]) -> dict[int, float]:
    """Fit energies of structures by one coefficient per element; return those of light elements.

    Args:
        values: energy of each structure, [G].
        counts: atoms of each element, [G, Z].
        kinds: atomic numbers, [Z].

    Returns:
        Coefficient by atomic number of ``LIGHT_ATOMS``, without those that the compositions do not
        determine to ``MISS``.
    """
    if np.quantile(values, 0.95) >= 0.0:
        return {}
    inverse = np.linalg.pinv(counts, rcond=1e-10)
    resolution = inverse @ counts
    fitted = inverse @ values
    freedom = len(values) - round(float(np.trace(resolution)))
    if freedom < MIN_FREEDOM:
        return {}
    noise = np.sqrt(np.square(values - counts @ fitted).sum() / freedom)
    errors = noise * np.linalg.norm(inverse, axis=1)
    return {
        z: float(fitted[at])
        for at, z in enumerate(kinds)
        if z in LIGHT_ATOMS
        and abs(resolution[at, at] - 1.0) < 1e-6
        and errors[at] < LIGHT_MISS.get(z, MISS) * abs(fitted[at])
    }


def match_light_atoms(fitted: Mapping[int, float], factors: Mapping[str, float]) -> str | None:
    """Return the unit in which coefficients of two or more light elements are those of free atoms.

    Args:
        fitted: coefficient by atomic number, see ``fit_light_atoms``.
        factors: one Hartree by unit.
    """
    if len(fitted) < 2:
        return None
    for unit, factor in factors.items():
        misses = {z: abs(value / (factor * LIGHT_ATOMS[z]) - 1.0) for z, value in fitted.items()}
        if all(miss < LIGHT_MISS.get(z, MISS) for z, miss in misses.items()):
            return unit
    return None
