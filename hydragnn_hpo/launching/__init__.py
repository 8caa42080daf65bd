"""Run jobs: slots, jobs and events (``job``), and the backends that run them.

Knows floor 0 only and never imports torch; ``local`` runs jobs on this computer.
"""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.launching.batch_jobs import (
        DRAINED,
        MAX_JOBS,
        BatchJob,
        BatchRequest,
        JobRecords,
        cancel_queued_jobs,
        check_batch_request,
        check_scheduler_installed,
        compare_with_request,
        decide_end,
        decide_start,
        find_own_job,
        in_batch_job,
        look_command,
        parse_walltime,
        query_jobs,
        select_alive,
        settle_submissions,
        submit_jobs,
    )
    from hydragnn_hpo.launching.batch_script import ScriptContent, render_batch_script
    from hydragnn_hpo.launching.command_rank import spec_of
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
    from hydragnn_hpo.launching.environment import check_software, software_here
    from hydragnn_hpo.launching.excluded_hosts import add_excluded, read_excluded, read_run_excluded
    from hydragnn_hpo.launching.fleet import Fleet
    from hydragnn_hpo.launching.job import (
        ABSENT_SECONDS,
        JOBS,
        PRELOAD,
        Backend,
        Event,
        Job,
        Slot,
    )
    from hydragnn_hpo.launching.launcher_detection import (
        RANK_VARIABLES,
        THREADS,
        LauncherInfo,
        bind_threads,
        detect_launcher,
        torchrun_environment,
    )
    from hydragnn_hpo.launching.link import ControllerAddress, announce_leaving, read_address
    from hydragnn_hpo.launching.packed_environment import pack_environment
    from hydragnn_hpo.launching.process_control import end_orphans, run_tag
    from hydragnn_hpo.launching.profile_adapter import layout_of, site_of
    from hydragnn_hpo.launching.rank_environment import DEVICE, overruled
    from hydragnn_hpo.launching.schedulers import SCHEDULERS, WAITING, QueueEntry
    from hydragnn_hpo.launching.slots import detect_slots
    from hydragnn_hpo.launching.slurm_allocation import (
        compress_hosts,
        find_excluded,
        sort_by_number,
        step_environment,
    )
    from hydragnn_hpo.launching.transports.local import LocalBackend
    from hydragnn_hpo.launching.transports.mpiexec import find_mpiexec, mpiexec_transport
    from hydragnn_hpo.launching.transports.ray import RayTransport
    from hydragnn_hpo.launching.transports.slurm import slurm_transport
    from hydragnn_hpo.launching.transports.transport import AgentCall, Transport

__all__ = [
    "ABSENT_SECONDS",
    "AgentCall",
    "Backend",
    "BatchJob",
    "BatchRequest",
    "ControllerAddress",
    "CounterSample",
    "DEVICE",
    "DRAINED",
    "Event",
    "Finding",
    "Fleet",
    "JOBS",
    "Job",
    "JobHosts",
    "JobRecords",
    "LauncherInfo",
    "LocalBackend",
    "MAX_JOBS",
    "ORDER",
    "PRELOAD",
    "QueueEntry",
    "RANK_VARIABLES",
    "RayTransport",
    "SCHEDULERS",
    "ScriptContent",
    "Slot",
    "State",
    "THREADS",
    "Transport",
    "WAITING",
    "add_excluded",
    "announce_leaving",
    "bind_threads",
    "cancel_queued_jobs",
    "check_batch_request",
    "check_scheduler_installed",
    "check_software",
    "compare_with_request",
    "compress_hosts",
    "decide_end",
    "decide_start",
    "detect_launcher",
    "detect_slots",
    "end_orphans",
    "examine_hosts",
    "find_devices",
    "find_job_hosts",
    "find_excluded",
    "find_outliers",
    "find_mpiexec",
    "find_own_job",
    "in_batch_job",
    "layout_of",
    "look_command",
    "make_request",
    "mpiexec_transport",
    "overruled",
    "pack_environment",
    "parse_walltime",
    "query_jobs",
    "read_address",
    "read_excluded",
    "read_run_excluded",
    "render_batch_script",
    "run_tag",
    "select_alive",
    "settle_submissions",
    "site_of",
    "slurm_transport",
    "software_here",
    "sort_by_number",
    "spec_of",
    "step_environment",
    "submit_jobs",
    "temporary_folder",
    "to_exclude",
    "torchrun_environment",
    "worst",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
