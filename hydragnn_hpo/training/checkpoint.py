"""Checkpoint files: safetensors whose header carries the rest as JSON."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import write_pieces
from hydragnn_hpo.training.optim import ScheduleState

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of torch's dtypes in the format."""


class CheckpointWriter(TypedDict):
    """What wrote a checkpoint; for people, nothing depends on it."""

    hydragnn_hpo: str
    """Version of this package."""
    torch: str
    """Version of torch."""
    python: str
    """Version of Python."""
    device: str
    """Type of device: ``cpu`` or ``cuda``."""
    world: int
    """Number of ranks."""
    shard: str
    """``parallel.shard``."""
    tensor: int
    """Ranks that share layers."""


class CheckpointState(TypedDict):
    """The part of a checkpoint that is no tensor, as JSON holds it."""

    progress: dict[str, Any]
    """Fields of ``Progress``."""
    schedule: ScheduleState
    """Of the learning rate."""
    seed: int
    """Of the trial."""
    made_by: CheckpointWriter
    """What wrote it."""
    folder: NotRequired[str]
    """Name of the folder of a sharded checkpoint, beside the file that holds this."""


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: CheckpointState) -> None:
    """Write tensors and plain state into one file, whole or not at all.

    The library's own ``save`` builds the whole file in memory and holds the interpreter's lock for
    that time (0.2 s for 200 MB), which stops the training in the main thread.

    Args:
        path: of the file, which is replaced.
        tensors: by name, on any device, of the dtypes in ``_TYPES``.
        state: everything else.

    Source: the format in huggingface.co/docs/safetensors.

    Raises:
        StorageError: the disk is full or the folder not writable; the old file stays.
    """
    write_pieces(path, _pieces(tensors, state))


def _pieces(tensors: Mapping[str, Tensor], state: CheckpointState) -> Iterator[bytes | memoryview]:
    """Yield the header's length, the header, and every tensor; wide dtypes first, to align them."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"state": json.dumps(state)}}
    end = 0
    for name in order:
        value, start = tensors[name], end
        end = start + value.numel() * value.element_size()
        header[name] = {
            "dtype": _TYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], CheckpointState]:
    """Read a checkpoint of one file.

    Returns:
        Tensors by name, on the CPU, and the plain state, whose keys are not checked.

    Raises:
        StorageError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        return tensors, json.loads(metadata.get("state", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_state(path: Path) -> CheckpointState:
    """Read the plain state of a checkpoint without its tensors.

    Returns:
        The plain state, whose keys are not checked.

    Raises:
        StorageError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state: CheckpointState = json.loads((file.metadata() or {}).get("state", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    return state


def _unreadable(path: Path, error: Exception) -> StorageError:
    return StorageError(
        f"{path}: cannot be read as a checkpoint ({error}); remove it to start over."
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Name the tensors of an optimizer's state, independent of its groups.

    Returns:
        Tensors by ``optimizer/PARAMETER/NAME``, such as ``optimizer/trunk.embedding.weight/step``.
    """
    names, states = _parameter_names(optimizer, model), optimizer.state_dict()["state"]
    return {
        f"optimizer/{names[index]}/{name}": value
        for index, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the tensors of an optimizer's state; its settings stay as they are.

    Args:
        optimizer: of the parameters of ``model``.
        model: names the parameters.
        tensors: of a checkpoint; those under ``optimizer/`` are used.
    """
    states: dict[int, dict[str, Tensor]] = {}
    indices = {name: index for index, name in enumerate(_parameter_names(optimizer, model))}
    for key, value in strip_prefix("optimizer", tensors).items():
        parameter, _, name = key.rpartition("/")
        states.setdefault(indices[parameter], {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def _parameter_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Return the names of an optimizer's parameters in the order of its ``state_dict``."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by ``prefix/NAME``.

    Returns:
        The same tensors, not copied.
    """
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix/``, by the rest of the name.

    Returns:
        The same tensors, not copied.
    """
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
