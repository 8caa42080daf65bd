"""Which engine runs some members where they are."""

from collections.abc import Sequence

import torch

from hydragnn_hpo.ensemble.engine import Eager, Engine
from hydragnn_hpo.ensemble.member import Member


def engine_of(members: Sequence[Member], device: torch.device, *, compiled: bool = False) -> Engine:
    """Give compiled members where that is wanted, stacked ones on a GPU, else one by one."""
    if compiled:  # tracers and compilers take a second to import: only where they are used
        from hydragnn_hpo.ensemble.engines.compiled import Compiled

        return Compiled(members, device)
    if device.type == "cuda":
        from hydragnn_hpo.ensemble.engines.stacked import Stacked

        return Stacked(members, device)
    return Eager(members, device)
