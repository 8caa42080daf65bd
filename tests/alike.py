"""Each test begins alike, whichever tests ran before it in the same process."""

import random
import sys
import zlib

import numpy as np


def seed(name: str) -> None:
    """Seed the global generators from a name; ``torch.manual_seed`` would take a millisecond."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(number)


def begin() -> None:
    """Take back what a test may have told torch: one thread, fp32, denormals, nothing forced.

    With so small nets threads only wait for cores, and they add up in another order.
    """
    if torch := sys.modules.get("torch"):
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
