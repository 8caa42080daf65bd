"""The Slurm allocation of this process: its hosts in network order, its end, steps on its hosts.

Slurm writes host lists such as ``frontier[00012-00019,00100],login2``.
"""

import contextlib
import datetime
import itertools
import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.scheduler_commands import (
    CommandFailed,
    run_scheduler,
    run_with_retries,
    select_environment,
)
from hydragnn_hpo.launching.schedulers import ENDED, parse_time
from hydragnn_hpo.walltime import END, REQUESTED_END

logger = logging.getLogger(__name__)

# -- host lists --------------------------------------------------------------------------------

_MAX_HOSTS = 1_000_000
"""Hosts in one list; more is a typing error."""

_WARNINGS = 3
"""Unknown names of excluded hosts that are warned of."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(rf"(?:[^,\[\]]|{_BRACKET.pattern})+")
"""One name of a host list: commas inside brackets do not end it."""

_END_NUMBER = re.compile(r"([0-9]{1,9})$")
"""The number that ends a name, short enough for an integer of Slurm's."""

_RANGE = 65_536
"""Hosts in one range; Slurm refuses a longer one."""


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a host list, in its order.

    Raises:
        ConfigError: it is no host list, or contains an invalid host name.
    """
    text = text.strip()
    if re.search(r"[\[\]]", _BRACKET.sub("", text)):
        raise _host_list_error(text)
    names = (_expand_name(match[0]) for match in _NAME.finditer(text))
    hosts = list(itertools.islice(itertools.chain.from_iterable(names), _MAX_HOSTS + 1))
    if len(hosts) > _MAX_HOSTS:
        raise ConfigError(
            f"host list {text[:60]!r} names more than {_MAX_HOSTS} hosts: ask for fewer."
        )
    return [check_host_name(host) for host in hosts]


def check_host_name(host: str) -> str:
    """Return a host name unchanged if it is valid; it becomes part of commands.

    Raises:
        ConfigError: it begins like an option, or contains characters that no host name has.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{host[:80]!r} is no name of a host: use letters, digits, . _ and -.")
    return host


HostNames = Mapping[str, Collection[str]]
"""Host -> further names of it: its name on the network, its address."""


def without_excluded(
    hosts: Sequence[str], excluded: Collection[str], known: HostNames | None = None
) -> tuple[str, ...]:
    """Return the hosts that are not excluded by any of their names; warn of unknown names.

    Args:
        hosts: hosts to choose from.
        excluded: names of hosts, with their domain or without it.
        known: all hosts of the machine; ``hosts`` under their own names only if left out.

    Returns:
        In the order of ``hosts``.

    Raises:
        ConfigError: all hosts are excluded.
    """
    taken, unknown = find_excluded(hosts, excluded, known)
    for name in unknown[:_WARNINGS] if hosts else ():
        of_job = "" if known else " of this job"
        logger.warning("exclude.hosts names %r, but no host%s has that name.", name, of_job)
    kept = tuple(host for host in hosts if host not in taken)
    if hosts and not kept:
        raise ConfigError(
            f"all {len(hosts)} hosts are excluded: remove lines from exclude.hosts in the run "
            "directory, or ask for other hosts."
        )
    return kept


def find_excluded(
    hosts: Sequence[str], excluded: Collection[str], known: HostNames | None = None
) -> tuple[frozenset[str], list[str]]:
    """Find the hosts that are excluded by any of their names.

    Args:
        hosts: hosts to choose from.
        excluded: names of hosts.
        known: all hosts of the machine.

    Returns:
        The hosts, and the names that no host has.
    """
    named = {host: {host.lower()} for host in hosts} if excluded else {}
    for host, others in (known or {}).items():
        named[host] = {name.lower() for name in (host, *others)}
    owners = {name: _find_owners(name.lower(), named) for name in excluded}
    return frozenset[str]().union(*owners.values()), [name for name in owners if not owners[name]]


def _find_owners(name: str, named: Mapping[str, set[str]]) -> set[str]:
    """Return the hosts that a name refers to; a host's own name goes before its other names.

    A name without a domain is one in any domain, unless a host has just that name. One with a
    domain is also that of a host of which no domain is known.

    Args:
        name: in lower case.
        named: all names of each host, in lower case.
    """
    if exact := {host for host, names in named.items() if name in names}:
        return {host for host in exact if host.lower() == name} or exact
    short = _cut_domain(name)
    if short == name:
        return {host for host, names in named.items() if name in map(_cut_domain, names)}
    holders = {host: names - {short} for host, names in named.items() if short in names}
    return {host for host, names in holders.items() if short not in map(_cut_domain, names)}


