"""The multi-headed GNN: trunk, convs, heads."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.kernels import choose_kernels
    from hydragnn_hpo.model.gnn import MultiHeadGNN, Trunk, variance_key
    from hydragnn_hpo.model.pyg_conv import as_pyg
    from hydragnn_hpo.model.renamed_weights import rename_weights

__all__ = [
    "MultiHeadGNN",
    "Trunk",
    "as_pyg",
    "choose_kernels",
    "rename_weights",
    "variance_key",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
