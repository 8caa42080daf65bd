"""The process that imports once and forks warm ranks: ``python -m ... FD PARENT MODULE...``.

It stays single-threaded (a death signal follows the parent's *thread*, and a fork keeps only
one), runs no tensor operation and asks no device anything. It speaks with its agent:

in: ``start`` (job, target, spec, log, lease, lease_seconds, ranks), ``signal`` (job, signal)
and ``ping``; out: ``ready`` or ``failed``, ``forked``, ``exit`` (rank, code) and ``pong``.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.agent.rank import run_rank
from hydragnn_hpo.launching.wire.channel import Channel, wait

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CANNOT_FORK = 71
"""Exit code told for a rank that the system would not let us fork (EX_OSERR)."""


def preload(modules: Iterable[str]) -> str | None:
    """Import what the ranks will need; gives a sentence when something cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            traceback.print_exc()
            kind = type(error).__name__
            return f"a zygote cannot import {name} ({kind}: {error}): mend the installation."
    return None


class Zygote:
    """Forks ranks on request and tells how they end."""

    def __init__(self, agent: Channel, wakeup: tuple[int, int]) -> None:
        """Serve ``agent``; ``wakeup`` is the pipe that every signal writes to."""
        self._agent = agent
        self._wakeup = wakeup
        self._pid = os.getpid()
        self._ranks: dict[int, tuple[str, int]] = {}

    def serve(self) -> NoReturn:
        """Do what the agent asks until it is gone, then kill every rank and exit."""
        while not self._agent.closed:
            wait([self._agent], 60.0, also=self._wakeup[:1])
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup[0], 4096)
            for message in self._agent.receive():
                self._obey(message)
            self._reap()
        self._end_all()
        os._exit(0)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "start":
                for place in message["ranks"]:
                    self._fork(message, place)
            case "signal":
                self._signal(message["job"], message["signal"])
            case "ping":
                self._agent.send({"event": "pong"})

    def _fork(self, job: dict[str, Any], place: dict[str, Any]) -> None:
        told = {"job": job["job"], "rank": place["rank"], "time": time.time()}
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"no rank can be forked ({error.strerror}): lower the number of slots."
            self._agent.send({"event": "exit", "code": _CANNOT_FORK, "error": reason, **told})
            return
        if pid == 0:
            self._agent.close()
            for descriptor in self._wakeup:
                os.close(descriptor)
            run_rank(job, place, zygote=self._pid)
        self._ranks[pid] = (job["job"], place["rank"])
        self._agent.send({"event": "forked", "pid": pid, **told})

    def _signal(self, job: str, number: int) -> None:
        """Signal the ranks of a job; the forceful signal goes to all that they started."""
        for pid, (owner, _) in self._ranks.items():
            if owner == job:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    if number == signal.SIGKILL:
                        os.killpg(pid, number)

    def _reap(self) -> None:
        """Tell of ranks that ended; whatever they left in their group ends with them."""
        while True:
            try:
                gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if gone is None:
                return
            if gone.si_pid in self._ranks:  # not reaped yet, so the number is still its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(gone.si_pid, signal.SIGKILL)
            _, status = os.waitpid(gone.si_pid, 0)
            if owner := self._ranks.pop(gone.si_pid, None):
                code = os.waitstatus_to_exitcode(status)
                told = {"job": owner[0], "rank": owner[1], "time": time.time()}
                self._agent.send({"event": "exit", "code": code, "error": None, **told})

    def _end_all(self) -> None:
        """Kill every rank with its group, and whatever orphans we adopted."""
        for pid in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        children = Path(f"/proc/self/task/{self._pid}/children")
        with contextlib.suppress(OSError):
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _listen_for_children() -> tuple[int, int]:
    """Let ended children wake the loop up, without a race."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading, writing


def main(descriptor: int, parent: int, *, modules: Iterable[str]) -> NoReturn:
    """Import, say so, and serve."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm's, to all: ranks have until SIGKILL
    process_control.die_with_parent(parent)
    process_control.name_process("hpo-zygote")
    agent = Channel(socket.socket(fileno=descriptor))
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if error := preload(modules):
        agent.send({"event": "failed", "error": error})
        sys.exit(1)
    process_control.adopt_orphans(True)
    gc.collect()
    gc.freeze()
    zygote = Zygote(agent, _listen_for_children())
    threads = len(os.listdir("/proc/self/task"))
    agent.send({"event": "ready", "import_seconds": time.monotonic() - began, "threads": threads})
    zygote.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), modules=sys.argv[3:])
