"""Write an ensemble file, with a model card for the person who receives it."""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ase.data import chemical_symbols
from jinja2 import Environment
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
from hydragnn_hpo.files import whole_file
from hydragnn_hpo.sanitize import sanitize_values

_DATE = (1980, 1, 1, 0, 0, 0)

_MODEL_CARD = """\
# {{ (data.title or data.name) | line }}

An ensemble of {{ members | count }} graph neural network{{ "s" * (members | count != 1) }}, \
made by hydragnn-hpo {{ manifest.package }} in campaign
`{{ made.campaign }}` (seed {{ made.seed }}; members: {{ method }}).\
{% if manifest.pruned %} Members \
{% for step in manifest.pruned %}{{ step.removed | join(", ") }} were taken out\
{{ "; then " if not loop.last }}{% endfor %}, and it was calibrated again.{% endif %}


Licence of the ensemble: {{ manifest.licence | line or "not stated" }}. \
Licence of the data: {{ data.licence | line or "not stated" }}.

## What it is for

It predicts, from the atoms of a structure alone:

{% for name, head in heads.items() %}
- `{{ name }}` in {{ head.shown_unit }} ({{ head.shape }} per \
{{ "atom" if head.level == "node" else "structure" }}\
{{ ", energy (" ~ head.energy ~ "), gives forces" if head.energy }})\
{{ ": " ~ (head.description | line) if head.description }}
{% endfor %}

It is meant for structures like those it learned from (below): screening them, ranking them,
deciding which to compute or measure next. Every prediction has a standard deviation and an
interval; structures that look foreign are marked in the column `trust` and should be checked
by other means. It is not meant for deciding alone where an error does harm.

## How good it is

{% if manifest.evaluation %}
On the test split, whose structures took no part in training, search, selection or
calibration and were evaluated once:

| head | MAE | RMSE | MAE of best single | MAE of mean | inside 90 % |
| --- | --- | --- | --- | --- | --- |
{% for name, score in manifest.evaluation.items() %}
| `{{ name }}` ({{ score.get("unit", "") | cell }}) | {{ score.get("test_mae") | number }} | \
{{ score.get("test_rmse") | number }} | {{ score.get("single_mae") | number }} | \
{{ score.get("mean_baseline_mae") | number }} | {{ score.get("coverage90") | number }} |
{% endfor %}

`mean` always answers with the training mean; `best single` is the trial with the lowest
validation objective.
{% else %}
It was not evaluated: there is no test split, or members were taken out after the test split \
was looked at. Evaluate it on labelled structures of your own: `hydragnn-hpo ensemble evaluate`.
{% endif %}

## What it cannot do

- Elements: {{ elements | join(", ") }}. Predictions for others are missing or marked, and should \
not be believed.
{% for name, symbols in labelled.items() %}
- `{{ name }}` is predicted for {{ symbols | join(", ") }} alone: no other element has a label \
in training.
{% endfor %}
- Atoms further apart than {{ "%g" | format(manifest.cutoff) }} angstrom are seen only through \
others.
{% if data.atoms %}
- It learned from structures of {{ data.atoms[0] }} to {{ data.atoms[1] }} atoms.
{% endif %}
{% for name, head in heads.items() if head.lowest is not none and head.highest is not none %}
- `{{ name }}`: trained on {{ head.lowest | number }} to {{ head.highest | number }} \
{{ head.shown_unit }} (mean {{ head.mean | number }}, standard deviation {{ head.std | number }}); \
values beyond are guesses.
{% endfor %}
{% for name, constant in constants.items() %}
- `{{ name }}` has a constant of {{ constant | number }} {{ heads[name].unit }}, once for each \
structure whatever its size: numbers for structures of unlike size cannot be compared. Nets that \
are trained now have none.
{% endfor %}
- Intervals hold on the average over structures like those it learned from, and for elements and \
kinds with intervals of their own as far as `cal` had enough of them; not for foreign structures.

## How its intervals were made

Per head, on {% if manifest.created_by.folds %}all structures outside of `test`, each as predicted \
by the members that have not seen it ({{ manifest.created_by.folds }} folds), and carried over to \
all members\
{% else %}{{ data.splits["cal"] ~ " " if data.splits.get("cal") }}structures kept for nothing \
else (the split `cal`){% endif %}: sigma^2 =
a s^2 + c v + b, where s is the spread of the members' predictions and v the variance they predict
for themselves, fitted by likelihood; then a factor of sigma for each element and for the
predicted value, as far as errors differ by these; then conformal quantiles, so that
mean -+ quantile x sigma covers its share of the values of a *new* group. Structures that were
kept together when the data was split, and the atoms of one structure, are one group.

| head | a | c | b | 50 % | 80 % | 90 % | 95 % | groups | values |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{% for name, head in heads.items() %}
{% set fit = head.calibration %}
| `{{ name }}` | {{ fit.a | number }} | {{ fit.c | number }} | {{ fit.b | number }} | \
{% for level in ("0.5", "0.8", "0.9", "0.95") %}{{ fit.quantiles.get(level) | number }} | \
{% endfor %}{{ fit.groups }} | {{ fit.rows }} |
{% endfor %}
{% for sentence in unguaranteed %}

Beware: {{ sentence }}
{% endfor %}
{% for name, head in heads.items() if head.calibration.factors %}

Factors of sigma in `{{ name }}`: {{ head.calibration.factors | factors }} \
{{ head.shown_unit | cell }}.
{% endfor %}
{% for name, head in heads.items() if head.calibration.tables %}

Quantiles of their own in `{{ name }}`: \
{{ head.calibration.tables | map("cell") | join(", ") }}.
{% endfor %}

## What it learned from

{% for name, fact in facts if fact %}
- {{ name }}: {{ fact | line }}
{% endfor %}

## Members

| trial | net | weight | validation objective | validation MAE |
| --- | --- | --- | --- | --- |
{% for member in members %}
{% set model = configs[member.trial].model %}
{% set shares = member.weights.values() | sort %}
{% set low, high = "%.3g" | format(shares[0]), "%.3g" | format(shares[-1]) %}
| {{ member.trial }} | {{ model.conv | cell }}, {{ model.layers }} x {{ model.features }}, \
{{ "%g" | format(model.cutoff) }} angstrom | {{ low if low == high else low ~ " to " ~ high }} | \
{{ member.objective | number }} | \
{% for name, mae in member.val_mae.items() if name in heads %}\
{{ ", " if not loop.first }}{{ name }} {{ mae | number }} {{ heads[name].shown_unit }}\
{% endfor %} |
{% endfor %}
{% for name, head in heads.items() if head.local %}

In `{{ name }}` a regression on the surroundings of single atoms has the weight \
{{ "%.3g" | format(head.local.weight) }}, and the nets share the rest.
{% endfor %}
{% if manifest.diversity %}

On the structures that they were chosen on:

| head | correlation of their errors | RMSE of a member | RMSE of the mix |
| --- | --- | --- | --- |
{% for name, seen in manifest.diversity.items() %}
| `{{ name }}` | {{ seen.correlation | number }} | {{ seen.member_rmse | number }} | \
{{ seen.rmse | number }} |
{% endfor %}
{% endif %}

## How to open it

    pip install "hydragnn-hpo>={{ manifest.package }}"
    hydragnn-hpo ensemble info ensemble.zip
    hydragnn-hpo predict new.cif --ensemble ensemble.zip

Opening it runs no code and needs no network.\
{% if manifest.packages %} Its members need code of \
{% for name, version in manifest.packages.items() %}`{{ name }}` {{ version }}\
{{ ", " if not loop.last }}{% endfor %}: `--trust` says that you trust it.{% endif %}\
 Without hydragnn-hpo: this is a zip;
`ensemble.json` says everything about heads, units, members and calibration, `members/*.toml` is
each net's configuration, `members/*.safetensors` its weights by name, `SHA256SUMS` the checksum
of each file (`sha256sum -c SHA256SUMS` after unpacking). Made with \
{{ software | join(", ") or "versions that were not written down" }}.
"""


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
        autoescape=False,  # noqa: S701  Markdown, not HTML; the filters keep text in its line
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
    )
    environment.filters |= {"line": _line, "cell": _cell, "number": _number, "factors": _factors}
    made, data = manifest.created_by, manifest.data
    versions = [f"{name} {version}" for name, version in manifest.software.items()]
    return environment.from_string(_MODEL_CARD).render(
        manifest=manifest,
        configs=configs,
        constants=constants,
        data=data,
        heads=manifest.heads,
        made=made,
        members=manifest.members,
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
