"""The Slurm allocation of this process: its hosts in network order, its end, steps on its hosts.

Slurm writes host lists such as ``frontier[00012-00019,00100],login2``.
"""

import datetime
import itertools
import logging
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.walltime import END

logger = logging.getLogger(__name__)

# -- host lists --------------------------------------------------------------------------------

_MAX_HOSTS = 1_000_000
"""Hosts in one list; more is a typing error."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_LAST_NUMBER = re.compile(r"^(.*?)([0-9]+)([^0-9]*)$")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a host list, in its order.

    Raises:
        ConfigError: it is no host list, or holds what cannot be the name of a host.
    """
    hosts: list[str] = []
    for name in _split_names(text.strip()):
        for host in map(check_host_name, _expand_name(name)):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise ConfigError(f"host list {text[:60]!r} names more than {_MAX_HOSTS} hosts.")
    return hosts


def check_host_name(host: str) -> str:
    """Return the name of a host, which becomes part of commands, if it can be one.

    Raises:
        ConfigError: it begins like an option, or holds what no host name does.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{host[:80]!r} is no name of a host: letters, digits, . _ and - are.")
    return host


def without_excluded(hosts: Sequence[str], excluded: Container[str]) -> tuple[str, ...]:
    """Return the hosts that are not excluded, in their order.

    Raises:
        ConfigError: there is none.
    """
    kept = tuple(host for host in hosts if host not in excluded)
    if hosts and not kept:
        raise ConfigError(
            f"all {len(hosts)} hosts are excluded: remove lines from exclude.hosts in the run "
            "directory, or ask for other hosts."
        )
    return kept


def _split_names(text: str) -> list[str]:
    """Split a list at its commas, but not at those inside brackets."""
    names, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _host_list_error(text)
        if letter == "," and depth == 0:
            names.append(text[start:place])
            start = place + 1
    if depth:
        raise _host_list_error(text)
    return [name for name in [*names, text[start:]] if name]


def _expand_name(name: str) -> Iterator[str]:
    """Return all combinations of a name's bracketed numbers; the last bracket varies fastest."""
    pieces = re.split(r"\[([^\[\]]*)\]", name)  # text and contents of brackets in turn
    choices = [list(_numbers(p, name)) if odd % 2 else [p] for odd, p in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(content: str, name: str) -> Iterator[str]:
    """Yield the numbers of one bracket, padded like the first of each range."""
    for part in content.split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if found is None:
            raise _host_list_error(name)
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) <= _MAX_HOSTS:
            raise _host_list_error(name)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _host_list_error(text: str) -> ConfigError:
    return ConfigError(f"{text[:80]!r} is no host list: write it as in node[01-04,07],login1.")


def compress_hosts(hosts: Iterable[str]) -> str:
    """Return a short host list that ``expand_hosts`` turns back into the same hosts."""
    groups: list[tuple[str, str, list[list[str]]]] = []
    for host in hosts:
        found = _LAST_NUMBER.match(host)
        if found is None:
            groups.append((host, "", []))
            continue
        before, digits, after = found.groups()
        if not groups or not groups[-1][2] or groups[-1][:2] != (before, after):
            groups.append((before, after, []))
        runs = groups[-1][2]
        if runs and digits == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1][1:] = [digits]
        else:
            runs.append([digits])
    return ",".join(_format_group(*group) for group in groups)


def _format_group(before: str, after: str, runs: list[list[str]]) -> str:
    if not runs:
        return before
    if len(runs) == len(runs[0]) == 1:
        return f"{before}{runs[0][0]}{after}"
    return f"{before}[{','.join('-'.join(run) for run in runs)}]{after}"


# -- network order -----------------------------------------------------------------------------


def sort_by_number(hosts: Sequence[str]) -> list[str]:
    """Sort hosts by the numbers in their names: cabinets are numbered along the network."""

    def key(host: str) -> list[tuple[int, str]]:
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"([0-9]+)", host)]

    return sorted(hosts, key=key)


def sort_by_switch(hosts: Sequence[str], topology: str) -> list[str]:
    """Sort hosts by switch, then by number, so that neighbours in the list are close.

    Args:
        hosts: of the allocation.
        topology: output of ``scontrol show topology``; may be empty or an error message.
    """
    below: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = {}
    for line in topology.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = words.get("SwitchName") or words.get("BlockName")
        try:
            if name and words.get("Switches"):
                below[name] = expand_hosts(words["Switches"])
            elif name and words.get("Nodes"):
                leaves[name] = expand_hosts(words["Nodes"])
        except ConfigError:  # not a host list: this line is left out
            continue
    place = {host: index for index, host in enumerate(_walk_switches(below, leaves))}
    return sorted(sort_by_number(hosts), key=lambda host: place.get(host, len(place)))


