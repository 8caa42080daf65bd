"""Decide how an attempt ended and what its trial does next, by pure functions.

A failed trial is a result with a reason, never a score (Law 9).
"""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hydragnn_hpo.config import (
    DISK_FULL,
    FILES_AWAY,
    HALVED,
    INTERRUPTED,
    OUT_OF_MEMORY,
    PEER_LOST,
    STALE,
)
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import FailureReason
from hydragnn_hpo.files import is_transient, read_json
from hydragnn_hpo.journal_events import AttemptOutcome
from hydragnn_hpo.leases import RANK_LEASE_ALARM, RANK_LEASE_LAPSED

LAST_LINES = 3
TAIL_BYTES = 16_384
"""Bytes read from the end of a log to find its last lines."""

DUMP_BYTES = 262_144
"""Bytes read from the end of a log to find the tracebacks of a crashed rank."""

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals that a process causes itself; not SIGKILL, which the kernel sends if memory is short."""

MAX_CRASHES = 2
"""Crashes without a checkpoint between them after which a trial fails with a bug. One crash may be
a flipped bit; a second one before the next checkpoint is a fault of the program, even if a host
was lost in between. A training that gets further each time will end."""

OURS = "hydragnn_hpo"

YIELDS = ("paused", "resized", "walltime")
"""Reasons for which a trial is asked to write a checkpoint and end."""

REASONS: tuple[FailureReason, ...] = get_args(FailureReason)
"""Reasons of a failure."""

RESERVED_KEYS = (
    *("time", "width", "epochs", "event", "epoch", "trial", "attempt", "score", "kind", "durable"),
    *("status", "outcome", "reason", "reached", "message", "codes", "excused", "least", "whole"),
)
"""Names that the journal uses itself; numbers of a result with these names are dropped."""


@dataclass(frozen=True)
class EndedAttempt:
    """Facts about an ended attempt, apart from the files in its folder."""

    folder: Path
    codes: Sequence[int]
    """Exit codes of its ranks; negative ones are signals."""
    stop_reason: str | None = None
    """Why the controller asked it to end: ``paused resized median curve walltime cancelled``; None
    if it did not."""
    restarts: int = 0
    """Interruptions that count before this end, see ``state.Trial.restarts``."""
    max_restarts: int = 5
    error: str | None = None
    """The backend's message if the job could not run."""
    first: int | None = None
    """The rank that ended first, if known."""
    away: Sequence[str] = ()
    """Hosts of the attempt that were lost, including those without ranks."""
    crashes: int = 0
    """Earlier crashes since the newest checkpoint."""
    package: str = OURS
    """Package searched first for the line of a crash: the user's, if the trial uses its code."""

    @property
    def excused(self) -> bool:
        """Whether it was lost with its controller, a host or a lease, not by the trial's fault."""
        return not self.codes or bool(self.away) or RANK_LEASE_LAPSED in self.codes

    @property
    def crash(self) -> int | None:
        """Signal of a crash of its program; None if the attempt did not end by a crash.

        Ranks on GPUs abort when they lose a peer, so only the first rank to end counts, if known.
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

    Only ``result.json`` proves that a trial ended; exit codes only tell why there is none.
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
    if HALVED in codes:  # repeats finitely: halved until the step fits, or one graph does not
        return {"outcome": "interrupted", "reason": "resized"}
    if OUT_OF_MEMORY in codes:
        return _failed("out_of_memory", _describe_memory(attempt))
    return _without_result(attempt)


def _describe_memory(attempt: EndedAttempt) -> str:
    killed = [str(rank) for rank, code in enumerate(attempt.codes) if code == OUT_OF_MEMORY]
    ranks = f"rank {killed[0]}" if len(killed) == 1 else f"ranks {', '.join(killed)}"
    return (
        f"the kernel killed {ranks}, as the memory of the host, or of its control group, had run "
        "out: lower machine.slots or training.global_batch, or ask for more memory."
    )


def _without_result(attempt: EndedAttempt) -> AttemptOutcome:
    """Decide from exit codes how an attempt ended that left no result and was not asked to end."""
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
    """Return the message for a trial that fails because it was lost too often."""
    often = f"{attempt.restarts + 1} times in a row without a new checkpoint"
    if attempt.first is not None and attempt.codes[attempt.first] == PEER_LOST:
        # The path makes each message differ, so that a bad network does not count as one bug.
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
    """Read ``result.json``; a malformed file counts as a bug of the program that wrote it.

    Raises:
        StorageError: the file exists, but its file server does not answer.
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
    """Check whether the journal keeps a value of a result: ``val_mae`` and numbers are kept."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key == "val_mae" or (number and key not in RESERVED_KEYS)


def _failed(reason: str, message: str) -> AttemptOutcome:
    return {"outcome": "failed", "reason": reason, "message": message}


def retry_out_of_memory(
    ended: AttemptOutcome,
    *,
    width: int,
    widths: Sequence[int],
    shared: bool,
    as_it_is: bool = False,
) -> AttemptOutcome:
    """Turn an out-of-memory failure into an interruption while there is another way to run.

    First try the device unshared, then at least twice the ranks, each with fewer graphs. The
    trainer itself has already tried to split a step into smaller pieces.

    Args:
        ended: as ``read_outcome`` returns it.
        width: ranks of the attempt.
        widths: numbers of ranks that the trial may have, rising.
        shared: whether its ranks shared a device with other trials.
        as_it_is: whether it may also run again in the same way, because the kernel killed a rank:
            others may have used the memory.

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
    if as_it_is:
        return again
    return ended.copy()


