"""The equivariant transformer without torch. Built by ``model.convs.et``."""

from typing import Annotated

from pydantic import PositiveInt

from hydragnn_hpo.config.convs.painn import sent_channels
from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    chain,
    check_heads,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class ETOptions(Config):
    """Options of the equivariant transformer convolution. Read by ``model.convs.et``."""

    heads: Annotated[PositiveInt, Range(choices=(1, 2, 4, 8))] = 8
    """Attentions side by side, each over its own part of the channels; a divisor of the
    features."""


def _check(d: Dimensions, o: Config) -> None:
    assert isinstance(o, ETOptions)
    check_heads("et", o.heads, d.features)


def _parameters(d: Dimensions, o: Config) -> int:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    attention = 2 * linear(f, f) + linear(k, f)
    message = linear(f, sent * f) + linear(k, sent * f) + linear(f, f)
    return attention + message + linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    edges = s.pairs * (products(k, f) + products(k + 1, sent * f))
    message = s.nodes * products(f, (sent + 3) * f)
    return edges + message + s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, ETOptions)
    f, sent = d.features, sent_channels(d)
    pairs = (sent + 2) * f + 2 * d.basis_size
    return s.pairs * pairs + s.edges * (f + 2 * o.heads) + s.nodes * 32 * f


SPEC = ConvSpec(ETOptions, _parameters, _flops, _kept, vectors=True, check=_check)
