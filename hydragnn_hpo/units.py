"""Units of input files, with factors to the internal units: eV, angstrom, e, muB and seconds.

Source of the factors: CODATA 2018, ``ase.units.create_units("2018")`` of ASE 3.29.
"""

import re
from typing import TYPE_CHECKING

from hydragnn_hpo.errors import ConfigError, unknown

if TYPE_CHECKING:
    from hydragnn_hpo.file_records import TargetStats

_ENERGY = {
    "eV": 1.0,
    "meV": 1e-3,
    "Hartree": 27.211386245988,
    "Rydberg": 13.605693122994,
    "kcal/mol": 0.0433641042418009,
    "kJ/mol": 0.0103642696562634,
}
_LENGTH = {"angstrom": 1.0, "bohr": 0.529177210903, "nm": 10.0}
_CHARGE = {"e": 1.0}
_MAGNETIC = {"muB": 1.0}
_DIPOLE = {"e*angstrom": 1.0, "e*bohr": 0.529177210903, "debye": 0.20819433442462576}
_VOLUME = {"angstrom^3": 1.0, "bohr^3": 0.148184711472898}
"""For polarizabilities, in units of volume."""
_PURE = {"1": 1.0}
_PPM = {"ppm": 1.0}
"""Parts per million, of shieldings and chemical shifts of nuclei."""
_INVERSE_LENGTH = {"1/cm": 1.0}
_PRESSURE = {"GPa": 1.0, "kbar": 0.1, "log10(GPa)": 1.0}
_STRESS = {
    "eV/angstrom^3": 1.0,
    "GPa(stress)": 0.006241509074460763,
    "kbar(stress)": 6.241509074460763e-4,
}
"""For a stress that is a derivative of an energy; plain ``GPa`` and ``kbar`` are pressures."""
_VIRIAL = "(virial)"
"""Suffix of units of energy in which a virial, minus the stress times the volume, is given."""
_TEMPERATURE = {"K": 1.0}


def _conversions() -> dict[str, tuple[float, str]]:
    """Return each unit that a card may name -> its factor and the internal unit."""
    table: dict[str, tuple[float, str]] = {}
    bases = (
        *("eV", "angstrom", "e", "muB", "1", "ppm"),
        *("1/cm", "GPa", "eV/angstrom^3", "K", "e*angstrom", "angstrom^3"),
    )
    families = (
        *(_ENERGY, _LENGTH, _CHARGE, _MAGNETIC, _PURE, _PPM),
        *(_INVERSE_LENGTH, _PRESSURE, _STRESS, _TEMPERATURE, _DIPOLE, _VOLUME),
    )
    for base, family in zip(bases, families, strict=True):
        for name, factor in family.items():
            inside = base if name in family and factor != 1.0 else name
            table[name] = (factor, inside)
    for energy, factor in _ENERGY.items():
        table[f"{energy}{_VIRIAL}"] = (-factor, "eV/angstrom^3")
        table[f"{energy}/atom"] = (factor, "eV/atom")
        for length, scale in _LENGTH.items():
            table[f"{energy}/{length}"] = (factor / scale, "eV/angstrom")
        if "/" not in energy:  # densities of states
            table[f"1/{energy}"] = (1.0 / factor, "1/eV")
    table["muB/atom"] = (1.0, "muB/atom")
    return table


_TABLE = _conversions()


def is_unit(name: str) -> bool:
    """Check whether a card may name a unit."""
    return name in _TABLE


def is_virial(unit: str) -> bool:
    """Check whether values in a unit become a stress where they are divided by the volume."""
    return unit.endswith(_VIRIAL)


def inside(unit: str) -> tuple[float, str]:
    """Return the conversion of a unit to the internal unit.

    >>> inside("meV")
    (0.001, 'eV')

    Args:
        unit: as a card names it.

    Returns:
        Factor by which a value in ``unit`` is multiplied, and name of the internal unit.

    Raises:
        ConfigError: the unit is unknown.
    """
    if unit not in _TABLE:
        raise ConfigError(unknown("unit", unit, [name for name in _TABLE if not is_virial(name)]))
    return _TABLE[unit]


