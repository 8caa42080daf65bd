"""TensorNet: each channel of a node holds a 3 x 3 tensor, and messages multiply as matrices do.

Shapes: N nodes, E edges, P pairs, F features, K radial functions. A tensor X is stored as nine rows
[N, 9, F]: x, y, z of the vector v of its antisymmetric part, then xx, yy, zz, xy, xz, yz of its
symmetric part. Its parts are I [N, 1, F], X's trace / 3; A [N, 3, F], v; and S [N, 6, F],
symmetric and traceless, in the order of the rows.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import TensorNetOptions
from hydragnn_hpo.model.convs.painn import RadialFilters
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.model.messages import coupled_sum, directed_sum, filtered_sum, silu


class TensorNetConv(nn.Module):
    """Embed the surroundings of the nodes as tensors, or let tensors of neighbours interact.

    The first layer embeds and later ones interact, so that a layer reaches as far as one edge; the
    scalars change by the norms of the tensors' parts. Under a reflection v flips as a polar vector:
    ``Y M + M Y`` keeps this, while ``Y M`` would not.

    Source: Simeon and De Fabritiis (2023), arXiv:2306.06482, whose nets read norms
    once, after the last layer, and normalize them; here log(1 + norm) does not magnify tensors that
    vanish as the last neighbour leaves.
    """

    def __init__(self, dimensions: Dimensions, options: TensorNetOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        self.tensors = (
            TensorInteraction(dimensions, options)
            if dimensions.layer
            else TensorEmbedding(dimensions)
        )
        self.read = mlp((3 * features, features, features))

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor]:
        """Make or update the tensors of the nodes, and read their norms.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: tensors of the nodes, [N, 9, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new tensors, [N, 9, F].
        """
        tensors = self.tensors(scalars, state, edges)
        scalar, vector, symmetric = decompose(tensors)
        norms = (
            3.0 * scalar.square().squeeze(1),
            2.0 * vector.square().sum(1),
            symmetric.square().sum(1) + symmetric[:, 3:].square().sum(1),
        )
        return self.read(torch.cat(norms, dim=-1).log1p()), tensors


class TensorEmbedding(nn.Module):
    """Sum the identity, the direction and its outer product over the neighbours of a node.

    The paper multiplies each edge's tensor by a map of both ends' elements. Here the sender's
    scalars do so, and the receiver's are among the inputs of the factors that scale the sum. The 1
    added to factors makes an untrained net a plain sum over neighbours, which learns faster.

    Source: arXiv:2306.06482, "tensor embedding".
    """

    def __init__(self, dimensions: Dimensions) -> None:
        """Build the filters, the map of the sent scalars, and the scaled mix of channels."""
        super().__init__()
        features = dimensions.features
        self.send = nn.Linear(features, features)
        self.filters = RadialFilters(dimensions.basis_size, features, 3)
        self.factors = mlp((2 * features, features, 3 * features))
        self.mix = _mixes(features, features)

    def forward(self, scalars: Tensor, state: None, edges: Edges) -> Tensor:
        """Sum over neighbours, and mix channels.

        Args:
            scalars: features of the nodes, [N, F].
            state: None: there are no tensors yet.
            edges: geometry of the batch.

        Returns:
            Tensors of the nodes, [N, 9, F].
        """
        sent = self.send(scalars)
        to_scalar, to_vector, to_symmetric = self.filters(edges)
        outer = _traceless_outer(edges.directions).unsqueeze(2)
        sums = (
            filtered_sum(sent, to_scalar, edges.links).unsqueeze(1),
            directed_sum(sent, to_vector, edges.directions, edges.links),
            coupled_sum(sent.unsqueeze(1), to_symmetric, outer, edges.links),
        )
        inputs = torch.cat((scalars, square_norm(compose(*sums)).log1p()), dim=-1)
        factors = (1.0 + self.factors(inputs)).unsqueeze(1).chunk(3, dim=-1)
        return compose(
            *(factor * mix(each) for factor, mix, each in zip(factors, self.mix, sums, strict=True))
        )


class TensorInteraction(nn.Module):
    """Multiply the tensor of a node by the sum of its neighbours' tensors.

    Factors of the node's scalars scale the mixed tensors as in the embedding. The paper has none,
    since its scalars only begin after the last layer. Filters are a perceptron with one hidden
    layer (the paper: two, and an activation at the end, more than twice the operations).

    Source: arXiv:2306.06482, "interaction and node update".
    """

    def __init__(self, dimensions: Dimensions, options: TensorNetOptions) -> None:
        """Build the filters, and the mixes of channels before and after the product."""
        super().__init__()
        features = dimensions.features
        self.radial = nn.Linear(dimensions.basis_size, options.radial)
        self.filters = _mixes(options.radial, features)
        self.factors = mlp((features, features, 3 * features))
        self.mix = _mixes(features, features)
        self.mix_products = _mixes(features, features)

    def forward(self, scalars: Tensor, state: Tensor, edges: Edges) -> Tensor:
        """Return the updated tensors.

        Args:
            scalars: features of the nodes, [N, F].
            state: tensors of the nodes, [N, 9, F].
            edges: geometry of the batch.

        Returns:
            Tensors of the nodes, [N, 9, F].
        """
        factors = (1.0 + self.factors(scalars)).unsqueeze(1).chunk(3, dim=-1)
        parts = decompose(_bound(state))
        mixed = [
            factor * mix(part) for factor, mix, part in zip(factors, self.mix, parts, strict=True)
        ]
        hidden = silu(self.radial(edges.pair_basis)) * edges.pair_envelope
        messages = [
            filtered_sum(part, filters(hidden), edges.links)
            for part, filters in zip(mixed, self.filters, strict=True)
        ]
        center = to_matrix(compose(*mixed))
        message = to_matrix(compose(*messages))
        products = to_rows(multiply(center, message) + multiply(message, center))
        parts = decompose(_bound(products))
        change = compose(*(mix(part) for mix, part in zip(self.mix_products, parts, strict=True)))
        matrix = to_matrix(change)
        return state + change + to_rows(multiply(matrix, matrix))


def _mixes(inputs: int, outputs: int) -> nn.ModuleList:
    """Build a map of channels for each part, without a bias, that preserves the variance."""
    mixes = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(3))
    for weight in mixes.parameters():
        nn.init.normal_(weight, std=inputs**-0.5)
    return mixes


def decompose(tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split tensors, [N, 9, F], into their parts.

    Returns:
        I, [N, 1, F], A, [N, 3, F], and S, [N, 6, F].
    """
    vector, diagonal, rest = torch.split(tensors, 3, dim=1)
    scalar = diagonal.mean(dim=1, keepdim=True)
    return scalar, vector, torch.cat((diagonal - scalar, rest), dim=1)


def compose(scalar: Tensor, vector: Tensor, symmetric: Tensor) -> Tensor:
    """Add parts to tensors, the inverse of ``decompose``.

    Args:
        scalar: I, [N, 1, F].
        vector: A, [N, 3, F].
        symmetric: S, [N, 6, F].

    Returns:
        [N, 9, F].
    """
    return torch.cat((vector, symmetric[:, :3] + scalar, symmetric[:, 3:]), dim=1)


def square_norm(tensors: Tensor) -> Tensor:
    """Return the squared Frobenius norm, Tr(X^T X), of tensors, [N, 9, F], as [N, F].

    All rows but xx, yy and zz stand for two entries of the matrix.
    """
    squares = tensors.square()
    return 2.0 * squares.sum(1) - squares[:, 3:6].sum(1)


def _bound(tensors: Tensor) -> Tensor:
    """Divide tensors, [N, 9, F], by 1 + their squared norm, so that their norm is at most 1/2."""
    return tensors / (1.0 + square_norm(tensors)).unsqueeze(1)


def to_matrix(tensors: Tensor) -> Tensor:
    """Write the rows of tensors, [N, 9, F], as matrices, [N, 3, 3, F]."""
    x, y, z, xx, yy, zz, xy, xz, yz = tensors.unbind(1)
    entries = (xx, xy - z, xz + y, xy + z, yy, yz - x, xz - y, yz + x, zz)
    return torch.stack(entries, dim=1).view(-1, 3, 3, tensors.shape[2])


def to_rows(matrices: Tensor) -> Tensor:
    """Return the rows of matrices, [N, 3, 3, F], the inverse of ``to_matrix``, [N, 9, F]."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = matrices.flatten(1, 2).unbind(1)
    vector = [0.5 * (zy - yz), 0.5 * (xz - zx), 0.5 * (yx - xy)]
    mixed = [0.5 * (xy + yx), 0.5 * (xz + zx), 0.5 * (yz + zy)]
    return torch.stack((*vector, xx, yy, zz, *mixed), dim=1)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices channel by channel, [N, 3, 3, F].

    Sums of products are twice as fast as ``matmul``, which wants the channels in front.
    """
    return (left.unsqueeze(3) * right.unsqueeze(1)).sum(dim=2)


def _traceless_outer(directions: Tensor) -> Tensor:
    """Return the symmetric traceless part of unit vectors' outer products, [E, 3] to [E, 6]."""
    x, y, z = directions.unbind(1)
    third = 1.0 / 3.0
    entries = (x * x - third, y * y - third, z * z - third, x * y, x * z, y * z)
    return torch.stack(entries, dim=1)
