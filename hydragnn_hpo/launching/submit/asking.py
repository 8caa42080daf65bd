"""The commands of a scheduler, run: the only place of this room that starts a process."""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.submit.records import BatchJob, JobRecords
from hydragnn_hpo.launching.submit.schedulers import Queued, Scheduler, scheduler_of

SUBMIT_SECONDS = 120.0
ASK_SECONDS = 15.0
"""Nobody waits longer for ``status``, however busy the scheduler is."""

_OURS = ("HYDRAGNN_HPO_END", "HYDRAGNN_HPO_END_MARGIN", "HYDRAGNN_HPO_HOSTS")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


def check_there(scheduler: Scheduler) -> None:
    """Refuse where jobs cannot be submitted.

    Raises:
        ConfigError: the scheduler's command is not on PATH.
    """
    if shutil.which(scheduler.program) is None:
        raise ConfigError(
            f"there is no '{scheduler.program}' on PATH: submit from a login node of the machine, "
            "or look at the script with --dry-run."
        )


def submit_script(argv: Sequence[str], folder: Path) -> str:
    """Submit from the folder that holds the script, which gets the logs; gives the answer.

    Raises:
        JobError: the scheduler refuses, or does not answer.
    """
    environment = outside_of_jobs(os.environ)
    return _run(argv, SUBMIT_SECONDS, environment, folder)


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the environment without what describes the job that we are in.

    Schedulers hand it on to the next job, which has other hosts and another end.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name in _OURS or name.startswith(("SLURM_", "PBS_", "PMI_")))
    }


def take_back(records: JobRecords, jobs: Sequence[BatchJob]) -> list[str]:
    """Take back those of some jobs that have not begun; gives their numbers.

    Raises:
        JobError: a scheduler does not answer.
    """
    taken = []
    waiting = [job for job in jobs if job.began is None and job.ended is None]
    for name in sorted({job.scheduler for job in waiting}):
        scheduler, ids = scheduler_of(name), [job.id for job in waiting if job.scheduler == name]
        if (known := standing(scheduler, ids)) is None:
            raise JobError(
                f"'{scheduler.ask(ids)[0]}' gives no answer, so {', '.join(ids)} stay queued."
            )
        queued = [job for job in ids if job in known and known[job].state == "queued"]
        if queued:
            _run(scheduler.cancel(queued), SUBMIT_SECONDS, os.environ, records.folder)
        taken += queued
    for job in taken:
        records.note(job, "ended", time=time.time(), code=None, said="taken back")
    return taken


def standing(scheduler: Scheduler, ids: Sequence[str]) -> dict[str, Queued] | None:
    """Ask how jobs stand; those that ended are left out; None where nobody answers in time."""
    if not ids:
        return {}
    try:
        answer = subprocess.run(
            scheduler.ask(ids), capture_output=True, text=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    unknown = _forgotten(answer.stderr)
    if answer.returncode != 0 and not answer.stdout and not unknown:
        return None
    return scheduler.states(answer.stdout)


def _forgotten(said: str) -> bool:
    """Say whether a scheduler only complains that it has forgotten a job."""
    return any(words in said for words in ("Invalid job id", "Unknown Job Id", "has finished"))


def _run(argv: Sequence[str], seconds: float, environment: Mapping[str, str], folder: Path) -> str:
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, timeout=seconds, env=dict(environment), cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"'{argv[0]}' gives no answer ({error}): try again later.") from error
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise JobError(f"'{argv[0]}' refuses: {said[-1] if said else answer.returncode}.")
    return answer.stdout
