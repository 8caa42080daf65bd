"""Units of lengths: decided by the distances of atoms where a format does not say them."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.neighborlist import neighbor_list

from hydragnn_hpo.units import inside

LengthUnit = Literal["angstrom", "bohr"]
"""Units that lengths of a file may be in."""

NOBLE_GASES = (2, 10, 18, 36, 54, 86)
"""Atomic numbers of elements whose atoms are far apart in every unit."""

_BONDED = (0.75, 1.5)
"""Median distances of nearest atoms, over the sum of their covalent radii, if the unit is right;
0.9 to 1.1 in molecules and crystals at usual pressures."""

_ANGSTROM_AS_BOHR = (0.4, 0.66)
"""The same if lengths in angstrom are read as bohr, which makes them 0.53 times as long."""

_LEAST_VOLUME = 0.1
"""Cubic angstrom per atom below which a structure is none; in diamond there are 5.7."""

_ENOUGH_ATOMS = 2000
"""Number of atoms by which the unit is decided."""


def to_angstrom(atoms: Atoms, unit: str | None) -> Atoms:
    """Convert positions and cell of a structure to angstrom; ``atoms`` changes.

    Args:
        atoms: the structure.
        unit: unit of its lengths; None means angstrom.
    """
    if unit not in (None, "angstrom"):
        factor = inside(str(unit))[0]
        atoms.cell = factor * atoms.cell.array
        atoms.positions *= factor
    return atoms


def decide_length(structures: Iterable[Atoms]) -> LengthUnit | None:
    """Decide whether structures that were read as bohr are in bohr or in angstrom.

    Args:
        structures: the structures, lengths in angstrom if they are in bohr.

    Returns:
        The unit in which nearest atoms are about as far apart as their covalent radii add up to;
        None where that is not clear.
    """
    ratios: list[float] = []
    seen = 0
    for atoms in structures:
        ratios += find_nearest(atoms)[~np.isin(atoms.numbers, NOBLE_GASES)].tolist()
        seen += len(atoms)
        if seen >= _ENOUGH_ATOMS:
            break
    middle = float(np.median(ratios)) if ratios else np.inf
    if _BONDED[0] <= middle <= _BONDED[1]:
        return "bohr"
    return "angstrom" if _ANGSTROM_AS_BOHR[0] <= middle <= _ANGSTROM_AS_BOHR[1] else None


def find_nearest(atoms: Atoms) -> np.ndarray:
    """Return the distance of each atom to its nearest one over the sum of their covalent radii.

    Returns:
        [N]; infinite for an atom without another one within 1.5 times that sum, and in a structure
        that is none.
    """
    nearest = np.full(len(atoms), np.inf)
    if not np.isfinite(atoms.positions).all():
        return nearest
    is_crystal = atoms.cell.rank == 3
    if is_crystal and atoms.cell.volume < _LEAST_VOLUME * len(atoms):
        return nearest
    atoms = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=is_crystal and atoms.pbc)
    radii = covalent_radii[atoms.numbers]
    centers, others, distances = neighbor_list("ijd", atoms, _BONDED[1] * radii)  # type: ignore[no-untyped-call]
    np.minimum.at(nearest, centers, distances / (radii[centers] + radii[others]))
    return nearest
