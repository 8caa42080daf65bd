"""``hydragnn-hpo ensemble evaluate``: an ensemble against labels, as a table, JSON or figures."""

import json
import math
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import (
    ColumnOption,
    DeviceOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
)
from hydragnn_hpo.cli.tables import console, make_table, print_verdict
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import escape_controls

if TYPE_CHECKING:
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.config import CardConfig, TargetConfig
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble_build import Evaluation
    from hydragnn_hpo.ensemble_build.evaluation import LabelledStructures

_PLAIN = (
    ("rows", "values"),
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("norm_error", "norm of the error"),
    ("mean_baseline_mae", "MAE of mean"),
    ("elements_mae", "MAE by elements"),
    ("descriptor_mae", "MAE by {described_by}"),
)
_OF_CLASSES = (("accuracy", "accuracy"), ("auc", "AUC"), ("ece", "calibration error (ECE)"))
_WITH_RAW = (
    ("nll", "NLL"),
    ("crps", "CRPS"),
    ("ence", "ENCE"),
    ("area", "miscalibration, Gaussian"),
    ("sharpness", "sharpness"),
    ("spearman", "Spearman"),
    ("ause", "AUSE"),
    *((f"coverage{level}", f"inside {level} %") for level in (50, 80, 90, 95)),
    *((f"width{level}", f"width of {level} %") for level in (50, 80, 90, 95)),
)

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Labelled files, FILE@INDEX, folders, or one store.")
]
CardOption = Annotated[
    Path | None, typer.Option(help="A card that says key, level and unit of each label.")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HEAD=KEY[:UNIT]", help="Without a card: a head's label; repeatable."),
]


def evaluation_table(done: "Evaluation") -> "FittedTable":
    """Lay out every figure, a column for each head: calibrated, and raw in brackets."""
    title = f"{done.structures} structures: calibrated (members' raw spread)"
    heads = [f"{n.replace('_', ' ')}\n[{head.entry.shown_unit}]" for n, head in done.heads.items()]
    table = make_table(title, drop=heads[:0:-1])
    table.add_texts("")
    table.add_numbers(*heads)
    figures = [head.figures for head in done.heads.values()]
    of_classes = [one for one in figures if "accuracy" in one]
    vectors = any("norm_error" in one for one in figures)
    plain = (row for row in _PLAIN if vectors or row[0] != "norm_error")
    described = {head.evidence.described_by for head in done.heads.values()} or {"-"}
    for key, title in (*plain, *(_OF_CLASSES if of_classes else ())):
        title = title.format(described_by=" or ".join(sorted(described)))
        table.add_row(title, *(_number(one.get(key)) for one in figures))
    for key, title in _WITH_RAW:
        table.add_row(title, *(_with_raw_figure(one, key) for one in figures))
        if key == "area":
            conformal = (_number(one.get("area_conformal")) for one in figures)
            table.add_row("miscalibration, conformal", *conformal)
    table.caption = "intervals are conformal, those of the raw spread Gaussian"
    if of_classes:
        table.caption += "; MAE of a class: its log-loss; width: classes in a set"
    return table


def _with_raw_figure(figures: dict[str, float], key: str) -> str:
    """Return a figure with that of the raw spread in brackets; sets of classes have no other."""
    raw = figures.get(f"raw_{key}")
    return _number(figures.get(key)) + ("" if raw is None else f" ({_number(raw)})")


def strata_table(done: "Evaluation") -> "FittedTable":
    """Lay out error and 90 % intervals of each kind of structure."""
    table = make_table("Kinds of structures", drop=("CRPS", "RMSE", "width of 90 %", "kind"))
    table.add_texts("head", "kind")
    table.add_numbers("values", "MAE", "RMSE", "CRPS", "inside 90 %", "width of 90 %")
    keys = ("rows", "mae", "rmse", "crps", "coverage90", "width90")
    for name, head in done.heads.items():
        for kind, values in head.strata.items():
            table.add_row(name, kind, *(_number(values.get(key)) for key in keys))
    return table


