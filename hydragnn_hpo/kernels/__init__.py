"""Passes over the edges of graphs: eager torch is the reference, compiled loops are quick."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.kernels.aggregation import Neighbors, aggregate_messages
    from hydragnn_hpo.kernels.edge_functions import apply_edge_function
    from hydragnn_hpo.kernels.edge_pairs import pair_edges
    from hydragnn_hpo.kernels.kernel_choice import check_kernels, choose_kernels
    from hydragnn_hpo.kernels.passes import differentiate_form
    from hydragnn_hpo.kernels.scatter import Links

__all__ = [
    "Links",
    "Neighbors",
    "aggregate_messages",
    "apply_edge_function",
    "check_kernels",
    "choose_kernels",
    "differentiate_form",
    "pair_edges",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
