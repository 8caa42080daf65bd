"""Merge converted pieces: repeated ids, splits, groups, target statistics, parts of the store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS, CardConfig
from hydragnn_hpo.data.build_plan import (
    QUARANTINE,
    BadStructure,
    BuildPlan,
    check_bad_structures,
    write_quarantine,
)
from hydragnn_hpo.data.columns import (
    PERS,
    Arrays,
    Columns,
    Names,
    columns_from,
    offsets,
    ragged_rows,
    row_kind,
)
from hydragnn_hpo.data.convert_pieces import Record, read_chunk, read_names
from hydragnn_hpo.data.graph_sizes import SizeTally
from hydragnn_hpo.data.normalize import fit_attribute_stats, fit_target_stats
from hydragnn_hpo.data.splits import TEST, assign_splits
from hydragnn_hpo.data.store_index import StoreColumn
from hydragnn_hpo.data.store_parts import describe_columns, write_index, write_part
from hydragnn_hpo.data.structure import Place
from hydragnn_hpo.errors import DataError


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """A chunk on its way into the store."""

    chunk: str
    """Name of its file in the work folder."""
    path: Path
    """The file its structures are from."""
    rows: NDArray[np.int64]
    """Graphs of the chunk that are kept."""
    whole: bool
    """Whether all are."""


@dataclass(frozen=True, eq=False)
class StoreLayout:
    """A store as it will be, but for what its windows hold."""

    windows: tuple[PlannedWindow, ...]
    sizes: NDArray[np.int64]
    """Graphs, nodes, edges and characters of each window, [W, 4]."""
    split: NDArray[np.int8]
    """Of all graphs, [G]."""
    group: NDArray[np.int32]
    """Of all graphs, [G]."""
    bad: tuple[BadStructure, ...]
    total: int
    """Structures that were read, bad ones included."""
    stats: dict[str, Any]
    """Statistics of splits and targets."""


def merge_pieces(plan: BuildPlan, records: Sequence[Record], work: Path, out: Path) -> StoreLayout:
    """Lay out a store whose pieces are all finished.

    Args:
        plan: of the build.
        records: of all its pieces, in order.
        work: the work folder.
        out: the store, for the list of bad structures if they are too many.

    Raises:
        DataError: too many structures are bad, or they cannot be split, or a target has no
            value in the training split.
        StorageError: a chunk was altered.
    """
    total = sum(record.read for record in records)
    bad = [one for record in records for one in record.bad]
    check_bad_structures(bad, total, plan.card.max_bad, out)
    windows, twins = _plan_windows(plan, records, work)
    if twins:
        bad = _sort_bad(plan, [*bad, *twins])
        check_bad_structures(bad, total, plan.card.max_bad, out)
    light, published, sizes = _read_light_columns(plan.card, windows, work)
    split = assign_splits(light.group, published, plan.card.split, plan.card.name)
    light.split[:] = split
    counts = np.bincount(split, minlength=len(SPLITS))
    stats = {
        "name": plan.card.name,
        "title": plan.card.title,
        "splits": dict(zip(SPLITS, counts.tolist(), strict=True)),
        "test_seen": _count_test_leakage(light),
        "quarantined": len(bad),
        "targets": fit_target_stats(light, plan.card.targets),
        "attributes": fit_attribute_stats(light),
        "laplacian": plan.card.graphs.laplacian,
    }
    return StoreLayout(windows, sizes, split, light.group, tuple(bad), total, stats)


def keep_graphs(arrays: Arrays, rows: NDArray[np.int64], levels: Mapping[str, str]) -> Arrays:
    """Return the arrays of some graphs of a chunk; those it does not name are left out."""
    chosen = {"graph": rows}
    for per, sizes in (("node", "num_nodes"), ("edge", "num_edges"), ("char", "id_size")):
        chosen[per] = ragged_rows(offsets(arrays[sizes]), rows)[0]
    return {name: array[chosen[row_kind(name, levels)]] for name, array in arrays.items()}


def _plan_windows(
    plan: BuildPlan, records: Sequence[Record], work: Path
) -> tuple[tuple[PlannedWindow, ...], list[BadStructure]]:
    """Return the windows of the store, and the structures whose id another one has already."""
    chunks = [
        (chunk.name, piece.path)
        for piece, record in zip(plan.pieces, records, strict=True)
        for chunk in record.chunks
    ]
    hashes = [read_chunk(work / name, ["at.id_hash"])["at.id_hash"] for name, _ in chunks]
    starts = offsets(np.array([len(found) for found in hashes], dtype=np.int64))
    twins = _find_repeated_ids(chunks, starts, hashes, work)
    doubled = np.sort(np.fromiter(twins, np.int64, len(twins)))
    cuts = np.searchsorted(doubled, starts)
    windows = []
    for number, (name, path) in enumerate(chunks):
        first, last = starts[number : number + 2]
        gone = doubled[cuts[number] : cuts[number + 1]] - first
        rows = np.delete(np.arange(last - first), gone)
        if len(rows):
            windows.append(PlannedWindow(name, path, rows, not len(gone)))
    return tuple(windows), list(twins.values())


def _find_repeated_ids(
    chunks: Sequence[tuple[str, Path]],
    starts: NDArray[np.int64],
    hashes: Sequence[NDArray[np.uint64]],
    work: Path,
) -> dict[int, BadStructure]:
    """Find the rows whose id stands before; names are compared where their hashes are equal."""
    whole = np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])
    _, place, counts = np.unique(whole, return_inverse=True, return_counts=True)
    first: dict[str, Place] = {}
    twins: dict[int, BadStructure] = {}
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
                found = f"has the id of structure {before.number} of {before.file}"
                reason = str(here.error(found, "give every structure an id of its own"))
                twins[int(row)] = BadStructure(str(path), here.number, here.id, reason)
    return twins


def _sort_bad(plan: BuildPlan, bad: Sequence[BadStructure]) -> list[BadStructure]:
    """Sort bad structures as they stand in the card's files."""
    files: dict[str, int] = {}
    for piece in plan.pieces:
        files.setdefault(str(piece.path), len(files))
    return sorted(bad, key=lambda one: (files[one.file], one.number))


