"""Units of input files, with factors to the internal units: eV, angstrom, e, muB and seconds.

Source of the factors: CODATA 2018, ``ase.units.create_units("2018")`` of ASE 3.29.
"""

from hydragnn_hpo.errors import ConfigError, unknown

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
        raise ConfigError(unknown("unit", unit, _TABLE))
    return _TABLE[unit]
