"""GraphSAGE without torch. Built by ``model.convs.sage``."""

from typing import Annotated, Literal

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class SAGEOptions(Config):
    """Options of the sample and aggregate convolution. Read by ``model.convs.sage``."""

    aggregation: Annotated[Literal["mean", "sum", "max"], Range(choices=("mean", "sum", "max"))] = (
        "mean"
    )
    """How neighbours are gathered; before ``max`` they pass through a layer of their own."""


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, SAGEOptions)
    f = d.features
    pool = linear(f, f) if o.aggregation == "max" else 0
    return linear(f, f, bias=False) + linear(f, f) + pool


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SAGEOptions)
    maps = 3 if o.aggregation == "max" else 2
    return s.nodes * maps * products(d.features, d.features)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SAGEOptions)
    if o.aggregation == "max":
        return s.edges * d.features + s.nodes * 6 * d.features
    return s.nodes * 3 * d.features


SPEC = ConvSpec(SAGEOptions, _parameters, _flops, _kept, edge_features=False, forces=False)
