"""The fork server: a process that imports once and forks warm ranks, and its agent's end of it.

``python -m ... DESCRIPTOR LEASE PARENT MODULE...``. It stays single-threaded (a death signal
follows the parent's *thread*, and a fork keeps only one), runs no tensor operation and asks no
device anything. It speaks with its agent over a socket pair, see ``protocol.ForkOrder``.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.framed_socket import FramedSocket, wait_readable
from hydragnn_hpo.launching.process_control import ZYGOTE, end_tagged
from hydragnn_hpo.launching.protocol import (
    AskRank,
    ForkNews,
    ForkOrder,
    ForkRanks,
    ForkServerReady,
    ImportFailed,
    Ping,
    Pong,
    RankExit,
    RankForked,
    RankStart,
    SignalJob,
)
from hydragnn_hpo.launching.rank import run_rank
from hydragnn_hpo.leases import RankLease

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CANNOT_FORK = 71
"""Exit code of a rank that the system would not let us fork (EX_OSERR)."""

_START_SECONDS = 600.0
"""Seconds a fork server has for its imports, which may come over a busy file system."""

_UNANSWERED = 15
"""A fork server that left so many pings, five per lease, without an answer is hung."""


class ForkServerProcess:
    """A fork server as its agent sees it."""

    def __init__(self, token: str, preload: Sequence[str], lease: RankLease) -> None:
        """Execute it.

        Args:
            token: marks it and everything it will fork.
            preload: modules that it imports.
            lease: of this host's ranks.
        """
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), lease.descriptor]
        argv = [sys.executable, "-P", "-m", __name__, *map(str, descriptors), str(os.getpid())]
        self.token = token
        self.ready: ForkServerReady | None = None
        self.error: str | None = None
        """A sentence about a module that cannot be imported."""

        self._began = time.monotonic()
        self._unanswered = 0
        self.process = subprocess.Popen(
            [*argv, *preload],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env=os.environ | {ZYGOTE: token, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.socket: FramedSocket[ForkNews] = FramedSocket(ours, ForkNews)

    def receive(self) -> list[ForkNews]:
        """Return what it has sent."""
        news = self.socket.receive()
        if news:
            self._unanswered = 0
        return news

    @property
    def ended(self) -> bool:
        """Whether it is gone, or about to be."""
        return self.socket.closed or self.process.poll() is not None

    def ping(self, now: float) -> None:
        """Check that it lives; kill it when it hangs."""
        if self.ready is None:
            hangs = now - self._began > _START_SECONDS
        else:
            hangs = self._unanswered >= _UNANSWERED
            self._unanswered += 1
            self.socket.send(Ping())
        if hangs:
            self.process.kill()

    def end(self) -> None:
        """Kill it and all it forked, and wait until they are gone."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
        end_tagged(ZYGOTE, self.token)


def preload(modules: Iterable[str]) -> str | None:
    """Import what ranks will need; return a sentence when something cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            traceback.print_exc()
            kind = type(error).__name__
            return f"a fork server cannot import {name} ({kind}: {error}): mend the installation."
    return None


class ForkServer:
    """Forks ranks on request and reports how they end."""

    def __init__(self, agent: FramedSocket[ForkOrder], lease: RankLease) -> None:
        """Serve an agent."""
        self._agent, self._lease = agent, lease
        self._wakeup = _wake_up_for_children()
        self._pid = os.getpid()
        self._ranks: dict[int, tuple[str, int]] = {}
        self._requests: dict[str, int] = {}
        """Writing ends of the pipes from which the ranks 0 of jobs read requests."""

    def serve(self) -> NoReturn:
        """Do what the agent asks until it is gone, then kill every rank and exit."""
        while not self._agent.closed:
            wait_readable([self._agent], 60.0, also=self._wakeup[:1])
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup[0], 4096)
            for order in self._agent.receive():
                self._execute(order)
            self._reap()
        self._end_all()
        os._exit(0)

    def _execute(self, order: ForkOrder) -> None:
        match order:
            case ForkRanks():
                for rank in order.start.ranks:
                    self._fork(order, rank)
            case SignalJob(job, number):
                self._signal(job, number)
            case AskRank(job, request):
                if job in self._requests:
                    with contextlib.suppress(OSError):  # it has ended, or never reads
                        os.write(self._requests[job], f"{request}\n".encode())
            case Ping():
                self._agent.send(Pong())

    def _fork(self, order: ForkRanks, rank: RankStart) -> None:
        job = order.start.job
        ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if rank.rank == 0 else ()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"no rank can be forked ({error.strerror}): lower the number of slots."
            self._agent.send(RankExit(job, rank.rank, _CANNOT_FORK, reason))
            _close(*ends)
            return
        if pid == 0:
            self._agent.close()
            _close(*self._wakeup, *self._requests.values(), *ends[1:])
            requests = ends[0] if ends else None
            run_rank(order, rank, fork_server=self._pid, lease=self._lease, requests=requests)
        self._ranks[pid] = (job, rank.rank)
        if ends:
            _close(ends[0])
            self._requests[job] = ends[1]
        self._agent.send(RankForked(job, rank.rank, pid))

    def _signal(self, job: str, number: int) -> None:
        """Signal the ranks of a job; the forceful signal goes to all that they started."""
        for pid, (owner, _) in self._ranks.items():
            if owner == job:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    if number == signal.SIGKILL:
                        os.killpg(pid, number)

    def _reap(self) -> None:
        """Report ranks that ended; whatever they left in their group ends with them."""
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
                job, rank = owner
                if rank == 0:
                    _close(self._requests.pop(job))
                self._agent.send(RankExit(job, rank, os.waitstatus_to_exitcode(status)))

    def _end_all(self) -> None:
        """Kill every rank with its group, and whatever orphans were adopted."""
        for pid in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        children = Path(f"/proc/self/task/{self._pid}/children")
        with contextlib.suppress(OSError):
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _wake_up_for_children() -> tuple[int, int]:
    """Return a pipe that every ended child writes to, so that waiting for one has no race."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading, writing


def main(descriptor: int, lease: int, parent: int, *, modules: Iterable[str]) -> NoReturn:
    """Import, report it, and serve.

    Args:
        descriptor: socket to the agent.
        lease: descriptor of the lease of this host's ranks.
        parent: pid of the agent, with which this process dies.
        modules: names of what to import.
    """
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm's, to all: ranks have until SIGKILL
    process_control.die_with_parent(parent)
    process_control.name_process("hpo-zygote")
    agent = FramedSocket[ForkOrder].of_descriptor(descriptor, ForkOrder)
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if error := preload(modules):
        agent.send(ImportFailed(error))
        sys.exit(1)
    process_control.adopt_orphans(True)
    gc.collect()
    gc.freeze()
    server = ForkServer(agent, RankLease(lease))
    threads = len(os.listdir("/proc/self/task"))
    agent.send(ForkServerReady(time.monotonic() - began, threads))
    server.serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), modules=sys.argv[4:])
