"""The ensemble file: opened, predicted with, served, exported."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble.artefact import ArtefactContent, HeadEntry, Manifest, read_artefact
    from hydragnn_hpo.ensemble.artefact_writer import write_artefact
    from hydragnn_hpo.ensemble.calculator import EnsembleCalculator, SpreadExceeded, StopAtSpread
    from hydragnn_hpo.ensemble.inference import Ensemble
    from hydragnn_hpo.ensemble.pick import PickRequest, pick_structures
    from hydragnn_hpo.ensemble.predict_output import OutputFormat
    from hydragnn_hpo.ensemble.prediction import Prediction
    from hydragnn_hpo.ensemble.prune import prune_members
    from hydragnn_hpo.ensemble.structure_batches import (
        ChunkReader,
        StructureFiles,
        list_input_sources,
        read_structures,
    )
    from hydragnn_hpo.ensemble.torch_export import export_program

__all__ = [
    "ArtefactContent",
    "ChunkReader",
    "Ensemble",
    "EnsembleCalculator",
    "HeadEntry",
    "Manifest",
    "OutputFormat",
    "PickRequest",
    "Prediction",
    "SpreadExceeded",
    "StopAtSpread",
    "StructureFiles",
    "export_program",
    "list_input_sources",
    "pick_structures",
    "prune_members",
    "read_artefact",
    "read_structures",
    "write_artefact",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
