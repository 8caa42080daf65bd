"""One of several ranks that predict: started by a backend, or by any launcher.

Ranks do not speak to each other: they meet in the folder of parts. torch.distributed takes no part.
"""

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
from hydragnn_hpo.ensemble.chunk_claims import ChunkClaims
from hydragnn_hpo.ensemble.input_chunks import ChunkId
from hydragnn_hpo.ensemble.output_parts import PartFolder
from hydragnn_hpo.ensemble.predict_file import (
    POLL_SECONDS,
    PredictOutcome,
    PredictPipeline,
    PredictRequest,
    predict_chunks,
)
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.files import passes, read_json, write_json
from hydragnn_hpo.launching import DEVICE, THREADS

logger = logging.getLogger(__name__)

STORAGE_RETRY_SECONDS = 20.0
"""Before a rank whose file server is away ends: its slot is started a few times only."""

BEGIN_SECONDS = 300.0
"""How long ranks wait for the first of them, which makes the folder."""

_FAILED = "failed.json"
_JOIN = "join"


class _FinishedEarlier(Exception):
    """All was done before this rank began."""


def rank_main(spec: Mapping[str, Any]) -> int:
    """Predict as a rank of a backend; its entry point.

    Args:
        spec: a ``PredictRequest`` as JSON.

    Returns:
        0 once no chunk is left; 1 after an error, whose sentence is kept for ``read_failure``,
        except one of a file server that is away: that concerns this host and moment alone.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    request = PredictRequest.from_json(spec)
    _set_up_process()
    try:
        with request.open_output(_slot_device()) as pipeline, claims_of(request) as claims:
            predict_chunks(pipeline, claims)
    except HydraError as error:
        if passes(error):
            logger.error("%s", error)
            time.sleep(STORAGE_RETRY_SECONDS)
            return 1
        with contextlib.suppress(HydraError):
            write_json(request.parts.folder / _FAILED, {"error": str(error)})
        return 1
    return 0


def predict_as_rank(request: PredictRequest, rank: int) -> PredictOutcome | None:
    """Predict as a rank of a launcher; one of the ranks joins the parts.

    Rank 0 alone makes the folder, so that one that comes late does not predict all again.

    Args:
        request: the same on all ranks.
        rank: number of this one.

    Returns:
        How it ended, on the rank that joined.

    Raises:
        HydraError: it cannot be done; on all ranks that see it.
    """
    _set_up_process()
    folder, out = request.parts.folder, Path(request.out)
    started = _process_start()

    def begin(parts: PartFolder, plan: dict[str, str]) -> None:
        if rank == 0:
            parts.begin(plan)
            claims_of(request).clear()
        else:
            _await_folder(folder, out, started)
            parts.agree(plan)

    try:
        opened = request.open_output(_slot_device(), begin=begin)
        with opened as pipeline, claims_of(request) as claims:
            if given_up := predict_chunks(pipeline, claims):
                raise given_up_error(request, given_up)
            return _join_once(folder, pipeline, claims)
    except _FinishedEarlier:
        return None
    except HydraError:
        if folder.exists() or not _is_younger(out, started):
            raise
        return None  # other ranks have joined meanwhile


def claims_of(request: PredictRequest) -> ChunkClaims:
    """Return the claims of all ranks of a request."""
    return ChunkClaims(request.parts.folder / "claims")


def read_failure(request: PredictRequest) -> JobError | None:
    """Return the error of a rank, if one has left any."""
    path = request.parts.folder / _FAILED
    return JobError(str(read_json(path)["error"])) if path.exists() else None


def clear_failure(request: PredictRequest) -> None:
    """Remove the error of an earlier start, whose cause may be mended."""
    (request.parts.folder / _FAILED).unlink(missing_ok=True)


def given_up_error(request: PredictRequest, chunks: list[ChunkId]) -> JobError:
    """Return the error about chunks that end whichever rank predicts them."""
    first = chunks[0]
    return JobError(
        f"{request.out}: {len(chunks)} pieces were not predicted, since several ranks ended while "
        f"they were at them, the first at piece {first.number + 1} of input {first.source + 1}: "
        "give ranks more memory or take these structures out, and repeat the command; what is done "
        "is kept."
    )


def _join_once(
    folder: Path, pipeline: PredictPipeline, claims: ChunkClaims
) -> PredictOutcome | None:
    """Join the parts, or wait until another rank has."""
    while True:
        try:
            if claims.take(_JOIN):
                return pipeline.join()
        except StorageError:
            if folder.exists():
                raise
        if not folder.exists():
            return None
        if claims.is_given_up(_JOIN):
            raise JobError(
                f"{folder}: several ranks ended while they joined it; repeat the command."
            )
        time.sleep(POLL_SECONDS)


def _set_up_process() -> None:
    """Use the threads of this rank, and leave in order on SIGTERM."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _slot_device() -> str:
    """Return the device of this rank's slot."""
    return os.environ.get(DEVICE, "cpu")


def _await_folder(folder: Path, out: Path, started: float) -> None:
    """Wait for the folder.

    Raises:
        _FinishedEarlier: it was there and is gone: the output is younger than this process.
        JobError: rank 0 does not make it.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not (folder / "plan.json").exists():
        if _is_younger(out, started):
            raise _FinishedEarlier
        if time.monotonic() > deadline:
            raise JobError(f"{folder}: rank 0 has not begun within {BEGIN_SECONDS:.0f} s.")
        time.sleep(POLL_SECONDS)


def _is_younger(path: Path, started: float) -> bool:
    return path.exists() and path.stat().st_mtime > started


def _process_start() -> float:
    """Return when this process was started, in seconds since the epoch: imports may take long."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
