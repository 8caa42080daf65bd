"""What the ranks of the tests of the distributed store do; run by ``mpiexec``.

Arguments: a folder to meet in, and what to do, one after the other, each as WHAT=STORE. Every rank
prints one line for each at the end.
"""

import sys
import time
from pathlib import Path

import numpy as np
from comparing import assert_same_columns
from mpi4py import MPI
from stores import read_store

from hydragnn_hpo.data.distributed_store import DistributedStore
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.errors import DataError, HydraError

COMM = MPI.COMM_WORLD


def equal(store: Path, _: Path) -> str:
    """Take what columns take, on every rank something else."""
    graphs = open_store(store, access="distributed")
    columns = read_store(store)
    assert isinstance(graphs, DistributedStore)
    random = np.random.default_rng(COMM.rank)
    orders = [np.arange(60), np.arange(59, -1, -1), np.zeros(0, np.int64), np.array([59, 0, 0, 59])]
    for rows in [*orders, *(random.integers(0, 60, 25) for _ in range(20))]:
        assert_same_columns(graphs.take(rows), columns.take(rows))
    for name in columns.levels:
        np.testing.assert_array_equal(graphs.known(name), columns.known(name))
    np.testing.assert_array_equal(graphs.num_nodes(), columns.num_nodes())
    np.testing.assert_array_equal(graphs.num_edges(), columns.num_edges())
    np.testing.assert_array_equal(graphs.split, columns.split)
    np.testing.assert_array_equal(graphs.group, columns.group)
    np.testing.assert_array_equal(graphs.indices_of("sel"), columns.indices_of("sel"))
    for row in (-1, 60):
        try:
            graphs.take(np.array([row]))
        except IndexError:
            continue
        raise AssertionError(row)
    hosts = graphs._hosts.total
    share = graphs._mine.last - graphs._mine.first
    graphs.close()
    return f"{hosts} hosts, {share} windows"


def busy(store: Path, meeting: Path) -> str:
    """Take rows of a host whose ranks wait for something that is not MPI."""
    graphs = DistributedStore(store)
    columns = read_store(store)
    if COMM.rank == COMM.size - 1:
        assert_same_columns(graphs.take(np.arange(60)), columns.take(np.arange(60)))
        (meeting / "taken").touch()
    while not (meeting / "taken").exists():
        time.sleep(0.01)
    COMM.Barrier()
    graphs.close()
    return "fine"


def refuse(store: Path, _: Path) -> str:
    """Return how a store that cannot be opened is refused."""
    try:
        DistributedStore(store)
    except HydraError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was opened")


def fail_on_one(store: Path, meeting: Path) -> str:
    """Fail on the last rank alone, first by bad data, then by a bug."""

    def fail(error: Exception) -> None:
        raise error

    messages: list[str] = []
    load = DistributedStore._load
    for error in (DataError("part 7 is bad."), ZeroDivisionError("oh")):
        if COMM.rank == COMM.size - 1:
            DistributedStore._load = lambda self, error=error: fail(error)  # type: ignore[method-assign]
        messages.append(refuse(store, meeting))
        DistributedStore._load = load  # type: ignore[method-assign]
    graphs = DistributedStore(store)
    assert graphs.take(np.arange(3)).num_graphs == 3
    graphs.close()
    return " | ".join(messages)


def main() -> None:
    """Do everything that was requested."""
    known = {function.__name__: function for function in (equal, busy, refuse, fail_on_one)}
    lines = []
    for request in sys.argv[2:]:
        what, _, store = request.partition("=")
        lines.append(f"RANK {COMM.rank}: {known[what](Path(store), Path(sys.argv[1]))}\n")
    sys.stdout.write("".join(lines))


if __name__ == "__main__":
    main()
