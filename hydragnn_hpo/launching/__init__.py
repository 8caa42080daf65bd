"""Run jobs: slots, jobs and events (``job``), and the backends that run them.

Knows floor 0 only and never imports torch; ``local`` runs jobs on this computer.
"""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.launching.agent.command import spec_of
    from hydragnn_hpo.launching.counters import CounterSample
    from hydragnn_hpo.launching.devices import find_devices
    from hydragnn_hpo.launching.doctor import (
        JobHosts,
        examine_hosts,
        find_job_hosts,
        make_request,
        temporary_folder,
    )
    from hydragnn_hpo.launching.doctor_checks import (
        ORDER,
        Finding,
        State,
        find_outliers,
        to_exclude,
        worst,
    )
    from hydragnn_hpo.launching.excluded_hosts import add_excluded, read_excluded, read_run_excluded
    from hydragnn_hpo.launching.fleet.local import LocalBackend
    from hydragnn_hpo.launching.fleet.visit import Visit
    from hydragnn_hpo.launching.job import PRELOAD, Backend, Event, Job, Slot
    from hydragnn_hpo.launching.launcher_detection import (
        RANK_VARIABLES,
        THREADS,
        LauncherInfo,
        bind_threads,
        detect_launcher,
        torchrun_environment,
    )
    from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec, find_mpiexec
    from hydragnn_hpo.launching.launchers.processes import ProcessBackend
    from hydragnn_hpo.launching.launchers.steps import Steps
    from hydragnn_hpo.launching.process_control import end_orphans, run_tag
    from hydragnn_hpo.launching.profile_adapter import layout_of, site_of
    from hydragnn_hpo.launching.rank_environment import DEVICE, overruled
    from hydragnn_hpo.launching.ray.ray_backend import RayBackend
    from hydragnn_hpo.launching.slots import detect_slots
    from hydragnn_hpo.launching.slurm.hostlist import compress
    from hydragnn_hpo.launching.slurm.slurm_backend import SlurmBackend, hold
    from hydragnn_hpo.launching.slurm.slurm_transport import step_argv, step_environment
    from hydragnn_hpo.launching.slurm.topology import by_number
    from hydragnn_hpo.launching.staging.equip import check_software, software_here
    from hydragnn_hpo.launching.staging.pack import pack_environment
    from hydragnn_hpo.launching.submit.asking import check_there, standing, submit_script, take_back
    from hydragnn_hpo.launching.submit.chain import (
        DRAINED,
        Ending,
        begin_chain_job,
        end_chain_job,
        same_chain,
    )
    from hydragnn_hpo.launching.submit.order import MOST_JOBS, Order, check_order, wall_seconds
    from hydragnn_hpo.launching.submit.records import BatchJob, JobRecords
    from hydragnn_hpo.launching.submit.schedulers import Queued, scheduler_of, task_of, where_we_are
    from hydragnn_hpo.launching.submit.script import Content, batch_script

__all__ = [
    "Backend",
    "BatchJob",
    "Content",
    "CounterSample",
    "DEVICE",
    "DRAINED",
    "Ending",
    "Event",
    "Finding",
    "Job",
    "JobHosts",
    "JobRecords",
    "LauncherInfo",
    "LocalBackend",
    "MOST_JOBS",
    "Mpiexec",
    "ORDER",
    "Order",
    "PRELOAD",
    "ProcessBackend",
    "Queued",
    "RANK_VARIABLES",
    "RayBackend",
    "Slot",
    "SlurmBackend",
    "State",
    "Steps",
    "THREADS",
    "Visit",
    "add_excluded",
    "batch_script",
    "begin_chain_job",
    "bind_threads",
    "by_number",
    "check_order",
    "check_software",
    "check_there",
    "compress",
    "detect_launcher",
    "detect_slots",
    "end_chain_job",
    "end_orphans",
    "examine_hosts",
    "find_devices",
    "find_job_hosts",
    "find_mpiexec",
    "find_outliers",
    "hold",
    "layout_of",
    "make_request",
    "overruled",
    "pack_environment",
    "read_excluded",
    "read_run_excluded",
    "run_tag",
    "same_chain",
    "scheduler_of",
    "site_of",
    "software_here",
    "spec_of",
    "standing",
    "step_argv",
    "step_environment",
    "submit_script",
    "take_back",
    "task_of",
    "temporary_folder",
    "to_exclude",
    "torchrun_environment",
    "wall_seconds",
    "where_we_are",
    "worst",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