def _cut_domain(name: str) -> str:
    """Return a name without its domain; an address has none."""
    return name if re.fullmatch(r"[0-9.]+", name) else name.partition(".")[0]


def _expand_name(name: str) -> Iterator[str]:
    """Return all combinations of a name's bracketed numbers; the last bracket varies fastest."""
    pieces = _BRACKET.split(name)  # text and contents of brackets alternate
    choices = [list(_numbers(p, name)) if odd % 2 else [p] for odd, p in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(content: str, name: str) -> Iterator[str]:
    """Yield the numbers of one bracket, padded like the first of each range."""
    for part in content.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if match is None:
            raise _host_list_error(name)
        first = int(match[1])
        last = int(match[2] or match[1])
        if not 0 <= last - first <= _MAX_HOSTS:
            raise _host_list_error(name)
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


def _host_list_error(text: str) -> ConfigError:
    return ConfigError(f"{text[:80]!r} is no host list: write it as in node[01-04,07],login1.")


def compress_hosts(hosts: Iterable[str]) -> str:
    """Return a short host list that ``expand_hosts`` turns back into the same hosts.

    Slurm reads one bracket at the end of a name, and nothing behind it: names such as ``n1-ib``
    stand one by one.
    """
    names: list[str] = []
    split = ([*_END_NUMBER.split(host), ""][:2] for host in hosts)
    for (before, numbered), group in itertools.groupby(
        split, lambda name: (name[0], name[1] != "")
    ):
        runs: list[list[str]] = []
        for _, digits in group:
            if numbered and runs and _continues(runs[-1], digits):
                runs[-1][1:] = [digits]
            else:
                runs.append([digits])
        numbers = ["-".join(run) for run in runs]
        if not numbered or len(runs) == len(runs[0]) == 1:
            names += [f"{before}{number}" for number in numbers]
        else:
            names.append(f"{before}[{','.join(numbers)}]")
    return ",".join(names)


def _continues(run: Sequence[str], digits: str) -> bool:
    """Check whether a number follows on a range, padded like the first number of it."""
    follows = digits == str(int(run[-1]) + 1).zfill(len(run[0]))
    return follows and int(digits) - int(run[0]) < _RANGE


# -- network order -----------------------------------------------------------------------------


def sort_by_number(hosts: Sequence[str]) -> list[str]:
    """Sort hosts by the numbers in their names: cabinets are numbered along the network."""

    def key(host: str) -> list[tuple[int, str]]:
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"([0-9]+)", host)]

    return sorted(hosts, key=key)


def sort_by_switch(hosts: Sequence[str], topology: str) -> list[str]:
    """Sort hosts by switch, then by number, so that neighbours in the list are close.

    Args:
        hosts: hosts of the allocation.
        topology: output of ``scontrol show topology``, which names all hosts below each switch
            or block; may be empty or an error message.
    """
    below: list[list[str]] = []
    for names in re.findall(r"\bNodes=(\S+)", topology):
        with contextlib.suppress(ConfigError):  # no host list: it is left out
            below.append(expand_hosts(names))
    switches: dict[str, list[int]] = {}
    highest_first = sorted((len(group), number) for number, group in enumerate(below))[::-1]
    for _, number in highest_first:
        for host in below[number]:
            switches.setdefault(host, []).append(number)
    unknown = [len(below)]
    return sorted(sort_by_number(hosts), key=lambda host: switches.get(host, unknown))


# -- queries -----------------------------------------------------------------------------------

Query = Callable[..., str]
"""Runs a command of Slurm and returns its output, or raises ``JobError``."""

_UNUSABLE = ("down", "fail", "power", "reboot")
"""Prefixes of states of hosts on which no step can start; on a draining host steps still can."""


def find_unusable_hosts(hosts: Sequence[str], run_query: Query = run_scheduler) -> dict[str, str]:
    """Return those of the given hosts on which no step can start.

    Args:
        hosts: Slurm's names of the hosts.
        run_query: ``run_with_retries`` where the caller cannot go on without the answer.

    Returns:
        Name -> state in Slurm's words, such as ``down*``.

    Raises:
        JobError: Slurm does not answer.
    """
    return parse_unusable_hosts(run_query(*host_states_argv(hosts)))


