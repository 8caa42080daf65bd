"""Write an ensemble file, with a model card for the person who receives it."""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ase.data import chemical_symbols
from jinja2 import Environment, PackageLoader
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors

from hydragnn_hpo.config import CardConfig, Config, TrialConfig, to_toml
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
from hydragnn_hpo.ensemble.calibrate import LEVELS
from hydragnn_hpo.ensemble.calibration_data import to_arrays
from hydragnn_hpo.ensemble.descriptors import features_to_arrays
from hydragnn_hpo.ensemble.error_factors import ErrorFactors
from hydragnn_hpo.ensemble.local_descriptors import stack_models
from hydragnn_hpo.ensemble.packed_trunk import trunk_files
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.sanitize import sanitize_values

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


def render_model_card(
    manifest: Manifest, configs: Mapping[str, TrialConfig], constants: Mapping[str, float]
) -> str:
    """Render the model card of an ensemble, in Markdown.

    Args:
        manifest: of the ensemble.
        configs: configurations of the members, by trial.
        constants: as ``find_constants`` returns them.
    """
    environment = Environment(
        loader=PackageLoader("hydragnn_hpo.ensemble"),
        autoescape=False,  # noqa: S701  Markdown, not HTML; the filters keep text in its line
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
    )
    environment.filters |= {"line": _line, "cell": _cell, "number": _number, "factors": _factors}
    made, data = manifest.created_by, manifest.data
    versions = [f"{name} {version}" for name, version in manifest.software.items()]
    return environment.get_template("model_card.md.jinja").render(
        manifest=manifest,
        configs=configs,
        constants=constants,
        data=data,
        heads=manifest.heads,
        made=made,
        members=manifest.members,
        trunks={name: manifest.trunk_spec(name) for name in manifest.trunks},
        elements=[chemical_symbols[z] for z in manifest.elements],
        labelled={
            name: [chemical_symbols[z] for z in head.elements]
            for name, head in manifest.heads.items()
            if head.elements not in (None, manifest.elements)
        },
        unguaranteed=manifest.unguaranteed(round(100 * level) for level in LEVELS),
        facts=_data_facts(manifest),
        method={"greedy": "weighted by errors", "top": "the best by validation"}[made.method],
        software=versions + ([f"commit {manifest.commit}"] if manifest.commit else []),
    )


def _data_facts(manifest: Manifest) -> list[tuple[str, str]]:
    """List facts on the data: a name and a text, which may be empty."""
    data = manifest.data
    return [
        ("data set", data.name),
        ("origin", data.origin),
        ("licence", data.licence),
        ("cite", data.cite),
        ("checksum of the store", data.checksum),
        ("splits", ", ".join(f"{name} {count}" for name, count in data.splits.items())),
        *((f"file `{name}`", f"sha256 {sha}") for name, sha in data.files.items() if sha),
        ("cards", ", ".join(f"`data/{name}.toml`" for name in data.cards)),
    ]


def _line(text: str) -> str:
    """Return text as one line, so that untrusted text cannot become a heading or a table."""
    return " ".join(text.split())


def _cell(text: object) -> str:
    """Return text as one cell of a table."""
    return _line(str(text)).replace("|", "\\|")


def _factors(factors: ErrorFactors) -> str:
    """Return factors by element, then those at predicted values, in words."""
    elements = (f"{name} {_number(factor)}" for name, factor in factors.elements.items())
    pairs = zip(factors.at_values, factors.values, strict=True)
    at_values = (f"{_number(factor)} at {_number(value)}" for factor, value in pairs)
    return f"{', '.join(elements)}; predicted values {', '.join(at_values)}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"
