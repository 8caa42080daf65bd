"""How an attempt ended, and what becomes of its trial: the rules of Law 9, pure."""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hydragnn_hpo.config import DISK_FULL, FILES_AWAY, HALVED, INTERRUPTED, PEER_LOST, STALE
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import FailureReason
from hydragnn_hpo.files import is_transient, read_json
from hydragnn_hpo.journal_events import AttemptOutcome
from hydragnn_hpo.leases import RANK_LEASE_ALARM, RANK_LEASE_LAPSED

LAST_LINES = 3
TAIL_BYTES = 16_384
"""What is read of a log for its last lines."""

DUMP_BYTES = 262_144
"""What is read of a log for the tracebacks that a crashed rank left at its end."""

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals that a process causes itself. SIGKILL may come from the kernel, out of memory."""

MAX_CRASHES = 2
"""Crashes without a new checkpoint between them that make a bug. One may be a bit that flipped. A
second one at the same place of the training is the program's own; that a host was lost between
them proves nothing, and a training that gets further each time comes to its end."""

OURS = "hydragnn_hpo"

YIELDS = ("paused", "resized", "walltime")
"""Reasons for which a trial is asked to leave a checkpoint and end."""

REASONS: tuple[FailureReason, ...] = get_args(FailureReason)
"""Why a trial may fail."""

RESERVED_KEYS = (
    *("time", "width", "epochs", "event", "epoch", "trial", "attempt", "score", "kind", "durable"),
    *("status", "outcome", "reason", "reached", "message", "codes"),
)
"""Names that the journal uses for something else: values of a result by these are dropped."""


@dataclass(frozen=True)
class EndedAttempt:
    """What is known of an attempt that ended, beside its files."""

    folder: Path
    codes: Sequence[int]
    """Exit codes of its ranks; negative ones are signals."""
    stop_reason: str | None = None
    """Why the controller asked it to end: ``paused resized median curve walltime cancelled``; None
    if it did not."""
    restarts: int = 0
    """Interruptions in a row before this one."""
    max_restarts: int = 5
    error: str | None = None
    """A sentence of the backend where the job could not run."""
    first: int | None = None
    """The rank that ended first, where that is known."""
    away: Sequence[str] = ()
    """Hosts of it that were lost, also those without ranks."""
    crashes: int = 0
    """Crashes before this one, without a new checkpoint since."""
    package: str = OURS
    """The package in which a crash is looked for first: the user's own, if its trial has one."""

    @property
    def excused(self) -> bool:
        """Whether it was lost with its controller, a host or a lease: no fault of the trial's."""
        return not self.codes or bool(self.away) or RANK_LEASE_LAPSED in self.codes

    @property
    def crash(self) -> int | None:
        """Signal by which its program ended itself, if that is how the attempt ended.

        Ranks of a GPU abort when they lose a peer, so the first to end counts where it is known.
        """
        if self.away:
            return None
        known = self.first is not None and self.first < len(self.codes)
        judged = [self.codes[self.first or 0]] if known else self.codes
        if -signal.SIGKILL in judged:
            return None
        return next((-code for code in judged if -code in CRASHES), None)


def read_outcome(attempt: EndedAttempt) -> AttemptOutcome:
    """Read how an attempt ended.

    Only a ``result.json`` proves an end; exit codes merely tell why there is none.
    """
    codes, stop_reason = attempt.codes, attempt.stop_reason
    path = attempt.folder / "result.json"
    if path.exists():
        return _of_result(path, stop_reason)
    if stop_reason == "cancelled":
        return {"outcome": "cancelled", "reason": "cancelled"}
    if DISK_FULL in codes:
        return _interrupted("disk_full", last_lines(attempt.folder / "log"))
    if INTERRUPTED in codes or stop_reason in YIELDS:
        return {
            "outcome": "interrupted",
            "reason": stop_reason if stop_reason in YIELDS else "walltime",
        }
    if HALVED in codes:  # ends by itself: it is halved until it fits, or one graph does not
        return {"outcome": "interrupted", "reason": "resized"}
    return _without_result(attempt)


def _without_result(attempt: EndedAttempt) -> AttemptOutcome:
    """Read how an attempt ended that left no result and was not asked to end."""
    codes = attempt.codes
    log_end = last_lines(attempt.folder / "log")
    if FILES_AWAY in codes:
        return _interrupted("files_away", log_end)
    if attempt.crash is not None:
        message = describe_crash(attempt.folder / "log", attempt.crash, attempt.package)
        if attempt.crashes + 1 >= MAX_CRASHES:
            return _failed("bug", message)
        return _interrupted("crashed", message)
    if attempt.excused:
        return {**_lost("host_lost", codes, attempt.error), "excused": True}
    if attempt.restarts >= attempt.max_restarts:
        return _failed("bug", _describe_losses(attempt, log_end))
    if STALE in codes:  # the log names the rank that was waited for
        return _lost("stale", codes, log_end)
    return _lost("host_lost", codes, attempt.error)


def _describe_losses(attempt: EndedAttempt, log_end: str) -> str:
    """Return why a trial that was lost too often fails."""
    often = f"{attempt.restarts + 1} times in a row without a new checkpoint"
    if attempt.first is not None and attempt.codes[attempt.first] == PEER_LOST:
        # The log's path keeps trials from failing alike: the network is no bug they share.
        return (
            f"its ranks lost each other {often}, and none had died before: look at the network "
            f"between its hosts, and at {attempt.folder / 'log'}."
        )
    codes = list(attempt.codes)
    return f"was lost {often} (exit codes {codes}): {attempt.error or log_end}"


