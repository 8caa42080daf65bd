"""Pick the structures of a pool that are worth a label: uncertain ones, and not all alike."""

from collections import Counter
from collections.abc import Mapping
import numpy as np
from hydragnn_hpo.ensemble.inference.prediction import HeadPrediction
from hydragnn_hpo.ensemble.manifest import HeadEntry, Manifest
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.ensemble.uncertainty.forces import force_deviation, largest_deviation
import heapq
from dataclasses import dataclass
from typing import Any
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph import Graph
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hydragnn_hpo.ensemble.inference.batches import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
from hydragnn_hpo.ensemble.inference.structures import Structures
from hydragnn_hpo.ensemble.descriptors import compute_descriptors
from hydragnn_hpo.ensemble.descriptors import farthest_first, mean_distance
from hydragnn_hpo.ensemble.simulation.slopes import energy_head, forces_head, slopes_of
from hydragnn_hpo.ensemble.uncertainty.forces import largest_deviation
from hydragnn_hpo.errors import ConfigError, DataError, unknown
import io
from pathlib import Path
from ase import Atoms
from ase.io import write as write_atoms
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import write_text
from hydragnn_hpo.records import finite
from hydragnn_hpo.units import inside

LEVELS = ("accurate", "candidate", "failed")
"""What DP-GEN calls a structure below, between and above its two trust levels."""


def is_informative(calibration: Calibration) -> bool:
    """Whether sigma differs from structure to structure; where the fit found a = 0 it does not."""
    return calibration.a > 0.0 or calibration.c > 0.0


