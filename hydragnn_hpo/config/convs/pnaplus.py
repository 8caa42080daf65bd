"""PNAPlus without torch. Built by ``model.convs.pnaplus``."""

from hydragnn_hpo.config.convs.pna import (
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
    chain,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class PNAPlusOptions(PNAOptions):
    """Options of aggregation behind radial filters. Read by ``model.convs.pnaplus``."""


def _parameters(d: Dimensions, o: Config) -> int:
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False)
    return message + chain(k, f, f) + gathering_parameters(f, o) + chain(2 * f, f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, k = d.features, d.basis_size
    message = s.nodes * 2 * products(f, f) + s.pairs * (products(k, f) + products(k, f, f))
    return message + gathering_flops(f, o, s.nodes) + s.nodes * products(2 * f, f)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    views = AGGREGATIONS * aggregator_copies(o)
    return s.edges * (3 * f + 1) + s.pairs * 3 * f + s.nodes * (views + 7) * f


SPEC = ConvSpec(PNAPlusOptions, _parameters, _flops, _kept)
