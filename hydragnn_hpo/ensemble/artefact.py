"""One zip that travels: configurations, weights, calibration, provenance; no code.

Nothing is unpacked to disk and nothing is executed: weights are safetensors, the rest is
JSON, TOML and text. Every entry is named in ``SHA256SUMS`` with its checksum.
"""

import hashlib
import io
import json
import re
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from hydragnn_hpo.config.loading import dump, parse
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.ensemble.manifest import FORMAT, Manifest
from hydragnn_hpo.ensemble.model_card import model_card
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import write_bytes

MANIFEST, CARD, SUMS = "ensemble.json", "MODEL_CARD.md", "SHA256SUMS"
MAX_TEXT = 64 * 2**20
"""Most text in all entries together, bytes."""
MAX_WEIGHTS = 8 * 2**30
"""Largest entry of weights, bytes."""
MAX_ENTRIES = 10_000

_NAME = re.compile(r"ensemble\.json|MODEL_CARD\.md|SHA256SUMS|members/[\w-]+\.(toml|safetensors)")
_SUM = re.compile(r"([0-9a-f]{64})  (\S+)")
_STORED = ".safetensors"
_DATE = (1980, 1, 1, 0, 0, 0)
_DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Content:
    """What an artefact holds."""

    manifest: Manifest
    """Everything but the models."""
    configs: dict[str, TrialConfig]
    """Configuration by name of the trial."""
    weights: dict[str, dict[str, Tensor]]
    """Weights and buffers by name of the trial."""


def save(path: Path, content: Content) -> None:
    """Write an ensemble, whole or not at all; equal content gives equal bytes."""
    manifest = content.manifest
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, allow_nan=False)
    entries = {MANIFEST: (text + "\n").encode(), CARD: model_card(manifest).encode()}
    for member in manifest.members:
        config = content.configs[member.trial]
        public = [e.model_copy(update={"store": Path(e.store).name}) for e in config.data]
        shown = config.model_copy(update={"data": tuple(public)})
        entries[member.config_file] = dump(shown).encode()
        tensors = {
            k: v.detach().cpu().contiguous() for k, v in content.weights[member.trial].items()
        }
        entries[member.weights_file] = save_tensors(tensors)
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in entries.items()]
    write_bytes(path, pack({**entries, SUMS: "".join(sums).encode()}))


def pack(entries: dict[str, bytes]) -> bytes:
    """Zip entries in their order, with one fixed date; weights are not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            kind = zipfile.ZIP_STORED if name.endswith(_STORED) else zipfile.ZIP_DEFLATED
            file.writestr(zipfile.ZipInfo(name, _DATE), data, kind)
    return buffer.getvalue()


def read(path: Path) -> Content:
    """Read an ensemble that may come from anywhere.

    Raises:
        DataError: the file is missing, damaged, hostile, or from a newer version.
    """
    entries = _entries(path)
    _check_sums(path, entries)
    manifest = _manifest(path, entries[MANIFEST]) if MANIFEST in entries else _lacks(path, MANIFEST)
    wanted = {MANIFEST, CARD, SUMS}
    configs, weights = {}, {}
    for member in manifest.members:
        for name in (member.config_file, member.weights_file):
            if name not in entries:
                _lacks(path, name)
            wanted.add(name)
        configs[member.trial] = _config(path, member.config_file, entries)
        weights[member.trial] = _tensors(path, member.weights_file, entries)
        _check_config(path, configs[member.trial], member.trial, manifest)
    for name in sorted(set(entries) - wanted):
        _bad(path, f"holds '{name}', which belongs to no member")
    return Content(manifest, configs, weights)


def _entries(path: Path) -> dict[str, bytes]:
    """Read all entries into memory; names and sizes are checked before a byte is unpacked."""
    if not path.is_file():
        raise DataError(f"{path}: no such ensemble; give the path of an ensemble.zip.")
    try:
        with zipfile.ZipFile(path) as file:
            infos = file.infolist()
            _check_names(path, infos)
            return {info.filename: file.read(info) for info in infos}
    except _DAMAGE as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        _bad(path, f"cannot be read as a zip ({reason})", error)


def _check_names(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > MAX_ENTRIES:
        _bad(path, f"holds {len(infos)} entries, more than {MAX_ENTRIES}")
    seen: set[str] = set()
    text = 0
    for info in infos:
        name = info.filename
        if not _NAME.fullmatch(name) or not name.isascii():
            _bad(path, f"holds {name[:200]!a}, which has no place in an ensemble")
        if name in seen:
            _bad(path, f"holds '{name}' twice")
        seen.add(name)
        if not name.endswith(_STORED):
            text += info.file_size
        elif info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_WEIGHTS:
            _bad(path, f"'{name}' is compressed or larger than {MAX_WEIGHTS} bytes")
    if text > MAX_TEXT:
        _bad(path, f"claims {text} bytes of text, more than {MAX_TEXT}")


def _check_sums(path: Path, entries: dict[str, bytes]) -> None:
    if SUMS not in entries:
        _lacks(path, SUMS)
    found = _SUM.findall(entries[SUMS].decode("ascii", errors="replace"))
    sums = {name: value for value, name in found}
    for name, data in entries.items():
        if name == SUMS:
            continue
        if name not in sums:
            _bad(path, f"holds '{name}', which {SUMS} does not name")
        if hashlib.sha256(data).hexdigest() != sums[name]:
            _bad(path, f"'{name}' does not have the checksum that {SUMS} gives")
    for name in sums:
        if name not in entries:
            _lacks(path, name)


def _manifest(path: Path, data: bytes) -> Manifest:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}")

    try:
        values: Any = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        _bad(path, f"'{MANIFEST}' is not JSON ({error})", error)
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int) or version < 1:
        _bad(path, f"'{MANIFEST}' does not say its format")
    if version > FORMAT:
        raise DataError(
            f"{path}: has format {version}, this version of hydragnn-hpo reads up to {FORMAT}: "
            "install a newer one."
        )
    try:
        return parse(values, Manifest, where=f"{path}: {MANIFEST}")
    except ConfigError as error:
        raise DataError(str(error)) from error


def _config(path: Path, name: str, entries: dict[str, bytes]) -> TrialConfig:
    try:
        values = tomllib.loads(entries[name].decode())
        return parse(values, TrialConfig, where=f"{path}: {name}")
    except ConfigError as error:
        raise DataError(str(error)) from error
    except (ValueError, RecursionError) as error:
        _bad(path, f"'{name}' is not TOML ({error})", error)


def _check_config(path: Path, config: TrialConfig, trial: str, manifest: Manifest) -> None:
    if config.trial != trial:
        _bad(path, f"the configuration of member '{trial}' is about trial '{config.trial}'")
    if set(config.heads) != set(manifest.heads):
        heads = ", ".join(sorted(config.heads))
        _bad(path, f"member '{trial}' predicts {heads}; the ensemble {', '.join(manifest.heads)}")
    if config.model.cutoff > manifest.cutoff:
        _bad(path, f"member '{trial}' needs edges beyond the ensemble's cutoff")


def _tensors(path: Path, name: str, entries: dict[str, bytes]) -> dict[str, Tensor]:
    try:
        return load_tensors(entries[name])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        _bad(path, f"'{name}' is not a safetensors file ({error})", error)


def _lacks(path: Path, name: str) -> NoReturn:
    _bad(path, f"lacks '{name}'")


def _bad(path: Path, what: str, cause: BaseException | None = None) -> NoReturn:
    raise DataError(f"{path}: {what}; get the ensemble again or build it anew.") from cause
