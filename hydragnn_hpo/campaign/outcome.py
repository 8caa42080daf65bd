"""How an attempt ended, and what becomes of its trial: the rules of Law 9, pure."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import DISK_FULL, FILES_AWAY, HALVED, INTERRUPTED, STALE
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import passes, read_json

LAST_LINES = 3
TAIL_BYTES = 16_384
"""What is read of a log for its last lines."""

YIELDS = ("paused", "resized", "walltime")
"""Reasons for which a trial is asked to leave a checkpoint and end."""

REASONS = ("diverged", "out_of_memory", "bad_config", "bug")
"""Why a trial may fail."""

RESERVED_KEYS = (
    *("time", "width", "epochs", "event", "epoch", "trial", "attempt", "score", "kind", "durable"),
    *("status", "outcome", "reason", "reached", "message", "codes"),
)
"""Names that the journal uses for something else: values of a result by these are dropped."""


@dataclass(frozen=True)
class EndedAttempt:
    """What must be known of an attempt that ended, beside its files."""

    folder: Path
    codes: Sequence[int]
    """Exit codes of its ranks; negative ones are signals."""
    asked: str | None = None
    """Why the controller had asked it to end: ``paused resized median curve stopped cancelled``."""
    restarts: int = 0
    """Interruptions in a row before this one."""
    max_restarts: float = 5
    error: str | None = None
    """A sentence of the backend where the job could not run."""


def read_outcome(attempt: EndedAttempt) -> dict[str, Any]:
    """Read how an attempt ended.

    Only a ``result.json`` proves an end; exit codes merely tell why there is none.

    Returns:
        Values of the journal's ``ended`` event: ``outcome``, ``reason`` and what belongs to it.
    """
    codes, asked = attempt.codes, attempt.asked
    path = attempt.folder / "result.json"
    if path.exists():
        return _of_result(path, asked)
    if asked == "cancelled":
        return {"outcome": "cancelled", "reason": "cancelled"}
    if DISK_FULL in codes:
        return _interrupted("disk_full", message=last_lines(attempt.folder / "log"))
    if INTERRUPTED in codes or asked in YIELDS:
        return _interrupted(asked if asked in YIELDS else "walltime")
    if HALVED in codes:  # ends by itself: it is halved until it fits, or one graph does not
        return _interrupted("resized")
    log_end = last_lines(attempt.folder / "log")
    if attempt.restarts >= attempt.max_restarts:
        return {
            "outcome": "failed",
            "reason": "bug",
            "message": f"was lost {attempt.restarts + 1} times in a row without a new checkpoint "
            f"(exit codes {list(codes)}): {attempt.error or log_end}",
        }
    if STALE in codes:  # the log names the rank that was waited for
        return _interrupted("stale", codes=list(codes), message=log_end)
    message = attempt.error or (log_end if FILES_AWAY in codes else None)
    return _interrupted("host_lost", codes=list(codes), message=message)


def _interrupted(reason: str, **values: Any) -> dict[str, Any]:
    return {"outcome": "interrupted", "reason": reason, **values}


def _of_result(path: Path, asked: str | None) -> dict[str, Any]:
    """Read a result; a file that is none is a bug of the program that wrote it.

    Raises:
        StorageError: it is there, but its file server is away.
    """
    try:
        result = read_json(path)
    except StorageError as error:
        if passes(error):
            raise
        return _failed("bug", str(error))
    status = result.get("status") if isinstance(result, dict) else None
    if status == "failed":
        reason = result.get("reason")
        if reason in REASONS:
            return _failed(reason, str(result.get("message")))
        return _failed("bug", f"{path}: failed for the reason {reason!r}; known: {REASONS}.")
    if status not in ("completed", "stopped", "cancelled"):
        return _failed(
            "bug", f"{path}: status is {status!r}: write completed, stopped, cancelled or failed."
        )
    ruled = status == "cancelled" and asked is not None and asked != "cancelled"
    return {
        "outcome": "stopped" if ruled else status,
        "reason": asked if ruled else result.get("reason"),
        "reached": result.get("epochs", 0),
        **{key: value for key, value in result.items() if _kept(key, value)},
    }


def _kept(key: str, value: Any) -> bool:
    """Check whether the journal keeps a value of a result: errors by head, and all numbers."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key == "val_mae" or (number and key not in RESERVED_KEYS)


def _failed(reason: str, message: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": reason, "message": message}


def retry_out_of_memory(
    ended: Mapping[str, Any], *, width: int, widths: Sequence[int], shared: bool
) -> dict[str, Any]:
    """Turn an end without memory into another try, as long as there is something to try.

    First without neighbours on its device, then with twice the ranks, each with half the graphs;
    smaller pieces of a step were tried by the trainer itself.

    Args:
        ended: as ``read_outcome`` returns it.
        width: ranks it had.
        widths: ranks it may have, rising.
        shared: whether its slots shared a device with others.

    Returns:
        ``ended`` itself, or an interruption with ``whole`` or ``least`` for the next attempt.
    """
    if ended.get("reason") != "out_of_memory" or ended["outcome"] != "failed":
        return dict(ended)
    message = ended.get("message")
    if shared:
        return _interrupted("out_of_memory", message=message, whole=True)
    wider = [ranks for ranks in widths if ranks >= 2 * width]
    if wider:
        return _interrupted("out_of_memory", message=message, least=wider[0])
    return dict(ended)


def find_failed_host(
    slots: Sequence[str], codes: Sequence[int], *, first: int | None, signalled: bool
) -> str | None:
    """Name the host that a lost attempt speaks against: that of the rank which died first.

    A rank that ends with a code of its own was not killed by its host; several hosts at once say
    nothing about any of them.

    Args:
        slots: ``host:index`` by rank.
        codes: exit codes by rank; negative ones are signals.
        first: the rank that ended first, where that is known.
        signalled: whether we sent signals ourselves.
    """
    hosts = {slot.rpartition(":")[0] for slot in slots}
    if first is not None and first < len(slots):
        return slots[first].rpartition(":")[0] if codes[first] < 0 else None
    return hosts.pop() if len(hosts) == 1 and not signalled else None


def last_lines(log: Path) -> str:
    """Return the last lines of a log, for a person to read."""
    return " | ".join(read_tail(log, LAST_LINES)) or "its log is empty"


def read_tail(log: Path, lines: int) -> list[str]:
    """Read so many last lines of a log, however long it is; none if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.strip().splitlines()[-lines:]
