"""``hydragnn-hpo predict``: properties with error bars for any structure file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble.manifest import Manifest
    from hydragnn_hpo.ensemble.predictor import Prediction
    from hydragnn_hpo.ensemble.structures import Structures

ROWS = 20


def predict(
    files: Annotated[list[Path], typer.Argument(help="Structure files or folders.")],
    ensemble: Annotated[Path, typer.Option(help="An ensemble.zip, or a run directory.")],
    out: Annotated[
        Path | None, typer.Option(help="NAME.csv, NAME.extxyz or NAME.json to write.")
    ] = None,
    structure_column: Annotated[
        str | None, typer.Option(help="For CSV files: column with a structure or a file name.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", help="A package whose convs may run; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict properties with standard deviation and 90 % interval, in the targets' units."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.ensemble.output import as_plain, write_predictions
    from hydragnn_hpo.ensemble.predictor import Ensemble
    from hydragnn_hpo.ensemble.structures import read_structures
    from hydragnn_hpo.errors import DataError

    model = Ensemble.load(_file_of(ensemble), trust=trust or ())
    files = [_shipped_or_path(path) for path in files]
    structures = read_structures(files, model.rules, structure_column)
    if not structures.ids:
        raise DataError(f"{files[0]}: holds no structure; give a file or folder with at least one.")
    prediction = model.predict(structures.columns)
    if out is not None:
        for path in write_predictions(out, model.manifest, structures, prediction):
            typer.echo(f"wrote {path}", err=as_json)
    if as_json:
        typer.echo(json.dumps(as_plain(model.manifest, structures, prediction)))
    elif out is None:
        console().print(_table(model.manifest, structures, prediction))
    for reason in structures.errors.values():
        typer.echo(f"error: {reason}", err=True)
    if len(structures.errors) == len(structures.ids):
        raise typer.Exit(DataError.exit_code)


def _file_of(ensemble: Path) -> Path:
    from hydragnn_hpo.layout import RunDir

    return RunDir(ensemble).ensemble if ensemble.is_dir() else ensemble


def _shipped_or_path(path: Path) -> Path:
    """Let ``workflows/molecules.xyz`` name the shipped file from any folder."""
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.shipped import shipped

    if path.exists() or path.parts[:1] != ("workflows",):
        return path
    try:
        return shipped(str(path))
    except ConfigError:
        return path


def _table(manifest: "Manifest", structures: "Structures", prediction: "Prediction") -> "Table":
    """Lay out graph-level predictions; node-level ones would not fit."""
    from rich.table import Table

    heads = manifest.heads.items()
    graph = {n: head for n, head in heads if (head.level, head.shape) == ("graph", "scalar")}
    table = Table(title="Mean, standard deviation, [90 % interval]", title_justify="left")
    table.add_column("structure")
    for name, head in graph.items():
        table.add_column(f"{name}\n\\[{head.unit}]", justify="right")
    table.add_column("trust")
    row, notes = 0, []
    if len(graph) < len(manifest.heads):
        notes.append("values per atom: add --out NAME.csv or --out NAME.extxyz")
    for position, name in enumerate(structures.ids):
        if position in structures.errors:
            table.add_row(name, *["-"] * len(graph), "not predicted")
            continue
        cells = []
        for target in graph:
            p = prediction.heads[target]
            mean, std = p.mean[row, 0], p.std[row, 0]
            low, high = p.lo90[row, 0], p.hi90[row, 0]
            cells.append(f"{mean:.3f} +- {std:.3f}  \\[{low:.3f}, {high:.3f}]")
        table.add_row(name, *cells, prediction.trust[row])
        row += 1
        if row == ROWS:
            notes.append(f"the first {ROWS}; all of them with --out NAME.csv")
            break
    table.caption = "\n".join(notes) or None
    return table
