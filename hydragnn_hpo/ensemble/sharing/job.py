"""A rank of a prediction, as backends start it."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from hydragnn_hpo import log
from hydragnn_hpo.ensemble.sharing.claims import Claims
from hydragnn_hpo.ensemble.sharing.sharing import Share
from hydragnn_hpo.ensemble.streaming.order import Order
from hydragnn_hpo.errors import HydraError, JobError
from hydragnn_hpo.files import passes, read_json, write_json
from hydragnn_hpo.launching.launcher_detection import THREADS
from hydragnn_hpo.launching.rank_environment import DEVICE

logger = logging.getLogger(__name__)

_FAILED = "failed.json"

AWAY_SECONDS = 20.0
"""Before a rank whose file server is away ends: its slot gets few others."""


def rank_main(spec: Mapping[str, Any]) -> int:
    """Do a rank's share; the entry point of backends.

    Args:
        spec: an ``Order`` as JSON.

    Returns:
        0 once nothing is left to do; 1 after an error, whose sentence is kept for ``failure_of``,
        but for one of a file server that is away: that is one of this host and moment.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    order = Order.from_json(spec)
    settle_rank()
    try:
        with order.opened(device_here()) as work, Claims(claims_of(order)) as claims:
            Share(work, claims).do_all()
    except HydraError as error:
        if passes(error):
            logger.error("%s", error)
            time.sleep(AWAY_SECONDS)
            return 1
        with contextlib.suppress(HydraError):
            write_json(order.parts.folder / _FAILED, {"error": str(error)})
        return 1
    return 0


def settle_rank() -> None:
    """Use the threads that are ours, and leave in order when asked to end."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))
    signal.signal(signal.SIGTERM, _leave)


def device_here() -> str:
    """Give the device of this rank's slot."""
    return os.environ.get(DEVICE, "cpu")


def claims_of(order: Order) -> Path:
    """Give the folder in which ranks say what they are at."""
    return order.parts.folder / "claims"


def failure_of(order: Order) -> JobError | None:
    """Give the error of a rank, if one has left any."""
    path = order.parts.folder / _FAILED
    return JobError(str(read_json(path)["error"])) if path.exists() else None


def forget_failure(order: Order) -> None:
    """Begin a new life: what had failed may be mended."""
    (order.parts.folder / _FAILED).unlink(missing_ok=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
