"""Environment variables of a rank: those that its launcher set, and those that we set for it.

A launcher (srun, mpiexec, PALS, Open MPI, torchrun) tells a process its rank and the number of
ranks. Sources: srun(1), "Output environment variables"; MPICH's hydra, observed: PMI_RANK,
PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; Open MPI FAQ, "Running MPI jobs", environment variables;
pals.h of HPE's PALS, which also sets PMI_SIZE; torchrun's documentation. Checked 2026-11-21.

The environment of the ranks of our own jobs is a pure function of job, slots and the machine's
profile. Precedence: variables that this package sets (rank, rendezvous, device, cores) always win;
then the profile; then the inherited environment. A module or a shell's start-up file therefore
cannot break a variable that the profile sets. To change such a variable, write a profile that
``extends`` the machine's; ``machine show`` displays the result. Other variables are inherited
unchanged.
"""

import hashlib
import os
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.host_network import COUNT, FIRST
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.protocol import RankStart, Rendezvous
from hydragnn_hpo.launching.schedulers import LauncherVariables, read_number
from hydragnn_hpo.launching.transports import SCHEDULERS

if TYPE_CHECKING:
    from hydragnn_hpo.config.machine import SiteConfig

_OPEN_MPI = LauncherVariables(
    "Open MPI's mpiexec",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_PALS = LauncherVariables("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
_MPIEXEC = LauncherVariables(
    "mpiexec",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID PMI_LOCAL_RANK",
    "MPI_LOCALNRANKS PMI_LOCAL_SIZE",
)
_OF_SCHEDULERS = tuple(s.rank_variables for s in SCHEDULERS.values() if s.rank_variables)
LAUNCHERS = (
    *(_OPEN_MPI, _PALS),
    *(names for names in _OF_SCHEDULERS if names.sets_pmi),
    _MPIEXEC,
    *(names for names in _OF_SCHEDULERS if not names.sets_pmi),
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
    *("SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_HOSTNAME", "PMI_SPAWNED"),
    *("HYDI_CONTROL_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    *("PMI_JOBID", "PMI_UNIVERSE_SIZE", "PMI_CONTROL_PORT", "PMI_SHARED_SECRET"),
    *("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID", "PALS_APID"),
    *("PALS_APINFO", "PALS_SPOOL_DIR", "PALS_ABORT_ON_FAILURE", "PMIX_RANK", "PMIX_NAMESPACE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *(name for names in _OF_SCHEDULERS for name in f"{names.rank} {names.local}".split()),
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
    hosts: tuple[str, ...] = ()
    """Hosts of all ranks; empty if the launcher does not name them."""


def _read(names: LauncherVariables, environment: Mapping[str, str]) -> LauncherInfo | None:
    """Return what one launcher's variables say; None if it did not start this process."""
    if names.only_with and names.only_with not in environment:
        return None
    rank = read_number(names.rank, environment)
    world = read_number(names.world, environment)
    if rank is None or (world is None and names is not _TORCH):
        return None
    if world is None:
        raise ConfigError(f"{names.rank} is {rank}, but WORLD_SIZE is not set: set both or none.")
    if rank >= world:
        raise ConfigError(
            f"{names.rank} is {rank}, {names.world.split()[0]} {world}: a rank must be below the "
            "number of ranks; set both alike on all ranks."
        )
    local = read_number(names.local, environment)
    local_world = names.count_local_ranks(environment) or None
    hosts = tuple(names.find_hosts(environment))
    return LauncherInfo(names.launcher, rank, world, local, local_world, hosts)


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
    return None if info is None or info.world == 1 else info


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
    local_world = info.local_world or (info.world if len(info.hosts) == 1 else None)
    numbers: dict[str, int | None] = {"RANK": info.rank, "WORLD_SIZE": info.world}
    numbers |= {"LOCAL_RANK": info.local, "LOCAL_WORLD_SIZE": local_world}
    named = {name: str(value) for name, value in numbers.items() if value is not None}
    if environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):
        return named
    one_host = local_world == info.world
    if not one_host and not info.hosts:
        raise ConfigError(
            f"{info.launcher} started {info.world} ranks on several hosts, and nothing says where "
            "they meet: set MASTER_ADDR and MASTER_PORT, or start them as mpiexec python -m mpi4py "
            "-m hydragnn_hpo."
        )
    address = "127.0.0.1" if one_host else info.hosts[0]
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(_port(environment, parent, one_host))}
    return named | meeting


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


JOB = "HYDRAGNN_HPO_JOB"
DEVICE = "HYDRAGNN_HPO_DEVICE"
MEMORY = "HYDRAGNN_HPO_MEMORY_MB"


def make_rank_starts(
    job: Job, ranks: Sequence[int], *, site: "SiteConfig", meet: Rendezvous, tag: str
) -> tuple[RankStart, ...]:
    """Return the start messages of those ranks of a job that share a host.

    Args:
        job: the job with all its slots.
        ranks: ranks on the host, ascending.
        site: settings of the machine's profile.
        meet: rendezvous of all ranks of the job.
        tag: tag of the run.

    Returns:
        One message per rank, in the order of ``ranks``.
    """
    given = _of_machine(job, site, meet)
    starts = []
    for local, rank in enumerate(ranks):
        slot = job.slots[rank]
        shown, hidden = visibility(slot.device, slot.visible, slot.variable)
        ours = _own(job, rank, tag) | _meeting(meet) | shown
        ours |= {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(len(ranks))}
        folders = dict(site.rank.folders)
        starts.append(RankStart(rank, slot.index, slot.cores, given | ours, hidden, folders))
    return tuple(starts)


def _of_machine(job: Job, site: "SiteConfig", meet: Rendezvous) -> dict[str, str]:
    """Return the variables that the profile sets in every rank of a job."""
    one_host = all(slot.host == job.slots[0].host for slot in job.slots)
    variables = site.rank.environment | (site.rank.one_host if one_host else site.rank.many_hosts)
    speaks_nccl = site.rank.accelerator != "xpu"
    if speaks_nccl and meet.interface in site.interfaces:  # the whole fabric, not only this one
        return {"NCCL_SOCKET_IFNAME": ",".join(site.interfaces)} | variables
    return variables


def _own(job: Job, rank: int, tag: str) -> dict[str, str]:
    """Return the variables that identify a rank and describe its slot."""
    slot = job.slots[rank]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.width),
        DEVICE: slot.device,
        JOB: f"{tag}/{job.id}",
    }
    if slot.memory_mb:
        variables[MEMORY] = str(slot.memory_mb)
    if slot.cores:
        variables[THREADS] = str(len(slot.cores))
    return variables


def _meeting(meet: Rendezvous) -> dict[str, str]:
    variables = {"GLOO_SOCKET_IFNAME": meet.interface} if meet.interface else {}
    if meet.address:
        variables |= {"MASTER_ADDR": meet.address, "MASTER_PORT": str(meet.port)}
    return variables


def overruled(site: "SiteConfig", environment: Mapping[str, str]) -> dict[str, str]:
    """Find variables of an environment that the profile overrides by another value.

    Returns:
        Values of the environment by the names of variables.
    """
    parts = (site.rank.environment, site.rank.one_host, site.rank.many_hosts)
    choices = {
        name: {part[name] for part in parts if name in part} for part in parts for name in part
    }
    return {
        name: environment[name]
        for name, values in choices.items()
        if name in environment and environment[name] not in values
    }


VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Set to empty strings, these keep a rank that computes on CPU cores from touching a GPU."""


def visibility(device: str, visible: str, variable: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables to set, and those to unset, for a rank to see just its devices.

    Slurm sets ``ROCR_VISIBLE_DEVICES``, which hides devices in AMD's runtime and renumbers those
    that are left; ``HIP_VISIBLE_DEVICES`` chooses among these by their new numbers, and so does
    ``CUDA_VISIBLE_DEVICES`` where another tool left it. Two of them with numbers of the host hide
    all but the first device (OLCF user guide). So one of them is set, in numbers of the host, and
    the other three are unset. NVIDIA and Intel have one each; the profile selects one of AMD's two.

    It is unclear which of AMD's two keeps peers' memory in reach of DMA: LUMI's guide and Slurm
    set ``ROCR_VISIBLE_DEVICES``, and AMD advises it (ROCR-Runtime issue 155), so the profiles of
    Frontier and LUMI do. RCCL failed to set up peers where ``HIP_VISIBLE_DEVICES`` differed from
    rank to rank until July 2026 (rocm-systems pull request 8136). Neither was measured with this
    package; a profile that ``extends`` one of these may set ``rank.visible`` otherwise.

    Args:
        device: ``cpu``, or torch's name of the rank's GPU.
        visible: the devices as ``variable`` names them; empty if a launcher binds the rank to its
            GPU and sets the variable itself.
        variable: one of ``VARIABLES``.

    Returns:
        Variables with their values, and names of variables that the rank must not inherit.
    """
    if device == "cpu":
        return dict.fromkeys(_HIDING, ""), ()
    if not visible:
        return {}, ()
    return {variable: visible}, tuple(name for name in VARIABLES if name != variable)
