"""PNAEq without torch. Built by ``model.convs.pnaeq``."""

from hydragnn_hpo.config.convs.painn import sent_channels
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


class PNAEqOptions(PNAOptions):
    """Options of aggregation with vectors. Read by ``model.convs.pnaeq``."""


def _parameters(d: Dimensions, o: Config) -> int:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    message = chain(f, f, sent * f) + linear(f, f) + linear(k, sent * f)
    update = linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)
    return message + gathering_parameters(f, o) + update


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    message = s.nodes * (products(f, f, sent * f) + products(f, f))
    filters = s.pairs * (products(k, f) + products(k + 1, (sent - 1) * f))
    update = s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))
    return message + filters + gathering_flops(f, o, s.nodes) + update


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, views = d.features, AGGREGATIONS * aggregator_copies(o)
    return (s.edges * 4 + s.pairs * sent_channels(d) + s.nodes * (views + 31)) * f


SPEC = ConvSpec(PNAEqOptions, _parameters, _flops, _kept, vectors=True)
