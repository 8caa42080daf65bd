"""A structure from the named arrays of a graph: what PyG's ``Data`` and HydraGNN's files hold.

Shapes: N nodes.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.errors import DataError

Values = Mapping[str, NDArray[Any]]

NUMBERS = ("z", "atomic_numbers", "numbers")
"""Names of the array of atomic numbers; without one, the first column of ``x`` holds them."""

_TOPOLOGY = ("edge_index", "edge_attr", "edge_shifts", "edge_weight", "batch", "ptr", "num_nodes")
"""Arrays of edges and batches, which are dropped: edges are computed with the card's cutoff."""

_SHORT = 9
"""Largest number of values of a property of a whole structure."""


def atoms_of(values: Values, place: str) -> Atoms:
    """Convert named arrays to a structure.

    ``pos`` holds positions in angstrom, ``cell`` lattice vectors in angstrom; ``pbc`` marks the
    periodic directions, which without it are those of non-zero vectors. An array with one row per
    atom goes to ``atoms.arrays``, one of up to ``_SHORT`` numbers to ``atoms.info``, and one that
    fits both to both: the level of the card's target decides which is used. The columns of ``x``
    are also stored as ``x_0``, ``x_1`` ..., and the targets that HydraGNN packs into ``y`` with
    ``y_loc`` as ``y_0``, ``y_1`` ...

    Args:
        values: booleans and numbers by name.
        place: file and structure, for errors.

    Raises:
        DataError: positions or atomic numbers are missing or do not fit each other.
    """
    if "pos" not in values:
        raise DataError(f"{place}: has no positions 'pos'; give them, or use another format.")
    positions = np.asarray(values["pos"], dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise DataError(
            f"{place}: 'pos' has shape {list(positions.shape)}, wanted is [N, 3]; mend it."
        )
    if not len(positions):
        raise DataError(f"{place}: has no atoms; remove it.")
    numbers = _numbers(values, len(positions), place)
    atoms = Atoms(numbers, positions=positions, **_box(values, place))
    known = (*NUMBERS, *_TOPOLOGY, "pos", "cell", "pbc", "y_loc")
    for name, value in values.items():
        if name not in known:
            _keep(atoms, name, np.asarray(value))
    for column in range(np.atleast_2d(values.get("x", np.zeros((1, 0)))).shape[1]):
        _keep(atoms, f"x_{column}", np.atleast_2d(values["x"])[:, column])
    if "y" in values and "y_loc" in values:
        _unpack(atoms, values["y"], values["y_loc"], place)
    return atoms


def _numbers(values: Values, count: int, place: str) -> NDArray[np.int64]:
    name = next((name for name in NUMBERS if name in values), None)
    raw = values[name] if name else np.atleast_2d(values.get("x", np.zeros((0, 1))))[:, :1]
    flat = np.asarray(raw, dtype=np.float64).reshape(-1)
    whole = np.isfinite(flat).all() and np.array_equal(flat, np.round(flat))
    if len(flat) != count or not whole or (count and flat.min() < 1):
        source = f"'{name}'" if name else "the first column of 'x'"
        raise DataError(
            f"{place}: {source} does not hold the atomic numbers of {count} atoms; "
            f"name them {', '.join(NUMBERS)}."
        )
    return flat.astype(np.int64)


class _Box(TypedDict):
    """Keyword arguments of ``Atoms``."""

    cell: NDArray[np.float64]
    """Lattice vectors as rows in angstrom, [3, 3]."""
    pbc: NDArray[np.bool_]
    """Periodic directions, [3]."""


def _box(values: Values, place: str) -> _Box:
    cell = np.asarray(values.get("cell", np.zeros((3, 3))), dtype=np.float64)
    periodic = cell.reshape(3, 3).any(axis=1) if cell.size == 9 else np.zeros(3)
    pbc = np.asarray(values.get("pbc", periodic)).reshape(-1)
    if cell.size != 9 or pbc.size not in (1, 3):
        raise DataError(
            f"{place}: 'cell' has shape {list(cell.shape)} and 'pbc' {list(pbc.shape)}: give "
            "[3, 3] and [3]."
        )
    return {"cell": cell.reshape(3, 3), "pbc": np.broadcast_to(pbc.astype(bool), 3)}


def _keep(atoms: Atoms, name: str, value: NDArray[Any]) -> None:
    """Store a value in ``arrays``, ``info`` or both, as its shape allows; ``atoms`` changes."""
    if value.dtype.kind not in "biuf":
        return
    if value.shape[:1] == (len(atoms),):
        atoms.arrays[name] = value.reshape(len(atoms)) if value.size == len(atoms) else value
    if 0 < value.size <= _SHORT and (value.ndim < 2 or value.shape[0] == 1 or value.size == 9):
        flat = value.reshape(-1)
        atoms.info[name] = flat[0].item() if flat.size == 1 else flat


def _unpack(atoms: Atoms, packed: NDArray[Any], ends: NDArray[Any], place: str) -> None:
    """Split HydraGNN's packed targets and store each as ``_keep`` does; ``atoms`` changes.

    Args:
        atoms: the structure.
        packed: values of all targets end to end.
        ends: first value of each target, and the end.
        place: file and structure, for errors.
    """
    flat = np.asarray(packed).reshape(-1)
    bounds = np.asarray(ends, dtype=np.int64).reshape(-1)
    if not bounds.size or (np.diff(bounds) < 0).any() or bounds[-1] > flat.size or bounds[0] != 0:
        raise DataError(
            f"{place}: 'y_loc' {bounds.tolist()} does not fit the {flat.size} numbers of 'y'; "
            "mend it."
        )
    for number, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        part = flat[first:last]
        if part.size and part.size % len(atoms) == 0:
            rows = part.reshape(len(atoms), -1)
            atoms.arrays[f"y_{number}"] = rows[:, 0] if rows.shape[1] == 1 else rows
        if 0 < part.size <= _SHORT:
            atoms.info[f"y_{number}"] = part[0].item() if part.size == 1 else part
