"""Agents as tasks of job steps: one ``srun`` for all hosts, one more for each that is lost."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.fleet.transport import Call, News, agent_argv
from hydragnn_hpo.launching.host_network import first_there, own_address
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.profile_adapter import UNKNOWN
from hydragnn_hpo.launching.slurm.allocation import Allocation, Question
from hydragnn_hpo.launching.slurm.hostlist import compress
from hydragnn_hpo.launching.staging.software import OWN, Software

_CLOSING_SECONDS = 2.0
"""For each of: going by itself (its agents have gone already), SIGTERM, SIGKILL."""
_MOMENT_SECONDS = 0.2
"""Slurm mostly says within it how hosts are; then steps start at once."""

_END = "HYDRAGNN_HPO_END"

_GEOMETRY = (
    *("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NODELIST"),
    *("SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"),
    *("SLURM_DISTRIBUTION", "SLURM_CPU_BIND", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_GPU_BIND"),
    *("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_MEM_PER_CPU"),
)
"""What ``srun`` would read as its options: we give ours."""


def step_argv(
    job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str] = ()
) -> list[str]:
    """Give the command that runs an agent, or what else serves a whole host, on each of some.

    It sees its whole host (``--overlap --whole``, bound to nothing): it hands out cores and GPUs
    itself. One that is lost must not end the others. ``flags`` of a machine's profile come last:
    the last of two that contradict each other counts.
    """
    count = str(len(hosts))
    return [
        *("srun", f"--jobid={job}", f"--nodes={count}", f"--ntasks={count}"),
        *("--ntasks-per-node=1", f"--nodelist={compress(hosts)}"),
        *("--overlap", "--whole", "--cpu-bind=none", "--export=ALL", "--input=none"),
        *("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--job-name=hpo-agents", "--label"),
        *flags,
        *command,
    ]


def step_environment(ours: Mapping[str, str], ends_at: float) -> dict[str, str]:
    """Give the environment of such a step, and of all that it starts.

    Args:
        ours: environment to pass on, but for what ``srun`` would take as its options.
        ends_at: when the allocation ends, in seconds since the epoch.
    """
    kept = {name: value for name, value in ours.items() if name not in _GEOMETRY}
    end = {_END: str(int(ends_at))} if ends_at < float("inf") else {}
    return end | kept


@dataclass
class _Asked:
    """Hosts whose state Slurm is to tell before a step starts there."""

    hosts: dict[str, str]
    """Ids by Slurm's names."""
    call: Call
    question: Question


@dataclass
class _Step:
    hosts: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def reason(self) -> str:
        """Complete a sentence about why it ended."""
        said = self.log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        errors = [line for line in said if "error" in line.lower()] or said[-1:]
        ended = f"its job step ended (code {self.process.returncode})"
        return f"has no agent, {ended}: {errors[-1] if errors else f'see {self.log}'}"


