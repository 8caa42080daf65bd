"""Waiting for something, finding and freezing processes, for tests that start real ones."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.process_control import RUN, find_tagged, run_tag
from hydragnn_hpo.leases import RankLease

SECONDS = 120.0
"""Patience: nobody waits so long but for a hang, on the slowest machine."""


def until(look: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait for a true answer, and give it."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.01)
    return answer


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does, ``X`` once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    return state_of(pid) not in "ZX"


def named_so(pids: Iterable[int], name: str) -> list[int]:
    """Choose processes by the name the kernel shows for them.

    A fork has its parent's name until it becomes what it will be: it is left out.
    """
    result = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            comm, _, rest = stat.partition("(")[2].rpartition(")")
            if comm == name:
                result[pid] = int(rest.split()[1])
    return [pid for pid, parent in result.items() if parent not in result]


def find_orphans(tag: str) -> list[int]:
    """Find the processes of a run on this host by its ``run_tag``."""
    return find_tagged(RUN, tag)


def tagged(run: Path, name: str) -> list[int]:
    """Find the processes of a run by the name the kernel shows for them."""
    return named_so(find_orphans(run_tag(run)), name)


def freeze(pids: Iterable[int]) -> list[int]:
    """Stop processes, and give those that stand still now; the others have ended.

    One by one, parents first: a process that starts another waits in ``vfork`` until that one
    runs, and would never stand still if the child were stopped before it.
    """
    still = []
    for pid in pids:
        send([pid], signal.SIGSTOP)
        if until(lambda pid=pid: _rests(pid), "standstill") in "Tt":
            still.append(pid)
    return still


def _rests(pid: int) -> str:
    state = state_of(pid)
    return state if state in "TtZX" else ""


def is_due(pid: int, number: int) -> bool:
    """Say whether a frozen process will get a signal as soon as it goes on."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line[:7] in ("SigPnd:", "ShdPnd:")]
    return any(mask >> (number - 1) & 1 for mask in pending)


def thaw(pids: Iterable[int]) -> None:
    """Let frozen processes go on."""
    send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: int) -> None:
    """Signal those of some processes that are there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def creep(pids: Callable[[], Iterable[int]], look: Callable[[], Any], what: str) -> Any:
    """Let processes run bit by bit, and leave them frozen as soon as there is a true answer.

    However fast they are and however late we look: they stand still while somebody decides.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        frozen = freeze(pids())
        if answer := look():
            return answer
        thaw(frozen)
        assert time.monotonic() < deadline, f"no {what} after {SECONDS} s"
        time.sleep(0.01)


def open_lease(pid: int) -> RankLease:
    """Return the lease that a process, an agent or one of its ranks, shares with the others."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "hydragnn-hpo-lease" in os.readlink(entry):
            return RankLease(os.open(entry, os.O_RDWR | os.O_CLOEXEC))
    raise AssertionError(f"process {pid} has no lease")
