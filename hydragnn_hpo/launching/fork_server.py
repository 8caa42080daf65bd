"""The fork server, a process that imports once and forks warm ranks, and its agent's handle to it.

``python -m ... DESCRIPTOR LEASE PARENT MODULE...``. The process stays single-threaded (a death
signal follows the parent's *thread*, and a fork keeps only one), runs no tensor operation and uses
no device. It talks to its agent over a socket pair, see ``protocol.ForkOrder``.
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

from hydragnn_hpo.host_info import count_memory_kills
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
"""Exit code reported for a rank if ``fork`` fails (EX_OSERR)."""

_START_SECONDS = 600.0
"""Time limit of a fork server's imports, which may read from a busy file system."""

_UNANSWERED = 15
"""Unanswered pings, five per lease, after which a fork server is considered hung."""


class ForkServerProcess:
    """The agent's handle to its fork server."""

    def __init__(self, token: str, preload: Sequence[str], lease: RankLease) -> None:
        """Start the process; it sends ``ForkServerReady`` once its imports are done.

        Args:
            token: tag of the process and of everything that it forks.
            preload: names of the modules to import.
            lease: lease of this host's ranks.
        """
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), lease.descriptor]
        argv = [sys.executable, "-P", "-m", __name__, *map(str, descriptors), str(os.getpid())]
        self.token = token
        self.ready: ForkServerReady | None = None
        self.error: str | None = None
        """Why a module cannot be imported; None if no import failed."""

        self._began = time.monotonic()
        self._unanswered = 0
        self._memory_kills = (count_memory_kills(),) * 2
        """Processes that the kernel had killed for lack of memory by the last two pings."""

        self.process = subprocess.Popen(
            [*argv, *preload],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env=os.environ | {ZYGOTE: token, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.socket: FramedSocket[ForkNews] = FramedSocket(ours, ForkNews)

    def receive(self) -> list[ForkNews]:
        """Return the messages that have arrived from the process."""
        news = self.socket.receive()
        if news:
            self._unanswered = 0
        return news

    @property
    def ended(self) -> bool:
        """Whether the process has ended or closed its socket."""
        return self.socket.closed or self.process.poll() is not None

    def exit_code(self) -> int:
        """Return the exit code of the ranks that were lost with the process, before ``end``."""
        killed = self.process.poll() in (None, -signal.SIGKILL)  # its socket may close first
        memory_ran_out = count_memory_kills() > self._memory_kills[0]
        return _out_of_memory_code() if killed and memory_ran_out else -signal.SIGKILL

    def ping(self, now: float) -> None:
        """Send a ping if the process is ready; kill the process if it hangs."""
        self._memory_kills = (self._memory_kills[1], count_memory_kills())
        if self.ready is None:
            hangs = now - self._began > _START_SECONDS
        else:
            hangs = self._unanswered >= _UNANSWERED
            self._unanswered += 1
            self.socket.send(Ping())
        if hangs:
            self.process.kill()

    def end(self) -> None:
        """Kill the process and everything it forked, and wait until they are gone."""
        self.socket.close()
        self.process.kill()
        self.process.wait()
        end_tagged(ZYGOTE, self.token)


def _out_of_memory_code() -> int:
    """Return the exit code of ranks that the kernel killed for lack of memory."""
    from hydragnn_hpo.config import OUT_OF_MEMORY  # slow, and agents rarely need it

    return OUT_OF_MEMORY


def preload(modules: Iterable[str]) -> str | None:
    """Import modules; return a sentence about the first that fails, or None."""
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
        """Prepare to serve an agent; ended children wake the server up from now on."""
        self._agent, self._lease = agent, lease
        self._wakeup = _wake_up_for_children()
        self._pid = os.getpid()
        self._ranks: dict[int, tuple[str, int]] = {}
        self._killed: set[str] = set()
        """Jobs to whose ranks this process has sent SIGKILL."""

        self._memory_kills = self._last_memory_kills = count_memory_kills()
        """Processes, ranks apart, that the kernel has killed for lack of memory; see ``Ping``."""
        self._requests: dict[str, int] = {}
        """Job -> writing end of the pipe from which its rank 0 reads requests."""

    def serve(self) -> NoReturn:
        """Execute the agent's orders until it is gone, then kill every rank and exit."""
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
                    with contextlib.suppress(OSError):  # the rank has ended, or its pipe is full
                        os.write(self._requests[job], f"{request}\n".encode())
            case Ping():  # what was killed before the last one has been reaped since
                self._memory_kills = max(self._memory_kills, self._last_memory_kills)
                self._last_memory_kills = count_memory_kills()
                self._agent.send(Pong())

    def _fork(self, order: ForkRanks, rank: RankStart) -> None:
        job = order.start.job
        self._killed.discard(job)
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
        """Signal the ranks of a job; SIGKILL goes to their whole process groups."""
        for pid, (owner, _) in self._ranks.items():
            if owner == job:
                if number == signal.SIGKILL:
                    self._killed.add(job)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    if number == signal.SIGKILL:
                        os.killpg(pid, number)

    def _reap(self) -> None:
        """Report ranks that ended, and kill what is left of their process groups."""
        while True:
            try:
                gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if gone is None:
                return
            if gone.si_pid in self._ranks:  # not reaped yet, so its pid is not reused
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(gone.si_pid, signal.SIGKILL)
            _, status = os.waitpid(gone.si_pid, 0)
            if owner := self._ranks.pop(gone.si_pid, None):
                job, rank = owner
                if rank == 0:
                    _close(self._requests.pop(job))
                self._agent.send(RankExit(job, rank, self._exit_code(job, status)))

    def _exit_code(self, job: str, status: int) -> int:
        """Return the exit code of a rank; ``OUT_OF_MEMORY`` if the kernel killed it for memory."""
        code = os.waitstatus_to_exitcode(status)
        killed = code == -signal.SIGKILL and job not in self._killed
        if killed and count_memory_kills() > self._memory_kills:  # the kernel counts first
            self._memory_kills += 1
            return _out_of_memory_code()
        return code

    def _end_all(self) -> None:
        """Kill every rank with its process group, and all adopted orphans."""
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
    """Return a pipe that is readable after a child ended, so that waiting for one has no race."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading, writing


def main(descriptor: int, lease: int, parent: int, *, modules: Iterable[str]) -> NoReturn:
    """Import modules, report the result, and serve the agent.

    Args:
        descriptor: descriptor of the socket to the agent.
        lease: descriptor of the lease of this host's ranks.
        parent: pid of the agent, with which this process dies.
        modules: names of the modules to import.
    """
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all; ranks end at SIGKILL
    process_control.die_with_parent(parent)
    process_control.name_process("hpo-zygote")
    agent = FramedSocket[ForkOrder].of_descriptor(descriptor, ForkOrder)
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if error := preload(modules):
        agent.send(ImportFailed(error))
        sys.exit(1)
    process_control.adopt_orphans(True)
    # Collect first: frozen garbage is never freed. Frozen pages stay shared with forked ranks.
    gc.collect()
    gc.freeze()
    server = ForkServer(agent, RankLease(lease))
    threads = len(os.listdir("/proc/self/task"))
    agent.send(ForkServerReady(time.monotonic() - began, threads))
    server.serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), modules=sys.argv[4:])
