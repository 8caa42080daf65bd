"""Predict a target from the surroundings of single atoms: what a net must beat to know more.

An atom is described by densities of its neighbours: a radial one for each element, and products of
their angular moments, which are sums over pairs of neighbours (Behler 2011, J. Chem. Phys. 134,
074106; with many elements the neighbours are weighted by properties of their elements, as in
Gastegger et al. 2018, J. Chem. Phys. 148, 241709). Ridge regressions on random waves of these
numbers (Rahimi and Recht 2007) and on the numbers themselves predict what ``baselines`` leave: for
values of atoms one for each element, for structures one on the sum or mean over the atoms.

Shapes: G graphs, N nodes, E edges, C channels of elements, B densities, P axes, M waves,
S elements, D features of a row, R rows of a target, T its components.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial
from typing import NamedTuple, Protocol, Self

import numpy as np
from ase.data import covalent_radii
from scipy.sparse import csr_array

from hydragnn_hpo.data import Columns
from hydragnn_hpo.file_records import TargetStats

LONGEST = 5.0
"""Longest cutoff of the densities in angstrom; no longer than the shortest of the members."""

MOST_ATOMS = 30_000
"""Most atoms, in whole structures, that are described for a fit."""

MOST_CHANNELS = 10
"""Most elements with a channel of their own; more share channels of properties of elements."""

SHELLS, ANGULAR_SHELLS, ANGULAR_ORDER = 10, 3, 3
"""Radial functions of the densities and of the angular moments, and largest power of the cosine."""

NEAREST = 0.8
"""Where the first radial function begins, in angstrom."""

MOST_AXES, MOST_WAVES, MOST_BLOCKS = 64, 1024, 512
"""Most principal axes of the densities, most random waves, and most sums of axes by element."""

WIDTH = 2.0
"""Length scale of the waves, in median distances of two atoms."""

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
"""Ridge penalties to choose from on ``val``, relative to the mean square of the features."""

_SAMPLE = 500
"""Atoms in each of the two groups whose distances are measured."""


class ElementModel(Protocol):
    """A prediction from the elements alone, such as ``baselines.CompositionModel``."""

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the predictions for all rows of the target, [R, T]."""


def element_channels(elements: Sequence[int]) -> np.ndarray:
    """Return the weight of a neighbour of each element in each channel, [119, C].

    Args:
        elements: atomic numbers that the training data have.
    """
    if len(elements) <= MOST_CHANNELS:
        own = np.zeros((119, len(elements)))
        own[list(elements), np.arange(len(elements))] = 1.0
        return own
    number, closed = np.arange(119), np.array([0, 2, 10, 18, 36, 54, 86, 118])
    period = np.searchsorted(closed, number)
    before = closed[np.maximum(period - 1, 0)]
    filled = (number - before) / np.maximum(closed[period] - before, 1)
    properties = np.stack([period, filled, covalent_radii[:119]], axis=1)
    known = properties[list(elements)]
    scaled = (properties - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-9)
    return np.concatenate([np.ones((119, 1)), scaled], axis=1)


def describe_atoms(columns: Columns, cutoff: float, channels: np.ndarray) -> np.ndarray:
    """Compute the densities around each atom, which do not change with rotation, [N, B].

    Args:
        columns: graphs with all edges up to the cutoff; longer ones are left out.
        cutoff: where all densities end smoothly, in angstrom.
        channels: as ``element_channels`` returns, [119, C].
    """
    sender, receiver, vectors, lengths = _near_neighbors(columns, cutoff)
    nodes, count = len(columns.numbers), channels.shape[1]
    weights = channels[columns.numbers[sender]]
    edge, channel = np.nonzero(weights)
    place = receiver[edge] * count + channel
    shape = (nodes * count, len(lengths))
    gather = csr_array((weights[edge, channel], (place, edge)), shape=shape)
    parts = [(gather @ _radial_functions(lengths, cutoff, SHELLS)).reshape(nodes, -1)]
    radial = _radial_functions(lengths, cutoff, ANGULAR_SHELLS)[:, :, None]
    directions = vectors / np.maximum(lengths, 1e-9)[:, None]
    first, second = np.triu_indices(count)
    for order in range(1, ANGULAR_ORDER + 1):
        angular = _angular_moments(directions, order)
        summed = gather @ (radial * angular[:, None, :]).reshape(len(lengths), -1)
        moments = summed.reshape(nodes, count, ANGULAR_SHELLS, angular.shape[1])
        products = np.einsum("nckm,ndkm->ncdk", moments, moments, optimize=True)
        parts.append(products[:, first, second].reshape(nodes, -1))
    return np.concatenate(parts, axis=1)


