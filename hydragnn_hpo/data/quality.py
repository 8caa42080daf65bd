"""Check a whole store for damage, duplicates, leakage, outliers and contradictions.

Shapes: G graphs, N nodes, E edges.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.columns import Columns, columns_from, offsets
from hydragnn_hpo.data.duplicates import (
    EXACT,
    TRAIN,
    Signatures,
    Twins,
    add_attribute_keys,
    composition_keys,
    compute_signatures,
    find_repeated,
    find_train_twins,
    find_twins,
)
from hydragnn_hpo.data.graph_sizes import edge_lengths
from hydragnn_hpo.data.store_index import Index, check_files, read_checked_stats, read_index
from hydragnn_hpo.data.store_summary import Scan, Spread, measure_spread, read_windows, scan_store
from hydragnn_hpo.errors import DataError, StorageError

CLOSE = 0.6
"""Nearer than this share of the sum of covalent radii is suspicious. The shortest bond of the
G2 molecules stands at 0.8 or above; radii from Cordero et al. (2008), Dalton Trans. 2832."""


@dataclass(frozen=True, eq=False)
class WindowGeometry:
    """Distances in one window."""

    shortest: NDArray[np.float64]
    """Shortest edge of each graph in angstrom, [G]; infinite where there is none."""

    isolated: NDArray[np.int64]
    """Atoms without an edge in each graph, [G]."""

    close: list[dict[str, Any]]
    """Graphs with atoms too near: ``row``, ``atoms`` (from 1), ``elements``, ``distance``,
    ``ratio`` to the sum of covalent radii."""


def measure_geometry(columns: Columns, first: int) -> WindowGeometry:
    """Measure the edges of some graphs.

    Args:
        columns: one window.
        first: row of its first graph in the store.
    """
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_edges())
    ends = columns.edges + columns.node_offset[graph, None]
    lengths = edge_lengths(columns)
    ratio = lengths / covalent_radii[columns.numbers][ends].sum(axis=1)
    shortest = np.full(columns.num_graphs, np.inf)
    np.minimum.at(shortest, graph, lengths)
    degree = np.bincount(ends[:, 1], minlength=len(columns.numbers))
    lone = np.concatenate(([0], np.cumsum(degree == 0)))
    isolated = np.diff(lone[columns.node_offset]).astype(np.int64)
    near = np.flatnonzero(ratio < CLOSE)
    near = near[np.lexsort((ratio[near], graph[near]))]
    close = []
    for edge in near[np.unique(graph[near], return_index=True)[1]].tolist():
        pair = np.sort(ends[edge])
        atoms = pair - columns.node_offset[graph[edge]] + 1
        elements = [chemical_symbols[number] for number in columns.numbers[pair]]
        measured = {"distance": float(lengths[edge]), "ratio": float(ratio[edge])}
        row = {"row": first + int(graph[edge]), "atoms": atoms.tolist(), "elements": elements}
        close.append(row | measured)
    return WindowGeometry(shortest, isolated, close)


CONFLICT = 0.5
"""Twins contradict each other if a target differs by more than this share of its usual spread."""


def find_conflicts(
    scan: Scan, spreads: Mapping[str, Spread], twins: Sequence[Twins]
) -> list[dict[str, Any]]:
    """List the contradictions between targets of twins, the worst first.

    Energies are compared per atom, node values in ascending order for each element. What a
    supercell changes is compared among twins of one size.

    Args:
        scan: of the store.
        spreads: of every target.
        twins: structures that are the same.

    Returns:
        For each ``target``, its ``unit``, ``rows``, ``ids`` and ``splits`` of lowest and highest
        (or most different), ``difference`` and ``allowed``.
    """
    conflicts = []
    for name, spread in spreads.items():
        allowed = CONFLICT * spread.usual
        for group in twins:
            alike = _group_comparable(scan, name, group.rows)
            compared = (_compare_twins(scan, name, rows) for rows in alike)
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
    tiny = np.finfo(np.float64).tiny
    return sorted(conflicts, key=lambda one: -one["difference"] / max(one["allowed"], tiny))


def _group_comparable(scan: Scan, name: str, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the twins whose values of a target must be alike."""
    if scan.stats["targets"][name]["energy"] is not None:
        return [rows]
    sizes = scan.num_nodes[rows]
    return [rows[sizes == size] for size in np.unique(sizes)]


def _compare_twins(scan: Scan, name: str, rows: NDArray[np.int64]) -> tuple[float, list[int]]:
    """Return the largest difference among twins, and the two rows it is between."""
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
    found = values[rows] / scan.num_nodes[rows] if target["energy"] == "total" else values[rows]
    ends = [int(rows[found.argmin()]), int(rows[found.argmax()])]
    return float(found.max() - found.min()), ends


