"""The environment of each rank: a pure function of its job, its slots and its machine's profile.

What counts if several have an opinion: our own names (who a rank is, where it meets the others,
its device, its cores) always; then the profile; then what the rank inherits. So what a profile
names cannot be broken by a module or a shell's start-up file that sets the same variable to
something that hangs, and a person who knows better says so in a profile (``extends``), which
``machine show`` then shows. What no profile names passes through as it is.
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
    """Return what the ranks of a job that share a host are started with.

    Args:
        job: with all its slots.
        ranks: those of one host, rising.
        site: what the machine's profile says.
        meet: where all ranks of the job meet.
        tag: of the run.

    Returns:
        In the order of ``ranks``.
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
    """Return what the profile sets in every rank of a job."""
    one_host = all(slot.host == job.slots[0].host for slot in job.slots)
    variables = site.rank.environment | (site.rank.one_host if one_host else site.rank.many_hosts)
    speaks_nccl = site.rank.accelerator != "xpu"
    if speaks_nccl and meet.interface in site.interfaces:  # all of the fabric, not this one alone
        return {"NCCL_SOCKET_IFNAME": ",".join(site.interfaces)} | variables
    return variables


def _own(job: Job, rank: int, tag: str) -> dict[str, str]:
    """Return who a rank is and what its slot holds; a launcher that binds it says more itself."""
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
    """Find what an environment sets otherwise than the profile does, which counts.

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
"""By an empty one of these a rank that computes on the processor touches no GPU."""


def visibility(device: str, visible: str, variable: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables to set, and those to unset, for a rank to see just its devices.

    Slurm sets ``ROCR_VISIBLE_DEVICES``, which hides devices in AMD's runtime and renumbers those
    that are left; ``HIP_VISIBLE_DEVICES`` chooses among these by their new numbers, and so does
    ``CUDA_VISIBLE_DEVICES`` where another tool left it. Two of them with numbers of the host hide
    all but the first device (OLCF user guide). So one of them is set, in numbers of the host, and
    the other three are unset. NVIDIA and Intel have one each; of AMD's two the profile says which.

    It is not settled which of AMD's leaves peers' memory in reach of DMA: LUMI's guide and Slurm
    set ``ROCR_VISIBLE_DEVICES``, and AMD advises it (ROCR-Runtime issue 155), so the profiles of
    Frontier and LUMI do. RCCL failed to set up peers where ``HIP_VISIBLE_DEVICES`` differed from
    rank to rank until July 2026 (rocm-systems pull request 8136). Nobody has measured either with
    us; a profile that ``extends`` one of these may set ``rank.visible`` otherwise.

    Args:
        device: what the rank calls its own: ``cpu``, or a GPU.
        visible: the devices as ``variable`` names them; empty for a GPU that a launcher binds the
            rank to, which then has said so itself.
        variable: one of ``VARIABLES``.

    Returns:
        Variables with their values, and names of variables that the rank must not inherit.
    """
    if device == "cpu":
        return dict.fromkeys(_HIDING, ""), ()
    if not visible:
        return {}, ()
    return {variable: visible}, tuple(name for name in VARIABLES if name != variable)