def _interrupted(reason: str, message: str | None) -> AttemptOutcome:
    return {"outcome": "interrupted", "reason": reason, "message": message}


def _lost(reason: str, codes: Sequence[int], message: str | None) -> AttemptOutcome:
    return {
        "outcome": "interrupted",
        "reason": reason,
        "codes": list(codes),
        "message": message,
    }


def _of_result(path: Path, stop_reason: str | None) -> AttemptOutcome:
    """Read a result; a file that is none is a bug of the program that wrote it.

    Raises:
        StorageError: it is there, but its file server is away.
    """
    try:
        result = read_json(path)
    except StorageError as error:
        if is_transient(error):
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
    ruled = status == "cancelled" and stop_reason not in (None, "cancelled")
    ended: AttemptOutcome = {
        "outcome": "stopped" if ruled else status,
        "reason": stop_reason if ruled else result.get("reason"),
        "reached": result.get("epochs", 0),
    }
    numbers = {key: value for key, value in result.items() if _kept(key, value)}
    return cast("AttemptOutcome", ended | numbers)


def _kept(key: str, value: Any) -> bool:
    """Check whether the journal keeps a value of a result: errors by head, and all numbers."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key == "val_mae" or (number and key not in RESERVED_KEYS)


def _failed(reason: str, message: str) -> AttemptOutcome:
    return {"outcome": "failed", "reason": reason, "message": message}


def retry_out_of_memory(
    ended: AttemptOutcome, *, width: int, widths: Sequence[int], shared: bool
) -> AttemptOutcome:
    """Turn an end without memory into another try, as long as there is something to try.

    First without neighbours on its device, then with twice the ranks, each with half the graphs;
    smaller pieces of a step were tried by the trainer itself.

    Args:
        ended: as ``read_outcome`` returns it.
        width: ranks it had.
        widths: ranks it may have, rising.
        shared: whether its slots shared a device with others.

    Returns:
        A copy of ``ended``, or an interruption with ``whole`` or ``least`` for the next attempt.
    """
    if ended.get("reason") != "out_of_memory" or ended["outcome"] != "failed":
        return ended.copy()
    again = _interrupted("out_of_memory", ended.get("message"))
    if shared:
        return {**again, "whole": True}
    wider = [ranks for ranks in widths if ranks >= 2 * width]
    if wider:
        return {**again, "least": wider[0]}
    return ended.copy()


def find_failed_host(
    slots: Sequence[str], codes: Sequence[int], *, first: int | None, signalled: bool
) -> str | None:
    """Name the host that a lost attempt speaks against: that of the rank which died first.

    A rank that ends with a code of its own was not killed by its host, nor was one that was frozen
    alone until its lease was over; several hosts at once say nothing about any of them.

    Args:
        slots: ``host:index`` by rank.
        codes: exit codes by rank; negative ones are signals.
        first: the rank that ended first, where that is known.
        signalled: whether we sent signals ourselves.
    """
    hosts = {slot.rpartition(":")[0] for slot in slots}
    if first is not None and first < len(slots):
        killed = codes[first] < 0 and codes[first] != RANK_LEASE_ALARM
        return slots[first].rpartition(":")[0] if killed else None
    alone = len(hosts) == 1 and not signalled and RANK_LEASE_ALARM not in codes
    return hosts.pop() if alone else None


def describe_crash(log: Path, number: int, package: str) -> str:
    """Return where a program crashed, and by which signal; the same words for the same place.

    Args:
        log: of the attempt, in which ``faulthandler`` has left a traceback of every thread.
        number: the signal.
        package: where the line is looked for first; else it is one of ours.
    """
    name = signal.Signals(number).name
    if (place := find_crash(log, (package, OURS))) is not None:
        return f"{place}: the program crashed here ({name})."
    return f"the program crashed ({name}) outside of any file of {package}."


def find_crash(log: Path, packages: Sequence[str]) -> str | None:
    """Return file, line and function of the last crash, innermost first; None if the log has none.

    Args:
        log: of the attempt.
        packages: packages or modules, in the order in which the place is looked for in them.
    """
    threads = _read_crash_threads(log)
    for wanted in packages:
        for frames in threads:
            for file, line, function in frames:
                if wanted in Path(file).with_suffix("").parts:
                    return f"{file}:{line} in {function}"
    return None


_THREAD = re.compile(r"^(Current thread|Thread) 0x.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')

Frames = list[tuple[str, str, str]]
"""File, line and function, innermost first."""


def _read_crash_threads(log: Path) -> list[Frames]:
    """Read the tracebacks of the last crash: the thread that crashed, then the main thread."""
    lines = _read_end(log, DUMP_BYTES).splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("Fatal Python error:")]
    threads: list[Frames] = []
    crashed: Frames | None = None
    for line in lines[starts[-1] :] if starts else ():
        if thread := _THREAD.match(line):
            threads.append([])
            crashed = threads[-1] if thread[1] == "Current thread" else crashed
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append((frame[1], frame[2], frame[3]))
    last = threads[-1:]  # the oldest thread comes last
    return last if crashed is None else [crashed, *last]


def last_lines(log: Path) -> str:
    """Return the last lines of a log, for a person to read."""
    return " | ".join(read_tail(log, LAST_LINES)) or "its log is empty"


def read_tail(log: Path, lines: int) -> list[str]:
    """Read so many last lines of a log, however long it is; none if it cannot be read."""
    return _read_end(log, TAIL_BYTES).strip().splitlines()[-lines:]


def _read_end(log: Path, most: int) -> str:
    """Read so many last bytes of a log; nothing if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
