"""Check a whole store for damage, duplicates, leakage, outliers and conflicting targets.

*Twins* are duplicates: structures whose signatures differ by less than a tolerance. *Leakage* is
data that train shares with another split.

Shapes: G graphs, N nodes, E edges.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TypedDict

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data import Columns, mark_far, offsets
from hydragnn_hpo.data.columns import columns_from
from hydragnn_hpo.data.graph_sizes import edge_lengths
from hydragnn_hpo.data.store_index import Index, check_files, read_checked_stats, read_index
from hydragnn_hpo.data.store_parts import WindowReader
from hydragnn_hpo.data.store_summary import Scan, Spread, measure_spread, read_windows, scan_store
from hydragnn_hpo.errors import DataError, StorageError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.inspection.duplicates import (
    EXACT,
    TRAIN,
    NearPairs,
    Signatures,
    Twins,
    add_attribute_keys,
    composition_keys,
    compute_signatures,
    find_near_pairs,
    find_repeated,
    find_train_twins,
    find_twins,
)
from hydragnn_hpo.inspection.force_check import LabelledStructure, compare_forces, read_labels
from hydragnn_hpo.units import shown_unit

CLOSE = 0.6
"""Atoms closer than this share of the sum of their covalent radii are suspicious. The shortest
bonds of the G2 molecules are at 0.8 or above.

Source: radii of Cordero et al. (2008), Dalton Trans. 2832."""


class NamedRow(TypedDict):
    """A structure of the store."""

    row: int
    """Row of its graph, counted from 0."""
    id: str
    """Its name."""
    split: str | None
    """Its split; None outside of all splits."""


class CloseAtoms(TypedDict):
    """The two atoms of a structure that are closest relative to their covalent radii."""

    atoms: list[int]
    """Numbers of both atoms, counted from 1, ascending."""
    elements: list[str]
    """Their chemical symbols."""
    distance: float
    """Angstrom."""
    ratio: float
    """Distance over the sum of covalent radii, below ``CLOSE``."""


class CloseRow(NamedRow, CloseAtoms):
    """A structure with atoms too close to each other."""


class ShortestEdge(NamedRow):
    """The structure with the shortest edge of the store."""

    distance: float
    """Length of that edge, angstrom."""


class IsolatedRow(NamedRow):
    """A structure in which some atoms, not all, have no edge."""

    atoms: int
    """Number of atoms without an edge."""


class GeometryReport(TypedDict):
    """Distances of a store."""

    shortest: ShortestEdge | None
    """Structure with the shortest edge; None where the store has no edges."""
    close: list[CloseRow]
    """Structures with atoms too close to each other, the worst first."""
    bare: list[NamedRow]
    """Structures without edges."""
    isolated: list[IsolatedRow]
    """Structures in which some atoms, not all, have no edge."""


class DuplicateSet(TypedDict):
    """Structures that are the same within the tolerance."""

    rows: list[int]
    """Their rows, ascending."""
    ids: list[str]
    """Their names."""
    splits: list[str | None]
    """Their splits; None outside of all splits."""
    formula: str
    """Formula of the first, elements by atomic number."""
    distance: float
    """Largest difference of a signature from that of the first, angstrom."""


class DuplicateReport(TypedDict):
    """All duplicates of a store."""

    groups: int
    """Number of sets."""
    structures: int
    """Number of structures in all sets."""
    exact_groups: int
    """Number of sets that differ by rounding only, see ``duplicates.EXACT``."""
    between: dict[str, int]
    """Number of sets with structures in two splits, by the names of both, as in ``train-test``."""
    rows: list[DuplicateSet]
    """All sets, in the order of their first rows."""


class TrainTwin(NamedRow):
    """A structure outside of train with a twin in train."""

    train_row: int
    """Row of that twin."""
    train_id: str
    """Its name."""
    distance: float
    """Largest difference of their signatures, angstrom."""


class SplitLeakage(TypedDict):
    """Structures of a split that are shared with train."""

    structures: int
    """Number of its structures."""
    twins: int
    """Number of those with a twin in train."""
    groups: int
    """Number of those whose group is in train."""
    compositions: int
    """Number of those whose composition is in train."""


class LeakageReport(TypedDict):
    """Structures of all splits that are shared with train."""

    splits: dict[str, SplitLeakage]
    """Numbers of shared structures, by split, without train."""
    twins: list[TrainTwin]
    """Structures with a twin in train, by row."""
    groups: list[NamedRow]
    """Structures whose group is in train, by row."""


class OutlierRow(NamedRow):
    """A structure with an outlier."""

    value: float
    """The value, or the norm of a vector or tensor, in the target's unit."""
    z: float
    """Robust z-score."""


