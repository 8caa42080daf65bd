"""The multi-headed GNN: trunk, convs, heads."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.model.attention import GlobalRound
    from hydragnn_hpo.model.conv_registry import find_conv
    from hydragnn_hpo.model.derivatives import attach_strain, forces_and_stress
    from hydragnn_hpo.model.encodings import LaplacianEncoding, RandomWalkEncoding
    from hydragnn_hpo.model.gnn import MultiHeadGNN, variance_key
    from hydragnn_hpo.model.layers import ShiftedSoftplus
    from hydragnn_hpo.model.pooling import AttentionPool, node_counts, pool_max, pool_mean
    from hydragnn_hpo.model.trunk import Round, RoundContext, Trunk

__all__ = [
    "AttentionPool",
    "GlobalRound",
    "LaplacianEncoding",
    "MultiHeadGNN",
    "RandomWalkEncoding",
    "Round",
    "RoundContext",
    "ShiftedSoftplus",
    "Trunk",
    "attach_strain",
    "find_conv",
    "forces_and_stress",
    "node_counts",
    "pool_max",
    "pool_mean",
    "variance_key",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
