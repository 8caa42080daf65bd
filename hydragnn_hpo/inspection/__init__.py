"""What is learnt of files and stores before anything is trained: targets, units, quality."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.inspection.file_inspection import inspect_files
    from hydragnn_hpo.inspection.unit_evidence import UNKNOWN

__all__ = [
    "UNKNOWN",
    "inspect_files",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