class SlurmTransport:
    """Starts agents on the hosts of an allocation; Slurm tracks them and ends them with it.

    Nothing that Slurm says proves that processes are gone: that is left to leases, and to new
    agents, which end what they find of their host's earlier ones.
    """

    slots: tuple[Slot, ...] = ()
    outlives = True

    def __init__(
        self,
        allocation: Allocation,
        *,
        run_dir: Path,
        interface: str | None = None,
        shared_files: bool = True,
        site: SiteConfig = UNKNOWN,
        software: Software = OWN,
        one_of_many: bool = False,
    ) -> None:
        """Use an allocation; steps write their logs below ``run_dir``.

        Without shared files the token reaches agents in the environment of their step. Without
        ``interface`` they find us on the first of ``site.interfaces`` that is there. Where the
        allocation is one of many that serve a campaign, ids of hosts name it, too.

        Raises:
            ConfigError: this host has no such interface.
        """
        interface = interface or first_there(site.interfaces)
        self._flags = site.step.agents
        self._suffix = f"@{allocation.job}" if one_of_many else ""
        self.hosts: Sequence[str] = tuple(host + self._suffix for host in allocation.hosts)
        self.allocation = allocation.job
        self.ends_at = allocation.ends_at
        self.address = own_address(interface, allocation.address)
        self._software, self._shared_files = software, shared_files
        self._logs = run_dir / "agents"
        self._asked: list[_Asked] = []
        self._steps: list[_Step] = []
        self._news: list[News] = []
        self._count = 0

    def start(self, hosts: Sequence[str], call: Call) -> None:
        """Start a step with an agent on each of these hosts, but for those that are down.

        Here, or in ``poll`` where Slurm takes its time to say which these are.
        """
        names = {host.removesuffix(self._suffix): host for host in hosts}
        self._asked.append(_Asked(names, call, Question(tuple(names))))
        self._hear_slurm(_MOMENT_SECONDS)

    def _hear_slurm(self, seconds: float = 0.0) -> None:
        """Start the steps that Slurm's answers allow, waiting so long for the newest of them."""
        for asked in list(self._asked):
            try:
                down = asked.question.answer(seconds if asked is self._asked[-1] else 0.0)
            except JobError as error:
                self._news += [
                    News(host, "failed", f"has no agent: {error}") for host in asked.hosts.values()
                ]
                down = dict.fromkeys(asked.hosts, "")
            else:
                if down is None:
                    continue
                self._news += [News(asked.hosts[h], "failed", f"is {s}") for h, s in down.items()]
            self._asked.remove(asked)
            asked.question.close()
            if able := [host for name, host in asked.hosts.items() if name not in down]:
                self._begin(able, asked.call)

    def _begin(self, hosts: Sequence[str], call: Call) -> None:
        """Start a step; where its log cannot be written, that is no more than news of its hosts."""
        try:
            self._steps.append(self._step(hosts, call))
        except (OSError, StorageError) as error:
            why = f"has no agent: {error}"
            self._news += [News(host, "failed", why) for host in hosts]

    def _step(self, hosts: Sequence[str], call: Call) -> _Step:
        self._count += 1
        name = f"{call.plate.epoch:03d}-{self._count:04d}{self._suffix}.log"
        names = [host.removesuffix(self._suffix) for host in hosts]
        whose = self._suffix.removeprefix("@")
        with storage(self._logs):
            self._logs.mkdir(mode=0o700, exist_ok=True)
            log = os.open(self._logs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                step_argv(
                    self.allocation,
                    names,
                    agent_argv(
                        host_of="SLURMD_NODENAME", allocation=whose, software=self._software
                    ),
                    flags=self._flags,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=step_environment(
                    call.whole_environment(
                        shared_files=self._shared_files, software=self._software
                    ),
                    self.ends_at,
                ),
                start_new_session=True,
            )
        finally:
            os.close(log)
        return _Step(tuple(hosts), process, self._logs / name)

    def poll(self) -> list[News]:
        """Tell of steps that ended: there is no agent of theirs any more, whatever its ranks do."""
        self._hear_slurm()
        for step in list(self._steps):
            if step.process.poll() is not None:
                self._steps.remove(step)
                newer = {host for other in self._steps for host in other.hosts}
                newer |= {host for asked in self._asked for host in asked.hosts.values()}
                reason = step.reason()
                missing = [host for host in step.hosts if host not in newer]
                self._news += [News(host, "failed", reason) for host in missing]
        told, self._news = self._news, []
        return told

    def end(self, host: str) -> bool:
        """Do nothing: what happens on a host that we do not hear is not known."""
        return False

    def close(self) -> None:
        """Wait for the steps, whose agents were told to go, and have Slurm end the others."""
        for asked in self._asked:
            asked.question.close()
        self._asked.clear()
        deadline = time.monotonic() + _CLOSING_SECONDS
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for step in self._steps:
                if number is not None and step.process.poll() is None:
                    step.process.send_signal(number)
            for step in self._steps:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    step.process.wait(max(0.1, deadline - time.monotonic()))
            deadline = time.monotonic() + _CLOSING_SECONDS
        self._steps.clear()
