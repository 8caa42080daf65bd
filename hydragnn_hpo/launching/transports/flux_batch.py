"""Batch jobs of Flux: commands, directives, states, and the hosts of a job.

A batch script is the first program of a Flux instance of its own, which holds the hosts of the job;
Flux sets no variable with the number or the end of the job there. So the head of our scripts
exports them, and makes ``FLUX_URI`` the address of the instance that queues jobs. An instance that
is started inside such a script has another ``FLUX_URI``; there, the exported names are ignored. Job
arrays are not used.

Sources: manual of flux-core, flux-batch(1), flux-run(1), flux-jobs(1), flux-cancel(1),
flux-resource(1), flux-shell-options(7), flux-environment(7); ids: Flux RFC 19. Tested against a
fake ``flux`` only, never on a real one.
"""

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Literal

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching import schedulers
from hydragnn_hpo.launching.scheduler_commands import CommandFailed, run_scheduler
from hydragnn_hpo.launching.schedulers import ENDED, JOB_ID, Query, QueueEntries, QueueEntry
from hydragnn_hpo.launching.slurm_allocation import compress_hosts, expand_hosts

_OWN_JOB = "HYDRAGNN_HPO_FLUX_JOB"
_OWN_URI = "HYDRAGNN_HPO_FLUX_URI"
"""Environment variables of batch scripts: id, and address of the instance that holds the hosts."""

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_F58 = re.compile(rf"[f\u0192]([{_BASE58}]{{1,12}})")

_FORMAT = "--format={id.dec}|{state}|{result}|{returncode}|{urgency}|{cwd}"
_ENDS = {"COMPLETED": "COMPLETED", "CANCELED": "CANCELLED", "TIMEOUT": "TIMEOUT"}
"""Result of a job that has ended -> name of its phrase."""


def decode_id(text: str) -> str:
    """Return an id of Flux (F58, such as ``f2oqr8``) as a decimal number.

    Raises:
        JobError: the text is no id.
    """
    if not (match := _F58.fullmatch(text.strip())):
        raise JobError(f"{text[:80]!r} is no id of a Flux job: see what 'flux jobs' says.")
    number = 0
    for letter in match[1]:
        number = 58 * number + _BASE58.index(letter)
    return str(number)


