"""What kind of thing a property is: forces, stress, a running number, or nothing to learn."""

import re

import numpy as np

from hydragnn_hpo.data.look.properties import ALIKE, Property
from hydragnn_hpo.data.look.units import normal
from hydragnn_hpo.data.structure import LARGEST

_COUNTERS = re.compile(
    r"(^|_)(id|index|idx|uid|fold|frame|seed|spg|spacegroup|space_group|split)(_number)?$|"
    r"^(number|no|step|row|unnamed_0|time|timestep|)$"
)
"""Names of what counts, names or sorts structures."""

_ATTRIBUTES = {"charge", "total_charge", "net_charge", "spin", "multiplicity", "spin_multiplicity"}

FEWEST = 5
"""Structures that must have a property."""


def are_forces(one: Property) -> bool:
    """Tell whether a property is a force on each atom, by its name and shape."""
    return one.level == "node" and one.width == 3 and "force" in normal(one.name)


def is_stress(one: Property) -> bool:
    """Tell whether a property is a stress, by its name and shape."""
    return one.level == "graph" and one.width in (6, 9) and "stress" in normal(one.name)


def useless(one: Property) -> str | None:
    """Say why a property is no target, if it is none."""
    known = one.values[one.known]
    if not len(known):
        return "holds no number" if not one.infinite else f"holds no number up to {LARGEST:g}"
    if one.constant and np.ptp(known, axis=0).max() > 1e-6 * np.abs(known).max():
        return f"varies by {ALIKE:g} at most: if that is no rounding, give it in another unit"
    if one.constant:
        return f"is {known[0][0]:g} everywhere"
    if normal(one.name).startswith("initial_"):
        return "is what a calculation started from"
    if one.level == "graph" and one.width == 1 and counts_up(one):
        return "numbers or sorts the structures"
    if one.level == "graph" and one.width > 1 and not is_stress(one):
        return f"has {one.width} numbers for each structure, a head predicts one"
    if one.level == "node" and one.width not in (1, 3):
        return f"has {one.width} numbers for each atom, a head predicts one or a vector"
    if one.present < FEWEST:
        return f"only {one.present} structures have it"
    return None


def counts_up(one: Property) -> bool:
    """Tell a running number from a property."""
    values = one.values[:, 0]
    if _COUNTERS.search(normal(one.name)):
        return True
    steps = np.diff(values)
    whole = bool((values == np.round(values)).all())
    return whole and len(values) > 5 and bool((steps > 0).all()) and np.ptp(steps[:5]) == 0


def is_attribute(one: Property) -> bool:
    """Tell whether a property is known beforehand: a charge, a spin."""
    values = one.values[one.known]
    whole = bool((values == np.round(values)).all())
    named = normal(one.name) in _ATTRIBUTES
    return one.level == "graph" and one.width == 1 and named and whole


def slug(name: str, otherwise: str) -> str:
    """Make a name that a card may use.

    >>> slug("Band gap (eV)", "target")
    'Band_gap_eV'
    """
    made = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60]
    return made if re.match(r"[A-Za-z]", made) else f"{otherwise}_{made}".strip("_")
