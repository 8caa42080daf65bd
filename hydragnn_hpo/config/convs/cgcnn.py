"""CGCNN without torch. Built by ``model.convs.cgcnn``."""

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


class CGCNNOptions(Config):
    """Options of the crystal graph convolution. Read by ``model.convs.cgcnn``."""

    activation: Annotated[Literal["softplus", "silu"], Range(choices=("softplus", "silu"))] = (
        "softplus"
    )
    """Non-linearity of what the gate lets through: softplus as published, or SiLU."""


def _parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    ends = linear(f, 2 * f) + linear(f, 2 * f, bias=False)
    return ends + linear(d.basis_size, 2 * f, bias=False)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.nodes * 2 * products(f, 2 * f) + s.pairs * products(d.basis_size, 2 * f)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.edges * 5 * d.features + s.nodes * d.features


SPEC = ConvSpec(CGCNNOptions, _parameters, _flops, _kept)
