"""Processes: what the Linux kernel promises about them, and those that an earlier life left.

``python -P -m hydragnn_hpo.launching.process_control PARENT SIGNAL PROGRAM ARG...`` becomes a
program that dies with its parent, see ``tethered``.
"""

import contextlib
import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.host_info import parent_of, processes_of_group

_SET_PDEATHSIG = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the *thread* that started this process ends, however it ends."""
    _prctl(_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the promise was made
        os._exit(99)


_MODULE = "hydragnn_hpo.launching.process_control"
"""Written out: this file is ``__main__`` where it runs."""

_NOT_FOUND = 127
"""Exit code of a program that cannot be executed, as shells have it."""


def tethered(argv: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """Return the argv of a program that gets a signal when the calling *thread* ends.

    A promise about one's own death is made by the process itself. Making it between ``fork`` and
    ``exec`` would run Python in the fork of a process that has threads, which may hang.
    """
    return [sys.executable, "-P", "-m", _MODULE, str(os.getpid()), str(int(number)), *argv]


def _become(parent: int, number: int, argv: list[str]) -> NoReturn:
    die_with_parent(parent, number)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"'{argv[0]}' cannot be run ({error.strerror}): mend command.argv.\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


def adopt_orphans(adopt: bool) -> None:
    """Become, or no longer be, the parent of descendants whose parent died."""
    _prctl(_SET_CHILD_SUBREAPER, int(adopt))


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show, 15 characters."""
    _prctl(_SET_NAME, name.encode()[:15])


def end_group() -> None:
    """Kill all other processes of our process group, and what they start meanwhile.

    Returns after two seconds at the latest: a device or file system may hold some of them.
    """
    own, group = os.getpid(), os.getpgrp()
    for _ in range(200):
        others = [pid for pid in processes_of_group(group) if pid != own]
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


RUN = "HYDRAGNN_HPO_RUN"
"""Names the run directory: agents, zygotes, ranks and their children carry it."""

AGENT = "HYDRAGNN_HPO_AGENT"
"""Names one life of one agent, and all it started."""

HOST = "HYDRAGNN_HPO_HOST"
"""Names run and host, ``RUN@HOST``: virtual hosts share one table of processes."""

ZYGOTE = "HYDRAGNN_HPO_ZYGOTE"
"""Names one life of one zygote, and all it forked."""


def run_tag(run_dir: Path) -> str:
    """Return the tag of a run directory, the same however the path is written."""
    return hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:20]


def _own_line() -> set[int]:
    """This process and its ancestors, which are never strays."""
    line = set()
    pid = os.getpid()
    while pid > 0:
        line.add(pid)
        pid = parent_of(pid)
    return line


def find_tagged(variable: str, value: str, *also: str) -> list[int]:
    """Return the processes that carry ``variable=value``, without this one and its ancestors.

    Args:
        variable: name.
        value: its value.
        also: further ``NAME=VALUE`` that they carry.
    """
    wanted = {word.encode() for word in (f"{variable}={value}", *also)}
    spared = _own_line()
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        with contextlib.suppress(OSError):
            if wanted.issubset(Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                pids.append(int(name))
    return sorted(pids)


def end_tagged(variable: str, value: str, *also: str, seconds: float = 10.0) -> list[int]:
    """Kill the processes that carry ``variable=value`` and wait until they are gone.

    Args:
        variable: name.
        value: its value.
        also: further ``NAME=VALUE`` that they carry.
        seconds: how long to try.

    Returns:
        The processes that were found.

    Raises:
        JobError: some were still there after ``seconds``.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + seconds
    while pids := find_tagged(variable, value, *also):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(pids)
        if time.monotonic() > deadline:
            raise JobError(
                f"processes {pids} of this run cannot be killed (waiting for a device or a "
                "file system?): end them by hand, then run again."
            )
        time.sleep(0.005)
    return sorted(ended)


def host_tag(tag: str, host: str) -> str:
    """Return the tag of all lives of the agent of one host, and all they started."""
    return f"{tag}@{host}"


def find_orphans(tag: str) -> list[int]:
    """Return the processes of a run that are alive, see ``run_tag``."""
    return find_tagged(RUN, tag)


def end_orphans(tag: str) -> list[int]:
    """Kill the processes of a run and wait until they are gone."""
    return end_tagged(RUN, tag)


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