def find_own_instance(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of the instance that holds the hosts of a process's job.

    Returns:
        ``FLUX_URI``, in a batch script of ours not that of the environment; empty without one.
    """
    ours = Flux().read_own_job(environment) is not None
    uri = environment.get(_OWN_URI if ours else "FLUX_URI")
    return {"FLUX_URI": uri} if uri else {}


class FluxVariables(schedulers.LauncherVariables):
    """Variables of the ranks of a ``flux run``."""

    def count_local_ranks(self, environment: Mapping[str, str]) -> int | None:
        """Return all ranks where they are on one host; Flux tells no other number."""
        one_host = environment.get("FLUX_JOB_NNODES") == "1"
        return schedulers.read_number(self.world, environment) if one_host else None


class Flux(schedulers.Scheduler):
    """Batch jobs of Flux."""

    name = "flux"
    title = "Flux"
    profile = "generic-flux"
    submit_program = "flux"
    query_program = "flux"
    job_variable = "FLUX_URI"
    cancel_queued = cancel_running = ("flux", "cancel")
    interactive = "flux alloc -N 2"
    prefix = "#FLUX:"
    account_option = "--bank="
    queue_option = "--queue="
    rank_variables = FluxVariables(
        "flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", sets_pmi=True
    )
    step_flags = True
    job_lines = ("job=$HYDRAGNN_HPO_FLUX_JOB",)
    job_number = "$FLUX_URI"

    def read_own_job(self, environment: Mapping[str, str]) -> schedulers.OwnJob | None:
        """Return the job of our batch script that a process belongs to."""
        ours = environment.get("HYDRAGNN_HPO_BATCH_JOB", "") == environment.get("FLUX_URI")
        job = environment.get(_OWN_JOB)
        return schedulers.OwnJob(self.name, job) if ours and job else None

    def parse_submitted(self, output: str, tasks: Sequence[int]) -> list[str]:
        """Return the id of a job from the last line that is one, as a decimal number."""
        lines = [line for line in map(str.strip, output.splitlines()) if _F58.fullmatch(line)]
        return [decode_id(lines[-1] if lines else output)]

    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args: as of ``Scheduler.submit_argv``; ``task`` is not used.
        """
        wait = [f"--dependency=afterany:{after}"] if after else []
        return ["flux", "batch", *wait, script]

    def look_argv(self, name: str) -> list[str]:
        """Return the command that lists the jobs of a name."""
        return ["flux", "jobs", f"--name={name}"]

    def find(self, name: str, marks: Collection[str], run: Query) -> list[str]:
        """Return the ids of the queued and running jobs of a name from one of some folders.

        Args: as of ``Scheduler.find``.
        """
        entries = self.parse_states(run(*self.look_argv(name), "--no-header", _FORMAT))
        return [job for job, entry in entries.items() if entry.mark in marks]

    def query(self, ids: Sequence[str], run: Query) -> QueueEntries:
        """Return those jobs that Flux has not forgotten."""
        try:
            return self.parse_states(run("flux", "jobs", "--no-header", _FORMAT, *ids))
        except CommandFailed as error:  # one of them is unknown: the others are printed
            if not error.output and "unknown" not in error.errors.lower():
                raise
            return self.parse_states(error.output)

    def parse_states(self, output: str) -> QueueEntries:
        """Return jobs from lines of ``_FORMAT``, such as ``123|RUN||||/runs/x/jobs``."""
        entries = {}
        for line in output.splitlines():
            job, state, result, code, urgency, cwd = (line.strip() + "|" * 5).split("|")[:6]
            if JOB_ID.fullmatch(job) and re.fullmatch("[A-Z]+", state):
                entries[job] = QueueEntry(*_explain(state, result, code, urgency), cwd)
        return entries

    def find_hosts(self, environment: Mapping[str, str], most: int) -> schedulers.HeldHosts | None:
        """Return the hosts of the instance of this process that are up, if it is one of a job."""
        own = find_own_instance(environment)
        if not own or shutil.which("flux") is None:
            return None
        ask = partial(run_scheduler, "flux", environment={**os.environ, **own})
        try:
            job = decode_id(ask("getattr", "jobid"))
        except CommandFailed:  # the instance of the whole machine
            return None
        nodes = ask("resource", "list", "--no-header", "--states=up", "--format={nodelist}")
        hosts = dict.fromkeys(expand_hosts(",".join(nodes.split())))
        return schedulers.HeldHosts(tuple(hosts)[: most or None], job)

    def step_argv(
        self, job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str]
    ) -> list[str]:
        """Return a ``flux run`` of one task per host.

        A task has its whole host but asks for one core, so that a later step fits beside it; one
        that is lost does not end the others.

        Args: as of ``Scheduler.step_argv``.
        """
        return [
            *("flux", "run", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}"),
            *(f"--requires=hosts:{compress_hosts(hosts)}", "--job-name=hpo-agents", "--label-io"),
            *("-ocpu-affinity=off", "-ogpu-affinity=off", "-oexit-timeout=none", "-opmi=off"),
            *flags,
            *command,
        ]


def _explain(
    state: str, result: str, code: str, urgency: str
) -> tuple[Literal["queued", "held", "running", "ended"], str]:
    """Return the state of a job and the reason for it, as phrases."""
    if state == "INACTIVE":
        failed = f"failed with exit code {code}" if code else ENDED["FAILED"]
        return "ended", ENDED[_ENDS[result]] if result in _ENDS else failed
    if state in ("RUN", "CLEANUP"):
        return "running", ""
    if urgency == "0":
        return "held", "its urgency is 0: flux job urgency starts it"
    return "queued", ""
