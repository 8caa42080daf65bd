"""Sixty variables that Slurm's commands read, each with a hostile but legal value.

``python tests/slurm_environment.py`` starts a virtual Slurm, sets one variable at a time around
every command that we call, with and without our own environment, and writes what it saw to
``launch/slurm_environment.md``. Names: manual pages of Slurm 22.05 ("input environment variables").
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from virtual_slurm import VirtualSlurm, started

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.launching import batch_jobs, scheduler_commands, slurm_allocation
from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords
from hydragnn_hpo.launching.scheduler_commands import run_scheduler
from hydragnn_hpo.launching.slurm_allocation import Allocation, find_unusable_hosts

TABLE = Path(__file__).parents[1] / "launch" / "slurm_environment.md"

VARIABLES = {
    "sbatch": {
        "SBATCH_ACCOUNT": "other",
        "SBATCH_ARRAY_INX": "1-3",
        "SBATCH_CONSTRAINT": "nowhere",
        "SBATCH_CORE_SPEC": "1",
        "SBATCH_DELAY_BOOT": "60",
        "SBATCH_DISTRIBUTION": "cyclic",
        "SBATCH_EXCLUSIVE": "user",
        "SBATCH_EXPORT": "NONE",
        "SBATCH_GET_USER_ENV": "1",
        "SBATCH_GPUS": "1",
        "SBATCH_HINT": "nomultithread",
        "SBATCH_JOB_NAME": "other",
        "SBATCH_MEM_PER_NODE": "100",
        "SBATCH_NO_KILL": "off",
        "SBATCH_OPEN_MODE": "append",
        "SBATCH_OVERCOMMIT": "1",
        "SBATCH_PARTITION": "short",
        "SBATCH_REQUEUE": "1",
        "SBATCH_RESERVATION": "maintenance",
        "SBATCH_SIGNAL": "TERM@5",
        "SBATCH_THREADS_PER_CORE": "1",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_USE_MIN_NODES": "1",
        "SBATCH_WAIT": "1",
        "SBATCH_WAIT_ALL_NODES": "1",
        "SBATCH_WCKEY": "other",
    },
    "squeue": {
        "SQUEUE_ACCOUNT": "none",
        "SQUEUE_FORMAT": "%u",
        "SQUEUE_FORMAT2": "UserName",
        "SQUEUE_LICENSES": "matlab",
        "SQUEUE_NAMES": "other",
        "SQUEUE_PARTITION": "short",
        "SQUEUE_QOS": "none",
        "SQUEUE_SORT": "-t",
        "SQUEUE_STATES": "SUSPENDED",
        "SQUEUE_USERS": "nobody",
    },
    "sinfo": {
        "SINFO_FORMAT": "%P",
        "SINFO_PARTITION": "short",
        "SINFO_SORT": "-N",
    },
    "scancel": {
        "SCANCEL_ACCOUNT": "none",
        "SCANCEL_BATCH": "1",
        "SCANCEL_INTERACTIVE": "1",
        "SCANCEL_NAME": "other",
        "SCANCEL_PARTITION": "short",
        "SCANCEL_STATE": "SUSPENDED",
        "SCANCEL_USER": "nobody",
    },
    "scontrol": {
        "SCONTROL_ALL": "1",
        "SLURM_BITSTR_LEN": "1",
        "SLURM_TIME_FORMAT": "relative",
    },
    "srun": {
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_EXACT": "1",
        "SLURM_GRES": "gpu:9",
        "SLURM_MEM_PER_CPU": "999999",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "7",
        "SLURM_OPEN_MODE": "append",
        "SLURM_STDOUTMODE": "none",
        "SLURM_TASK_PROLOG": "/bin/false",
        "SLURM_TIMELIMIT": "1",
        "SLURM_WORKING_DIR": "/nowhere",
    },
}
"""Command that reads it -> variable -> value."""

ALL = {name: value for values in VARIABLES.values() for name, value in values.items()}

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=hpo-probe
#SBATCH --nodes=1
#SBATCH --time=00:10:00
#SBATCH --partition=all
#SBATCH --comment=hydragnn-hpo:probe
#SBATCH --account=mine
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@300
#SBATCH --hold
"""


