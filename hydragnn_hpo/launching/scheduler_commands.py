"""Call the commands of schedulers: one environment, one time limit, one sentence when they fail.

Slurm and PBS read options from the environment, most of them with precedence over the script of a
job: what a site or a user exported for other work must not change jobs and answers.

Sources: slurm.schedmd.com (sbatch, srun, squeue, sinfo, scancel, scontrol: "input environment
variables"), tested with 22.05; pbs.conf(5) and qsub(1B) of OpenPBS; MPICH's "Using Hydra".
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from hydragnn_hpo.errors import ConfigError, JobError

logger = logging.getLogger(__name__)

QUERY_SECONDS = 60.0
_TURN_SECONDS = 1.0
_READING_SECONDS = 0.01
"""Shortest timeout of a read, so that available output is read even without waiting."""

_PAUSES = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between retries when a campaign begins: a scheduler may be down for minutes, and a
chain of jobs must not end because of that."""

FORGOTTEN = ("Invalid job id", "Unknown Job Id", "has finished")
"""Answers about a job that has ended, which no retry changes."""

_LONGEST_COMMAND, _LONGEST_LINE = 100, 160
"""Characters of a command, and of the last line that it printed, that a message repeats."""

_READ = re.compile(
    r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SATTACH|SBCAST|SQUEUE|SINFO|SCANCEL|SCONTROL|SACCT|SSTAT|"
    r"SPRIO|SSHARE|SREPORT|PBS|PMI|PMIX(?!_MCA)|PALS|HYDRA|MPIEXEC)_\w*|QSTATCOLUMNS"
)
"""Variables that schedulers and launchers read or set."""

_REACH = frozenset(
    {
        *("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"),
        *("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "PBS_PRIMARY", "PBS_SECONDARY"),
        *("PBS_EXEC", "PBS_HOME", "PBS_LEAF_NAME", "PBS_AUTH_METHOD", "PBS_ENCRYPT_METHOD"),
        *("HYDRA_IFACE", "HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER"),
        *("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_RMK"),
        *("PALS_PMI", "PALS_PING_PERIOD", "PALS_RPC_TIMEOUT"),
    }
)
"""Those of them that only say how the scheduler, or a host, is reached."""


def select_environment(environment: Mapping[str, str], keep: Sequence[str] = ()) -> dict[str, str]:
    """Return an environment without the variables that schedulers would read as options.

    Args:
        environment: of the caller.
        keep: prefixes of variables to keep all the same, such as those that describe a job.

    Returns:
        Name -> value.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _REACH or not _READ.fullmatch(name) or name.startswith(tuple(keep))
    }


class CommandFailed(JobError):
    """A command of a scheduler ended with an error."""

    def __init__(self, message: str, *, reason: str, output: str, errors: str) -> None:
        """Keep what the command printed.

        Args:
            message: the whole sentence.
            reason: the command's last line.
            output: all that it printed.
            errors: all that it printed as errors.
        """
        super().__init__(message)
        self.reason, self.output, self.errors = reason, output, errors

    @property
    def names_no_job(self) -> bool:
        """Whether the scheduler does not know the job any more."""
        return any(words in self.errors for words in FORGOTTEN)


class CommandOptions(TypedDict, total=False):
    """How a command of a scheduler runs."""

    seconds: float
    """Its time limit; ``QUERY_SECONDS`` if left out."""
    environment: Mapping[str, str]
    """Of the caller; options of the scheduler in it are not handed on."""
    folder: Path
    """Its current folder; that of the caller if left out."""


class SchedulerCommand:
    """A command of a scheduler that runs in the background, since one may take a minute to fail.

    A controller that waited for it would answer no agent meanwhile, and all leases would expire.
    """

    def __init__(self, *argv: str, **options: Unpack[CommandOptions]) -> None:
        """Start it and return at once.

        Raises:
            JobError: there is no such command.
        """
        self._argv = argv
        self._deadline = time.monotonic() + options.get("seconds", QUERY_SECONDS)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",  # a banner may be in any coding
                start_new_session=True,
                env=select_environment(options.get("environment", os.environ)) | {"LC_ALL": "C"},
                cwd=options.get("folder"),
            )
        except OSError as error:
            raise self._no_answer(f" ({error.strerror})") from error

    def output(self, seconds: float = 0.0) -> str | None:
        """Return the output of the command once it has ended; None while it runs.

        Args:
            seconds: longest wait for its end.

        Raises:
            CommandFailed: the command failed.
            JobError: it does not end in time.
        """
        wait = max(min(seconds, self._deadline - time.monotonic()), _READING_SECONDS)
        try:
            output, errors = self._process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._deadline:
                return None
            raise self._no_answer(" in time") from None
        if code := self._process.returncode:
            reason = shorten((errors or output).strip().splitlines(), code)
            command = " ".join(self._argv)[:_LONGEST_COMMAND]
            raise CommandFailed(
                f"'{command}' fails ({reason}): see what the scheduler says.",
                reason=reason,
                output=output,
                errors=errors,
            )
        return output

    def _no_answer(self, why: str) -> JobError:
        return JobError(
            f"'{self._argv[0]}' gives no answer{why}: see whether the scheduler runs, and try "
            "again later."
        )

    def close(self) -> None:
        """Kill the command, and what it has started, if it still runs."""
        with self._process:
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, 9)


def shorten(lines: Sequence[str], code: int) -> str:
    """Return the last line that a command printed, cut to fit into a sentence, or its code."""
    return lines[-1].rstrip(".")[:_LONGEST_LINE] if lines else f"it ended with code {code}"


def run_scheduler(*argv: str, **options: Unpack[CommandOptions]) -> str:
    """Run a command of a scheduler and return its output.

    Raises:
        CommandFailed: it fails.
        JobError: it does not answer.
    """
    with contextlib.closing(SchedulerCommand(*argv, **options)) as command:
        while (output := command.output(_TURN_SECONDS)) is None:
            pass
    return output


def run_with_retries(*argv: str) -> str:
    """Run a command of a scheduler, with retries if it fails, and return its output.

    Raises:
        JobError: it has failed for minutes, or no retry can help.
    """
    for pause in _PAUSES:
        try:
            return run_scheduler(*argv)
        except JobError as error:
            if isinstance(error, CommandFailed) and error.names_no_job:
                raise
            logger.warning("%s Next try in %.0f s.", error, pause)
        time.sleep(pause)
    return run_scheduler(*argv)


def find_mpiexec() -> str:
    """Return the ``mpiexec`` of our own environment, or the first on PATH.

    Raises:
        ConfigError: there is none.
    """
    own = Path(sys.executable).parent / "mpiexec"
    program = str(own) if own.exists() else shutil.which("mpiexec")
    if program is None:
        raise ConfigError("no mpiexec is beside our Python or on PATH: load an MPI.")
    return program
