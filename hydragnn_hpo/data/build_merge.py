"""Merge converted pieces into a store: repeated ids, groups, splits, target statistics, parts.

Shapes: G graphs and W windows of the whole store.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS, CardConfig
from hydragnn_hpo.config.data_config import TRAJECTORY
from hydragnn_hpo.data.build_plan import (
    QUARANTINE,
    BadStructure,
    BuildPlan,
    check_bad_structures,
    write_quarantine,
)
from hydragnn_hpo.data.columns import (
    COUNTS,
    PERS,
    Arrays,
    Columns,
    Names,
    arrays_of,
    columns_from,
    columns_of,
    offsets,
    ragged_rows,
    row_kind,
)
from hydragnn_hpo.data.convert_pieces import Record, read_chunk, read_names
from hydragnn_hpo.data.graph_sizes import SizeTally
from hydragnn_hpo.data.label_sharing import find_sparse_labels, mark_unlabelled
from hydragnn_hpo.data.normalize import fit_attribute_stats, fit_target_stats
from hydragnn_hpo.data.splits import TEST, assign_splits
from hydragnn_hpo.data.store_index import PartEntry, StoreColumn
from hydragnn_hpo.data.store_parts import describe_columns, write_index, write_part
from hydragnn_hpo.data.structure import Place
from hydragnn_hpo.data.trajectories import Frames, number_runs
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import AttributeStats, StoreStats, TargetStats


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """A window of the store, still a chunk in the work folder."""

    chunk: str
    """Name of the chunk's file."""
    path: Path
    """Data file that its structures come from."""
    rows: NDArray[np.int64]
    """Graphs of the chunk that are kept, ascending."""
    whole: bool
    """Whether all graphs of the chunk are kept."""


class StatsWithoutSizes(TypedDict):
    """The part of ``StoreStats`` that a merge computes; ``SizeTally`` counts the rest."""

    name: str
    title: str
    splits: dict[str, int]
    test_seen: int
    groups: int
    quarantined: int
    targets: dict[str, TargetStats]
    attributes: dict[str, AttributeStats]
    laplacian: int


@dataclass(frozen=True, eq=False)
class StoreLayout:
    """A store to be written, without the content of its windows."""

    windows: tuple[PlannedWindow, ...]
    """Windows of the store, in order."""
    sizes: NDArray[np.int64]
    """Graphs, nodes, edges and characters of each window, [W, 4]."""
    split: NDArray[np.int8]
    """Split of each graph as an index into ``SPLITS``, [G]."""
    group: NDArray[np.int32]
    """Number of each graph's group, [G]."""
    bad: tuple[BadStructure, ...]
    """Structures that cannot be used, in the order of the files."""
    total: int
    """Number of structures that were read, bad ones included."""
    stats: StatsWithoutSizes
    """Statistics that are known before the windows are read."""


def merge_pieces(plan: BuildPlan, records: Sequence[Record], work: Path, out: Path) -> StoreLayout:
    """Lay out a store whose pieces are all finished.

    Args:
        plan: plan of the build.
        records: outcomes of all its pieces, in order.
        work: its work folder.
        out: the store, for the list of bad structures if they are too many.

    Raises:
        DataError: too many structures are bad, or they cannot be split, or a target has no
            value in the training split.
        StorageError: a chunk was altered.
    """
    total = sum(record.read for record in records)
    bad = [one for record in records for one in record.bad]
    check_bad_structures(bad, total, plan.card.max_bad, out)
    windows, repeated = _plan_windows(plan, records, work)
    if repeated:
        bad = _sort_bad(plan, [*bad, *repeated])
        check_bad_structures(bad, total, plan.card.max_bad, out)
    light, published, sizes = _read_light_columns(plan.card, windows, work)
    labels = find_sparse_labels(light)
    split = assign_splits(light.group, published, plan.card.split, plan.card.name, labels)
    light.split[:] = split
    counts = np.bincount(split, minlength=len(SPLITS))
    stats: StatsWithoutSizes = {
        "name": plan.card.name,
        "title": plan.card.title,
        "splits": dict(zip(SPLITS, counts.tolist(), strict=True)),
        "test_seen": _count_test_leakage(light),
        "groups": len(np.unique(light.group[split != SPLITS.index("test")])),
        "quarantined": len(bad),
        "targets": mark_unlabelled(light, fit_target_stats(light, plan.card.targets)),
        "attributes": fit_attribute_stats(light),
        "laplacian": plan.card.graphs.laplacian,
    }
    return StoreLayout(windows, sizes, split, light.group, tuple(bad), total, stats)


