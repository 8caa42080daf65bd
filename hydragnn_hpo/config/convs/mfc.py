"""MFC without torch. Built by ``model.convs.mfc``."""

from typing import Annotated

from pydantic import PositiveInt

from hydragnn_hpo.config.convs.spec import ConvSpec, Dimensions, GraphSizes, Range, products
from hydragnn_hpo.config.schema import Config


class MFCOptions(Config):
    """Options of the molecular fingerprint convolution. Read by ``model.convs.mfc``."""

    max_degree: Annotated[PositiveInt, Range(low=4, high=20, log=True)] = 10
    """Highest number of neighbours with weights of its own; nodes with more share them."""


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, MFCOptions)
    return (o.max_degree + 1) * 2 * d.features * d.features + d.features


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * products(4 * d.features, d.features)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * 6 * d.features


SPEC = ConvSpec(MFCOptions, _parameters, _flops, _kept, edge_features=False, forces=False)
