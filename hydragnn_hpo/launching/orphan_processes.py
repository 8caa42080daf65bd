"""Find and end processes that an earlier run left, by a tag in their environment.

``/proc/PID/environ`` shows what a process was executed with, and a fork keeps it: so an
agent hands its tags to its zygote, and every rank and every process a rank starts has them.
"""

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.host_info import parent_of

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
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        with contextlib.suppress(OSError):
            if wanted.issubset(Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                found.append(int(name))
    return sorted(found)


def end_tagged(variable: str, value: str, *also: str, seconds: float = 10.0) -> list[int]:
    """Kill the processes that carry ``variable=value`` (``also``) and wait until they are gone.

    Returns:
        The processes that were found.

    Raises:
        JobError: some were still there after ``seconds``.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + seconds
    while found := find_tagged(variable, value, *also):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        if time.monotonic() > deadline:
            raise JobError(
                f"processes {found} of this run cannot be killed (waiting for a device or a "
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
