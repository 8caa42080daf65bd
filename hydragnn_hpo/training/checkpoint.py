"""Checkpoints: one safetensors file whose header carries the rest as JSON.

Tensors and counters belong together, so they travel in one file that is written whole.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import write_bytes


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and plain state into one file, whole or not at all."""
    flat = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_bytes(path, save(flat, metadata={"state": json.dumps(state)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and plain state.

    Raises:
        StorageError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: cannot be read as a checkpoint ({error}).") from error
    return tensors, json.loads(metadata.get("state", "{}"))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name the optimizer's tensors ``optimizer/INDEX/NAME``."""
    states = optimizer.state_dict()["state"]
    return {
        f"optimizer/{index}/{name}": value
        for index, values in states.items()
        for name, value in values.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer its tensors back; its settings stay as they are."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/")
            states.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put names under a prefix."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the names under a prefix, without it."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
