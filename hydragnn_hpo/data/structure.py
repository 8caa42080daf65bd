"""From one ASE structure to one graph: checks of bad input, edges, positional encodings.

Shapes: N nodes, E edges, k encodings.
"""

import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.config import MAX_ELEMENT, AttributeConfig, TargetConfig, TrunkSpec, find_unseen
from hydragnn_hpo.config.data_config import TRAJECTORY, weigh_sum
from hydragnn_hpo.data.columns import Graph
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.units import inside, is_virial

# Where torch is installed vesin imports it: seconds and 200 MB for each process of a build.
_TORCH = sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
try:
    import vesin
finally:
    if _TORCH is None:
        del sys.modules["torch"]


def find_edges(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    cutoff: float,
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Return the directed edges, sorted by receiver, then sender, then shift.

    Args:
        positions: angstrom, [N, 3]; atoms may lie up to ``FARTHEST`` cells outside the cell.
        cell: lattice vectors as rows in angstrom, [3, 3].
        pbc: periodic directions, [3].
        cutoff: largest edge length in angstrom.

    Returns:
        Sender and receiver, [E, 2], and shifts in lattice vectors, [E, 3], with the sign that
        ``data.columns`` defines. An isolated atom has no edge.
    """
    search = vesin.NeighborList(cutoff=cutoff, full_list=True, n_threads=1)  # default: all cores
    pairs, shift = search.compute(positions, cell, pbc, "PS", copy=False)  # views into ``search``
    order = _sort_edges(pairs, shift, len(positions))
    return pairs.take(order, axis=0).astype(np.int32), shift.take(order, axis=0).astype(np.int16)


def _sort_edges(
    pairs: NDArray[np.uint64], shift: NDArray[np.int32], num_nodes: int
) -> NDArray[np.int64]:
    """Return the permutation that sorts edges by receiver, then sender, then shift, [E].

    The columns are packed into one sort key per edge where it fits into 63 bits.
    """
    if not len(pairs):
        return np.zeros(0, dtype=np.int64)
    span = 2 * int(np.abs(shift).max()) + 1
    if num_nodes**2 * span**3 >= 2**62:
        columns = (shift[:, 2], shift[:, 1], shift[:, 0], pairs[:, 0], pairs[:, 1])
        return np.lexsort(columns)
    key = pairs.view(np.int64) @ np.array((span**3, num_nodes * span**3))
    key += shift @ np.array((span * span, span, 1))
    order: NDArray[np.int64] = key.argsort()
    return order


def edge_vectors(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    edges: NDArray[np.int32],
    edge_shift: NDArray[np.int16],
) -> NDArray[np.float64]:
    """Return the vector from sender to receiver of every edge in angstrom, [E, 3].

    Args:
        positions: angstrom, [N, 3].
        cell: lattice vectors as rows in angstrom, [3, 3].
        edges: sender and receiver, [E, 2].
        edge_shift: shifts in lattice vectors, [E, 3].
    """
    sender, receiver = edges.T
    vectors: NDArray[np.float64] = positions[receiver] + edge_shift @ cell - positions[sender]
    return vectors


def compute_laplacian_encodings(
    num_nodes: int, edges: NDArray[np.int32], count: int
) -> NDArray[np.float32]:
    """Return the eigenvectors of the smallest non-trivial eigenvalues, [N, k].

    The symmetric normalised Laplacian of the simple graph is used: undirected, without loops, with
    one link for all periodic images of a pair. The component of largest magnitude of each vector
    is positive. Eigenvectors of equal eigenvalues are an arbitrary basis of their space, so another
    order of the atoms may give another basis.

    Args:
        num_nodes: number of nodes, N.
        edges: sender and receiver, [E, 2].
        count: number of encodings per node, k; columns that the graph lacks are 0.

    Source: Dwivedi et al. (2023), JMLR 24, 43, section 4.1.
    """
    adjacency = np.zeros((num_nodes, num_nodes))
    adjacency[edges[:, 0], edges[:, 1]] = 1.0
    np.fill_diagonal(adjacency, 0.0)
    degree = adjacency.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros(num_nodes), where=degree > 0)
    laplacian = np.diag((degree > 0).astype(float)) - scale[:, None] * adjacency * scale
    values, vectors = np.linalg.eigh(laplacian)
    trivial = int((values < 1e-9).sum())
    chosen = vectors[:, trivial : trivial + count]
    # Rounded, so that rounding errors do not decide between components of equal magnitude.
    largest = np.abs(np.round(chosen, 9)).argmax(axis=0)
    chosen = chosen * np.where(chosen[largest, np.arange(chosen.shape[1])] < 0, -1.0, 1.0)
    result = np.zeros((num_nodes, count), dtype=np.float32)
    result[:, : chosen.shape[1]] = chosen
    return result


FARTHEST = 10_000
"""Largest absolute fractional coordinate of an atom: shifts of edges are stored in 16 bits."""

WIDEST = 300
"""Largest width of a structure, in cutoffs. vesin 0.6.2 divides space into at most 1e5 cubes about
as wide as the cutoff, and divides by zero where one plane of cubes exceeds that number.
Source: vesin/src/cpu_cell_list.cpp, https://github.com/Luthaf/vesin, 2026-11-21."""

MOST_EDGES = 1e8
"""Most edges of a structure, as estimated: they take some 10 GB while they are found."""

LARGEST = 1e30
"""Largest value of a property: single precision ends at 3e38, and squares must not overflow."""


@dataclass(frozen=True)
class Place:
    """Origin of a structure, for error messages."""

    file: Path
    """File or folder of the structure."""
    number: int
    """Position of the structure in the file or folder, counted from 0."""
    id: str
    """Name of the structure."""

    def error(self, problem: str, cure: str) -> DataError:
        """Return an error that names file, structure, problem and cure.

        Args:
            problem: continues a sentence about the structure, as in ``has no atoms``.
            cure: what the user can do, in the imperative.
        """
        return DataError(f"{self.file}: structure {self.number} ({self.id}) {problem}; {cure}.")


@dataclass(frozen=True)
class Rules:
    """Settings for the conversion of structures to graphs."""

    cutoff: float
    """Largest edge length in angstrom."""
    min_distance: float
    """Structures with atoms closer than this (angstrom) are refused."""
    targets: Mapping[str, TargetConfig]
    """Targets to read, by name."""
    group: str = "structure"
    """Grouping of structures: ``composition``, ``structure`` (each is its own group),
    ``trajectory`` (numbered when pieces are merged), or a key of ``atoms.info`` whose value names
    the group."""
    published: str | None = None
    """Key of ``atoms.info`` that holds the published split, where a structure has one; None where
    no structure has."""
    attributes: Mapping[str, AttributeConfig] = field(default_factory=dict)
    """Attributes to read, by name."""
    laplacian: int = 0
    """Number of Laplacian positional encodings per node."""
    trunks: tuple[TrunkSpec, ...] = ()
    """Foundation models that are to give features of the atoms, and must know their elements."""


def graph_of(atoms: Atoms, place: Place, rules: Rules) -> Graph:
    """Check a structure and return its graph.

    Args:
        atoms: the structure, lengths in angstrom; properties in ``info``, ``arrays`` or the
            results of its calculator.
        place: where it comes from, for errors.
        rules: cutoff, targets, attributes, groups.

    Raises:
        DataError: the structure cannot be used; the message says why.
    """
    positions, cell, pbc = _geometry(atoms, place, rules.min_distance)
    _check_known(atoms, place, rules.trunks)
    cutoff = max(rules.cutoff, rules.min_distance)
    _check_extent(positions, cell[pbc], cutoff, place)
    _check_density(positions, cell[pbc], cutoff, place)
    edges, edge_shift = find_edges(positions, cell, pbc, cutoff)
    vectors = edge_vectors(positions, cell, edges, edge_shift)
    _check_distances(np.einsum("ec,ec->e", vectors, vectors), edges, place, rules.min_distance)
    targets = {
        name: target_of(atoms, name, target, place) for name, target in rules.targets.items()
    }
    attributes = attributes_of(atoms, place, rules)
    _check_sums(targets, attributes, place, rules)
    return Graph(
        id=place.id,
        numbers=atoms.numbers.astype(np.int16),
        positions=positions,
        cell=cell,
        pbc=pbc,
        edges=edges,
        edge_shift=edge_shift,
        targets={name: value for name, value in targets.items() if value is not None},
        group=_group(atoms, place, rules.group),
        published=read_published(atoms, rules.published),
        attributes=attributes,
        laplacian=(
            compute_laplacian_encodings(len(atoms), edges, rules.laplacian)
            if rules.laplacian
            else None
        ),
    )


def _check_known(atoms: Atoms, place: Place, trunks: Sequence[TrunkSpec]) -> None:
    for trunk in trunks:
        if unseen := find_unseen(trunk, atoms.numbers.tolist()):
            raise place.error(
                f"has {unseen}, on which {trunk.title} was not trained", "leave it out"
            )


def _geometry(
    atoms: Atoms, place: Place, min_distance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return positions (angstrom, [N, 3]), cell (angstrom, [3, 3]) and pbc, all checked."""
    if not len(atoms):
        raise place.error("has no atoms", "remove it")
    numbers = atoms.numbers
    unknown = np.flatnonzero((numbers < 1) | (numbers > MAX_ELEMENT))
    if len(unknown):
        number = numbers[unknown[0]]
        raise place.error(
            f"has an unknown element at atom {unknown[0] + 1} (atomic number {number}, symbol "
            f"'{'?' if number else 'X'}')",
            f"use elements 1 to {MAX_ELEMENT}",
        )
    _check_occupancy(atoms, place)
    positions = np.asarray(atoms.positions, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(positions).all(axis=1))
    if len(bad):
        raise place.error(
            f"has position {positions[bad[0]].tolist()} at atom {bad[0] + 1}",
            "give finite coordinates or remove it",
        )
    cell = np.asarray(atoms.cell.array, dtype=np.float64)
    pbc = np.asarray(atoms.pbc, dtype=bool)
    _check_cell(cell, pbc, place, min_distance)
    return positions, cell, pbc


def _check_cell(
    cell: NDArray[np.float64], pbc: NDArray[np.bool_], place: Place, min_distance: float
) -> None:
    """Refuse lattice vectors that are too short, or (nearly) linearly dependent, where periodic."""
    if not np.isfinite(cell).all():
        raise place.error("has a cell with NaN or infinity", "mend the cell")
    periodic = cell[pbc]
    if not len(periodic):
        return
    lengths = np.linalg.norm(periodic, axis=1)
    volume = float(np.sqrt(max(np.linalg.det(periodic @ periodic.T), 0.0)))
    if lengths.min() < min_distance or volume < 1e-3 * np.prod(lengths):
        raise place.error(
            f"has lattice vectors {periodic.tolist()} that span no volume",
            "give a cell, or set pbc to false there",
        )


def _check_extent(
    positions: NDArray[np.float64], periodic: NDArray[np.float64], cutoff: float, place: Place
) -> None:
    """Refuse structures so wide that cell counts overflow, in ``edge_shift`` or in vesin.

    Args:
        positions: angstrom, [N, 3].
        periodic: lattice vectors of the periodic directions in angstrom, [0 to 3, 3].
        cutoff: angstrom.
        place: where the structure comes from, for errors.
    """
    lengths = np.linalg.norm(periodic, axis=1)
    # Shortcut for nearly every structure. Heights of a cell are at least 1e-3 of its shortest edge
    # (see _check_cell), so atoms within 5 such edges of the origin are within FARTHEST cells.
    near = min(5.0 * lengths.min(initial=np.inf), 0.25 * WIDEST * cutoff)
    if np.abs(positions).max() < near and lengths.max(initial=0.0) < WIDEST * cutoff:
        return
    cells = positions @ np.linalg.pinv(periodic)
    away = np.abs(cells).max(axis=1, initial=0.0)
    stray = int(away.argmax())
    if away[stray] > FARTHEST:
        raise place.error(
            f"has atom {stray + 1} at {positions[stray].tolist()}, {away[stray]:.3g} cells from "
            "the cell",
            "move the atoms into the cell",
        )
    with np.errstate(over="ignore"):  # an infinite width is refused below
        spread = float(np.linalg.norm(np.ptp(positions - cells @ periodic, axis=0)))
    width = max(spread, float(lengths.max(initial=0.0)))
    if width > WIDEST * cutoff:
        raise place.error(
            f"is {width:.4g} angstrom wide, more than {WIDEST} times the cutoff of {cutoff:g} "
            "angstrom",
            "remove stray atoms or empty space",
        )


def _check_density(
    positions: NDArray[np.float64], periodic: NDArray[np.float64], cutoff: float, place: Place
) -> None:
    """Refuse structures with more edges than memory and time allow, before they are searched.

    Args:
        positions: angstrom, [N, 3].
        periodic: lattice vectors of the periodic directions in angstrom, [0 to 3, 3].
        cutoff: angstrom.
        place: where the structure comes from, for errors.
    """
    count = len(positions)
    # A sphere, a disc or a line of the cutoff's radius over the content of a cell: images of an
    # atom within the cutoff. Atoms may lie anywhere across the directions without a period.
    ball = (1.0, 2.0 * cutoff, np.pi * cutoff**2, 4.0 / 3.0 * np.pi * cutoff**3)[len(periodic)]
    content = float(np.sqrt(np.linalg.det(periodic @ periodic.T))) if len(periodic) else 1.0
    edges = float(count) ** 2 * ball / content
    if edges > MOST_EDGES and not len(periodic):
        # By Cauchy and Schwarz: an atom's neighbours lie in 27 cubes as wide as the cutoff.
        cubes = np.floor((positions - positions.min(axis=0)) / cutoff).astype(np.int64)
        held = np.unique(cubes, axis=0, return_counts=True)[1].astype(np.float64)
        edges = min(edges, 27.0 * float(np.square(held).sum()))
    if edges > MOST_EDGES:
        raise place.error(
            f"has about {edges:.2g} edges within the cutoff of {cutoff:g} angstrom, more than "
            f"{MOST_EDGES:.0e}",
            "lower graphs.cutoff of the card, or remove it",
        )


def _check_occupancy(atoms: Atoms, place: Place) -> None:
    """Refuse crystals with a site that several elements share, or that is partly empty."""
    for site, shares in dict(atoms.info.get("occupancy") or {}).items():
        known = all(isinstance(share, int | float) for share in shares.values())
        if len(shares) != 1 or not known or abs(sum(shares.values()) - 1.0) > 1e-3:
            listing = ", ".join(f"{symbol} {share}" for symbol, share in shares.items())
            raise place.error(
                f"has a site with partial occupancy (site {site}: {listing})",
                "give an ordered structure",
            )


def _check_distances(
    squared: NDArray[np.float64], edges: NDArray[np.int32], place: Place, min_distance: float
) -> None:
    """Refuse atoms closer than ``min_distance`` (angstrom).

    Args:
        squared: squared lengths of the edges, angstrom squared, [E].
        edges: sender and receiver, [E, 2].
        place: where the structure comes from, for errors.
        min_distance: angstrom.
    """
    if not len(squared) or squared.min() >= min_distance**2:
        return
    closest = int(squared.argmin())
    first, second = sorted((edges[closest] + 1).tolist())
    whose = "its own image" if first == second else f"atom {second}"
    apart = float(squared[closest]) ** 0.5
    raise place.error(
        f"has atom {first} and {whose} at one place ({apart:.3g} angstrom apart)",
        "remove one, or lower graphs.min_distance of the card",
    )


def target_of(
    atoms: Atoms, name: str, target: TargetConfig, place: Place
) -> NDArray[np.float64] | None:
    """Read a target of a structure, converted to the units of this package.

    It is in ``info`` (graph level), ``arrays`` (node level), or the results of the calculator.

    Args:
        atoms: the structure.
        name: name of the target; its key in the file unless ``target`` names another.
        target: level, shape, unit in the file, and bounds.
        place: where the structure comes from, for errors.

    Returns:
        Value of the target, [width] or [N, width]; None where an optional target is missing.

    Raises:
        DataError: the value is missing, no finite number, of the wrong shape, or out of bounds.
    """
    key = target.key or name
    if target.columns is None:
        raw = _lookup(atoms, key, target.level)
    else:
        cells = [_lookup(atoms, column, target.level) for column in target.columns]
        raw = (
            None
            if set(map(id, cells)) == {id(None)}
            else [np.nan if c is None or _is_missing(c, target) else c for c in cells]
        )
    if target.optional and (raw is None or _is_missing(raw, target)):
        return None
    if raw is None:
        close = difflib.get_close_matches(key, _list_keys(atoms, target.level), n=1)
        hint = f" (did you mean '{close[0][:60]}'?)" if close else ""
        raise place.error(
            f"has no {target.level} property '{key}' for target '{name}'{hint}",
            "add it, correct the target's key, or set optional = true in the card",
        )
    value = _to_numbers(raw, key, target, place)
    _check_periodicity(atoms, key, target, place)
    value = _to_shape(value, len(atoms), key, target, place)
    _check_values(value, key, target, place)
    if target.shape == "tensor" and target.derived_from and not atoms.pbc.all():
        # Without three periodic directions there is no volume, so no stress to learn.
        value = np.full_like(value, np.nan) if target.optional else value
    elif is_virial(target.unit):
        value = value / atoms.cell.volume
    value = value * inside(target.unit)[0] / (len(atoms) if target.per_atom else 1)
    _check_bounds(value, key, target, place)
    return None if np.isnan(value).all() else value


def _is_missing(raw: Any, target: TargetConfig) -> bool:
    """Check whether a text stands for a number that is not known."""
    return target.classes is None and isinstance(raw, str) and raw.strip() in MISSING_NUMBERS


def _to_numbers(raw: Any, key: str, target: TargetConfig, place: Place) -> NDArray[np.float64]:
    """Convert what is in a file to numbers; classes to 1 and 0.

    Args:
        raw: the value in the file.
        key: its name in the file.
        target: its classes, if any.
        place: where the structure comes from, for errors.
    """
    try:
        if target.classes is not None:
            raw = _encode_classes(raw, key, target.classes, place)
        return np.asarray(_refuse_underscores(raw), dtype=np.float64)
    except (TypeError, ValueError):
        raise place.error(f"has '{key}' = {_shorten(raw)}, which is no number", "mend it") from None


def _check_periodicity(atoms: Atoms, key: str, target: TargetConfig, place: Place) -> None:
    """Refuse periodic structures with a label whose head reads positions."""
    if target.origin in ("mass", "geometry") and atoms.pbc.any():
        raise place.error(
            f"is periodic, where positions and so the '{key}' of their head are not unique",
            'remove it, or set origin = "none" for the target in the card',
        )


def _encode_classes(
    raw: Any, key: str, classes: Sequence[str], place: Place
) -> NDArray[np.float64]:
    """Return 1 for the class of a structure or atom and 0 for the others; NaN where it is missing.

    Args:
        raw: name of the class, [], or of the class of each atom, [N].
        key: its name in the file.
        classes: names of the C classes.
        place: where the structure comes from, for errors.

    Returns:
        [C] or [N, C].
    """
    names = np.array([name_class(each) for each in np.ravel(raw).tolist()])
    missing = np.isin(names, MISSING_CLASSES)
    encoded: NDArray[np.float64] = (names[:, None] == np.array(classes)).astype(np.float64)
    unknown = np.flatnonzero(~missing & (encoded.sum(axis=1) == 0))
    if len(unknown):
        listed = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
        raise place.error(
            f"has '{key}' = {_shorten(str(names[unknown[0]]))}, which is no class of its target "
            f"({listed})",
            "mend it, or add it to the classes in the card",
        )
    encoded[missing] = np.nan
    return encoded.reshape((*np.shape(raw), len(classes)))


MISSING_CLASSES = ("", "nan", "None", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "<NA>")
"""What stands for a class that is not known.

Source: default ``na_values`` of ``pandas.read_csv``.
"""

MISSING_NUMBERS = (*MISSING_CLASSES, "-", "--")
"""What stands for a number that is not known; a dash may be a class."""


def name_class(value: Any) -> str:
    """Return the name of a class as a card has it: whole numbers without a point, T and F as 1, 0.

    >>> name_class(2.0), name_class(True), name_class(" metal ")
    ('2', '1', 'metal')
    """
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, float) and value == int(value if np.isfinite(value) else 0.5):
        return str(int(value))
    return str(value).strip()


def _check_values(value: NDArray[np.float64], key: str, target: TargetConfig, place: Place) -> None:
    """Refuse values that are infinite, beyond ``LARGEST``, or missing in a required target."""
    missing = np.isnan(value)
    large = np.abs(value) > LARGEST
    bad = large if target.optional else large | missing
    if not bad.any():
        return
    row = int(np.flatnonzero(bad.any(axis=-1))[0]) + 1 if target.level == "node" else 0
    where = f" at atom {row}" if row else ""
    first = value[bad][0]
    cure = "mend it, or set optional = true" if np.isnan(first) else "mend or remove it"
    if np.isfinite(first):
        where, cure = f"{where}, more than {LARGEST:g}", "mend it, or give it in a larger unit"
    raise place.error(f"has '{key}' = {first:g}{where}", cure)


def _check_bounds(value: NDArray[np.float64], key: str, target: TargetConfig, place: Place) -> None:
    """Refuse values beyond the bounds of their target; all are in the unit used inside."""
    values = value.ravel()
    (low, high) = target.bounds or (None, None)
    for end, bound, sign in (("min", low, -1.0), ("max", high, 1.0)):
        beyond = [] if bound is None else np.flatnonzero(sign * values > sign * bound).tolist()
        if beyond:
            row = beyond[0]
            where = f" at atom {row + 1}" if target.level == "node" else ""
            limit = getattr(target, end)
            shown = values[row] / inside(target.unit)[0]
            raise place.error(
                f"has '{key}' = {shown:g}{where}, beyond the {end} = {limit:g} of its target",
                f"mend it, or correct the target's {end} in the card",
            )


def _check_sums(
    targets: Mapping[str, NDArray[np.float64] | None],
    attributes: Mapping[str, float],
    place: Place,
    rules: Rules,
) -> None:
    """Refuse labels of all atoms that miss the sum of their target by more than its tolerance.

    Args:
        targets: labels in the unit used inside by target, [N, w], NaN where missing; None where a
            structure has none.
        attributes: attributes of the structure, in the units used inside.
        place: where the structure comes from, for errors.
        rules: the targets with their sums, tolerances and units.
    """
    for name, target in rules.targets.items():
        value = targets[name]
        if target.total is None or value is None or np.isnan(value).any():
            continue
        total = attributes[target.total] if isinstance(target.total, str) else target.total
        factor = inside(target.unit)[0]
        sums = value.sum(axis=0) / factor
        each = np.array(weigh_sum(value.shape[1])) * (total / factor)
        worst = int(np.abs(sums - each).argmax())
        summed = float(sums[worst])
        wanted = float(each[worst])
        if abs(summed - wanted) > target.sum_tolerance:
            raise place.error(
                f"has '{target.key or name}' that sum to {summed:.6g} {target.unit} and miss the "
                f"sum {wanted:g} of target '{name}' by {abs(summed - wanted):.3g}, more than "
                f"sum_tolerance = {target.sum_tolerance:g}",
                "mend them, or correct sum or sum_tolerance in the card",
            )


def attributes_of(atoms: Atoms, place: Place, rules: Rules) -> dict[str, float]:
    """Read the attributes of a structure, converted to the units of this package.

    Args:
        atoms: the structure; attributes are in its ``info``.
        place: where it comes from, for errors.
        rules: settings; ``rules.attributes`` names the attributes to read.

    Returns:
        Values by attribute.

    Raises:
        DataError: an attribute is missing and has no default, or is not a finite number.
    """
    return {
        name: _read_attribute(atoms, name, attribute, place)
        for name, attribute in rules.attributes.items()
    }


def _read_attribute(atoms: Atoms, name: str, attribute: AttributeConfig, place: Place) -> float:
    key = attribute.key or name
    raw = atoms.info.get(key, attribute.default)
    if attribute.numbers and raw is not None:
        raw = attribute.numbers.get(str(raw).strip(), attribute.default)
    if raw is None and key in atoms.info:
        raise place.error(
            f"has '{key}' = {_shorten(atoms.info[key])}, which attributes.{name}.numbers lacks",
            "add it there, or give the attribute a default in the card",
        )
    if raw is None:
        raise place.error(
            f"has no '{key}' for attribute '{name}'",
            "add it, correct the attribute's key, or give it a default in the card",
        )
    try:
        value = float(_refuse_underscores(raw))
    except (TypeError, ValueError):
        raise place.error(f"has '{key}' = {_shorten(raw)}, which is no number", "mend it") from None
    if not abs(value) <= LARGEST:
        raise place.error(f"has '{key}' = {value}, no number up to {LARGEST:g}", "mend it")
    return value * inside(attribute.unit)[0]


_RENAMED = {"charge": "charges"}
"""Columns of extxyz files that ASE renames on reading, by their name in the file."""


def _lookup(atoms: Atoms, key: str, level: str) -> Any:
    """Return the raw value of a property; None where the structure has none."""
    home = atoms.info if level == "graph" else atoms.arrays
    if key in home:
        return home[key]
    results = atoms.calc.results if atoms.calc is not None else {}
    return results.get(_RENAMED.get(key, key), results.get(key))


def _list_keys(atoms: Atoms, level: str) -> list[str]:
    """Return the names of the properties of a level that a structure has."""
    home = atoms.info if level == "graph" else atoms.arrays
    return [*map(str, home), *(atoms.calc.results if atoms.calc is not None else ())]


def _refuse_underscores(raw: Any) -> Any:
    """Return a value; raise ValueError for text as ``1_000``, a number for Python alone."""
    if isinstance(raw, str) and "_" in raw:
        raise ValueError
    return raw


def _to_shape(
    value: NDArray[np.float64], num_atoms: int, key: str, target: TargetConfig, place: Place
) -> NDArray[np.float64]:
    """Return the value as [width] or [N, width]."""
    if target.shape == "tensor":
        value = _flat_tensor(value, target, key, place)
    shape = (target.width,) if target.level == "graph" else (num_atoms, target.width)
    allowed = {shape, shape[:-1]} if target.width == 1 else {shape}
    if value.shape not in allowed:
        raise place.error(
            f"has '{key}' of shape {list(value.shape)}, wanted is {list(shape)}",
            f"mend it, or correct level and shape of the target ({target.level}, {target.shape})",
        )
    return value.reshape(shape)


_VOIGT = np.array([[0, 5, 4], [5, 1, 3], [4, 3, 2]])
"""Position of each component of a 3 x 3 stress in ASE's order (xx, yy, zz, yz, xz, xy)."""


ASYMMETRY = 0.01
"""Largest difference of two components that a symmetric tensor has equal, as a share of its largest
component: numbers from finite differences differ that much, and are averaged."""


def _flat_tensor(
    value: NDArray[np.float64], target: TargetConfig, key: str, place: Place
) -> NDArray[np.float64]:
    """Flatten tensors row by row, [9] or [N, 9], of matrices, or 6 components in ASE's order.

    A value of another shape is returned as it is, for ``_to_shape`` to refuse.

    Args:
        value: one tensor, [6], [9] or [3, 3], or those of atoms, [N, 9] or [N, 3, 3].
        target: its level and kind.
        key: its name in the file.
        place: where it comes from, for errors.

    Raises:
        DataError: a tensor of a structure is not symmetric.
    """
    if target.level == "node":
        return value.reshape(len(value), 9) if value.shape[1:] == (3, 3) else value
    full = value[_VOIGT] if value.shape == (6,) else value
    if full.size != 9:
        return value
    full = full.reshape(3, 3)
    if target.derived_from is None:
        away = np.abs(full - full.T).max()
        if away > ASYMMETRY * np.abs(full).max():
            raise place.error(
                f"has '{key}', a tensor of a structure, with components that differ from those of "
                f"its transpose by {away:.3g}",
                "give symmetric tensors, or leave the target out",
            )
        full = 0.5 * (full + full.T)
    return np.asarray(full, dtype=np.float64).reshape(-1)


def _group(atoms: Atoms, place: Place, group: str) -> str:
    """Return the name of a structure's group; compositions are reduced, so supercells share one."""
    if group == "structure":
        return f"{place.file}:{place.number + 1}"  # splits follow the order of these names
    if group == TRAJECTORY:
        return ""
    if group == "composition":
        formula, _ = atoms.symbols.formula.reduce()
        return str(formula.format("hill"))
    return str(_info(atoms, group, place))


def read_published(atoms: Atoms, key: str | None) -> str | None:
    """Return the published split of a structure, 1.0 as ``1``; None if it has none."""
    value = None if key is None else atoms.info.get(key)
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if is_missing else str(value).strip() or None


def _info(atoms: Atoms, key: str, place: Place) -> Any:
    if key not in atoms.info:
        raise place.error(f"has no '{key}', which the card's split asks for", "add it to the file")
    return atoms.info[key]


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
