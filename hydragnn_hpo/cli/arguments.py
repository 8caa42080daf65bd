"""Arguments that several commands share."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="Run directory of a campaign.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")
]
EnsembleArgument = Annotated[Path, typer.Argument(help="An ensemble.zip, or a run directory.")]
EnsembleOption = Annotated[Path, typer.Option(help="An ensemble.zip, or a run directory.")]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PACKAGE", help="A package whose convs may run; repeatable."),
]
ColumnOption = Annotated[
    str | None, typer.Option(help="For CSV files: column with a structure or a file name.")
]
DeviceOption = Annotated[
    str, typer.Option(help="Where to predict: auto (a GPU if there is one), cpu, cuda:0.")
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Value in place of the campaign file's, such as trial.training.global_batch=32; "
        "repeatable.",
    ),
]


def parse_count(text: str) -> int:
    """Return a whole number from 5 to 1e12, which may be written as 1e9.

    Raises:
        BadParameter: the text is no such number.
    """
    with contextlib.suppress(ValueError):
        number = float(text)
        if number.is_integer() and 5 <= number <= 1e12:
            return int(number)
    raise typer.BadParameter(f"{text!r} is no whole number from 5 to 1e12.")


def ensemble_file(path: Path) -> Path:
    """Return the ensemble of a run directory, or the file itself: the user's or a shipped one."""
    from hydragnn_hpo.layout import RunDir

    path = shipped_or_path(path)
    return RunDir(path).ensemble if path.is_dir() else path


def shipped_or_path(path: Path) -> Path:
    """Resolve a shipped name such as ``workflows/molecules.xyz``, and say so on stderr.

    A file of the user that has this name is taken before the shipped one. Other paths are returned
    unchanged.
    """
    from hydragnn_hpo.data.readers.selection import split_index
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.resources import resource_path

    if path.exists() or path.parts[:1] != ("workflows",):
        return path
    name, index = split_index(path)
    if name.exists():
        return path
    try:
        shipped = resource_path(str(name))
    except ConfigError:
        return path
    typer.echo(
        f"{name}: not in this folder; the one that ships with hydragnn-hpo is read", err=True
    )
    return shipped.with_name(shipped.name + index)
