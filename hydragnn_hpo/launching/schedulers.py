"""Commands of Slurm and PBS for batch jobs, and what they answer.

Sources: slurm.schedmd.com (sbatch, squeue, scancel, sacct; "Job State Codes", "Job Reason Codes"),
tested with 22.05, sacct not tested; man pages of OpenPBS and PBS Professional 2022 (qsub, qstat,
qdel, qselect), not tested on a real system.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.scheduler_commands import CommandFailed

_ID = re.compile(r"[0-9]+(_[0-9]+)?(\[[0-9]*\])?(\.[A-Za-z0-9_.-]+)?")
_SUBMITTED = re.compile(rf"(?:Submitted batch job )?({_ID.pattern})(?:;[\w.-]+| on cluster .*)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class QueueEntry:
    """A job as the scheduler reports it."""

    state: Literal["queued", "held", "running", "suspended", "ended"]
    reason: str = ""
    """Why it does not run, or how it ended: the scheduler's word, or a phrase about it."""
    mark: str = field(default="", compare=False)
    """What identifies its run: a comment, or the folder from which it was submitted."""
    granted: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Option of the batch script -> its value as the scheduler has it."""


WAITING = ("queued", "held")
"""States of a job that has not begun."""

QueueEntries = dict[str, QueueEntry]
"""Job id -> entry."""

Query = Callable[..., str]
"""Runs a command and returns its output, or raises ``JobError``."""


def check_job_id(text: str) -> str:
    """Return a job id unchanged if it is safe as an argument and as a file name.

    Raises:
        JobError: the text is no job id.
    """
    if not _ID.fullmatch(text):
        raise JobError(f"{text[:80]!r} is no number of a batch job: see what the scheduler says.")
    return text


def parse_time(text: str) -> int | None:
    """Return the seconds of a time as schedulers write it: D-HH:MM:SS, HH:MM:SS or MM:SS."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return 86_400 * days + 3600 * hours + 60 * minutes + seconds


def parse_submitted(output: str, tasks: Sequence[int]) -> list[str]:
    """Return the id of a job, or of each task, from the last line that is one.

    Sites print greetings before and behind ``123``, ``123;cluster`` or ``123.server``.

    Raises:
        JobError: no line is a job id.
    """
    lines = [line.strip() for line in _COLOUR.sub("", output).split("\n")]
    matches = [match for match in map(_SUBMITTED.fullmatch, lines) if match]
    job = matches[-1][1] if matches else check_job_id(output.strip())
    return [f"{job}_{task}" for task in tasks] or [job]


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
ENDED = {
    "COMPLETED": "its script ended",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "DEADLINE": "cancelled at its deadline",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timed out",
    "NODE_FAIL": "lost with its hosts",
    "BOOT_FAIL": "lost, as its hosts did not boot",
    "OUT_OF_MEMORY": "killed, as its memory was full",
    "FAILED": "failed",
}
"""States of jobs that have ended, as phrases."""


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


class Slurm:
    """Commands of Slurm. Jobs that run at the same time are the tasks of one array."""

    submit_program = "sbatch"
    job_variable = "SLURM_JOB_ID"
    cancel_queued = ("scancel", "--state=PENDING")
    cancel_running = ("scancel",)
    _format = "%i|%T|%r|%P|%a|%l|%D|%m|%k"
    _options = ("--partition", "--account", "--time", "--nodes", "--mem")

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
        entries = self.parse_states(_run_for(ids, run, *command, f"--format={self._format}"))
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
            if not _ID.fullmatch(job) or not re.fullmatch("[A-Z_]+", state):
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
            if _ID.fullmatch(job) and phrase:
                failed = f" with exit code {code.partition(':')[0]}" if phrase == "failed" else ""
                entries[job] = QueueEntry("ended", phrase + failed)
        return entries


