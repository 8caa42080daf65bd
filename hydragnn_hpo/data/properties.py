"""Collect the properties of structures without a card, and decide which can be targets.

Shapes: G structures that have a property, N their atoms, T components.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.name_patterns import NAMES, normalize_name
from hydragnn_hpo.data.structure import LARGEST, MISSING_NUMBERS

Array = NDArray[np.float64]
Level = Literal["graph", "node"]
Rows = list[tuple[int, Array]]
"""Values of one property: index of the structure, and its rows."""

MIN_STRUCTURES = 5
"""Smallest number of structures that must have a property for it to be a target."""

RELATIVE_TOLERANCE = 1e-12
"""Relative spread up to which values count as equal, because it may be rounding."""

_TENSOR_WIDTHS = (6, 9)
"""Numbers of values of a symmetric and of a full 3 x 3 tensor, which turn with the structure."""

_GRAPH_RESULTS = {"stress", "dipole", "energy", "free_energy", "magmom"}
"""Results of ASE's calculators at graph level, whatever their length."""

_READER_INFO = {
    *("occupancy", "spacegroup", "unit_cell", "pbc", "spacegroup_kinds"),
    *("smiles", "smiles_parts"),
}
"""Entries of ``info`` that readers add and that are not properties."""

_STRUCTURE_ARRAYS = {
    *_READER_INFO,
    *("numbers", "positions", "tags", "masses", "momenta", "velocities", "move_mask"),
}
"""Entries of ``arrays`` that describe atoms and are not properties."""


