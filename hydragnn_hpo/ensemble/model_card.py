"""The model card in an ensemble file, for the person who receives it."""

from collections.abc import Mapping

from ase.data import chemical_symbols
from jinja2 import Environment, PackageLoader

from hydragnn_hpo.config import TrialConfig
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.uncertainty import LEVELS
from hydragnn_hpo.uncertainty.error_factors import ErrorFactors


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
