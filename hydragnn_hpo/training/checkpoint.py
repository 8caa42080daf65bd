"""Checkpoint files: safetensors whose header carries the rest as JSON."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import write_pieces

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
"""What the format calls torch's types."""


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and plain state into one file, whole or not at all.

    The library's own ``save`` makes one string of everything and holds the interpreter's lock
    meanwhile (0.2 s for 200 MB), which stops the training of the main thread.

    Source: the format in huggingface.co/docs/safetensors.

    Raises:
        StorageError: the disk is full or the folder not writable; nothing is left behind.
    """
    write_pieces(path, _pieces(tensors, state))


def _pieces(
    tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Iterator[bytes | memoryview]:
    """Yield length of the header, header, and every tensor; wide types first, so all is aligned."""
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


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and plain state.

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


def read_state(path: Path) -> dict[str, Any]:
    """Read the plain state alone.

    Raises:
        StorageError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Any] = json.loads((file.metadata() or {}).get("state", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    return state


def _unreadable(path: Path, error: Exception) -> StorageError:
    return StorageError(
        f"{path}: cannot be read as a checkpoint ({error}); remove it to start over."
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Name the optimizer's tensors ``optimizer/PARAMETER/NAME``, whatever its groups are."""
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
    """Load an optimizer's tensors; its settings stay as they are."""
    states: dict[int, dict[str, Tensor]] = {}
    indices = {name: index for index, name in enumerate(_parameter_names(optimizer, model))}
    for key, value in strip_prefix("optimizer", tensors).items():
        parameter, _, name = key.rpartition("/")
        states.setdefault(indices[parameter], {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def _parameter_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Name the optimizer's parameters in its own order, which its ``state_dict`` counts by."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put names under a prefix."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the names under a prefix, without it."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


logger = logging.getLogger(__name__)
