"""One zip that travels: configurations, weights, calibration, provenance; no code.

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

from hydragnn_hpo.config.convs.user import is_user_conv
from hydragnn_hpo.config.data import WIDTHS, CardConfig
from hydragnn_hpo.config.loading import parse, to_toml
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.ensemble.artefact.evidence import Evidence, from_arrays, to_arrays
from hydragnn_hpo.ensemble.artefact.manifest import FORMAT, Manifest, MemberEntry
from hydragnn_hpo.ensemble.artefact.model_card import model_card
from hydragnn_hpo.ensemble.artefact.opening import (
    CARD,
    EVIDENCE,
    MANIFEST,
    STORED,
    SUMS,
    Entries,
    bad,
    opened,
)
from hydragnn_hpo.ensemble.artefact.provenance import public
from hydragnn_hpo.ensemble.artefact.upgrade import upgraded
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.text import first_unprintable, printable

C = TypeVar("C", bound=Config)

_DATE = (1980, 1, 1, 0, 0, 0)
_UNSOUND = (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Content:
    """What an artefact holds."""

    manifest: Manifest
    """Everything but the models."""
    configs: dict[str, TrialConfig]
    """Configuration by name of the trial."""
    weights: dict[str, dict[str, Tensor]]
    """Weights and buffers by name of the trial."""
    cards: dict[str, CardConfig] = field(default_factory=dict)
    """Cards of the data, by name."""
    evidence: Evidence | None = None
    """What the members said about the calibration split; without it nobody can prune."""


@dataclass(frozen=True)
class Survey:
    """What an artefact holds, without its weights; every sum was checked."""

    manifest: Manifest
    """Everything but the models."""
    configs: dict[str, TrialConfig]
    """Configuration by name of the trial."""
    numbers: dict[str, int]
    """Weights and buffers of each member, counted."""
    sizes: dict[str, int]
    """Bytes of each entry."""
    sums: dict[str, str]
    """SHA-256 of each entry."""
    written_as: int
    """Format of the file; what is older was brought up to today's when it was read."""
    cards: dict[str, CardConfig]
    """Cards of the data, by name."""
    evidence: Evidence | None
    """What the members said about the calibration split."""
    identity: str
    """SHA-256 of ``SHA256SUMS``: equal for ensembles that hold the same bytes."""


def save(path: Path, content: Content) -> None:
    """Write an ensemble, whole or not at all; equal content gives equal bytes."""
    with whole_file(path) as target:
        pack_into(target, _entries(content))


def _entries(content: Content) -> Iterator[tuple[str, bytes]]:
    """Give the entries one after the other, then their sums."""
    sums: list[str] = []
    for name, data in _plain_entries(content):
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
        yield name, data
    yield SUMS, "".join(sums).encode()


def _plain_entries(content: Content) -> Iterator[tuple[str, bytes]]:
    values = printable(content.manifest.model_dump(mode="json"))
    manifest = Manifest.model_validate(values)
    text = json.dumps(values, indent=1, allow_nan=False)
    yield MANIFEST, (text + "\n").encode()
    yield CARD, model_card(manifest, content.configs).encode()
    for name, card in content.cards.items():
        yield f"data/{name}.toml", _text_of(public(card))
    if content.evidence is not None:
        yield EVIDENCE, save_arrays(to_arrays(content.evidence))
    for member in manifest.members:
        config = content.configs[member.trial]
        shown = [e.model_copy(update={"store": Path(e.store).name}) for e in config.data]
        yield member.config_file, _text_of(config.model_copy(update={"data": tuple(shown)}))
        tensors = content.weights[member.trial].items()
        yield (
            member.weights_file,
            save_tensors({k: v.detach().cpu().contiguous() for k, v in tensors}),
        )


def _text_of(config: Config) -> bytes:
    values: dict[str, Any] = printable(config.model_dump(mode="json", exclude_none=True))
    return to_toml(values).encode()


def pack(entries: Mapping[str, bytes]) -> bytes:
    """Zip entries in their order, see ``pack_into``."""
    buffer = io.BytesIO()
    pack_into(buffer, entries.items())
    return buffer.getvalue()


