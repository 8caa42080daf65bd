"""Convs without torch: options, capabilities and cost formulas. Built by ``model.convs``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt

from hydragnn_hpo.config.schema import Config


class SchNetOptions(Config):
    """Options of the continuous-filter convolution. Read by ``model.convs.schnet``."""

    filters: PositiveInt = 64
    """Width of the filters that distances generate."""


class EGNNOptions(Config):
    """Options of the E(n)-equivariant convolution. Read by ``model.convs.egnn``."""

    attention: bool = True
    """Weigh each message by a learned gate between 0 and 1."""


class PaiNNOptions(Config):
    """Options of the polarizable interaction convolution. Read by ``model.convs.painn``."""

    activation: Literal["silu", "ssp"] = "silu"
    """Non-linearity: SiLU, or shifted softplus."""


@dataclass(frozen=True)
class Dimensions:
    """What a conv's cost depends on, beside the graph: widths of its inputs."""

    features: int
    basis_size: int


@dataclass(frozen=True)
class ConvSpec:
    """What the controller must know about a conv without building it."""

    options: type[Config]
    vectors: bool
    """Carries equivariant vectors, so that node-level vector heads are possible."""
    parameters: Callable[[Dimensions, Config], int]
    """Number of parameters of one layer."""
    flops: Callable[[Dimensions, Config, float, float], float]
    """Floating point operations of one forward layer, from dimensions, options, nodes, edges."""


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Count the parameters of a linear map."""
    return inputs * outputs + (outputs if bias else 0)


def _schnet_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, SchNetOptions)
    f, k = d.features, d.basis_size
    filters = linear(k, o.filters) + linear(o.filters, o.filters)
    return filters + linear(f, o.filters, bias=False) + linear(o.filters, f) + linear(f, f)


def _schnet_flops(d: Dimensions, o: Config, nodes: float, edges: float) -> float:
    assert isinstance(o, SchNetOptions)
    f, k, w = d.features, d.basis_size, o.filters
    return 2.0 * edges * (k * w + w * w) + 2.0 * nodes * (2 * f * w + f * f)


def _egnn_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False) + linear(f, f)
    return message + (linear(f, 1) if o.attention else 0) + linear(2 * f, f) + linear(f, f)


def _egnn_flops(d: Dimensions, o: Config, nodes: float, edges: float) -> float:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    gate = f if o.attention else 0
    return 2.0 * edges * (k * f + f * f + gate) + 2.0 * nodes * (2 * f * f + 3 * f * f)


def _painn_parameters(d: Dimensions, o: Config) -> int:
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, 3 * f) + linear(k, 3 * f)
    update = linear(f, 2 * f, bias=False) + linear(2 * f, f) + linear(f, 3 * f)
    return message + update


def _painn_flops(d: Dimensions, o: Config, nodes: float, edges: float) -> float:
    f, k = d.features, d.basis_size
    message = 2.0 * nodes * (f * f + 3 * f * f) + 2.0 * edges * 3 * k * f
    return message + 2.0 * nodes * (3 * 2 * f * f + 2 * f * f + 3 * f * f)


CONV_SPECS: dict[str, ConvSpec] = {
    "schnet": ConvSpec(SchNetOptions, False, _schnet_parameters, _schnet_flops),
    "egnn": ConvSpec(EGNNOptions, False, _egnn_parameters, _egnn_flops),
    "painn": ConvSpec(PaiNNOptions, True, _painn_parameters, _painn_flops),
}
