"""Checkpoint files: safetensors, with all other state as JSON in the header."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
"""Names of torch's dtypes in the safetensors format."""


class CheckpointState(TypedDict):
    """The JSON part of a checkpoint: everything except the tensors."""

    progress: dict[str, Any]
    """Fields of ``Progress``."""
    schedule: ScheduleState
    """State of the learning rate schedule."""
    seed: int
    """Seed of the trial."""
    made_by: dict[str, str | int]
    """Versions and ranks that wrote the checkpoint, for people; no code depends on it."""
    folder: NotRequired[str]
    """Name of a sharded checkpoint's folder, which is next to the JSON file with this state."""


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: CheckpointState) -> None:
    """Write tensors and JSON state into one file, atomically.

    The ``save`` of safetensors builds the whole file in memory and holds the GIL meanwhile (0.2 s
    for 200 MB), which blocks the training in the main thread.

    Args:
        path: the file; an existing one is replaced.
        tensors: tensors by name, on any device, of the dtypes in ``_TYPES``.
        state: everything that is not a tensor.

    Source: the format in huggingface.co/docs/safetensors.

    Raises:
        StorageError: the disk is full or the folder not writable; the old file is kept.
    """
    write_pieces(path, _pieces(tensors, state), private=True)


def _pieces(tensors: Mapping[str, Tensor], state: CheckpointState) -> Iterator[bytes | memoryview]:
    """Yield header length and header, then every tensor; widest dtypes first, for alignment."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"state": json.dumps(state)}}
    end = 0
    for name in order:
        value = tensors[name]
        start = end
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
    """Read a checkpoint that is a single file.

    Returns:
        Tensors by name, on the CPU, and the JSON state, whose keys are not checked.

    Raises:
        StorageError: the file is missing or damaged.
    """
    with _open_checkpoint(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads((file.metadata() or {}).get("state", "{}"))


def read_state(path: Path) -> CheckpointState:
    """Read the JSON state of a checkpoint without its tensors.

    Returns:
        The JSON state, whose keys are not checked.

    Raises:
        StorageError: the file is missing or damaged.
    """
    with _open_checkpoint(path) as file:
        state: CheckpointState = json.loads((file.metadata() or {}).get("state", "{}"))
    return state


@contextmanager
def _open_checkpoint(path: Path) -> Iterator[Any]:
    """Open a file of safetensors, and raise ``StorageError`` if it cannot be read in this context.

    Yields:
        The opened file, as of ``safe_open``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"{path}: cannot be read as a checkpoint ({reason}); remove it to start over."
        ) from error


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of an optimizer's state by names that do not depend on its groups.

    Returns:
        Tensors by ``optimizer/PARAMETER/NAME``, such as ``optimizer/trunk.embedding.weight/step``.
    """
    names = _parameter_names(optimizer, model)
    states = optimizer.state_dict()["state"]
    return {
        f"optimizer/{names[index]}/{name}": value
        for index, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the tensors of an optimizer's state; its settings do not change.

    Args:
        optimizer: optimizer of the parameters of ``model``.
        model: provides the names of the parameters.
        tensors: tensors of a checkpoint by name; only those under ``optimizer/`` are used.
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
    """Return tensors under the names ``prefix/NAME``.

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
