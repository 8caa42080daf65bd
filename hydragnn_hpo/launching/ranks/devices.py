"""Which devices a rank may see, said by one variable.

Slurm sets ``ROCR_VISIBLE_DEVICES``, which hides devices in AMD's runtime and renumbers those that
are left; ``HIP_VISIBLE_DEVICES`` chooses among these by their new numbers, and so does
``CUDA_VISIBLE_DEVICES`` where another tool left it. Two of them with numbers of the host hide all
but the first device (OLCF user guide). So one of them is set, in numbers of the host, and the
other three are unset. NVIDIA and Intel have one each; of AMD's two the profile says which.

That choice also decides whether a rank reaches its peers' memory by DMA, and it is not settled
which is better where each rank sees one device. LUMI's guide and Slurm set
``ROCR_VISIBLE_DEVICES``, and AMD advises it, as it hides devices at the lowest level (ROCR-Runtime
issue 155): so do the profiles of Frontier and LUMI. RCCL failed to set up peers where
``HIP_VISIBLE_DEVICES`` differed from rank to rank, until July 2026 (rocm-systems pull request
8136). Nobody has measured either with us: an acceptance shows the bandwidth within a host, and a
profile that ``extends`` one of these may set ``rank.visible`` otherwise.
"""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""By an empty one of these a rank that computes on the processor touches no GPU."""


def visibility(device: str, visible: str, variable: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Give the variables to set, and those to unset, for a rank to see just its devices.

    Args:
        device: what the rank calls its own: ``cpu``, or a GPU.
        visible: the devices as ``variable`` names them; empty for a GPU that a launcher binds the
            rank to, which then has said so itself.
        variable: one of ``VARIABLES``.
    """
    if device == "cpu":
        return dict.fromkeys(_HIDING, ""), ()
    if not visible:
        return {}, ()
    return {variable: visible}, tuple(name for name in VARIABLES if name != variable)
