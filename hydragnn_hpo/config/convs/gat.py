"""GATv2 without torch. Built by ``model.convs.gat``."""

from typing import Annotated

from pydantic import Field, PositiveInt

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    check_heads,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class GATOptions(Config):
    """Options of the graph attention convolution. Read by ``model.convs.gat``."""

    heads: Annotated[PositiveInt, Range(choices=(1, 2, 4, 8))] = 4
    """Attentions side by side, each over its own part of the channels; a divisor of the
    features."""

    negative_slope: Annotated[float, Field(ge=0, le=1), Range(low=0.0, high=0.4)] = 0.2
    """Slope far below zero of the smooth ramp in the attention; it is 1 far above."""


def _check(d: Dimensions, o: Config) -> None:
    assert isinstance(o, GATOptions)
    check_heads("gat", o.heads, d.features)


def _parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    return 2 * linear(f, f) + linear(d.basis_size, f, bias=False) + 2 * f


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, GATOptions)
    f = d.features
    scores = (s.edges + s.nodes) * products(f, o.heads)
    return s.nodes * 2 * products(f, f) + s.pairs * products(d.basis_size, f) + scores


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, GATOptions)
    f, h = d.features, o.heads
    return s.edges * (2 * f + 2 * h) + s.nodes * (8 * f + 4 * h)


SPEC = ConvSpec(GATOptions, _parameters, _flops, _kept, check=_check)
