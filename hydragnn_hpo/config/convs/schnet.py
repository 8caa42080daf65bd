"""SchNet without torch. Built by ``model.convs.schnet``."""

from typing import Annotated

from pydantic import PositiveInt

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


class SchNetOptions(Config):
    """Options of the continuous-filter convolution. Read by ``model.convs.schnet``."""

    filters: Annotated[PositiveInt, Range(low=16, high=128, log=True)] = 64
    """Width of the filters that distances generate."""


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return chain(d.basis_size, w, w) + linear(f, w, bias=False) + chain(w, f, f)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return s.pairs * products(d.basis_size, w, w) + s.nodes * products(f, w, f, f)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return s.pairs * 3 * w + s.nodes * (2 * f + 3 * w)


SPEC = ConvSpec(SchNetOptions, _parameters, _flops, _kept)
