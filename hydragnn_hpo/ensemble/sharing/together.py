"""Ranks that somebody else has started: they meet in the folder of parts, and one of them joins."""

import os
import time
from pathlib import Path

from hydragnn_hpo.ensemble.sharing.claims import Claims
from hydragnn_hpo.ensemble.sharing.job import claims_of, device_here, settle_rank
from hydragnn_hpo.ensemble.sharing.sharing import LOOK_SECONDS, Share
from hydragnn_hpo.ensemble.streaming.order import Order
from hydragnn_hpo.ensemble.streaming.parts import Parts, Piece
from hydragnn_hpo.ensemble.streaming.work import Outcome, Work
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.host_info import start_ticks

BEGIN_SECONDS = 300.0
"""How long ranks wait for the first of them, which makes the folder."""

_JOIN = "join"


class Late(Exception):
    """All was done before this rank began."""


def predict_together(order: Order, rank: int) -> Outcome | None:
    """Be one of several ranks; whoever sees first that all is done joins the parts.

    Rank 0 alone makes the folder, so that one that comes late does not begin anew.

    Args:
        order: the same on all ranks.
        rank: our number.

    Returns:
        How it ended, on the rank that joined.

    Raises:
        HydraError: it cannot be done; on all ranks that see it.
    """
    settle_rank()
    folder, out = order.parts.folder, Path(order.out)
    born = _birth()

    def begin(parts: Parts, plan: dict[str, str]) -> None:
        if rank == 0:
            parts.begin(plan)
        else:
            _await(folder, out, born)
            parts.agree(plan)

    try:
        with order.opened(device_here(), begin=begin) as work, Claims(claims_of(order)) as claims:
            if rank == 0:
                claims.forget_dead()
            if lost := Share(work, claims).do_all():
                raise lost_pieces(order, lost)
            return _join(folder, work, claims)
    except Late:
        return None
    except StorageError:
        if folder.exists() or not _is_younger(out, born):
            raise
        return None  # the others were done while we began


def lost_pieces(order: Order, lost: list[Piece]) -> JobError:
    """Say which structures end whoever predicts them."""
    piece = lost[0]
    return JobError(
        f"{order.out}: {len(lost)} pieces were not predicted, since several ranks ended while they "
        f"were at them, the first at piece {piece.number + 1} of input {piece.lot + 1}: give ranks "
        "more memory or take these structures out, and repeat the command; what is done is kept."
    )


def _join(folder: Path, work: Work, claims: Claims) -> Outcome | None:
    """Join the parts, or wait until another rank has."""
    while True:
        try:
            if claims.take(_JOIN):
                return work.join()
        except StorageError:
            if folder.exists():
                raise
        if not folder.exists():
            return None
        if claims.is_lost(_JOIN):
            raise JobError(
                f"{folder}: several ranks ended while they joined it; repeat the command."
            )
        time.sleep(LOOK_SECONDS)


def _await(folder: Path, out: Path, born: float) -> None:
    """Wait for the folder.

    Raises:
        Late: it has been there and is gone: the output is younger than this process.
        JobError: nobody makes it.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not (folder / "plan.json").exists():
        if _is_younger(out, born):
            raise Late
        if time.monotonic() > deadline:
            raise JobError(f"{folder}: rank 0 has not begun within {BEGIN_SECONDS:.0f} s.")
        time.sleep(LOOK_SECONDS)


def _is_younger(path: Path, born: float) -> bool:
    return path.exists() and path.stat().st_mtime > born


def _birth() -> float:
    """Give when this process was started, in seconds since the epoch: imports may take long."""
    since_boot = (start_ticks("self") or 0) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
