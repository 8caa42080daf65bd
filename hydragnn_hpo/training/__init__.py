"""Training of one trial, from configuration to result, on any number of ranks."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.training.checkpoint import read_checkpoint
    from hydragnn_hpo.training.cuda_graphs import Replays
    from hydragnn_hpo.training.ddp import adopt_mpi_environment, finalize_mpi
    from hydragnn_hpo.training.memory import is_out_of_memory, keep_freed_memory, release_memory
    from hydragnn_hpo.training.precision import DTYPES
    from hydragnn_hpo.training.profiler import ProfilePlan
    from hydragnn_hpo.training.trainer import check_model, make_sampler
    from hydragnn_hpo.training.trial import open_graphs, run_by_hand, run_placed

__all__ = [
    "DTYPES",
    "ProfilePlan",
    "Replays",
    "adopt_mpi_environment",
    "check_model",
    "finalize_mpi",
    "is_out_of_memory",
    "keep_freed_memory",
    "make_sampler",
    "open_graphs",
    "read_checkpoint",
    "release_memory",
    "run_by_hand",
    "run_placed",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
