"""Structures as dictionaries: pymatgen's and JARVIS's, as their JSON files hold them."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers

from hydragnn_hpo.errors import DataError

_ELEMENT = re.compile("[A-Z][a-z]?")

_FULL = 1e-3
"""An occupancy may be this far from 1."""


def structure_of(value: Mapping[str, Any], place: str) -> Atoms:
    """Make a structure of a pymatgen ``Structure`` or ``Molecule``, or of a JARVIS ``atoms``.

    Site properties become arrays.

    Args:
        value: with ``sites`` (pymatgen), or ``elements`` and ``coords`` (JARVIS).
        place: where it comes from, for errors.

    Raises:
        DataError: something is missing or does not fit, or a site is partly occupied.
    """
    try:
        if "sites" in value:
            return _pymatgen(value, place)
        return _jarvis(value, place)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{place} is no structure of pymatgen or JARVIS ({' '.join(reason.split())}); mend or "
            "remove it."
        ) from error


def _pymatgen(value: Mapping[str, Any], place: str) -> Atoms:
    sites = value["sites"]
    numbers = [_number(site, number, place) for number, site in enumerate(sites, start=1)]
    lattice = value.get("lattice")
    if lattice is None:
        atoms = Atoms(numbers, positions=[site["xyz"] for site in sites])
    else:
        pbc = lattice.get("pbc", (True, True, True))
        scaled = np.array([site["abc"] for site in sites], dtype=float).reshape(-1, 3)
        atoms = Atoms(numbers, scaled_positions=scaled, cell=lattice["matrix"], pbc=pbc)
    for name in sites[0].get("properties") or {} if sites else {}:
        found = np.array([site["properties"][name] for site in sites])
        if found.dtype.kind in "bif" and name not in atoms.arrays:
            atoms.arrays[name] = found
    return atoms


def _number(site: Mapping[str, Any], number: int, place: str) -> int:
    """Return the element of a site that holds one atom."""
    kinds = site["species"]
    if len(kinds) != 1 or abs(float(kinds[0].get("occu", 1.0)) - 1.0) > _FULL:
        found = ", ".join(f"{kind['element']} {kind.get('occu', 1.0):g}" for kind in kinds)
        raise DataError(
            f"{place} has a site with partial occupancy (site {number}: {found}); give an ordered "
            "structure."
        )
    symbol = _ELEMENT.match(str(kinds[0]["element"]))  # "Fe2+,spin=5" is iron
    return int(atomic_numbers[symbol.group() if symbol else str(kinds[0]["element"])])


def _jarvis(value: Mapping[str, Any], place: str) -> Atoms:
    symbols = [str(symbol).strip() for symbol in value["elements"]]
    coordinates = np.array(value["coords"], dtype=float).reshape(-1, 3)
    numbers = [atomic_numbers[symbol] for symbol in symbols]
    cell = np.array(value["lattice_mat"], dtype=float)
    where = {"positions" if value.get("cartesian") else "scaled_positions": coordinates}
    if len(numbers) != len(coordinates):
        raise DataError(f"{place} has {len(numbers)} elements for {len(coordinates)} positions.")
    return Atoms(numbers, cell=cell, pbc=True, **where)