class Pbs:
    """Commands of PBS Professional and OpenPBS; job arrays are not used."""

    submit_program = "qsub"
    job_variable = "PBS_JOBID"
    cancel_queued = ("qdel",)
    cancel_running = ("qdel", "-W", "force")
    """Deletes a job even if its first host is down; the server ignores ``force`` if it is up."""

    _killed = 256
    """Exit codes from here on are signals."""

    def submit_argv(self, script: str, *, after: str | None, task: int | None) -> list[str]:
        """Return the command that submits a script.

        Args:
            script: file name of the script.
            after: id of the job whose end it waits for, successful or not.
            task: not used.
        """
        return [self.submit_program, *(["-W", f"depend=afterany:{after}"] if after else []), script]

    def look_argv(self, name: str) -> list[str]:
        """Return the command that lists the jobs of a name."""
        return ["qselect", "-N", name]

    def find(self, name: str, marks: Collection[str], run: Query) -> list[str]:
        """Return the ids of the queued and running jobs of a name from one of some folders.

        Only operators may comment on jobs.

        Args:
            name: name of the jobs.
            marks: what identifies the run.
            run: runs a command.
        """
        ids = [line.strip() for line in run(*self.look_argv(name)).splitlines()]
        entries = self.query([job for job in ids if _ID.fullmatch(job)], run)
        return [job for job, entry in entries.items() if entry.mark in marks]

    def query(self, ids: Sequence[str], run: Query) -> QueueEntries:
        """Return jobs as the server has them; ``-x`` includes ended ones.

        Args:
            ids: of the jobs.
            run: runs a command.

        Raises:
            JobError: PBS does not answer.
        """
        return self.parse_states(_run_for(ids, run, "qstat", "-x", "-f", *ids)) if ids else {}

    def parse_states(self, output: str) -> QueueEntries:
        """Return jobs from blocks such as ``Job Id: 123.server``."""
        entries = {}
        unfolded = re.sub(r"\n\t", "", output)
        for block in re.split(r"^Job Id: *", unfolded, flags=re.MULTILINE)[1:]:
            job, _, rest = block.partition("\n")
            values = dict(re.findall(r"^ {4}([\w.]+) = (.*)$", rest, re.MULTILINE))
            mark = re.search(r"\bPBS_O_WORKDIR=([^,\n]*)", values.get("Variable_List", ""))
            granted = {
                "-A": values.get("Account_Name", ""),
                "-l walltime": values.get("Resource_List.walltime", ""),
                "-l select": values.get("Resource_List.nodect", ""),
            }
            entry = QueueEntry(*self._explain(values), mark[1] if mark else "", granted)
            entries[job.strip()] = entry
        return entries

    def _explain(
        self, values: Mapping[str, str]
    ) -> tuple[Literal["queued", "held", "running", "suspended", "ended"], str]:
        """Return the state of a job and the reason for it, as phrases."""
        letter = values.get("job_state", "F")
        comment = values.get("comment", "")
        if letter == "H" and values.get("Hold_Types", "n") != "n" and "depend" not in values:
            return "held", f"it is held: qrls releases it ({values['Hold_Types']})"
        if letter in "QHWT":
            return "queued", comment
        if letter in "SU":
            return "suspended", comment or "its processes are stopped"
        if letter in "REB":
            return "running", ""
        code = values.get("Exit_status", "")
        if not code or not code.lstrip("-").isdigit():
            return "ended", "cancelled"
        if int(code) == 0:
            return "ended", ENDED["COMPLETED"]
        killed = int(code) >= self._killed
        return "ended", "cancelled or timed out" if killed else f"failed with exit code {code}"


def _run_for(ids: Sequence[str], run: Query, *argv: str) -> str:
    """Run a command about some jobs, and return its output, without those that have ended."""
    try:
        output = run(*argv)
    except CommandFailed as error:
        if not error.output and not error.names_no_job:
            raise
        output = error.output
    if output.strip() and not any(job in output for job in ids):
        raise JobError(f"'{argv[0]}' speaks of other jobs: see what it says.")
    return output


Scheduler = Slurm | Pbs
SCHEDULERS: dict[str, Scheduler] = {"slurm": Slurm(), "pbs": Pbs()}
