"""Pick structures to label: uncertain ones that differ in their learned descriptors.

Without an ensemble they are picked by the features of a foundation model alone.

Each structure of a streamed pool gets a score. Of those with the highest scores, structures are
picked one by one, each far from those picked before. Distances are those of descriptors, which are
computed from the features of the members.

Shapes: G graphs of a batch, N nodes, M structures, D dimensions, F features of a member, n chosen.
"""

import heapq
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
from ase import Atoms
from ase.io import write as write_atoms

from hydragnn_hpo.config import AttributeConfig
from hydragnn_hpo.data import Columns
from hydragnn_hpo.data.columns import join_columns
from hydragnn_hpo.ensemble.artefact import HeadEntry, Manifest
from hydragnn_hpo.ensemble.descriptors import GRAPH, mean_over_atoms, standardize, stream_features
from hydragnn_hpo.ensemble.energy_derivatives import (
    compute_derivatives,
    find_energy_head,
    find_forces_head,
)
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.predict_output import EXTXYZ_SUFFIXES
from hydragnn_hpo.ensemble.prediction import HeadPrediction
from hydragnn_hpo.ensemble.structure_batches import Structures
from hydragnn_hpo.errors import ConfigError, DataError, unknown
from hydragnn_hpo.files import write_text
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.model.trunks import FrozenTrunk
from hydragnn_hpo.model.trunks.embed import flat_features
from hydragnn_hpo.uncertainty import Calibration
from hydragnn_hpo.units import inside

SAME = 0.01
"""Distance of descriptors, in standard deviations, below which structures are duplicates."""

LEVELS = ("accurate", "candidate", "failed")
"""Names that DP-GEN gives a structure below, between and above its two trust levels."""

FORCES = "forces"
"""Value of ``PickRequest.by`` that ranks by the disagreement on forces."""

SHORTLIST = 10
"""Number of candidates with the highest scores that are kept per structure to pick."""

DEVIATION = "max_force_deviation"
"""Key of the largest disagreement on a force in the output."""


@dataclass(frozen=True)
class DiverseSelection:
    """Rows chosen by ``farthest_first``, in order."""

    rows: np.ndarray
    """Rows of the points, [n]."""
    distances: np.ndarray
    """Distance of each row to the nearest row chosen before it, [n]; infinite for the first."""
    duplicates: int
    """Number of points left out because a chosen one is nearer than ``SAME``."""


def farthest_first(points: np.ndarray, scores: np.ndarray, count: int) -> DiverseSelection:
    """Choose greedily: the highest score first, then the largest score times distance.

    The distance of a point is that to the nearest chosen point. With equal scores this is the
    greedy k-center cover of the points, whose radius is at most twice the smallest possible.

    Args:
        points: descriptors, [M, D].
        scores: score of each point, > 0, [M].
        count: number of points to choose; fewer are chosen if the others are duplicates.

    Source: Gonzalez (1985), Theor. Comput. Sci. 38, 293; as a core-set for labels, Sener &
    Savarese (2018), arXiv:1708.00489.
    """
    nearest = np.full(len(points), np.inf)
    available = np.ones(len(points), dtype=bool)
    rows: list[int] = []
    distances: list[float] = []
    duplicates = 0
    while len(rows) < count and available.any():
        weighted = np.where(np.isinf(nearest), scores, scores * nearest)
        row = int(np.argmax(np.where(available, weighted, -np.inf)))
        rows.append(row)
        distances.append(float(nearest[row]))  # before the row itself is included below
        nearest = np.minimum(nearest, np.linalg.norm(points - points[row], axis=1))
        available[row] = False
        equal = available & (nearest < SAME)
        duplicates += int(equal.sum())
        available &= ~equal
    return DiverseSelection(np.array(rows, dtype=np.int64), np.array(distances), duplicates)


def mean_distance(points: np.ndarray) -> float:
    """Return the mean distance over all pairs of points, [M, D]; 0 where there are no pairs."""
    if len(points) < 2:
        return 0.0
    total = sum(np.linalg.norm(points[k + 1 :] - p, axis=1).sum() for k, p in enumerate(points))
    return float(total) / (len(points) * (len(points) - 1) / 2)