class NodeOutlierRow(OutlierRow):
    """A structure with outliers of a node target, and the farthest of them."""

    atom: int
    """The atom of that outlier, counted from 1."""
    atoms: int
    """Number of its atoms that are outliers."""


class OutlierReport(TypedDict):
    """Outliers of one target."""

    level: str
    """``graph`` or ``node``."""
    unit: str
    """Unit of the values."""
    scale_unit: str
    """Unit of ``scale``: per atom for total energies."""
    subtracted: str
    """Name of the expected value that was subtracted first, in words."""
    scale: float
    """Median of the robust standard deviations in which values are measured."""
    values: int
    """Number of known values."""
    count: int
    """Number of outliers."""
    far: int
    """Number of structures with one that is far from all others, see ``properties.mark_far``; these
    are the first rows."""
    rows: Sequence[OutlierRow | NodeOutlierRow]
    """Structures with an outlier, the farthest first."""


class Conflict(TypedDict):
    """A target that differs too much between twins."""

    target: str
    """Name of the target."""
    rows: list[int]
    """Two rows: those with the lowest and highest values, or the most different ones."""
    difference: float
    """Difference of the two values."""
    allowed: float
    """Largest difference allowed."""
    ids: list[str]
    """Their names."""
    splits: list[str | None]
    """Their splits; None outside of all splits."""
    unit: str
    """Unit of the difference: per atom for total energies."""


class NearTwins(Conflict):
    """A target that differs too much between two structures of close geometry."""

    distance: float
    """Largest difference of their signatures, angstrom."""
    formula: str
    """Their formula, elements by atomic number."""


class UnresolvedTwins(NearTwins):
    """Near twins that are equal in all attributes that a model reads."""

    told_apart_by: list[str]
    """Attributes of the store in which they differ."""


class ReportSettings(TypedDict):
    """Store and settings of a check."""

    store: str
    """Path of the store."""
    num_graphs: int
    """Number of its graphs."""
    tolerance: float
    """Largest difference of twins, angstrom."""
    z_limit: float
    """Robust z-score from which a value is an outlier."""


class DamageReport(ReportSettings):
    """Findings in a damaged store, where no other check is run."""

    damage: list[str]
    """A sentence per damaged part; empty where there is no damage."""
    serious: bool
    """Whether the store is damaged, a structure outside of train has a twin or its group in train,
    or forces contradict their energy."""


class ForceReport(TypedDict):
    """Comparison of forces with the energy that they are derived from."""

    target: str
    """Name of the forces."""
    verdict: str
    """``agree``, ``contradict`` or ``unclear``."""
    ratio: float
    """Change of the energy over that by the forces; 1 where they agree."""
    error: float
    """Standard error of ``ratio``."""
    count: int
    """Number of pairs of structures, or of structures, that were compared."""
    sentence: str
    """What was found, to be read after the name of the forces."""


class StoreReport(DamageReport):
    """Findings in an intact store."""

    checksum: str
    """Checksum of the store."""
    cutoff: float
    """Largest edge length, angstrom."""
    duplicates: DuplicateReport
    leakage: LeakageReport
    outliers: dict[str, OutlierReport]
    """By target."""
    geometry: GeometryReport
    conflicts: list[Conflict]
    """Conflicting targets of twins, the worst first."""
    near_twins: list[NearTwins]
    """Targets that structures of close geometry do not share, the worst first."""
    forces: list[ForceReport]
    """Forces that are derived from an energy, as far as they can be compared with it."""


@dataclass(frozen=True, eq=False)
class WindowGeometry:
    """Distances between the atoms of one window."""

    shortest: NDArray[np.float64]
    """Length of the shortest edge of each graph in angstrom, [G]; infinite where it has none."""

    isolated: NDArray[np.int64]
    """Number of atoms without an edge in each graph, [G]."""

    close: dict[int, CloseAtoms]
    """The closest atoms of each graph with atoms too close, by its row in the store."""


