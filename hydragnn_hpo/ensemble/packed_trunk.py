"""Foundation models in the ensemble file: weights, origin, and three structures to check them by.

Shapes: N nodes of a probe, F features.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from torch import Tensor

from hydragnn_hpo.config import MAX_ELEMENT
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import DataError, HydraError
from hydragnn_hpo.model.trunks import FrozenTrunk, find_trunk, open_trunk

PROBES = 3
"""Structures whose features are stored."""

MOST_ATOMS = 64
"""Most atoms of a probe that a file may hold."""

TOLERANCE = 1e-3
"""Largest difference of a feature from the stored one: half precision, in which members read
features in training, rounds values around 1 by 5e-4."""


@dataclass(frozen=True)
class PackedTrunk:
    """A foundation model as an ensemble file holds it."""

    record: dict[str, Any]
    """Its origin, content of ``trunks/NAME.json``."""
    tensors: dict[str, Tensor]
    """Its weights, and the probes: ``probe.0.numbers``, ``.positions``, ``.cell``,
    ``.features``."""


def trunk_files(name: str) -> tuple[str, str]:
    """Return the entries of a foundation model.

    Returns:
        Names of the record and of the tensors.
    """
    return f"trunks/{name}.json", f"trunks/{name}.safetensors"


def pack_trunk(name: str) -> PackedTrunk:
    """Return a foundation model with features of three crystals, for an ensemble file."""
    trunk = find_trunk(name)
    tensors = dict(trunk.network.state_dict())
    crystals = (bulk("NaCl", "rocksalt", a=5.64), bulk("Si"), bulk("Fe"))
    for number, atoms in enumerate(crystals):
        tensors |= {
            f"probe.{number}.numbers": torch.tensor(atoms.numbers),
            f"probe.{number}.positions": torch.tensor(atoms.positions),
            f"probe.{number}.cell": torch.tensor(atoms.cell.array),
            f"probe.{number}.features": torch.from_numpy(_features_of(trunk, atoms)),
        }
    return PackedTrunk(trunk.record, tensors)


def unpack_trunk(path: Path, name: str, packed: PackedTrunk) -> FrozenTrunk:
    """Return the foundation model of an ensemble file, once its features are as when it was packed.

    Args:
        path: the file, for errors.
        name: name of the model.
        packed: what the file holds.

    Raises:
        DataError: weights or probes are not sound, or features come out differently here.
    """
    probes = {key: value for key, value in packed.tensors.items() if key.startswith("probe.")}
    weights = {key: value for key, value in packed.tensors.items() if key not in probes}
    try:
        trunk = open_trunk(packed.record, weights)
        if trunk.name != name:
            raise ValueError(f"it is '{trunk.name}'")
        pairs = [(_features_of(trunk, atoms), stored) for atoms, stored in _read_probes(probes)]
    except (HydraError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: the foundation model '{name}' in it cannot be used ({str(error)[:200]}); "
            "get the ensemble again or build it again."
        ) from error
    for here, stored in pairs:
        if here.shape != stored.shape or not np.allclose(here, stored, atol=TOLERANCE):
            raise DataError(
                f"{path}: features of '{name}' come out differently here than where the ensemble "
                "was made: use the version of hydragnn-hpo that its model card names."
            )
    return trunk


def _features_of(trunk: FrozenTrunk, atoms: Atoms) -> np.ndarray:
    columns = columns_of_atoms([atoms], rules_for(trunk.cutoff))
    return trunk.features(columns, [0]).reshape(len(atoms), -1)


def _read_probes(tensors: Mapping[str, Tensor]) -> Iterator[tuple[Atoms, np.ndarray]]:
    """Yield the probes and their stored features, [N, F].

    Raises:
        KeyError, ValueError: they are not sound.
    """
    for number in range(PROBES):
        parts = {
            key: tensors[f"probe.{number}.{key}"].numpy()
            for key in ("numbers", "positions", "cell", "features")
        }
        numbers = parts["numbers"]
        finite = all(np.isfinite(part).all() for part in parts.values())
        if not all(0 < z <= MAX_ELEMENT for z in numbers.flat[:MOST_ATOMS]):
            raise ValueError(f"probe {number} has no elements")
        if numbers.ndim != 1 or not 0 < len(numbers) <= MOST_ATOMS or not finite:
            raise ValueError(f"probe {number} is no structure")
        atoms = Atoms(numbers, parts["positions"], cell=parts["cell"], pbc=True)
        yield atoms, parts["features"]
