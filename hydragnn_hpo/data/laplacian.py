"""Laplacian positional encodings of a graph.

Shapes: N nodes, E edges, k encodings.
"""

import numpy as np
from numpy.typing import NDArray


def compute_laplacian_encodings(
    num_nodes: int, edges: NDArray[np.int32], count: int
) -> NDArray[np.float32]:
    """Return the eigenvectors of the smallest non-trivial eigenvalues, [N, k].

    The Laplacian is the symmetric normalised one of the graph without directions, images and
    loops; a pair of atoms is joined once. Every vector's largest component is positive; small
    graphs are filled up with zeros. Equal eigenvalues leave the choice of axes open: those
    columns are made the same for the same order of atoms only.

    Args:
        num_nodes: N.
        edges: sender and receiver, [E, 2].
        count: k.

    Source: Dwivedi et al. (2023), JMLR 24, 43, section 4.1.
    """
    joined = np.zeros((num_nodes, num_nodes))
    joined[edges[:, 0], edges[:, 1]] = 1.0
    np.fill_diagonal(joined, 0.0)
    degree = joined.sum(axis=1)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros(num_nodes), where=degree > 0)
    laplacian = np.diag((degree > 0).astype(float)) - scale[:, None] * joined * scale
    values, vectors = np.linalg.eigh(laplacian)
    trivial = int((values < 1e-9).sum())
    chosen = vectors[:, trivial : trivial + count]
    largest = np.abs(np.round(chosen, 9)).argmax(axis=0)
    chosen = chosen * np.where(chosen[largest, np.arange(chosen.shape[1])] < 0, -1.0, 1.0)
    result = np.zeros((num_nodes, count), dtype=np.float32)
    result[:, : chosen.shape[1]] = chosen
    return result
