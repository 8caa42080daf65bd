"""What a user's conv draws at random while it trains (dropout, say) depends on the step alone."""

import hashlib

import torch

from hydragnn_hpo.training.ranks.ddp import Ranks


def reseed(seed: int, step: int, ranks: Ranks) -> None:
    """Seed torch's generators for one step, so that a resumed training draws what it would have.

    Checkpoints hold no generator's state, of no rank. Costs 6 us; ``torch.manual_seed`` would
    cost 180 us and grow a list in each call where CUDA was never used.

    Args:
        seed: of the trial.
        step: steps taken so far.
        ranks: those that see the same graphs draw the same.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{ranks.data_rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    torch.default_generator.manual_seed(number)
    if ranks.device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)
