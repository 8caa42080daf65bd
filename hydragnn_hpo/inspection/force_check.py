"""Check whether forces are minus the gradient of the energies beside them.

Between structures that differ by a small step the energy changes by minus the mean force times the
step, whatever the energy is: a trajectory and displaced copies of one structure tell sign, unit and
origin of the forces.

Structures without such neighbours tell the sign only. A potential of atom pairs is fitted to the
forces. Its curvature ``H`` gives the distance of each structure from the stationary point next to
it, and so its energy above that point, ``F H^-1 F / 2``. With the sign of the forces that of the
curvature changes, and energies then fall where they should rise.

Shapes: S structures, P pairs of structures, N nodes, E edges, K functions, U unknowns, C controls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hydragnn_hpo.data import Columns, edge_vectors, find_edges
from hydragnn_hpo.data.graph_sizes import ELEMENTS

Array = NDArray[np.float64]

SHORTEST_STEP, LONGEST_STEP = 1e-3, 0.25
"""Largest displacement of an atom between two structures that are compared, angstrom. Beyond, the
energy is no longer quadratic along the step."""

MOST_PAIRS, MOST_COMPARED = 2000, 300_000
"""Most pairs of structures that are compared, and most pairs times atoms."""

MIN_CHANGE = 2e-3
"""Smallest change of the energy, true or by the forces, that is compared, eV: below, the last
digits of energies and the noise of their calculation count."""

MIN_PAIRS, MIN_STRUCTURES = 20, 30
"""Fewest pairs, and fewest structures without neighbours, that tell something."""

RIGHT = (0.65, 1.5)
"""Ratios of energy changes to those by the forces that are right for steps of this length; 0.53 and
1.89, bohr for angstrom, are not."""

CONSISTENT, MAX_ERROR, MAX_WEIGHT = 0.7, 0.1, 3.0
"""Share of the pairs (by their weight) whose ratio must be within half of the common one; largest
standard error, relative to ratios above 1; and the largest weight of a pair, in medians."""

MANY_PAIRS = 100
MANY_CHANGED = 0.02
UNRELATED = (0.4, 0.6)
"""Number of pairs, their median change by the forces in eV, and the share of them (by weight) in
which energies change in the direction of the forces, of energies that do not follow them."""

MAX_ATOMS, MOST_STRUCTURES = 60, 200
"""Largest structure whose curvature is computed, and the number of them."""

CUTOFF = 5.0
CENTERS = np.linspace(0.7, 2.2, 8)
MOST_ELEMENT_PAIRS = 40
"""Potential of atom pairs: cutoff in angstrom, centers of its Gaussians in sums of covalent radii,
and the number of pairs of elements with a function of their own; rare ones share another."""

RIDGE, SOFTEST = 1e-4, 0.2
"""Penalty of the fit, as a share of the mean diagonal; smallest share of the largest curvature
along which a structure may be far from its stationary point."""

CONSTANT = 0.2
"""Largest ratio of energies that do not change with the positions."""

MIN_EXPLAINED, MIN_CORRELATION, MIN_SIGMA, MIN_INVERTED = 0.5, 0.3, 3.0, 0.7
"""What forces of the wrong sign need at least: explained share of their variance; correlation of
energies with those above the stationary points, and its distance from 0 in standard errors; share
of curvatures that are negative. In right data the latter was 0.26 at most."""

FAR_OFF, STIFFNESS = (12.0, 0.09), (3.0, 100.0)
"""Ratios beyond which forces are in a wrong unit, and curvatures that are too low or too high for
right ones, eV/angstrom^2: metals have about 10, molecules 60."""

NEAR_FACTOR = 0.15
"""Largest logarithm of a ratio to one of ``_FACTORS`` that explains it."""

_FACTORS = {
    "Hartree/bohr for eV/angstrom": 51.42207,
    "Hartree for eV": 27.211386,
    "Rydberg/bohr for eV/angstrom": 25.71104,
    "kcal/mol for eV": 23.06055,
    "Rydberg for eV": 13.605693,
    "kJ/mol for eV": 96.48533,
    "bohr for angstrom": 1.8897261,
    "meV for eV": 1000.0,
}
"""Usual mistakes, and the factor by which they change energies or forces."""


Verdict = Literal["agree", "contradict", "unclear"]


@dataclass(frozen=True, eq=False)
class LabelledStructure:
    """A structure with its energy and forces."""

    numbers: NDArray[np.int64]
    """Atomic numbers, [N]."""
    positions: Array
    """Angstrom, [N, 3]."""
    cell: Array
    """Lattice vectors as rows, angstrom, [3, 3]."""
    pbc: NDArray[np.bool_]
    """Periodic directions, [3]."""
    energy: float
    """eV."""
    forces: Array
    """eV/angstrom, [N, 3]."""


@dataclass(frozen=True)
class ForceEvidence:
    """What some structures tell about their forces."""

    verdict: Verdict
    """``contradict`` only on solid evidence."""
    ratio: float
    """Change of the energy over that by the forces: 1 where they agree, -1 for the wrong sign."""
    error: float
    """Standard error of ``ratio``."""
    count: int
    """Number of pairs, or of structures without near ones, it is from."""
    sentence: str
    """What was found, to be read after the name of the forces."""


def read_labels(
    columns: Columns, energy: str, forces: str, *, per_atom: bool = False
) -> Iterator[LabelledStructure]:
    """Yield the structures that have an energy and forces.

    Args:
        columns: graphs of a store, or some that were read.
        energy: name of an energy.
        forces: name of its forces.
        per_atom: whether the energy is one per atom.
    """
    energies, vectors = columns.targets[energy][:, 0], columns.targets[forces]
    for graph, energy_of_it in enumerate(energies):
        nodes = slice(*columns.node_offset[graph : graph + 2])
        if np.isfinite(energy_of_it) and np.isfinite(vectors[nodes]).all():
            yield LabelledStructure(
                columns.numbers[nodes].astype(np.int64),
                columns.positions[nodes],
                columns.cell[graph],
                columns.pbc[graph].astype(bool),
                float(energy_of_it) * (columns.num_nodes()[graph] if per_atom else 1),
                vectors[nodes],
            )


def compare_forces(structures: Sequence[LabelledStructure]) -> ForceEvidence | None:
    """Compare forces with the energies of the same structures.

    Args:
        structures: at most some thousands, in the order of the file, so that steps of a trajectory
            are neighbours.

    Returns:
        The evidence; None where there are too few structures to tell anything.
    """
    changes = [part for part in _compare_steps(structures) if part.shape[1]]
    pairs = np.concatenate(changes, axis=1) if changes else np.zeros((5, 0))
    pairs = pairs[:, np.argsort(pairs[2], kind="stable")[:MOST_PAIRS]]
    if pairs.shape[1] >= MIN_PAIRS:
        return _judge_steps(pairs[0], pairs[1], pairs[3:].astype(np.int64))
    # On matrices this small, threads of BLAS wait 20 times as long as they compute.
    with threadpool_limits(1, "blas"):
        return _judge_curvature(structures)


def _compare_steps(structures: Sequence[LabelledStructure]) -> Iterator[Array]:
    """Yield changes between near structures of the same atoms in the same order and cell.

    Yields:
        Change of the energy, the one by the forces, eV, the largest displacement of an atom,
        angstrom, and the numbers of both structures, [5, P].
    """
    same: dict[bytes, list[int]] = {}
    for number, each in enumerate(structures):
        cell = np.round(each.cell, 3) + 0.0 if each.pbc.any() else np.zeros(0)
        key = each.numbers.astype(np.int64).tobytes() + each.pbc.tobytes() + cell.tobytes()
        same.setdefault(key, []).append(number)
    budget = MOST_COMPARED
    for places in same.values():
        if len(places) < 2 or budget <= 0:
            continue
        members = [structures[place] for place in places]
        most = min(budget // len(members[0].numbers), 4 * MOST_PAIRS)
        first, second = _choose_pairs(len(members), most)
        budget -= len(first) * len(members[0].numbers)
        positions = np.stack([each.positions for each in members])
        forces = np.stack([each.forces for each in members])
        start, end, pull = positions[first], positions[second], forces[second]
        if members[0].pbc.any():
            step = _wrap(end - start, members[0])
        else:
            turn = _find_rotations(end, start)
            step = _center(end) @ turn - _center(start)
            pull = pull @ turn
        energy = np.array([each.energy for each in members])
        by_forces = -0.5 * ((forces[first] + pull) * step).sum(axis=(1, 2))
        longest = np.sqrt((step**2).sum(axis=2)).max(axis=1)
        near = (longest >= SHORTEST_STEP) & (longest <= LONGEST_STEP)
        change = energy[second] - energy[first]
        near &= (np.maximum(np.abs(by_forces), np.abs(change)) >= MIN_CHANGE) & (by_forces != 0.0)
        both = np.array(places)[first], np.array(places)[second]
        yield np.stack([change, by_forces, longest, *both])[:, near]


def _choose_pairs(count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of structures: the nearest in the file, and others at random.

    Args:
        count: number of structures.
        most: largest number of pairs.
    """
    if count * (count - 1) // 2 <= most:
        first, second = np.triu_indices(count, 1)
        return first.astype(np.int64), second.astype(np.int64)
    places = np.arange(count)
    gaps = range(1, min(count, 4))
    near = [np.stack([places[:-gap], places[gap:]]) for gap in gaps]
    drawn = np.random.default_rng(0).integers(0, count, (2, most))
    first, second = np.concatenate([*near, drawn[:, drawn[0] < drawn[1]]], axis=1)[:, :most]
    return first, second


