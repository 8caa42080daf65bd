"""Arguments that several commands share."""

import contextlib
import functools
import glob
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.resources import find_shipped, resource_path


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories whose path begins with a text, for completion in a shell."""
    near = [Path(name) for name in glob.glob(f"{glob.escape(incomplete)}*")]
    inside = [folder for path in near if path.is_dir() for folder in path.iterdir()]
    return sorted(str(path) for path in (*near, *inside) if (path / "campaign.toml").exists())


def complete_campaign(incomplete: str) -> list[str]:
    """Return the TOML files and shipped campaigns whose name begins with a text."""
    shipped = [path.stem for path in resource_path("workflows").glob("*.toml")]
    files = glob.glob(f"{glob.escape(incomplete)}*.toml")
    return sorted((*files, *(name for name in shipped if name.startswith(incomplete))))


def complete_ensemble(incomplete: str) -> list[str]:
    """Return the ZIP files and finished run directories whose path begins with a text."""
    files = glob.glob(f"{glob.escape(incomplete)}*.zip")
    runs = [name for name in complete_run(incomplete) if (Path(name) / "ensemble.zip").exists()]
    return sorted((*files, *runs))


CampaignArgument = Annotated[
    str,
    typer.Argument(
        help="Campaign file, or the name of a shipped one.", autocompletion=complete_campaign
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(help="Run directory of a campaign.", autocompletion=complete_run)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")
]
EnsembleArgument = Annotated[
    Path,
    typer.Argument(help="An ensemble.zip, or a run directory.", autocompletion=complete_ensemble),
]
EnsembleOption = Annotated[
    Path,
    typer.Option(help="An ensemble.zip, or a run directory.", autocompletion=complete_ensemble),
]
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

machine_option = functools.partial(typer.Option, rich_help_panel="Machine")
campaign_option = functools.partial(typer.Option, rich_help_panel="Changes of the campaign")
"""An option of one panel of the help."""

SetOption = Annotated[
    list[str] | None,
    campaign_option(
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
    path = shipped_or_path(path)
    return RunDir(path).ensemble if path.is_dir() else path


def shipped_or_path(path: Path) -> Path:
    """Resolve a shipped name such as ``workflows/molecules.xyz``, and say so on stderr.

    A file of the user that has this name is taken before the shipped one. Other paths are returned
    unchanged.
    """
    from hydragnn_hpo.data.readers.selection import split_index

    name, index = (path, "") if path.exists() else split_index(path)
    shipped = find_shipped(name)
    if shipped is None:
        return path
    typer.echo(
        f"{name}: not in this folder; the one that ships with hydragnn-hpo is read", err=True
    )
    return shipped.with_name(shipped.name + index)
