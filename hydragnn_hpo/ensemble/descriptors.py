"""Structures and atoms as points in the space of a trunk's features, and their distances.

The features of a structure are the mean over its atoms of the last features of a trunk: of a
member, or of a foundation model. An ensemble file carries a sample of the training structures, and
atoms, in the features of one of them, so that the distance of any structure to the training set is
known without the data set.

Shapes: G graphs, N nodes, M points, D dimensions, F features of a member, P points of a sample.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hydragnn_hpo.data import Columns, GraphSet
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, Member, member_batches, pieces
from hydragnn_hpo.model.layers import pool_mean

GRAPH, NODE = "graph", "node"
"""Levels of features: of a structure, and of an atom."""

POINTS = 1000
"""Maximum number of training structures, or atoms, that distances are measured to.

A random sample ranks distances as the whole set does; a farthest-first cover of as many points
leaves too few where the data are dense (decision 0053)."""

MOST_NODES = 100_000
"""Maximum number of atoms of the training structures whose features are computed."""

_TOGETHER = 4096
"""Number of points whose distances to others are held at once."""


def fit_scaling(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what gives columns the mean 0 and equal variances whose sum is 1.

    Two random points are then about 1.4 (the root of 2) apart.

    Args:
        features: features of M structures, [M, F].

    Returns:
        The value to subtract from each column, and the factor to multiply it by, [F] each; the
        factor of a constant column is 0.
    """
    spread = features.std(axis=0)
    varies = spread > 1e-9 * np.maximum(np.abs(features).max(axis=0, initial=0.0), 1e-30)
    factor = np.zeros(len(spread))
    factor[varies] = 1.0 / (spread[varies] * np.sqrt(varies.sum()))
    return features.mean(axis=0), factor


def standardize(features: np.ndarray) -> np.ndarray:
    """Scale columns as ``fit_scaling`` says.

    Args:
        features: features of M structures, [M, F].

    Returns:
        The scaled columns without constant ones, [M, D], D <= F; one column of 0 if all are
        constant.
    """
    mean, factor = fit_scaling(features)
    varies = factor > 0
    if not varies.any():
        return np.zeros((len(features), 1))
    scaled: np.ndarray = (features[:, varies] - mean[varies]) * factor[varies]
    return scaled


def nearest_distances(
    points: np.ndarray, others: np.ndarray, *, themselves: bool = False
) -> np.ndarray:
    """Return the distance of each point to the nearest of others, in blocks of points.

    Args:
        points: the points, [M, D].
        others: the points that they are compared with, [P, D].
        themselves: whether both are the same points; none is then its own neighbour.

    Returns:
        Distances, [M]; infinite where there is no other point.
    """
    squares = np.square(others).sum(axis=1)
    parts = [np.zeros(0)]
    for first in range(0, len(points), _TOGETHER):
        block = points[first : first + _TOGETHER]
        apart = np.square(block).sum(axis=1)[:, None] + squares - 2.0 * (block @ others.T)
        if themselves:
            apart[np.arange(len(block)), first + np.arange(len(block))] = np.inf
        parts.append(np.sqrt(np.maximum(apart.min(axis=1), 0.0)))
    return np.concatenate(parts)


# -- features ------------------------------------------------------------------------------


@torch.no_grad()
def stream_features(
    members: Iterable[Member],
    graphs: GraphSet,
    indices: np.ndarray,
    device: torch.device,
    levels: Collection[str] = (GRAPH,),
) -> Iterator[tuple[Member, dict[str, np.ndarray]]]:
    """Compute the last features of trunks, batch after batch.

    Features of a structure do not change when it is rotated, translated or repeated as a supercell.

    Args:
        members: nets with their weights, on the device.
        graphs: graphs with edges up to the longest cutoff of the members.
        indices: positions of the graphs wanted, [G].
        device: torch device to compute on.
        levels: levels wanted.

    Yields:
        A member, and the features of a batch by level in fp64: ``graph``, [G, F], and ``node``,
        [N, F].
    """
    for piece in pieces(graphs, indices, EDGES_PER_BATCH):
        for member, batch in member_batches(members, graphs, piece, device):
            scalars = member.model.trunk(batch).scalars
            features = {}
            for level in levels:
                of_level = pool_mean(scalars, batch) if level == GRAPH else scalars
                features[level] = of_level.double().cpu().numpy()
            yield member, features