def measure_geometry(columns: Columns, first: int) -> WindowGeometry:
    """Measure the edges of a window.

    Args:
        columns: graphs of the window.
        first: row of its first graph in the store.
    """
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    ends = columns.edges + columns.node_offset[graph, None]
    lengths = edge_lengths(columns)
    ratio = lengths / covalent_radii[columns.numbers][ends].sum(axis=1)
    shortest = np.full(columns.num_graphs, np.inf)
    np.minimum.at(shortest, graph, lengths)
    degree = np.bincount(ends[:, 1], minlength=len(columns.numbers))
    isolated_before = np.concatenate(([0], np.cumsum(degree == 0)))
    isolated = np.diff(isolated_before[columns.node_offset]).astype(np.int64)
    near = np.flatnonzero(ratio < CLOSE)
    near = near[np.lexsort((ratio[near], graph[near]))]
    close: dict[int, CloseAtoms] = {}
    for edge in near[np.unique(graph[near], return_index=True)[1]].tolist():
        pair = np.sort(ends[edge])
        close[first + int(graph[edge])] = {
            "atoms": (pair - columns.node_offset[graph[edge]] + 1).tolist(),
            "elements": [chemical_symbols[number] for number in columns.numbers[pair]],
            "distance": float(lengths[edge]),
            "ratio": float(ratio[edge]),
        }
    return WindowGeometry(shortest, isolated, close)


CONFLICT = 0.5
"""Share of a target's usual spread by which twins may differ, see ``Spread.usual``."""


def find_conflicts(
    scan: Scan, spreads: Mapping[str, Spread], twins: Sequence[Twins]
) -> list[Conflict]:
    """List the targets that differ too much between twins, the worst first.

    Total energies are compared per atom. Atoms of twins may be ordered differently, so their values
    are compared in ascending order, element by element. Only energies are compared between a cell
    and its supercell; other targets are compared among twins of equal size.

    Args:
        scan: scan of the store.
        spreads: spread of every target by name.
        twins: sets of structures that are the same.
    """
    conflicts: list[Conflict] = []
    for name, spread in spreads.items():
        allowed = CONFLICT * spread.usual
        for group in twins:
            comparable = _group_comparable(scan, name, group.rows)
            compared = (_compare_twins(scan, name, rows) for rows in comparable)
            difference, rows = max(compared, key=itemgetter(0))
            if difference > allowed:
                conflicts.append(
                    {
                        "target": name,
                        "rows": rows,
                        "difference": difference,
                        "allowed": allowed,
                        "ids": [scan.ids[row] for row in rows],
                        "splits": [_split_name(scan, row) for row in rows],
                        "unit": _difference_unit(scan, name),
                    }
                )
    return sorted(conflicts, key=_rank_conflict)


def _rank_conflict(conflict: Conflict) -> float:
    """Return the key that sorts conflicts, the worst first."""
    return -conflict["difference"] / max(conflict["allowed"], float(np.finfo(np.float64).tiny))