def host_states_argv(hosts: Sequence[str]) -> list[str]:
    """Return the command that prints the states of hosts, for ``parse_unusable_hosts``."""
    return ["sinfo", "-h", "-N", "-n", compress_hosts(hosts), "-o", "%N|%T"]


def parse_unusable_hosts(output: str) -> dict[str, str]:
    """Return the hosts on which no step can start, as ``find_unusable_hosts`` does.

    Returns:
        Name -> state.
    """
    states = dict(line.split("|", 1) for line in output.splitlines() if "|" in line)
    return {
        host: state
        for host, state in states.items()
        if state.endswith("*") or state.startswith(_UNUSABLE)
    }


def _query_host_names(run_query: Query = run_scheduler) -> dict[str, tuple[str, ...]]:
    """Ask Slurm for the name on the network and the address of all hosts of the machine."""
    lines = run_query("sinfo", "-h", "-a", "-N", "-o", "%N|%n|%o").splitlines()
    names = (line.strip().split("|") for line in lines)
    return {host: tuple(others) for host, *others in names if len(others) == 2}


# -- the allocation ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocation:
    """Hosts and end time of the Slurm job of this process."""

    job: str
    """Number of the Slurm job."""

    hosts: tuple[str, ...]
    """Hosts in network order, so that neighbours in the list are close."""

    address: str
    """Address at which other hosts reach the first host."""

    ends_at: float
    """In seconds since the epoch; infinity without a limit."""

    @classmethod
    def find(
        cls,
        environment: Mapping[str, str],
        most: int = 0,
        *,
        without: Collection[str] = (),
        longest: float = math.inf,
        run_query: Query = run_with_retries,
    ) -> "Allocation":
        """Query Slurm for the job that the environment names.

        Args:
            environment: holds SLURM_JOB_ID.
            most: most hosts to use; 0: all.
            without: excluded hosts.
            longest: seconds that the machine gives an allocation at most.
            run_query: ``run_scheduler`` where a person waits for the answer.

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
        state, names, *end = _query_job(job, run_query)
        if state != "RUNNING":
            raise ConfigError(f"Slurm job {job} is {state.lower()}: run inside one that runs.")
        try:
            topology = run_scheduler("scontrol", "show", "topology")
        except JobError:  # none is configured
            topology = ""
        ordered = sort_by_switch(expand_hosts(names), topology)
        known = _query_host_names(run_query) if without else {}
        usable = without_excluded(ordered, without, known)
        hosts = usable[: most or None]
        shown = re.search(r"NodeAddr=(\S+)", run_query("scontrol", "show", "node", hosts[0]))
        address = shown[1] if shown else hosts[0]
        return cls(job, hosts, address, _find_end(environment, end, longest))


_STATE = re.compile(r"\s*[A-Z_]+\|")
"""Beginning of a line of ``squeue``; sites print greetings before and behind such lines."""


def _query_job(job: str, run_query: Query) -> list[str]:
    """Return state, hosts, end and time left of a job.

    The last task of an array has the id of the array itself, for which squeue lists every task.

    Raises:
        ConfigError: it has ended; shells keep the variables of an ``salloc`` that is over.
        JobError: Slurm's answer is not understood.
    """
    try:
        answer = run_query("squeue", "-h", "-j", job, "-o", "%T|%N|%e|%A|%L")
    except CommandFailed as error:
        if not error.names_no_job:
            raise
        answer = ""
    if not answer.strip():
        raise ConfigError(f"Slurm job {job} has ended: run inside salloc or sbatch.")
    lines = [line.strip().split("|") for line in answer.splitlines() if _STATE.match(line)]
    own = next((line for line in lines if line[3:4] == [job]), (lines or [[]])[0])
    if len(own) < 3 or (own[0] == "RUNNING" and not own[1]):
        raise JobError(
            f"squeue tells no state and hosts of job {job}, but {answer.strip()[:100]!r}: try "
            "again later."
        )
    if own[0] == "RUNNING" and not expand_hosts(own[1]):
        raise JobError(
            f"squeue names no hosts of job {job}, but {own[1][:100]!r}: try again later."
        )
    return [*own[:3], *own[4:5]]


_ALIVE = ("RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED", "PENDING")
"""States of a job whose hosts may be used, now or soon."""


def job_state_argv(job: str) -> list[str]:
    """Return the command that prints the state of a job, for ``find_job_end``."""
    return ["squeue", "-h", "-j", job, "--states=all", "-o", "%T|%A"]


def find_job_end(answer: str | JobError) -> str | None:
    """Return that a job has ended, and how; None if it goes on, or nothing is known.

    Args:
        answer: what ``job_state_argv`` printed, or how it failed.
    """
    if isinstance(answer, JobError):
        forgotten = isinstance(answer, CommandFailed) and answer.names_no_job
        return "has ended" if forgotten else None
    states = [line.strip().partition("|")[0] for line in answer.splitlines() if _STATE.match(line)]
    if not states or any(state in _ALIVE for state in states):
        return None
    how = f" ({ENDED[states[0]]})" if states[0] in ENDED else ""
    return f"has ended{how}"


def _find_end(environment: Mapping[str, str], squeue: Sequence[str], longest: float) -> float:
    """Return the end of the job: from the environment, or from squeue, or as it was requested."""
    known = environment.get("SLURM_JOB_END_TIME", "")
    if known.isascii() and known.isdecimal():
        return float(known)
    left = squeue[1] if len(squeue) > 1 else ""
    if (seconds := parse_time(left.removeprefix("-"))) is not None:  # whatever SLURM_TIME_FORMAT
        return time.time() + (0 if left.startswith("-") else seconds)
    try:
        return datetime.datetime.fromisoformat(squeue[0]).timestamp()
    except ValueError:
        if left == "UNLIMITED" or squeue[0] in ("NONE", "UNLIMITED"):
            return math.inf
    requested = environment.get(REQUESTED_END, "")
    end = float(requested) if requested.isdecimal() else time.time() + longest
    drain = "trials leave by the time that was requested" if end < math.inf else "nothing drains it"
    logger.warning(
        "Slurm does not tell when this job ends (squeue: %s): %s; set %s to the end in seconds "
        "since the epoch if you know it.",
        " ".join(squeue)[:60],
        drain,
        END,
    )
    return end


# -- job steps ---------------------------------------------------------------------------------

_OF_THE_JOB = (
    *("SLURM_JOB_", "SLURM_JOBID", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_CLUSTER_NAME"),
    *("SLURM_NETWORK", "SLURM_MPI_TYPE", "PBS_"),
)
"""Prefixes of variables that steps keep: what describes their job, its network and its MPI. All
others describe another step, or ``srun`` would read them as options.
"""


def step_argv(
    job: str, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str] = ()
) -> list[str]:
    """Return an ``srun`` command that runs a command, such as an agent, once on each host.

    The command has access to its whole host (``--overlap --whole``, not bound), since agents assign
    cores and GPUs themselves. A task that is lost does not end the others.

    Args:
        job: id of the Slurm job.
        hosts: Slurm's names of the hosts.
        command: the command to run.
        flags: flags of a machine's profile; they override earlier options.
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


