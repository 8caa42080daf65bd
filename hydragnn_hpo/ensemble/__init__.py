"""The winners of a campaign as one predictor with calibrated uncertainty."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble.artefact import (
        ArtefactContent,
        Manifest,
        find_constants,
        read_artefact,
    )
    from hydragnn_hpo.ensemble.artefact_writer import render_model_card, write_artefact
    from hydragnn_hpo.ensemble.build import build_ensemble
    from hydragnn_hpo.ensemble.calculator import EnsembleCalculator, SpreadExceeded, StopAtSpread
    from hydragnn_hpo.ensemble.engine import AUTO, device_of
    from hydragnn_hpo.ensemble.evaluation import (
        Evaluation,
        HeadEvaluation,
        LabelledStructures,
        evaluate_ensemble,
        match_card_labels,
        parse_label_options,
        read_labelled,
        read_split,
    )
    from hydragnn_hpo.ensemble.inference import Ensemble
    from hydragnn_hpo.ensemble.multi_rank import predict_as_rank
    from hydragnn_hpo.ensemble.pick import (
        PickRequest,
        PickResult,
        PickTable,
        check_picks_format,
        make_ranking,
        pick_structures,
        pick_unlike,
        picks_to_plain,
        write_picks,
    )
    from hydragnn_hpo.ensemble.predict_file import (
        PredictRequest,
        make_writer,
        predict_chunks,
        stream_rows,
    )
    from hydragnn_hpo.ensemble.predict_output import (
        EXTXYZ_SUFFIXES,
        OutputFormat,
        PartHeader,
        PredictedRows,
        PredictOutcome,
    )
    from hydragnn_hpo.ensemble.prediction import HeadPrediction, Prediction, StructurePrediction
    from hydragnn_hpo.ensemble.prune import PruneEffect, choose_members, prune_members
    from hydragnn_hpo.ensemble.serve import Limits, make_app
    from hydragnn_hpo.ensemble.structure_batches import (
        ChunkReader,
        StructureFiles,
        Structures,
        is_store,
        list_input_sources,
        read_structures,
        refuse_to_replace,
        rules_for,
    )
    from hydragnn_hpo.ensemble.torch_export import export_program
    from hydragnn_hpo.ensemble.uncertainty_scores import (
        bins_of_equal_count,
        compute_distance_figures,
        flatten_values,
    )

__all__ = [
    "AUTO",
    "EXTXYZ_SUFFIXES",
    "ArtefactContent",
    "ChunkReader",
    "Ensemble",
    "EnsembleCalculator",
    "Evaluation",
    "HeadEvaluation",
    "HeadPrediction",
    "LabelledStructures",
    "Limits",
    "Manifest",
    "OutputFormat",
    "PartHeader",
    "PickRequest",
    "PickResult",
    "PickTable",
    "PredictOutcome",
    "PredictRequest",
    "PredictedRows",
    "Prediction",
    "PruneEffect",
    "SpreadExceeded",
    "StopAtSpread",
    "StructureFiles",
    "StructurePrediction",
    "Structures",
    "bins_of_equal_count",
    "build_ensemble",
    "check_picks_format",
    "choose_members",
    "compute_distance_figures",
    "device_of",
    "evaluate_ensemble",
    "export_program",
    "find_constants",
    "flatten_values",
    "is_store",
    "list_input_sources",
    "make_app",
    "make_ranking",
    "make_writer",
    "match_card_labels",
    "parse_label_options",
    "pick_structures",
    "pick_unlike",
    "picks_to_plain",
    "predict_as_rank",
    "predict_chunks",
    "prune_members",
    "read_artefact",
    "read_labelled",
    "read_split",
    "read_structures",
    "refuse_to_replace",
    "rules_for",
    "render_model_card",
    "stream_rows",
    "write_artefact",
    "write_picks",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