@dataclass
class Property:
    """The values of one property in the structures that were read."""

    name: str
    """Name in the file."""
    level: Level
    """Whether it has one value per structure or one per atom."""
    values: Array
    """[G, T] or [N, T]; NaN where a value is missing."""
    structure: NDArray[np.int64]
    """Index of the structure of each row, [G] or [N]."""
    present: int
    """Number of structures that have the property, G."""
    columns: dict[str, float] = field(default_factory=dict)
    """For a spectrum with a column for each value: their names, and the numbers in these."""

    @property
    def width(self) -> int:
        """Number of components, T."""
        return int(self.values.shape[1])

    @property
    def scalar(self) -> bool:
        """Whether the property has one number per structure."""
        return self.level == "graph" and self.width == 1

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether all numbers of a row are finite, [G] or [N]."""
        return np.asarray(np.isfinite(self.values).all(axis=1))

    @property
    def constant(self) -> bool:
        """Whether all known values are equal."""
        known = self.values[self.known]
        if not len(known):
            return True
        spread = float(np.ptp(known, axis=0).max())
        return spread <= RELATIVE_TOLERANCE * max(1.0, float(np.abs(known).max()))

    @property
    def binary(self) -> bool:
        """Whether all known numbers are 0 or 1."""
        known = self.values[self.known]
        return bool(np.isin(known, (0.0, 1.0)).all())

    @property
    def is_selection(self) -> bool:
        """Whether the property selects atoms or structures: a mask, or tags, by name and values."""
        node = self.level == "node"
        known = self.values[self.known]
        if NAMES["tags"].search(self.name) and bool((known == np.round(known)).all()):
            return True
        marks_atoms = node and (self.width == 3 or bool(NAMES["marks"].search(self.name)))
        return self.binary and (marks_atoms or bool(NAMES["selections"].search(self.name)))

    @property
    def is_mark(self) -> bool:
        """Whether 0 and 1 may mark something: those of atoms, or with a name as ``is_metal``."""
        marks = self.level == "node" or NAMES["marks"].search(self.name)
        return self.binary and bool(marks)

    def by_structure(self) -> dict[int, Array]:
        """Split the values by structure.

        Returns:
            Rows of each structure that has the property, by its index.
        """
        first = np.flatnonzero(np.diff(self.structure, prepend=-1))
        parts = np.split(self.values, first[1:])
        return dict(zip(self.structure[first].tolist(), parts, strict=True))

    @property
    def missing(self) -> int:
        """Number of rows with NaN."""
        return int(np.isnan(self.values).any(axis=1).sum())

    @property
    def infinite(self) -> int:
        """Number of rows with infinity, which also stands for numbers beyond ``LARGEST``."""
        return int(np.isinf(self.values).any(axis=1).sum())

    @property
    def is_forces(self) -> bool:
        """Whether the property has the name and shape of forces."""
        return self.level == "node" and self.width == 3 and "force" in normalize_name(self.name)

    @property
    def is_stress(self) -> bool:
        """Whether the property has the name and shape of a stress, or of a virial."""
        named = NAMES["stress"].search(self.name)
        return self.level == "graph" and self.width in (6, 9) and bool(named)

    @property
    def shape(self) -> Literal["vector", "tensor", "spectrum"] | None:
        """The shape of a property of several numbers; None for others, and for names of another.

        Nine numbers of a structure are a tensor where they are symmetric. Numbers that are too
        many for a vector, and not as many as those of a tensor, are a spectrum.
        """
        if self.columns:
            return "spectrum"
        if self.width == 3 and (self.level == "node" or NAMES["vectors"].search(self.name)):
            return "vector"
        if self.width > 3 and self.width not in _TENSOR_WIDTHS:
            return "spectrum"
        if self.width != 9 or self.level == "node":
            return "tensor" if self.width == 9 else None
        tensors = self.values[self.known].reshape(-1, 3, 3)
        largest = np.abs(tensors).max(initial=0.0)
        away = np.abs(tensors - tensors.transpose(0, 2, 1)).max(initial=0.0)
        return "tensor" if away <= 0.01 * largest else None

    @property
    def is_attribute(self) -> bool:
        """Whether the property is an input, not a target: an integer charge or spin."""
        known = self.values[self.known]
        whole = bool((known == np.round(known)).all())
        named = NAMES["charge_and_spin"].search(self.name)
        return self.scalar and whole and named is not None


@dataclass
class PropertyTable:
    """All properties of a set of structures."""

    numbers: dict[str, Property] = field(default_factory=dict)
    """Numeric properties, by name."""
    texts: dict[str, Counter[str]] = field(default_factory=dict)
    """For each text property, by name, the number of structures with each text."""
    ragged: dict[str, str] = field(default_factory=dict)
    """Reason to reject each property whose length differs between structures, by name."""


MIN_COLUMNS = 8
"""Smallest number of numbered columns that are taken for a spectrum."""

MIN_ALIKE = 0.5
"""Smallest mean correlation of neighbours among columns that only count, or have gaps."""


def join_numbered(table: PropertyTable) -> PropertyTable:
    """Join numbered columns that are a spectrum, as ``400``, ``402`` ..., to one property.

    Columns with equal steps are an axis. Those that only count, from 0 or 1, and those with gaps
    may be different quantities: they are a spectrum where neighbours are alike.
    """
    groups: dict[tuple[str, str], dict[float, Property]] = {}
    for name, prop in table.numbers.items():
        if prop.scalar and (parts := NAMES["numbered"].search(name)):
            groups.setdefault((parts[1], parts[3]), {})[float(parts[2])] = prop
    numbers = dict(table.numbers)
    for (before, _), members in groups.items():
        points = sorted(members)
        values = np.full(
            (1 + max(m.structure.max() for m in members.values()), len(points)), np.nan
        )
        for place, point in enumerate(points):
            values[members[point].structure, place] = members[point].values[:, 0]
        if len(points) >= MIN_COLUMNS and _are_axis(np.array(points), values):
            columns = {members[point].name: point for point in points}
            rows = np.flatnonzero(np.isfinite(values).any(axis=1))
            name = make_identifier(before, "spectrum", numbers.keys() - columns.keys())
            joined = Property(name, "graph", values[rows], rows, len(rows), columns)
            kept = {k: joined if k in columns else v for k, v in numbers.items()}
            numbers = {prop.name: prop for prop in kept.values()}
    return replace(table, numbers=numbers)


def _are_axis(points: Array, values: Array) -> bool:
    steps = np.diff(points)
    counts = points[0] in (0.0, 1.0) and bool((steps == 1.0).all())
    if np.allclose(steps, steps[0]) and not counts:
        return True
    known = values[np.isfinite(values).all(axis=1)]
    if len(known) < MIN_STRUCTURES or not known.std(axis=0).any():
        return False
    pairs = np.corrcoef(known[:, known.std(axis=0) > 0.0].T)
    return float(np.diag(np.atleast_2d(pairs), 1).mean()) > MIN_ALIKE


FAR = 20.0
"""Times the distance of all others from their median at which a value is far from all others. In a
tail with the density x^-4 the largest value is 20 times the next one once in 8,000 cases."""

SHOWING = 30
"""Values that show how far a tail reaches: of as many as that, twice ``FAR`` is asked for, of fewer
values more."""

MOST_FAR = 20
"""One in so many values may be far from all others; of fewer values, one."""

FEWEST_COMPARED = 5
"""Fewest values among which one may be far from all others."""

LARGE = 50.0
"""Distance from their median that others are taken to have if they are all equal, in any unit; and
how much farther a value must be where more than half are equal, as in gaps of metals."""


def mark_far(values: Array) -> NDArray[np.bool_]:
    """Mark the values that are far from all others, by distance and not by share, [n].

    Args:
        values: finite values, [n].
    """
    none = np.zeros(len(values), dtype=bool)
    if len(values) < FEWEST_COMPARED:
        return none
    middle = float(np.median(values))
    off = np.abs(values - middle)
    ranked = np.sort(off)
    most = max(1, len(values) // MOST_FAR)
    others, next_off = ranked[-most - 1 : -1], ranked[-most:]
    nothing = 1e-12 * max(1.0, abs(middle))
    if 2 * np.count_nonzero(off <= nothing) > len(values):
        others = np.where(others <= nothing, max(abs(middle), LARGE), LARGE * others)
    gaps = np.flatnonzero(next_off > FAR * (1.0 + SHOWING / len(values)) * others)
    return off >= next_off[gaps[0]] if len(gaps) else none


def make_identifier(name: str, prefix: str, taken: Container[str] = ()) -> str:
    """Convert any text to an identifier for a card; a number at its end makes it unique.

    >>> make_identifier("Band gap (eV)", "target"), make_identifier("3d", "target", {"target_3d"})
    ('Band_gap_eV', 'target_3d_2')

    Args:
        name: any text.
        prefix: prepended where the identifier would not begin with a letter.
        taken: identifiers that are in use.
    """
    made = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60]
    first = free = made if re.match(r"[A-Za-z]", made) else f"{prefix}_{made}".strip("_")
    number = 2
    while free in taken:
        free = f"{first}_{number}"
        number += 1
    return free


def collect_properties(structures: Sequence[Atoms]) -> PropertyTable:
    """Collect all properties of structures by name, those of graph level first."""
    rows: dict[Level, dict[str, Rows]] = {"graph": {}, "node": {}}
    matrices: dict[tuple[Level, str], tuple[int, ...]] = {}
    nested: set[str] = set()
    table = PropertyTable()
    for index, atoms in enumerate(structures):
        for level, name, value in _read_values(atoms):
            numbers = _to_array(value)
            if numbers is not None:
                inner = numbers.shape if level == "graph" else numbers.shape[1:]
                if len(inner) > 1 and inner != (3, 3):
                    matrices[level, name] = inner
                shaped = numbers.reshape(1 if level == "graph" else len(atoms), -1)
                rows[level].setdefault(name, []).append((index, shaped))
            elif level == "graph" and isinstance(value, str):
                table.texts.setdefault(name, Counter())[value] += 1
            elif level == "graph" and isinstance(value, list | tuple | dict) and value:
                nested.add(name)
    _drop_missing(rows["graph"], table.texts)
    for name in dict.fromkeys((*rows["graph"], *rows["node"])):
        joined = _join_rows(name, rows["graph"].get(name, []), rows["node"].get(name, []))
        matrix = matrices.get((joined.level, name)) if isinstance(joined, Property) else None
        if isinstance(joined, str):
            table.ragged[name] = joined
        elif matrix is not None:
            table.ragged[name] = (
                f"is {' x '.join(map(str, matrix))} numbers, which no head predicts: give its "
                "invariants (moduli, eigenvalues) as columns"
            )
        else:
            table.numbers[name] = joined
    for name in sorted(nested - {*table.numbers, *table.texts, *table.ragged}):
        table.ragged[name] = (
            "is nested, neither numbers nor text: give each part as a column of its own"
        )
    return table


def _drop_missing(numbers: dict[str, Rows], texts: dict[str, Counter[str]]) -> None:
    """Drop what stands for missing values: words among numbers, and NaN among words.

    Args:
        numbers: of each property of structures; changes.
        texts: of each property; changes.
    """
    for name in numbers.keys() & texts.keys():
        words = Counter({t: n for t, n in texts[name].items() if t.strip() not in MISSING_NUMBERS})
        if not words:
            del texts[name]
        elif not any(np.isfinite(rows).any() for _, rows in numbers[name]):
            del numbers[name]
        else:
            texts[name] = words


def _read_values(atoms: Atoms) -> Iterator[tuple[Level, str, Any]]:
    """Yield level, name and value of each property of a structure.

    A result of a calculator has node level if it has one row per atom, else graph level.
    """
    results = atoms.calc.results if atoms.calc is not None else {}
    of_atoms = {name: value for name, value in results.items() if name not in _GRAPH_RESULTS}

    def is_per_node(value: Any) -> bool:
        return bool(np.shape(value)[:1] == (len(atoms),))

    for name, value in {**results, **atoms.info}.items():
        if name not in _READER_INFO and not (name in of_atoms and is_per_node(value)):
            yield "graph", str(name), value
    for name, value in {**of_atoms, **atoms.arrays}.items():
        if name not in _STRUCTURE_ARRAYS and is_per_node(value):
            yield "node", str(name), value


def _to_array(value: Any) -> Array | None:
    """Convert a number or numbers to an array; None for text and everything else."""
    if value is None or isinstance(value, (str, bytes, dict)):
        return None
    try:
        made = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return made if made.size else None


def _join_rows(name: str, graph: Rows, node: Rows) -> Property | str:
    """Decide the level of a property, and join its values.

    Args:
        name: name of the property.
        graph: its values in structures where it is at graph level.
        node: its values in structures where it is at node level.

    Returns:
        The property, or a reason to reject it where its length differs between structures.
    """
    graph_widths = {rows.size for _, rows in graph}
    node_widths = {rows.shape[1] for _, rows in node}
    # A value with one number per atom may be of either level: node level is assumed.
    of_atoms = not graph or any(rows.size > 1 for _, rows in graph)
    level: Level
    if len(node) >= len(graph) and len(node_widths) == 1 and of_atoms:
        level = "node"
        rows = node
    elif len(graph_widths) == 1:
        level = "graph"
        rows = graph
    else:
        shapes = sorted(graph_widths | node_widths)[:4]
        return f"has another number of values in each structure ({shapes} ...)"
    values = np.concatenate([array for _, array in rows])
    values = np.where(np.abs(values) > LARGEST, np.inf, values)
    structure = np.repeat([index for index, _ in rows], [len(array) for _, array in rows])
    return Property(name, level, values, structure, len(rows))


def explain_rejection(prop: Property) -> str | None:
    """Return the reason why a property cannot be a target; None if it can."""
    known = prop.values[prop.known]
    if not len(known):
        return f"holds no number up to {LARGEST:g}" if prop.infinite else "holds no number"
    if prop.constant:
        if np.ptp(known, axis=0).max() <= 1e-6 * np.abs(known).max():
            return f"is {known[0][0]:g} everywhere"
        return (
            f"varies by {RELATIVE_TOLERANCE:g} at most: if that is no rounding, give it in another "
            "unit"
        )
    if normalize_name(prop.name).startswith("initial_"):
        return "is what a calculation started from"
    if prop.width > 1 and not (prop.is_stress or prop.shape):
        what = "structure" if prop.level == "graph" else "atom"
        return (
            f"has {prop.width} numbers for each {what}, a head predicts one, a vector, a tensor or "
            "a spectrum"
        )
    if prop.present < MIN_STRUCTURES:
        return f"only {prop.present} structures have it"
    return None


def explain_selection(prop: Property) -> str | None:
    """Return the reason why a property that selects something is no target; None if it is none."""
    if not prop.is_selection:
        return None
    what = "atoms" if prop.level == "node" else "structures"
    how = "is 0 or 1" if prop.binary else "is whole numbers"
    return f"{how} and seems to select {what}: a mask or tag, no property"
