"""PaiNN without torch. Built by ``model.convs.painn``."""

from typing import Annotated, Literal

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


class PaiNNOptions(Config):
    """Options of the polarizable interaction convolution. Read by ``model.convs.painn``."""

    activation: Annotated[Literal["silu", "ssp"], Range(choices=("silu", "ssp"))] = "silu"
    """Non-linearity: SiLU, or shifted softplus."""


def sent_channels(d: Dimensions) -> int:
    """Count what a layer sends: to scalars, on directions, and on vectors once there are any."""
    return 2 if d.layer == 0 else 3


def _parameters(d: Dimensions, o: Config) -> int:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    message = chain(f, f, sent * f) + linear(k, sent * f)
    return message + linear(f, 2 * f, bias=False) + chain(2 * f, f, 3 * f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, k, sent = d.features, d.basis_size, sent_channels(d)
    message = s.nodes * products(f, f, sent * f) + s.pairs * products(k + 1, sent * f)
    return message + s.nodes * (3 * products(f, 2 * f) + products(2 * f, f, 3 * f))


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return (s.pairs * sent_channels(d) + s.edges + s.nodes * 28) * f


SPEC = ConvSpec(PaiNNOptions, _parameters, _flops, _kept, vectors=True)