def _read_light_columns(
    card: CardConfig, windows: Sequence[PlannedWindow], work: Path
) -> tuple[Columns, list[str | None], NDArray[np.int64]]:
    """Return all graphs without edges and positions, their published splits, and window sizes."""
    levels = {name: target.level for name, target in card.targets.items()}
    names = ["numbers", "num_nodes", "num_edges", "id_size", "group"]
    names += [f"{kind}.{name}" for kind in ("target", "mask") for name in levels]
    names += [f"attribute.{name}" for name in card.attributes]
    extra = ["at.published", *(f"at.{k}_{p}" for k in ("group", "split") for p in _PARTS)]
    pieces: list[Arrays] = []
    groups: list[list[str]] = []
    published: list[str | None] = []
    for window in windows:
        found = read_chunk(work / window.chunk, [*names, *extra])
        splits = [*read_names(found, "split"), None]
        published += [splits[place] for place in found["at.published"][window.rows]]
        groups.append(read_names(found, "group"))
        arrays = {name: found[name] for name in names}
        pieces.append(arrays if window.whole else keep_graphs(arrays, window.rows, levels))
    if not pieces:
        raise DataError(f"{card.name}: its files hold no structure that can be used; mend them.")
    sizes = [[len(p["group"]), *(p[n].sum() for n in _SIZES)] for p in pieces]
    arrays = {name: np.concatenate([piece[name] for piece in pieces]) for name in names[:4]}
    for name in names[5:]:
        arrays[name] = np.concatenate([piece[name] for piece in pieces])
    arrays["group"] = _number_groups(groups, [piece["group"] for piece in pieces])
    return _make_light_columns(arrays, levels), published, np.array(sizes, dtype=np.int64)


