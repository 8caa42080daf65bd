"""Slurm's batch jobs: commands, directives, states, and the hosts of a job.

Sources: slurm.schedmd.com (sbatch, squeue, scancel, sacct; "Job State Codes", "Job Reason Codes";
srun, "Output environment variables"), tested with 22.05, sacct not tested.
"""

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching import schedulers, slurm_allocation
from hydragnn_hpo.launching.scheduler_commands import run_scheduler
from hydragnn_hpo.launching.schedulers import ENDED, JOB_ID, Query, QueueEntries, QueueEntry

if TYPE_CHECKING:
    from hydragnn_hpo.config import ProfileConfig
    from hydragnn_hpo.launching.batch_jobs import BatchRequest

_HELD = {
    "JobHeldUser": "its user holds it: scontrol release starts it",
    "JobHeldAdmin": "an administrator holds it",
}
_NEVER = {
    "PartitionTimeLimit": "more time than its partition allows",
    "PartitionNodeLimit": "more or fewer hosts than its partition allows",
    "AssociationTimeLimit": "more time than its account allows",
    "QOSTimeLimit": "more time than its QOS allows",
    "PartitionConfig": "its partition does not have what it asks for",
    "BadConstraints": "no hosts have what it asks for",
    "InvalidAccount": "its account is unknown",
    "InvalidQOS": "its QOS is unknown",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not use the partition",
    "DependencyNeverSatisfied": "what it waits for cannot happen any more",
}
_PER_JOB = re.compile(r"(Assoc|QOS)(Max|Grp)\w*PerJob\w*|(Assoc|QOS)MinCpu\w*|Max\w+PerAccount")
_PERSON = {
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs now",
    "ReqNodeNotAvail": "its hosts are down, drained or reserved",
    "Nodes required for job are DOWN": "its hosts are down, drained or reserved",
    "Resources, DRAINED": "its hosts are drained",
}


def _explain_reason(reason: str) -> tuple[Literal["queued", "held"], str]:
    """Return the state of a job that waits for a reason, and that reason as a phrase."""
    if (word := reason.split(",")[0].strip("() ")) in _HELD:
        return "held", f"{_HELD[word]} ({word})"
    if word in _NEVER or _PER_JOB.fullmatch(word):
        why = _NEVER.get(word, "more than its account or QOS allows")
        return "queued", f"will never start as requested: {why} ({word})"
    if re.search("held|hold", reason, re.IGNORECASE):  # as after a failed launch
        return "held", f"Slurm holds it: scontrol release starts it ({word})"
    for beginning, why in _PERSON.items():
        if reason.startswith(beginning):
            return "queued", f"waits for an administrator: {why} ({word})"
    return "queued", reason


class SrunVariables(schedulers.LauncherVariables):
    """Variables of the ranks of a job step; lists of Slurm describe all hosts of it."""

    def find_hosts(self, environment: Mapping[str, str]) -> list[str]:
        """Return the hosts of the step."""
        names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST")
        return slurm_allocation.expand_hosts(next(filter(None, map(environment.get, names)), ""))

    def count_local_ranks(self, environment: Mapping[str, str]) -> int | None:
        """Return the ranks on this host, from a list such as ``4(x2),3`` and its number in it."""
        number = environment.get("SLURM_NODEID", "")
        counts: list[int] = []
        for count, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
        ):
            counts += [int(count)] * min(int(times or "1"), 1_000_000)
        return counts[int(number)] if number.isdigit() and int(number) < len(counts) else None


def parse_allocated_devices(job: str) -> dict[str, int]:
    """Return the GPUs of each host from what ``scontrol show job -d`` prints.

    Returns:
        Host -> number of GPUs; empty where no host has any.
    """
    counts: dict[str, int] = {}
    for line in job.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "Nodes" in words and "GRES" in words:
            gpus = re.findall(r"gpu(?::[A-Za-z][^:,()]*)?:(\d+)", words["GRES"])
            hosts = slurm_allocation.expand_hosts(words["Nodes"])
            counts |= dict.fromkeys(hosts, sum(map(int, gpus)))
    return counts if any(counts.values()) else {}


