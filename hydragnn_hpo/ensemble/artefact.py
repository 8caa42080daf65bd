"""The ensemble file: one zip of configurations, weights, calibration and provenance; no code.

Nothing is unpacked to disk and nothing is executed: weights are safetensors, the rest is
JSON, TOML and text. Every entry is named in ``SHA256SUMS`` with its checksum.
"""

import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hydragnn_hpo.config import WIDTHS, CardConfig, Config, TrialConfig, parse_config, to_toml
from hydragnn_hpo.config.convs.spec import is_user_conv
from hydragnn_hpo.ensemble.calibration_data import CalibrationData, from_arrays, to_arrays
from hydragnn_hpo.ensemble.manifest import FORMAT, Manifest, MemberEntry
from hydragnn_hpo.ensemble.model_card import render_model_card
from hydragnn_hpo.ensemble.safe_zip import (
    CALIBRATION,
    CARD,
    MANIFEST,
    STORED,
    SUMS,
    SafeZip,
    open_safe_zip,
    reject,
)
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.sanitize import find_unprintable, sanitize_values

C = TypeVar("C", bound=Config)

_DATE = (1980, 1, 1, 0, 0, 0)
_UNSOUND = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class ArtefactContent:
    """Content of an ensemble file."""

    manifest: Manifest
    """Everything but the models."""
    configs: dict[str, TrialConfig]
    """Configuration by name of the trial."""
    weights: dict[str, dict[str, Tensor]]
    """Weights and buffers by name of the trial."""
    cards: dict[str, CardConfig] = field(default_factory=dict)
    """Cards of the data, by name."""
    calibration_data: CalibrationData | None = None
    """Predictions of the members for the calibration split; pruning needs them."""
    identity: str = ""
    """SHA-256 of ``SHA256SUMS``, equal for files of equal content; empty before it is written."""


@dataclass(frozen=True)
class ArtefactSummary:
    """Content of an ensemble file without its weights; every checksum is right."""

    content: ArtefactContent
    """``weights`` is empty."""
    num_weights: dict[str, int]
    """Number of weights and buffers of each member."""
    sizes: dict[str, int]
    """Bytes of each entry."""
    sums: dict[str, str]
    """SHA-256 of each entry."""


def write_artefact(path: Path, content: ArtefactContent) -> None:
    """Write an ensemble file, whole or not at all; equal content gives equal bytes."""
    with whole_file(path) as target:
        _write_zip(target, _with_sums(_plain_entries(content)))