_PARTS = ("text", "offset")
_SIZES = ("num_nodes", "num_edges", "id_size")
assert PERS == ("graph", "node", "edge", "char")


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
    """Return columns without edges and positions; splits are open."""
    graphs = len(arrays["num_nodes"])
    return Columns(
        numbers=arrays["numbers"],
        positions=np.zeros((0, 3)),
        cell=np.zeros((0, 3, 3)),
        pbc=np.zeros((0, 3), dtype=np.bool_),
        node_offset=offsets(arrays["num_nodes"]),
        edge_offset=offsets(arrays["num_edges"]),
        edges=np.zeros((0, 2), dtype=np.int32),
        edge_shift=np.zeros((0, 3), dtype=np.int16),
        targets={name: arrays[f"target.{name}"] for name in levels},
        masks={name: arrays[f"mask.{name}"] for name in levels},
        levels=dict(levels),
        split=np.full(graphs, -1, dtype=np.int8),
        group=arrays["group"],
        ids=Names.of(()),
        attributes={
            name.removeprefix("attribute."): array
            for name, array in arrays.items()
            if name.startswith("attribute.")
        },
    )


def _count_test_leakage(columns: Columns) -> int:
    """Count test structures whose group is also elsewhere; only a published split has any."""
    test = columns.split == TEST
    return int(np.isin(columns.group[test], columns.group[~test]).sum())


@dataclass(frozen=True, eq=False)
class WrittenPart:
    """What one host has written."""

    entry: dict[str, Any]
    """Of its part, for the index."""
    windows: NDArray[np.int64]
    """Its rows of ``windows.npy``."""
    columns: tuple[StoreColumn, ...]
    tally: SizeTally


def split_windows(layout: StoreLayout, hosts: int) -> list[range]:
    """Cut the windows into runs of about equal sizes; none is empty.

    Args:
        layout: of the store.
        hosts: most runs.
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
        folder: of the store that is being written.
        number: of the part.
        layout: of the store.
        windows: which to write.
        work: folder of the chunks.
        card: of the data set.

    Raises:
        StorageError: the disk is full, or a chunk was altered.
    """
    tally = SizeTally(card.graphs.cutoff)
    levels = {name: target.level for name, target in card.targets.items()}
    first, _ = _make_window(layout, windows[0], work, levels)
    columns = describe_columns(first, levels)

    def arrays() -> Iterator[Arrays]:
        for window in windows:
            found, degrees = _make_window(layout, window, work, levels)
            tally.add(columns_from(found, layout.stats), degrees)
            yield found

    sizes = layout.sizes[windows.start : windows.stop]
    entry, table = write_part(folder, number, arrays(), columns, sizes)
    return WrittenPart(entry, table, columns, tally)


def finish_store(
    folder: Path, layout: StoreLayout, shares: Sequence[WrittenPart], card: CardConfig
) -> dict[str, Any]:
    """Write all that stands beside the parts; return the statistics of the store."""
    tally = SizeTally(card.graphs.cutoff)
    for share in shares:
        tally.merge(share.tally)
    if layout.bad:
        write_quarantine(folder / QUARANTINE, layout.bad)
    stats = {**layout.stats, **tally.result()}
    table = np.vstack([share.windows for share in shares])
    entries = [share.entry for share in shares]
    return write_index(folder, shares[0].columns, entries, table, stats, card)


def _make_window(
    layout: StoreLayout, number: int, work: Path, levels: Mapping[str, str]
) -> tuple[Arrays, NDArray[np.int32]]:
    """Return the arrays of a window with splits and groups, and the degrees of its nodes."""
    window = layout.windows[number]
    found = read_chunk(work / window.chunk)
    degrees: NDArray[np.int32] = found["at.degrees"]
    arrays = {name: array for name, array in found.items() if not name.startswith("at.")}
    if not window.whole:
        degrees = degrees[ragged_rows(offsets(arrays["num_nodes"]), window.rows)[0]]
        arrays = keep_graphs(arrays, window.rows, levels)
    start = int(layout.sizes[:number, 0].sum())
    rows = slice(start, start + int(layout.sizes[number, 0]))
    arrays["split"], arrays["group"] = layout.split[rows], layout.group[rows]
    return arrays, degrees
