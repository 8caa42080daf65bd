"""Convs with vectors: options, numbers of parameters, operations and saved values; no torch.

MACE has features that transform as the spherical harmonics of ``model.tensor_product``: a feature
of degree l has 2l + 1 components; a row of features of all degrees holds degree l from column l^2
on. Parity is natural, (-1)^l, so degrees couple only where their sum is even.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hydragnn_hpo.config.convs.scalar import (
    AGGREGATIONS,
    PNAOptions,
    aggregator_copies,
    gathering_flops,
    gathering_parameters,
)
from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    Width,
    chain,
    check_heads,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config

MAX_ELL = 3
"""Highest degree that ``model.tensor_product.spherical_harmonics`` computes."""

ORDERS = ((0,), (1, -1, 0), (-2, -1, 0, 1, 2), (-3, -2, -1, 0, 1, 2, 3))
"""Orders m of the components of each degree; -m stands for sin(m phi). Degree 1 is x, y, z."""

TENSOR_ROWS = 1 + 3 + 6
"""Components of the three parts of a 3 x 3 tensor that channels are mixed in; one of them, the
trace of the last part, is 0."""

Path = tuple[int, int, int]
"""Degrees of two factors, and of the product that they are coupled to."""


def start(ell: int) -> int:
    """Return the first column of a degree, which is the number of columns of lower degrees."""
    return ell * ell


def paths(left: int, right: int, out: int, *, same: bool = False) -> tuple[Path, ...]:
    """List the couplings of degrees up to ``left`` and ``right``, those to degree 0 first.

    Args:
        left: highest degree of the first factor.
        right: highest degree of the second factor.
        out: highest degree of the product.
        same: both factors are the same features, so that their order does not matter.

    Returns:
        Degrees of the two factors and of the product; parities match, and the degrees obey the
        triangle rule.
    """
    return tuple(
        (one, two, three)
        for three in range(out + 1)
        for one in range(left + 1)
        for two in range(one if same else 0, right + 1)
        if abs(one - two) <= three <= one + two and (one + two + three) % 2 == 0
    )


def pairs(coupled: tuple[Path, ...], *, same: bool = False) -> tuple[tuple[int, int], ...]:
    """List the pairs of columns of both factors whose products the couplings need.

    Three harmonics couple where an even number of their orders is negative and one of the orders
    is the sum of the others, up to signs.

    Args:
        coupled: couplings of degrees, as ``paths`` lists them.
        same: both factors are the same features, so that (a, b) and (b, a) are one pair.

    Returns:
        Column of the first and of the second factor, in ascending order.
    """
    needed = set()
    for one, two, three in coupled:
        for a, first in enumerate(ORDERS[one]):
            for b, second in enumerate(ORDERS[two]):
                if any(_meet(first, second, third) for third in ORDERS[three]):
                    columns = (start(one) + a, start(two) + b)
                    needed.add((min(columns), max(columns)) if same else columns)
    return tuple(sorted(needed))


def _meet(first: int, second: int, third: int) -> bool:
    low, middle, high = sorted(map(abs, (first, second, third)))
    return low + middle == high and sum(m < 0 for m in (first, second, third)) % 2 == 0


class PaiNNOptions(Config):
    """Options of the polarizable interaction convolution. Read by ``model.convs.painn``."""

    activation: Annotated[Literal["silu", "ssp"], Range(choices=("silu", "ssp"))] = "silu"
    """Activation: SiLU, or shifted softplus."""


def sent_channels(d: Dimensions) -> int:
    """Count the F-channel parts of a message: scalars, directions and, after layer 0, vectors."""
    return 2 if d.layer == 0 else 3


def _painn_parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    message = chain(f, f, sent * f) + linear(k, sent * f)
    return message + linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)


def _painn_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    message = s.nodes * products(f, f, sent * f) + s.pairs * products(k + 1, sent * f)
    return message + s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))


def _painn_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return (s.pairs * sent_channels(d) + s.nodes * 28) * f


PAINN = ConvSpec(
    PaiNNOptions, _painn_parameters, _painn_flops, _painn_kept, vectors=True, tried_first=1
)


class PNAEqOptions(PNAOptions):
    """Options of aggregation with vectors. Read by ``model.convs.pnaeq``."""


def _pnaeq_parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    message = chain(f, f, sent * f) + linear(f, f) + linear(k, sent * f)
    update = linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)
    return message + gathering_parameters(f, o) + update


def _pnaeq_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    message = s.nodes * (products(f, f, sent * f) + products(f, f))
    filters = s.pairs * (products(k, f) + products(k + 1, (sent - 1) * f))
    update = s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))
    return message + filters + gathering_flops(f, o, s.nodes) + update


def _pnaeq_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    views = AGGREGATIONS * aggregator_copies(o)
    return (s.edges * 3 + s.pairs * sent_channels(d) + s.nodes * (views + 31)) * f


PNAEQ = ConvSpec(
    PNAEqOptions, _pnaeq_parameters, _pnaeq_flops, _pnaeq_kept, vectors=True, tried_first=8
)


class ETOptions(Config):
    """Options of the equivariant transformer convolution. Read by ``model.convs.et``."""

    heads: Annotated[Width, Range(choices=(1, 2, 4, 8))] = 8
    """Number of attention heads, each over an equal part of the channels; must divide
    ``features``."""


def _et_check(d: Dimensions, o: Config) -> None:
    assert isinstance(o, ETOptions)
    check_heads("et", o.heads, d.features)


def _et_parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    attention = 2 * linear(f, f) + linear(k, f)
    message = linear(f, sent * f) + linear(k, sent * f) + linear(f, f)
    return attention + message + linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)


def _et_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    k = d.basis_size
    sent = sent_channels(d)
    edges = s.pairs * (products(k, f) + products(k + 1, sent * f))
    message = s.nodes * products(f, (sent + 3) * f)
    return edges + message + s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))


def _et_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, ETOptions)
    f = d.features
    sent = sent_channels(d)
    pairs = (sent + 2) * f + 2 * d.basis_size
    return s.pairs * pairs + s.edges * 2 * o.heads + s.nodes * 32 * f


ET = ConvSpec(
    ETOptions, _et_parameters, _et_flops, _et_kept, vectors=True, check=_et_check, tried_first=5
)


class MACEOptions(Config):
    """Options of the higher-order equivariant convolution. Read by ``model.convs.mace``."""

    max_ell: Annotated[int, Field(ge=1, le=MAX_ELL), Range(low=2, high=3)] = 2
    """Highest degree of the spherical harmonics of directions."""

    node_max_ell: Annotated[int, Field(ge=1, le=2), Range(low=1, high=2)] = 1
    """Highest degree of the features that pass from layer to layer; degree 1 are vectors."""

    correlation: Annotated[int, Field(ge=1, le=3), Range(low=2, high=3)] = 2
    """Highest number of neighbours that one term of a message depends on."""

    radial: Annotated[Width, Range(low=16, high=128, log=True)] = 64
    """Width of the perceptron that computes radial weights from distances."""

    @model_validator(mode="after")
    def _nodes_within_harmonics(self) -> Self:
        if self.node_max_ell > self.max_ell:
            raise ValueError(
                f"node_max_ell is {self.node_max_ell}, above max_ell {self.max_ell}: directions "
                "make no features of this degree, lower it or raise max_ell."
            )
        return self


class Plan:
    """Degrees that one layer couples. Read by ``model.convs.mace`` and the costs below."""

    def __init__(self, dimensions: Dimensions, options: MACEOptions) -> None:
        """Derive the degrees of each step from the input to the output of a layer.

        Unused features are not computed: the last layer of a net without vector heads outputs
        degree 0 alone.
        """
        self.reads = options.node_max_ell if dimensions.layer else 0
        """Highest degree of the layer's input features."""
        self.writes = options.node_max_ell if dimensions.state_is_read else 0
        """Highest degree of the layer's output features."""
        self.gathers = options.max_ell if options.correlation > 1 else self.writes
        """Highest degree of the sums over neighbours."""
        self.moments: dict[tuple[int, int], tuple[int, ...]] = {}
        """Product degrees, by the degrees of the node's feature and of the harmonic."""
        for one, two, three in paths(self.reads, options.max_ell, self.gathers):
            self.moments[one, two] = (*self.moments.get((one, two), ()), three)
        self.around = max(two for _, two in self.moments)
        """Highest degree of the harmonics that are used."""
        ends = [three for degrees in self.moments.values() for three in degrees]
        self.counts = tuple(ends.count(ell) for ell in range(self.gathers + 1))
        """Number of moments of each degree."""
        self.orders = tuple(range(2, options.correlation + 1))
        """Numbers of neighbour sums that products multiply."""

    def made(self, order: int) -> int:
        """Return the highest degree among the products of ``order`` neighbour sums."""
        return self.gathers if order + 1 in self.orders else self.writes

    def couplings(self, order: int) -> tuple[Path, ...]:
        """List the couplings that build the products of ``order`` neighbour sums.

        Returns:
            Couplings of products of ``order - 1`` neighbour sums with one more of these sums.
        """
        left = self.gathers if order == 2 else self.made(order - 1)
        return paths(left, self.gathers, self.made(order), same=order == 2)