def _with_sums(entries: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the entries one after the other, then their checksums."""
    sums: list[str] = []
    for name, data in entries:
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
        yield name, data
    yield SUMS, "".join(sums).encode()


def _plain_entries(content: ArtefactContent) -> Iterator[tuple[str, bytes]]:
    values = sanitize_values(content.manifest.model_dump(mode="json"))
    manifest = Manifest.model_validate(values)
    text = json.dumps(values, indent=1, allow_nan=False)
    yield MANIFEST, (text + "\n").encode()
    yield CARD, render_model_card(manifest, content.configs).encode()
    for name, card in content.cards.items():
        yield f"data/{name}.toml", _to_bytes(_without_paths(card))
    if content.calibration_data is not None:
        yield CALIBRATION, save_arrays(to_arrays(content.calibration_data))
    for member in manifest.members:
        config = content.configs[member.trial]
        data = [entry.model_copy(update={"store": Path(entry.store).name}) for entry in config.data]
        yield member.config_file, _to_bytes(config.model_copy(update={"data": tuple(data)}))
        tensors = content.weights[member.trial].items()
        yield (
            member.weights_file,
            save_tensors({k: v.detach().cpu().contiguous() for k, v in tensors}),
        )


def _without_paths(card: CardConfig) -> CardConfig:
    """Return a card whose files are bare names: local paths stay private."""
    files = [file.model_copy(update={"path": Path(file.path).name}) for file in card.files]
    return card.model_copy(update={"files": tuple(files)})


def _to_bytes(config: Config) -> bytes:
    values: dict[str, Any] = sanitize_values(config.model_dump(mode="json", exclude_none=True))
    return to_toml(values).encode()


def zip_entries(entries: Mapping[str, bytes]) -> bytes:
    """Return a zip of entries in their order, as ``write_artefact`` writes it."""
    buffer = io.BytesIO()
    _write_zip(buffer, entries.items())
    return buffer.getvalue()


def _write_zip(target: Any, entries: Iterable[tuple[str, bytes]]) -> None:
    """Write entries in their order, with one fixed date; weights are not compressed."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries:
            kind = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
            file.writestr(zipfile.ZipInfo(name, _DATE), data, kind)


def read_artefact(path: Path) -> ArtefactContent:
    """Read an ensemble file that may come from anywhere.

    Raises:
        DataError: the file is missing, damaged, hostile, or of another format.
    """
    with open_safe_zip(path) as entries:
        content = _read_without_weights(entries)
        for member in content.manifest.members:
            config = content.configs[member.trial]
            content.weights[member.trial] = _read_tensors(entries, member, config)
        return content


def summarize_artefact(path: Path) -> ArtefactSummary:
    """Check all of an ensemble file as ``read_artefact`` does, with one member in memory at a time.

    Raises:
        DataError: the file is missing, damaged, hostile, or of another format.
    """
    with open_safe_zip(path) as entries:
        content, num_weights = _read_without_weights(entries), {}
        for member in content.manifest.members:
            tensors = _read_tensors(entries, member, content.configs[member.trial])
            num_weights[member.trial] = sum(value.numel() for value in tensors.values())
        return ArtefactSummary(content, num_weights, entries.sizes, entries.sums)


def _read_without_weights(entries: SafeZip) -> ArtefactContent:
    if CARD in entries.sizes:
        entries.check(CARD)
    manifest = _read_manifest(entries)
    configs = {}
    for member in manifest.members:
        config = _read_toml(entries, member.config_file, TrialConfig)
        _check_config(entries.path, config, member.trial, manifest)
        configs[member.trial] = config
    cards = {n: _read_toml(entries, f"data/{n}.toml", CardConfig) for n in manifest.data.cards}
    calibration = _read_calibration(entries, manifest)
    return ArtefactContent(manifest, configs, {}, cards, calibration, entries.identity)


def _read_manifest(entries: SafeZip) -> Manifest:
    """Read the manifest, and refuse entries that it does not name."""
    path = entries.path

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}")

    try:
        values: Any = json.loads(entries.read(MANIFEST), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reject(path, f"'{MANIFEST}' is not JSON ({str(error)[:200]})", error)
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        reject(path, f"'{MANIFEST}' does not say its format")
    if version != FORMAT:
        cure = "install a newer one"
        if version < FORMAT:
            cure = "build it again from its run (hydragnn-hpo ensemble build RUN)"
        raise DataError(
            f"{path}: has format {version}, this version of hydragnn-hpo reads format {FORMAT}: "
            f"{cure}."
        )
    _check_text(path, MANIFEST, values)
    manifest = _parse(entries, MANIFEST, values, Manifest)
    wanted = {MANIFEST, CARD, SUMS, CALIBRATION, *(f"data/{n}.toml" for n in manifest.data.cards)}
    for member in manifest.members:
        wanted |= {member.config_file, member.weights_file}
    entries.refuse_others(wanted)
    return manifest


def _read_toml(entries: SafeZip, name: str, schema: type[C]) -> C:
    try:
        values = tomllib.loads(entries.read(name).decode())
    except (ValueError, RecursionError) as error:
        reject(entries.path, f"'{name}' is not TOML ({str(error)[:200]})", error)
    _check_text(entries.path, name, values)
    return _parse(entries, name, values, schema)


def _parse(entries: SafeZip, name: str, values: Any, schema: type[C]) -> C:
    try:
        return parse_config(values, schema, where=f"{entries.path}: {name}")
    except ConfigError as error:
        raise DataError(str(error)) from error


def _check_text(path: Path, name: str, values: Any) -> None:
    """Refuse what a terminal would take for orders: names and sentences are shown to people."""
    found = find_unprintable(values)
    if found is not None:
        reject(path, f"'{name}' holds text with control characters ({found[:60]!a})")


def _check_config(path: Path, config: TrialConfig, trial: str, manifest: Manifest) -> None:
    if config.trial != trial:
        reject(path, f"the configuration of member '{trial}' is about trial '{config.trial}'")
    if set(config.heads) != set(manifest.heads):
        heads = ", ".join(sorted(config.heads))
        reject(path, f"member '{trial}' predicts {heads}; the ensemble {', '.join(manifest.heads)}")
    if config.model.cutoff > manifest.cutoff:
        reject(path, f"member '{trial}' needs edges beyond the ensemble's cutoff")


def _read_tensors(entries: SafeZip, member: MemberEntry, config: TrialConfig) -> dict[str, Tensor]:
    name = member.weights_file
    try:
        tensors = load_tensors(entries.read(name))
    except _UNSOUND as error:
        reject(entries.path, f"'{name}' is not a safetensors file ({str(error)[:200]})", error)
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        reject(entries.path, f"'{name}' holds weights that are not finite")
    found = sum(value.numel() for value in tensors.values())
    if (asked := _largest(config)) > found:
        reject(
            entries.path,
            f"'{member.config_file}' asks for {asked} of something, its net has {found} weights",
        )
    return tensors


def _largest(config: TrialConfig) -> int:
    """Return the largest size that a configuration asks for; every one of them takes weights.

    Without this check a few bytes of text could ask for layers without end.
    """
    model = config.model.model_dump(exclude={"max_neighbors"})
    if is_user_conv(config.model.conv):
        model["options"] = {}
    heads = [head.model_dump() for head in config.heads.values()]
    return max(_whole_numbers([model, heads]), default=0)


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(part)


def _read_calibration(entries: SafeZip, manifest: Manifest) -> CalibrationData | None:
    if CALIBRATION not in entries.sizes:
        return None
    weights = {
        name: {m.trial: m.weights[name] for m in manifest.members if name in m.weights}
        for name in manifest.heads
    }
    widths = {name: WIDTHS[head.shape] for name, head in manifest.heads.items()}
    try:
        return from_arrays(load_arrays(entries.read(CALIBRATION)), weights, widths)
    except _UNSOUND as error:
        reject(entries.path, f"'{CALIBRATION}' cannot be used ({str(error)[:200]})", error)