def mean_over_atoms(values: np.ndarray, columns: Columns) -> np.ndarray:
    """Return the mean of values of atoms, [N, F], over the atoms of each structure, [G, F]."""
    sums: np.ndarray = np.add.reduceat(values, columns.node_offset[:-1])
    return sums / columns.num_nodes()[:, None]


class TrunkBlock(NamedTuple):
    """A foundation model whose features come with the graphs."""

    name: str
    """Its name in settings."""
    width: int
    """Numbers of its last block."""


@dataclass(frozen=True, eq=False)
class FeatureSample:
    """A sample of the training data of one level."""

    mean: np.ndarray
    """Value that is subtracted from each feature, [F]."""
    factor: np.ndarray
    """Factor of each feature after that, see ``fit_scaling``, [F]."""
    points: np.ndarray
    """Scaled points, [P, F], in half precision."""
    spacing: float
    """Median distance of a point to the nearest other one, > 0."""

    def distances(self, features: np.ndarray) -> np.ndarray:
        """Return the distance of features, [M, F], to the nearest point of the sample, [M].

        It is in units of ``spacing``: 1 is usual for data like those of the training set.
        """
        scaled = (features - self.mean) * self.factor
        return nearest_distances(scaled, self.points.astype(np.float64)) / self.spacing


