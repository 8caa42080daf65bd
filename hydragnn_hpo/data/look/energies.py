"""Is a number a sum over atoms, and in which unit: by regression, and by the energies of atoms.

Shapes: G structures, Z kinds of elements.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEWEST = 12
"""Structures below which a regression says nothing."""

SPREAD = 1.3
"""Largest over smallest structure below which nothing is known about growing with the size."""

MARGIN = 0.02
"""By how much of the variance one explanation must be better than the other."""

EXPLAINS = 0.1
"""Part of the variance that elements must explain for a regression to say anything."""

ATOMS = {
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
"""Units that total energies come in, in a Hartree (CODATA 2018)."""

NEAR = 0.03
"""Bonds change the energies of atoms by this part at most, of molecules that are not hydrogen."""


def counts_of(numbers: list[NDArray[np.int64]]) -> tuple[Array, list[int]]:
    """Give how many atoms of each element structures have, [G, Z], and the elements."""
    kinds = sorted({int(z) for each in numbers for z in np.unique(each)})
    counts = np.array([[np.count_nonzero(each == z) for z in kinds] for each in numbers])
    return counts.astype(np.float64), kinds


def growth(values: Array, counts: Array) -> Literal["extensive", "intensive"] | None:
    """Tell whether a number grows with the structure; None where the data do not say.

    A number per element is fitted on half of the structures, once as a sum over atoms, once as a
    mean, and judged on the other half: whichever explains more of the variance there.
    """
    sizes = counts.sum(axis=1)
    if len(values) < FEWEST or sizes.max() < SPREAD * sizes.min() or np.ptp(values) == 0:
        return None
    fit = np.zeros(len(values), dtype=bool)  # files have an order: every other row may be alike
    fit[np.random.default_rng(0).permutation(len(values))[::2]] = True
    total = explained(values, counts, fit)
    mean = explained(values, counts / sizes[:, None], fit)
    if total > max(mean, 0.5) + MARGIN or (total > 0.999 and total > mean):
        return "extensive"
    says = mean > EXPLAINS or total < -1.0  # a sum that is worse than no fit at all is none
    return "intensive" if says and mean > total + MARGIN else None


def explained(values: Array, weights: Array, fit: NDArray[np.bool_]) -> float:
    """Give the part of the variance that one number per element explains, on rows not fitted."""
    held = ~fit
    design, right = weights[fit], values[fit]
    penalty = 1e-6 * np.eye(design.shape[1]) * max(float((design**2).mean()), 1e-12)
    numbers = np.linalg.solve(design.T @ design + penalty * len(design), design.T @ right)
    left = values[held] - weights[held] @ numbers
    return 1.0 - float((left**2).sum()) / max(float(np.var(values[held])) * len(left), 1e-300)


def all_electron_unit(values: Array, counts: Array, kinds: list[int]) -> str | None:
    """Recognise the unit of all-electron total energies by those of free atoms.

    Pseudopotentials and tight binding leave out the core: their energies resemble nothing.
    """
    known = np.array([ATOMS.get(z, np.nan) for z in kinds])
    light = counts @ np.nan_to_num(known)
    heavy = (counts * (np.array(kinds) > 2)).sum(axis=1)
    use = (counts[:, np.isnan(known)].sum(axis=1) == 0) & (heavy > 0) & (values != 0)
    if use.sum() < FEWEST:
        return None
    ratio = values[use] / light[use]
    middle, spread = float(np.median(ratio)), float(np.ptp(np.quantile(ratio, [0.1, 0.9])))
    for unit, factor in PER_HARTREE.items():
        if abs(middle / factor - 1.0) < NEAR and spread < 2 * NEAR * factor:
            return unit
    return None
