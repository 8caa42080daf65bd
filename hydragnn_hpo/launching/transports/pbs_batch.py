"""Batch jobs of PBS: commands, directives, states, and the hosts of a job.

Source: man pages of OpenPBS and PBS Professional 2022 (qsub, qstat, qdel, qselect), not tested on
a real system.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import schedulers
from hydragnn_hpo.launching.scheduler_commands import find_mpiexec
from hydragnn_hpo.launching.schedulers import ENDED, JOB_ID, Query, QueueEntries, QueueEntry
from hydragnn_hpo.launching.slurm_allocation import check_host_name

if TYPE_CHECKING:
    from hydragnn_hpo.config import ProfileConfig


def pbs_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of the PBS job of this process; empty outside a PBS job.

    Raises:
        ConfigError: its node file cannot be read, or contains an invalid host name.
    """
    path = environment.get("PBS_NODEFILE")
    if path is None:
        return []
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise ConfigError(f"{path} (PBS_NODEFILE): is no ordinary file; run inside a PBS job.")
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(
            f"{path} (PBS_NODEFILE): cannot be read ({error.strerror}); run inside a PBS job."
        ) from error
    names = (line.strip() for line in lines)  # one per slot
    return list(dict.fromkeys(check_host_name(name) for name in names if name))


class Pbs(schedulers.Scheduler):
    """Batch jobs of PBS Professional and OpenPBS; job arrays are not used."""

    name = "pbs"
    title = "PBS"
    profile = "generic-pbs"
    submit_program = "qsub"
    query_program = "qstat"
    job_variable = "PBS_JOBID"
    cancel_queued = ("qdel",)
    cancel_running = ("qdel", "-W", "force")
    """Deletes a job even if its first host is down; the server ignores ``force`` if it is up."""
    interactive = "qsub -I -l select=2"
    prefix = "#PBS"
    account_option = "-A "
    queue_option = "-q "

    _killed = 256
    """Exit codes from here on are signals."""

    def find_doubts(self, profile: "ProfileConfig") -> Iterator[str]:
        """Yield that a directive is one of another scheduler."""
        if any(text.startswith("--") for text in profile.batch.directives):
            yield "batch.directives: PBS has no options that begin with --."

    def find_hosts(self, environment: Mapping[str, str], most: int) -> schedulers.HeldHosts | None:
        """Return the hosts of the node file, if there is one."""
        hosts = pbs_hosts(environment)[: most or None]
        job = environment.get("PBS_JOBID", "")
        return schedulers.HeldHosts(tuple(hosts), job) if hosts else None

    def step_argv(
        self, job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str]
    ) -> list[str]:
        """Return an ``mpiexec`` of one rank per host.

        Args: as of ``Scheduler.step_argv``.
        """
        where = ("-ppn", "1", "-hosts", ",".join(hosts))
        return [find_mpiexec(), "-n", str(len(hosts)), *where, *command]

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
        entries = self.query([job for job in ids if JOB_ID.fullmatch(job)], run)
        return [job for job, entry in entries.items() if entry.mark in marks]

    def query(self, ids: Sequence[str], run: Query) -> QueueEntries:
        """Return jobs as the server has them; ``-x`` includes ended ones.

        Args:
            ids: of the jobs.
            run: runs a command.

        Raises:
            JobError: PBS does not answer.
        """
        if not ids:
            return {}
        return self.parse_states(schedulers.run_for(ids, run, "qstat", "-x", "-f", *ids))

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