GUESSED = " (guessed)"
"""Suffix of a unit that was guessed and is not confirmed, wherever it is displayed."""


def mark_guess(unit: str, *, guessed: bool) -> str:
    """Return a unit as it is shown: with ``GUESSED`` where it is a guess; ``1`` stays as it is."""
    return f"{unit}{GUESSED}" if guessed and unit != "1" else unit


def shown_unit(target: "TargetStats") -> str:
    """Return the unit of a target of a store as it is shown beside numbers, see ``mark_guess``."""
    return mark_guess(target["unit"], guessed=target.get("unit_guessed", False))


_SPELLINGS = {
    "eV": "ev electronvolt electronvolts",
    "meV": "",  # "MeV" is another unit
    "Hartree": "ha hartree hartrees eh e_h hartree_energy",
    "Rydberg": "ry ryd rydberg rydbergs",
    "kcal/mol": "kcalmol kcalpermol",
    "kJ/mol": "kjmol kjpermol",
    "angstrom": "A ang angs angstrom angstroms \u00e5 \u212b",
    "bohr": "bohr bohrs a0 a_0 bohr_radius",
    "nm": "nm nanometer nanometers",
    "e": "e elementary_charge",
    "muB": "mub mu_b bohrmag bohr_magneton bohr_magnetons \u03bcb \u00b5b",
    "debye": "D debye debyes",
    "K": "kelvin",
    "GPa": "gpa",
    "kbar": "kbar",
    "ppm": "ppm",
    "atom": "atom atoms",
    "cm": "cm",
    "mol": "mol mole",
    "kcal": "kcal",
    "kJ": "kj",
    "1": "1 unitless dimensionless none particle molecule",
}
"""Usual spellings of each unit or part of one: as they stand here, or in capitals."""

_BY_SPELLING = {
    spelling: name
    for name, spellings in _SPELLINGS.items()
    for spelling in (name, *spellings.split())
}


def interpret_unit(text: str) -> str | None:
    """Return the unit that a text of another program means; None for an unknown one.

    >>> interpret_unit("Ha/Bohr"), interpret_unit("a0 a0 a0"), interpret_unit("furlong")
    ('Hartree/bohr', 'bohr^3', None)

    Args:
        text: such as ``kcal/mol``, ``kcal mol^-1``, ``e*Ang`` or ``eV per atom``.
    """
    if is_unit(text):
        return text
    text = re.sub(r"\*\*|\^\{?|(?<=[a-z])(?=-\d)", "^", text.strip().replace("}", ""))
    text = re.sub(r"\s+per\s+|\s*/\s*", "/", text)
    powers: dict[str, int] = {}
    for place, part in enumerate(text.split("/")):
        for factor in re.split(r"[\s*\u00b7\u22c5()]+", part):
            name, _, power = factor.partition("^")
            known = _BY_SPELLING.get(name) or _BY_SPELLING.get(name.lower())
            if (known is None and name) or not re.fullmatch(r"([+-]?[1-9])?", power):
                return None
            if known is not None and known != "1":
                sign = -1 if place else 1
                powers[known] = powers.get(known, 0) + sign * int(power or 1)
    if powers.get("mol") == -1:
        energy = next((name for name in ("kcal", "kJ") if powers.get(name) == 1), None)
        if energy is not None:
            del powers["mol"], powers[energy]
            powers = {f"{energy}/mol": 1, **powers}
    above = [name if n == 1 else f"{name}^{n}" for name, n in powers.items() if n > 0]
    below = [name if n == -1 else f"{name}^{-n}" for name, n in powers.items() if n < 0]
    made = "/".join(["*".join(above) or "1", *below])
    return made if is_unit(made) else None
