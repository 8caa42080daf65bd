"""Sizes, elements, neighbours, and what belongs together: what a card says besides targets.

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

from hydragnn_hpo.config.sizes import mean_degree
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.neighbors import edge_vectors
from hydragnn_hpo.data.statistics import size_stats
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError

FARTHEST = 6.0
"""Cutoff at which neighbours are counted, angstrom."""

MOST_GRAPHS, MOST_ATOMS = 100, 20_000
"""Structures that are made graphs, and their atoms."""

USUAL, CROWDED, LONELY = 5.0, 60.0, 10.0
"""The cutoff unless its mean number of neighbours is more or less than this."""

LONG_BOND = 1.6
"""Distance of a hydrogen atom to its nearest neighbour, angstrom, beyond which lengths are in
doubt: bonds are 0.74 to 1.1, in bohr they would read 1.4 to 2.1."""


@dataclass(frozen=True)
class Surroundings:
    """What structures look like."""

    sizes: tuple[int, int, int]
    """Fewest, median and most atoms."""
    elements: tuple[str, ...]
    periodic: str
    """In words."""
    bulk: bool
    """Whether all are periodic in three directions."""
    cutoff: float
    """Proposed, in angstrom."""
    degree: float
    """Mean number of neighbours there."""
    cutoff_why: str
    compositions: int
    """Different ones, of the structures that were read."""
    twins: int
    """Structures that are there twice."""
    bad: tuple[str, ...]
    """What keeps some from being graphs."""
    tried: int
    """Structures that were made graphs."""
    warnings: tuple[str, ...]
    stats: Mapping[str, Any]
    """Sizes and neighbours as ``data.statistics`` gives them, within ``FARTHEST``."""


def surroundings_of(structures: Sequence[Atoms], names: Sequence[str]) -> Surroundings:
    """Look at structures.

    Raises:
        DataError: none of them can be made a graph; the sentence is that of the first.
    """
    graphs, bad = _graphs(structures, names)
    stats = size_stats(columns_of(graphs, {}), FARTHEST)
    cutoff, why = _cutoff(stats)
    sizes = sorted(len(atoms) for atoms in structures)
    kinds = sorted({int(z) for atoms in structures for z in np.unique(atoms.numbers)})
    around = [int(atoms.pbc.sum()) for atoms in structures]
    return Surroundings(
        sizes=(sizes[0], sizes[len(sizes) // 2], sizes[-1]),
        elements=tuple(chemical_symbols[z] for z in kinds if 0 < z < len(chemical_symbols)),
        periodic=periodic(around),
        bulk=set(around) == {3},
        cutoff=cutoff,
        degree=mean_degree(stats, cutoff),
        cutoff_why=why,
        compositions=len({composition(atoms) for atoms in structures}),
        twins=_twins(structures),
        bad=tuple(bad),
        tried=len(graphs) + len(bad),
        warnings=tuple(_doubtful_lengths(graphs)),
        stats=stats,
    )


def composition(atoms: Atoms) -> str:
    """Give what structures are grouped by, as ``split.group = "composition"`` does."""
    formula, _ = atoms.symbols.formula.reduce()
    return str(formula.format("hill"))


def periodic(around: Sequence[int]) -> str:
    """Say in how many directions structures are periodic.

    >>> periodic([3, 3, 0])
    'periodic in 3 directions (2), in none (1)'
    """
    words = {0: "in none", 1: "in 1 direction", 2: "in 2 directions", 3: "in 3 directions"}
    counts = {number: around.count(number) for number in (3, 2, 1, 0) if number in around}
    if len(counts) == 1:
        return "not periodic" if 0 in counts else f"periodic {words[next(iter(counts))]}"
    return "periodic " + ", ".join(f"{words[n]} ({count})" for n, count in counts.items())


def _graphs(structures: Sequence[Atoms], names: Sequence[str]) -> tuple[list[Graph], list[str]]:
    """Make some structures graphs, spread over all."""
    step = max(1, math.ceil(len(structures) / MOST_GRAPHS))
    graphs: list[Graph] = []
    bad: list[str] = []
    atoms_seen = 0
    for number in range(0, len(structures), step):
        atoms = structures[number]
        if graphs and atoms_seen + len(atoms) > MOST_ATOMS:
            break
        place = Place(Path(names[number].partition(":")[0]), number + 1, names[number])
        try:
            graphs.append(graph_of(atoms, place, Rules(FARTHEST, 0.1, {})))
        except DataError as error:
            bad.append(str(error))
            continue
        atoms_seen += len(atoms)
    if not graphs:
        raise DataError(bad[0])
    return graphs, bad


def _cutoff(stats: Mapping[str, Any]) -> tuple[float, str]:
    """Propose a cutoff by the number of neighbours."""
    usual = mean_degree(stats, USUAL)
    if usual > CROWDED:
        lower = [4.5, 4.0, 3.5, 3.0]
        found = next((r for r in lower if mean_degree(stats, r) <= CROWDED), lower[-1])
        return found, f"{usual:.0f} neighbours within {USUAL:g} would make every trial slow"
    if usual < LONELY:
        return FARTHEST, f"only {usual:.0f} neighbours within {USUAL:g}"
    return USUAL, "usual"


def _twins(structures: Sequence[Atoms]) -> int:
    """Count structures that stand twice, with the same atoms at the same places."""
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for atoms in structures:
        positions = np.round(atoms.positions, 6) + 0.0
        seen.add((atoms.numbers.tobytes(), positions.tobytes(), atoms.cell.array.tobytes()))
    return len(structures) - len(seen)


def _doubtful_lengths(graphs: Sequence[Graph]) -> list[str]:
    """Warn where hydrogen is so far from everything that lengths may be in bohr."""
    nearest: list[float] = []
    for graph in graphs:
        vectors = edge_vectors(graph.positions, graph.cell, graph.edges, graph.edge_shift)
        lengths = np.linalg.norm(vectors, axis=1)
        closest = np.full(len(graph.numbers), np.inf)
        np.minimum.at(closest, graph.edges[:, 1], lengths)
        nearest += closest[(graph.numbers == 1) & np.isfinite(closest)].tolist()
    if len(nearest) < 5 or float(np.median(nearest)) < LONG_BOND:
        return []
    middle = float(np.median(nearest))
    return [
        f"hydrogen atoms are {middle:.2f} angstrom from their nearest neighbour, bonds are 0.74 to "
        "1.1: are positions in bohr? They are taken as angstrom."
    ]
