"""Rank and world size under srun, mpiexec, PALS, Open MPI or torchrun, and a share of the cores.

Sources: srun(1), "Output environment variables"; MPICH's hydra, seen: PMI_RANK, PMI_SIZE,
MPI_LOCALRANKID, MPI_LOCALNRANKS; Open MPI FAQ, "Running MPI jobs", environment variables; pals.h of
HPE's PALS, which hands PMI_SIZE on; torchrun's documentation. Checked 2026-11-21.
"""

import hashlib
import os
import re
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, replace

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host_network import COUNT, FIRST
from hydragnn_hpo.launching.slurm_allocation import expand_hosts


@dataclass(frozen=True)
class LauncherVariables:
    """Names of a launcher's variables; of several in one text the first that is set counts."""

    launcher: str
    rank: str
    world: str
    local: str
    local_world: str
    only_with: str = ""
    """Counts only where this is set too: a batch script has the others without being a step."""


LAUNCHERS = (
    LauncherVariables(
        "Open MPI's mpiexec",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    LauncherVariables("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    LauncherVariables(
        "mpiexec",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID PMI_LOCAL_RANK",
        "MPI_LOCALNRANKS PMI_LOCAL_SIZE",
    ),
    LauncherVariables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
        "SLURM_LOCALID",
        "",
        only_with="SLURM_STEP_ID",
    ),
)
"""Innermost first: an mpiexec may run inside a step of Slurm, which then has other ranks."""

_TORCH = LauncherVariables(
    "the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
)
RANK_VARIABLES = tuple(each.rank for each in (_TORCH, *LAUNCHERS))
"""A process without any of these in its environment is no rank."""
_OURS = ("TORCHELASTIC_RUN_ID", "HYDRAGNN_HPO_JOB")
"""Set by torchrun and our agents, which start ranks themselves, whatever they run in."""

OF_A_RANK = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_HOSTNAME", "PMI_SPAWNED"),
    *("HYDI_CONTROL_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    *("PMI_JOBID", "PMI_UNIVERSE_SIZE", "PMI_CONTROL_PORT", "PMI_SHARED_SECRET"),
    *("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID", "PALS_APID"),
    *("PALS_APINFO", "PALS_SPOOL_DIR", "PALS_ABORT_ON_FAILURE", "PMIX_RANK", "PMIX_NAMESPACE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
"""What a process that starts ranks of its own must not hand on: an MPI program below it would take
itself for a rank of the agents' launcher."""


@dataclass(frozen=True)
class LauncherInfo:
    """A rank among others, as one launcher knows it."""

    launcher: str
    rank: int
    world: int
    local: int | None
    local_world: int | None


def _number(names: str, environment: Mapping[str, str]) -> int | None:
    for name in names.split():
        if (text := environment.get(name)) is not None:
            if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
                raise ConfigError(f"{name} is {text!r}, which is no number: unset it.")
            return int(text)
    return None


def _read(names: LauncherVariables, environment: Mapping[str, str]) -> LauncherInfo | None:
    """Return what one launcher says; None where it did not start us."""
    if names.only_with and names.only_with not in environment:
        return None
    rank = _number(names.rank, environment)
    world = _number(names.world, environment)
    if rank is None or (world is None and names is not _TORCH):
        return None
    if world is None:
        raise ConfigError(f"{names.rank} is {rank}, but WORLD_SIZE is not set: set both or none.")
    if rank >= world:
        raise ConfigError(
            f"{names.rank} is {rank}, {names.world.split()[0]} {world}: a rank must be below the "
            "number of ranks."
        )
    local, local_world = (_number(n, environment) for n in (names.local, names.local_world))
    return LauncherInfo(names.launcher, rank, world, local, local_world)


def rank_of_launcher(environment: Mapping[str, str]) -> int:
    """Return the rank that the innermost launcher gave this process.

    Raises:
        ConfigError: none started it, or what it says makes no sense.
    """
    for names in LAUNCHERS:
        if (info := _read(names, environment)) is not None:
            return info.rank
    raise ConfigError("this process must be started by srun or mpiexec, and none of them did.")


def detect_launcher(environment: Mapping[str, str]) -> LauncherInfo | None:
    """Return our place among ranks that need not meet, whoever started them; None for one alone.

    Raises:
        ConfigError: what a launcher says makes no sense.
    """
    infos = (_read(names, environment) for names in (_TORCH, *LAUNCHERS))
    info = next(filter(None, infos), None)
    if info is None or info.world == 1:
        return None
    srun = info.launcher == "srun"
    return replace(info, local_world=_tasks_here(environment) if srun else info.local_world or None)


def torchrun_environment(environment: Mapping[str, str], *, parent: int) -> dict[str, str]:
    """Return what torchrun would have set, where another launcher started us.

    Args:
        environment: of this process.
        parent: pid of the process that started this one, the same for all ranks of a host.

    Returns:
        What to add to the environment; nothing for a rank alone, and where all is said.

    Raises:
        ConfigError: two launchers contradict each other, or none says where to meet.
    """
    torchrun = _read(_TORCH, environment)
    if torchrun and any(name in environment for name in _OURS):
        return {}
    others = [info for names in LAUNCHERS if (info := _read(names, environment))]
    if torchrun:
        for other in others:
            if (other.rank, other.world) != (torchrun.rank, torchrun.world):
                raise ConfigError(
                    f"RANK and WORLD_SIZE say {torchrun.rank} of {torchrun.world}, "
                    f"{other.launcher} says {other.rank} of {other.world}: unset what is not meant."
                )
        return {}
    if not others or others[0].world == 1:
        return {}
    return _as_torchrun(others[0], environment, parent)


def _as_torchrun(info: LauncherInfo, environment: Mapping[str, str], parent: int) -> dict[str, str]:
    local_world, hosts = info.local_world, list[str]()
    if info.launcher == "srun":
        listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
        hosts = expand_hosts(listed)
    if hosts:
        local_world = _tasks_here(environment) or (info.world if len(hosts) == 1 else None)
    numbers: dict[str, int | None] = {"RANK": info.rank, "WORLD_SIZE": info.world}
    numbers |= {"LOCAL_RANK": info.local, "LOCAL_WORLD_SIZE": local_world}
    named = {name: str(value) for name, value in numbers.items() if value is not None}
    if environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        return named
    one_host = local_world == info.world
    if not one_host and not hosts:
        raise ConfigError(
            f"{info.launcher} started {info.world} ranks on several hosts, and nothing says where "
            "they meet: set MASTER_ADDR and MASTER_PORT, or start them as mpiexec python -m mpi4py "
            "-m hydragnn_hpo."
        )
    address = "127.0.0.1" if one_host else hosts[0]
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(_port(environment, parent, one_host))}
    return named | meeting


def _tasks_here(environment: Mapping[str, str]) -> int | None:
    """Return the ranks on this host from a list such as ``4(x2),3`` and the host's number in it."""
    number = environment.get("SLURM_NODEID", "")
    counts: list[int] = []
    for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    ):
        counts += [int(count)] * min(int(times or "1"), 1_000_000)
    return counts[int(number)] if number.isdigit() and int(number) < len(counts) else None


