"""The environment of each rank: a pure function of its job, its slots and its machine's profile.

Precedence: variables that this package sets (rank, rendezvous, device, cores) always win; then the
profile; then the inherited environment. A module or a shell's start-up file therefore cannot break
a variable that the profile sets. To change such a variable, write a profile that ``extends`` the
machine's; ``machine show`` displays the result. Other variables are inherited unchanged.
"""

from collections.abc import Mapping, Sequence

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.protocol import RankStart, Rendezvous

JOB = "HYDRAGNN_HPO_JOB"
DEVICE = "HYDRAGNN_HPO_DEVICE"
MEMORY = "HYDRAGNN_HPO_MEMORY_MB"


def make_rank_starts(
    job: Job, ranks: Sequence[int], *, site: SiteConfig, meet: Rendezvous, tag: str
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


def _of_machine(job: Job, site: SiteConfig, meet: Rendezvous) -> dict[str, str]:
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
        variables["OMP_NUM_THREADS"] = str(len(slot.cores))
    return variables


def _meeting(meet: Rendezvous) -> dict[str, str]:
    variables = {"GLOO_SOCKET_IFNAME": meet.interface} if meet.interface else {}
    if meet.address:
        variables |= {"MASTER_ADDR": meet.address, "MASTER_PORT": str(meet.port)}
    return variables


def overruled(site: SiteConfig, environment: Mapping[str, str]) -> dict[str, str]:
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