def _group_comparable(scan: Scan, name: str, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the sets of twins whose values of a target should be equal."""
    if scan.stats["targets"][name]["energy"] is not None:
        return [rows]
    sizes = scan.num_nodes[rows]
    return [rows[sizes == size] for size in np.unique(sizes)]


def _compare_twins(scan: Scan, name: str, rows: NDArray[np.int64]) -> tuple[float, list[int]]:
    """Return the largest difference of a target among twins, and its two rows.

    There are fewer than two rows where the difference is 0.
    """
    target, values = scan.stats["targets"][name], scan.scores[name]
    if target["level"] == "node":
        first = _sort_node_values(scan, values, int(rows[0]))
        worst = 0.0, [int(rows[0])]
        for row in rows[1:].tolist():
            difference = np.abs(_sort_node_values(scan, values, row) - first)
            known = float(np.max(difference, where=np.isfinite(difference), initial=0.0))
            if known > worst[0]:
                worst = known, [int(rows[0]), row]
        return worst
    rows = rows[np.isfinite(values[rows])]
    if len(rows) < 2:
        return 0.0, []
    total = target["energy"] == "total"
    compared = values[rows] / scan.num_nodes[rows] if total else values[rows]
    ends = [int(rows[compared.argmin()]), int(rows[compared.argmax()])]
    return float(compared.max() - compared.min()), ends


def _sort_node_values(scan: Scan, values: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """Return the values of a graph's atoms, sorted by element, then value."""
    nodes = np.arange(scan.node_offset[row], scan.node_offset[row + 1])
    return values[nodes[np.lexsort((values[nodes], scan.numbers[nodes]))]]


FEW_PAIRS = 20
"""Pairs of one group from which their usual slope is known."""

STEEP = 6.0
"""Times the usual slope of a target between close structures from which another cause is likely."""


def find_near_twins(scan: Scan, spreads: Mapping[str, Spread], pairs: NearPairs) -> list[NearTwins]:
    """List graph-level targets that differ more between close structures than geometry explains.

    What geometry explains is the median of difference over distance, over the pairs of one group
    (they may be frames of one stretched bond), or all pairs where those are few. Pairs of different
    groups are judged, or all pairs where there are none; of two groups the closest is listed.

    Args:
        scan: scan of the store.
        spreads: spread of every target by name.
        pairs: pairs of close geometry.
    """
    apart = scan.group[pairs.first] != scan.group[pairs.second]
    twins: list[NearTwins] = []
    for name, spread in spreads.items():
        target = scan.stats["targets"][name]
        if target["level"] == "node":
            continue
        values = scan.scores[name] / (scan.num_nodes if target["energy"] == "total" else 1)
        difference = np.abs(values[pairs.first] - values[pairs.second])
        known = np.isfinite(difference)
        if not known.any():
            continue
        within = known & ~apart
        usual = within if np.count_nonzero(within) >= FEW_PAIRS else known
        slope = float(np.median((difference / pairs.distance)[usual]))
        allowed = np.maximum(STEEP * slope * pairs.distance, CONFLICT * spread.usual)
        odd = np.flatnonzero(known & (apart if apart.any() else ~apart) & (difference > allowed))
        twins += [
            {
                **_name_pair(scan, name, pairs, place),
                "difference": float(difference[place]),
                "allowed": float(allowed[place]),
            }
            for place in _closest_of_groups(scan, pairs, odd, whole=not apart.any())
        ]
    return sorted(twins, key=_rank_conflict)


class _NamedPair(TypedDict):
    """A pair of close structures; the part of ``NearTwins`` that holds no value."""

    target: str
    rows: list[int]
    ids: list[str]
    splits: list[str | None]
    unit: str
    distance: float
    formula: str


def _name_pair(scan: Scan, target: str, pairs: NearPairs, place: int) -> _NamedPair:
    rows = [int(pairs.first[place]), int(pairs.second[place])]
    return {
        "target": target,
        "rows": rows,
        "ids": [scan.ids[row] for row in rows],
        "splits": [_split_name(scan, row) for row in rows],
        "unit": _difference_unit(scan, target),
        "distance": float(pairs.distance[place]),
        "formula": _formula(scan, rows[0]),
    }


def _closest_of_groups(
    scan: Scan, pairs: NearPairs, places: NDArray[np.int64], *, whole: bool
) -> list[int]:
    """Return the place of the closest pair of each two groups.

    Args:
        scan: scan of the store.
        pairs: pairs of close geometry.
        places: those to choose from.
        whole: keep all pairs, because the structures of each are of one group.
    """
    order = places[np.argsort(pairs.distance[places], kind="stable")]
    if whole:
        return [int(place) for place in order]
    ends = np.stack([scan.group[pairs.first[order]], scan.group[pairs.second[order]]])
    _, first = np.unique(np.sort(ends, axis=0), axis=1, return_index=True)
    return [int(place) for place in order[np.sort(first)]]


TOLERANCE = 0.01
"""Structures whose signatures differ by no more than this (angstrom) are twins."""

Z_LIMIT = 10.0
"""Robust z-score from which a value is an outlier."""

Progress = Callable[[str], None]
"""Called with a short description of the current step."""


@dataclass(frozen=True)
class Findings:
    """The report on a store, and the scan it was made from."""

    report: StoreReport | DamageReport
    """Ready for JSON."""

    scan: Scan | None = field(repr=False)
    """Scan of the store; None where it is damaged."""

    spreads: dict[str, Spread] = field(repr=False)
    """Spread of every target; empty where the store is damaged."""

    @property
    def serious(self) -> bool:
        """Whether the store is damaged, train shares structures, or forces contradict energies."""
        return self.report["serious"]


def check_store(
    path: Path,
    *,
    tolerance: float = TOLERANCE,
    z_limit: float = Z_LIMIT,
    progress: Progress | None = None,
) -> Findings:
    """Read every byte of a store, and report damage, duplicates, leakage and outliers.

    Memory holds one window, the light columns, one number per value of every target, and the
    signatures of structures that share their composition with another one.

    Args:
        path: the store.
        tolerance: largest difference of twins in angstrom, see ``data.duplicates``.
        z_limit: robust z-score from which a value is an outlier.
        progress: called at each step.

    Raises:
        DataError: ``path`` is not a store, or its index is damaged.
    """
    report_progress = progress or (lambda _: None)
    index = read_index(path)
    settings: ReportSettings = {
        "store": str(path),
        "num_graphs": index.num_graphs,
        "tolerance": tolerance,
        "z_limit": z_limit,
    }
    report_progress("comparing checksums")
    damage = _find_damage(index)
    if not damage:
        try:
            return _check_intact_store(index, settings, report_progress)
        except DataError as error:
            damage = [str(error)]
    damaged: DamageReport = {**settings, "damage": damage, "serious": True}
    return Findings(damaged, None, {})


@dataclass(frozen=True, eq=False)
class TwinsOfModels:
    """Structures of a store that models cannot tell apart, because of what they read."""

    near: list[UnresolvedTwins]
    """Near twins whose targets differ, the worst first."""
    same: list[NDArray[np.int64]]
    """Rows of each set of twins, ascending."""


def find_twins_of_models(path: Path, attributes: Collection[str]) -> TwinsOfModels:
    """Find twins and near twins among structures that are equal in what models read.

    Args:
        path: an intact store; all of it is read.
        attributes: attributes that the models read; structures that differ in one are no twins.

    Raises:
        DataError: ``path`` is not a store, or it is damaged.
    """
    index = read_index(path)
    stats = read_checked_stats(index)
    scan = scan_store(index, stats)
    seen = replace(scan, attributes={k: v for k, v in scan.attributes.items() if k in attributes})
    compositions = composition_keys(scan.numbers, scan.num_nodes)
    signatures, _ = _scan_windows(index, seen, compositions, lambda _: None)
    spreads = {name: measure_spread(scan, name, Z_LIMIT) for name in stats["targets"]}
    pairs = find_near_pairs(signatures, scan.num_nodes, TOLERANCE)
    same = [twins.rows for twins in find_twins(signatures, TOLERANCE)]
    near: list[UnresolvedTwins] = [
        {
            **twins,
            "told_apart_by": [
                name
                for name, values in scan.attributes.items()
                if len(np.unique(values[twins["rows"]])) > 1
            ],
        }
        for twins in find_near_twins(seen, spreads, pairs)
    ]
    return TwinsOfModels(near, same)


def _find_damage(index: Index) -> list[str]:
    """Compare every file with its checksum; return a sentence per damaged part."""
    sentences = []
    try:
        read_checked_stats(index)
    except (DataError, StorageError) as error:
        sentences.append(str(error))
    for part in index.parts:
        try:
            check_files(index.folder, part, whole=True)
        except (DataError, StorageError) as error:
            sentences.append(str(error))
    return sentences


def _check_intact_store(index: Index, settings: ReportSettings, progress: Progress) -> Findings:
    stats = read_checked_stats(index)
    tolerance, z_limit = settings["tolerance"], settings["z_limit"]
    scan = scan_store(index, stats)
    compositions = composition_keys(scan.numbers, scan.num_nodes)
    signatures, geometry = _scan_windows(index, scan, compositions, progress)
    progress("comparing structures")
    twins = find_twins(signatures, tolerance)
    progress("looking at targets")
    spreads = {name: measure_spread(scan, name, z_limit) for name in stats["targets"]}
    leakage = _report_leakage(scan, signatures, twins, tolerance, compositions)
    forces = list(_report_forces(index, stats))
    report: StoreReport = {
        **settings,
        "checksum": stats["checksum"],
        "cutoff": stats["cutoff"],
        "damage": [],
        "duplicates": _report_duplicates(scan, twins),
        "leakage": leakage,
        "outliers": {name: _report_outliers(scan, name, s, z_limit) for name, s in spreads.items()},
        "geometry": _report_geometry(scan, geometry),
        "conflicts": find_conflicts(scan, spreads, twins),
        "near_twins": find_near_twins(
            scan, spreads, find_near_pairs(signatures, scan.num_nodes, tolerance)
        ),
        "forces": forces,
        "serious": _shares_with_train(leakage) or any(f["verdict"] == "contradict" for f in forces),
    }
    return Findings(report, scan, spreads)


def _shares_with_train(leakage: LeakageReport) -> bool:
    return any(split["twins"] or split["groups"] for split in leakage["splits"].values())


MOST_COMPARED, MOST_WINDOWS = 2000, 20
"""Most structures whose forces are compared with energies, and most windows that they are from."""


def _report_forces(index: Index, stats: StoreStats) -> Iterator[ForceReport]:
    """Yield the comparison of each derived set of forces with its energy, where that is possible.

    The first structures of windows at equal intervals are read: steps of a trajectory.
    """
    derived = {
        name: str(target["derived_from"])
        for name, target in stats["targets"].items()
        if target["level"] == "node" and target.get("derived_from") in stats["targets"]
    }
    if not derived:
        return
    windows = range(0, len(index.windows), -(-len(index.windows) // MOST_WINDOWS))
    labels: dict[str, list[LabelledStructure]] = {name: [] for name in derived}
    with WindowReader(index) as reader:
        for window in windows:
            columns = columns_from(reader.read(window, window + 1, None), stats)
            first = np.arange(min(columns.num_graphs, MOST_COMPARED // len(windows)))
            columns = columns.take(first)
            for name, energy in derived.items():
                per_atom = stats["targets"][energy].get("energy") == "per_atom"
                labels[name] += read_labels(columns, energy, name, per_atom=per_atom)
    for name, structures in labels.items():
        evidence = compare_forces(structures)
        if evidence is not None:
            yield {
                "target": name,
                "verdict": evidence.verdict,
                "ratio": evidence.ratio,
                "error": evidence.error,
                "count": evidence.count,
                "sentence": evidence.sentence,
            }


def _scan_windows(
    index: Index, scan: Scan, compositions: NDArray[np.uint64], progress: Progress
) -> tuple[Signatures, list[WindowGeometry]]:
    """Read every window once: signatures of graphs that may have twins, and distances of all."""
    keys = add_attribute_keys(compositions, scan.attributes)
    rows = find_repeated(keys)
    values, sizes, geometry = [], [], []
    for window, arrays in enumerate(read_windows(index)):
        first, last = (int(index.starts[number, 0]) for number in (window, window + 1))
        columns = columns_from(arrays, scan.stats)
        begin, end = np.searchsorted(rows, (first, last))
        candidates = columns.take(rows[begin:end] - first)
        value, size = compute_signatures(candidates, scan.stats["cutoff"])
        values.append(value)
        sizes.append(size)
        geometry.append(measure_geometry(columns, first))
        progress(f"{last} of {index.num_graphs} graphs read")
    offset = offsets(np.concatenate(sizes))
    return Signatures(rows, keys[rows], np.concatenate(values), offset), geometry


def _name_row(scan: Scan, row: int) -> NamedRow:
    return {"row": row, "id": scan.ids[row], "split": _split_name(scan, row)}


def _split_name(scan: Scan, row: int) -> str | None:
    split = int(scan.split[row])
    return SPLITS[split] if split >= 0 else None


def _report_duplicates(scan: Scan, twins: Sequence[Twins]) -> DuplicateReport:
    """List the sets of twins, and count those with structures in two splits."""
    between: Counter[str] = Counter()
    rows: list[DuplicateSet] = []
    for group in twins:
        members = group.rows.tolist()
        splits = sorted(set(scan.split[members].tolist()) - {-1})
        between.update(f"{SPLITS[a]}-{SPLITS[b]}" for a, b in itertools.combinations(splits, 2))
        rows.append(
            {
                "rows": members,
                "ids": [scan.ids[row] for row in members],
                "splits": [_split_name(scan, row) for row in members],
                "formula": _formula(scan, members[0]),
                "distance": float(group.distance.max()),
            }
        )
    return {
        "groups": len(twins),
        "structures": sum(len(group.rows) for group in twins),
        "exact_groups": sum(row["distance"] <= EXACT for row in rows),
        "between": dict(between),
        "rows": rows,
    }


def _formula(scan: Scan, row: int) -> str:
    numbers = scan.numbers[scan.node_offset[row] : scan.node_offset[row + 1]]
    counts = Counter(numbers.tolist())
    return "".join(f"{chemical_symbols[n]}{c if c > 1 else ''}" for n, c in sorted(counts.items()))


def _report_leakage(
    scan: Scan,
    signatures: Signatures,
    twins: list[Twins],
    tolerance: float,
    compositions: NDArray[np.uint64],
) -> LeakageReport:
    """Count the twins, groups and compositions that each split shares with train."""
    pairs: list[TrainTwin] = [
        {
            **_name_row(scan, row),
            "train_row": twin,
            "train_id": scan.ids[twin],
            "distance": distance,
        }
        for group in twins
        for row, twin, distance in find_train_twins(signatures, group, scan.split, tolerance)
    ]
    in_train = scan.split == TRAIN
    group_seen = np.isin(scan.group, scan.group[in_train])
    composition_seen = np.isin(compositions, compositions[in_train])
    splits: dict[str, SplitLeakage] = {}
    for number, name in enumerate(SPLITS):
        if number != TRAIN:
            here = scan.split == number
            splits[name] = {
                "structures": int(here.sum()),
                "twins": sum(pair["split"] == name for pair in pairs),
                "groups": int((here & group_seen).sum()),
                "compositions": int((here & composition_seen).sum()),
            }
    shared = np.flatnonzero(group_seen & ~in_train & (scan.split >= 0)).tolist()
    pairs.sort(key=lambda pair: pair["row"])
    return {"splits": splits, "twins": pairs, "groups": [_name_row(scan, row) for row in shared]}


def _report_outliers(scan: Scan, name: str, spread: Spread, limit: float) -> OutlierReport:
    known = np.isfinite(spread.rest)
    # too few values, as those of a rare element, have no scale of their own
    scales = spread.scale[spread.scale > 0]
    usual = float(np.median(scales)) if len(scales) else 1.0
    away = np.where(known, spread.rest / np.where(spread.scale > 0, spread.scale, usual), 0.0)
    apart = np.zeros(len(away), dtype=bool)
    apart[known] = mark_far(away[known])
    far = np.flatnonzero((np.abs(spread.z) > limit) | apart)
    far = far[np.argsort(-np.abs(away[far]), kind="stable")]
    target, values = scan.stats["targets"][name], scan.scores[name]
    by_node = target["level"] == "node"
    offset = scan.node_offset
    graphs = np.searchsorted(offset, far, side="right") - 1 if by_node else far
    _, first = np.unique(graphs, return_index=True)
    rows: list[OutlierRow | NodeOutlierRow] = []
    # Sorted places keep the order of ``far``: the first entry of a structure is its farthest.
    for place in np.sort(first).tolist():
        graph = int(graphs[place])
        row = int(far[place])
        named = _name_row(scan, graph)
        value = float(values[row])
        z = float(spread.z[row])
        if by_node:
            atom = row - int(offset[graph]) + 1
            atoms = int((graphs == graph).sum())
            rows.append({**named, "atom": atom, "atoms": atoms, "value": value, "z": z})
        else:
            rows.append({**named, "value": value, "z": z})
    return {
        "level": target["level"],
        "unit": shown_unit(target),
        "scale_unit": _difference_unit(scan, name),
        "subtracted": spread.subtracted,
        "scale": float(np.median(spread.scale[known])) if known.any() else 0.0,
        "values": int(known.sum()),
        "count": len(far),
        "far": len(np.unique(graphs[apart[far]])),
        "rows": rows,
    }


def _difference_unit(scan: Scan, name: str) -> str:
    """Return the unit in which differences are measured: total energies are compared per atom."""
    target = scan.stats["targets"][name]
    unit = f"{target['unit']}/atom" if target["energy"] == "total" else target["unit"]
    return shown_unit({**target, "unit": unit})


def _report_geometry(scan: Scan, windows: Sequence[WindowGeometry]) -> GeometryReport:
    shortest = np.concatenate([window.shortest for window in windows])
    isolated = np.concatenate([window.isolated for window in windows])
    close = [pair for window in windows for pair in window.close.items()]
    close.sort(key=lambda pair: pair[1]["ratio"])
    bare = np.flatnonzero(scan.num_edges == 0).tolist()
    partly_isolated = np.flatnonzero((isolated > 0) & (scan.num_edges > 0)).tolist()
    nearest = int(shortest.argmin())
    shortest_edge: ShortestEdge | None = None
    if scan.num_edges.any():
        shortest_edge = {**_name_row(scan, nearest), "distance": float(shortest[nearest])}
    return {
        "shortest": shortest_edge,
        "close": [{**_name_row(scan, row), **atoms} for row, atoms in close],
        "bare": [_name_row(scan, row) for row in bare],
        "isolated": [
            {**_name_row(scan, row), "atoms": int(isolated[row])} for row in partly_isolated
        ],
    }