def find_failed_host(
    slots: Sequence[str], codes: Sequence[int], *, first: int | None, signalled: bool
) -> str | None:
    """Return the host suspected of causing the loss of an attempt: that of the first rank to die.

    A rank with an exit code of its own was not killed by its host, nor was a single frozen rank
    whose lease lapsed. Without a known first rank, only an attempt on one host gives evidence.

    Args:
        slots: ``host:index`` by rank.
        codes: exit codes by rank; negative ones are signals.
        first: the rank that ended first, if known.
        signalled: whether the backend itself sent signals to the ranks.

    Returns:
        Id of the host; None if no host is suspected.
    """
    hosts = {slot.rpartition(":")[0] for slot in slots}
    if first is not None and first < len(slots):
        killed = codes[first] < 0 and codes[first] != RANK_LEASE_ALARM
        return slots[first].rpartition(":")[0] if killed else None
    alone = len(hosts) == 1 and not signalled and RANK_LEASE_ALARM not in codes
    return hosts.pop() if alone else None


def describe_crash(log: Path, number: int, package: str) -> str:
    """Return a message with place and signal of a crash; equal for equal places.

    Args:
        log: of the attempt; ``faulthandler`` writes a traceback of every thread into it.
        number: the signal.
        package: searched first for the line that crashed, before this package.
    """
    name = signal.Signals(number).name
    if (place := find_crash(log, (package, OURS))) is not None:
        return f"{place}: the program crashed here ({name})."
    return f"the program crashed ({name}) outside of any file of {package}."


def find_crash(log: Path, packages: Sequence[str]) -> str | None:
    """Find the innermost line of the last crash that lies in one of some packages.

    Args:
        log: of the attempt.
        packages: packages or modules, the preferred one first.

    Returns:
        ``FILE:LINE in FUNCTION``; None if the log has no such line.
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
    """Return the last ``LAST_LINES`` lines of a log in one line, for messages."""
    return " | ".join(read_tail(log, LAST_LINES)) or "its log is empty"


def read_tail(log: Path, lines: int) -> list[str]:
    """Return the last lines of a log, at most ``lines``; none if it cannot be read.

    Only the last ``TAIL_BYTES`` are read.
    """
    return _read_end(log, TAIL_BYTES).strip().splitlines()[-lines:]


def _read_end(log: Path, most: int) -> str:
    """Return at most ``most`` bytes from the end of a log; an empty text if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
