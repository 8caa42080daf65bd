"""The ranks of one trial: who am I, who else is there, how do we speak.

Whoever launched us (an agent, torchrun, srun, nobody) says so in the environment.
"""

import datetime
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]

from hydragnn_hpo.errors import ConfigError

_KEPT: list[nn.Module] = []
"""Everything that holds a process group, kept to the end of the process.

Whoever drops the last reference to a gloo group joins its threads while holding the GIL; a
thread that is just then releasing the tensors of the last collective waits for the GIL, and
the rank hangs for good (seen with torch 2.13 in one of some hundred starts). So groups are
never destroyed: ranks end by ``os._exit`` when their files are written.
"""

JOIN_SECONDS = 60.0
COLLECTIVE_SECONDS = 300.0


@dataclass(frozen=True)
class Ranks:
    """This rank among the ranks of its trial."""

    rank: int
    world: int
    device: torch.device
    tensor: int = 1
    """Neighbouring ranks that share layers, and so see the same graphs; divides ``world``."""

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
    def counts(self) -> bool:
        """Whether this rank is the one that speaks for its share in sums over all ranks."""
        return self.rank % self.tensor == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def leave(self) -> None:
        """Wait for the others; the process group goes with the process, see ``_KEPT``."""
        if self.world > 1:
            dist.barrier()


def keep(module: nn.Module) -> None:
    """Hold what has a process group to the end of the process, see ``_KEPT``."""
    _KEPT.append(module)


def join(meeting: Path | None = None) -> Ranks:
    """Join the process group that the environment names, or run alone.

    Reads ``RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT`` and
    ``HYDRAGNN_HPO_DEVICE``. gloo on CPUs; nccl on GPUs (RCCL on ROCm).

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
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        if meeting is None and rank:
            _wait_for_port(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=None if meeting is None else FileStore(str(meeting), world),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
        )
    return Ranks(rank, world, device)


def _device() -> torch.device:
    name = os.environ.get("HYDRAGNN_HPO_DEVICE")
    if name is None:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        name = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


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