def _near_neighbors(
    columns: Columns, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the edges that are shorter than a cutoff.

    Returns:
        Sender and receiver, [E]; vectors, [E, 3], and lengths, [E], in angstrom.
    """
    graph = np.repeat(np.arange(columns.num_graphs), np.diff(columns.edge_offset))
    sender, receiver = (columns.edges + columns.node_offset[:-1][graph][:, None]).T
    shift = np.einsum("ek,ekx->ex", columns.edge_shift, columns.cell[graph])
    vectors = columns.positions[receiver] + shift - columns.positions[sender]
    lengths = np.linalg.norm(vectors, axis=1)
    near = lengths < cutoff
    return sender[near], receiver[near], vectors[near], lengths[near]


def _radial_functions(lengths: np.ndarray, cutoff: float, count: int) -> np.ndarray:
    """Return Gaussians of the lengths, [E, count], which fall to 0 at the cutoff in angstrom."""
    width = (cutoff - min(NEAREST, cutoff / 2)) / count
    centers = cutoff - width * (np.arange(count) + 0.5)
    envelope = 0.5 * (1.0 + np.cos(np.pi * lengths / cutoff))
    gaussians: np.ndarray = np.exp(-0.5 * ((lengths[:, None] - centers) / width) ** 2)
    return gaussians * envelope[:, None]


def _angular_moments(directions: np.ndarray, order: int) -> np.ndarray:
    """Return products of components, whose dot product is the cosine to the power of ``order``.

    Args:
        directions: unit vectors, [E, 3].
        order: number of factors of a product.
    """
    moments = []
    for axes in combinations_with_replacement(range(3), order):
        ways = factorial(order)
        for axis in range(3):
            ways //= factorial(axes.count(axis))
        moments.append(np.sqrt(ways) * directions[:, list(axes)].prod(axis=1))
    return np.stack(moments, axis=1)


@dataclass(frozen=True)
class LocalBasis:
    """Features of atoms and of structures that were scaled to the training data."""

    cutoff: float
    """Where the densities end, in angstrom."""
    elements: np.ndarray
    """Atomic numbers in the training data, ascending, [S]."""
    mean: np.ndarray
    """Mean of each density, [B]."""
    axes: np.ndarray
    """Principal axes over the spread of each density and the median distance of atoms, [B, P]."""
    frequencies: np.ndarray
    """Frequencies of the waves, [P, M]."""
    phases: np.ndarray
    """Phases of the waves, which differ by element: waves of two elements do not correlate,
    [S, M]."""

    @property
    def channels(self) -> np.ndarray:
        """Weights of elements in the channels, [119, C]."""
        return element_channels(self.elements.tolist())

    def compute_features(self, columns: Columns, pool: str) -> np.ndarray:
        """Compute the features of the rows of a target, [R, D].

        Args:
            columns: graphs with all edges up to the cutoff.
            pool: ``sum`` or ``mean`` over the atoms of a graph, or ``none`` for rows of atoms.
        """
        densities = describe_atoms(columns, self.cutoff, self.channels)
        points = (densities - self.mean) @ self.axes
        kind = np.searchsorted(self.elements, columns.numbers).clip(max=len(self.elements) - 1)
        known = self.elements[kind] == columns.numbers
        scale = np.sqrt(2.0 / max(self.phases.shape[1], 1))
        waves = scale * np.cos(points @ self.frequencies + self.phases[kind]) * known[:, None]
        if pool == "none":
            return np.concatenate([waves, points * known[:, None]], axis=1)
        sizes, atoms = columns.num_nodes(), np.flatnonzero(known)
        graph = np.repeat(np.arange(columns.num_graphs), sizes)[atoms]
        block = max(1, MOST_BLOCKS // len(self.elements))
        kinds = len(self.elements) * columns.num_graphs
        place = graph * len(self.elements) + kind[atoms]
        ones = np.ones(len(atoms))
        by_graph = csr_array((ones, (graph, atoms)), shape=(columns.num_graphs, len(known)))
        by_kind = csr_array((ones, (place, atoms)), shape=(kinds, len(known)))
        blocks = (by_kind @ points[:, :block]).reshape(columns.num_graphs, -1)
        divisor = np.maximum(sizes, 1)[:, None] if pool == "mean" else 1
        features: np.ndarray = np.concatenate([by_graph @ waves, blocks], axis=1) / divisor
        return features


def fit_basis(train: Sequence[Columns], cutoff: float) -> LocalBasis:
    """Fit the scaling of the densities, their axes and the length scale of the waves.

    Args:
        train: graphs of the training split, in pieces.
        cutoff: where the densities end, in angstrom.
    """
    elements = np.unique(np.concatenate([piece.numbers for piece in train])).astype(np.int64)
    channels = element_channels(elements.tolist())
    densities = np.concatenate([describe_atoms(piece, cutoff, channels) for piece in train])
    mean, spread = densities.mean(axis=0), densities.std(axis=0)
    varies = spread > 1e-9 * max(float(spread.max(initial=0.0)), 1e-30)
    inverse = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
    scaled = (densities - mean) * inverse
    _, axes = np.linalg.eigh(scaled.T @ scaled)
    axes = axes[:, ::-1][:, : min(MOST_AXES, len(scaled), int(varies.sum()))]
    random = np.random.default_rng(0)
    chosen = (scaled @ axes)[random.permutation(len(scaled))[: 2 * _SAMPLE]]
    half = len(chosen) // 2
    away = np.linalg.norm(chosen[:half, None] - chosen[None, half : 2 * half], axis=-1)
    distance = float(np.median(away)) if away.size else 0.0
    waves = min(MOST_WAVES, max(16, len(scaled)))
    return LocalBasis(
        cutoff=cutoff,
        elements=elements,
        mean=mean,
        axes=inverse[:, None] * axes / (distance or 1.0),
        frequencies=random.standard_normal((axes.shape[1], waves)) / WIDTH,
        phases=random.uniform(0.0, 2.0 * np.pi, (len(elements), waves)),
    )


class LocalHead(NamedTuple):
    """The regression of one target."""

    pool: str
    """As in ``LocalBasis.compute_features``."""
    weights: np.ndarray
    """Weight of each feature, and a constant last, [S, D + 1, T] for values of atoms, [1, D + 1, T]
    for those of structures."""


@dataclass(frozen=True)
class LocalModels:
    """Predictions from local descriptors, of all targets that have them."""

    basis: LocalBasis
    """Features that the targets share."""
    heads: Mapping[str, LocalHead]
    """By name of the target."""

    def predict(self, name: str, columns: Columns, baseline: ElementModel) -> np.ndarray:
        """Predict all rows of a target, [R, T].

        Args:
            name: name of the target.
            columns: graphs with all edges up to the cutoff of the basis.
            baseline: prediction from the elements alone, which this one corrects.
        """
        return self.predict_heads(columns, {name: baseline})[name]

    def predict_heads(
        self, columns: Columns, baselines: Mapping[str, ElementModel]
    ) -> dict[str, np.ndarray]:
        """Predict all rows of some targets, which share their features.

        Args:
            columns: graphs with all edges up to the cutoff of the basis.
            baselines: predictions from the elements alone, by name of the target.

        Returns:
            By name, [R, T].
        """
        pools = {self.heads[name].pool for name in baselines}
        features = {pool: self.basis.compute_features(columns, pool) for pool in sorted(pools)}
        return {
            name: baseline.predict(columns)
            + self._correct(self.heads[name], columns, features[self.heads[name].pool])
            for name, baseline in baselines.items()
        }

    def _correct(self, head: LocalHead, columns: Columns, features: np.ndarray) -> np.ndarray:
        """Return what a regression adds to the prediction from the elements, [R, T].

        Args:
            head: the regression.
            columns: the graphs.
            features: of the rows, [R, D].
        """
        if head.pool != "none":
            return _apply(features, head.weights[0])
        values = np.zeros((len(features), head.weights.shape[2]))
        for kind, number in enumerate(self.basis.elements.tolist()):
            rows = columns.numbers == number
            values[rows] = _apply(features[rows], head.weights[kind])
        return values

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Return the models as arrays of a file, in single precision but for the cutoff.

        Returns:
            By name: those of ``LocalBasis``, and ``POOL/NAME`` with the weights of each target.
        """
        single = {
            key: getattr(self.basis, key).astype(np.float32)
            for key in ("mean", "axes", "frequencies", "phases")
        }
        weights = {f"{h.pool}/{n}": h.weights.astype(np.float32) for n, h in self.heads.items()}
        cutoff = np.array([self.basis.cutoff])
        return {"cutoff": cutoff, "elements": self.basis.elements, **single, **weights}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the models that the arrays of a file describe.

        Args:
            arrays: as ``as_arrays`` returns; they may come from an untrusted source.

        Raises:
            ValueError: they do not fit each other, or hold numbers that are not finite.
            KeyError: one is missing.
        """
        double = {
            key: np.asarray(values, dtype=np.int64 if key == "elements" else np.float64)
            for key, values in arrays.items()
        }
        fields = ("elements", "mean", "axes", "frequencies", "phases")
        basis = LocalBasis(float(double["cutoff"].item()), *(double.pop(key) for key in fields))
        heads = {}
        for key in sorted(set(double) - {"cutoff"}):
            pool, _, name = key.partition("/")
            heads[name] = LocalHead(pool, double[key])
        models = cls(basis, heads)
        _check_models(models)
        return models


def stack_models(models: Sequence[LocalModels]) -> dict[str, np.ndarray]:
    """Return several models as arrays of one file.

    Returns:
        By name: those of ``LocalModels.as_arrays`` after the number of the model and ``/``.
    """
    each = ((f"{k}/{key}", a) for k, one in enumerate(models) for key, a in one.as_arrays().items())
    return dict(each)


def unstack_models(arrays: Mapping[str, np.ndarray]) -> tuple[LocalModels, ...]:
    """Return the models that the arrays of a file describe, in order.

    Args:
        arrays: as ``stack_models`` returns; they may come from an untrusted source.

    Returns:
        The models by number.

    Raises:
        ValueError: they do not fit each other, or hold numbers that are not finite.
        KeyError: one is missing.
    """
    parts: dict[int, dict[str, np.ndarray]] = {}
    for key, values in arrays.items():
        number, _, rest = key.partition("/")
        parts.setdefault(int(number), {})[rest] = values
    if sorted(parts) != list(range(len(parts))):
        raise ValueError("models of local descriptors are not numbered from 0; get it again.")
    return tuple(LocalModels.from_arrays(parts[number]) for number in range(len(parts)))


def _check_models(models: LocalModels) -> None:
    """Raise ``ValueError`` if arrays from a file do not fit each other, or are not finite."""
    basis, count = models.basis, len(models.basis.elements)
    in_order = count > 0 and (np.diff(basis.elements) > 0).all()
    if not in_order or not 1 <= basis.elements[0] <= basis.elements[-1] <= 118:
        raise ValueError("elements of local descriptors are not in order; get it again.")
    if not 0.0 < basis.cutoff <= LONGEST:
        raise ValueError("the cutoff of local descriptors is out of range; get it again.")
    channels = basis.channels.shape[1]
    pairs = channels * (channels + 1) // 2
    densities = channels * SHELLS + ANGULAR_ORDER * ANGULAR_SHELLS * pairs
    axes, waves = basis.frequencies.shape
    block = min(axes, max(1, MOST_BLOCKS // count))
    wanted = [
        (basis.mean, (densities,)),
        (basis.axes, (densities, axes)),
        (basis.frequencies, (axes, waves)),
        (basis.phases, (count, waves)),
    ]
    for head in models.heads.values():
        node = head.pool == "none"
        features = waves + (axes if node else count * block)
        if head.pool not in ("none", "sum", "mean") or head.weights.ndim != 3:
            raise ValueError("weights of local descriptors have no such shape; get it again.")
        shape = (count if node else 1, features + 1, head.weights.shape[2])
        wanted.append((head.weights, shape))
    for array, shape in wanted:
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError("arrays of local descriptors do not fit; get it again.")


def fit_local_models(
    targets: Mapping[str, TargetStats],
    baselines: Mapping[str, ElementModel],
    *,
    train: Iterable[Columns],
    val: Iterable[Columns],
    cutoff: float,
    refit: bool = False,
) -> LocalModels | None:
    """Fit the regressions of all scalar targets that have a prediction from the elements alone.

    Args:
        targets: the targets by name.
        baselines: the predictions from the elements, by target.
        train: graphs of the training split, in pieces of at most ``MOST_ATOMS`` atoms together.
        val: graphs of the validation split, in pieces; they choose the penalties.
        cutoff: shortest cutoff of the members in angstrom; densities end at most at ``LONGEST``.
        refit: whether ``val``, too, is fitted once it has chosen the penalties.

    Returns:
        None where there is no such target, or no graph.
    """
    names = [name for name in baselines if targets[name]["shape"] == "scalar"]
    if not names or not (splits := ([*train], [*val]))[0]:
        return None
    basis = fit_basis(splits[0], min(cutoff, LONGEST))
    pools = {name: _pool_of(targets[name]) for name in names}
    heads = {}
    for pool in dict.fromkeys(pools.values()):
        features = [[basis.compute_features(piece, pool) for piece in split] for split in splits]
        for name in (name for name in names if pools[name] == pool):
            rows = [
                _gather_rows(name, some, pieces, baselines[name])
                for some, pieces in zip(features, splits, strict=True)
            ]
            kinds = basis.elements.tolist() if pool == "none" else [0]
            of_kinds = ([part.of_kind(kind) for part in rows] for kind in kinds)
            weights = [_fit_ridge(*parts, refit=refit) for parts in of_kinds]
            heads[name] = LocalHead(pool, np.stack(weights))
    return LocalModels(basis, heads)


def _pool_of(target: TargetStats) -> str:
    if target["level"] == "node":
        return "none"
    return "sum" if target.get("energy") == "total" else "mean"


class _Rows(NamedTuple):
    """Labelled rows of a target."""

    features: np.ndarray
    """[R, D]."""
    residual: np.ndarray
    """Labels minus the prediction from the elements alone, [R, T]."""
    kind: np.ndarray
    """Atomic number of each row's atom, 0 where a row is a structure, [R]."""

    def of_kind(self, kind: int) -> tuple[np.ndarray, np.ndarray]:
        """Return features and residuals of one kind.

        Returns:
            [r, D] and [r, T].
        """
        rows = self.kind == kind
        return self.features[rows], self.residual[rows]


def _gather_rows(
    name: str,
    features: Sequence[np.ndarray],
    pieces: Sequence[Columns],
    baseline: ElementModel,
) -> _Rows:
    """Gather the labelled rows of a target in some pieces.

    Args:
        name: name of the target.
        features: of all rows of each piece.
        pieces: the pieces.
        baseline: prediction from the elements alone.
    """
    if not pieces:
        return _Rows(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0))
    rows = []
    for some, piece in zip(features, pieces, strict=True):
        mask, residual = piece.masks[name], piece.targets[name] - baseline.predict(piece)
        rows.append((some[mask], residual[mask], _kinds(piece, name)[mask]))
    return _Rows(*map(np.concatenate, zip(*rows, strict=True)))


