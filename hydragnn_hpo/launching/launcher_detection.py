"""Rank and world size under srun, mpiexec, PALS, Open MPI or torchrun, and the rank's cores.

Sources: srun(1), "Output environment variables"; MPICH's hydra, observed: PMI_RANK, PMI_SIZE,
MPI_LOCALRANKID, MPI_LOCALNRANKS; Open MPI FAQ, "Running MPI jobs", environment variables; pals.h of
HPE's PALS, which also sets PMI_SIZE; torchrun's documentation. Checked 2026-11-21.
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
    """Names of a launcher's variables; of several names in a text, the first that is set counts."""

    launcher: str
    rank: str
    world: str
    local: str
    local_world: str
    only_with: str = ""
    """Variable that must be set too: a batch script has the others without being a job step."""


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
"""Innermost first: an mpiexec may run inside a Slurm step, whose ranks are then different ones."""

_TORCH = LauncherVariables(
    "the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
)
RANK_VARIABLES = tuple(each.rank for each in (_TORCH, *LAUNCHERS))
"""A process with none of these in its environment is not a rank."""
_OURS = ("TORCHELASTIC_RUN_ID", "HYDRAGNN_HPO_JOB")
"""Set by torchrun and by agents: they start the ranks, even inside another launcher."""

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
"""Variables that a process must remove before it starts its own ranks: otherwise an MPI program
among them would consider itself a rank of the launcher that started the agents."""


@dataclass(frozen=True)
class LauncherInfo:
    """Rank and world size of this process according to one launcher."""

    launcher: str
    rank: int
    world: int
    local: int | None
    local_world: int | None


def _number(names: str, environment: Mapping[str, str]) -> int | None:
    for name in names.split():
        if (text := environment.get(name)) is not None:
            if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
                raise ConfigError(f"{name} is {text!r}, which is no number; unset it.")
            return int(text)
    return None


def _read(names: LauncherVariables, environment: Mapping[str, str]) -> LauncherInfo | None:
    """Return what one launcher's variables say; None if it did not start this process."""
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
            "number of ranks; set both alike on all ranks."
        )
    local, local_world = (_number(n, environment) for n in (names.local, names.local_world))
    return LauncherInfo(names.launcher, rank, world, local, local_world)


def rank_of_launcher(environment: Mapping[str, str]) -> int:
    """Return the rank that the innermost launcher gave this process.

    Raises:
        ConfigError: no launcher started it, or the variables are inconsistent.
    """
    for names in LAUNCHERS:
        if (info := _read(names, environment)) is not None:
            return info.rank
    raise ConfigError(
        "neither srun nor mpiexec has started this process; start it with one of them."
    )


def detect_launcher(environment: Mapping[str, str]) -> LauncherInfo | None:
    """Return rank and world size of this process under any launcher; None for a single process.

    The ranks need not have a rendezvous.

    Raises:
        ConfigError: the variables of a launcher are inconsistent.
    """
    infos = (_read(names, environment) for names in (_TORCH, *LAUNCHERS))
    info = next(filter(None, infos), None)
    if info is None or info.world == 1:
        return None
    srun = info.launcher == "srun"
    return replace(info, local_world=_tasks_here(environment) if srun else info.local_world or None)


def torchrun_environment(environment: Mapping[str, str], *, parent: int) -> dict[str, str]:
    """Return the variables that torchrun would have set, if another launcher started this process.

    Args:
        environment: of this process.
        parent: pid of the process that started this one, the same for all ranks of a host.

    Returns:
        Variables to add to the environment; none for a single rank, or if they are set already.

    Raises:
        ConfigError: two launchers contradict each other, or none gives a rendezvous address.
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
    local_world = info.local_world
    hosts = list[str]()
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
    """Return a port that is the same in all ranks of a launch and probably unique to it."""
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
        mask: cores that its launcher allows it to use.
        on_host: number of cores that all ranks of the launch on this host may use.
        local: number of the rank on the host, from 0.
        local_world: number of ranks on the host.

    Returns:
        Number of threads, and the cores to bind to; empty if its launcher has bound it already.
    """
    share = max(1, min(len(mask), on_host // local_world))
    if len(mask) < on_host or local_world == 1:
        return share, ()
    first = local * share % len(mask)
    return share, tuple(sorted(mask)[first : first + share])


def bind_threads(environment: MutableMapping[str, str], info: LauncherInfo) -> None:
    """Bind this process to its cores, and set OMP_NUM_THREADS; call it before torch is imported.

    If OMP_NUM_THREADS is set, by a person or torchrun, nothing is changed.
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
    """Count this launch's cores on this host: by Slurm's variable, else by the parent's mask."""
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_STEP_ID" in environment and cores.isdigit():
        return max(int(cores), least)
    try:
        return max(len(os.sched_getaffinity(os.getppid())), least)
    except OSError:
        return least