def _sort_node_values(scan: Scan, values: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """Return the values of a graph's atoms by element, then value."""
    nodes = np.arange(scan.node_offset[row], scan.node_offset[row + 1])
    return values[nodes[np.lexsort((values[nodes], scan.numbers[nodes]))]]


TOLERANCE = 0.01
"""Structures whose signatures differ by no more than this (angstrom) are twins."""

Z_LIMIT = 10.0
"""Robust z-score from which a value is an outlier."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Findings:
    """What was found, ready for JSON, and the scan it was found in."""

    report: dict[str, Any]
    """See ``check_store``."""

    scan: Scan | None = field(repr=False)
    """None where the store is damaged."""

    spreads: dict[str, Spread] = field(repr=False)
    """Of every target."""

    @property
    def serious(self) -> bool:
        """Whether the store is damaged, or knows test structures from training."""
        return bool(self.report["serious"])


def check_store(
    path: Path,
    *,
    tolerance: float = TOLERANCE,
    z_limit: float = Z_LIMIT,
    progress: Progress | None = None,
) -> Findings:
    """Read every byte of a store and report what is odd about it.

    Memory holds one window, the light columns, one number per value of every target, and the
    signatures of those structures whose composition another one has, too.

    Args:
        path: the store.
        tolerance: largest difference of twins in angstrom, see ``data.duplicates``.
        z_limit: robust z-score from which a value is an outlier.
        progress: called with what is being done.

    Returns:
        A report with ``damage`` (sentences), ``duplicates``, ``leakage``, ``outliers``,
        ``geometry``, ``conflicts``, and ``serious``: damaged, or a structure outside of train
        whose twin or group is in train. Where there is damage, nothing else was looked at.

    Raises:
        DataError: this is no store, or its index is damaged.
    """
    report_progress = progress or (lambda _: None)
    index = read_index(path)
    report: dict[str, Any] = {"store": str(path), "num_graphs": index.num_graphs}
    report |= {"tolerance": tolerance, "z_limit": z_limit}
    report_progress("comparing checksums")
    damage = _find_damage(index)
    if not damage:
        try:
            return _check_intact_store(index, report, report_progress)
        except DataError as error:
            damage = [str(error)]
    return Findings(report | {"damage": damage, "serious": True}, None, {})


def _find_damage(index: Index) -> list[str]:
    """Compare every file with its checksum."""
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


def _check_intact_store(index: Index, report: dict[str, Any], progress: Progress) -> Findings:
    """Check an intact store."""
    stats = read_checked_stats(index)
    tolerance, z_limit = report["tolerance"], report["z_limit"]
    scan = scan_store(index, stats)
    compositions = composition_keys(scan.numbers, scan.num_nodes)
    signatures, geometry = _scan_windows(index, scan, compositions, progress)
    progress("comparing structures")
    twins = find_twins(signatures, tolerance)
    progress("looking at targets")
    spreads = {name: measure_spread(scan, name, z_limit) for name in stats["targets"]}
    leakage = _report_leakage(scan, signatures, twins, tolerance, compositions)
    found = {
        "checksum": stats["checksum"],
        "cutoff": stats["cutoff"],
        "damage": [],
        "duplicates": _report_duplicates(scan, twins),
        "leakage": leakage,
        "outliers": {name: _report_outliers(scan, name, s, z_limit) for name, s in spreads.items()},
        "geometry": _report_geometry(scan, geometry),
        "conflicts": find_conflicts(scan, spreads, twins),
        "serious": any(s["twins"] or s["groups"] for s in leakage["splits"].values()),
    }
    return Findings(report | found, scan, spreads)


def _scan_windows(
    index: Index, scan: Scan, compositions: NDArray[np.uint64], progress: Progress
) -> tuple[Signatures, list[WindowGeometry]]:
    """Read every window once, whole: signatures of what may be twins, and distances of all."""
    keys = add_attribute_keys(compositions, scan.attributes)
    rows = find_repeated(keys)
    values, sizes, geometry = [], [], []
    for window, arrays in enumerate(read_windows(index)):
        first, last = (int(index.starts[number, 0]) for number in (window, window + 1))
        columns = columns_from(arrays, scan.stats)
        begin, end = np.searchsorted(rows, (first, last))
        some = columns.take(rows[begin:end] - first)
        value, size = compute_signatures(some, scan.stats["cutoff"])
        values.append(value)
        sizes.append(size)
        geometry.append(measure_geometry(columns, first))
        progress(f"{last} of {index.num_graphs} graphs read")
    offset = offsets(np.concatenate(sizes))
    return Signatures(rows, keys[rows], np.concatenate(values), offset), geometry


def _name_row(scan: Scan, row: int) -> dict[str, Any]:
    """Name a structure."""
    return {"row": row, "id": scan.ids[row], "split": _split_name(scan, row)}


def _split_name(scan: Scan, row: int) -> str | None:
    split = int(scan.split[row])
    return SPLITS[split] if split >= 0 else None


def _report_duplicates(scan: Scan, twins: Sequence[Twins]) -> dict[str, Any]:
    """List the sets of twins, and count those that touch two splits."""
    between: Counter[str] = Counter()
    rows = []
    for group in twins:
        members = group.rows.tolist()
        met = sorted(set(scan.split[members].tolist()) - {-1})
        between.update(f"{SPLITS[a]}-{SPLITS[b]}" for a, b in itertools.combinations(met, 2))
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
) -> dict[str, Any]:
    """Count what each split shares with train: twins, groups, compositions."""
    pairs = [
        {
            **_name_row(scan, row),
            "train_row": twin,
            "train_id": scan.ids[twin],
            "distance": distance,
        }
        for group in twins
        for row, twin, distance in find_train_twins(signatures, group, scan.split, tolerance)
    ]
    inside = scan.split == TRAIN
    group_seen = np.isin(scan.group, scan.group[inside])
    composition_seen = np.isin(compositions, compositions[inside])
    splits = {}
    for number, name in enumerate(SPLITS):
        if number != TRAIN:
            here = scan.split == number
            splits[name] = {
                "structures": int(here.sum()),
                "twins": sum(pair["split"] == name for pair in pairs),
                "groups": int((here & group_seen).sum()),
                "compositions": int((here & composition_seen).sum()),
            }
    shared = np.flatnonzero(group_seen & ~inside & (scan.split >= 0)).tolist()
    pairs.sort(key=lambda pair: pair["row"])
    return {"splits": splits, "twins": pairs, "groups": [_name_row(scan, row) for row in shared]}


def _report_outliers(scan: Scan, name: str, spread: Spread, limit: float) -> dict[str, Any]:
    """List the values far out, the farthest first; of a structure's atoms the farthest."""
    far = np.flatnonzero(np.abs(spread.z) > limit)
    far = far[np.argsort(-np.abs(spread.z[far]), kind="stable")]
    target, values = scan.stats["targets"][name], scan.scores[name]
    by_node = target["level"] == "node"
    offset = scan.node_offset
    graphs = np.searchsorted(offset, far, side="right") - 1 if by_node else far
    _, first = np.unique(graphs, return_index=True)
    rows = []
    for place in np.sort(first).tolist():
        graph, value = int(graphs[place]), int(far[place])
        atom = {"atom": value - int(offset[graph]) + 1, "atoms": int((graphs == graph).sum())}
        number = {"value": float(values[value]), "z": float(spread.z[value])}
        rows.append(_name_row(scan, graph) | (atom if by_node else {}) | number)
    known = np.isfinite(spread.rest)
    return {
        "level": target["level"],
        "unit": target["unit"],
        "scale_unit": _difference_unit(scan, name),
        "subtracted": spread.subtracted,
        "scale": float(np.median(spread.scale[known])) if known.any() else 0.0,
        "values": int(known.sum()),
        "count": len(far),
        "rows": rows,
    }


def _difference_unit(scan: Scan, name: str) -> str:
    """Name the unit of differences: total energies are compared per atom."""
    target = scan.stats["targets"][name]
    return f"{target['unit']}/atom" if target["energy"] == "total" else str(target["unit"])


def _report_geometry(scan: Scan, windows: Sequence[WindowGeometry]) -> dict[str, Any]:
    """Put the windows together."""
    shortest = np.concatenate([window.shortest for window in windows])
    isolated = np.concatenate([window.isolated for window in windows])
    close = sorted((pair for window in windows for pair in window.close), key=itemgetter("ratio"))
    bare = np.flatnonzero(scan.num_edges == 0).tolist()
    some = np.flatnonzero((isolated > 0) & (scan.num_edges > 0)).tolist()
    nearest = int(shortest.argmin())
    distance = {"distance": float(shortest[nearest])}
    return {
        "shortest": _name_row(scan, nearest) | distance if scan.num_edges.any() else None,
        "close": [_name_row(scan, pair["row"]) | pair for pair in close],
        "bare": [_name_row(scan, row) for row in bare],
        "isolated": [_name_row(scan, row) | {"atoms": int(isolated[row])} for row in some],
    }