def score_head(head: HeadEntry, said: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Give each structure's uncertainty of one head, in standard deviations of the target, [G].

    Of a node-level head the atom counts that is known worst. Where sigma is one constant
    the members' raw spread ranks in its place.

    Args:
        head: with unit, spread of the target, calibration.
        said: of G structures.
        offsets: first atom of each structure, and the end, [G + 1].
    """
    values = (said.std if is_informative(head.calibration) else said.std_epistemic)[:, 0]
    unit = head.std or 1.0
    return (largest_deviation(values, offsets) if head.level == "node" else values) / unit


def score_structures(
    manifest: Manifest, heads: Mapping[str, HeadPrediction], offsets: np.ndarray
) -> np.ndarray:
    """Give each structure's uncertainty, the mean over some heads, [G].

    Heads whose spread tells nothing of their errors (a = 0 on ``cal``) count only where there
    are no others.

    Args:
        manifest: of the ensemble.
        heads: predictions of the heads that count.
        offsets: first atom of each structure, and the end, [G + 1].
    """
    telling = {n: said for n, said in heads.items() if is_informative(manifest.heads[n].calibration)}
    each = [score_head(manifest.heads[n], said, offsets) for n, said in (telling or heads).items()]
    return np.mean(each, axis=0) if each else np.zeros(len(offsets) - 1)


def force_disagreement(said: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Give the largest disagreement on the force on an atom, eV/angstrom, [G].

    Args:
        said: of a head of forces; its spread is the root *mean* variance of three components.
        offsets: first atom of each structure, and the end, [G + 1].

    Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
    """
    variance = np.repeat(np.square(said.std_epistemic), 3, axis=1)
    return largest_deviation(force_deviation(variance), offsets)


def assign_levels(deviation: np.ndarray, low: float, high: float) -> np.ndarray:
    """Give each structure's level as an index into ``LEVELS``, [G].

    Below ``low`` the model is right already, from ``high`` on the structure is too strange to
    be worth a label.
    """
    level: np.ndarray = np.digitize(deviation, [low, high])
    return level


def count_levels(level: np.ndarray) -> Counter[str]:
    """Count structures by the name of their level."""
    return Counter({name: int((level == place).sum()) for place, name in enumerate(LEVELS)})

@dataclass(frozen=True, eq=False)
class PoolCandidate:
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
        self._heap: list[tuple[float, int, PoolCandidate]] = []
        self._seen = 0

    def wants(self, score: float) -> bool:
        """Whether a candidate of this score would be kept."""
        return len(self._heap) < self.size or score > self._heap[0][0]

    def add(self, candidate: PoolCandidate) -> None:
        """Keep a candidate if it is among the best, in place of the worst."""
        entry = (candidate.score, -self._seen, candidate)
        self._seen += 1
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def best(self) -> list[PoolCandidate]:
        """Give all that were kept, the highest score first."""
        return [candidate for _, _, candidate in sorted(self._heap, reverse=True)]


def copy_graph(columns: Columns, row: int, name: str) -> Graph:
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

FORCES = "forces"
"""What ranks by the disagreement on forces is called, beside the names of heads."""
SHORTLIST = 10
"""Candidates that are compared for each one that is picked."""
DEVIATION = "max_force_deviation"
"""What the largest disagreement on a force is called in the output."""


@dataclass(frozen=True)
class PickRequest:
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
class PickResult:
    """What came of it."""

    candidates: list[PoolCandidate] = field(default_factory=list)
    """In the order in which they were picked."""
    distances: list[float | None] = field(default_factory=list)
    """Of each to the nearest one picked before; none for the first."""
    counts: Counter[str] = field(default_factory=Counter)
    """Structures that were read, bad, not predicted, unseen, the same as a picked one, ..."""
    mean_distance: float = 0.0
    """Mean over all pairs of picked structures."""
    mean_distance_top: float = 0.0
    """The same, had simply those with the highest scores been picked."""


def pick_structures(ensemble: Ensemble, pool: Iterable[Structures], wish: PickRequest) -> PickResult:
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
    ranking = make_ranking(ensemble, wish)
    shortlist, picked = Shortlist(SHORTLIST * wish.wanted), PickResult()
    for structures in pool:
        picked.counts += Counter(read=len(structures.ids), bad=len(structures.errors))
        _update_shortlist(ranking, structures, shortlist, picked.counts)
    best = shortlist.best()
    if not best:
        found = ", ".join(f"{count} {name}" for name, count in picked.counts.items()) or "0 read"
        raise DataError(f"the pool holds nothing to pick ({found}); give other structures.")
    points = compute_descriptors(ensemble, [candidate.graph for candidate in best])
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
    request: PickRequest
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
            return score_structures(self.ensemble.manifest, chosen, columns.node_offset), None
        if self.forces is not None:
            deviation = force_disagreement(heads[self.forces], columns.node_offset)
            return deviation, deviation
        assert self.energy is not None, "a ranking by nothing"
        parts = [
            slopes_of(self.ensemble, self.energy, columns, piece).deviation
            for piece in pieces(columns, np.arange(columns.num_graphs), EDGES_PER_BATCH)
        ]
        deviation = largest_deviation(np.concatenate(parts), columns.node_offset)
        return deviation, deviation


def make_ranking(ensemble: Ensemble, wish: PickRequest) -> Ranking:
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


def _update_shortlist(
    ranking: Ranking, structures: Structures, shortlist: Shortlist, counts: Counter[str]
) -> None:
    """Let the candidates among some structures into the shortlist, and count the others."""
    columns = structures.columns
    if not columns.num_graphs:
        return
    ensemble, wish = ranking.ensemble, ranking.request
    prediction = ensemble.predict(columns)
    scores, deviation = ranking.scores(columns, prediction.heads)
    good = np.isfinite(scores)
    counts["not_finite"] += int((~good).sum())
    unseen = _has_unseen_elements(columns, ensemble.manifest.elements)
    counts["unseen"] += int((good & unseen).sum())
    if not wish.unseen:
        good &= ~unseen
    if deviation is not None:
        level = assign_levels(deviation[good], wish.low, wish.high)
        counts += count_levels(level)
        good[good] = level == 1
    names = [n for place, n in enumerate(structures.ids) if place not in structures.errors]
    told = _standard_deviations(ensemble, columns, prediction.heads)
    for row, extra in enumerate(told):
        if good[row] and shortlist.wants(float(scores[row])):
            if deviation is not None:
                extra[DEVIATION] = float(deviation[row])
            extra["trust"] = prediction.trust[row]
            graph = copy_graph(columns, row, names[row])
            shortlist.add(PoolCandidate(names[row], float(scores[row]), graph, extra))


def _has_unseen_elements(columns: Columns, elements: tuple[int, ...]) -> np.ndarray:
    """Say which structures hold an element that no member has seen, [G]."""
    strange = ~np.isin(columns.numbers, elements)
    return np.logical_or.reduceat(strange, columns.node_offset[:-1])


def _standard_deviations(
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

FORMATS = (".extxyz", ".xyz")


def check_picks_format(path: Path) -> None:
    """Refuse a name that tells no format, before anything is computed.

    Raises:
        ConfigError: it does.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: structures are written as extxyz; end it in .extxyz.")


def picks_to_plain(picked: PickResult) -> dict[str, Any]:
    """Give the picked structures, in order, and what became of the others."""
    entries = [
        {"id": candidate.id, "pick": rank, "score": candidate.score, "distance": far}
        | candidate.told
        for rank, (candidate, far) in enumerate(
            zip(picked.candidates, picked.distances, strict=True), start=1
        )
    ]
    told: dict[str, Any] = finite(
        {
            "picked": entries,
            "counts": dict(picked.counts),
            "mean_distance": picked.mean_distance,
            "mean_distance_top": picked.mean_distance_top,
        }
    )
    return told


def write_picks(path: Path, manifest: Manifest, picked: PickResult) -> None:
    """Write the picked structures, whole or not at all, in the order of picking.

    ``info`` of each frame holds ``id``, ``pick`` (from 1), ``score``, ``distance``, ``trust``,
    the standard deviations, and the known properties that the ensemble was told.
    """
    frames = []
    for entry, candidate in zip(picks_to_plain(picked)["picked"], picked.candidates, strict=True):
        atoms = _to_atoms(candidate, manifest)
        atoms.info |= {key: value for key, value in entry.items() if value is not None}
        frames.append(atoms)
    text = io.StringIO()
    write_atoms(text, frames, format="extxyz")
    write_text(path, text.getvalue())


def _to_atoms(candidate: PoolCandidate, manifest: Manifest) -> Atoms:
    graph = candidate.graph
    known = {
        item.key or name: graph.attributes[name] / inside(item.unit)[0]
        for name, item in manifest.attributes.items()
    }
    pbc = graph.pbc.tolist()
    return Atoms(graph.numbers, graph.positions, cell=graph.cell, pbc=pbc, info=known)