def _wrap(step: Array, like: LabelledStructure) -> Array:
    """Return displacements to the nearest periodic images, [P, N, 3]."""
    cell = np.where(like.pbc[:, None], like.cell, 0.0)
    shift = np.round(step @ np.linalg.pinv(cell)) @ cell
    return np.asarray(step - shift, dtype=np.float64)


def _center(positions: Array) -> Array:
    return np.asarray(positions - positions.mean(axis=1, keepdims=True), dtype=np.float64)


def _find_rotations(moved: Array, fixed: Array) -> Array:
    """Return the rotation of each molecule that brings it nearest to another, [P, 3, 3].

    Source: Kabsch (1976), Acta Crystallogr. A 32, 922.
    """
    left, _, right = np.linalg.svd(_center(moved).transpose(0, 2, 1) @ _center(fixed))
    left[:, :, -1] *= np.sign(np.linalg.det(left @ right))[:, None]
    return np.asarray(left @ right, dtype=np.float64)


def _judge_steps(change: Array, by_forces: Array, both: NDArray[np.int64]) -> ForceEvidence:
    """Judge forces by changes of the energy along steps.

    Args:
        change: change of the energy, eV, [P].
        by_forces: the change by the forces, eV, [P].
        both: numbers of the structures of each pair, [2, P].
    """
    ratios = change / by_forces
    count = len(change)
    usual = float(np.median(np.abs(by_forces)))
    # One structure with an error of its own must not decide.
    weights = np.minimum(np.abs(by_forces), MAX_WEIGHT * usual)
    ratio = _weighted_median(ratios, weights)
    error = _bootstrap(ratios, weights, both)
    within = np.abs(ratios - ratio) <= 0.5 * abs(ratio)
    consistent = float(weights[within].sum() / weights.sum()) >= CONSISTENT
    along = float(weights[ratios > 0.0].sum() / weights.sum())
    many = count >= MANY_PAIRS and usual >= MANY_CHANGED
    changes = f"over {count} small steps between structures the energy changes by {ratio:.3g} times"
    what = f"{changes} what they say"
    verdict: Verdict = "contradict"
    if RIGHT[0] <= ratio <= RIGHT[1] and (consistent or error <= MAX_ERROR):
        verdict = "agree"
        sentence = f"agree with the energies: {what}"
    elif consistent and error <= MAX_ERROR * max(abs(ratio), 1.0):
        mistake = _explain_ratio(ratio)
        sentence = f"contradict the energies: {what}, which should be 1{mistake}"
    elif many and abs(ratio) <= CONSTANT and error <= CONSTANT / 4:
        kinetic = "do the energies include the kinetic energy?"
        sentence = f"contradict the energies: {what}, which should be 1: {kinetic}"
    elif many and UNRELATED[0] <= along <= UNRELATED[1]:
        sentence = (
            f"contradict the energies: over {count} small steps between structures the energy "
            f"rises in {100.0 * along:.0f} % where they say so, as by chance: one of both is of "
            "another calculation"
        )
    else:
        verdict = "unclear"
        sentence = f"do not clearly fit the energies: {what}"
    return ForceEvidence(verdict, ratio, error, count, sentence)


