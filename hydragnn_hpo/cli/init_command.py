"""``hydragnn-hpo init``: from a data file, or from a card, to a first campaign."""

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import DryRunOption
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import escape_line
from hydragnn_hpo.units import GUESSED

if TYPE_CHECKING:
    from rich.console import Console

    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.pipeline import InitResult

_CERTAINTY = {"guessed": GUESSED, "unknown": " (not known)"}

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Data files or folders that make one data set; or one card: a path or shipped name.",
        metavar="FILES_OR_CARD...",
    ),
]
search_option = functools.partial(typer.Option, rich_help_panel="Search")
ConvOption = Annotated[list[str] | None, search_option(help="Search only this conv; repeatable.")]
TargetOption = Annotated[
    list[str] | None,
    search_option(
        help="Predict only this target, even one that looks like a mask or a copy; repeatable."
    ),
]
UnitOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Unit of a property of a data file, such as energy=Hartree, or of lengths, as "
        "positions=bohr; repeatable."
    ),
]
MinutesOption = Annotated[
    float | None,
    search_option(
        min=1.0,
        max=1e5,
        help="Minutes for the whole campaign on this machine; 10 for data files if left out.",
    ),
]
TrunksOption = Annotated[
    bool,
    typer.Option(
        "--trunks/--no-trunks",
        help="Let atoms of crystals begin from features of a foundation model, too.",
        rich_help_panel="Search",
    ),
]
WeightOption = Annotated[
    str,
    search_option(
        "--weight-column",
        help="Multiply the loss of each structure by this number of the file, or by one for each "
        "of its texts, such as config_type, which the card then lists.",
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
    trunks: TrunksOption = True,
    weight: WeightOption = "",
    out: OutOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Inspect data, and write a commented card and campaign that fit it and this machine."""
    from hydragnn_hpo.pipeline import (
        InitRequest,
        init_from_card,
        init_from_files,
        is_card,
        write_files,
    )
    from hydragnn_hpo.pipeline.init_files import parse_units

    request = InitRequest(tuple(conv or ()), tuple(target or ()), minutes, trunks, weight)
    if not all(files):
        raise ConfigError("one of the names is empty: name data files, folders, or a card.")
    if is_card(files):
        if unit:
            raise ConfigError(
                "--unit is for data files: leave it out, a card says its units itself."
            )
        text = init_from_card(files[0], request)
        if out is None or dry_run:
            typer.echo(text, nl=False)
            return
        write_files({out: text})
        typer.echo(f"wrote {out}; next: hydragnn-hpo run {out}")
        return
    units = parse_units(unit or ())
    paths = [Path(name) for name in files]
    made = init_from_files(paths, request, units, out or Path(), _show_activity)
    if not dry_run:
        write_files({made.card: made.card_text, made.campaign: made.campaign_text})
    _show_result(made, dry_run=dry_run)


@contextlib.contextmanager
def _show_activity(what: str) -> Iterator[None]:
    """Show on a terminal that something is being done."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.console import Console

    with Console().status(what):
        yield


def _show_result(result: "InitResult", *, dry_run: bool) -> None:
    """Print what the data hold, what is proposed, what to check, and the next command."""
    from hydragnn_hpo.inspection import UNKNOWN
    from hydragnn_hpo.pipeline import (
        describe_data,
        describe_search,
        describe_split,
        explain_units,
    )

    out = console()
    proposals = result.inspection.proposals
    for line in describe_data(result.inspection):
        _print_line(out, line)
    out.print(_tabulate_targets(result))
    for line in describe_split(result.inspection):
        _print_line(out, line)
    for warning in result.inspection.warnings:
        _print_line(out, f"WARNING: {warning}", style="yellow")
    for line in explain_units(result):
        _print_line(out, line, style="yellow")
    for line in describe_search(result):
        _print_line(out, line)
    if dry_run:
        _print_line(out, f"would write {result.card} and {result.campaign}")
        return
    written = f"{result.card} (what the data are) and {result.campaign} (what is searched)"
    _print_line(out, f"wrote {written}")
    if not any(target.unit.name == UNKNOWN for target in proposals.targets):
        _print_line(out, "next:", style="bold")
        _print_line(out, f"  hydragnn-hpo run {shlex.quote(str(result.campaign))}")


def _print_line(out: "Console", text: str, style: str | None = None) -> None:
    """Print text that may come from a file; markup in it has no effect."""
    out.print(escape_line(text).replace('\\"', '"'), style=style, markup=False, highlight=False)


def _tabulate_targets(result: "InitResult") -> "FittedTable":
    table = make_table(drop=("why",))
    table.add_texts("target", "of", "unit", "predicted", "values", "why")
    for target in result.inspection.proposals.targets:
        kind = "structure" if target.config.level == "graph" else "atom"
        kind += "" if target.config.shape == "scalar" else f", {target.config.shape}"
        unit = target.unit.name + _CERTAINTY.get(target.unit.sure, "")
        head = "yes" if target.name in result.heads else "no"
        why = [*target.why]
        if target.unit.sure == "recognised":
            why.append(f"in {target.unit.name}, {target.unit.why}")
        table.add_row(target.name, kind, unit, head, target.spread, "; ".join(why))
    return table