def pack_into(target: Any, entries: Iterable[tuple[str, bytes]]) -> None:
    """Zip entries in their order, with one fixed date; weights are not compressed."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries:
            kind = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
            file.writestr(zipfile.ZipInfo(name, _DATE), data, kind)


def read(path: Path) -> Content:
    """Read an ensemble that may come from anywhere.

    Raises:
        DataError: the file is missing, damaged, hostile, or from a newer version.
    """
    return read_with_identity(path)[0]


def read_with_identity(path: Path) -> tuple[Content, str]:
    """Read an ensemble, and give the SHA-256 of its ``SHA256SUMS``, which stands for it all.

    Raises:
        DataError: see ``read``.
    """
    with opened(path) as entries:
        if CARD in entries.sizes:
            entries.check(CARD)
        manifest, _ = _manifest(entries)
        configs, cards = _configs(entries, manifest), _cards(entries, manifest)
        evidence = _evidence(entries, manifest)
        weights = {m.trial: _tensors(entries, m, configs[m.trial]) for m in manifest.members}
        return Content(manifest, configs, weights, cards, evidence), entries.identity


def survey(path: Path) -> Survey:
    """Check all of an ensemble as ``read`` does, one member's weights in memory at a time.

    Raises:
        DataError: the file is missing, damaged, hostile, or from a newer version.
    """
    with opened(path) as entries:
        if CARD in entries.sizes:
            entries.check(CARD)
        manifest, written_as = _manifest(entries)
        configs, cards = _configs(entries, manifest), _cards(entries, manifest)
        evidence, numbers = _evidence(entries, manifest), {}
        for member in manifest.members:
            tensors = _tensors(entries, member, configs[member.trial])
            numbers[member.trial] = sum(value.numel() for value in tensors.values())
        return Survey(
            manifest=manifest,
            configs=configs,
            numbers=numbers,
            sizes=entries.sizes,
            sums=entries.sums,
            written_as=written_as,
            cards=cards,
            evidence=evidence,
            identity=entries.identity,
        )


def _manifest(entries: Entries) -> tuple[Manifest, int]:
    """Give the manifest in today's format, and the format it was written in."""
    path = entries.path

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}")

    try:
        values: Any = json.loads(entries.read(MANIFEST), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        bad(path, f"'{MANIFEST}' is not JSON ({str(error)[:200]})", error)
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        bad(path, f"'{MANIFEST}' does not say its format")
    if version > FORMAT:
        raise DataError(
            f"{path}: has format {version}, this version of hydragnn-hpo reads up to {FORMAT}: "
            "install a newer one."
        )
    _check_text(path, MANIFEST, values)
    manifest = _parsed(entries, MANIFEST, upgraded(values), Manifest)
    wanted = {MANIFEST, CARD, SUMS, EVIDENCE, *(f"data/{n}.toml" for n in manifest.data.cards)}
    for member in manifest.members:
        wanted |= {member.config_file, member.weights_file}
    entries.refuse_others(wanted)
    return manifest, version


def _configs(entries: Entries, manifest: Manifest) -> dict[str, TrialConfig]:
    configs = {}
    for member in manifest.members:
        config = _toml(entries, member.config_file, TrialConfig)
        _check_config(entries.path, config, member.trial, manifest)
        configs[member.trial] = config
    return configs


def _cards(entries: Entries, manifest: Manifest) -> dict[str, CardConfig]:
    return {n: _toml(entries, f"data/{n}.toml", CardConfig) for n in manifest.data.cards}


def _toml(entries: Entries, name: str, schema: type[C]) -> C:
    try:
        values = tomllib.loads(entries.read(name).decode())
    except (ValueError, RecursionError) as error:
        bad(entries.path, f"'{name}' is not TOML ({str(error)[:200]})", error)
    _check_text(entries.path, name, values)
    return _parsed(entries, name, values, schema)


def _parsed(entries: Entries, name: str, values: Any, schema: type[C]) -> C:
    try:
        return parse(values, schema, where=f"{entries.path}: {name}")
    except ConfigError as error:
        raise DataError(str(error)) from error


def _check_text(path: Path, name: str, values: Any) -> None:
    """Refuse what a terminal would take for orders: names and sentences are shown to people."""
    found = first_unprintable(values)
    if found is not None:
        bad(path, f"'{name}' holds text with control characters ({found[:60]!a})")


def _check_config(path: Path, config: TrialConfig, trial: str, manifest: Manifest) -> None:
    if config.trial != trial:
        bad(path, f"the configuration of member '{trial}' is about trial '{config.trial}'")
    if set(config.heads) != set(manifest.heads):
        heads = ", ".join(sorted(config.heads))
        bad(path, f"member '{trial}' predicts {heads}; the ensemble {', '.join(manifest.heads)}")
    if config.model.cutoff > manifest.cutoff:
        bad(path, f"member '{trial}' needs edges beyond the ensemble's cutoff")


def _tensors(entries: Entries, member: MemberEntry, config: TrialConfig) -> dict[str, Tensor]:
    name = member.weights_file
    try:
        tensors = load_tensors(entries.read(name))
    except _UNSOUND as error:
        bad(entries.path, f"'{name}' is not a safetensors file ({str(error)[:200]})", error)
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        bad(entries.path, f"'{name}' holds weights that are not finite")
    found = sum(value.numel() for value in tensors.values())
    if (asked := _largest(config)) > found:
        bad(
            entries.path,
            f"'{member.config_file}' asks for {asked} of something, its net has {found} weights",
        )
    return tensors


def _largest(config: TrialConfig) -> int:
    """Give the largest size that a configuration asks for: every one of them takes weights.

    Else a few bytes of text would let us count, or build, layers without end.
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


def _evidence(entries: Entries, manifest: Manifest) -> Evidence | None:
    if EVIDENCE not in entries.sizes:
        return None
    weights = {
        name: {m.trial: m.weights[name] for m in manifest.members if name in m.weights}
        for name in manifest.heads
    }
    widths = {name: WIDTHS[head.shape] for name, head in manifest.heads.items()}
    try:
        return from_arrays(load_arrays(entries.read(EVIDENCE)), weights, widths)
    except _UNSOUND as error:
        bad(entries.path, f"'{EVIDENCE}' cannot be used ({str(error)[:200]})", error)