def _kinds(columns: Columns, name: str) -> np.ndarray:
    node = columns.levels[name] == "node"
    return columns.numbers if node else np.zeros(columns.num_graphs, dtype=np.int64)


def _apply(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the predictions of weights, of which the last is a constant, [R, T]."""
    values: np.ndarray = features @ weights[:-1] + weights[-1]
    return values


def _fit_ridge(
    train: tuple[np.ndarray, np.ndarray], val: tuple[np.ndarray, np.ndarray], *, refit: bool
) -> np.ndarray:
    """Fit a ridge regression with the penalty that predicts ``val`` best; the largest without any.

    Args:
        train: features, [R, D], and values, [R, T].
        val: likewise.
        refit: whether ``val``, too, is fitted with that penalty.

    Returns:
        Weights, and a constant last, [D + 1, T]; 0 for fewer than two rows.
    """
    features, values = train
    best = np.zeros((features.shape[1] + 1, values.shape[1]))
    if len(features) < 2:
        return best
    smallest, chosen = np.inf, PENALTIES[-1]
    for penalty, weights in _solve_ridge(features, values, PENALTIES[::-1]):
        if not len(val[0]):
            return weights
        error = float(np.abs(_apply(val[0], weights) - val[1]).sum())
        if error < smallest:
            best, smallest, chosen = weights, error, penalty
    if refit:
        features, values = (np.concatenate(parts) for parts in zip(train, val, strict=True))
        [(_, best)] = _solve_ridge(features, values, (chosen,))
    return best


def _solve_ridge(
    features: np.ndarray, values: np.ndarray, penalties: Sequence[float]
) -> Iterator[tuple[float, np.ndarray]]:
    """Solve ridge regressions with several penalties.

    Args:
        features: [R, D].
        values: [R, T].
        penalties: relative to the mean square of the features.

    Yields:
        Each penalty, and the weights with a constant last, [D + 1, T].
    """
    count, width = features.shape
    mean, constant = features.mean(axis=0), values.mean(axis=0)
    centred, rest = features - mean, values - constant
    dual = count < width
    gram = centred @ centred.T if dual else centred.T @ centred
    right = rest if dual else centred.T @ rest
    scale = max(float(np.trace(gram)) / width, 1e-30)
    for penalty in penalties:
        solved = np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), right)
        weights = centred.T @ solved if dual else solved
        yield penalty, np.concatenate([weights, (constant - mean @ weights)[None]])
