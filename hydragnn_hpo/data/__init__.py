"""From structures to batches of graphs: readers, neighbours, stores, splits, batches."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.data.batch import Batch, Prefetcher, make_batch
    from hydragnn_hpo.data.batch_layout import cut_filler, pad_batch
    from hydragnn_hpo.data.batch_sampler import BatchSampler, balance_load, predict_graph_costs
    from hydragnn_hpo.data.build_plan import Piece, find_file, find_files, make_source, work_path
    from hydragnn_hpo.data.columns import (
        Columns,
        Graph,
        GraphSet,
        Names,
        columns_of,
        contain_others,
        join_columns,
        offsets,
        without_edges,
    )
    from hydragnn_hpo.data.composition import Compositions
    from hydragnn_hpo.data.convert_pieces import read_piece
    from hydragnn_hpo.data.edge_pairs import load_cached_layout
    from hydragnn_hpo.data.feature_cache import FeatureCache
    from hydragnn_hpo.data.file_inspection import (
        DataFile,
        Inspection,
        describe_periodicity,
        inspect_files,
    )
    from hydragnn_hpo.data.folds import NONE, deal_folds, leave_fold_out
    from hydragnn_hpo.data.force_check import compare_forces, read_labels
    from hydragnn_hpo.data.graph_sizes import size_stats
    from hydragnn_hpo.data.mixture import Mixture, close, unite
    from hydragnn_hpo.data.normalize import expand_mean
    from hydragnn_hpo.data.properties import FAR, make_identifier, mark_far
    from hydragnn_hpo.data.pyg_dataset import GraphStore, PygDataset
    from hydragnn_hpo.data.quality import UnresolvedTwins, check_store, find_twins_of_models
    from hydragnn_hpo.data.store_access import open_store
    from hydragnn_hpo.data.store_builder import (
        BuildProgress,
        build_store,
        build_with_ranks,
        find_communicator,
        run_at_root,
    )
    from hydragnn_hpo.data.store_parts import reserve_disk
    from hydragnn_hpo.data.store_summary import describe_store
    from hydragnn_hpo.data.structure import (
        Place,
        Rules,
        attributes_of,
        compute_laplacian_encodings,
        edge_vectors,
        find_edges,
        graph_of,
    )
    from hydragnn_hpo.data.targets import UNKNOWN

__all__ = [
    "Batch",
    "BatchSampler",
    "BuildProgress",
    "Columns",
    "Compositions",
    "DataFile",
    "FAR",
    "FeatureCache",
    "Graph",
    "GraphSet",
    "GraphStore",
    "Inspection",
    "Mixture",
    "NONE",
    "Names",
    "Piece",
    "Place",
    "Prefetcher",
    "PygDataset",
    "Rules",
    "UNKNOWN",
    "UnresolvedTwins",
    "attributes_of",
    "balance_load",
    "build_store",
    "build_with_ranks",
    "check_store",
    "close",
    "columns_of",
    "compare_forces",
    "compute_laplacian_encodings",
    "contain_others",
    "cut_filler",
    "deal_folds",
    "describe_periodicity",
    "describe_store",
    "edge_vectors",
    "expand_mean",
    "find_communicator",
    "find_edges",
    "find_file",
    "find_files",
    "find_twins_of_models",
    "graph_of",
    "inspect_files",
    "join_columns",
    "leave_fold_out",
    "load_cached_layout",
    "make_batch",
    "make_identifier",
    "make_source",
    "mark_far",
    "offsets",
    "open_store",
    "pad_batch",
    "predict_graph_costs",
    "read_labels",
    "read_piece",
    "reserve_disk",
    "run_at_root",
    "size_stats",
    "unite",
    "without_edges",
    "work_path",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
