"""PNA without torch. Built by ``model.convs.pna``."""

from typing import Annotated

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    chain,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config

AGGREGATIONS = 4
"""Mean, spread, largest and smallest."""


class PNAOptions(Config):
    """Options of principal neighbourhood aggregation. Read by ``model.convs.pna``."""

    scalers: Annotated[bool, Range(choices=(True, False))] = True
    """Offer every aggregation also amplified and attenuated by the number of neighbours."""


def aggregator_copies(options: Config) -> int:
    """Count how often each aggregation is offered: as it is, amplified, attenuated."""
    return 3 if getattr(options, "scalers", True) else 1


def gathering_parameters(features: int, options: Config) -> int:
    """Count the parameters of the map from all aggregations to the width."""
    return linear(AGGREGATIONS * aggregator_copies(options) * features, features)


def gathering_flops(features: int, options: Config, nodes: float) -> float:
    """Count the operations of that map."""
    return nodes * products(AGGREGATIONS * aggregator_copies(options) * features, features)


def _parameters(d: Dimensions, o: Config) -> int:
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False)
    return message + gathering_parameters(f, o) + chain(2 * f, f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    message = s.nodes * 2 * products(f, f) + s.pairs * products(d.basis_size, f)
    return message + gathering_flops(f, o, s.nodes) + s.nodes * products(2 * f, f)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.edges * (2 * f + 1) + s.nodes * (AGGREGATIONS * aggregator_copies(o) + 7) * f


SPEC = ConvSpec(PNAOptions, _parameters, _flops, _kept)