class Slurm(schedulers.Scheduler):
    """Batch jobs of Slurm. Jobs that run at the same time are the tasks of one array."""

    name = "slurm"
    title = "Slurm"
    profile = "generic-slurm"
    submit_program = "sbatch"
    query_program = "squeue"
    job_variable = "SLURM_JOB_ID"
    cancel_queued = ("scancel", "--state=PENDING")
    cancel_running = ("scancel",)
    interactive = "salloc -N 2"
    prefix = "#SBATCH"
    account_option = "--account="
    queue_option = "--partition="
    account_variable = "SBATCH_ACCOUNT"
    option_variables = "SBATCH_"
    step_flags = True
    rank_variables = SrunVariables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
        "SLURM_LOCALID",
        only_with="SLURM_STEP_ID",
    )
    _format = "%i|%T|%r|%P|%a|%l|%D|%m|%k"
    _options = ("--partition", "--account", "--time", "--nodes", "--mem")

    def own_options(self, request: "BatchRequest", profile: "ProfileConfig") -> list[str]:
        """Return the array, and the memory: whole hosts may come with the site's default only."""
        batch = profile.batch
        array = [f"--array=1-{request.allocations}"] if request.allocations > 1 else []
        own = any(re.match(r"--mem(-per-[a-z]+)?([= ]|$)", line) for line in batch.directives)
        return [*array, *([] if own or not batch.memory else [f"--mem={batch.memory}"])]

    def mark_lines(self, tag: str, options: Sequence[str]) -> list[str]:
        """Return a comment with the tag, unless the profile has a comment of its own."""
        if any(option.startswith("--comment") for option in options):
            return []
        mark = f"#SBATCH --comment=hydragnn-hpo:{tag}"
        return ["# By this the run finds a job without a number.", mark]

    def own_words(self, request: "BatchRequest") -> dict[str, str]:
        """Return the name of the log, by job and array task.

        Returns:
            Text for each variable of the template, by its name.
        """
        return {"log": "%A_%a.out" if request.allocations > 1 else "%j.out"}

    def read_own_job(self, environment: Mapping[str, str]) -> schedulers.OwnJob | None:
        """Return the job of a process, or its task of an array."""
        array = environment.get("SLURM_ARRAY_JOB_ID")
        task = environment.get("SLURM_ARRAY_TASK_ID")
        if array and task:
            return schedulers.OwnJob(self.name, f"{array}_{task}", int(task))
        return super().read_own_job(environment)

    def find_hosts(self, environment: Mapping[str, str], most: int) -> schedulers.HeldHosts | None:
        """Return the hosts of the allocation of this process."""
        if "SLURM_JOB_ID" not in environment or shutil.which("srun") is None:
            return None
        held = slurm_allocation.Allocation.find(environment, most, run_query=run_scheduler)
        given = parse_allocated_devices(run_scheduler("scontrol", "show", "job", "-d", held.job))
        down = slurm_allocation.find_unusable_hosts(held.hosts)
        return schedulers.HeldHosts(held.hosts, held.job, down, given)

    def step_argv(
        self, job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str]
    ) -> list[str]:
        """Return a job step of one task per host.

        Args: as of ``Scheduler.step_argv``.
        """
        return slurm_allocation.step_argv(job, hosts, command, flags)

    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args:
            script: file name of the script.
            after: id of the job whose end it waits for, successful or not.
            task: number of the one array task to submit; None submits all tasks of the script.
        """
        wait = [f"--dependency=afterany:{after}"] if after else []
        only = [f"--array={task}"] if task else []
        return [self.submit_program, "--parsable", *wait, *only, script]

    def look_argv(self, name: str) -> list[str]:
        """Return the command that lists the jobs of a name."""
        return ["squeue", f"--name={name}"]

    def find(self, name: str, marks: Collection[str], run: Query) -> list[str]:
        """Return the ids of the queued and running jobs of a name with one of some comments.

        Args:
            name: name of the jobs.
            marks: what identifies the run.
            run: runs a command.
        """
        command = (*self.look_argv(name), "--noheader", "--array", f"--format={self._format}")
        entries = self.parse_states(run(*command))
        return [job for job, entry in entries.items() if entry.mark in marks]

    def query(self, ids: Sequence[str], run: Query) -> QueueEntries:
        """Return jobs as the queue has them, and those that it has forgotten from the accounting.

        Args:
            ids: of the jobs.
            run: runs a command.

        Raises:
            JobError: Slurm does not answer.
        """
        jobs = f"--jobs={','.join(ids)}"
        command = ("squeue", "--noheader", "--array", jobs, "--states=all")
        options = (f"--format={self._format}",)
        entries = self.parse_states(schedulers.run_for(ids, run, *command, *options))
        if forgotten := [job for job in ids if job not in entries]:
            try:
                fields = ("--format=JobID,State,ExitCode", f"--jobs={','.join(forgotten)}")
                entries |= self.parse_accounting(run("sacct", "-X", "-n", "-P", *fields))
            except JobError:  # there is no accounting
                pass
        return entries

    def parse_states(self, output: str) -> QueueEntries:
        """Return jobs from lines such as ``123_1|PENDING|Priority``; others are greetings."""
        entries = {}
        for line in output.splitlines():
            job, state, reason, *rest = line.strip().split("|") + ["", ""]
            if not JOB_ID.fullmatch(job) or not re.fullmatch("[A-Z_]+", state):
                continue
            granted = dict(zip(self._options, rest, strict=False)) if len(rest) > 5 else {}
            mark = rest[5] if len(rest) > 5 else ""
            entries[job] = QueueEntry(*self._explain(state, reason), mark, granted)
        return entries

    def _explain(
        self, state: str, reason: str
    ) -> tuple[Literal["queued", "held", "running", "suspended", "ended"], str]:
        """Return the state of a job and the reason for it, as phrases."""
        if state in ("PENDING", "REQUEUED"):
            return _explain_reason(reason)
        if state in ("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"):
            return "held", f"Slurm holds it ({reason or state})"
        if state in ("SUSPENDED", "STOPPED"):
            return "suspended", "its processes are stopped: scontrol resume lets them go on"
        if state in ENDED:
            return "ended", ENDED[state]
        return "running", ""

    def parse_accounting(self, output: str) -> QueueEntries:
        """Return ended jobs from lines of sacct such as ``123|CANCELLED by 0|0:0``."""
        entries = {}
        for line in output.splitlines():
            job, state, code = (line.strip().split("|") + ["", ""])[:3]
            phrase = ENDED.get(state.split()[0]) if state.strip() else None
            if JOB_ID.fullmatch(job) and phrase:
                failed = f" with exit code {code.partition(':')[0]}" if phrase == "failed" else ""
                entries[job] = QueueEntry("ended", phrase + failed)
        return entries