def _port(environment: Mapping[str, str], parent: int, one_host: bool) -> int:
    """Return a port that all ranks of a launch derive alike, and other launches hardly ever."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID", "PMIX_NAMESPACE")
    known = [environment.get(name, "") for name in names]
    text = "/".join([*known, str(parent) if one_host and not any(known[1:]) else ""])
    digest = hashlib.sha256(text.encode()).digest()
    return FIRST + int.from_bytes(digest[:4], "big") % COUNT


THREADS = "OMP_NUM_THREADS"


def own_cores(
    mask: Collection[int], on_host: int, *, local: int, local_world: int
) -> tuple[int, tuple[int, ...]]:
    """Return the share of a host's cores that one rank may use.

    Args:
        mask: cores that it may use, as its launcher left them.
        on_host: cores that all its ranks of the host may use together.
        local: its number on the host, from 0.
        local_world: ranks on the host.

    Returns:
        Threads to use, and the cores to bind them to; none where its launcher has bound it.
    """
    share = max(1, min(len(mask), on_host // local_world))
    if len(mask) < on_host or local_world == 1:
        return share, ()
    first = local * share % len(mask)
    return share, tuple(sorted(mask)[first : first + share])


def bind_threads(environment: MutableMapping[str, str], info: LauncherInfo) -> None:
    """Bind this process to its share, and say so in the environment; before torch is imported.

    What a person or torchrun has said of threads counts.
    """
    if THREADS in environment or info.local is None or not info.local_world:
        return
    mask = os.sched_getaffinity(0)
    on_host = _on_host(environment, len(mask))
    threads, cores = own_cores(mask, on_host, local=info.local, local_world=info.local_world)
    if cores:
        os.sched_setaffinity(0, cores)
    environment[THREADS] = str(threads)


def _on_host(environment: Mapping[str, str], least: int) -> int:
    """Count the cores of our launch on this host: Slurm says it, others hand their own mask on."""
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_STEP_ID" in environment and cores.isdigit():
        return max(int(cores), least)
    try:
        return max(len(os.sched_getaffinity(os.getppid())), least)
    except OSError:
        return least
