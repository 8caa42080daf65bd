"""Kinds of properties that are no targets: what follows from a structure, labels, and records.

Shapes: G structures, N atoms, T components.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from ase.formula import Formula
from numpy.typing import NDArray

from hydragnn_hpo.data.name_patterns import NAMES, normalize_name
from hydragnn_hpo.data.properties import Property, explain_selection
from hydragnn_hpo.sanitize import escape_line

Array = NDArray[np.float64]

FEW_VALUES, FEW_WHOLE = 3, 6
"""Distinct values, and whole values, below which a match may be chance: a name must agree."""

MATCH = 5e-4
"""Largest relative difference between a number in a file and the one that its structure has: cells
are rounded, and tables of masses differ."""

MATCH_OF_CELL = 0.005
"""The same where the name says that it is a length or angle of the cell."""

MATCH_OF_SPREAD = 0.02
"""Largest root mean square of these differences, as a share of the spread of the property."""

MIN_COMPARED = 5
"""Smallest number of structures by whose values a kind is recognised."""

MOST_DESCRIBED = 40
"""About how many molecules RDKit's descriptors are computed of, some 2 ms each."""

MOST_STEP = 2
"""Largest median step of a serial number with gaps."""

MIN_DENSE = 12
"""Smallest number of whole values without order that are a serial number where none is twice and
more than six of ten are there."""

_SCALES = (1.0, 100, 0.01, 10, 0.1, 1000, 0.001, np.pi / 180, 1.8897261246, 6.7483345, 1.66053907)
"""Factors between units: percent, powers of ten, radians, bohr, its cube, g/cm^3 (CODATA 2018)."""


@dataclass(frozen=True)
class PropertyColumn:
    """A property of structures, as numbers or as texts."""

    name: str
    """Name in the file."""
    prop: Property | None = None
    """Its numbers."""
    texts: Mapping[int, str] = field(default_factory=dict)
    """Its texts, by index of the structure."""

    def whole(self, level: str) -> Array:
        """Return the known numbers of a level if all are whole, else none."""
        if self.prop is None or self.prop.width > 1 or self.prop.level != level:
            return np.zeros(0)
        values = self.prop.values[self.prop.known, 0]
        return values if (values == np.round(values)).all() else np.zeros(0)


@dataclass
class StructureFacts:
    """What structures tell by themselves, and what stands beside a property of theirs."""

    structures: Sequence[Atoms]
    """The structures that were read."""
    names: Sequence[str]
    """Names of all their properties."""
    forces: bool
    """Whether forces are among these."""

    @cached_property
    def quantities(self) -> Mapping[str, Array]:
        """Numbers that follow from atoms, cells and SMILES, [G, T], NaN where they are missing."""
        frames = self.structures
        most = max(int(atoms.numbers.max()) for atoms in frames) + 1
        counts = np.array([np.bincount(atoms.numbers, minlength=most) for atoms in frames])
        cells = np.array([a.cell.cellpar() if a.pbc.any() else np.full(6, np.nan) for a in frames])
        volume = np.array([atoms.cell.volume or np.nan for atoms in frames])
        mass = np.array([atoms.get_masses().sum() for atoms in frames])
        sizes = counts.sum(axis=1)
        made = {"number of atoms": sizes, "number of electrons": counts @ np.arange(most)}
        made |= {"number of elements": (counts > 0).sum(axis=1), "mass": mass, "volume": volume}
        for number in np.flatnonzero(counts.any(axis=0)):
            made[f"number of {chemical_symbols[number]} atoms"] = counts[:, number]
        made |= {f"{name} per atom": values / sizes for name, values in made.items()}
        made |= {"density": mass / volume, "number density": sizes / volume}
        for place, name in enumerate(("a", "b", "c", "alpha", "beta", "gamma")):
            made[f"{name} of the cell"] = cells[:, place]
        made |= {"lengths of the cell": cells[:, :3], "shape of the cell": cells}
        made["cell"] = np.array([atoms.cell.array.ravel() for atoms in frames])
        made |= _compute_descriptors([atoms.info.get("smiles") for atoms in frames])
        return {
            name: np.asarray(v, dtype=float).reshape(len(frames), -1) for name, v in made.items()
        }

    def find_partner(self, name: str, extra: str) -> str | None:
        """Return the property of the same quantity whose name lacks some words; None without one.

        Args:
            name: name of a property.
            extra: key in ``NAMES`` of words of which its name has at least one.
        """

        def split(name: str) -> tuple[set[str], bool]:
            words = {*normalize_name(name).split("_")}
            extra_words = {*filter(NAMES[extra].search, words)}
            return words - extra_words - {*filter(NAMES["same"].search, words)}, bool(extra_words)

        quantity, has_extra = split(name)
        alike = (other for other in self.names if split(other) == (quantity, False))
        return next(alike, None) if has_extra else None


