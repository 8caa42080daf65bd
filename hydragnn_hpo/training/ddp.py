"""The process group of one trial: rank and world size, rendezvous, device, MPI, all-reduce.

Settings come from the environment variables that an agent, torchrun, srun or MPI sets; without
them, a single rank runs.

``SyncPoints`` are the steps at which the ranks agree on requests and due checkpoints. Agreement in
every step would cost a collective and make a GPU wait; without agreement, ranks would stop at
different steps. So rank 0 chooses the number of steps to the next sync point, about one second.
"""

import datetime
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from hydragnn_hpo.errors import ConfigError

_KEPT: list[nn.Module] = []
"""Objects that hold a process group, referenced until the process ends.

Dropping the last reference to a gloo group joins its threads while holding the GIL. A thread that
releases the tensors of the last collective at that moment waits for the GIL: a deadlock (seen with
torch 2.13 in about one of a hundred starts). So groups are never destroyed: ranks end by
``os._exit`` after their files are written.
"""

_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""torch's backend by type of device; gloo for all others. RCCL is also named ``nccl``."""

JOIN_SECONDS = 60.0
"""How long a rank waits for rank 0 to listen, in seconds."""

COLLECTIVE_SECONDS = 300.0
"""How long ranks wait for each other, in seconds, unless ``HYDRAGNN_HPO_COLLECTIVE_SECONDS`` is
set."""

NAMING_SECONDS = 30.0
"""Seconds that torch waits longer, so that ``training.watchdog`` can name the rank behind first."""


@dataclass(frozen=True)
class Ranks:
    """This rank among the ranks of its trial."""

    rank: int
    """Number of this rank, from 0."""
    world: int
    """Number of ranks."""
    device: torch.device
    """Device on which this rank computes."""
    tensor: int = 1
    """Number of neighbouring ranks that share layers and see the same graphs; divides ``world``."""
    store: Store | None = field(default=None, repr=False, compare=False)
    """The rendezvous store, which also holds progress marks; None for a single rank."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of graphs, from 0."""
        return self.rank // self.tensor

    @property
    def data_world(self) -> int:
        """Number of shares into which the graphs of a step are divided."""
        return self.world // self.tensor

    @property
    def represents_share(self) -> bool:
        """Whether this rank counts in sums over graphs: one of all ranks with the same graphs."""
        return self.rank % self.tensor == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over all ranks, in place, and return it; every rank calls this."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Take the maximum over all ranks, element by element, in place; every rank calls this."""
        if self.world > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.world > 1:
            dist.barrier()


def keep_until_exit(module: nn.Module) -> None:
    """Keep a module that holds a process group until the process ends, see ``_KEPT``."""
    _KEPT.append(module)


def join_ranks(meeting: Path | None = None) -> Ranks:
    """Join the process group that the environment describes, or run as a single rank.

    Reads ``RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT`` and
    ``HYDRAGNN_HPO_DEVICE``. gloo on CPUs; nccl on GPUs (RCCL on ROCm), xccl on Intel's.

    Args:
        meeting: rendezvous file of the ranks of one host, a new one for each attempt. With None the
            rendezvous is at ``MASTER_PORT``, where torch's store listens on every interface; Law 10
            (no open ports) allows this only for trials that another launcher started.

    Returns:
        This rank among the others, after all ranks have joined.

    Raises:
        ConfigError: ``RANK`` is not below ``WORLD_SIZE``.
        ConnectionError: rank 0 does not listen within ``JOIN_SECONDS``.
    """
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world:
        raise ConfigError(f"RANK is {rank}, WORLD_SIZE {world}; set RANK to less than WORLD_SIZE.")
    device = _device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    if world == 1:
        return Ranks(rank, world, device)
    store = _open_store(meeting, rank, world)
    dist.init_process_group(
        _BACKENDS.get(device.type, "gloo"),
        store=PrefixStore("ranks", store),
        rank=rank,
        world_size=world,
        timeout=collective_timeout(),
    )
    return Ranks(rank, world, device, store=store)


def collective_seconds() -> float:
    """Return how long ranks wait for each other in a collective, in seconds.

    Raises:
        ConfigError: ``HYDRAGNN_HPO_COLLECTIVE_SECONDS`` is not a positive number.
    """
    setting = os.environ.get("HYDRAGNN_HPO_COLLECTIVE_SECONDS")
    try:
        seconds = COLLECTIVE_SECONDS if setting is None else float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"HYDRAGNN_HPO_COLLECTIVE_SECONDS is '{setting}': set a number of seconds above 0, or "
            "leave it out."
        )
    return seconds


def collective_timeout() -> datetime.timedelta:
    """Return the timeout after which torch makes a collective fail."""
    return datetime.timedelta(seconds=collective_seconds() + NAMING_SECONDS)


