"""Write an ensemble file."""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors

from hydragnn_hpo.config import CardConfig, Config, to_toml
from hydragnn_hpo.ensemble.artefact import (
    CALIBRATION,
    CARD,
    FEATURES,
    LOCAL,
    LOCAL_MEMBERS,
    MANIFEST,
    STORED,
    SUMS,
    ArtefactContent,
    Manifest,
    find_constants,
)
from hydragnn_hpo.ensemble.descriptors import features_to_arrays
from hydragnn_hpo.ensemble.local_descriptors import stack_models
from hydragnn_hpo.ensemble.model_card import render_model_card
from hydragnn_hpo.ensemble.packed_trunk import trunk_files
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.sanitize import sanitize_values
from hydragnn_hpo.uncertainty.calibration_data import to_arrays

_DATE = (1980, 1, 1, 0, 0, 0)


def write_artefact(path: Path, content: ArtefactContent) -> None:
    """Write an ensemble file, whole or not at all; equal content gives equal bytes."""
    with whole_file(path) as target, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in _with_sums(_plain_entries(content)):
            # one fixed date for equal bytes; arrays hardly shrink, so they are stored as they are
            kind = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
            file.writestr(zipfile.ZipInfo(name, _DATE), data, kind)


def _with_sums(entries: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the entries, then of the one with their checksums."""
    sums: list[str] = []
    for name, data in entries:
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
        yield name, data
    yield SUMS, "".join(sums).encode()


def _plain_entries(content: ArtefactContent) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every entry but the checksums; no path of this host is in them."""
    values = sanitize_values(content.manifest.model_dump(mode="json"))
    manifest = Manifest.model_validate(values)
    text = json.dumps(values, indent=1, allow_nan=False)
    yield MANIFEST, (text + "\n").encode()
    constants = find_constants(manifest, content.weights)
    yield CARD, render_model_card(manifest, content.configs, constants).encode()
    for name, card in content.cards.items():
        yield f"data/{name}.toml", _to_bytes(_without_paths(card))
    if content.calibration_data is not None:
        yield CALIBRATION, save_arrays(to_arrays(content.calibration_data))
    if content.features is not None:
        yield FEATURES, save_arrays(features_to_arrays(content.features))
    if content.local is not None:
        yield LOCAL, save_arrays(content.local.as_arrays())
    if content.local_members:
        yield LOCAL_MEMBERS, save_arrays(stack_models(content.local_members))
    for name, packed in content.trunks.items():
        about, weights = trunk_files(name)
        yield about, (json.dumps(packed.record, indent=1) + "\n").encode()
        yield (
            weights,
            save_tensors({key: value.contiguous() for key, value in packed.tensors.items()}),
        )
    for member in manifest.members:
        config = content.configs[member.trial]
        data = [entry.model_copy(update={"store": Path(entry.store).name}) for entry in config.data]
        yield member.config_file, _to_bytes(config.model_copy(update={"data": tuple(data)}))
        tensors = content.weights[member.trial].items()
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        yield member.weights_file, save_tensors(plain)


def _without_paths(card: CardConfig) -> CardConfig:
    """Return a card whose files are bare names: local paths stay private."""
    files = [file.model_copy(update={"path": Path(file.path).name}) for file in card.files]
    return card.model_copy(update={"files": tuple(files)})


def _to_bytes(config: Config) -> bytes:
    return to_toml(sanitize_values(config.model_dump(mode="json", exclude_none=True))).encode()
