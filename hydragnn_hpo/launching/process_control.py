"""Process control on Linux: death signals, names, and processes that an earlier run left behind.

``python -P -m hydragnn_hpo.launching.process_control PARENT SIGNAL PROGRAM ARG...`` executes
a program that dies with its parent, see ``tethered``.
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
    """Have the kernel signal this process when the *thread* that started it ends for any reason."""
    _prctl(_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(99)


_MODULE = "hydragnn_hpo.launching.process_control"
"""Written out because ``__name__`` is ``__main__`` when this file runs."""

_NOT_FOUND = 127
"""Exit code for a program that cannot be executed, as in shells."""


def tethered(argv: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """Return the argv of a program that gets a signal when the calling *thread* ends.

    Only the process itself can request its death signal. Requesting it between ``fork`` and
    ``exec`` would run Python in the fork of a process with threads, which may hang; so an
    interpreter requests it and then executes the program.
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
    """Set the name that ``ps`` and ``top`` show, cut to 15 bytes."""
    _prctl(_SET_NAME, name.encode()[:15])


def end_group() -> None:
    """Kill all other processes of this process group, also those started meanwhile.

    Returns after two seconds at the latest: a device or file system may block some of them.
    """
    own = os.getpid()
    group = os.getpgrp()
    for _ in range(200):
        others = [pid for pid in processes_of_group(group) if pid != own]
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


RUN = "HYDRAGNN_HPO_RUN"
"""Variable with the run's tag, in agents, zygotes (fork servers), ranks and their children."""

AGENT = "HYDRAGNN_HPO_AGENT"
"""Variable with the unique name of an agent process, in it and in all that it started."""

HOST = "HYDRAGNN_HPO_HOST"
"""Variable with run and host as ``RUN@HOST``, since virtual hosts share a process table."""

ZYGOTE = "HYDRAGNN_HPO_ZYGOTE"
"""Variable with the unique name of a zygote process, in it and in all that it forked."""


def run_tag(run_dir: Path) -> str:
    """Return the tag of a run directory, the same for all spellings of its path."""
    return hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:20]


def _own_line() -> set[int]:
    """Return the pids of this process and its ancestors, which must not be killed."""
    line = set()
    pid = os.getpid()
    while pid > 0:
        line.add(pid)
        pid = parent_of(pid)
    return line


def find_tagged(variable: str, value: str, *also: str) -> list[int]:
    """Return the pids of processes with ``variable=value`` in their environment.

    This process and its ancestors are left out.

    Args:
        variable: name of the variable.
        value: its value.
        also: further ``NAME=VALUE`` that must be in their environment.
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
    """Kill the processes that ``find_tagged`` returns, and wait until they have ended.

    Args:
        variable: name of the variable.
        value: its value.
        also: further ``NAME=VALUE`` that must be in their environment.
        seconds: how long to try.

    Returns:
        Pids of the killed processes, ascending.

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
    """Return the value of ``HOST`` for all agents of one host and all that they started."""
    return f"{tag}@{host}"


def end_orphans(tag: str) -> list[int]:
    """Kill the processes of a run, by its ``run_tag``, on this host; see ``end_tagged``."""
    return end_tagged(RUN, tag)


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