def _bootstrap(ratios: Array, weights: Array, both: NDArray[np.int64]) -> float:
    """Return the standard error of the weighted median of ratios, by drawing structures.

    Args:
        ratios: of each pair, [P].
        weights: of each pair, [P].
        both: numbers of the structures of each pair, [2, P].
    """
    random = np.random.default_rng(0)
    most = int(both.max()) + 1
    structures = np.unique(both)
    medians = []
    for _ in range(50):
        drawn = np.bincount(random.choice(structures, len(structures)), minlength=most)
        times = weights * drawn[both].prod(axis=0)
        if times.any():
            medians.append(_weighted_median(ratios, times))
    return float(np.std(medians))


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def _explain_ratio(ratio: float, near: float = NEAR_FACTOR) -> str:
    """Return the likely mistake behind a ratio, to be read after it.

    Args:
        ratio: change of the energy over that by the forces.
        near: largest logarithm of the ratio to one of ``_FACTORS`` that explains it.
    """
    size = max(abs(ratio), 1.0 / max(abs(ratio), 1e-12))
    mistakes = ["the sign of one is wrong"] if ratio < 0.0 else []
    if size > RIGHT[1]:
        off = {name: abs(np.log(size / factor)) for name, factor in _FACTORS.items()}
        nearest = min(off, key=lambda name: off[name])
        hint = f", as {nearest}" if off[nearest] < near else ""
        mistakes.append(f"the unit of one is wrong{hint}")
    return f": {', and '.join(mistakes)}"


