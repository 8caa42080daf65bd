"""Look through a whole store: damage, duplicates, leakage, outliers, contradictions.

Shapes: G graphs, N nodes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn_hpo.config.data import SPLITS
from hydragnn_hpo.data.check.conflicts import conflict_of
from hydragnn_hpo.data.check.duplicates import (
    EXACT,
    TRAIN,
    Signatures,
    Twins,
    nearest_in_train,
    repeated,
    twins_in,
)
from hydragnn_hpo.data.check.geometry import Geometry, geometry_of
from hydragnn_hpo.data.check.outliers import Spread, spread_of
from hydragnn_hpo.data.check.scan import Scan, scan_store, windows_of
from hydragnn_hpo.data.check.signature import composition_keys, signatures_of, with_attributes
from hydragnn_hpo.data.columns import offsets
from hydragnn_hpo.data.store.arrays import columns_from
from hydragnn_hpo.data.store.index import Index, check_files, read_index, stats_of
from hydragnn_hpo.errors import DataError, StorageError

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
    """Read every byte of a store and say what is odd about it.

    Memory holds one window, the light columns, one number per value of every target, and the
    signatures of those structures whose composition another one has, too.

    Args:
        path: the store.
        tolerance: largest difference of twins in angstrom, see ``data.check.signature``.
        z_limit: robust z-score from which a value is an outlier.
        progress: told what is being done.

    Returns:
        A report with ``damage`` (sentences), ``duplicates``, ``leakage``, ``outliers``,
        ``geometry``, ``conflicts``, and ``serious``: damaged, or a structure outside of train
        whose twin or group is in train. Where there is damage, nothing else was looked at.

    Raises:
        DataError: this is no store, or its index is damaged.
    """
    tell = progress or (lambda _: None)
    index = read_index(path)
    report: dict[str, Any] = {"store": str(path), "num_graphs": index.num_graphs}
    report |= {"tolerance": tolerance, "z_limit": z_limit}
    tell("comparing checksums")
    damage = _damage(index)
    if not damage:
        try:
            return _look(index, report, tell)
        except DataError as error:
            damage = [str(error)]
    return Findings(report | {"damage": damage, "serious": True}, None, {})


def _damage(index: Index) -> list[str]:
    """Compare every file with its checksum."""
    sentences = []
    try:
        stats_of(index)
    except (DataError, StorageError) as error:
        sentences.append(str(error))
    for part in index.parts:
        try:
            check_files(index.folder, part, whole=True)
        except (DataError, StorageError) as error:
            sentences.append(str(error))
    return sentences


def _look(index: Index, report: dict[str, Any], tell: Progress) -> Findings:
    """Look through an intact store."""
    stats = stats_of(index)
    tolerance, z_limit = report["tolerance"], report["z_limit"]
    scan = scan_store(index, stats)
    compositions = composition_keys(scan.numbers, scan.num_nodes)
    signatures, geometry = _windows(index, scan, compositions, tell)
    tell("comparing structures")
    twins = twins_in(signatures, tolerance)
    tell("looking at targets")
    spreads = {name: spread_of(scan, name, z_limit) for name in stats["targets"]}
    leakage = _leakage(scan, signatures, twins, tolerance, compositions)
    found = {
        "checksum": stats["checksum"],
        "cutoff": stats["cutoff"],
        "damage": [],
        "duplicates": _duplicates(scan, twins),
        "leakage": leakage,
        "outliers": {name: _outliers(scan, name, s, z_limit) for name, s in spreads.items()},
        "geometry": _geometry(scan, geometry),
        "conflicts": _conflicts(scan, spreads, twins),
        "serious": any(s["twins"] or s["groups"] for s in leakage["splits"].values()),
    }
    return Findings(report | found, scan, spreads)


def _windows(
    index: Index, scan: Scan, compositions: NDArray[np.uint64], tell: Progress
) -> tuple[Signatures, list[Geometry]]:
    """Read every window once, whole: signatures of what may be twins, and distances of all."""
    keys = with_attributes(compositions, scan.attributes)
    rows = repeated(keys)
    values, sizes, geometry = [], [], []
    for window, arrays in enumerate(windows_of(index)):
        first, last = (int(index.starts[number, 0]) for number in (window, window + 1))
        columns = columns_from(arrays, scan.stats)
        begin, end = np.searchsorted(rows, (first, last))
        some = columns.take(rows[begin:end] - first)
        value, size = signatures_of(some, scan.stats["cutoff"])
        values.append(value)
        sizes.append(size)
        geometry.append(geometry_of(columns, first))
        tell(f"{last} of {index.num_graphs} graphs read")
    offset = offsets(np.concatenate(sizes))
    return Signatures(rows, keys[rows], np.concatenate(values), offset), geometry


def _named(scan: Scan, row: int) -> dict[str, Any]:
    """Name a structure."""
    return {"row": row, "id": scan.ids[row], "split": _split(scan, row)}


def _split(scan: Scan, row: int) -> str | None:
    split = int(scan.split[row])
    return SPLITS[split] if split >= 0 else None


def _duplicates(scan: Scan, twins: list[Twins]) -> dict[str, Any]:
    """List the sets of twins, and count those that touch two splits."""
    between: dict[str, int] = {}
    rows = []
    for group in twins:
        met = sorted(set(scan.split[group.rows].tolist()) - {-1})
        for place, one in enumerate(met):
            for other in met[place + 1 :]:
                pair = f"{SPLITS[one]}-{SPLITS[other]}"
                between[pair] = between.get(pair, 0) + 1
        members = group.rows.tolist()
        rows.append(
            {
                "rows": members,
                "ids": [scan.ids[row] for row in members],
                "splits": [_split(scan, row) for row in members],
                "formula": _formula(scan, members[0]),
                "distance": float(group.distance.max()),
            }
        )
    return {
        "groups": len(twins),
        "structures": sum(len(group.rows) for group in twins),
        "exact_groups": sum(row["distance"] <= EXACT for row in rows),
        "between": between,
        "rows": rows,
    }


def _formula(scan: Scan, row: int) -> str:
    numbers = scan.numbers[scan.node_offset[row] : scan.node_offset[row + 1]]
    met, counts = np.unique(numbers, return_counts=True)
    pairs = zip(met.tolist(), counts.tolist(), strict=True)
    return "".join(f"{chemical_symbols[n]}{c if c > 1 else ''}" for n, c in pairs)


def _leakage(
    scan: Scan,
    signatures: Signatures,
    twins: list[Twins],
    tolerance: float,
    compositions: NDArray[np.uint64],
) -> dict[str, Any]:
    """Count what each split shares with train: twins, groups, compositions."""
    pairs = [
        {**_named(scan, row), "train_row": twin, "train_id": scan.ids[twin], "distance": distance}
        for group in twins
        for row, twin, distance in nearest_in_train(signatures, group, scan.split, tolerance)
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
    return {"splits": splits, "twins": pairs, "groups": [_named(scan, row) for row in shared]}


def _outliers(scan: Scan, name: str, spread: Spread, limit: float) -> dict[str, Any]:
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
        rows.append(_named(scan, graph) | (atom if by_node else {}) | number)
    known = np.isfinite(spread.rest)
    return {
        "level": target["level"],
        "unit": target["unit"],
        "scale_unit": _compared_unit(scan, name),
        "subtracted": spread.subtracted,
        "scale": float(np.median(spread.scale[known])) if known.any() else 0.0,
        "values": int(known.sum()),
        "count": len(far),
        "rows": rows,
    }


def _compared_unit(scan: Scan, name: str) -> str:
    """Name the unit of differences: total energies are compared per atom."""
    target = scan.stats["targets"][name]
    return f"{target['unit']}/atom" if target["energy"] == "total" else str(target["unit"])


def _geometry(scan: Scan, windows: Iterable[Geometry]) -> dict[str, Any]:
    """Put the windows together."""
    pieces = list(windows)
    shortest = np.concatenate([piece.shortest for piece in pieces])
    isolated = np.concatenate([piece.isolated for piece in pieces])
    close = [found for piece in pieces for found in piece.close]
    close.sort(key=lambda found: found["ratio"])
    bare = np.flatnonzero(scan.num_edges == 0).tolist()
    some = np.flatnonzero((isolated > 0) & (scan.num_edges > 0)).tolist()
    nearest = int(shortest.argmin())
    distance = float(shortest[nearest])
    return {
        "shortest": _named(scan, nearest) | {"distance": distance} if distance < np.inf else None,
        "close": [_named(scan, found["row"]) | found for found in close],
        "bare": [_named(scan, row) for row in bare],
        "isolated": [_named(scan, row) | {"atoms": int(isolated[row])} for row in some],
    }


def _conflicts(scan: Scan, spreads: dict[str, Spread], twins: list[Twins]) -> list[dict[str, Any]]:
    """List the contradictions among twins, the worst first."""
    found = []
    for group in twins:
        for name, spread in spreads.items():
            conflict = conflict_of(scan, name, spread, group)
            if conflict is not None:
                ids = [scan.ids[row] for row in conflict["rows"]]
                splits = [_split(scan, row) for row in conflict["rows"]]
                unit = {"unit": _compared_unit(scan, name)}
                found.append(conflict | {"ids": ids, "splits": splits} | unit)
    tiny = np.finfo(np.float64).tiny
    return sorted(found, key=lambda one: -one["difference"] / max(one["allowed"], tiny))