def compute_descriptors(ensemble: Ensemble, columns: Columns) -> np.ndarray:
    """Return a descriptor of each structure, [M, D]; similar structures have close descriptors.

    It is the mean over a structure's atoms of every member's last features, [F], standardized over
    these structures; all members have the same weight. It does not change when a structure is
    rotated, translated or repeated as a supercell.
    """
    features: dict[str, list[np.ndarray]] = {member.trial: [] for member in ensemble.members}
    graphs, every = ensemble.embed(columns, np.arange(columns.num_graphs))
    for member, of_batch in stream_features(ensemble.members, graphs, every, ensemble.device):
        features[member.trial].append(of_batch[GRAPH])
    each = [standardize(np.concatenate(parts)) for parts in features.values() if parts]
    if not each:
        return np.zeros((0, 1))
    points: np.ndarray = np.concatenate(each, axis=1) / np.sqrt(len(each))
    return points


def is_informative(calibration: Calibration) -> bool:
    """Check whether sigma differs between structures: it is constant with a = c = 0, no factors."""
    return calibration.a > 0.0 or calibration.c > 0.0 or calibration.factors is not None


def score_head(head: HeadEntry, prediction: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Return each structure's uncertainty of one head, in standard deviations of the target, [G].

    For a node-level head the most uncertain atom counts. If sigma is constant, the raw spread of
    the members is used instead.

    Args:
        head: the target's standard deviation, and the calibration.
        prediction: prediction for G structures, in the head's unit.
        offsets: index of each structure's first atom, then the number of atoms, [G + 1].
    """
    informative = is_informative(head.calibration)
    values = (prediction.std if informative else prediction.std_epistemic)[:, 0]
    unit = head.std or 1.0
    return (_largest(values, offsets) if head.level == "node" else values) / unit


def score_structures(
    manifest: Manifest, heads: Mapping[str, HeadPrediction], offsets: np.ndarray
) -> np.ndarray:
    """Return each structure's uncertainty, the mean over heads, in standard deviations, [G].

    Heads whose sigma is constant, because their spread is unrelated to their errors on ``cal``,
    count only if there are no others.

    Args:
        manifest: manifest of the ensemble.
        heads: predictions of the heads to average, by name.
        offsets: index of each structure's first atom, then the number of atoms, [G + 1].
    """
    informative = [n for n in heads if is_informative(manifest.heads[n].calibration)]
    each = [score_head(manifest.heads[n], heads[n], offsets) for n in informative or heads]
    return np.mean(each, axis=0) if each else np.zeros(len(offsets) - 1)


def force_disagreement(prediction: HeadPrediction, offsets: np.ndarray) -> np.ndarray:
    """Return the largest disagreement on the force on an atom, eV/angstrom, [G].

    Args:
        prediction: prediction of a forces head; its spread is the root *mean* variance of three
            components, so the deviation of the vector is larger by a factor of sqrt(3).
        offsets: index of each structure's first atom, then the number of atoms, [G + 1].

    Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
    """
    return _largest(np.sqrt(3.0) * prediction.std_epistemic[:, 0], offsets)


def _largest(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the largest value of each structure's atoms, [G]."""
    largest: np.ndarray = np.maximum.reduceat(values, offsets[:-1])
    return largest


def assign_levels(deviation: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return each structure's level as an index into ``LEVELS``, [G].

    Args:
        deviation: largest disagreement on a force in each structure, eV/angstrom, [G].
        low: deviation below which the members are accurate enough, eV/angstrom.
        high: deviation from which on a structure is too unusual to label, eV/angstrom.
    """
    level: np.ndarray = np.digitize(deviation, [low, high])
    return level


@dataclass(frozen=True, eq=False)
class PoolCandidate:
    """A structure that may be picked."""

    id: str
    """Name of the structure."""
    score: float
    """Uncertainty: in standard deviations of the targets, or in eV/angstrom for forces."""
    structure: Columns
    """The structure alone, copied out of its batch."""
    deviations: dict[str, float]
    """``HEAD_std`` and ``HEAD_std_epistemic`` in the head's unit, and ``DEVIATION`` for forces."""
    trust: str
    """``ok``, or the reason not to trust the predictions."""


@dataclass(frozen=True)
class PickRequest:
    """Number of structures to pick, and how to rank them."""

    count: int
    """Maximum number of structures to pick."""
    by: str | None = None
    """Head to rank by, or ``forces``; None ranks by the mean over all heads."""
    low: float = 0.0
    """Disagreement on forces from which a structure is a candidate, eV/angstrom."""
    high: float = np.inf
    """Disagreement on forces from which a structure is too unusual, eV/angstrom."""
    unseen: bool = False
    """Whether structures with elements that no member has seen may be picked."""


@dataclass
class PickResult:
    """Picked structures, and counts of the others by reason."""

    candidates: list[PoolCandidate] = field(default_factory=list)
    """Picked structures, in the order of picking."""
    distances: list[float | None] = field(default_factory=list)
    """Distance of each structure to the nearest one picked before it; None for the first."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of structures by outcome, see ``PickTable.counts``."""
    mean_distance: float = 0.0
    """Mean distance over all pairs of picked structures."""
    mean_distance_top: float = 0.0
    """The same for equally many structures with the highest scores, for comparison."""


PickRow = dict[str, str | int | float | None]
"""A picked structure: ``id``; ``pick``, its number from 1; ``score``; ``distance``; its
``deviations`` by name; ``trust``. None for a value that is not finite or does not exist."""


class PickTable(TypedDict):
    """The result of a pick, as ``ensemble pick --json`` prints it."""

    picked: list[PickRow]
    """Picked structures, in the order in which they were picked."""
    counts: dict[str, int]
    """Structures of the pool by outcome: all that were ``read``; ``bad`` ones that cannot be
    predicted; those whose prediction is ``not_finite``; those with elements ``unseen`` in training;
    those of each of ``LEVELS`` if forces rank; and those that are the ``same`` as a picked one."""
    mean_distance: float | None
    """Mean distance of the descriptors over all pairs of picked structures."""
    mean_distance_top: float | None
    """The same for equally many structures with the highest scores, for comparison."""


def pick_structures(
    ensemble: Ensemble, pool: Iterable[Structures], request: PickRequest
) -> PickResult:
    """Pick the structures of a pool that are most worth labelling.

    Of the streamed pool, ``SHORTLIST`` times the wanted number of structures are kept, the most
    uncertain ones; ``farthest_first`` picks from these.

    Args:
        ensemble: ensemble that predicts the pool.
        pool: the structures, a batch at a time.
        request: number of structures to pick, and how to rank them.

    Raises:
        ConfigError: the ensemble has no such head, or no energy head to derive forces from.
        DataError: the pool holds nothing that can be picked.
    """
    ranking = make_ranking(ensemble, request)
    result = PickResult()
    candidates = _find_candidates(ranking, pool, result.counts)
    best = heapq.nlargest(SHORTLIST * request.count, candidates, key=lambda one: one.score)
    if not best:
        counts = ", ".join(f"{count} {name}" for name, count in result.counts.items()) or "0 read"
        raise DataError(f"the pool holds nothing to pick ({counts}); give other structures.")
    structures = [candidate.structure for candidate in best]
    joined = join_columns(
        structures,
        attributes=tuple(ensemble.rules.attributes),
        laplacian=ensemble.rules.laplacian > 0,
        stats=structures[0].stats,
    )
    points = compute_descriptors(ensemble, joined)
    scores = np.array([candidate.score for candidate in best])
    _choose(result, best, points, np.maximum(scores, np.finfo(float).tiny), request.count)
    return result


def _choose(
    result: PickResult,
    candidates: Sequence[PoolCandidate],
    points: np.ndarray,
    scores: np.ndarray,
    count: int,
) -> None:
    """Complete a result by the candidates that ``farthest_first`` chooses.

    Args:
        result: gets candidates, distances and counts.
        candidates: M structures.
        points: their descriptors, [M, D].
        scores: their scores, > 0, [M].
        count: number of structures to choose.
    """
    choice = farthest_first(points, scores, count)
    result.candidates = [candidates[row] for row in choice.rows]
    result.distances = [None if np.isinf(far) else float(far) for far in choice.distances]
    result.counts["same"] = choice.duplicates
    result.mean_distance = mean_distance(points[choice.rows])
    result.mean_distance_top = mean_distance(points[: len(choice.rows)])


def pick_unlike(trunk: FrozenTrunk, pool: Iterable[Structures], count: int) -> PickResult:
    """Pick the structures of a pool that are most unlike each other; no label is needed.

    Structures are described by mean and standard deviation over their atoms of the features of a
    foundation model. The whole pool is kept in memory.

    Args:
        trunk: the foundation model.
        pool: the structures, a batch at a time, read with rules that name the model.
        count: number of structures to pick.

    Raises:
        DataError: the pool holds nothing that can be picked.
    """
    result = PickResult()
    candidates: list[PoolCandidate] = []
    parts = [np.zeros((0, 1))]
    for structures in pool:
        columns = structures.columns
        result.counts += Counter(read=len(structures.ids), bad=len(structures.errors))
        if columns.num_graphs:
            parts.append(_describe_by_features(trunk, columns))
        names = [n for place, n in enumerate(structures.ids) if place not in structures.errors]
        for row, name in enumerate(names):
            structure = columns.take(np.array([row]))
            candidates.append(PoolCandidate(name, 1.0, structure, {}, "ok"))
    if not candidates:
        raise DataError("the pool holds nothing to pick; give other structures.")
    points = standardize(np.concatenate(parts[1:]))
    _choose(result, candidates, points, np.ones(len(points)), count)
    return result


def _describe_by_features(trunk: FrozenTrunk, columns: Columns) -> np.ndarray:
    """Return mean and standard deviation of features over the atoms of structures, [G, 2 F]."""
    values = flat_features(trunk, columns).astype(np.float64)
    mean = mean_over_atoms(values, columns)
    variance = mean_over_atoms(values**2, columns) - mean**2
    return np.concatenate((mean, np.sqrt(np.maximum(variance, 0.0))), axis=1)


@dataclass(frozen=True)
class Ranking:
    """How a pool is ranked: by heads, by a forces head, or by the gradient of an energy head."""

    ensemble: Ensemble
    """Ensemble that predicts the structures."""
    request: PickRequest
    """Limits that leave structures out."""
    heads: tuple[str, ...]
    """Heads to rank by; empty if forces rank."""
    forces: str | None
    """Forces head to rank by, if any."""
    energy: str | None
    """Energy head whose gradient ranks, if any."""

    def scores(
        self, columns: Columns, heads: dict[str, HeadPrediction]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Score structures.

        Args:
            columns: G structures.
            heads: predictions for them, by head.

        Returns:
            The scores, [G]; and the largest disagreement on a force, eV/angstrom, [G], or None
            if heads rank.
        """
        if self.heads:
            chosen = {name: heads[name] for name in self.heads}
            return score_structures(self.ensemble.manifest, chosen, columns.node_offset), None
        if self.forces is not None:
            deviation = force_disagreement(heads[self.forces], columns.node_offset)
            return deviation, deviation
        assert self.energy is not None, "a ranking by nothing"
        parts = [
            compute_derivatives(self.ensemble, self.energy, columns, piece).deviation
            for piece in pieces(columns, np.arange(columns.num_graphs), EDGES_PER_BATCH)
        ]
        deviation = _largest(np.concatenate(parts), columns.node_offset)
        return deviation, deviation


def make_ranking(ensemble: Ensemble, request: PickRequest) -> Ranking:
    """Choose the heads or forces that rank structures.

    Raises:
        ConfigError: the ensemble has no such head, or no energy head to derive forces
            from; trust levels are given without forces, or in the wrong order.
    """
    heads = ensemble.manifest.heads
    by = request.by
    if by is not None and by not in (FORCES, *heads):
        raise ConfigError(unknown("head", by, (FORCES, *heads)))
    derived = by if by in heads and heads[by].derived_from and heads[by].shape == "vector" else None
    by_forces = derived is not None or by == FORCES
    if not by_forces and (request.low > 0.0 or np.isfinite(request.high)):
        raise ConfigError("--low and --high are levels of forces: add --by forces.")
    if not request.low < request.high:
        raise ConfigError(
            f"--low {request.low:g} is not below --high {request.high:g}: exchange them."
        )
    if not by_forces:
        return Ranking(ensemble, request, (by,) if by else tuple(heads), None, None)
    if derived is not None:
        return Ranking(ensemble, request, (), derived, None)
    energy = find_energy_head(ensemble)
    forces = find_forces_head(ensemble, energy)
    return Ranking(ensemble, request, (), forces, None if forces else energy)


def _find_candidates(
    ranking: Ranking, pool: Iterable[Structures], counts: Counter[str]
) -> Iterator[PoolCandidate]:
    """Yield the structures of a pool that may be picked, and count all of them.

    Args:
        ranking: ranking that scores the structures.
        pool: the structures, a batch at a time.
        counts: number of structures by outcome; updated in place.
    """
    for structures in pool:
        counts += Counter(read=len(structures.ids), bad=len(structures.errors))
        columns = structures.columns
        if not columns.num_graphs:
            continue
        prediction = ranking.ensemble.predict(columns, unlabelled=True)
        scores, deviation = ranking.scores(columns, prediction.heads)
        good = _is_candidate(ranking, columns, scores, deviation, counts)
        names = [n for place, n in enumerate(structures.ids) if place not in structures.errors]
        each = _standard_deviations(ranking.ensemble, columns, prediction.heads)
        for row, deviations in enumerate(each):
            if good[row]:
                if deviation is not None:
                    deviations[DEVIATION] = float(deviation[row])
                structure = columns.take(np.array([row]))
                trust = prediction.trust[row]
                yield PoolCandidate(names[row], float(scores[row]), structure, deviations, trust)


def _is_candidate(
    ranking: Ranking,
    columns: Columns,
    scores: np.ndarray,
    deviation: np.ndarray | None,
    counts: Counter[str],
) -> np.ndarray:
    """Check which structures of a batch may be picked, [G], and count the others.

    Args:
        ranking: ranking with the request.
        columns: G structures.
        scores: score of each structure, [G].
        deviation: disagreement on forces, eV/angstrom, [G]; None if heads rank.
        counts: number of structures by outcome; updated in place.
    """
    request = ranking.request
    good: np.ndarray = np.isfinite(scores)
    counts["not_finite"] += int((~good).sum())
    strange = ~np.isin(columns.numbers, ranking.ensemble.manifest.elements)
    unseen = np.logical_or.reduceat(strange, columns.node_offset[:-1])
    counts["unseen"] += int((good & unseen).sum())
    if not request.unseen:
        good &= ~unseen
    if deviation is not None:
        level = assign_levels(deviation[good], request.low, request.high)
        counts += Counter({name: int((level == k).sum()) for k, name in enumerate(LEVELS)})
        good[good] = level == 1
    return good


def _standard_deviations(
    ensemble: Ensemble, columns: Columns, heads: dict[str, HeadPrediction]
) -> Iterator[dict[str, float]]:
    """Yield each structure's standard deviations by name; for a node-level head the largest."""
    values: dict[str, np.ndarray] = {}
    for name, prediction in heads.items():
        node = ensemble.manifest.heads[name].level == "node"
        parts = {"_std": prediction.std, "_std_epistemic": prediction.std_epistemic}
        for suffix, part in parts.items():
            column = part[:, 0]
            values[name + suffix] = _largest(column, columns.node_offset) if node else column
    for row in range(columns.num_graphs):
        yield {name: float(column[row]) for name, column in values.items()}


def check_picks_format(path: Path) -> None:
    """Check the suffix of the output file, before anything is computed.

    Raises:
        ConfigError: the suffix is not one of ``EXTXYZ_SUFFIXES``.
    """
    if path.suffix not in EXTXYZ_SUFFIXES:
        raise ConfigError(f"{path}: structures are written as extxyz; end it in .extxyz.")


def picks_to_plain(result: PickResult) -> PickTable:
    """Return a result as plain data for JSON."""
    picked = [
        {
            "id": candidate.id,
            "pick": rank,
            "score": candidate.score,
            "distance": far,
            **candidate.deviations,
            "trust": candidate.trust,
        }
        for rank, (candidate, far) in enumerate(
            zip(result.candidates, result.distances, strict=True), start=1
        )
    ]
    plain: PickTable = replace_nonfinite(
        {
            "picked": picked,
            "counts": dict(result.counts),
            "mean_distance": result.mean_distance,
            "mean_distance_top": result.mean_distance_top,
        }
    )
    return plain


def write_picks(path: Path, attributes: Mapping[str, AttributeConfig], result: PickResult) -> None:
    """Write the picked structures as extended XYZ, in the order of picking.

    ``info`` of each frame holds its ``PickRow`` without None, and the known properties that the
    ensemble takes as input. The file is written atomically.

    Args:
        path: the file to write.
        attributes: known properties that the ensemble takes as input, by name.
        result: result of the pick.
    """
    frames = []
    for entry, candidate in zip(picks_to_plain(result)["picked"], result.candidates, strict=True):
        atoms = _to_atoms(candidate, attributes)
        atoms.info |= {key: value for key, value in entry.items() if value is not None}
        frames.append(atoms)
    text = io.StringIO()
    write_atoms(text, frames, format="extxyz")
    write_text(path, text.getvalue())


def _to_atoms(candidate: PoolCandidate, attributes: Mapping[str, AttributeConfig]) -> Atoms:
    """Return a picked structure with its known properties in the units of the input."""
    graph = candidate.structure
    known = {
        item.key or name: float(graph.attributes[name][0]) / inside(item.unit)[0]
        for name, item in attributes.items()
    }
    pbc = graph.pbc[0].tolist()
    return Atoms(graph.numbers, graph.positions, cell=graph.cell[0], pbc=pbc, info=known)