def keep_graphs(arrays: Arrays, rows: NDArray[np.int64], levels: Mapping[str, str]) -> Arrays:
    """Return the arrays of some graphs of a chunk.

    Args:
        arrays: arrays of the chunk, the counts of ``columns.COUNTS`` among them.
        rows: graphs of the chunk to keep, ascending.
        levels: ``graph`` or ``node`` by target.

    Returns:
        The same arrays with the rows of these graphs only.
    """
    kept = {"graph": rows}
    for per, counts in COUNTS.items():
        kept[per] = ragged_rows(offsets(arrays[counts]), rows)[0]
    return {name: array[kept[row_kind(name, levels)]] for name, array in arrays.items()}


def _plan_windows(
    plan: BuildPlan, records: Sequence[Record], work: Path
) -> tuple[tuple[PlannedWindow, ...], list[BadStructure]]:
    """Return the windows of the store, and the structures that repeat an earlier id."""
    chunks = [
        (chunk.name, piece.path)
        for piece, record in zip(plan.pieces, records, strict=True)
        for chunk in record.chunks
    ]
    hashes = [read_chunk(work / name, ["at.id_hash"])["at.id_hash"] for name, _ in chunks]
    starts = offsets(np.array([len(hashed) for hashed in hashes], dtype=np.int64))
    repeated = _find_repeated_ids(chunks, starts, hashes, work)
    dropped = np.sort(np.fromiter(repeated, np.int64, len(repeated)))
    cuts = np.searchsorted(dropped, starts)
    windows = []
    for number, (name, path) in enumerate(chunks):
        first, last = starts[number : number + 2]
        here = dropped[cuts[number] : cuts[number + 1]] - first
        rows = np.delete(np.arange(last - first), here)
        if len(rows):
            windows.append(PlannedWindow(name, path, rows, not len(here)))
    return tuple(windows), list(repeated.values())


def _find_repeated_ids(
    chunks: Sequence[tuple[str, Path]],
    starts: NDArray[np.int64],
    hashes: Sequence[NDArray[np.uint64]],
    work: Path,
) -> dict[int, BadStructure]:
    """Find the structures that repeat the id of an earlier one.

    Only names whose hashes are equal are read and compared.

    Args:
        chunks: name and data file of each chunk.
        starts: first row of each chunk, and the end.
        hashes: hash of each name, by chunk.
        work: the work folder.

    Returns:
        Bad structures by row, rows counted over all chunks.
    """
    whole = np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])
    _, place, counts = np.unique(whole, return_inverse=True, return_counts=True)
    first: dict[str, Place] = {}
    repeated: dict[int, BadStructure] = {}
    suspects = np.flatnonzero(counts[place] > 1)
    for chunk in np.unique(np.searchsorted(starts, suspects, side="right") - 1):
        name, path = chunks[chunk]
        arrays = read_chunk(work / name, ["id_text", "id_size", "at.number"])
        ids = Names(arrays["id_text"], offsets(arrays["id_size"]))
        for row in suspects[(suspects >= starts[chunk]) & (suspects < starts[chunk + 1])]:
            inside = int(row - starts[chunk])
            here = Place(path, int(arrays["at.number"][inside]), ids[inside])
            before = first.setdefault(here.id, here)
            if before is not here:
                problem = f"has the id of structure {before.number} of {before.file}"
                reason = str(here.error(problem, "give every structure an id of its own"))
                repeated[int(row)] = BadStructure(str(path), here.number, here.id, reason)
    return repeated


def _sort_bad(plan: BuildPlan, bad: Sequence[BadStructure]) -> list[BadStructure]:
    """Sort bad structures by the order of the card's files, and their position in the file."""
    files: dict[str, int] = {}
    for piece in plan.pieces:
        files.setdefault(str(piece.path), len(files))
    return sorted(bad, key=lambda one: (files[one.file], one.number))


