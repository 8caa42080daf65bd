"""The process group of one trial: rank and world size, rendezvous, device, MPI, all-reduce.

An agent, torchrun, srun or MPI sets the environment that all of it is read from; without any, a
rank runs alone. ``SyncPoints`` are the steps at which ranks check together for requests and due
checkpoints: in every step that would cost a collective and make a GPU wait, and ranks that check
each for itself would disagree. So rank 0 chooses how many steps it is until the next one.
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
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    rendezvous,
)

from hydragnn_hpo.errors import ConfigError

_KEPT: list[nn.Module] = []
"""Everything that holds a process group, kept to the end of the process.

Whoever drops the last reference to a gloo group joins its threads while holding the GIL; a
thread that is just then releasing the tensors of the last collective waits for the GIL, and
the rank hangs for good (seen with torch 2.13 in one of some hundred starts). So groups are
never destroyed: ranks end by ``os._exit`` when their files are written.
"""

_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""What ranks speak by, by device; gloo else. RCCL goes by NCCL's name."""

JOIN_SECONDS = 60.0
COLLECTIVE_SECONDS = 300.0
"""How long ranks wait for each other; ``HYDRAGNN_HPO_COLLECTIVE_SECONDS`` says otherwise."""

NAMING_SECONDS = 30.0
"""What torch waits longer, so that ``training.watchdog`` can name who is behind."""


@dataclass(frozen=True)
class Ranks:
    """This rank among the ranks of its trial."""

    rank: int
    world: int
    device: torch.device
    tensor: int = 1
    """Neighbouring ranks that share layers, and so see the same graphs; divides ``world``."""
    store: Store | None = field(default=None, repr=False, compare=False)
    """Where the ranks met and can leave each other notes; none for a rank alone."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Number of this rank's share of graphs."""
        return self.rank // self.tensor

    @property
    def data_world(self) -> int:
        """Into how many shares the graphs of a step go."""
        return self.world // self.tensor

    @property
    def represents_share(self) -> bool:
        """Whether this rank is the one that speaks for its share in sums over all ranks."""
        return self.rank % self.tensor == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Take the largest of all ranks, element by element, in place."""
        if self.world > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def barrier(self) -> None:
        """Wait for the others; the process group goes with the process, see ``_KEPT``."""
        if self.world > 1:
            dist.barrier()


def keep_until_exit(module: nn.Module) -> None:
    """Hold what has a process group to the end of the process, see ``_KEPT``."""
    _KEPT.append(module)


def join_ranks(meeting: Path | None = None) -> Ranks:
    """Join the process group that the environment names, or run alone.

    Reads ``RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT`` and
    ``HYDRAGNN_HPO_DEVICE``. gloo on CPUs; nccl on GPUs (RCCL on ROCm), xccl on Intel's.

    Args:
        meeting: a file, new with each attempt, through which the ranks of one host find each
            other; without it they meet at ``MASTER_PORT``, where torch's store listens on
            every interface (Law 10: only for trials that another launcher started).

    Raises:
        ConfigError: the environment names a rank outside the world.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world:
        raise ConfigError(f"RANK is {rank}, WORLD_SIZE {world}: RANK must be below WORLD_SIZE.")
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
    """Return how long ranks wait for each other.

    Raises:
        ConfigError: the environment holds no number of seconds.
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
    """Return when a collective that nobody ends fails by itself."""
    return datetime.timedelta(seconds=collective_seconds() + NAMING_SECONDS)


def _open_store(meeting: Path | None, rank: int, world: int) -> Store:
    """Meet the other ranks in a file or, as torch does by itself, at the port of rank 0."""
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
    alone = torch.accelerator.device_count() == 1  # whoever launched us shows each rank its own
    return torch.device(accelerator.type, 0 if alone else local)


def _wait_for_port(host: str, port: int) -> None:
    """Wait until rank 0 listens: the store's own retries back off for half a second."""
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
        ranks: all of them call this, with the same names and shapes.
        parts: tensors on any device; they are sent as fp64.

    Returns:
        The sums by name, in the tensors' shapes.
    """
    flat = [part.to(ranks.device, torch.float64).flatten() for part in parts.values()]
    values = ranks.sum(torch.cat(flat)).cpu().numpy()
    ends = np.cumsum([len(part) for part in flat])[:-1]
    pieces = np.split(values, ends)
    return {
        name: piece.reshape(part.shape)
        for (name, part), piece in zip(parts.items(), pieces, strict=True)
    }


def rank_row(ranks: Ranks, values: Tensor) -> Tensor:
    """Put this rank's numbers into a table of all ranks, [world, n]; the sum fills it."""
    table = values.new_zeros(ranks.world, len(values))
    table[ranks.rank] = values
    return table


def adopt_mpi_environment() -> None:
    """Set in the environment what MPI knows, where no other launcher has said it.

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


def check_mpi_ranks(config: Path) -> None:
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


def finalize_mpi() -> None:
    """Finalize MPI, which takes a process that just ends for a broken one."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()


Signal = Literal["go", "stop", "interrupt"]

SECONDS = 1.0
"""About how often the ranks look up."""

_GROWTH = 4
"""Most by which the steps from look to look grow."""


class SyncPoints:
    """Agreement of all ranks, once a second or so."""

    def __init__(
        self,
        ranks: Ranks,
        signal: Callable[[], Signal],
        *,
        step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look up after the next step, and then as often as rank 0 says.

        Args:
            ranks: who looks up together.
            signal: what is asked of this rank.
            step: steps taken before.
            clock: in seconds.
        """
        self.ranks, self.signal, self.clock = ranks, signal, clock
        self.next = step + 1
        self.longest = 0.0
        """Most seconds between two looks so far, on this rank."""
        self._seen, self._at, self._before = step, clock(), 1

    def due(self, step: int) -> bool:
        """Check whether the ranks look up after ``step`` steps of the training."""
        return step >= self.next

    def agree(self, step: int, *, save: bool) -> tuple[Signal, bool]:
        """Ask all ranks in one small all-reduce.

        Args:
            step: steps taken since the training's beginning, the same on all ranks.
            save: whether this rank wants a checkpoint; rank 0 decides.

        Returns:
            What is asked of all, and whether a checkpoint is due.
        """
        requested, first = self.signal(), self.ranks.first
        flags = torch.tensor(
            [
                float(requested == "stop"),
                float(requested == "interrupt"),
                float(save and first),
                float(self._ahead(step) if first else 0),
            ],
            device=self.ranks.device,
        )
        stop, interrupt, due, ahead = self.ranks.sum(flags).tolist()
        self.next = step + int(ahead)
        return "interrupt" if interrupt else "stop" if stop else "go", bool(due)

    def _ahead(self, step: int) -> int:
        """Return the steps that fit between two looks, by the pace since the last one.

        A few quick steps prove little, so the distance grows by a factor at most.
        """
        now = self.clock()
        passed = now - self._at
        fitting = round((step - self._seen) / max(passed, 1e-9) * SECONDS)
        self._seen, self._at, self.longest = step, now, max(self.longest, passed)
        self._before = min(max(fitting, 1), _GROWTH * self._before)
        return self._before
