"""The multi-headed GNN: trunk, convs, heads."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.model.activations import ShiftedSoftplus
    from hydragnn_hpo.model.conditioning import (
        FrozenFeatures,
        GlobalRound,
        LaplacianEncoding,
        RandomWalkEncoding,
    )
    from hydragnn_hpo.model.derivatives import attach_strain, forces_and_stress, total_energy
    from hydragnn_hpo.model.gnn import (
        MultiHeadGNN,
        Round,
        RoundContext,
        Trunk,
        check_options,
        find_conv,
        variance_key,
    )
    from hydragnn_hpo.model.kernels.passes import choose_kernels
    from hydragnn_hpo.model.layers import AttentionPool, pool_max, pool_mean
    from hydragnn_hpo.model.pyg_conv import PygConv, as_pyg
    from hydragnn_hpo.model.renamed_weights import rename_weights

__all__ = [
    "AttentionPool",
    "FrozenFeatures",
    "GlobalRound",
    "LaplacianEncoding",
    "MultiHeadGNN",
    "PygConv",
    "RandomWalkEncoding",
    "Round",
    "RoundContext",
    "ShiftedSoftplus",
    "Trunk",
    "as_pyg",
    "attach_strain",
    "check_options",
    "choose_kernels",
    "find_conv",
    "forces_and_stress",
    "pool_max",
    "pool_mean",
    "rename_weights",
    "total_energy",
    "variance_key",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
