"""Ranks that ``mpiexec python -m mpi4py`` started."""

import os
import socket
import sys
from pathlib import Path

from hydragnn_hpo.errors import ConfigError


def adopt_ranks() -> None:
    """Say in the environment what MPI knows, where no other launcher has said it.

    ``python -m mpi4py`` has MPI imported; the names below are those that ``torchrun`` sets.
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
        LOCAL_WORLD_SIZE=str(local.size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    local.Free()


def see_ranks(config: Path) -> None:
    """Look whether MPI knows all ranks of a trial whose store it shall spread.

    Raises:
        ConfigError: it does not: each rank would hold the whole store.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"{config}: data.access 'distributed' needs mpi4py: pip install 'hydragnn-hpo[mpi]', "
            "or choose 'stage' or 'windows'."
        ) from error
    known, world = MPI.COMM_WORLD.size, int(os.environ.get("WORLD_SIZE", "1"))
    if known != world:
        raise ConfigError(
            f"{config}: data.access is 'distributed', but MPI knows {known} of {world} ranks: "
            "start them with mpiexec python -m mpi4py, or choose 'stage' or 'windows'."
        )


def leave_ranks() -> None:
    """Say goodbye to MPI, which takes a process that just ends for a broken one."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()
