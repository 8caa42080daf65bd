"""Higher-order equivariant convolution by products of sums over neighbours.

Shapes: N nodes, P pairs, F features, M components of all degrees. Features of degree l are
[N, 2l + 1, F]; the components of all degrees are [M, N, F] where products index them first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydragnn_hpo.config.convs import Dimensions
from hydragnn_hpo.config.convs.vector import MACEOptions, Path, Plan, pairs, start
from hydragnn_hpo.model.edges import Edges
from hydragnn_hpo.model.messages import coupled_sum, filtered_sum
from hydragnn_hpo.model.tensor_product import coupling_coefficients, spherical_harmonics


class MACEConv(nn.Module):
    """Sum neighbours into features of several degrees, multiply these, and mix the products.

    The scalars are the features of degree 0; the state holds those of degree 1 (x, y, z) and 2.
    Source: Batatia et al. (2022), arXiv:2206.07697, eqs. 8-11.
    """

    def __init__(self, dimensions: Dimensions, options: MACEOptions) -> None:
        """Build one layer."""
        super().__init__()
        features = dimensions.features
        plan = Plan(dimensions, options)
        self.gather = NeighborMoments(dimensions, options)
        self.products = nn.ModuleList(
            ProductBasis(features, plan.couplings(order), same=order == 2) for order in plan.orders
        )
        self.mix = nn.ModuleList(
            _mix(options.correlation * features, features, bias=ell == 0)
            for ell in range(plan.writes + 1)
        )

    def forward(
        self, scalars: Tensor, state: Tensor | None, edges: Edges
    ) -> tuple[Tensor, Tensor | None]:
        """Sum neighbours, multiply the sums by themselves, and mix the products of each degree.

        Args:
            scalars: features of the nodes, normed, [N, F].
            state: features of degree 1 and up, [N, M, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            The change of the scalars, [N, F], and the new features of degree 1 and up, [N, M, F];
            None where no later layer reads them.
        """
        single = self.gather(scalars, state, edges)
        terms = [single]
        for product in self.products:
            terms.append(product(scalars, terms[-1], single))
        change, *rest = (
            mix(torch.cat([term[start(ell) : start(ell + 1)] for term in terms], dim=-1))
            for ell, mix in enumerate(self.mix)
        )
        if not rest:
            return change.squeeze(0), None
        made = torch.cat(rest).transpose(0, 1)
        return change.squeeze(0), made.contiguous() if state is None else state + made


def _mix(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Build a linear map that preserves the variance, as products amplify deviations from 1."""
    mix = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(mix.weight, std=inputs**-0.5)
    return mix


class NeighborMoments(nn.Module):
    """Sum over neighbours: radial weight x harmonics of the direction x features of the sender.

    The radial weights depend on the degrees of feature and harmonic, but not on the degree of their
    product: each product degree has its own mix of channels after the sum. The envelope multiplies
    the input of the radial weights, which costs one product instead of one per coupling.
    """

    scale: Tensor

    def __init__(self, dimensions: Dimensions, options: MACEOptions) -> None:
        """Build radial weights and the mixes before and after the sum."""
        super().__init__()
        features = dimensions.features
        plan = Plan(dimensions, options)
        self.plan = plan
        self.register_buffer("scale", torch.tensor(max(dimensions.degree, 1.0) ** -0.5))
        self.send = nn.ModuleList(
            _mix(features, features, bias=ell == 0) for ell in range(plan.reads + 1)
        )
        self.radial = nn.Linear(dimensions.basis_size, options.radial)
        self.weights = nn.ModuleList(_mix(options.radial, features) for _ in plan.moments)
        self.mix = nn.ModuleList(_mix(count * features, features) for count in plan.counts)
        for (one, two), ends in plan.moments.items():
            blocks = [torch.from_numpy(coupling_coefficients(one, two, three)) for three in ends]
            # Stored in fp64: rounding it to fp32 would break the rotation symmetry of fp64 nets.
            matrix = torch.cat(blocks).permute(2, 0, 1).flatten(1)
            self.register_buffer(f"couple_{one}{two}", matrix, persistent=False)

    def forward(self, scalars: Tensor, state: Tensor | None, edges: Edges) -> Tensor:
        """Sum over neighbours and mix the channels of each degree.

        Args:
            scalars: features of degree 0, [N, F].
            state: features of degree 1 and up, [N, M, F]; None in the first layer.
            edges: geometry of the batch.

        Returns:
            Features of all degrees, [M, N, F].
        """
        values = [scalars.unsqueeze(1)]
        if state is not None:
            ends = [start(ell) - 1 for ell in range(1, self.plan.reads + 2)]
            parts = [state[:, a:b] for a, b in zip(ends, ends[1:], strict=False)]
            values += [part * _norm_scale(part) for part in parts]
        sent = [send(value) for send, value in zip(self.send, values, strict=True)]
        radial = F.silu(self.radial(edges.pair_basis)) * (edges.pair_envelope * self.scale)
        harmonics = spherical_harmonics(edges.directions, self.plan.around)
        by_degree: list[list[Tensor]] = [[] for _ in self.mix]
        moments = zip(self.plan.moments.items(), self.weights, strict=True)
        for ((one, two), coupled_to), weights in moments:
            moment = self._moment(sent[one], weights(radial), harmonics, (one, two), edges)
            widths = [2 * three + 1 for three in coupled_to]
            for three, part in zip(coupled_to, torch.split(moment, widths, dim=1), strict=True):
                by_degree[three].append(part)
        mixed = [
            mix(torch.cat(each, dim=-1)) for mix, each in zip(self.mix, by_degree, strict=True)
        ]
        return torch.cat(mixed, dim=1).transpose(0, 1).contiguous()

    def _moment(
        self,
        sent: Tensor,
        filters: Tensor,
        harmonics: Tensor,
        degrees: tuple[int, int],
        edges: Edges,
    ) -> Tensor:
        """Sum features of one degree, coupled to harmonics of another, at receivers, [N, C, F]."""
        one, two = degrees
        if two == 0:
            return filtered_sum(sent, filters, edges.links)
        matrix = self.get_buffer(f"couple_{one}{two}")
        mixing = harmonics[:, start(two) : start(two + 1)] @ matrix.to(harmonics.dtype)
        rows = matrix.shape[1] // (2 * one + 1)
        return coupled_sum(
            sent, filters, mixing.view(harmonics.shape[0], rows, 2 * one + 1), edges.links
        )


def _norm_scale(values: Tensor) -> Tensor:
    """Return a factor per node that limits the RMS of its features to below 1, [N, 1, 1].

    The trunk normalizes scalars only; without this, products of features grow with each layer.
    """
    return (1.0 + values.square().mean(dim=(1, 2), keepdim=True)).rsqrt()


class ProductBasis(nn.Module):
    """Multiply features of a node channel by channel and couple the products to new features.

    The weights of the couplings are computed from the node's scalars. The paper has one set of
    weights per element; here they depend on the element and on its neighbours.
    Source: Batatia et al. (2022), arXiv:2206.07697, eq. 10, one factor at a time.
    """

    def __init__(self, features: int, couplings: tuple[Path, ...], *, same: bool) -> None:
        """Build the constant matrix from products of components to coupled components.

        Args:
            features: channels, F.
            couplings: degrees of both factors and of the product, sorted by that of the product.
            same: whether both factors are the same features, so that the products (a, b) and
                (b, a) share one column.
        """
        super().__init__()
        columns = pairs(couplings, same=same)
        self.register_buffer("matrix", _matrix(couplings, columns), persistent=False)
        index = torch.tensor(columns, dtype=torch.long).t().contiguous()
        self.register_buffer("columns", index, persistent=False)
        ends = [path[2] for path in couplings]
        self.counts = [ends.count(ell) for ell in range(ends[-1] + 1)]
        self.weights = nn.Linear(features, len(couplings) * features)

    def forward(self, scalars: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Multiply features channel by channel and couple the products.

        Args:
            scalars: determine the weights of the couplings, [N, F].
            first: features of all degrees, [M, N, F].
            second: features of all degrees, [M, N, F].

        Returns:
            Features of all product degrees of the couplings, [M', N, F].
        """
        left, right = self.get_buffer("columns").unbind()
        products = first.index_select(0, left) * second.index_select(0, right)
        matrix = self.get_buffer("matrix").to(products.dtype)
        shape = scalars.shape
        paths = sum(self.counts)
        coupled = (matrix @ products.flatten(1)).view(matrix.shape[0], *shape)
        weights = self.weights(scalars).view(shape[0], paths, shape[1]).transpose(0, 1)
        row = 0
        path = 0
        by_degree = []
        for ell, count in enumerate(self.counts):
            width = 2 * ell + 1
            block = coupled[row : row + count * width].view(count, width, *shape)
            by_degree.append((block * weights[path : path + count].unsqueeze(1)).sum(0))
            row, path = row + count * width, path + count
        return torch.cat(by_degree)


def _matrix(couplings: tuple[Path, ...], columns: tuple[tuple[int, int], ...]) -> Tensor:
    """Return the matrix from products of two components to the components of all couplings."""
    where = {pair: column for column, pair in enumerate(columns)}
    rows = sum(2 * path[2] + 1 for path in couplings)
    matrix = torch.zeros(rows, len(columns), dtype=torch.float64)
    row = 0
    for one, two, three in couplings:
        block = torch.from_numpy(coupling_coefficients(one, two, three))
        for c, a, b in block.nonzero().tolist():
            pair = (start(one) + a, start(two) + b)
            column = where[pair] if pair in where else where[pair[::-1]]
            matrix[row + c, column] += block[c, a, b]
        row += 2 * three + 1
    return matrix
