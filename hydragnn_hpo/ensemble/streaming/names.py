"""What structures are called in the output."""

from typing import Any

import numpy as np
from ase import Atoms

from hydragnn_hpo.text import shown

OWN = ("name", "id")
"""Keys of ``atoms.info`` under which a structure may bring its own name."""

_MOST = 300
"""Letters of a name that are shown."""

REASON = 1000
"""Letters of a sentence that are shown: it ends with what to do."""


def name_of(atoms: Atoms, otherwise: str) -> str:
    """Give a structure's own name, if it has one that is more than blanks.

    Args:
        atoms: the structure.
        otherwise: file and number.
    """
    for key in OWN:
        own = atoms.info.get(key)
        if isinstance(own, (str, int, np.integer)) and str(own).strip():
            return line_of(str(own))
    return line_of(otherwise)


def line_of(text: str, most: int = _MOST) -> str:
    """Give a text from a file as one line that a terminal can take.

    Args:
        text: whatever a file holds.
        most: letters; what is longer ends in three dots.
    """
    line = shown(text).replace("\n", r"\n").replace("\t", r"\t")
    return line if len(line) <= most else line[: most - 3] + "..."


def kept(atoms: Atoms, keys: tuple[str, ...]) -> dict[str, Any]:
    """Give the values of some keys as text and numbers; those it does not have are left out.

    Args:
        atoms: the structure; what ASE takes for results of a calculator counts, too.
        keys: of ``atoms.info``.
    """
    results = atoms.calc.results if atoms.calc is not None else {}
    found = {key: atoms.info.get(key, results.get(key)) for key in keys}
    return {key: plain(value) for key, value in found.items() if value is not None}


def plain(value: Any) -> str | int | float:
    """Give a value as a number or as text that can be shown."""
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    return value if isinstance(value, (int, float)) else line_of(str(value), most=10_000)
