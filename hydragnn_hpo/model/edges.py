"""The edges of a batch as every conv sees them.

Shapes: E edges, K radial functions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hydragnn_hpo.data.batch import Batch


class Edges(NamedTuple):
    """Geometry of the edges; ``sender`` sends to ``receiver``."""

    sender: Tensor
    """Node that sends, [E]."""
    receiver: Tensor
    """Node that receives, [E]."""
    directions: Tensor
    """Unit vectors from sender to receiver, [E, 3]; they turn with the structure."""
    basis: Tensor
    """Radial functions of the length, [E, K]."""
    envelope: Tensor
    """Weight that takes every message smoothly to 0 at the cutoff, [E, 1]."""


def edge_vectors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Give vectors sender -> receiver in angstrom, [E, 3], and their lengths, [E].

    Periodic images count through the batch's shifts. Positions may require a gradient.
    """
    sender, receiver = batch.edge_index
    vectors = batch.positions[receiver] - batch.positions[sender] + batch.edge_shift
    return vectors, torch.linalg.vector_norm(vectors, dim=-1)
