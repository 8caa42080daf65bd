"""Training of one trial, from configuration to result, on any number of ranks."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.training.memory import keep_freed_memory
    from hydragnn_hpo.training.trial import run_by_hand, run_placed

__all__ = [
    "keep_freed_memory",
    "run_by_hand",
    "run_placed",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
