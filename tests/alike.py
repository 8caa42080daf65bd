"""Each test begins alike, whichever tests ran before it in the same process."""

import logging
import random
import signal
import sys
import zlib

import numpy as np

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job: commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

SIGNALS = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
"""Their handlers before any test ran; ranks and controllers have their own."""


def seed(name: str) -> None:
    """Seed the global generators from a name; ``torch.manual_seed`` would take a millisecond."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(number)


def begin() -> None:
    """Take back what a rank or a command that ran in this process has set for itself.

    Torch gets one thread: with so small nets threads only wait for cores, and they add up in
    another order.
    """
    for number, handler in SIGNALS.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    root.handlers[:] = [each for each in root.handlers if type(each).__module__[:7] == "_pytest"]
    if torch := sys.modules.get("torch"):
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.fp32_precision = "none"