def _judge_curvature(structures: Sequence[LabelledStructure]) -> ForceEvidence | None:
    """Judge the sign of forces by energies above stationary points."""
    fit = [s for s in structures if 2 <= len(s.numbers) <= MAX_ATOMS]
    fit = fit[:: max(1, len(fit) // MOST_STRUCTURES)][:MOST_STRUCTURES]
    if len(fit) < MIN_STRUCTURES or not any(s.forces.any() for s in fit):
        return None
    controls = _describe_composition(fit)
    sizes = np.array([len(s.numbers) for s in fit])
    free = len(fit) - int(np.linalg.matrix_rank(controls)) - 1
    if free < MIN_STRUCTURES // 2:
        return None
    above, fitted = _estimate_relaxations(fit)
    energies = np.array([s.energy for s in fit])
    left = [_remove_controls(values / sizes, controls) for values in (energies, above)]
    # A few structures next to an inflection point would decide alone.
    energy, stiff = (_clip(values) for values in left)
    square = max(float(stiff @ stiff), 1e-300)
    ratio = float(stiff @ energy) / square
    error = float(np.sqrt(stiff**2 @ (energy - ratio * stiff) ** 2 * len(fit) / free)) / square
    correlation = float(stiff @ energy) / max(float(np.sqrt(square * (energy @ energy))), 1e-300)
    solid = fitted.explained >= MIN_EXPLAINED and abs(ratio) >= MIN_SIGMA * error > 0.0
    solid &= abs(correlation) >= MIN_CORRELATION
    verdict, sentence = _explain_curvature(ratio, fitted, len(fit), solid=solid)
    return ForceEvidence(verdict, ratio, error, len(fit), sentence)


def _explain_curvature(
    ratio: float, fitted: "_Fit", count: int, *, solid: bool
) -> tuple[Verdict, str]:
    """Conclude from energies above stationary points.

    Args:
        ratio: change of the energy over that by the forces.
        fitted: what the potential is like.
        count: number of structures.
        solid: whether the ratio is far from 0, and the potential explains the forces.

    Returns:
        The verdict, and what was found.
    """
    if solid and ratio < 0.0 and fitted.inverted >= MIN_INVERTED:
        return "contradict", (
            f"contradict the energies: in {count} structures the energy falls where they say that "
            "it rises: the sign of one is wrong"
        )
    weak = ratio >= FAR_OFF[0] and fitted.stiffness <= STIFFNESS[0]
    strong = ratio <= FAR_OFF[1] and fitted.stiffness >= STIFFNESS[1]
    if not solid or ratio < 0.0 or fitted.inverted > 1.0 - MIN_INVERTED:
        sentence = f"cannot be compared with the energies: the {count} structures differ too much"
        return "unclear", sentence
    if weak or strong:
        return "contradict", (
            f"contradict the energies: in {count} structures these change about {ratio:.2g} times "
            f"as much as the forces say{_explain_ratio(ratio, near=3.0 * NEAR_FACTOR)}"
        )
    return "agree", f"have the sign of the energies, by {count} structures"


def _clip(values: Array) -> Array:
    """Return values without their mean, clipped at three times the median magnitude."""
    limit = 3.0 * float(np.median(np.abs(values - np.median(values))))
    clipped = np.clip(values, np.median(values) - limit, np.median(values) + limit)
    return np.asarray(clipped - clipped.mean(), dtype=np.float64)


def _describe_composition(structures: Sequence[LabelledStructure]) -> Array:
    """Return what energies per atom depend on besides displacements: elements, volume; [S, C]."""
    kinds = np.unique(np.concatenate([s.numbers for s in structures]))
    share = np.array([[np.mean(s.numbers == kind) for kind in kinds] for s in structures])
    volumes = np.array(
        [abs(np.linalg.det(s.cell)) / len(s.numbers) if s.pbc.all() else 0.0 for s in structures]
    )
    if np.ptp(volumes) <= 1e-6 * volumes.max():
        return share
    relative = volumes / (share @ covalent_radii[kinds] ** 3)
    volume, strain = (values[:, None] / values.mean() - 1.0 for values in (volumes, relative))
    # Each element has a volume of its own, where the structures are enough to tell.
    many = 3 * (3 * len(kinds) + 3) <= len(structures)
    by_volume = [share * volume, share * volume**2] if many else [volume, volume**2]
    return np.concatenate([share, *by_volume, strain, strain**2, strain**3], axis=1)


def _remove_controls(values: Array, controls: Array) -> Array:
    fitted, *_ = np.linalg.lstsq(controls, values, rcond=1e-9)
    return np.asarray(values - controls @ fitted, dtype=np.float64)


@dataclass(frozen=True)
class _Fit:
    """What a potential that is fitted to forces is like."""

    explained: float
    """Share of the variance of forces of other structures."""
    inverted: float
    """Share of negative curvatures."""
    stiffness: float
    """Median of the curvatures' magnitudes, eV/angstrom^2."""


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges of a structure, and the functions of the potential on them."""

    ends: NDArray[np.int32]
    """Sender and receiver, [E, 2]."""
    kind: NDArray[np.int64]
    """Pair of elements of each edge, [E]."""
    length: Array
    """Angstrom, [E]."""
    direction: Array
    """Unit vector from sender to receiver, [E, 3]."""
    slope: Array
    """First derivative of each function by the length, [E, K]."""
    curvature: Array
    """Second derivative, [E, K]."""


def _estimate_relaxations(
    structures: Sequence[LabelledStructure],
) -> tuple[Array, _Fit]:
    """Estimate the energy of each structure above the stationary point next to it.

    Each fourth of the structures is estimated with a potential that was fitted to the others.

    Returns:
        Energies, eV, [S], and what the fit is like.
    """
    kinds = _number_element_pairs(structures)
    edges = [_find_pair_functions(s, kinds) for s in structures]
    designs = [
        _force_design(s, e, int(kinds.max()) + 1) for s, e in zip(structures, edges, strict=True)
    ]
    forces = [s.forces.ravel() for s in structures]
    grams = np.stack([design.T @ design for design in designs])
    rights = np.stack([design.T @ force for design, force in zip(designs, forces, strict=True)])
    fold = np.random.default_rng(0).permutation(len(structures)) % 4
    above = np.zeros(len(structures))
    stiffness = list[float]()
    negative = list[float]()
    missed = total = 0.0
    for part in range(4):
        gram = grams[fold != part].sum(axis=0)
        right = rights[fold != part].sum(axis=0)
        penalty = RIDGE * max(float(np.trace(gram)) / len(gram), 1e-12)
        numbers = np.linalg.solve(gram + penalty * np.eye(len(gram)), right)
        for row in np.flatnonzero(fold == part).tolist():
            missed += float(((forces[row] - designs[row] @ numbers) ** 2).sum())
            total += float((forces[row] ** 2).sum())
            hessian = _make_hessian(edges[row], numbers, len(structures[row].numbers))
            values, vectors = np.linalg.eigh(hessian)
            floor = SOFTEST * float(np.abs(values).max(initial=0.0))
            stiff = np.abs(values) > max(floor, 1e-9)
            along = vectors[:, stiff].T @ forces[row]
            above[row] = 0.5 * float((along**2 / values[stiff]).sum())
            negative.append(float((values[stiff] < 0.0).mean()) if stiff.any() else 0.5)
            stiffness.append(float(np.median(np.abs(values[stiff]))) if stiff.any() else 0.0)
    explained = 1.0 - missed / max(total, 1e-300)
    return above, _Fit(explained, float(np.mean(negative)), float(np.median(stiffness)))


def _number_element_pairs(structures: Sequence[LabelledStructure]) -> NDArray[np.int64]:
    """Number the pairs of elements, the frequent ones first; rare ones share the last number.

    Returns:
        Number of each pair, by both atomic numbers, [ELEMENTS, ELEMENTS].
    """
    frequency = np.zeros((ELEMENTS, ELEMENTS))
    for each in structures:
        kinds, counts = np.unique(each.numbers, return_counts=True)
        frequency[np.ix_(kinds, kinds)] += np.outer(counts, counts)
    upper = np.triu(frequency).ravel()
    order = np.argsort(-upper, kind="stable")[: np.count_nonzero(upper)]
    number = np.zeros(ELEMENTS * ELEMENTS, dtype=np.int64)
    number[order] = np.minimum(np.arange(len(order)), MOST_ELEMENT_PAIRS)
    table = number.reshape(ELEMENTS, ELEMENTS)
    return np.maximum(table, table.T)


def _find_pair_functions(structure: LabelledStructure, kinds: NDArray[np.int64]) -> _Edges:
    """Evaluate Gaussians of the length, times a cosine that ends at the cutoff, on all edges."""
    ends, shift = find_edges(structure.positions, structure.cell, structure.pbc, CUTOFF)
    vectors = edge_vectors(structure.positions, structure.cell, ends, shift)
    length = np.linalg.norm(vectors, axis=1)
    elements = structure.numbers[ends]
    radii = covalent_radii[elements].sum(axis=1)[:, None]
    width = float(CENTERS[1] - CENTERS[0])
    away = (length[:, None] / radii - CENTERS) / width
    gauss = np.exp(-0.5 * away**2)
    slope, bend = -away / (width * radii) * gauss, (away**2 - 1.0) / (width * radii) ** 2 * gauss
    angle = np.pi / CUTOFF * length[:, None]
    fall = 0.5 * (1.0 + np.cos(angle))
    fall_slope = -0.5 * np.pi / CUTOFF * np.sin(angle)
    fall_bend = -0.5 * (np.pi / CUTOFF) ** 2 * np.cos(angle)
    return _Edges(
        ends,
        kinds[elements[:, 0], elements[:, 1]],
        length,
        vectors / length[:, None],
        slope * fall + gauss * fall_slope,
        bend * fall + 2.0 * slope * fall_slope + gauss * fall_bend,
    )


def _force_design(structure: LabelledStructure, edges: _Edges, kinds: int) -> Array:
    """Return the forces of each function of the potential, [3 N, U].

    Args:
        structure: the structure.
        edges: its edges.
        kinds: number of pairs of elements with functions of their own.
    """
    nodes = len(structure.numbers)
    functions = len(CENTERS)
    design = np.zeros((nodes, kinds, functions, 3))
    forces = -edges.slope[:, :, None] * edges.direction[:, None, :]
    np.add.at(design, (edges.ends[:, 1], edges.kind), forces)
    return design.transpose(0, 3, 1, 2).reshape(3 * nodes, kinds * functions)


def _make_hessian(edges: _Edges, numbers: Array, nodes: int) -> Array:
    """Return the second derivatives of the potential by the positions, [3 N, 3 N].

    Args:
        edges: edges of the structure.
        numbers: fitted coefficients, [U].
        nodes: number of nodes, N.
    """
    chosen = numbers.reshape(-1, len(CENTERS))[edges.kind]
    slope = (edges.slope * chosen).sum(axis=1)[:, None, None]
    curvature = (edges.curvature * chosen).sum(axis=1)[:, None, None]
    along = edges.direction[:, :, None] * edges.direction[:, None, :]
    block = curvature * along + slope / edges.length[:, None, None] * (np.eye(3) - along)
    hessian = np.zeros((nodes, nodes, 3, 3))
    sender, receiver = edges.ends.T
    np.add.at(hessian, (receiver, receiver), block)
    np.add.at(hessian, (receiver, sender), -block)
    return hessian.transpose(0, 2, 1, 3).reshape(3 * nodes, 3 * nodes)