def _mace_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, MACEOptions)
    f = d.features
    plan = Plan(d, o)
    send = linear(f, f) + plan.reads * linear(f, f, bias=False)
    radial = linear(d.basis_size, o.radial) + len(plan.moments) * o.radial * f
    coupled = sum(linear(f, len(plan.couplings(order)) * f) for order in plan.orders)
    mixed = sum(plan.counts) * f * f + (plan.writes + 1) * o.correlation * f * f + f
    return send + radial + coupled + mixed


def _mace_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, MACEOptions)
    f = d.features
    plan = Plan(d, o)
    radial = products(d.basis_size, o.radial) + len(plan.moments) * products(o.radial, f)
    turns = sum(products(2 * two + 1, n) for (_, two), n in _turning(plan).items())
    columns = start(plan.reads + 1) + sum((2 * e + 1) * n for e, n in enumerate(plan.counts))
    columns += start(plan.writes + 1) * o.correlation
    node = columns * products(f, f)
    for order in plan.orders:
        couplings = plan.couplings(order)
        rows = sum(2 * path[2] + 1 for path in couplings)
        node += f * products(len(pairs(couplings, same=order == 2)), rows)
        node += products(f, len(couplings) * f)
    return s.pairs * radial + s.edges * turns + s.nodes * node


