"""Go through a pool once, keep its most uncertain structures, and pick from those.

Shapes: G graphs of a batch, N nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference import Ensemble, HeadPrediction
from hydragnn_hpo.ensemble.picking.descriptors import descriptors
from hydragnn_hpo.ensemble.picking.diversity import farthest_first, mean_distance
from hydragnn_hpo.ensemble.picking.scores import counted, disagreement, levels, score
from hydragnn_hpo.ensemble.picking.shortlist import Candidate, Shortlist, graph_at
from hydragnn_hpo.ensemble.simulation.slopes import energy_head, forces_head, slopes_of
from hydragnn_hpo.ensemble.structure_batches import Structures
from hydragnn_hpo.ensemble.uncertainty.forces import largest_deviation
from hydragnn_hpo.errors import ConfigError, DataError, unknown

FORCES = "forces"
"""What ranks by the disagreement on forces is called, beside the names of heads."""
SHORTLIST = 10
"""Candidates that are compared for each one that is picked."""
DEVIATION = "max_force_deviation"
"""What the largest disagreement on a force is called in the output."""


@dataclass(frozen=True)
class Wish:
    """What is to be picked."""

    wanted: int
    """How many structures."""
    by: str | None = None
    """A head, or ``forces``; the mean over all heads if left out."""
    low: float = 0.0
    """Disagreement on forces from which a structure is a candidate, eV/angstrom."""
    high: float = np.inf
    """Disagreement on forces from which it is too strange, eV/angstrom."""
    unseen: bool = False
    """Whether structures with elements that no member has seen may be picked."""


@dataclass
class Picked:
    """What came of it."""

    candidates: list[Candidate] = field(default_factory=list)
    """In the order in which they were picked."""
    distances: list[float | None] = field(default_factory=list)
    """Of each to the nearest one picked before; none for the first."""
    counts: Counter[str] = field(default_factory=Counter)
    """Structures that were read, bad, not predicted, unseen, the same as a picked one, ..."""
    mean_distance: float = 0.0
    """Mean over all pairs of picked structures."""
    mean_distance_top: float = 0.0
    """The same, had simply those with the highest scores been picked."""


def pick(ensemble: Ensemble, pool: Iterable[Structures], wish: Wish) -> Picked:
    """Pick structures that are worth a label.

    Of the pool the ``SHORTLIST`` times as many most uncertain ones are kept while it streams by;
    of these ``farthest_first`` picks.

    Args:
        ensemble: who predicts.
        pool: the structures, a batch at a time.
        wish: what is wanted.

    Raises:
        ConfigError: the ensemble has no such head, or no energy to take forces from.
        DataError: the pool holds nothing that can be picked.
    """
    ranking = ranking_of(ensemble, wish)
    shortlist, picked = Shortlist(SHORTLIST * wish.wanted), Picked()
    for structures in pool:
        picked.counts += Counter(read=len(structures.ids), bad=len(structures.errors))
        _sift(ranking, structures, shortlist, picked.counts)
    best = shortlist.best()
    if not best:
        found = ", ".join(f"{count} {name}" for name, count in picked.counts.items()) or "0 read"
        raise DataError(f"the pool holds nothing to pick ({found}); give other structures.")
    points = descriptors(ensemble, [candidate.graph for candidate in best])
    scores = np.array([candidate.score for candidate in best])
    choice = farthest_first(points, np.maximum(scores, np.finfo(float).tiny), wish.wanted)
    picked.candidates = [best[row] for row in choice.rows]
    picked.distances = [None if np.isinf(far) else float(far) for far in choice.distances]
    picked.counts["same"] = choice.same
    picked.mean_distance = mean_distance(points[choice.rows])
    picked.mean_distance_top = mean_distance(points[: len(choice.rows)])
    return picked


@dataclass(frozen=True)
class Ranking:
    """How structures are ranked."""

    ensemble: Ensemble
    wish: Wish
    heads: tuple[str, ...]
    """Heads that count; none where forces do."""
    forces: str | None
    """Head of forces that counts."""
    energy: str | None
    """Energy head whose slope counts."""

    def scores(
        self, columns: Columns, heads: dict[str, HeadPrediction]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Give each structure's score, [G], and disagreement on forces, [G], if that counts."""
        if self.heads:
            chosen = {name: heads[name] for name in self.heads}
            return score(self.ensemble.manifest, chosen, columns.node_offset), None
        if self.forces is not None:
            deviation = disagreement(heads[self.forces], columns.node_offset)
            return deviation, deviation
        assert self.energy is not None, "a ranking by nothing"
        parts = [
            slopes_of(self.ensemble, self.energy, columns, piece).deviation
            for piece in pieces(columns, np.arange(columns.num_graphs), EDGES_PER_BATCH)
        ]
        deviation = largest_deviation(np.concatenate(parts), columns.node_offset)
        return deviation, deviation


