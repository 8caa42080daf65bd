"""What unit a property is in, by its name: said there, usual for such a name, or not known."""

import re
from dataclasses import dataclass
from typing import Literal

UNKNOWN = "?"
"""Stands in a card where only the user can know; ``CardConfig`` stops there."""

Sure = Literal["said", "recognised", "guessed", "unknown"]


@dataclass(frozen=True)
class Unit:
    """A unit, and how it is known."""

    name: str
    sure: Sure
    why: str


_SAID = {
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
"""How units are written at the end of names, the longer ones first."""

_USUAL = (
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
"""What is usual for names, the special ones first."""

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


def normal(name: str) -> str:
    """Give a name in small letters, words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_energy(name: str) -> bool:
    """Tell whether a name means an energy that forces could be derivatives of."""
    plain = normal(name)
    return bool(_ENERGY.search(plain)) and not _NO_ENERGY.search(plain)


def says_per_atom(name: str) -> bool:
    """Tell whether a name says that a value is one per atom."""
    return bool(_PER_ATOM.search(normal(name)))


def said_unit(name: str) -> str | None:
    """Give the unit that stands at the end of a name, as in ``gap_ev`` or ``gap [eV]``."""
    plain = normal(name)
    for unit, pattern in _SAID.items():
        if re.search(rf"_({pattern})$", plain):
            return unit
    return None


def unit_of(name: str, *, per_atom: bool = False, result: bool = False) -> Unit:
    """Tell the unit of a scalar property.

    Args:
        name: of the property.
        per_atom: whether it is known to be a value per atom of an energy.
        result: whether it is a result of ASE's calculators.
    """
    said = said_unit(name)
    if said is not None:
        return Unit(said, "said", f"the name ends in it: {said}")
    plain = normal(name)
    if is_energy(name):
        found = "eV/atom" if per_atom or says_per_atom(name) else "eV"
        if result or found == "eV/atom":
            why = "ASE's unit" if result else "usual for energies per atom"
            return Unit(found, "guessed", why)
        return Unit(found, "guessed", "usual for energies in files of structures")
    for pattern, unit, what in _USUAL:
        if re.search(pattern, plain):
            unit = "muB/atom" if unit == "muB" and says_per_atom(name) else unit
            return Unit(unit, "guessed", f"usual for {what}")
    return Unit("1", "unknown", "nothing says it: numbers stay as they are in the file")
