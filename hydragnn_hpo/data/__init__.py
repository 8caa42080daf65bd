"""From structures to batches of graphs: readers, neighbours, stores, splits, batches."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.data.batch import Batch, Prefetcher, make_batch
    from hydragnn_hpo.data.batch_layout import pad_batch
    from hydragnn_hpo.data.batch_sampler import balance_load
    from hydragnn_hpo.data.columns import (
        Columns,
        Graph,
        GraphSet,
        columns_of,
        contain_others,
        offsets,
    )
    from hydragnn_hpo.data.composition import Compositions
    from hydragnn_hpo.data.feature_cache import FeatureCache
    from hydragnn_hpo.data.graph_sizes import size_stats
    from hydragnn_hpo.data.mixture import close, unite
    from hydragnn_hpo.data.normalize import expand_mean
    from hydragnn_hpo.data.properties import FAR, make_identifier, mark_far
    from hydragnn_hpo.data.pyg_dataset import GraphStore
    from hydragnn_hpo.data.store_access import open_store, remove_stages
    from hydragnn_hpo.data.structure import Place, Rules, edge_vectors, find_edges, graph_of

__all__ = [
    "Batch",
    "Columns",
    "Compositions",
    "FAR",
    "FeatureCache",
    "Graph",
    "GraphSet",
    "GraphStore",
    "Place",
    "Prefetcher",
    "Rules",
    "balance_load",
    "close",
    "columns_of",
    "contain_others",
    "edge_vectors",
    "expand_mean",
    "find_edges",
    "graph_of",
    "make_batch",
    "make_identifier",
    "mark_far",
    "offsets",
    "open_store",
    "remove_stages",
    "pad_batch",
    "size_stats",
    "unite",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
