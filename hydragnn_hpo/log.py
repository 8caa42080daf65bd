"""Set up logging for the command line and for ranks; no other module installs handlers."""

import logging
import sys


def configure(level: int = logging.INFO, rank: int | None = None) -> None:
    """Log to stderr; ranks above 0 log only from WARNING up. Each line of a rank names its rank."""
    prefix = "" if rank is None else f"rank {rank} "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix}%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if rank else level)
