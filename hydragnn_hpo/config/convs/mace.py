"""MACE without torch. Built by ``model.convs.mace``."""

from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from hydragnn_hpo.config.convs.degrees import MAX_ELL, Path, pairs, paths, start
from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class MACEOptions(Config):
    """Options of the higher-order equivariant convolution. Read by ``model.convs.mace``."""

    max_ell: Annotated[int, Field(ge=1, le=MAX_ELL), Range(low=2, high=3)] = 2
    """Highest degree of the spherical harmonics of directions."""

    node_max_ell: Annotated[int, Field(ge=1, le=2), Range(low=1, high=2)] = 1
    """Highest degree of the features that nodes send on; 1 are vectors."""

    correlation: Annotated[int, Field(ge=1, le=3), Range(low=2, high=3)] = 2
    """Most neighbours that one term of a message sees at once."""

    radial: Annotated[PositiveInt, Range(low=16, high=128, log=True)] = 64
    """Width of the perceptron that makes radial weights from distances."""

    @model_validator(mode="after")
    def _nodes_within_harmonics(self) -> Self:
        if self.node_max_ell > self.max_ell:
            raise ValueError(
                f"node_max_ell is {self.node_max_ell}, above max_ell {self.max_ell}: directions "
                "make no features of this degree, lower it or raise max_ell."
            )
        return self


class Plan:
    """Which degrees meet in one layer; read by ``model.convs.mace`` and by its costs below."""

    def __init__(self, dimensions: Dimensions, options: MACEOptions) -> None:
        """Follow the degrees from what is read to what is written.

        Nothing is made that no one reads: the last layer of a net without vector heads writes
        degree 0 alone.
        """
        self.reads = options.node_max_ell if dimensions.layer else 0
        """Highest degree of the features of nodes that come in."""
        self.writes = options.node_max_ell if dimensions.state_is_read else 0
        """Highest degree that goes out."""
        self.gathers = options.max_ell if options.correlation > 1 else self.writes
        """Highest degree of the sums over neighbours."""
        self.moments: dict[tuple[int, int], tuple[int, ...]] = {}
        """Degrees that features of a node and harmonics are coupled to, by both degrees."""
        for one, two, three in paths(self.reads, options.max_ell, self.gathers):
            self.moments[one, two] = (*self.moments.get((one, two), ()), three)
        self.around = max(two for _, two in self.moments)
        """Highest degree of the harmonics that take part."""
        ends = [three for found in self.moments.values() for three in found]
        self.counts = tuple(ends.count(ell) for ell in range(self.gathers + 1))
        """Number of moments of each degree."""
        self.orders = tuple(range(2, options.correlation + 1))
        """Numbers of neighbours that products see."""

    def made(self, order: int) -> int:
        """Give the highest degree of the products of ``order`` neighbours."""
        return self.gathers if order + 1 in self.orders else self.writes

    def couplings(self, order: int) -> tuple[Path, ...]:
        """List what the products of ``order`` neighbours are made of."""
        left = self.gathers if order == 2 else self.made(order - 1)
        return paths(left, self.gathers, self.made(order), same=order == 2)


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, MACEOptions)
    f, plan = d.features, Plan(d, o)
    send = linear(f, f) + plan.reads * linear(f, f, bias=False)
    radial = linear(d.basis_size, o.radial) + len(plan.moments) * o.radial * f
    coupled = sum(linear(f, len(plan.couplings(order)) * f) for order in plan.orders)
    mixed = sum(plan.counts) * f * f + (plan.writes + 1) * o.correlation * f * f + f
    return send + radial + coupled + mixed


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, MACEOptions)
    f, plan = d.features, Plan(d, o)
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
    """Count the entries of the matrix that turns features on an edge, by the degrees that meet."""
    return {
        (one, two): (2 * one + 1) * sum(2 * three + 1 for three in ends)
        for (one, two), ends in plan.moments.items()
        if two
    }


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, MACEOptions)
    f, plan = d.features, Plan(d, o)
    pair = 2 * o.radial + len(plan.moments) * f
    edge = sum(_turning(plan).values())
    node = start(plan.reads + 1) + 2 * sum((2 * e + 1) * n for e, n in enumerate(plan.counts))
    node += start(plan.writes + 1) * o.correlation
    for order in plan.orders:
        couplings = plan.couplings(order)
        node += 2 * len(pairs(couplings, same=order == 2)) + len(couplings)
        node += sum(2 * path[2] + 1 for path in couplings)
    return s.pairs * pair + s.edges * edge + s.nodes * f * node


SPEC = ConvSpec(MACEOptions, _parameters, _flops, _kept, vectors=True)
