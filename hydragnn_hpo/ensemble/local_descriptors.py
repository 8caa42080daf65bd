"""Predict a target from the surroundings of single atoms: what a net must beat to know more.

The densities of the neighbours of an atom (``neighbor_densities``) that do not change with rotation
and random waves of them (Rahimi and Recht 2007) are the features of ridge regressions, which
predict what ``baselines`` leave: for values of atoms one for each element, for structures one on
the sum or mean over the atoms. Classes have a logistic regression on them. Numbers of structures
leave ``baselines`` out where these, which fit few labels too closely, predict other rows worse.

Where graphs come with features of a foundation model, these take the place of the densities, and a
kernel ridge regression that of the sums of waves: structures are compared by the mean and the
standard deviation of their atoms' features (Matern kernel, 5/2). It is a ridge regression on the
similarities to landmarks, training structures, which are whitened (Nystroem; Williams and Seeger
2000): while all are landmarks, the two are the same. Extensive values are so per atom.

Vectors are linear in the directions of the neighbours, with weights for each pair of elements and
each radial function. Tensors are the unit tensor times what predicts a number, plus a part without
trace that is linear in products of two components of these directions; the antisymmetric part of a
tensor of an atom is left 0, as no sum over single neighbours has one. Molecules also have charges
times positions from their centre, or products of two of their components; the charges are linear in
the waves, and as positions are from the centre, their mean does not count in a dipole.

Shapes: G graphs, N nodes, C channels of elements, B densities, P axes, M waves, S elements,
D features of a row, R rows of a target, T its components, W those of its part that turn together, L
landmarks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple, Protocol, Self, cast, get_args

import numpy as np
from ase.data import atomic_masses
from scipy.linalg import solve_triangular
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import softmax

from hydragnn_hpo.config import TRUNKS, is_extensive, reads_positions
from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.neighbor_densities import (
    ANGULAR_ORDER,
    ANGULAR_SHELLS,
    SHELLS,
    TRACELESS,
    describe_atoms,
    describe_directions,
    element_channels,
)
from hydragnn_hpo.ensemble.regressions import Fit, Rows, apply_weights, fit_ridge, fit_softmax
from hydragnn_hpo.file_records import TargetStats
from hydragnn_hpo.uncertainty import as_probabilities, clip_to_bounds

LONGEST = 5.0
"""Longest cutoff of the densities in angstrom; no longer than the shortest of the members."""

MOST_ATOMS = 30_000
"""Most atoms, in whole structures, that are described for a fit."""

MOST_AXES, MOST_WAVES, MOST_BLOCKS = 64, 1024, 512
"""Most principal axes of the densities, most random waves, and most sums of axes by element."""

WIDTH = 2.0
"""Length scale of the waves and of the kernel, in median distances of two atoms or landmarks."""

FEATURE_AXES, MOST_LANDMARKS = 128, 1024
"""Most principal axes of the features of a foundation model, and most landmarks."""

_JITTER = 1e-8
"""Added to the similarity of each landmark with itself, for each landmark: some are twins."""

_SAMPLE = 500
"""Atoms in each of the two groups whose distances are measured."""

Form = Literal["value", "plain", "class", "vector", "unit", "traceless"]
"""What a regression predicts: numbers, those of structures without a prediction from the elements,
logarithms of probabilities, a vector, or a multiple of the unit tensor and the rest of a symmetric
tensor, which add up."""

Pool = Literal["none", "sum", "mean", "volume"]
"""How atoms add up to a structure: not at all, or by their sum, mean, or sum over the volume."""

FORMS: Mapping[str, tuple[Form, ...]] = {
    "scalar": ("value",),
    "spectrum": ("value",),
    "class": ("class",),
    "vector": ("vector",),
    "tensor": ("traceless", "unit"),
}
"""The parts of a target by its shape, in alphabetical order."""

BASES: Mapping[Form, np.ndarray] = {"unit": np.eye(3).reshape(1, 9), "traceless": TRACELESS}
"""Orthogonal tensors that a part predicts the multiples of, [W, 9]."""

Kind = Literal["invariant", "vector", "traceless"]
"""Kind of features: whether and how they turn with the structure."""


class ElementModel(Protocol):
    """A prediction without the surroundings of atoms, such as ``baselines.CompositionModel``."""

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the predictions for all rows of the target, [R, T]."""


