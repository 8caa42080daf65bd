"""Convs without vectors: options, numbers of parameters, operations and saved values; no torch."""

from typing import Annotated, Literal

from pydantic import Field

from hydragnn_hpo.config.convs.spec import (
    ConvSpec,
    Dimensions,
    GraphSizes,
    Range,
    Width,
    chain,
    check_heads,
    linear,
    products,
)
from hydragnn_hpo.config.schema import Config


class GINOptions(Config):
    """Options of the graph isomorphism convolution. Read by ``model.convs.gin``."""

    learn_eps: Annotated[bool, Range(choices=(True, False))] = True
    """Learn the weight of the node itself relative to its neighbours; otherwise it is 1."""


def _gin_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, GINOptions)
    return chain(d.features, d.features, d.features) + int(o.learn_eps)


def _gin_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * products(d.features, d.features, d.features)


def _gin_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * 4 * d.features


GIN = ConvSpec(
    GINOptions, _gin_parameters, _gin_flops, _gin_kept, edge_features=False, forces=False
)


class SAGEOptions(Config):
    """Options of the sample and aggregate convolution. Read by ``model.convs.sage``."""

    aggregation: Annotated[Literal["mean", "sum", "max"], Range(choices=("mean", "sum", "max"))] = (
        "mean"
    )
    """How features of neighbours are combined; for ``max`` they pass through a linear layer and
    SiLU first."""


def _sage_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, SAGEOptions)
    f = d.features
    pool = linear(f, f) if o.aggregation == "max" else 0
    return linear(f, f, bias=False) + linear(f, f) + pool


def _sage_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SAGEOptions)
    maps = 3 if o.aggregation == "max" else 2
    return s.nodes * maps * products(d.features, d.features)


def _sage_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SAGEOptions)
    if o.aggregation == "max":
        return s.edges * d.features + s.nodes * 6 * d.features
    return s.nodes * 3 * d.features


SAGE = ConvSpec(
    SAGEOptions, _sage_parameters, _sage_flops, _sage_kept, edge_features=False, forces=False
)


class GATOptions(Config):
    """Options of the graph attention convolution. Read by ``model.convs.gat``."""

    heads: Annotated[Width, Range(choices=(1, 2, 4, 8))] = 4
    """Number of attention heads, each over an equal part of the channels; must divide
    ``features``."""

    negative_slope: Annotated[float, Field(ge=0, le=1), Range(low=0.0, high=0.4)] = 0.2
    """Slope of the smooth activation of attention scores far below zero; far above it is 1."""


def _gat_check(d: Dimensions, o: Config) -> None:
    assert isinstance(o, GATOptions)
    check_heads("gat", o.heads, d.features)


def _gat_parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    return 2 * linear(f, f) + linear(d.basis_size, f, bias=False) + 2 * f


def _gat_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, GATOptions)
    f = d.features
    scores = (s.edges + s.nodes) * products(f, o.heads)
    return s.nodes * 2 * products(f, f) + s.pairs * products(d.basis_size, f) + scores


def _gat_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, GATOptions)
    f, h = d.features, o.heads
    return s.edges * (2 * f + 2 * h) + s.nodes * (8 * f + 4 * h)


GAT = ConvSpec(GATOptions, _gat_parameters, _gat_flops, _gat_kept, check=_gat_check, tried_first=7)


class MFCOptions(Config):
    """Options of the molecular fingerprint convolution. Read by ``model.convs.mfc``."""

    max_degree: Annotated[int, Field(gt=0, le=1000), Range(low=4, high=20, log=True)] = 10
    """Highest number of neighbours that has separate weights; nodes with more neighbours use
    these."""


def _mfc_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, MFCOptions)
    return (o.max_degree + 1) * 2 * d.features * d.features + d.features


def _mfc_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * products(4 * d.features, d.features)


def _mfc_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.nodes * 6 * d.features


MFC = ConvSpec(
    MFCOptions, _mfc_parameters, _mfc_flops, _mfc_kept, edge_features=False, forces=False
)


class CGCNNOptions(Config):
    """Options of the crystal graph convolution. Read by ``model.convs.cgcnn``."""

    activation: Annotated[Literal["softplus", "silu"], Range(choices=("softplus", "silu"))] = (
        "softplus"
    )
    """Activation of the gated part of a message: softplus as published, or SiLU."""


def _cgcnn_parameters(d: Dimensions, o: Config) -> int:
    f = d.features
    ends = linear(f, 2 * f) + linear(f, 2 * f, bias=False)
    return ends + linear(d.basis_size, 2 * f, bias=False)


def _cgcnn_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.nodes * 2 * products(f, 2 * f) + s.pairs * products(d.basis_size, 2 * f)


def _cgcnn_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    return s.edges * 5 * d.features + s.nodes * d.features