def _read_light_columns(
    card: CardConfig, windows: Sequence[PlannedWindow], work: Path
) -> tuple[Columns, list[str | None], NDArray[np.int64]]:
    """Read the columns of all graphs that splits and statistics need.

    Returns:
        Columns without edges and positions, the published split of each graph, [G], and graphs,
        nodes, edges and characters of each window, [W, 4].
    """
    levels = {name: target.level for name, target in card.targets.items()}
    names = ["numbers", "num_nodes", "num_edges", "id_size", "group"]
    names += [f"{kind}.{name}" for kind in ("target", "mask") for name in levels]
    names += [f"attribute.{name}" for name in card.attributes]
    extra = ["at.published", *(f"at.{k}_{p}" for k in ("group", "split") for p in _PARTS)]
    pieces: list[Arrays] = []
    groups: list[list[str]] = []
    published: list[str | None] = []
    for window in windows:
        chunk = read_chunk(work / window.chunk, [*names, *extra])
        splits = [*read_names(chunk, "split"), None]  # None is found at -1: no published split
        published += [splits[place] for place in chunk["at.published"][window.rows]]
        groups.append(read_names(chunk, "group"))
        arrays = {name: chunk[name] for name in names}
        pieces.append(arrays if window.whole else keep_graphs(arrays, window.rows, levels))
    if not pieces:
        raise DataError(f"{card.name}: its files hold no structure that can be used; mend them.")
    sizes = [[len(p["group"]), *(p[n].sum() for n in _SIZES)] for p in pieces]
    kept = [name for name in names if name not in ("id_size", "group")]
    arrays = {name: np.concatenate([piece[name] for piece in pieces]) for name in kept}
    if card.split.group == TRAJECTORY:
        arrays["group"] = number_runs(_read_frames(windows, work)).astype(np.int32)
    else:
        arrays["group"] = _number_groups(groups, [piece["group"] for piece in pieces])
    return _make_light_columns(arrays, levels), published, np.array(sizes, dtype=np.int64)


def _read_frames(windows: Sequence[PlannedWindow], work: Path) -> Iterator[Frames]:
    """Yield the structures of each window, without edges and targets."""
    for window in windows:
        chunk = read_chunk(
            work / window.chunk, ["numbers", "num_nodes", "positions", "cell", "pbc"]
        )
        if not window.whole:
            nodes = ragged_rows(offsets(chunk["num_nodes"]), window.rows)[0]
            of_nodes = ("numbers", "positions")
            chunk = {k: v[nodes if k in of_nodes else window.rows] for k, v in chunk.items()}
        yield Frames(
            chunk["numbers"].astype(np.int64),
            chunk["positions"],
            chunk["cell"],
            chunk["pbc"].astype(bool),
            chunk["num_nodes"].astype(np.int64),
        )


_PARTS = ("text", "offset")
"""Arrays of a chunk that hold concatenated names, see ``Names``."""

_SIZES = tuple(COUNTS.values())
"""Counts per graph, whose sums follow the number of graphs in a table of sizes."""

assert ("graph", *COUNTS) == PERS


def _number_groups(
    names: Sequence[Sequence[str]], local: Sequence[NDArray[np.int32]]
) -> NDArray[np.int32]:
    """Number groups over the whole store, in alphabetical order."""
    number = {name: place for place, name in enumerate(sorted(set().union(*names)))}
    whole = [
        np.array([number[name] for name in own], dtype=np.int64)[rows]
        for own, rows in zip(names, local, strict=True)
    ]
    return np.unique(np.concatenate(whole), return_inverse=True)[1].astype(np.int32)


def _make_light_columns(arrays: Arrays, levels: Mapping[str, str]) -> Columns:
    """Return columns without edges and positions; no graph is in a split yet."""
    split = np.full(len(arrays["num_nodes"]), -1, dtype=np.int8)
    whole = arrays_of(columns_of((), {})) | arrays | {"split": split}
    targets = {name: {"level": level} for name, level in levels.items()}
    return columns_from(whole, cast(StoreStats, {"targets": targets}))


