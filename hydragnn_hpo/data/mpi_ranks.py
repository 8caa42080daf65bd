"""Group MPI ranks by host, raise errors on all of them, and share memory within and between hosts.

A call is *collective* where all ranks of its communicator must make it; MPI waits for the last.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.errors import ConfigError, HydraError, JobError, StorageError

RANKS_PER_HOST = "HYDRAGNN_HPO_RANKS_PER_HOST"
"""Environment variable with the ranks per virtual host, into which tests split a real host."""


class HostGroups(NamedTuple):
    """The ranks of a communicator, host by host."""

    host: Any
    """Communicator of the ranks of this host; its rank 0 leads."""
    leaders: Any
    """Communicator of the leaders of all hosts; null on the other ranks."""
    number: int
    """Number of this host."""
    total: int
    """Number of hosts."""


def group_by_host(comm: Any) -> HostGroups:
    """Group the ranks of a communicator of mpi4py by host; collective.

    Hosts are numbered by their lowest rank.

    Raises:
        ConfigError: ``HYDRAGNN_HPO_RANKS_PER_HOST`` is not a positive number.
    """
    from mpi4py import MPI

    size = _ranks_per_host(comm)
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    if size:
        whole, host = host, host.Split(host.rank // size, key=host.rank)
        whole.Free()
    leaders = comm.Split(0 if host.rank == 0 else MPI.UNDEFINED, key=comm.rank)
    position = (leaders.rank, leaders.size) if host.rank == 0 else None
    return HostGroups(host, leaders, *host.bcast(position))


def _ranks_per_host(comm: Any) -> int:
    """Return the ranks per virtual host from the environment of rank 0; 0 means real hosts."""
    text = comm.bcast(os.environ.get(RANKS_PER_HOST, ""))
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{RANKS_PER_HOST} is {text!r}; set it to a positive number of ranks.")
    return int(text or 0)


T = TypeVar("T")

Wanted = tuple[list[NDArray[Any]], list[int]]
"""Data to read from another host: contiguous arrays to fill, and the first byte of each in the
block of that host."""

_POLL = 0.0005
"""Seconds between two MPI calls of a leader's thread; a fetch may wait that long."""

_SHARED = Path("/dev/shm")
"""File system of the memory that processes of one host share."""

logger = logging.getLogger(__name__)


def run_or_fail_together(comm: Any, work: Callable[[], T]) -> T:
    """Call a function on every rank, and return each rank's own result; collective.

    Where the function fails on one rank, all ranks raise, so that none waits for another.

    Raises:
        HydraError: the error of the lowest rank that failed; ``JobError`` where that is another
            exception.
    """
    from mpi4py import MPI

    result: T | None = None
    failure: HydraError | None = None
    try:
        result = work()
    except HydraError as error:
        failure = error
    except Exception as error:  # a bug: shown where it happened, and all ranks end
        logger.exception("rank %d", comm.rank)
        reason = str(error) or type(error).__name__
        failure = JobError(f"MPI rank {comm.rank} failed ({reason}); see its output.")
    failed = comm.allreduce(comm.size if failure is None else comm.rank, MPI.MIN)
    if failed < comm.size:
        raise comm.bcast(failure, root=failed)
    return result  # type: ignore[return-value]


def run_at_root(comm: Any, work: Callable[[], T]) -> T:
    """Call a function on rank 0, and return its result on all ranks; collective.

    Raises:
        HydraError: it failed on rank 0; every rank raises the error.
    """
    mine = run_or_fail_together(comm, lambda: work() if comm.rank == 0 else None)
    result: T = comm.bcast(mine)
    return result