CGCNN = ConvSpec(CGCNNOptions, _cgcnn_parameters, _cgcnn_flops, _cgcnn_kept, tried_first=6)


class SchNetOptions(Config):
    """Options of the continuous-filter convolution. Read by ``model.convs.schnet``."""

    filters: Annotated[Width, Range(low=16, high=128, log=True)] = 64
    """Width of the filters that are computed from distances."""


def _schnet_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return chain(d.basis_size, w, w) + linear(f, w, bias=False) + chain(w, f, f)


def _schnet_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return s.pairs * products(d.basis_size, w, w) + s.nodes * products(f, w, f, f)


def _schnet_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, SchNetOptions)
    f, w = d.features, o.filters
    return s.pairs * 3 * w + s.nodes * (2 * f + 3 * w)


SCHNET = ConvSpec(SchNetOptions, _schnet_parameters, _schnet_flops, _schnet_kept, tried_first=2)


class EGNNOptions(Config):
    """Options of the E(n)-equivariant convolution. Read by ``model.convs.egnn``."""

    attention: Annotated[bool, Range(choices=(True, False))] = True
    """Multiply each message by a learned gate between 0 and 1."""


def _egnn_parameters(d: Dimensions, o: Config) -> int:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False) + linear(f, f)
    return message + (linear(f, 1) if o.attention else 0) + chain(2 * f, f, f)


def _egnn_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    assert isinstance(o, EGNNOptions)
    f, k = d.features, d.basis_size
    gate = products(f, 1) if o.attention else 0.0
    edges = s.pairs * products(k, f) + s.edges * (products(f, f) + gate)
    return edges + s.nodes * (2 * products(f, f) + products(2 * f, f, f))


def _egnn_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.edges * (4 * f + 2) + s.nodes * 6 * f


EGNN = ConvSpec(EGNNOptions, _egnn_parameters, _egnn_flops, _egnn_kept, tried_first=3)

AGGREGATIONS = 4
"""Number of aggregations: mean, spread, maximum and minimum."""


class PNAOptions(Config):
    """Options of principal neighbourhood aggregation. Read by ``model.convs.pna``."""

    scalers: Annotated[bool, Range(choices=(True, False))] = True
    """Add two copies of every aggregation, amplified and attenuated by the number of neighbours."""


def aggregator_copies(options: Config) -> int:
    """Count the copies of each aggregation: plain only, or plain, amplified and attenuated."""
    return 3 if getattr(options, "scalers", True) else 1


def gathering_parameters(features: int, options: Config) -> int:
    """Count the parameters of the map from all aggregations to F channels."""
    return linear(AGGREGATIONS * aggregator_copies(options) * features, features)


def gathering_flops(features: int, options: Config, nodes: float) -> float:
    """Count the operations of the map from all aggregations to F channels.

    Args:
        features: channels per node, F.
        options: options of the conv; ``scalers`` decides how many copies there are.
        nodes: number of nodes in the pass.

    Returns:
        Multiplications and additions of one forward pass.
    """
    return nodes * products(AGGREGATIONS * aggregator_copies(options) * features, features)


def _pna_parameters(d: Dimensions, o: Config) -> int:
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False)
    return message + gathering_parameters(f, o) + chain(2 * f, f)


def _pna_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    message = s.nodes * 2 * products(f, f) + s.pairs * products(d.basis_size, f)
    return message + gathering_flops(f, o, s.nodes) + s.nodes * products(2 * f, f)


def _pna_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    return s.edges * (2 * f + 1) + s.nodes * (AGGREGATIONS * aggregator_copies(o) + 7) * f


PNA = ConvSpec(PNAOptions, _pna_parameters, _pna_flops, _pna_kept)


class PNAPlusOptions(PNAOptions):
    """Options of aggregation of filtered messages. Read by ``model.convs.pnaplus``."""


def _pnaplus_parameters(d: Dimensions, o: Config) -> int:
    f, k = d.features, d.basis_size
    message = linear(f, f) + linear(f, f, bias=False) + linear(k, f, bias=False)
    return message + chain(k, f, f) + gathering_parameters(f, o) + chain(2 * f, f)


def _pnaplus_flops(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f, k = d.features, d.basis_size
    message = s.nodes * 2 * products(f, f) + s.pairs * (products(k, f) + products(k, f, f))
    return message + gathering_flops(f, o, s.nodes) + s.nodes * products(2 * f, f)


def _pnaplus_kept(d: Dimensions, o: Config, s: GraphSizes) -> float:
    f = d.features
    views = AGGREGATIONS * aggregator_copies(o)
    return s.edges * (3 * f + 1) + s.pairs * 3 * f + s.nodes * (views + 7) * f


PNAPLUS = ConvSpec(
    PNAPlusOptions, _pnaplus_parameters, _pnaplus_flops, _pnaplus_kept, tried_first=4
)