def _count_test_leakage(columns: Columns) -> int:
    """Count test structures whose group is in another split, as a published test split allows."""
    test = columns.split == TEST
    return int(np.isin(columns.group[test], columns.group[~test]).sum())


@dataclass(frozen=True, eq=False)
class WrittenPart:
    """A part that one host has written."""

    entry: PartEntry
    """Entry of the part in ``index.json``."""
    windows: NDArray[np.int64]
    """Rows of the part in ``windows.npy``, [windows of the part, 4 + columns]."""
    columns: tuple[StoreColumn, ...]
    """All columns of the store."""
    tally: SizeTally
    """Sizes of the graphs of the part."""


def split_windows(layout: StoreLayout, hosts: int) -> list[range]:
    """Cut the windows into one run per host, about equal in nodes and edges.

    Args:
        layout: layout of the store.
        hosts: number of hosts.

    Returns:
        At most ``hosts`` runs; none is empty.
    """
    ends = np.cumsum(layout.sizes[:, 1:3].sum(axis=1))
    wanted = ends[-1] * np.arange(1, hosts) / hosts
    inner = np.searchsorted(ends, wanted, side="right")
    cuts = np.unique([0, *inner, len(ends)])
    return [range(first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def write_host_part(
    folder: Path, number: int, layout: StoreLayout, windows: range, *, work: Path, card: CardConfig
) -> WrittenPart:
    """Write some windows as one part, one window in memory at a time.

    Args:
        folder: folder of the store that is being written.
        number: number of the part, counted from 0.
        layout: layout of the store.
        windows: windows to write.
        work: work folder of the build.
        card: card of the data set.

    Raises:
        StorageError: the disk is full, or a chunk was altered.
    """
    tally = SizeTally(card.graphs.cutoff)
    levels = {name: target.level for name, target in card.targets.items()}
    first, _ = _make_window(layout, windows[0], work, levels)
    columns = describe_columns(first, levels)

    def make_windows() -> Iterator[Arrays]:
        for window in windows:
            arrays, degrees = _make_window(layout, window, work, levels)
            # Columns take only the levels of targets from the statistics; the tally reads none.
            tally.add(columns_from(arrays, cast(StoreStats, layout.stats)), degrees)
            yield arrays

    sizes = layout.sizes[windows.start : windows.stop]
    entry, table = write_part(folder, number, make_windows(), columns, sizes)
    return WrittenPart(entry, table, columns, tally)


def finish_store(
    folder: Path, layout: StoreLayout, shares: Sequence[WrittenPart], card: CardConfig
) -> StoreStats:
    """Write all files of a store other than its parts.

    Args:
        folder: folder of the store that is being written.
        layout: layout of the store.
        shares: all parts, in order.
        card: card of the data set.

    Returns:
        The statistics of the store, the content of ``stats.json``.
    """
    tally = SizeTally(card.graphs.cutoff)
    for share in shares:
        tally.merge(share.tally)
    if layout.bad:
        write_quarantine(folder / QUARANTINE, layout.bad)
    stats = cast(StoreStats, {**layout.stats, **tally.result()})
    table = np.vstack([share.windows for share in shares])
    entries = [share.entry for share in shares]
    return write_index(folder, shares[0].columns, entries, table, stats, card)


def _make_window(
    layout: StoreLayout, number: int, work: Path, levels: Mapping[str, str]
) -> tuple[Arrays, NDArray[np.int32]]:
    """Return the arrays of a window with splits and groups, and the degrees of its nodes."""
    window = layout.windows[number]
    chunk = read_chunk(work / window.chunk)
    degrees: NDArray[np.int32] = chunk["at.degrees"]
    arrays = {name: array for name, array in chunk.items() if not name.startswith("at.")}
    if not window.whole:
        degrees = degrees[ragged_rows(offsets(arrays["num_nodes"]), window.rows)[0]]
        arrays = keep_graphs(arrays, window.rows, levels)
    start = int(layout.sizes[:number, 0].sum())
    rows = slice(start, start + int(layout.sizes[number, 0]))
    arrays["split"], arrays["group"] = layout.split[rows], layout.group[rows]
    return arrays, degrees
