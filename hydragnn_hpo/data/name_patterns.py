"""What names of properties say, by the regular expressions of ``name_patterns.toml``."""

import re
import tomllib
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_suffix(".toml")
"""All regular expressions about names of properties, each with names to try it on."""


class NamePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression about names, and what a name says that it matches."""

    regex: str
    """Searched in a name after ``normalize_name``; white space in it has no meaning."""
    examples: tuple[str, ...]
    """Names that it matches."""
    near_misses: tuple[str, ...]
    """Names that it must not match."""
    says: str = ""
    """What the name says, or names, in words; empty where that is its unit."""
    unit: str = ""
    """The unit that is usual for it."""
    raw: bool = False
    """Whether the name is searched as it stands in the file."""

    def search(self, name: str) -> re.Match[str] | None:
        """Search a name of a property, as it stands in the file."""
        return re.search(self.regex, name if self.raw else normalize_name(name), re.VERBOSE)

    def remove(self, name: str, by: str = "") -> str:
        """Return a name, normalized unless ``raw``, with other text in place of each match."""
        return re.sub(self.regex, by, name if self.raw else normalize_name(name), flags=re.VERBOSE)


PATTERNS = msgspec.convert(
    tomllib.loads(TABLE.read_text(encoding="utf-8")), dict[str, dict[str, NamePattern]]
)
"""The table: patterns by what they say, in three groups."""

NAMES = PATTERNS["names"]
"""Patterns of what a name says, by a key."""

UNIT_SUFFIXES = PATTERNS["unit_suffixes"]
"""Patterns of the end of a name, by the unit that it says; longer ones first."""

USUAL_UNITS = PATTERNS["usual_units"]
"""Patterns of what has a usual unit, by a key; more specific ones first."""

_PLAIN_WORDS = {"total", "tot", "potential", "pot", "internal", "e", "etot", "etotal", "toten"}
_KIND_WORDS = {
    *_PLAIN_WORDS,
    *("free", "formation", "form", "eform", "ef", "cohesive", "atomization", "atomisation"),
    *("u", "u0", "corrected", "uncorrected", "correction", "raw", "final", "initial", "static"),
    *("electronic", "per", "atom", "atoms", "atomic", "peratom", "pa", "cell", "system", "sum"),
    *("relative", "reaction", "mixing", "consistent", "tensor", "voigt", "cartesian", "structure"),
}
"""Words beside those of a potential that name no calculator: those of a plain energy, and all."""


def normalize_name(name: str) -> str:
    """Return a name in lower case, its words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_energy(name: str) -> bool:
    """Check by name whether a property is an energy of the kind that forces derive from."""
    return bool(NAMES["energy"].search(name)) and not NAMES["no_total_energy"].search(name)


def is_per_atom(name: str) -> bool:
    """Check by name whether a property is a value per atom."""
    return bool(NAMES["per_atom"].search(name))


def find_suffix(name: str) -> str | None:
    """Return the unit that a name ends in, behind an underscore; None without one."""
    return next((unit for unit, suffix in UNIT_SUFFIXES.items() if suffix.search(name)), None)


def parse_calculator(name: str) -> str:
    """Return the calculator that an energy, force, stress or virial names; empty without one.

    >>> [parse_calculator(name) for name in ("REF_energy", "total_energy_dft", "forces_eV_A")]
    ['ref', 'dft', '']
    """
    if unit := find_suffix(name):
        name = UNIT_SUFFIXES[unit].remove(name)
    words = NAMES["potential"].remove(name, "_").split("_")
    return "_".join(word for word in words if word and word not in _KIND_WORDS)


def parse_energy_kind(name: str) -> str:
    """Return the kind of an energy: the words that are neither its calculator's nor plain."""
    words = NAMES["potential"].remove(name, "_").split("_")
    return " ".join(word for word in words if word in _KIND_WORDS - _PLAIN_WORDS)
