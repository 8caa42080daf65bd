"""How an attempt ended: from its result and its ranks' exit codes (Law 9)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.trial import DISK_FULL, HALVED, INTERRUPTED, STALE
from hydragnn_hpo.files import read_json

LAST_LINES = 3


def outcome_of(
    folder: Path, codes: Sequence[int], *, asked_to_stop: bool, restarts: int, max_restarts: int
) -> dict[str, Any]:
    """Say how an attempt ended.

    Only a ``result.json`` proves an end; exit codes merely tell why there is none.

    Args:
        folder: the attempt's directory.
        codes: exit codes of its ranks; negative ones are signals.
        asked_to_stop: whether the controller had asked it to end.
        restarts: interruptions in a row before this one.
        max_restarts: how many are allowed.

    Returns:
        Values of the journal's ``ended`` event: ``outcome``, ``reason`` and what belongs to it.
    """
    path = folder / "result.json"
    if path.exists():
        return _of_result(read_json(path))
    if DISK_FULL in codes:
        return _interrupted("disk_full", message=last_lines(folder / "log"))
    if INTERRUPTED in codes or asked_to_stop:
        return _interrupted("paused" if asked_to_stop else "walltime")
    if HALVED in codes:  # ends by itself: it is halved until it fits, or one graph does not
        return _interrupted("resized")
    if restarts >= max_restarts:
        return {
            "outcome": "failed",
            "reason": "bug",
            "message": f"was lost {restarts + 1} times in a row without a new checkpoint "
            f"(exit codes {list(codes)}): {last_lines(folder / 'log')}",
        }
    if STALE in codes:  # the log names the rank that was waited for
        return _interrupted("stale", codes=list(codes), message=last_lines(folder / "log"))
    return _interrupted("host_lost", codes=list(codes))


def _interrupted(reason: str, **values: Any) -> dict[str, Any]:
    return {"outcome": "interrupted", "reason": reason, **values}


def _of_result(result: dict[str, Any]) -> dict[str, Any]:
    if result["status"] == "failed":
        return {"outcome": "failed", **{key: result.get(key) for key in ("reason", "message")}}
    keys = ("reason", "objective", "val_mae", "best_epoch", "parameters")
    return {
        "outcome": result["status"],
        "reached": result["epochs"],
        **{key: result.get(key) for key in keys},
    }


def last_lines(log: Path) -> str:
    """Give the last lines of a log, for a person to read."""
    if not log.exists():
        return "its log is empty"
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-LAST_LINES:]) or "its log is empty"
