"""Summarize the geometry of undescribed structures: sizes, elements, neighbours, a usable cutoff.

Shapes: N nodes, E edges.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols

from hydragnn_hpo.config import mean_degree
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.data.statistics import size_stats
from hydragnn_hpo.data.structure import Place, Rules, edge_vectors, graph_of
from hydragnn_hpo.errors import DataError

MAX_CUTOFF = 6.0
"""Cutoff within which neighbours are counted, angstrom."""

MAX_GRAPHS, MAX_ATOMS = 100, 20_000
"""Structures that are made graphs, and their atoms."""

USUAL_CUTOFF, MANY_NEIGHBORS, FEW_NEIGHBORS = 5.0, 60.0, 10.0
"""The proposed cutoff, unless its mean number of neighbours is more or less than this."""

LONG_BOND = 1.6
"""Distance of a hydrogen atom to its nearest neighbour, angstrom, beyond which lengths are in
doubt: bonds are 0.74 to 1.1, in bohr they would read 1.4 to 2.1."""

_DIRECTIONS = {0: "in none", 1: "in 1 direction", 2: "in 2 directions", 3: "in 3 directions"}


@dataclass(frozen=True)
class GeometrySummary:
    """Geometry of a sample of structures."""

    sizes: tuple[int, int, int]
    """Fewest, median and most atoms."""
    elements: tuple[str, ...]
    periodic: str
    """Periodic directions in words."""
    cutoff: float
    """Proposed, in angstrom."""
    degree: float
    """Mean number of neighbours within the cutoff."""
    cutoff_why: str
    compositions: int
    """Number of different compositions."""
    twins: int
    """Number of exact copies."""
    bad: tuple[str, ...]
    """Errors of structures that cannot become graphs."""
    tried: int
    """Structures that were made graphs or failed to be."""
    warnings: tuple[str, ...]
    stats: Mapping[str, Any]
    """Sizes and neighbours as in ``data.statistics``, within ``MAX_CUTOFF``."""


def summarize_geometry(structures: Sequence[Atoms], names: Sequence[str]) -> GeometrySummary:
    """Summarize the geometry of structures.

    Raises:
        DataError: none of them can become a graph; the sentence is that of the first.
    """
    graphs, bad = _make_graphs(structures, names)
    stats = size_stats(columns_of(graphs, {}), MAX_CUTOFF)
    cutoff, why = _propose_cutoff(stats)
    sizes = sorted(len(atoms) for atoms in structures)
    kinds = sorted({int(z) for atoms in structures for z in np.unique(atoms.numbers)})
    return GeometrySummary(
        sizes=(sizes[0], sizes[len(sizes) // 2], sizes[-1]),
        elements=tuple(chemical_symbols[z] for z in kinds if 0 < z < len(chemical_symbols)),
        periodic=describe_periodicity([int(atoms.pbc.sum()) for atoms in structures]),
        cutoff=cutoff,
        degree=mean_degree(stats, cutoff),
        cutoff_why=why,
        compositions=len({_composition(atoms) for atoms in structures}),
        twins=_count_copies(structures),
        bad=tuple(bad),
        tried=len(graphs) + len(bad),
        warnings=tuple(_warn_of_bohr(graphs)),
        stats=stats,
    )


def _composition(atoms: Atoms) -> str:
    """Return what ``split.group = "composition"`` groups by."""
    formula, _ = atoms.symbols.formula.reduce()
    return str(formula.format("hill"))


def describe_periodicity(directions: Sequence[int]) -> str:
    """Describe the number of periodic directions of structures.

    >>> describe_periodicity([3, 3, 0])
    'periodic in 3 directions (2), in none (1)'
    """
    counts = {n: directions.count(n) for n in (3, 2, 1, 0) if n in directions}
    if len(counts) == 1:
        return f"periodic {_DIRECTIONS[directions[0]]}" if directions[0] else "not periodic"
    return "periodic " + ", ".join(f"{_DIRECTIONS[n]} ({count})" for n, count in counts.items())


def _make_graphs(
    structures: Sequence[Atoms], names: Sequence[str]
) -> tuple[list[Graph], list[str]]:
    """Make graphs of some structures, spread over all.

    Returns:
        The graphs, and the errors of structures that cannot become graphs.
    """
    step = max(1, math.ceil(len(structures) / MAX_GRAPHS))
    graphs: list[Graph] = []
    bad: list[str] = []
    total_atoms = 0
    for number in range(0, len(structures), step):
        atoms = structures[number]
        if graphs and total_atoms + len(atoms) > MAX_ATOMS:
            break
        place = Place(Path(names[number].partition(":")[0]), number + 1, names[number])
        try:
            graphs.append(graph_of(atoms, place, Rules(MAX_CUTOFF, 0.1, {})))
        except DataError as error:
            bad.append(str(error))
            continue
        total_atoms += len(atoms)
    if not graphs:
        raise DataError(bad[0])
    return graphs, bad


def _propose_cutoff(stats: Mapping[str, Any]) -> tuple[float, str]:
    """Propose a cutoff by the number of neighbours, with the reason."""
    usual = mean_degree(stats, USUAL_CUTOFF)
    if usual > MANY_NEIGHBORS:
        shorter = (r for r in (4.5, 4.0, 3.5) if mean_degree(stats, r) <= MANY_NEIGHBORS)
        why = f"{usual:.0f} neighbours within {USUAL_CUTOFF:g} would make every trial slow"
        return next(shorter, 3.0), why
    if usual < FEW_NEIGHBORS:
        return MAX_CUTOFF, f"only {usual:.0f} neighbours within {USUAL_CUTOFF:g}"
    return USUAL_CUTOFF, "usual"


def _count_copies(structures: Sequence[Atoms]) -> int:
    """Count structures with the same atoms at the same places as an earlier one."""
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for atoms in structures:
        positions = np.round(atoms.positions, 6) + 0.0
        seen.add((atoms.numbers.tobytes(), positions.tobytes(), atoms.cell.array.tobytes()))
    return len(structures) - len(seen)


def _warn_of_bohr(graphs: Sequence[Graph]) -> list[str]:
    """Warn if hydrogen is so far from everything that lengths may be in bohr."""
    nearest: list[float] = []
    for graph in graphs:
        vectors = edge_vectors(graph.positions, graph.cell, graph.edges, graph.edge_shift)
        closest = np.full(len(graph.numbers), np.inf)
        np.minimum.at(closest, graph.edges[:, 1], np.linalg.norm(vectors, axis=1))
        nearest += closest[(graph.numbers == 1) & np.isfinite(closest)].tolist()
    middle = float(np.median(nearest)) if len(nearest) >= 5 else 0.0
    if middle < LONG_BOND:
        return []
    return [
        f"hydrogen atoms are {middle:.2f} angstrom from their nearest neighbour, bonds are 0.74 to "
        "1.1: are positions in bohr? They are taken as angstrom."
    ]