def _walk_switches(below: dict[str, list[str]], leaves: dict[str, list[str]]) -> list[str]:
    """Return all hosts depth first, so that those below one switch stand together."""
    under = {child for children in below.values() for child in children}
    waiting = [name for name in (*below, *leaves) if name not in under]
    waiting.reverse()
    hosts: list[str] = []
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        hosts += sort_by_number(leaves.get(name, ()))
        waiting += reversed(below.get(name, ()))
    return hosts


# -- queries -----------------------------------------------------------------------------------

_QUERY_SECONDS = 60.0
_PAUSES = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Between retries when a campaign begins: Slurm's controller may be away for minutes, and a chain
of jobs must not end because of that."""

_FINAL = "Invalid job id"
"""An error that no retry changes."""

Query = Callable[..., str]
"""Runs a command of Slurm and returns its output, or raises ``JobError``."""

_UNUSABLE = ("down", "fail", "power", "reboot")
"""States of hosts on which no step can start; on one that drains they still can."""


def query(*argv: str) -> str:
    """Run a command of Slurm and return its output.

    Raises:
        JobError: it fails, or does not answer.
    """
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_answer(argv, f" ({error})") from error
    if answer.returncode != 0:
        raise _failed(argv, answer.stderr or answer.stdout, answer.returncode)
    return answer.stdout


def query_with_retries(*argv: str) -> str:
    """Run a command of Slurm, again after some pauses while it fails, and return its output.

    Raises:
        JobError: it has failed for minutes, or no retry can help.
    """
    for pause in _PAUSES:
        try:
            return query(*argv)
        except JobError as error:
            if _FINAL in str(error):
                raise
            logger.warning("%s Next try in %.0f s.", error, pause)
        time.sleep(pause)
    return query(*argv)


def _no_answer(argv: Sequence[str], why: str = "") -> JobError:
    return JobError(f"'{argv[0]}' gives no answer{why}: is Slurm there?")


def _failed(argv: Sequence[str], output: str, code: int) -> JobError:
    lines = output.strip().splitlines()
    return JobError(f"'{' '.join(argv)}' fails: {lines[-1] if lines else code}.")


def find_unusable_hosts(hosts: Sequence[str], run_query: Query = query) -> dict[str, str]:
    """Return those of some hosts on which no step can start, with their state.

    Args:
        hosts: by Slurm's names.
        run_query: ``query_with_retries`` where nothing begins without the answer.

    Raises:
        JobError: Slurm does not answer.
    """
    return _unusable_of(run_query(*_sinfo(hosts)))


def _sinfo(hosts: Sequence[str]) -> tuple[str, ...]:
    return ("sinfo", "-h", "-N", "-n", compress_hosts(hosts), "-o", "%N|%T")


def _unusable_of(answer: str) -> dict[str, str]:
    states = dict(line.split("|", 1) for line in answer.splitlines() if "|" in line)
    return {
        host: state
        for host, state in states.items()
        if state.endswith("*") or state.startswith(_UNUSABLE)
    }


class HostStateQuery:
    """``find_unusable_hosts`` in the background: a scheduler may take a minute to fail.

    A controller that waited for it would answer no agent meanwhile, and all leases would lapse.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """Start the query and return at once."""
        self._argv = _sinfo(hosts)
        self._deadline = time.monotonic() + _QUERY_SECONDS
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self._error: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._error = error

    def answer(self, seconds: float = 0.0) -> dict[str, str] | None:
        """Return the answer, None while there is none.

        Args:
            seconds: how long to wait for it.

        Raises:
            JobError: Slurm does not answer.
        """
        if self._process is None:
            raise _no_answer(self._argv, f" ({self._error})")
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._deadline:
                return None
            self.close()
            raise _no_answer(self._argv) from None
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        if code != 0:
            raise _failed(self._argv, output, code)
        return _unusable_of(output)

    def close(self) -> None:
        """End the query."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()


# -- the allocation ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocation:
    """Hosts and time that we hold."""

    job: str
    """Number of the Slurm job."""

    hosts: tuple[str, ...]
    """Neighbours in the network side by side."""

    address: str
    """Of the first host, as others reach it."""

    ends_at: float
    """In seconds since the epoch; infinity without a limit."""

    @classmethod
    def find(
        cls,
        environment: Mapping[str, str],
        most: int = 0,
        *,
        without: Container[str] = (),
        run_query: Query = query_with_retries,
    ) -> "Allocation":
        """Ask Slurm about the job that the environment names.

        Args:
            environment: holds SLURM_JOB_ID.
            most: how many hosts to use; 0: all.
            without: hosts to leave alone.
            run_query: ``query`` where a person waits for the answer.

        Raises:
            ConfigError: this process is in no allocation, or may use none of its hosts.
            JobError: Slurm does not answer.
        """
        job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
        if not job or shutil.which("srun") is None:
            raise ConfigError(
                "machine.backend needs a Slurm allocation, and this is no Slurm allocation "
                "(SLURM_JOB_ID is unset, or there is no srun): run inside salloc or sbatch."
            )
        state, names, end = _query_job(job, run_query)
        if state != "RUNNING":
            raise ConfigError(f"Slurm job {job} is {state.lower()}: run inside one that runs.")
        hosts = without_excluded(sort_by_switch(expand_hosts(names), _topology()), without)
        hosts = hosts[: most or len(hosts)]
        return cls(job, hosts, _address(hosts[0], run_query), _end(environment, end))


def _query_job(job: str, run_query: Query) -> list[str]:
    """Return state, hosts and end of a job.

    The last task of an array has the array's own number, and squeue then lists every task.

    Raises:
        ConfigError: it has ended; shells keep the variables of an ``salloc`` that is over.
        JobError: Slurm's answer is not understood.
    """
    answer = run_query("squeue", "-h", "-j", job, "-o", "%T|%N|%e|%A").splitlines()
    lines = [line.strip().split("|") for line in answer]
    if not lines:
        raise ConfigError(f"Slurm job {job} has ended: run inside salloc or sbatch.")
    own = next((line for line in lines if line[3:] == [job]), lines[0])
    if len(own) < 3 or (own[0] == "RUNNING" and not own[1]):
        raise JobError(f"squeue tells no state and hosts of job {job}, but {'|'.join(own)!r}.")
    return own[:3]


def _topology() -> str:
    try:
        return query("scontrol", "show", "topology")
    except JobError:  # none is configured
        return ""


def _address(host: str, run_query: Query) -> str:
    found = re.search(r"NodeAddr=(\S+)", run_query("scontrol", "show", "node", host))
    return found[1] if found else host


def _end(environment: Mapping[str, str], squeue_end: str) -> float:
    """Return the end of the job: from the environment, or as squeue writes it."""
    if (known := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(known)
    try:
        return datetime.datetime.fromisoformat(squeue_end).timestamp()
    except ValueError:  # NONE, UNLIMITED, N/A
        return math.inf


# -- job steps ---------------------------------------------------------------------------------

NOT_INHERITED = (
    *("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODELIST", "SLURM_HOSTFILE"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_TASK"),
    *("SLURM_CPUS_PER_GPU", "SRUN_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_MEM_PER_CPU"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"),
    *("SLURM_GPU_BIND", "SLURM_STEP_GRES", "SLURM_DISTRIBUTION", "SLURM_EXACT"),
    *("SLURM_EXCLUSIVE", "SLURM_OVERLAP", "SLURM_STEP_ID", "SLURM_STEPID"),
    *("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
)
"""What describes the allocation, or the step that we are in; ``srun`` would read it as options."""


def step_argv(
    job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs another one, such as an agent, once on each of some hosts.

    It sees its whole host (``--overlap --whole``, bound to nothing): agents hand out cores and
    GPUs themselves. One that is lost must not end the others.

    Args:
        job: number of the Slurm job.
        hosts: by Slurm's names.
        command: what to run.
        flags: of a machine's profile; of two options that contradict each other the last counts.
    """
    count = str(len(hosts))
    return [
        *("srun", f"--jobid={job}", f"--nodes={count}", f"--ntasks={count}"),
        *("--ntasks-per-node=1", f"--nodelist={compress_hosts(hosts)}"),
        *("--overlap", "--whole", "--cpu-bind=none", "--export=ALL", "--input=none"),
        *("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--job-name=hpo-agents", "--label"),
        *flags,
        *command,
    ]


def step_environment(ours: Mapping[str, str], ends_at: float) -> dict[str, str]:
    """Return the environment of such a step, and of all that it starts.

    Args:
        ours: environment to pass on, except what ``srun`` would take as its options.
        ends_at: when the allocation ends, in seconds since the epoch.
    """
    kept = {name: value for name, value in ours.items() if name not in NOT_INHERITED}
    end = {END: str(int(ends_at))} if ends_at < float("inf") else {}
    return end | kept
