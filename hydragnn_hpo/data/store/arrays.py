"""Columns as named arrays that concatenate: what parts, stages and windows are made of.

Counts stand instead of offsets, so that pieces of a store lie end to end without a change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, Names, offsets, translations

Arrays = dict[str, NDArray[Any]]
Per = Literal["graph", "node", "edge", "char"]

PERS: tuple[Per, ...] = ("graph", "node", "edge", "char")
"""What a row of an array stands for; the columns of a table of sizes, in this order."""

_FIXED: dict[str, Per] = {
    "numbers": "node",
    "positions": "node",
    "cell": "graph",
    "pbc": "graph",
    "num_nodes": "graph",
    "num_edges": "graph",
    "edges": "edge",
    "edge_shift": "edge",
    "split": "graph",
    "group": "graph",
    "id_size": "graph",
    "id_text": "char",
    "laplacian": "node",
}

OFFSETS: dict[Per, str] = {"node": "node_offset", "edge": "edge_offset", "char": "id_offset"}
"""Names of the offsets, by what they count."""

COUNTS: dict[Per, str] = {"node": "num_nodes", "edge": "num_edges", "char": "id_size"}
"""Names of the counts that a store has instead."""

LIGHT = ("num_nodes", "num_edges", "split", "group")
"""Arrays that every reader holds whole: what decides which graph is when on which rank."""


def per_of(name: str, levels: Mapping[str, str]) -> Per:
    """Tell what a row of an array stands for.

    Args:
        name: of the array, as ``arrays_of`` gives it.
        levels: ``graph`` or ``node`` by target.
    """
    if name in _FIXED:
        return _FIXED[name]
    kind, _, target = name.partition(".")
    if kind == "attribute":
        return "graph"
    return "graph" if levels[target] == "graph" else "node"


def arrays_of(columns: Columns) -> Arrays:
    """Give the columns as named arrays, in a fixed order."""
    arrays: Arrays = {
        "numbers": columns.numbers,
        "positions": columns.positions,
        "cell": columns.cell,
        "pbc": columns.pbc,
        "num_nodes": columns.num_nodes().astype(np.int32),
        "num_edges": columns.num_edges().astype(np.int32),
        "edges": columns.edges,
        "edge_shift": columns.edge_shift,
        "split": columns.split,
        "group": columns.group,
        "id_size": np.diff(columns.ids.offset).astype(np.int32),
        "id_text": columns.ids.text,
    }
    arrays |= {f"target.{name}": value for name, value in columns.targets.items()}
    arrays |= {f"mask.{name}": value for name, value in columns.masks.items()}
    arrays |= {f"attribute.{name}": value for name, value in columns.attributes.items()}
    if columns.laplacian is not None:
        arrays["laplacian"] = columns.laplacian
    return arrays


def columns_from(arrays: Arrays, stats: dict[str, Any]) -> Columns:
    """Put named arrays back together.

    ``node_offset``, ``edge_offset`` and ``id_offset`` are taken where they are given, as a stage
    has them mapped, and counted from the sizes elsewhere; ``windows`` is taken if it is given.
    """

    def offset(name: str, sizes: str) -> NDArray[np.int64]:
        return arrays[name] if name in arrays else offsets(arrays[sizes])

    def named(prefix: str) -> Arrays:
        return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

    return Columns(
        numbers=arrays["numbers"],
        positions=arrays["positions"],
        cell=arrays["cell"],
        pbc=arrays["pbc"],
        node_offset=offset("node_offset", "num_nodes"),
        edge_offset=offset("edge_offset", "num_edges"),
        edges=arrays["edges"],
        edge_shift=arrays["edge_shift"],
        split=arrays["split"],
        group=arrays["group"],
        ids=Names(arrays["id_text"], offset("id_offset", "id_size")),
        targets=named("target."),
        masks=named("mask."),
        levels={name: target["level"] for name, target in stats["targets"].items()},
        attributes=named("attribute."),
        laplacian=arrays.get("laplacian"),
        edge_translation=arrays.get("edge_translation"),
        windows=arrays.get("windows"),
        stats=stats,
    )


def translations_of(arrays: Arrays) -> NDArray[np.float32]:
    """Give the shifts of all edges in angstrom, [E, 3]."""
    ends = offsets(arrays["num_edges"]).tolist()
    shifts = arrays["edge_shift"].astype(np.float64)
    return translations(shifts, arrays["cell"], ends).astype(np.float32)


def known_of(
    mask: NDArray[np.bool_], level: str, num_nodes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Count the known rows of a target in each graph, [G].

    Args:
        mask: where it is known, [G] or [N].
        level: ``graph`` or ``node``.
        num_nodes: of each graph, [G].
    """
    if level == "graph":
        return mask.astype(np.int32)
    return np.diff(offsets(mask.astype(np.int64))[offsets(num_nodes.astype(np.int64))]).astype(
        np.int32
    )


def joined(pieces: Sequence[Arrays]) -> Arrays:
    """Lay pieces of a store end to end; there is at least one."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def sizes_of(arrays: Arrays) -> NDArray[np.int64]:
    """Count graphs, nodes, edges and characters, in the order of ``PERS``, [4]."""
    rows = [arrays[name].shape[0] for name in ("num_nodes", "numbers", "edges", "id_text")]
    return np.array(rows, dtype=np.int64)
