"""Energies of free atoms, by which the unit of total energies is recognised.

Shapes: G structures, Z kinds of elements.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hydragnn_hpo.inspection.element_fits import MIN_FITTED, Array

MIN_COMPOSITIONS = 3
"""Compositions whose energies are near those of free atoms only where they are such sums."""

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

LIGHT_ATOMS = {z: FREE_ATOMS[z] for z in (1, 6, 7, 8, 9)}
"""Energies in Hartree of free atoms that are hardly ever given pseudopotentials in molecules."""

LIGHT_MISS = {1: 0.5}
"""Largest relative difference to them by bonds, by atomic number; ``MISS`` for others."""

MISS = 0.03

MIN_FREEDOM = 5
"""Smallest number of structures beyond the number of coefficients of a fit."""


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
    return match_light_atoms(fit_light_atoms(values, counts, kinds))


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


def match_light_atoms(fitted: Mapping[int, float]) -> str | None:
    """Return the unit in which coefficients of two or more light elements are those of free atoms.

    Args:
        fitted: coefficient by atomic number, see ``fit_light_atoms``.
    """
    if len(fitted) < 2:
        return None
    for unit, factor in PER_HARTREE.items():
        misses = {z: abs(value / (factor * LIGHT_ATOMS[z]) - 1.0) for z, value in fitted.items()}
        if all(miss < LIGHT_MISS.get(z, MISS) for z, miss in misses.items()):
            return unit
    return None
