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

from hydragnn_hpo.config import MAX_ELEMENT, TRUNKS, TrunkSpec
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import ConfigError, DataError, HydraError
from hydragnn_hpo.files import write_bytes
from hydragnn_hpo.model.trunks import FrozenTrunk, load_trunk, open_trunk, read_card
from hydragnn_hpo.optional_packages import MissingPackage

PROBES = 3
"""Structures whose features are stored."""

_MOST_PROBE_ATOMS = 64
"""Most atoms of a probe that a file may hold."""

TOLERANCE = 1e-3
"""Largest difference of a feature from the stored one, of the largest of all: half precision, in
which members read features in training, rounds values around 1 by 5e-4."""


@dataclass(frozen=True)
class PackedTrunk:
    """A foundation model as an ensemble file holds it."""

    record: dict[str, Any]
    """Its origin, content of ``trunks/NAME.json``."""
    tensors: dict[str, Tensor]
    """Its weights, and the probes: ``probe.0.numbers``, ``.positions``, ``.cell``,
    ``.features``."""

    @property
    def has_weights(self) -> bool:
        """Whether weights are there, or only the probes."""
        return not all(key.startswith("probe.") for key in self.tensors)


class TrunkFileError(DataError):
    """The files of a foundation model that an ensemble does not carry are missing or others."""


def trunk_files(name: str) -> tuple[str, str]:
    """Return the entries of a foundation model.

    Returns:
        Names of the record and of the tensors.
    """
    return f"trunks/{name}.json", f"trunks/{name}.safetensors"


def pack_trunk(name: str, spec: TrunkSpec) -> PackedTrunk:
    """Return a foundation model with features of three crystals, for an ensemble file.

    Weights are left out where their licence does not let anybody pass them on.

    Args:
        name: the model, or the card of a user's (``NAME.json``).
        spec: what the members know of it.

    Raises:
        ConfigError: the files of a user's are missing, or are others than those of the members.
    """
    trunk = load_trunk(name)
    if trunk.spec != spec:
        raise ConfigError(
            f"{name}: was changed after the trials had read its features: put back the file of "
            "then, and build the ensemble again (hydragnn-hpo ensemble build RUN)."
        )
    tensors = dict(trunk.network.state_dict()) if trunk.may_travel else {}
    known = sorted(trunk.elements)
    crystals = (bulk("NaCl", "rocksalt", a=5.64), bulk("Si"), bulk("Fe"))
    for number, atoms in enumerate(crystals):
        seen = [int(z) in trunk.elements for z in atoms.numbers]
        others = [known[index % len(known)] for index in range(len(atoms))]
        atoms.numbers = np.where(seen, atoms.numbers, others)
        tensors |= {
            f"probe.{number}.numbers": torch.tensor(atoms.numbers),
            f"probe.{number}.positions": torch.tensor(atoms.positions),
            f"probe.{number}.cell": torch.tensor(atoms.cell.array),
            f"probe.{number}.features": torch.from_numpy(_features_of(trunk, atoms)),
        }
    return PackedTrunk(trunk.record, tensors)


def keep_beside(card: Path, folder: Path) -> None:
    """Copy the files of a foundation model that an ensemble may not carry into its folder."""
    for file in (card, card.with_suffix(".safetensors")):
        write_bytes(folder / file.name, file.read_bytes())


def _find_file(path: Path, name: str, packed: PackedTrunk, spec: TrunkSpec) -> FrozenTrunk:
    """Return a foundation model that an ensemble names but does not carry, from files beside it."""
    card = path.with_name(f"{name}.json")
    if not card.exists():
        source = read_card(packed.record).source
        raise TrunkFileError(
            f"{path}: begins from features of '{name}', whose licence does not let ensembles carry "
            f"it: put {name}.json and {name}.safetensors, which 'hydragnn-hpo trunk convert' made "
            f"from {source.file[:80]} (sha256 {source.sha256[:64]}), into the same folder."
        )
    trunk = load_trunk(str(card))
    if trunk.spec != spec:
        raise TrunkFileError(
            f"{card}: is another model than the '{name}' that {path} begins from (checksum "
            f"{trunk.checksum[:12]} in place of {spec.checksum[:12]}): put that one there."
        )
    return trunk


def unpack_trunk(path: Path, name: str, packed: PackedTrunk, spec: TrunkSpec) -> FrozenTrunk:
    """Return the foundation model of an ensemble file, once its features are as when it was packed.

    Args:
        path: the file, for errors.
        name: name of the model.
        packed: what the file holds.
        spec: what its members know of the model.

    Raises:
        ConfigError: its package is not installed, or weights beside the file were changed.
        DataError: weights or probes are not sound, or features come out differently here.
    """
    probes = {key: value for key, value in packed.tensors.items() if key.startswith("probe.")}
    weights = {key: value for key, value in packed.tensors.items() if key not in probes}
    try:
        if name not in TRUNKS and not packed.has_weights:
            trunk = _find_file(path, name, packed, spec)
        else:
            trunk = open_trunk(packed.record, weights)
        if trunk.name != name or trunk.spec != spec:
            raise ValueError(f"it is another model, '{trunk.name}'")
        pairs = [(_features_of(trunk, atoms), stored) for atoms, stored in _read_probes(probes)]
    except (MissingPackage, TrunkFileError):
        raise
    except (HydraError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: the foundation model '{name}' in it cannot be used ({str(error)[:200]}); "
            "get the ensemble again or build it again."
        ) from error
    for here, stored in pairs:
        if here.shape != stored.shape or not _agree(here, stored):
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
        if not all(0 < z <= MAX_ELEMENT for z in numbers.flat[:_MOST_PROBE_ATOMS]):
            raise ValueError(f"probe {number} has no elements")
        if numbers.ndim != 1 or not 0 < len(numbers) <= _MOST_PROBE_ATOMS or not finite:
            raise ValueError(f"probe {number} is no structure")
        atoms = Atoms(numbers, parts["positions"], cell=parts["cell"], pbc=True)
        yield atoms, parts["features"]


def _agree(here: np.ndarray, stored: np.ndarray) -> bool:
    """Whether features are those of the probes, to ``TOLERANCE`` of the largest."""
    largest = np.abs(stored).max(initial=0.0)
    return bool(np.abs(here - stored).max(initial=0.0) <= TOLERANCE * largest)
