"""Checkpoints of which every rank writes its part, in torch's own distributed format.

Torch pickles the list of what lies where; it is only ever read inside a run's own directory,
which nobody else may write (Law 10). Importing this module costs half a second.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import storage, sync
from hydragnn_hpo.training.train_state import matching_weight


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy this rank's parts into the memory of its host."""
    made: dict[str, Tensor] = FileSystemWriter("unused").stage(dict(tensors))
    return made


def write_sharded(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> int:
    """Write this rank's parts; returns when those of all ranks are on disk.

    Args:
        folder: new.
        tensors: by name, copied.
        group: of all ranks, used by nobody else at the same time.

    Returns:
        The bytes of all ranks.

    Raises:
        StorageError: a rank's disk is full or the folder not writable.
    """
    with storage(folder):
        try:
            save(dict(tensors), checkpoint_id=folder, process_group=group)
        except CheckpointException as error:
            raise _first_failure(error) from error
        sync(folder)
        return sum(path.stat().st_size for path in folder.iterdir())


def read_sharded(folder: Path, weights: Mapping[str, Tensor], *, best: bool) -> dict[str, Tensor]:
    """Read what this rank needs, whatever number of ranks wrote it; nothing is sent.

    Args:
        folder: of ``write``.
        weights: like which tensors are spread here.
        best: whether this rank reads the best weights, which are whole.

    Raises:
        StorageError: something is missing or damaged.
    """
    try:
        described = FileSystemReader(folder).read_metadata().state_dict_metadata
        tensors = {
            name: _allocate_like(name, entry, weights)
            for name, entry in described.items()
            if best or not name.startswith("best/")
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(dict(tensors), checkpoint_id=folder, no_dist=True)
    except (Exception, CheckpointException) as error:
        raise StorageError(
            f"{folder}: cannot be read as a checkpoint "
            f"({_first_failure(error)}); remove it to start over."
        ) from error
    return tensors


def _allocate_like(name: str, entry: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """Make room for a tensor, spread like its weight."""
    assert isinstance(entry, TensorStorageMetadata)
    like = matching_weight(name, entry.size, weights)
    if like is None:
        return torch.empty(entry.size, dtype=entry.properties.dtype)
    return torch.empty_like(like, dtype=entry.properties.dtype)


def _first_failure(error: BaseException) -> BaseException:
    """Give what went wrong on the first rank on which something did."""
    if isinstance(error, CheckpointException) and error.failures:
        found: BaseException = next(iter(error.failures.values()))[0]
        return found
    return error
