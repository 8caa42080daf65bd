"""``hydragnn-hpo init``: from a data file, or from a card, to a first campaign."""

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import DryRunOption

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Data files or folders that make one data set; or one card: a path or shipped name.",
        metavar="FILES_OR_CARD...",
    ),
]
ConvOption = Annotated[list[str] | None, typer.Option(help="Search only this conv; repeatable.")]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Predict only this target, even one that looks like a mask or a copy; repeatable."
    ),
]
UnitOption = Annotated[
    list[str] | None,
    typer.Option(help="Unit of a property of a data file, such as energy=Hartree; repeatable."),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        max=1e5,
        help="Minutes for the whole campaign on this machine; 10 for data files if left out.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        help="For data files: folder for card and campaign; here if left out. For a card: the "
        "campaign file; standard output if left out."
    ),
]


def init(
    files: FilesArgument,
    conv: ConvOption = None,
    target: TargetOption = None,
    unit: UnitOption = None,
    minutes: MinutesOption = None,
    out: OutOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Inspect data, and write a commented card and campaign that fit it and this machine."""
    from hydragnn_hpo.cli import init_files
    from hydragnn_hpo.errors import ConfigError

    request = init_files.InitRequest(tuple(conv or ()), tuple(target or ()), minutes)
    if not all(files):
        raise ConfigError("one of the names is empty: name data files, folders, or a card.")
    if init_files.is_card(files):
        if unit:
            raise ConfigError(
                "--unit is for data files: leave it out, a card says its units itself."
            )
        text = init_files.init_from_card(files[0], request)
        if out is None or dry_run:
            typer.echo(text, nl=False)
            return
        init_files.write_files({out: text})
        typer.echo(f"wrote {out}; next: hydragnn-hpo run {out}")
        return
    units = init_files.parse_units(unit or ())
    paths = [Path(name) for name in files]
    made = init_files.init_from_files(paths, request, units, out or Path())
    if not dry_run:
        init_files.write_files({made.card: made.card_text, made.campaign: made.campaign_text})
    init_files.show_result(made, dry_run=dry_run)
