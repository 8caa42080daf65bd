"""Ranks that ``mpiexec python -m mpi4py`` started."""

import os
import socket
import sys


def adopt_ranks() -> None:
    """Say in the environment what MPI knows, where no other launcher has said it.

    ``python -m mpi4py`` has MPI imported; ``RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT``
    are what ``ddp.join`` reads.
    """
    if "mpi4py" not in sys.modules or "WORLD_SIZE" in os.environ:
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.size == 1:
        return
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_host = local.size == comm.size
    meeting = None
    if comm.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1" if one_host else "", 0))
            port = free.getsockname()[1]
        meeting = ("127.0.0.1" if one_host else socket.gethostname(), port)
    address, port = comm.bcast(meeting)
    os.environ.update(
        RANK=str(comm.rank),
        WORLD_SIZE=str(comm.size),
        LOCAL_RANK=str(local.rank),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    local.Free()


def leave_ranks() -> None:
    """Say goodbye to MPI, which takes a process that just ends for a broken one."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()
