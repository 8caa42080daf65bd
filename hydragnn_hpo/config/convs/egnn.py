"""EGNN without torch. Built by ``model.convs.egnn``."""

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


class EGNNOptions(Config):
    """Options of the E(n)-equivariant convolution. Read by ``model.convs.egnn``."""

    attention: Annotated[bool, Range(choices=(True, False))] = True
    """Weigh each message by a learned gate between 0 and 1."""


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False) + linear(f, f)
    return message + (linear(f, 1) if o.attention else 0) + chain(2 * f, f, f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    gate = products(f, 1) if o.attention else 0.0
    edges = s.pairs * products(k, f) + s.edges * (products(f, f) + gate)
    return edges + s.nodes * (2 * products(f, f) + products(2 * f, f, f))


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.edges * (4 * f + 2) + s.nodes * 6 * f


SPEC = ConvSpec(EGNNOptions, _parameters, _flops, _kept)