def _open_store(meeting: Path | None, rank: int, world: int) -> Store:
    """Open the rendezvous store: a file or, as torch does by default, the port of rank 0."""
    if meeting is not None:
        return FileStore(str(meeting), world)
    if rank:
        _wait_for_port(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store: Store
    store, _, _ = next(rendezvous("env://", rank, world, timeout=collective_timeout()))
    return store


def _device() -> torch.device:
    name = os.environ.get("HYDRAGNN_HPO_DEVICE")
    if name is not None:
        return torch.device(name)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in _BACKENDS:
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    only = torch.accelerator.device_count() == 1  # the launcher hides the other ranks' devices
    return torch.device(accelerator.type, 0 if only else local)


def _wait_for_port(host: str, port: int) -> None:
    """Wait until rank 0 listens; polling is faster than the store's retries, 0.5 s apart."""
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
    raise ConnectionError(f"rank 0 did not listen on {host}:{port} within {JOIN_SECONDS:g} s")


def allreduce_tensors(ranks: Ranks, parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Add several tensors over all ranks at once.

    Args:
        ranks: this rank; every rank calls this with the same names and shapes.
        parts: tensors on any device; they are sent as fp64.

    Returns:
        The sums by name, fp64, in the tensors' shapes.
    """
    flat = [part.to(ranks.device, torch.float64).flatten() for part in parts.values()]
    values = ranks.sum(torch.cat(flat)).cpu().numpy()
    ends = np.cumsum([len(part) for part in flat])[:-1]
    pieces = np.split(values, ends)
    return {
        name: piece.reshape(part.shape)
        for (name, part), piece in zip(parts.items(), pieces, strict=True)
    }


def make_rank_table(ranks: Ranks, values: Tensor) -> Tensor:
    """Return zeros, [world, n], with this rank's ``values``, [n], in its row.

    The sum of these tables over all ranks holds the values of every rank.
    """
    table = values.new_zeros(ranks.world, len(values))
    table[ranks.rank] = values
    return table


def adopt_mpi_environment() -> None:
    """Set torchrun's environment variables from MPI, unless another launcher has set them.

    This does nothing unless ``mpi4py`` is already imported, as by ``python -m mpi4py``. What a
    campaign has set for a rank that it starts by MPI is kept; the ranks find out where they meet.
    """
    placed = "HYDRAGNN_HPO_JOB" in os.environ and "MASTER_ADDR" not in os.environ
    if "mpi4py" not in sys.modules or ("WORLD_SIZE" in os.environ and not placed):
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.size == 1:
        return
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_host = local.size == comm.size
    rendezvous = None
    if comm.rank == 0:
        with socket.socket() as probe:  # finds a free port, which rank 0 opens again later
            probe.bind(("127.0.0.1" if one_host else "", 0))
            port = probe.getsockname()[1]
        rendezvous = ("127.0.0.1" if one_host else socket.gethostname(), port)
    address, port = comm.bcast(rendezvous)
    found_out = {
        "RANK": comm.rank,
        "WORLD_SIZE": comm.size,
        "LOCAL_RANK": local.rank,
        "LOCAL_WORLD_SIZE": local.size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    for name, value in found_out.items():
        os.environ.setdefault(name, str(value))
    local.Free()


def check_mpi_ranks(config: Path) -> None:
    """Check that MPI spans all ranks of a trial whose store is distributed over them.

    Args:
        config: the trial's configuration file, which an error names.

    Raises:
        ConfigError: ``mpi4py`` is missing, or MPI spans fewer ranks, so that each rank would hold
            the whole store.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"{config}: data.access 'distributed' needs mpi4py: pip install 'hydragnn-hpo[mpi]', "
            "or choose 'stage' or 'windows'."
        ) from error
    known = MPI.COMM_WORLD.size
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if known != world:
        raise ConfigError(
            f"{config}: data.access is 'distributed', but MPI spans {known} of {world} ranks: "
            "start them with mpiexec python -m mpi4py, or choose 'stage' or 'windows'."
        )


def finalize_mpi() -> None:
    """Finalize MPI if it was initialized; without this its launcher reports a crash at exit."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()


Signal = Literal["go", "stop", "interrupt"]
"""``go``: continue. ``stop``: end for good after this epoch's validation. ``interrupt``: end before
the next step."""

SYNC_SECONDS = 1.0
"""Approximate time between two sync points."""

_GROWTH = 4
"""Largest factor by which the number of steps between two sync points grows."""


class SyncPoints:
    """Steps at which all ranks agree on requests and checkpoints, about one a second."""

    def __init__(
        self,
        ranks: Ranks,
        signal: Callable[[], Signal],
        *,
        step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Schedule the first sync point after the next step.

        Args:
            ranks: this rank among the others; all have sync points at the same steps.
            signal: returns the current request to this rank.
            step: steps taken before.
            clock: returns a time in seconds.
        """
        self.ranks, self.signal, self.clock = ranks, signal, clock
        self.start = step
        """Steps taken before the first."""
        self.next = step + 1
        self.longest = 0.0
        """Longest time between two sync points so far on this rank, in seconds."""
        self._last_step = step
        self._last_time = clock()
        self._last_count = 1

    def due(self, step: int) -> bool:
        """Check whether there is a sync point after ``step`` steps of the training."""
        return step >= self.next

    def agree(self, step: int, *, save: bool) -> tuple[Signal, bool]:
        """Agree with all ranks in one small all-reduce.

        Args:
            step: steps taken since the start of the training, the same on all ranks.
            save: whether this rank wants a checkpoint; rank 0 decides.

        Returns:
            The strongest signal of any rank, and whether a checkpoint is due.
        """
        requested = self.signal()
        first = self.ranks.first
        flags = torch.tensor(
            [
                float(requested == "stop"),
                float(requested == "interrupt"),
                float(save and first),
                float(self._steps_to_next(step) if first else 0),
            ],
            device=self.ranks.device,
        )
        stop, interrupt, due, steps = self.ranks.sum(flags).tolist()
        self.next = step + int(steps)
        return "interrupt" if interrupt else "stop" if stop else "go", bool(due)

    def _steps_to_next(self, step: int) -> int:
        """Return the number of steps to the next sync point, by the pace since the last one.

        It grows by a factor of ``_GROWTH`` at most, as a few quick steps prove little.
        """
        now = self.clock()
        passed = now - self._last_time
        fitting = round((step - self._last_step) / max(passed, 1e-9) * SYNC_SECONDS)
        self._last_step, self._last_time, self.longest = step, now, max(self.longest, passed)
        self._last_count = min(max(fitting, 1), _GROWTH * self._last_count)
        return self._last_count