@dataclass
class Probe:
    """Every command of Slurm that we call, once, in the environment of this process."""

    folder: Path
    job: str
    """Number of a running job of two hosts."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """What Slurm says of the submitted job where no variable is set; empty: not known yet."""
    seconds: float = 20.0
    fields: Mapping[str, str] = field(default_factory=dict)
    """What Slurm said of the submitted job."""
    faults: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run all commands; gives what was otherwise than without the variable."""
        self._try("sbatch", self._submit)
        self._try("squeue", self._find)
        self._try("sinfo", self._look_at_hosts)
        self._try("srun", self._step)
        return self.faults

    def _try(self, command: str, step: Callable[[], Iterator[str]]) -> None:
        try:
            self.faults += [f"{command}: {fault}" for fault in step()]
        except (HydraError, subprocess.TimeoutExpired) as error:
            self.faults.append(f"{command}: {str(error).splitlines()[0][:90]}")

    def _submit(self) -> Iterator[str]:
        """Submit a job that is held, look at it, and take it back."""
        records = JobRecords(self.folder)
        name = records.next_script()
        records.write_script(name, SCRIPT, "")
        job = BatchJob("", "slurm", name, hosts=1, link=1, jobs=1, submitted=0.0)
        ids = batch_jobs.submit_jobs(records, job)
        yield from batch_jobs.compare_with_request(records, job, ids)
        self.fields = read_fields(ids[0])
        for name, value in sorted(self.fields.items()):
            if self.expected and self.expected.get(name) != value:
                yield f"{name} is {value}, not {self.expected.get(name)}"
        (known,) = (known for known in records.jobs() if known.id == ids[0])
        entry = (batch_jobs.query_jobs("slurm", ids) or {}).get(ids[0])
        if entry is None or entry.state != "held":
            yield f"the job is {entry.state if entry else 'not found'}"
        if batch_jobs.cancel_queued_jobs(records, [known]) != ids:
            yield "it is not cancelled"
        if batch_jobs.select_alive([known]):
            yield "it is queued after scancel"

    def _find(self) -> Iterator[str]:
        allocation = self._allocation()
        if len(allocation.hosts) != 2:
            yield f"{len(allocation.hosts)} of 2 hosts"
        if allocation.ends_at == float("inf"):
            yield "the end is unknown"

    def _allocation(self) -> Allocation:
        environment = {**os.environ, "SLURM_JOB_ID": self.job}
        environment.pop("SLURM_JOB_END_TIME", None)
        return Allocation.find(environment, run_query=run_scheduler)

    def _look_at_hosts(self) -> Iterator[str]:
        output = run_scheduler(*slurm_allocation.host_states_argv(("node1", "node2")))
        if len(output.splitlines()) < 2 or find_unusable_hosts(("node1", "node2")):
            yield f"{output.strip()[:60]!r}"

    def _step(self) -> Iterator[str]:
        argv = slurm_allocation.step_argv(
            self.job, ("node1", "node2"), ("printenv", "SLURMD_NODENAME")
        )
        environment = slurm_allocation.step_environment(os.environ, float("inf"))
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=self.seconds
        )
        if done.returncode or sorted(done.stdout.split()) != ["0:", "1:", "node1", "node2"]:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            yield (errors[-1] if errors else f"it prints {done.stdout[:40]!r}")[:90]


PASSING = """JobId SubmitTime EligibleTime AccrueTime StartTime EndTime LastSchedEval Priority
Scheduler Command StdErr StdOut WorkDir AllocNode:Sid RunTime SuspendTime SecsPreSuspend"""
"""What differs between two jobs of one script."""


def read_fields(job: str) -> dict[str, str]:
    """Return what Slurm says of a job and would say of another one like it."""
    words = run_scheduler("scontrol", "-o", "show", "job", job).split()
    pairs = (word.split("=", 1) for word in words if "=" in word)
    return {name: value for name, value in pairs if name not in PASSING.split()}


@contextlib.contextmanager
def handed_on() -> Iterator[None]:
    """Let commands read the whole environment, as they would by themselves."""

    def everything(environment: Mapping[str, str], keep: object = ()) -> dict[str, str]:
        return dict(environment)

    with (
        patch.object(scheduler_commands, "select_environment", everything),
        patch.object(slurm_allocation, "select_environment", everything),
        patch.object(batch_jobs, "SUBMIT_SECONDS", 5.0),
        patch.object(batch_jobs, "QUERY_SECONDS", 5.0),
    ):
        yield


@contextlib.contextmanager
def probed_cluster(folder: Path) -> Iterator[tuple[VirtualSlurm, str]]:
    """Start three hosts, two of them in a running job, with a second partition."""
    with started(folder, 3) as cluster:
        short = ("PartitionName=short", "Nodes=node3", "MaxTime=1")
        cluster.ask("scontrol", "create", *short)
        yield cluster, cluster.allocate(2)["SLURM_JOB_ID"]


def main() -> None:
    """Write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        (Path(place) / "slurm").mkdir()
        with probed_cluster(Path(place) / "slurm") as (cluster, job):
            os.environ["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
            expected = Probe(Path(place), job)
            assert expected.run() == []
            version = cluster.ask("sinfo", "--version").split()[-1]
            for command, values in VARIABLES.items():
                for name, value in values.items():
                    with patch.dict(os.environ, {name: value}):
                        now = Probe(Path(place), job, expected.fields).run()
                        with handed_on():
                            before = Probe(Path(place), job, expected.fields).run()
                    subprocess.run(["scancel", "--name=hpo-probe", "--name=other"], check=False)
                    row = (f"`{name}={value}`", command, *map(describe, (before, now)))
                    rows.append(f"| {' | '.join(row)} |")
                    print(rows[-1], file=sys.stderr)
    TABLE.write_text(HEAD.format(count=len(rows), version=version) + "\n".join(rows) + "\n")


def describe(faults: list[str]) -> str:
    """Return the first of some faults as a cell of a table."""
    return faults[0].replace("|", "/").replace("*", "\\*") if faults else "as without it"


HEAD = """\
# What a site or a user has set for Slurm

Each of {count} variables was set around every command that we call, on a virtual Slurm {version}:
once handed on, once as commands are called here (`hydragnn_hpo/launching/scheduler_commands.py`).
`python tests/slurm_environment.py` writes this table; a stress test,
`tests/integration/test_slurm_environment.py`, repeats its last column and runs a campaign with all.

| set | read by | handed on | here |
|---|---|---|---|
"""

if __name__ == "__main__":
    main()
