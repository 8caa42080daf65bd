"""Run jobs: slots, jobs and events (``job``), and the backends that run them.

Knows floor 0 only and never imports torch; ``local`` runs jobs on this computer.
"""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.launching.batch_jobs import in_batch_job
    from hydragnn_hpo.launching.job import JOBS, Backend, Event, Job, Slot
    from hydragnn_hpo.launching.profile_adapter import layout_of, site_of
    from hydragnn_hpo.launching.slots import detect_slots, find_devices
    from hydragnn_hpo.launching.slurm_allocation import step_environment
    from hydragnn_hpo.launching.transports import find_backend

__all__ = [
    "Backend",
    "Event",
    "JOBS",
    "Job",
    "Slot",
    "detect_slots",
    "find_backend",
    "find_devices",
    "in_batch_job",
    "layout_of",
    "site_of",
    "step_environment",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