@dataclass(frozen=True)
class ChargeMoment:
    """The dipole of a total charge at the centre of geometry about the centre of mass."""

    attribute: str
    """Attribute with the total charge in e."""

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the dipole of each structure in e angstrom, [G, 3]."""
        masses = atomic_masses[columns.numbers][:, None]
        total = np.maximum(_sum_atoms(columns, masses), 1e-6)
        shift = _mean_positions(columns) - _sum_atoms(columns, masses * columns.positions) / total
        moments: np.ndarray = columns.attributes[self.attribute][:, None] * shift
        return moments


def describe_basis(trunk: str | None) -> str:
    """Return what regressions describe atoms by, as a phrase.

    Args:
        trunk: foundation model whose features they read, if there is one.
    """
    if not trunk:
        return "local descriptors"
    return f"features of {TRUNKS[trunk].title if trunk in TRUNKS else trunk}"


def find_start(
    baseline: ElementModel | None, origin: str | None, charge: str | None
) -> ElementModel | None:
    """Return what a regression corrects: the prediction from the elements, or that of a charge.

    Args:
        baseline: prediction from the elements alone, if there is one.
        origin: ``origin`` of the target.
        charge: attribute with the total charge, of dipoles of ions.
    """
    return ChargeMoment(charge) if charge is not None and origin == "mass" else baseline


def predict_simply(
    name: str,
    target: TargetStats,
    columns: Columns,
    baseline: ElementModel | None,
    local: "LocalModels | None",
) -> dict[str, np.ndarray]:
    """Predict a target from the elements alone and from local descriptors, within its bounds.

    Args:
        name: name of the target.
        target: its bounds, origin and charge.
        columns: graphs with all edges up to the cutoff of the descriptors.
        baseline: prediction from the elements, if the target has one.
        local: regressions on local descriptors, if there are any.

    Returns:
        Values of all rows, [R, T], as ``elements`` and ``descriptor``, as far as there are.
    """
    values = {} if baseline is None else {"elements": baseline.predict(columns)}
    if local is not None and name in local.heads:
        start = find_start(baseline, target.get("origin"), target.get("charge"))
        values["descriptor"] = local.predict(name, columns, start)
    bounds = target.get("bounds")
    return {key: clip_to_bounds(some, bounds) for key, some in values.items()}


def _sum_atoms(
    columns: Columns, values: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return sums over the atoms of each structure, [G, ...].

    Args:
        columns: the structures.
        values: values of the atoms, [N, ...].
        weights: weights of each atom in several sums, [N, C]; many are 0. None for one sum.

    Returns:
        With weights [G, C, ...].
    """
    weights = np.ones((len(values), 1)) if (alone := weights is None) else weights
    atoms, place = np.nonzero(weights)
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())
    graphs = columns.num_graphs
    count = weights.shape[1]
    where = (graph[atoms] * count + place, atoms)
    gather = csr_array((weights[atoms, place], where), shape=(graphs * count, len(values)))
    sums: np.ndarray = gather @ values.reshape(len(values), -1)
    return sums.reshape(graphs, *(() if alone else (count,)), *values.shape[1:])


def _mean_positions(columns: Columns) -> np.ndarray:
    """Return the mean position of the atoms of each structure in angstrom, [G, 3]."""
    means: np.ndarray = _sum_atoms(columns, columns.positions) / _divisor(columns, "mean")
    return means