class SharedMemory:
    """Memory that the ranks of one host share, in two blocks.

    The host's own block may be read by other hosts. The common block has the same content on all
    hosts, and each host reads its own copy. Creating and freeing both blocks is collective.

    Attributes:
        own: bytes of the own block, uint8, [own].
        common: bytes of the common block, uint8, [common].
    """

    def __init__(self, comm: Any, hosts: HostGroups, own: int, common: int) -> None:
        """Allocate both blocks; collective.

        Args:
            comm: communicator of all ranks; ``free`` frees it.
            hosts: its ranks by host; ``free`` frees their communicators.
            own: bytes of this host's own block.
            common: bytes of the common block, the same on all hosts.

        Raises:
            StorageError: a host lacks memory; every rank raises the error.
        """
        from mpi4py import MPI

        self._comm, self._hosts = comm, hosts
        leads = hosts.host.rank == 0
        size = own + common
        run_or_fail_together(comm, lambda: _check_memory(size) if leads else None)
        self._shared = run_or_fail_together(
            comm, lambda: MPI.Win.Allocate_shared(size if leads else 0, 1, comm=hosts.host)
        )
        self._shared.Lock_all(MPI.MODE_NOCHECK)
        buffer: Any = self._shared.Shared_query(0)[0]
        memory = np.frombuffer(memoryview(buffer), dtype=np.uint8, count=size)
        self.own, self.common = memory[:own], memory[own:]
        self._exposed: Any = None
        leaders = hosts.leaders.allgather(comm.rank) if leads else None
        self._leaders: list[int] = hosts.host.bcast(leaders)

    def meet(self) -> None:
        """Wait for all ranks of this host, so that each sees what the others wrote; collective."""
        self._shared.Sync()
        self._hosts.host.Barrier()
        self._shared.Sync()

    def expose(self) -> None:
        """Allow other hosts to read this host's own block; collective."""
        from mpi4py import MPI

        memory = self.own if self._hosts.host.rank == 0 and len(self.own) else None
        self._exposed = run_or_fail_together(
            self._comm, lambda: MPI.Win.Create(memory, 1, comm=self._comm)
        )
        self._exposed.Lock_all(MPI.MODE_NOCHECK)

    def fetch(self, wanted: Mapping[int, Wanted]) -> None:
        """Read from the own blocks of other hosts, with one transfer per host.

        Args:
            wanted: what to read, by number of the host; the arrays are filled.
        """
        from mpi4py import MPI

        kinds = []
        for host, (pieces, places) in wanted.items():
            sizes = [piece.nbytes for piece in pieces]
            into = MPI.BYTE.Create_hindexed(sizes, [piece.ctypes.data for piece in pieces]).Commit()
            source = MPI.BYTE.Create_hindexed(sizes, places).Commit()
            kinds += [into, source]
            self._exposed.Get([MPI.BOTTOM, 1, into], self._leaders[host], (0, 1, source))
        for host in wanted:
            self._exposed.Flush(self._leaders[host])
        for kind in kinds:
            kind.Free()

    def free(self) -> None:
        """Free the memory and the communicators; collective."""
        from mpi4py import MPI

        for window in (self._exposed, self._shared):
            if window is not None:
                window.Unlock_all()
                window.Free()
        for comm in (self._hosts.leaders, self._hosts.host, self._comm):
            if comm != MPI.COMM_NULL:
                comm.Free()


class Poller:
    """A thread that calls MPI at short intervals.

    Most MPI libraries serve the reads of other hosts only while this process is inside a call.
    """

    def __init__(self, comm: Any, *, needed: bool) -> None:
        """Start the thread; collective.

        Args:
            comm: communicator on which no messages are sent.
            needed: whether this rank needs a thread.

        Raises:
            ConfigError: MPI was started without support for threads; every rank raises it.
        """
        from mpi4py import MPI

        multiple = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        if not run_or_fail_together(comm, lambda: _check_thread_support(needed, multiple)):
            self.stop: Callable[[], Any] = lambda: None
            return
        ended = threading.Event()
        thread = threading.Thread(target=_poll, args=(comm, ended), daemon=True)
        thread.start()
        self.stop = weakref.finalize(self, _end, thread, ended)


def _check_thread_support(needed: bool, multiple: bool) -> bool:
    if needed and not multiple:
        raise ConfigError(
            "MPI was started without support for threads, which a distributed store needs: "
            "set MPI4PY_RC_THREAD_LEVEL=multiple, or choose access 'stage' or 'windows'."
        )
    return needed


def _poll(comm: Any, ended: threading.Event) -> None:
    while not ended.wait(_POLL):
        comm.Iprobe()


def _end(thread: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    thread.join()


def _check_memory(size: int) -> None:
    """Refuse to allocate more than a host has: otherwise the first write kills the process."""
    if not _SHARED.is_dir():
        return
    stat = os.statvfs(_SHARED)
    free = stat.f_bavail * stat.f_frsize
    if size > free:
        raise StorageError(
            f"{_SHARED}: has {free} bytes left, the share of this host needs {size}; "
            "use more hosts, or choose access 'stage' or 'windows'."
        )
