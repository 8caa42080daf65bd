"""Which ranks share a host, and so its memory and its disk.

``HYDRAGNN_HPO_RANKS_PER_HOST=k`` cuts every host into virtual ones of ``k`` ranks: several hosts
on one machine, for tests, and one per memory domain where that is quicker.
"""

import os
from typing import Any, NamedTuple

from hydragnn_hpo.errors import ConfigError

RANKS_PER_HOST = "HYDRAGNN_HPO_RANKS_PER_HOST"
"""The environment variable that makes virtual hosts."""


class Hosts(NamedTuple):
    """The ranks of a communicator, host by host."""

    host: Any
    """Communicator of the ranks of this host; its rank 0 leads."""
    leaders: Any
    """Communicator of the leaders of all hosts; null on the other ranks."""
    number: int
    """Number of this host."""
    total: int
    """Number of hosts."""


def hosts_of(comm: Any) -> Hosts:
    """Split a communicator into hosts; all ranks call it together.

    Args:
        comm: of mpi4py. Hosts are numbered by their lowest rank in it.

    Raises:
        ConfigError: the number of ranks of a virtual host is not a positive number.
    """
    from mpi4py import MPI

    size = _ranks_per_host(comm)
    host = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    if size:
        whole, host = host, host.Split(host.rank // size, key=host.rank)
        whole.Free()
    leaders = comm.Split(0 if host.rank == 0 else MPI.UNDEFINED, key=comm.rank)
    found = (leaders.rank, leaders.size) if host.rank == 0 else None
    return Hosts(host, leaders, *host.bcast(found))


def _ranks_per_host(comm: Any) -> int:
    """Give the ranks of a virtual host as rank 0 has been told, 0 for true hosts."""
    text = comm.bcast(os.environ.get(RANKS_PER_HOST, ""))
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{RANKS_PER_HOST} is {text!r}; set it to a positive number of ranks.")
    return int(text or 0)
