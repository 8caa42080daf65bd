"""Describe the surroundings of atoms by densities of their neighbours.

Some do not change when the structure turns: a radial density for each element, and products of
angular moments, which are sums over pairs of neighbours (Behler 2011, J. Chem. Phys. 134, 074106;
with many elements the neighbours are weighted by properties of their elements, as in Gastegger et
al. 2018, J. Chem. Phys. 148, 241709). Others turn with it: sums over the neighbours of their
directions, and of the products of two components of these.

Shapes: G graphs, N nodes, E edges, C channels of elements, K radial functions, B densities.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import factorial
from typing import Literal

import numpy as np
from ase.data import covalent_radii
from scipy.sparse import csr_array

from hydragnn_hpo.data import Columns

MOST_CHANNELS = 10
"""Most elements with a channel of their own; more share channels of properties of elements."""

SHELLS, ANGULAR_SHELLS, ANGULAR_ORDER = 10, 3, 3
"""Radial functions of the densities and of the angular moments, and largest power of the cosine."""

NEAREST = 0.8
"""Where the first radial function begins, in angstrom."""

TRACELESS = np.array(
    [
        [0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 1, 0],
        [1, 0, 0, 0, -1, 0, 0, 0, 0],
        [-1, 0, 0, 0, -1, 0, 0, 0, 2],
    ]
) / np.sqrt([[2.0], [2.0], [2.0], [2.0], [6.0]])
"""Orthonormal basis of the symmetric 3 x 3 matrices without trace, row by row, [5, 9]."""


def element_channels(elements: Sequence[int]) -> np.ndarray:
    """Return the weight of a neighbour of each element in each channel, [119, C].

    Args:
        elements: atomic numbers that the training data have.
    """
    if len(elements) <= MOST_CHANNELS:
        own = np.zeros((119, len(elements)))
        own[list(elements), np.arange(len(elements))] = 1.0
        return own
    number = np.arange(119)
    closed = np.array([0, 2, 10, 18, 36, 54, 86, 118])
    period = np.searchsorted(closed, number)
    before = closed[np.maximum(period - 1, 0)]
    filled = (number - before) / np.maximum(closed[period] - before, 1)
    properties = np.stack([period, filled, covalent_radii[:119]], axis=1)
    known = properties[list(elements)]
    scaled = (properties - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-9)
    return np.concatenate([np.ones((119, 1)), scaled], axis=1)


def describe_atoms(columns: Columns, cutoff: float, channels: np.ndarray) -> np.ndarray:
    """Compute the densities around each atom that do not change with rotation, [N, B].

    Args:
        columns: graphs with all edges up to the cutoff; longer ones are left out.
        cutoff: where all densities end smoothly, in angstrom.
        channels: as ``element_channels`` returns, [119, C].
    """
    gather, directions, lengths = _gather_neighbors(columns, cutoff, channels)
    nodes = len(columns.numbers)
    count = channels.shape[1]
    parts = [(gather @ _radial_functions(lengths, cutoff, SHELLS)).reshape(nodes, -1)]
    radial = _radial_functions(lengths, cutoff, ANGULAR_SHELLS)[:, :, None]
    first, second = np.triu_indices(count)
    for order in range(1, ANGULAR_ORDER + 1):
        angular = _angular_moments(directions, order)
        width = ANGULAR_SHELLS * angular.shape[1]  # -1 is ambiguous without edges
        summed = gather @ (radial * angular[:, None, :]).reshape(len(lengths), width)
        moments = summed.reshape(nodes, count, ANGULAR_SHELLS, angular.shape[1])
        products = np.einsum("nckm,ndkm->ncdk", moments, moments, optimize=True)
        parts.append(products[:, first, second].reshape(nodes, -1))
    return np.concatenate(parts, axis=1)


def describe_directions(
    columns: Columns, cutoff: float, channels: np.ndarray, order: Literal[1, 2]
) -> np.ndarray:
    """Compute the densities around each atom that turn with the structure.

    With the unit vector u from a neighbour to the atom and the radial functions f, these are the
    sums over the neighbours of f u, or of f (u u - 1/3) in the basis ``TRACELESS``.

    Args:
        columns: graphs with all edges up to the cutoff; longer ones are left out.
        cutoff: where all densities end smoothly, in angstrom.
        channels: as ``element_channels`` returns, [119, C].
        order: 1 for vectors, 2 for tensors.

    Returns:
        For each channel all radial functions, [N, 3 or 5, C K].
    """
    gather, angular, lengths = _gather_neighbors(columns, cutoff, channels)
    if order == 2:
        angular = (angular[:, :, None] * angular[:, None, :]).reshape(-1, 9) @ TRACELESS.T
    radial = _radial_functions(lengths, cutoff, SHELLS)[:, None, :]
    width = angular.shape[1] * SHELLS  # -1 is ambiguous without edges
    summed = gather @ (angular[:, :, None] * radial).reshape(len(lengths), width)
    shape = (len(columns.numbers), channels.shape[1], angular.shape[1], SHELLS)
    densities: np.ndarray = summed.reshape(shape).swapaxes(1, 2)
    return densities.reshape(len(columns.numbers), angular.shape[1], -1)


def edges_of(columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sender, receiver, [E] each, and vector, in angstrom, [E, 3], of all edges.

    Returns:
        Numbers of atoms over all structures, and the vectors from senders to receivers.
    """
    graph = np.repeat(np.arange(columns.num_graphs), np.diff(columns.edge_offset))
    sender, receiver = (columns.edges + columns.node_offset[:-1][graph][:, None]).T
    shift = np.einsum("ek,ekx->ex", columns.edge_shift, columns.cell[graph])
    return sender, receiver, columns.positions[receiver] + shift - columns.positions[sender]


def _gather_neighbors(
    columns: Columns, cutoff: float, channels: np.ndarray
) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """Find the edges that are shorter than a cutoff.

    Returns:
        The matrix that sums values of the edges, weighted by the channels of their senders, over
        those of each receiver, [N C, E]; unit vectors, [E, 3]; lengths in angstrom, [E].
    """
    sender, receiver, vectors = edges_of(columns)
    lengths = np.linalg.norm(vectors, axis=1)
    near = lengths < cutoff
    lengths, count = lengths[near], channels.shape[1]
    weights = channels[columns.numbers[sender[near]]]
    edge, channel = np.nonzero(weights)
    place = receiver[near][edge] * count + channel
    shape = (len(columns.numbers) * count, len(lengths))
    gather = csr_array((weights[edge, channel], (place, edge)), shape=shape)
    return gather, vectors[near] / np.maximum(lengths, 1e-9)[:, None], lengths


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