def ranking_of(ensemble: Ensemble, wish: Wish) -> Ranking:
    """Choose what counts.

    Raises:
        ConfigError: the ensemble has no such head, or no energy to take forces from; trust
            levels without forces, or in the wrong order.
    """
    heads = ensemble.manifest.heads
    by = wish.by
    if by is not None and by not in (FORCES, *heads):
        raise ConfigError(unknown("head", by, (FORCES, *heads)))
    derived = by if by in heads and heads[by].derived_from and heads[by].shape == "vector" else None
    by_forces = derived is not None or by == FORCES
    if not by_forces and (wish.low > 0.0 or np.isfinite(wish.high)):
        raise ConfigError("--low and --high are levels of forces: add --by forces.")
    if not wish.low < wish.high:
        raise ConfigError(f"--low {wish.low:g} is not below --high {wish.high:g}: exchange them.")
    if not by_forces:
        return Ranking(ensemble, wish, (by,) if by else tuple(heads), None, None)
    if derived is not None:
        return Ranking(ensemble, wish, (), derived, None)
    energy = energy_head(ensemble)
    forces = forces_head(ensemble, energy)
    return Ranking(ensemble, wish, (), forces, None if forces else energy)


def _sift(
    ranking: Ranking, structures: Structures, shortlist: Shortlist, counts: Counter[str]
) -> None:
    """Let the candidates among some structures into the shortlist, and count the others."""
    columns = structures.columns
    if not columns.num_graphs:
        return
    ensemble, wish = ranking.ensemble, ranking.wish
    prediction = ensemble.predict(columns)
    scores, deviation = ranking.scores(columns, prediction.heads)
    good = np.isfinite(scores)
    counts["not_finite"] += int((~good).sum())
    unseen = _unseen(columns, ensemble.manifest.elements)
    counts["unseen"] += int((good & unseen).sum())
    if not wish.unseen:
        good &= ~unseen
    if deviation is not None:
        level = levels(deviation[good], wish.low, wish.high)
        counts += counted(level)
        good[good] = level == 1
    names = [n for place, n in enumerate(structures.ids) if place not in structures.errors]
    told = _told(ensemble, columns, prediction.heads)
    for row, extra in enumerate(told):
        if good[row] and shortlist.wants(float(scores[row])):
            if deviation is not None:
                extra[DEVIATION] = float(deviation[row])
            extra["trust"] = prediction.trust[row]
            graph = graph_at(columns, row, names[row])
            shortlist.add(Candidate(names[row], float(scores[row]), graph, extra))


def _unseen(columns: Columns, elements: tuple[int, ...]) -> np.ndarray:
    """Say which structures hold an element that no member has seen, [G]."""
    strange = ~np.isin(columns.numbers, elements)
    return np.logical_or.reduceat(strange, columns.node_offset[:-1])


def _told(
    ensemble: Ensemble, columns: Columns, heads: dict[str, HeadPrediction]
) -> Iterator[dict[str, Any]]:
    """Give each structure's standard deviations; of a node-level head the largest."""
    values: dict[str, np.ndarray] = {}
    for name, said in heads.items():
        node = ensemble.manifest.heads[name].level == "node"
        for suffix, part in (("_std", said.std), ("_std_epistemic", said.std_epistemic)):
            column = part[:, 0]
            values[name + suffix] = (
                largest_deviation(column, columns.node_offset) if node else column
            )
    for row in range(columns.num_graphs):
        yield {name: float(column[row]) for name, column in values.items()}