def _turning(plan: Plan) -> dict[tuple[int, int], int]:
    """Count the entries of an edge's coupling matrix, by the degrees of feature and harmonic."""
    return {
        (one, two): (2 * one + 1) * sum(2 * three + 1 for three in ends)
        for (one, two), ends in plan.moments.items()
        if two
    }


def _mace_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, MACEOptions)
    f = d.features
    plan = Plan(d, o)
    pair = 2 * o.radial + len(plan.moments) * f
    edge = sum(_turning(plan).values())
    node = start(plan.reads + 1) + 2 * sum((2 * e + 1) * n for e, n in enumerate(plan.counts))
    node += start(plan.writes + 1) * o.correlation
    for order in plan.orders:
        couplings = plan.couplings(order)
        node += 2 * len(pairs(couplings, same=order == 2)) + len(couplings)
        node += sum(2 * path[2] + 1 for path in couplings)
    return s.pairs * pair + s.edges * edge + s.nodes * f * node


MACE = ConvSpec(
    MACEOptions, _mace_parameters, _mace_flops, _mace_kept, vectors=True, tried_first=10
)


class TensorNetOptions(Config):
    """Options of the Cartesian tensor convolution. Read by ``model.convs.tensornet``."""

    radial: Annotated[Width, Range(low=16, high=128, log=True)] = 64
    """Width of the perceptron that computes filters from distances, after the first layer."""


def _tensornet_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, TensorNetOptions)
    f = d.features
    mix = 3 * linear(f, f, bias=False)
    read = chain(3 * f, f, f)
    if d.layer == 0:
        filters = 3 * linear(d.basis_size, f)
        return linear(f, f) + filters + chain(2 * f, f, 3 * f) + mix + read
    filters = linear(d.basis_size, o.radial) + 3 * linear(o.radial, f, bias=False)
    return filters + chain(f, f, 3 * f) + 2 * mix + read


def _tensornet_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, TensorNetOptions)
    f = d.features
    mix = TENSOR_ROWS * products(f, f)
    read = products(3 * f, f, f)
    if d.layer == 0:
        node = products(f, f) + products(2 * f, f, 3 * f) + mix + read
        return s.pairs * products(d.basis_size + 1, 3 * f) + s.nodes * node
    node = products(f, f, 3 * f) + 2 * mix + read
    return s.pairs * products(d.basis_size, o.radial, 3 * f) + s.nodes * node


def _tensornet_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, TensorNetOptions)
    f = d.features
    if d.layer == 0:
        return s.pairs * (3 * f + d.basis_size + 1) + s.edges * 6 + s.nodes * 62 * f
    return s.pairs * (3 * f + 2 * o.radial) + s.nodes * 107 * f


TENSORNET = ConvSpec(
    TensorNetOptions,
    _tensornet_parameters,
    _tensornet_flops,
    _tensornet_kept,
    vectors=True,
    tried_first=11,
)