_ENDED = re.compile(r"srun: error: (\S+): tasks? ([0-9,-]+): (.+)")
"""Line in which ``srun`` reports how tasks ended, and on which hosts."""

_LABELLED = re.compile(r"\s*([0-9]+): (.*\S)")
"""Line of a task, with ``--label``."""


def parse_ended_tasks(lines: Sequence[str]) -> dict[str, str]:
    """Return how the tasks of a step with one task per host ended that failed.

    Args:
        lines: output of the ``srun`` of ``step_argv``.

    Returns:
        Host -> how its task ended, and the last line that it wrote.
    """
    last = {int(m[1]): m[2].rstrip(".") for m in map(_LABELLED.fullmatch, lines) if m}
    ended: dict[str, str] = {}
    for match in filter(None, map(_ENDED.fullmatch, lines)):
        with contextlib.suppress(ConfigError):  # a line of another program
            tasks = map(int, expand_hosts(f"[{match[2]}]"))
            for host, task in zip(expand_hosts(match[1]), tasks, strict=False):
                how = match[3][:1].lower() + match[3][1:]
                ended[host] = f"{how}: {last[task]}" if task in last else how
    return ended


def step_environment(ours: Mapping[str, str], ends_at: float) -> dict[str, str]:
    """Return the environment of a job step, which its processes inherit.

    Args:
        ours: environment to pass on, except what a launcher would read as options.
        ends_at: when the allocation ends, in seconds since the epoch.

    Returns:
        The environment, with the end of the allocation for ``WallTime.of``.
    """
    kept = select_environment(ours, keep=_OF_THE_JOB)
    end = {END: str(int(ends_at))} if ends_at < float("inf") else {}
    return end | kept