def _compute_descriptors(smiles: Sequence[str | None]) -> dict[str, Array]:
    """Compute RDKit's descriptors of some SMILES by name, [G] each; none without RDKit."""
    given = [place for place, text in enumerate(smiles) if text]
    if not given or not find_spec("rdkit"):
        return {}
    from rdkit import Chem, RDLogger
    from rdkit.Chem import Descriptors

    RDLogger.DisableLog("rdApp.*")
    functions = dict(Descriptors.descList) | {"FormalCharge": Chem.GetFormalCharge}
    functions["NumBonds"] = Chem.Mol.GetNumBonds
    functions["MinDegree"] = lambda molecule: min(atom.GetDegree() for atom in molecule.GetAtoms())
    made = {f"{name} of RDKit": np.full(len(smiles), np.nan) for name in functions}
    for place in given[:: max(1, len(given) // MOST_DESCRIBED)]:
        molecule = Chem.MolFromSmiles(str(smiles[place]))
        for name, function in functions.items() if molecule is not None else ():
            made[f"{name} of RDKit"][place] = function(molecule)
    return made


def _find_quantity(column: PropertyColumn, facts: StructureFacts) -> str | None:
    if column.prop is None or column.prop.level == "node":
        return None
    named = bool(NAMES["of_structure"].search(column.name))
    for name, quantity in facts.quantities.items():
        is_cell = name.endswith("of the cell") and bool(NAMES["cell"].search(column.name))
        if _equals(column.prop, quantity, named=named, is_cell=is_cell):
            return name
    return None


def _equals(prop: Property, quantity: Array, *, named: bool, is_cell: bool) -> bool:
    """Check whether numbers of structures are one of their quantities, in whatever unit.

    Args:
        prop: the numbers.
        quantity: of all structures, [G, T]; NaN where it is missing.
        named: whether the name allows few values to match.
        is_cell: whether the name says that it is of the cell, which may be rounded or idealised.
    """
    if prop.width != quantity.shape[1]:
        return False
    rows = prop.known & np.isfinite(quantity[prop.structure]).all(axis=1)
    values = prop.values[rows]
    distinct = len(np.unique(values))
    fewest = FEW_WHOLE if (values == np.round(values)).all() else FEW_VALUES
    if len(values) < MIN_COMPARED or distinct < (2 if named else fewest):
        return False
    digits = (n for n in range(9) if np.abs(values - values.round(n)).max() < 1e-10)
    digit = float(10.0 ** -next(digits, 9))
    for expected in (scale * quantity[prop.structure[rows]] for scale in _SCALES):
        rest = np.abs(values - expected)
        near = bool((rest <= 0.6 * digit + MATCH * np.abs(values)).all())
        if is_cell and (rest <= MATCH_OF_CELL * np.abs(values)).all():
            return True
        if near and np.sqrt((rest**2).mean()) <= MATCH_OF_SPREAD * float(values.std()):
            return True
    return False


def _find_formula(column: PropertyColumn, facts: StructureFacts) -> str | None:
    texts = {place: text for place, text in column.texts.items() if text}
    spelt = (_spells(text, facts.structures[place]) for place, text in texts.items())
    return "" if texts and all(spelt) else None


def _spells(text: str, atoms: Atoms) -> bool:
    """Check whether a text spells the composition of a structure, or lists its elements."""
    elements = {*map(str, atoms.symbols)}
    if len(elements) > 1 and {*re.split(r"[^A-Za-z]+", text.strip())} == elements:
        return True
    try:
        formula = Formula(re.sub(r"[^A-Za-z0-9()]", "", text))
    except ValueError:
        return False
    if not len(formula):  # a number alone
        return False
    return bool(formula.reduce()[0] == atoms.symbols.formula.reduce()[0])


def _find_counter(column: PropertyColumn, facts: StructureFacts) -> str | None:
    if column.prop is None or not column.prop.scalar:
        return None
    values = column.whole("graph")
    named = NAMES["counters"].search(column.name)
    # An index of refraction is no number of a structure.
    if named and (len(values) or "index" not in named[0]):
        return ""
    repeats = len(np.unique(values)) < len(values)
    if len(values) < MIN_COMPARED or repeats or "energ" in column.name.lower():
        return None
    in_order = bool((np.diff(values) > 0).all()) and len(values) > MIN_COMPARED
    steps = np.diff(values)[:5]
    even = np.median(np.diff(values)) <= MOST_STEP or np.ptp(steps) == 0
    dense = len(values) >= MIN_DENSE and len(values) > 0.6 * np.ptp(values)
    return "" if (in_order and even) or dense else None


def _find_atom_label(column: PropertyColumn, facts: StructureFacts) -> str | None:
    if column.prop is None or not len(column.whole("node")):
        return None
    kinds: dict[bytes, set[bytes]] = {}
    for place, rows in column.prop.by_structure().items():
        kinds.setdefault(facts.structures[place].numbers.tobytes(), set()).add(rows.tobytes())
    fixed = all(len(rows) == 1 for rows in kinds.values()) and len(kinds) < column.prop.present
    labels = NAMES["atom_labels"].search(column.name)
    return "" if fixed or labels else None


def _find_predicted(column: PropertyColumn, facts: StructureFacts) -> str | None:
    # Beside forces the energy and its derivatives are chosen together, by their calculator.
    return None if facts.forces else facts.find_partner(column.name, "predicted")


def _find_name(key: str, column: PropertyColumn, *, applies: bool) -> str | None:
    return "" if applies and NAMES[key].search(column.name) else None


def _find_record(column: PropertyColumn, facts: StructureFacts) -> str | None:
    whole = column.whole("graph")
    if facts.forces and (column.texts or len(np.unique(whole)) == 2):
        return ""
    if _find_name("run_costs", column, applies=True) is not None:
        return ""
    return _find_name("records", column, applies=bool(column.texts) or len(whole) > 0)


@dataclass(frozen=True)
class ColumnKind:
    """A kind of properties that are not predicted, and why."""

    find: Callable[[PropertyColumn, StructureFacts], str | None]
    """Returns what is found, for the reason; None for a property of another kind."""
    why: str
    """Why it is not predicted, to be read after its name, with a place for what is found."""
    offered: bool = False
    """Whether it is a target without a head, for the user to decide, rather than none."""


KINDS = (
    ColumnKind(lambda c, facts: explain_selection(c.prop) if c.prop else None, "{}"),
    ColumnKind(_find_quantity, "is the {}: the structure itself says it"),
    ColumnKind(_find_formula, "spells what the structure consists of"),
    ColumnKind(_find_counter, "numbers or sorts the structures"),
    ColumnKind(_find_atom_label, "labels atoms, as by its name or as it is equal in all frames"),
    ColumnKind(
        lambda c, facts: _find_name("weights", c, applies=not c.texts),
        "is a weight for training by its name: --weight-column trains with it",
    ),
    ColumnKind(_find_predicted, "is what another model predicts for {}"),
    ColumnKind(lambda c, facts: facts.find_partner(c.name, "errors"), "is the error bar of {}"),
    ColumnKind(_find_record, "seems to say how a structure was made or named", offered=True),
    ColumnKind(
        lambda c, facts: _find_name("states", c, applies=facts.forces),
        "seems to be what a simulation was run at",
        offered=True,
    ),
)
"""All kinds; the first that is found decides."""


def find_kind(column: PropertyColumn, facts: StructureFacts) -> ColumnKind | None:
    """Return the kind of a property that is not predicted; None for what may be a target."""
    for kind in KINDS:
        detail = kind.find(column, facts)
        if detail is not None:
            return replace(kind, why=kind.why.format(escape_line(detail)[:80]))
    return None