@dataclass(frozen=True, eq=False)
class TrainingFeatures:
    """Samples of the training structures and atoms in the features of one trunk."""

    source: str
    """Trial of the member, or name of the foundation model, whose features they are."""
    levels: Mapping[str, FeatureSample]
    """By level: ``graph``, and ``node`` where a head predicts atoms."""

    def distances(
        self, members: Iterable[Member], graphs: GraphSet, indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Compute the distance of structures, and of their atoms, to the training set.

        Args:
            members: members of the ensemble; only the source is run, if it is one.
            graphs: graphs with edges up to its cutoff, or with features of the foundation model.
            indices: positions of the graphs wanted, [G].

        Returns:
            Distances by level, [G] and [N], see ``FeatureSample.distances``.
        """
        trunk = TrunkBlock(self.source, len(self.levels[GRAPH].mean))
        own = next((member for member in members if member.trial == self.source), trunk)
        parts: dict[str, list[np.ndarray]] = {level: [np.zeros(0)] for level in self.levels}
        for features in _stream(own, graphs, indices, self.levels):
            for level, sample in self.levels.items():
                parts[level].append(sample.distances(features[level]))
        return {level: np.concatenate(some) for level, some in parts.items()}


def _stream(
    source: Member | TrunkBlock, graphs: GraphSet, indices: np.ndarray, levels: Collection[str]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the last features of batches by level in fp64, [G, F] and [N, F].

    Those of a foundation model come with the graphs.
    """
    if isinstance(source, TrunkBlock):
        for piece in pieces(graphs, indices, EDGES_PER_BATCH):
            columns = graphs.take(piece)
            last = columns.features[source.name][:, -source.width :].astype(np.float64)
            yield {GRAPH: mean_over_atoms(last, columns), NODE: last}
        return
    device = device_of_member(source)
    for _, features in stream_features([source], graphs, indices, device, levels):
        yield features


def sample_training_set(
    source: Member | TrunkBlock, graphs: GraphSet, levels: Iterable[str], *, seed: int
) -> TrainingFeatures:
    """Draw structures and atoms of the training split, as points in the features of a trunk.

    At most ``POINTS`` structures are drawn, whatever the size of the training set.

    Args:
        source: a net, on its device, or a foundation model.
        graphs: graphs with edges up to the net's cutoff, or with features of the foundation model.
        levels: levels that get a sample.
        seed: decides what is drawn.
    """
    random = np.random.default_rng(seed)
    drawn = random.permutation(graphs.indices_of("train"))[:POINTS]
    atoms = np.cumsum(graphs.num_nodes()[drawn])
    drawn = drawn[: max(1, int(np.searchsorted(atoms, MOST_NODES, side="right")))]
    parts: dict[str, list[np.ndarray]] = {level: [] for level in levels}
    for features in _stream(source, graphs, np.sort(drawn), parts):
        for level, some in parts.items():
            some.append(features[level])
    samples = {level: _sample(np.concatenate(some), random) for level, some in parts.items()}
    name = source.name if isinstance(source, TrunkBlock) else source.trial
    return TrainingFeatures(name, samples)


def device_of_member(member: Member) -> torch.device:
    """Return the device of a member's weights."""
    return next(member.model.parameters()).device


def _sample(features: np.ndarray, random: np.random.Generator) -> FeatureSample:
    """Scale features, [M, F], and draw at most ``POINTS`` of them."""
    mean, factor = fit_scaling(features)
    drawn = features[np.sort(random.permutation(len(features))[:POINTS])]
    points = ((drawn - mean) * factor).astype(np.float16)
    wide = points.astype(np.float64)
    apart = nearest_distances(wide, wide, themselves=True)
    apart = apart[np.isfinite(apart) & (apart > 0)]
    return FeatureSample(mean, factor, points, float(np.median(apart)) if len(apart) else 1.0)


# -- as arrays of an ensemble file ---------------------------------------------------------

PARTS = ("mean", "factor", "points", "spacing")
"""Names of the arrays of a level."""


def features_to_arrays(features: TrainingFeatures) -> dict[str, np.ndarray]:
    """Return training features as named arrays for an ensemble file.

    Returns:
        Arrays by ``SOURCE/LEVEL/PART``, see ``PARTS``.
    """
    arrays: dict[str, np.ndarray] = {}
    for level, sample in features.levels.items():
        values = (sample.mean, sample.factor, sample.points, np.array([sample.spacing]))
        arrays |= {
            f"{features.source}/{level}/{part}": np.ascontiguousarray(value)
            for part, value in zip(PARTS, values, strict=True)
        }
    return arrays


def features_from_arrays(
    arrays: Mapping[str, np.ndarray], widths: Mapping[str, int]
) -> TrainingFeatures:
    """Read named arrays and check all of them.

    Args:
        arrays: as ``features_to_arrays`` returns them, of untrusted origin.
        widths: number of features of each member and foundation model, by its name.

    Raises:
        ValueError: arrays are missing, too many, of a wrong shape, or not finite.
    """
    source = min(arrays, default="").partition("/")[0]
    levels = [level for level in (GRAPH, NODE) if f"{source}/{level}/mean" in arrays]
    if source not in widths or GRAPH not in levels:
        raise ValueError("it holds no features of structures of a member or foundation model")
    if set(arrays) != {f"{source}/{level}/{part}" for level in levels for part in PARTS}:
        raise ValueError("arrays are missing or unknown")
    samples = {}
    for level in levels:
        mean, factor, points, spacing = (arrays[f"{source}/{level}/{part}"] for part in PARTS)
        width = (widths[source],)
        fits = mean.shape == factor.shape == points.shape[1:] == width and spacing.shape == (1,)
        every = (mean, factor, points, spacing)
        sound = all(a.dtype.kind == "f" and np.isfinite(a).all() for a in every)
        if not (fits and sound and 1 <= len(points) <= POINTS and spacing[0] > 0):
            raise ValueError(f"'{source}/{level}' has a wrong shape or infinite numbers")
        samples[level] = FeatureSample(mean, factor, points, float(spacing[0]))
    return TrainingFeatures(source, samples)
