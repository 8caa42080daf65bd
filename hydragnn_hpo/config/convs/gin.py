"""GIN without torch. Built by ``model.convs.gin``."""

from typing import Annotated

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    chain,
    products,
)
from hydragnn_hpo.config.schema import Config


class GINOptions(Config):
    """Options of the graph isomorphism convolution. Read by ``model.convs.gin``."""

    learn_eps: Annotated[bool, Range(choices=(True, False))] = True
    """Learn how much more than a neighbour the node itself counts; otherwise it counts as one."""


def _parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, GINOptions)
    return chain(d.features, d.features, d.features) + int(o.learn_eps)


def _flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * products(d.features, d.features, d.features)


def _kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * 4 * d.features


SPEC = ConvSpec(GINOptions, _parameters, _flops, _kept, edge_features=False, forces=False)