def _number(value: float | None) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.3g}" if value is not None and math.isfinite(value) else "-"


class Kinds(Enum):
    """Kinds of structures or atoms that the figures are shown for."""

    ALL, ELEMENT, SIZE, CHEMISTRY = "all", "element", "size", "chemistry"


def evaluate(
    files: FilesArgument,
    ensemble: EnsembleOption,
    card: CardOption = None,
    target: TargetOption = None,
    split: Annotated[str, typer.Option(help="Of a store: the split to evaluate on.")] = "test",
    by: Annotated[
        Kinds, typer.Option(help="Kinds of structures, or of atoms, to show apart.")
    ] = Kinds.ALL,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.json and the figures.")
    ] = None,
    structure_column: ColumnOption = None,
    trust: TrustOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Compare predictions and their error bars with labels: a table, JSON, figures."""
    from hydragnn_hpo.ensemble import Ensemble
    from hydragnn_hpo.ensemble.engine import device_of
    from hydragnn_hpo.ensemble.structure_batches import is_store
    from hydragnn_hpo.ensemble_build import evaluate_ensemble as judge

    model = Ensemble.load(ensemble_file(ensemble), device=device_of(device), trust=trust or ())
    known = _card(files, card)
    labels = _labels(model, known, target or [])
    column = structure_column or (known.structure_column if known else None)
    labelled = _labelled(model, files, labels, split=split, column=column)
    done = judge(model, labelled, labels, by.value)
    done.split = split if is_store(files[0]) else ""
    plain = {"ensemble": str(ensemble), **done.as_plain()}
    if out is not None:
        from hydragnn_hpo.report import write_evaluation

        for written in write_evaluation(out, done, plain):
            typer.echo(f"wrote {written}", err=as_json)
    if as_json:
        typer.echo(json.dumps(plain))
    else:
        _print(done, apart=by is not Kinds.ALL)
    for text in (*(f"warning: {w}" for w in done.warnings), *(f"error: {e}" for e in done.errors)):
        typer.echo(escape_controls(text), err=True)


def _print(done: "Evaluation", *, apart: bool) -> None:
    console().print(evaluation_table(done))
    if apart:
        console().print(strata_table(done))
    print_verdict(done.verdict)


def _card(files: list[Path], card: Path | None) -> "CardConfig | None":
    """Read the card that was named, or the one in the store."""
    from hydragnn_hpo.config import CardConfig, load_config
    from hydragnn_hpo.ensemble.structure_batches import is_store

    stores = [path for path in files if is_store(path)]
    if not stores:
        return None if card is None else load_config(card, CardConfig)
    if len(files) > 1 or card is not None:
        raise ConfigError(f"{stores[0]}: is a store, which has its own card: give it alone.")
    return load_config(stores[0] / "card.toml", CardConfig)


def _labels(
    model: "Ensemble", card: "CardConfig | None", options: list[str]
) -> "dict[str, TargetConfig]":
    from hydragnn_hpo.ensemble_build.evaluation import match_card_labels, parse_label_options

    if (card is None) == (not options):
        raise ConfigError(
            "which label belongs to which head is not known; add --card CARD, or --target "
            "HEAD=KEY:UNIT for each (a store has its own card)."
        )
    if card is not None:
        return match_card_labels(model.manifest, card)
    return parse_label_options(model.manifest, options)


def _labelled(
    model: "Ensemble",
    files: list[Path],
    labels: "dict[str, TargetConfig]",
    *,
    split: str,
    column: str | None,
) -> "Iterator[LabelledStructures]":
    from dataclasses import replace

    from hydragnn_hpo.ensemble.structure_batches import is_store
    from hydragnn_hpo.ensemble_build.evaluation import read_labelled, read_split

    if is_store(files[0]):
        return read_split(files[0], split, model.cutoff)
    return read_labelled(files, replace(model.rules, targets=labels), column)
