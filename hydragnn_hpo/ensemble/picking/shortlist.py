"""The most uncertain structures of a pool of any size, in bounded memory."""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph import Graph


@dataclass(frozen=True, eq=False)
class Candidate:
    """A structure that may be picked."""

    id: str
    """Its name."""
    score: float
    """How uncertain it is."""
    graph: Graph
    """The structure."""
    told: dict[str, Any]
    """What is written beside it: standard deviations, trust."""


class Shortlist:
    """Keeps the candidates with the highest scores; of equal ones those that came first."""

    def __init__(self, size: int) -> None:
        """Take how many are kept."""
        self.size = size
        self._heap: list[tuple[float, int, Candidate]] = []
        self._seen = 0

    def wants(self, score: float) -> bool:
        """Whether a candidate of this score would be kept."""
        return len(self._heap) < self.size or score > self._heap[0][0]

    def add(self, candidate: Candidate) -> None:
        """Keep a candidate if it is among the best, in place of the worst."""
        entry = (candidate.score, -self._seen, candidate)
        self._seen += 1
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def best(self) -> list[Candidate]:
        """Give all that were kept, the highest score first."""
        return [candidate for _, _, candidate in sorted(self._heap, reverse=True)]


def graph_at(columns: Columns, row: int, name: str) -> Graph:
    """Copy one structure, so that the others can be forgotten."""
    nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
    edges = slice(columns.edge_offset[row], columns.edge_offset[row + 1])
    laplacian = None if columns.laplacian is None else np.array(columns.laplacian[nodes])
    return Graph(
        id=name,
        numbers=np.array(columns.numbers[nodes]),
        positions=np.array(columns.positions[nodes]),
        cell=np.array(columns.cell[row]),
        pbc=np.array(columns.pbc[row]),
        edges=np.array(columns.edges[edges]),
        edge_shift=np.array(columns.edge_shift[edges]),
        targets={},
        group=name,
        published=None,
        attributes={key: float(value[row]) for key, value in columns.attributes.items()},
        laplacian=laplacian,
    )