def _divisor(columns: Columns, pool: Pool) -> np.ndarray:
    """Return what the sums over the atoms of each structure are divided by, [G, 1]."""
    if pool == "mean":
        return np.maximum(columns.num_nodes(), 1)[:, None].astype(np.float64)
    if pool == "volume":
        volumes = np.abs(np.linalg.det(columns.cell))
        return np.where(volumes > 0.0, volumes, np.inf)[:, None]
    return np.ones((columns.num_graphs, 1))


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
    trunk: str = ""
    """Foundation model whose features take the place of the densities; empty for none."""
    landmarks: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """Structures that others are compared with, as ``_summarize`` returns them, [L, 2 P]; empty
    without a foundation model."""

    @property
    def channels(self) -> np.ndarray:
        """Weights of elements in the channels, [119, C]."""
        return element_channels(self.elements.tolist())

    def compute_features(
        self, columns: Columns, kind: Kind, pool: Pool, compared: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute the features of the rows of a target.

        Args:
            columns: graphs with all edges up to the cutoff.
            kind: whether and how they turn.
            pool: how atoms add up; sums of what turns also have charges times positions.
            compared: what ``compare`` returns, where it is known.

        Returns:
            [R, D]; for what turns with the structure, [R, W, D].
        """
        if kind == "invariant":
            return self._invariants(columns, pool, compared)
        order: Literal[1, 2] = 1 if kind == "vector" else 2
        arrows = describe_directions(columns, self.cutoff, self.channels, order)
        if pool == "none":
            return arrows
        by_channel = _sum_atoms(columns, arrows, self.channels[columns.numbers]).swapaxes(1, 2)
        pooled = by_channel.reshape(columns.num_graphs, arrows.shape[1], -1)
        if pool == "sum":
            pooled = np.concatenate([pooled, self._moments(columns, order)], axis=2)
        features: np.ndarray = pooled / _divisor(columns, pool)[:, :, None]
        return features

    def find_kinds(self, columns: Columns, pool: Pool) -> np.ndarray:
        """Return the place in ``elements`` of each atom, -1 for another element, [N]; 0 for graphs.

        Args:
            columns: the graphs.
            pool: ``none`` for rows of atoms.
        """
        if pool != "none":
            return np.zeros(columns.num_graphs, dtype=np.int64)
        kind = np.searchsorted(self.elements, columns.numbers).clip(max=len(self.elements) - 1)
        return np.where(self.elements[kind] == columns.numbers, kind, -1)

    def _moments(self, columns: Columns, order: Literal[1, 2]) -> np.ndarray:
        """Return sums of waves and channels times positions from the centre, or their products.

        Args:
            columns: molecules.
            order: 1 for positions, 2 for products of two components without their trace.

        Returns:
            [G, 3 or 5, M + C].
        """
        waves, *_ = self._waves(columns)
        charges = np.concatenate([waves, self.channels[columns.numbers]], axis=1)
        arms = columns.positions - np.repeat(_mean_positions(columns), columns.num_nodes(), axis=0)
        if order == 2:
            arms = (arms[:, :, None] * arms[:, None, :]).reshape(-1, 9) @ TRACELESS.T
        return np.stack([_sum_atoms(columns, charges * arm[:, None]) for arm in arms.T], axis=1)

    def _waves(self, columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the waves of each atom; those of unknown elements are 0.

        Returns:
            Waves, [N, M]; densities on the axes, [N, P]; place of each element in ``elements``, or
            -1 for another, [N].
        """
        points = self._points(columns)
        kind = self.find_kinds(columns, "none")
        known = (kind >= 0)[:, None]
        scale = np.sqrt(2.0 / max(self.phases.shape[1], 1))
        waves = scale * np.cos(points @ self.frequencies + self.phases[kind]) * known
        return waves, points * known, kind

    def _invariants(self, columns: Columns, pool: Pool, compared: np.ndarray | None) -> np.ndarray:
        """Return waves, and densities on the axes: sums over a structure by element, [R, D]."""
        if self.trunk and pool != "none":
            compared = self.compare(columns) if compared is None else compared
            scaled: np.ndarray = compared * (_divisor(columns, "mean") / _divisor(columns, pool))
            return scaled
        waves, points, kind = self._waves(columns)
        if pool == "none":
            return np.concatenate([waves, points], axis=1)
        block = max(1, MOST_BLOCKS // len(self.elements))
        own = (kind[:, None] == np.arange(len(self.elements))).astype(np.float64)
        blocks = _sum_atoms(columns, points[:, :block], own).reshape(columns.num_graphs, -1)
        pooled = np.concatenate([_sum_atoms(columns, waves), blocks], axis=1)
        features: np.ndarray = pooled / _divisor(columns, pool)
        return features

    def _points(self, columns: Columns) -> np.ndarray:
        """Return the densities, or features of a foundation model, on the axes, [N, P]."""
        densities = _describe(columns, self.trunk, self.cutoff, self.channels)
        points: np.ndarray = (densities - self.mean) @ self.axes
        return points

    def _summarize(self, columns: Columns) -> np.ndarray:
        """Return mean and standard deviation over each structure's atoms, on the axes, [G, 2 P]."""
        points = self._points(columns)
        divisor = _divisor(columns, "mean")
        mean = _sum_atoms(columns, points) / divisor
        away = points - np.repeat(mean, columns.num_nodes(), axis=0)
        spread = np.sqrt(_sum_atoms(columns, away**2) / divisor)
        return np.concatenate([mean, spread], axis=1)

    @cached_property
    def _length(self) -> float:
        """Length scale of the kernel."""
        away = cdist(self.landmarks[:_SAMPLE], self.landmarks[:_SAMPLE])
        return WIDTH * (float(np.median(away)) or 1.0)

    @cached_property
    def whitening(self) -> np.ndarray:
        """Cholesky factor of the landmarks' similarities with each other, [L, L]."""
        count = len(self.landmarks)
        similar = self._similarities(self.landmarks) + _JITTER * count * np.eye(count)
        factor: np.ndarray = np.linalg.cholesky(similar)
        return factor

    def _similarities(self, summaries: np.ndarray) -> np.ndarray:
        """Return 1 and the Matern kernel (5/2) of structures and landmarks, [G, L]."""
        # from products, which is quicker than ``cdist``: the kernel is flat where rounding matters
        squares = [np.square(some).sum(axis=1) for some in (summaries, self.landmarks)]
        apart = squares[0][:, None] + squares[1] - 2.0 * (summaries @ self.landmarks.T)
        away = np.sqrt(5.0 * np.maximum(apart, 0.0)) / self._length
        kernel: np.ndarray = 1.0 + (1.0 + away + away**2 / 3.0) * np.exp(-away)
        return kernel

    def compare(self, columns: Columns) -> np.ndarray:
        """Return the similarities to the landmarks, whitened, [G, L]; for a foundation model."""
        similar = self._similarities(self._summarize(columns))
        compared: np.ndarray = solve_triangular(self.whitening, similar.T, lower=True).T
        return compared


def _describe(columns: Columns, trunk: str, cutoff: float, channels: np.ndarray) -> np.ndarray:
    """Return the densities of each atom, or its features of a foundation model, [N, B].

    Args:
        columns: the graphs.
        trunk: the model; empty for densities.
        cutoff: where the densities end, in angstrom.
        channels: weights of elements in them, [119, C].
    """
    if trunk:
        return columns.features[trunk].astype(np.float64)
    return describe_atoms(columns, cutoff, channels)


def fit_basis(
    train: Sequence[Columns], cutoff: float, others: Sequence[Columns], trunk: str = ""
) -> LocalBasis:
    """Fit the scaling of the densities, their axes, the length scale of the waves, and landmarks.

    Args:
        train: graphs of the training split, in pieces.
        cutoff: where the densities end, in angstrom.
        others: further graphs that are fitted in the end, which may be landmarks.
        trunk: foundation model whose features take the place of the densities; empty for none.
    """
    elements = np.unique(np.concatenate([piece.numbers for piece in train])).astype(np.int64)
    channels = element_channels(elements.tolist())
    densities = np.concatenate([_describe(piece, trunk, cutoff, channels) for piece in train])
    mean = densities.mean(axis=0)
    spread = densities.std(axis=0)
    varies = spread > 1e-9 * max(float(spread.max(initial=0.0)), 1e-30)
    inverse = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
    scaled = (densities - mean) * inverse
    _, axes = np.linalg.eigh(scaled.T @ scaled)
    most = FEATURE_AXES if trunk else MOST_AXES
    axes = axes[:, ::-1][:, : min(most, len(scaled), int(varies.sum()))]
    random = np.random.default_rng(0)
    chosen = (scaled @ axes)[random.permutation(len(scaled))[: 2 * _SAMPLE]]
    half = len(chosen) // 2
    away = np.linalg.norm(chosen[:half, None] - chosen[None, half : 2 * half], axis=-1)
    distance = float(np.median(away)) if away.size else 0.0
    waves = min(MOST_WAVES, max(16, len(scaled)))
    basis = LocalBasis(
        cutoff=cutoff,
        elements=elements,
        mean=mean,
        axes=inverse[:, None] * axes / (distance or 1.0),
        frequencies=random.standard_normal((axes.shape[1], waves)) / WIDTH,
        phases=random.uniform(0.0, 2.0 * np.pi, (len(elements), waves)),
        trunk=trunk,
    )
    if not trunk:
        return basis
    summaries = np.concatenate([basis._summarize(piece) for piece in (*train, *others)])
    chosen = random.permutation(len(summaries))[:MOST_LANDMARKS]
    return replace(basis, landmarks=summaries[chosen])


class LocalPart(NamedTuple):
    """The regression of a target, or of one of the parts that add up to a tensor."""

    form: Form
    """What it predicts."""
    pool: Pool
    """As in ``LocalBasis.compute_features``."""
    weights: np.ndarray
    """Weight of each feature, and a constant last, [S, D + 1, T] for values of atoms, [1, D + 1, T]
    for those of structures; without a constant, [S or 1, D, 1], for what turns with them."""

    @property
    def kind(self) -> Kind:
        """Kind of its features."""
        return _kind_of(self.form)

    @property
    def width(self) -> int:
        """Number of components of the target."""
        if self.form in BASES:
            return 9
        return 3 if self.form == "vector" else self.weights.shape[2]

    def predict(self, rows: Rows, kinds: np.ndarray) -> np.ndarray:
        """Predict the components of the target, [R, T].

        Args:
            rows: features, and what the regression adds to.
            kinds: as ``LocalBasis.find_kinds`` returns them, [R].
        """
        values = rows.start.copy()
        for kind, weights in enumerate(self.weights):
            own = kinds == kind
            values[own] += apply_weights(rows.features[own], weights)
        if self.form == "class":
            values = softmax(values, axis=1)
        return values @ BASES[self.form] if self.form in BASES else values


def _kind_of(form: Form) -> Kind:
    return form if form in ("vector", "traceless") else "invariant"


def _project(values: np.ndarray, form: Form) -> np.ndarray:
    """Return the multiples of the tensors of a part, [R, W], in values, [R, T], or these values."""
    if form not in BASES:
        return values
    multiples: np.ndarray = values @ (BASES[form] / np.square(BASES[form]).sum(axis=1)[:, None]).T
    return multiples


def _start_part(
    columns: Columns, start: ElementModel | None, form: Form, shape: tuple[int, int]
) -> np.ndarray:
    """Return what a regression adds to, [R, W], of a class logarithms of probabilities.

    Elements have no directions: a part without trace begins with 0, and so does a plain one.

    Args:
        columns: the graphs.
        start: prediction of all components of the target, if there is one.
        form: what the regression predicts.
        shape: rows and components of the target.
    """
    alone = start is None or form in ("plain", "traceless")
    values = np.zeros(shape) if start is None or alone else start.predict(columns)
    return np.log(as_probabilities(values)) if form == "class" else _project(values, form)


@dataclass(frozen=True)
class LocalModels:
    """Predictions from local descriptors, of all targets that have them."""

    basis: LocalBasis
    """Features that the targets share."""
    heads: Mapping[str, tuple[LocalPart, ...]]
    """By name of the target: its parts, which add up."""

    def predict(self, name: str, columns: Columns, start: ElementModel | None) -> np.ndarray:
        """Predict all rows of a target, [R, T]; of a class its probabilities.

        Args:
            name: name of the target.
            columns: graphs with all edges up to the cutoff of the basis.
            start: what the regression corrects, as ``find_start`` returns it.
        """
        return self.predict_heads(columns, {name: start})[name]

    def find_trunk(self, name: str) -> str | None:
        """Return the foundation model whose features a target's regression reads, if it does."""
        reads = (part.kind == "invariant" or part.pool == "sum" for part in self.heads[name])
        return self.basis.trunk or None if any(reads) else None

    def predict_heads(
        self, columns: Columns, starts: Mapping[str, ElementModel | None]
    ) -> dict[str, np.ndarray]:
        """Predict all rows of some targets, which share their features.

        Args:
            columns: graphs with all edges up to the cutoff of the basis.
            starts: what the regressions correct, by name of the target.

        Returns:
            By name, [R, T].
        """
        keys = {(part.kind, part.pool) for name in starts for part in self.heads[name]}
        pooled = [key for key in keys if key[0] == "invariant" and key[1] != "none"]
        compared = self.basis.compare(columns) if self.basis.trunk and pooled else None
        features = {
            key: self.basis.compute_features(columns, *key, compared) for key in sorted(keys)
        }
        predictions = {}
        for name, start in starts.items():
            parts = []
            for part in self.heads[name]:
                some = features[part.kind, part.pool]
                begin = _start_part(columns, start, part.form, (len(some), part.width))
                kinds = self.basis.find_kinds(columns, part.pool)
                parts.append(part.predict(Rows(some, begin, begin), kinds))
            predictions[name] = sum(parts[1:], parts[0])
        return predictions

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Return the models as arrays of a file, in single precision but for the cutoff.

        Returns:
            By name: those of ``LocalBasis``, its landmarks as ``landmarks.TRUNK``, and the weights
            of each target as ``POOL/NAME``, or ``POOL.FORM/NAME`` where the form is another one
            than ``value``.
        """
        keys = ("mean", "axes", "frequencies", "phases")
        landmarks = {_LANDMARKS + self.basis.trunk: self.basis.landmarks}
        double = {key: getattr(self.basis, key) for key in keys} | {
            f"{pool}{'' if form == 'value' else f'.{form}'}/{name}": weights
            for name, parts in self.heads.items()
            for form, pool, weights in parts
        }
        double |= landmarks if self.basis.trunk else {}
        # safetensors writes the bytes of arrays in column order as if they were in row order
        single = {key: values.astype(np.float32, order="C") for key, values in double.items()}
        return {"cutoff": np.array([self.basis.cutoff]), "elements": self.basis.elements, **single}

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
        basis = LocalBasis(
            cutoff=float(double.pop("cutoff").item()),
            elements=double.pop("elements"),
            mean=double.pop("mean"),
            axes=double.pop("axes"),
            frequencies=double.pop("frequencies"),
            phases=double.pop("phases"),
        )
        for key in [key for key in double if key.startswith(_LANDMARKS)]:
            trunk = key.removeprefix(_LANDMARKS)
            basis = replace(basis, trunk=trunk, landmarks=double.pop(key))
        heads: dict[str, tuple[LocalPart, ...]] = {}
        for key in sorted(double):
            where, _, name = key.partition("/")
            pool, _, form = where.partition(".")
            if pool not in get_args(Pool) or (form or "value") not in get_args(Form):
                raise ValueError("parts of local descriptors are of no such kind; get it again.")
            part = LocalPart(cast("Form", form or "value"), cast("Pool", pool), double[key])
            heads[name] = (*heads.get(name, ()), part)
        models = cls(basis, heads)
        _check_models(models)
        return models


_LANDMARKS = "landmarks."
"""Begin of the name of the array of landmarks; the foundation model follows."""


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
    basis = models.basis
    count = len(models.basis.elements)
    in_order = count > 0 and (np.diff(basis.elements) > 0).all()
    if not in_order or not 1 <= basis.elements[0] <= basis.elements[-1] <= 118:
        raise ValueError("elements of local descriptors are not in order; get it again.")
    if not 0.0 < basis.cutoff <= LONGEST:
        raise ValueError("the cutoff of local descriptors is out of range; get it again.")
    if basis.landmarks.ndim != 2 or len(basis.landmarks) > MOST_LANDMARKS:
        raise ValueError("landmarks are no structures, or too many; get it again.")
    densities = _count_densities(basis)
    axes, waves = basis.frequencies.shape
    wanted = [
        (basis.landmarks, (len(basis.landmarks), 2 * axes if basis.trunk else 0)),
        (basis.mean, (densities,)),
        (basis.axes, (densities, axes)),
        (basis.frequencies, (axes, waves)),
        (basis.phases, (count, waves)),
    ]
    for parts in models.heads.values():
        if forms_of(parts) not in FORMS.values():
            raise ValueError("parts of local descriptors do not add up; get it again.")
        if len({part.pool for part in parts}) > 1:
            raise ValueError("parts of local descriptors are of other atoms; get it again.")
        wanted += [(part.weights, _shape_of(part, basis)) for part in parts]
    for array, shape in wanted:
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError("arrays of local descriptors do not fit; get it again.")
    if basis.trunk and not np.isfinite(basis.whitening).all():
        raise ValueError("landmarks are too far from each other; get it again.")


def forms_of(parts: Sequence[LocalPart]) -> tuple[Form, ...]:
    """Return the forms of a target's parts.

    Returns:
        As ``FORMS`` has them for a shape: a plain part is one of values.
    """
    return tuple("value" if part.form == "plain" else part.form for part in parts)


def _count_densities(basis: LocalBasis) -> int:
    """Return the number of densities, or of features of its foundation model, B."""
    if basis.trunk in TRUNKS:
        return TRUNKS[basis.trunk].count
    if basis.trunk:  # of a user's: what reads an ensemble compares it with the model there
        return basis.mean.size
    channels = basis.channels.shape[1]
    pairs = channels * (channels + 1) // 2
    count: int = channels * SHELLS + ANGULAR_ORDER * ANGULAR_SHELLS * pairs
    return count


def _shape_of(part: LocalPart, basis: LocalBasis) -> tuple[int, ...]:
    """Return the shape that the weights of a regression must have."""
    node = part.pool == "none"
    (count, waves) = basis.phases.shape
    channels, axes = basis.channels.shape[1], basis.frequencies.shape[0]
    if part.kind == "invariant":
        block = count * min(axes, max(1, MOST_BLOCKS // count))
        width = 1 if part.form == "unit" else part.weights.shape[-1]
        pooled = len(basis.landmarks) if basis.trunk else waves + block
        return (count if node else 1, (waves + axes if node else pooled) + 1, width)
    features = channels * SHELLS * (1 if node else channels)
    charges = waves + channels if part.pool == "sum" else 0
    return (count if node else 1, features + charges, 1)


def fit_local_models(
    targets: Mapping[str, TargetStats],
    baselines: Mapping[str, ElementModel],
    *,
    train: Iterable[Columns],
    val: Iterable[Columns],
    cutoff: float,
    refit: bool = False,
    trunk: str = "",
) -> LocalModels | None:
    """Fit the regressions of all targets that have labels, or return None where none has.

    Args:
        targets: the targets by name.
        baselines: the predictions from the elements, by target, where it has one.
        train: graphs of the training split, in pieces of at most ``MOST_ATOMS`` atoms together.
        val: graphs of the validation split, in pieces; they choose the penalties.
        cutoff: shortest cutoff of the members in angstrom; densities end at most at ``LONGEST``.
        refit: whether ``val``, too, is fitted once it has chosen the penalties.
        trunk: foundation model whose features take the place of the densities; empty for none.
    """
    splits = [*train], [*val]
    names = [name for name in targets if any(piece.masks[name].any() for piece in splits[0])]
    if not names:
        return None
    basis = fit_basis(splits[0], min(cutoff, LONGEST), splits[1] if refit else (), trunk)
    features = _Features()
    heads: dict[str, tuple[LocalPart, ...]] = {}
    for name in names:
        target = targets[name]
        pool = _pool_of(targets[name])
        parts = list[LocalPart]()
        start = find_start(baselines.get(name), target.get("origin"), target.get("charge"))
        for form in FORMS[target["shape"]]:
            if (key := (_kind_of(form), pool)) not in features:
                features[key] = [[basis.compute_features(p, *key) for p in s] for s in splits]
            tried: list[tuple[float, LocalPart]] = []
            for one in ("value", "plain") if form == "value" and pool != "none" else (form,):
                rows = [
                    _gather_rows(basis, (name, one, pool), some, pieces, start)
                    for some, pieces in zip(features[key], splits, strict=True)
                ]
                count = len(basis.elements) if pool == "none" else 1
                free = not is_extensive(target)
                weights, error = _fit(one, rows, count, refit=refit, constant=free)
                tried.append((error, LocalPart(one, pool, weights)))
            parts.append(min(tried, key=lambda fit: fit[0])[1])
        heads[name] = tuple(parts)
    return LocalModels(basis, heads)


_Features = dict[tuple[Kind, Pool], list[list[np.ndarray]]]
"""Features of all rows of each piece of both splits."""


def _fit(
    form: Form,
    rows: Sequence[tuple[Rows, np.ndarray]],
    count: int,
    *,
    refit: bool,
    constant: bool,
) -> Fit:
    """Fit one regression for each kind of rows.

    Args:
        form: what is predicted.
        rows: rows and their kinds, of the training split and of what chooses the penalty.
        count: number of kinds.
        refit: whether the latter are fitted, too.
        constant: whether numbers have a constant beside their features.

    Returns:
        The weights of all kinds, as in ``LocalPart``, and the sum of their errors.
    """
    fit = fit_softmax if form == "class" else partial(fit_ridge, constant=constant)
    of_kinds = ([some.take(kinds == kind) for some, kinds in rows] for kind in range(count))
    fits = [fit(*parts, refit=refit) for parts in of_kinds]
    return Fit(np.stack([one.weights for one in fits]), sum(one.error for one in fits))


def _pool_of(target: TargetStats) -> Pool:
    """Return how the atoms of a target add up."""
    if target["level"] == "node":
        return "none"
    if target.get("derived_from"):  # stress
        return "volume"
    if is_extensive(target) or reads_positions(target):
        return "sum"
    return "mean"


def _gather_rows(
    basis: LocalBasis,
    part: tuple[str, Form, Pool],
    features: Sequence[np.ndarray],
    pieces: Sequence[Columns],
    start: ElementModel | None,
) -> tuple[Rows, np.ndarray]:
    """Gather the labelled rows of a target in some pieces.

    Args:
        basis: features of atoms.
        part: name of the target, form and pool.
        features: of all rows of each piece.
        pieces: the pieces.
        start: what the regression corrects.

    Returns:
        The rows, and the place of each in the weights, [R].
    """
    if not pieces:
        return Rows(*(np.zeros((0, 0)),) * 3), np.zeros(0)
    name, form, pool = part
    rows, kinds = [], []
    for some, piece in zip(features, pieces, strict=True):
        mask, labels = piece.masks[name], piece.targets[name]
        begin = _start_part(piece, start, form, labels.shape)
        rows.append(Rows(some, _project(labels, form), begin).take(mask))
        kinds.append(basis.find_kinds(piece, pool)[mask])
    return Rows(*map(np.concatenate, zip(*rows, strict=True))), np.concatenate(kinds)
