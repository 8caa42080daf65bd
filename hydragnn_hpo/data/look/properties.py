"""What structures have besides atoms and cells: every property by name, as tables of numbers.

Shapes: G structures that have a property, N their atoms, T components.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.structure import LARGEST

Level = Literal["graph", "node"]

MOST_ROWS = 400_000
"""Atoms whose values are kept."""

MOST_TEXTS = 200
"""Different texts that are kept."""

_OF_ATOMS = {"numbers", "positions", "tags", "masses", "momenta", "velocities", "move_mask"}
"""Arrays that say what an atom is or does."""

_WHOLE = {"stress", "dipole", "energy", "free_energy", "magmom"}
"""Results of calculators for a whole structure, however long they are."""

_OF_FILES = {"occupancy", "spacegroup", "unit_cell", "pbc", "spacegroup_kinds", "smiles"}
"""What readers put beside properties, of structures and of atoms."""

ALIKE = 1e-12
"""Spread up to which values are the same: less may be rounding."""


@dataclass
class Property:
    """One property, over the structures that were read."""

    name: str
    level: Level
    width: int
    values: NDArray[np.float64]
    """[G, T] or [N, T]; NaN where a value is missing."""
    where: NDArray[np.int64]
    """The structure of each row."""
    present: int
    """Structures that have it."""
    result: bool
    """Whether it is a result of ASE's calculators, or has such a name."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which rows hold numbers."""
        return np.asarray(np.isfinite(self.values).all(axis=1))

    @property
    def constant(self) -> bool:
        """Whether it is the same everywhere."""
        found = self.values[self.known]
        if not len(found):
            return True
        spread = float(np.ptp(found, axis=0).max())
        return spread <= ALIKE * max(1.0, float(np.abs(found).max()))

    @property
    def missing(self) -> int:
        """Values that are NaN."""
        return int(np.isnan(self.values).any(axis=1).sum())

    @property
    def infinite(self) -> int:
        """Values that are infinite, or too large to be learned."""
        return int(np.isinf(self.values).any(axis=1).sum())


@dataclass
class Found:
    """All properties."""

    numbers: dict[str, Property]
    texts: dict[str, set[str]] = field(default_factory=dict)
    """Properties of structures that are text, and what they say."""
    text_counts: dict[str, int] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    """Properties that cannot be learned, and why."""


RESULTS = ("energy", "free_energy", "forces", "stress", "charges", "magmoms", "dipole", "magmom")
"""Names of ASE's calculators, which are in eV, angstrom, e and muB."""


def properties_of(structures: Sequence[Atoms]) -> Found:
    """Gather the properties of structures by name, graph level before node level."""
    graph: dict[str, list[tuple[int, NDArray[np.float64]]]] = {}
    node: dict[str, list[tuple[int, NDArray[np.float64]]]] = {}
    found = Found({})
    for number, atoms in enumerate(structures):
        for name, value in _of_structure(atoms):
            made = _numbers(value)
            if made is not None:
                graph.setdefault(name, []).append((number, made))
            elif isinstance(value, str):
                _note(found, name, value)
        for name, value in _of_each_atom(atoms):
            made = _numbers(value)
            if made is not None:
                node.setdefault(name, []).append((number, made.reshape(len(atoms), -1)))
    for name in dict.fromkeys((*graph, *node)):
        _enter(found, name, graph.get(name, []), node.get(name, []))
    return found


def _of_structure(atoms: Atoms) -> Iterator[tuple[str, Any]]:
    results = atoms.calc.results if atoms.calc is not None else {}
    for name, value in {**results, **atoms.info}.items():
        per_atom = name in results and name not in _WHOLE and np.shape(value)[:1] == (len(atoms),)
        if name not in _OF_FILES and not (per_atom and np.ndim(value) > 0):
            yield str(name), value


def _of_each_atom(atoms: Atoms) -> Iterator[tuple[str, Any]]:
    results = atoms.calc.results if atoms.calc is not None else {}
    each = {name: value for name, value in results.items() if name not in _WHOLE}
    for name, value in {**each, **atoms.arrays}.items():
        if name not in _OF_ATOMS | _OF_FILES and np.shape(value)[:1] == (len(atoms),):
            yield str(name), value


def _numbers(value: Any) -> NDArray[np.float64] | None:
    """Give numbers as an array; None for texts and whatever else."""
    if value is None or isinstance(value, (str, bytes, dict)):
        return None
    try:
        made = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return made if made.size else None


def _note(found: Found, name: str, value: str) -> None:
    found.text_counts[name] = found.text_counts.get(name, 0) + 1
    texts = found.texts.setdefault(name, set())
    if len(texts) < MOST_TEXTS or name.lower() in ("id", "name"):
        texts.add(value)


def _enter(
    found: Found,
    name: str,
    graph: list[tuple[int, NDArray[np.float64]]],
    node: list[tuple[int, NDArray[np.float64]]],
) -> None:
    """Decide on the level of a property, and put its values together."""
    widths = {array.size for _, array in graph}
    of_atoms = {array.shape[1] for _, array in node}
    if len(node) >= len(graph) and len(of_atoms) == 1 and _more(node, graph):
        width = of_atoms.pop()
        _put(found, name, "node", width, [(n, a) for n, a in node])
    elif len(widths) == 1:
        width = widths.pop()
        _put(found, name, "graph", width, [(n, a.reshape(1, -1)) for n, a in graph])
    else:
        shapes = sorted(widths | of_atoms)[:4]
        found.odd[name] = f"has another number of values in each structure ({shapes} ...)"


def _more(node: list[Any], graph: list[tuple[int, NDArray[np.float64]]]) -> bool:
    """Tell whether what may be of either level is one of atoms: its length is that of the atoms."""
    return not graph or any(array.size > 1 for _, array in graph)


def _put(
    found: Found, name: str, level: Level, width: int, rows: list[tuple[int, NDArray[np.float64]]]
) -> None:
    kept, total = [], 0
    for number, array in rows:
        if total > MOST_ROWS:
            break
        kept.append((number, array))
        total += len(array)
    values = np.concatenate([array for _, array in kept])
    values = np.where(np.abs(values) > LARGEST, np.inf, values)
    where = np.repeat([number for number, _ in kept], [len(array) for _, array in kept])
    result = name in RESULTS
    found.numbers[name] = Property(name, level, width, values, where, len(rows), result)
