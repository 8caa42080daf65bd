"""``hydragnn-hpo check-layer``: does a conv, ours or one's own, obey the laws?"""

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.testing.check_report import CheckReport

COLOURS = {"passed": "green", "failed": "bold red", "left out": "yellow"}

WIDE = 110
"""Columns from which on the table says what must hold."""


def check_layer(
    layer: Annotated[
        str,
        typer.Argument(metavar="MODULE:CLASS", help="A class of yours, or the name of a conv."),
    ],
    options: Annotated[
        list[str] | None,
        typer.Option("--options", metavar="KEY=VALUE", help="An option of the conv; repeatable."),
    ] = None,
    features: Annotated[int, typer.Option(min=1, help="Channels per node.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Test a graph layer on a CPU, in seconds: symmetry, cutoff, forces, batches, ranks.

    Modules are found from the current directory, as with ``python -m``.
    """
    given = dict(_option(text) for text in options or [])
    sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the report alone
        report = _checked(layer, given, features)
    if as_json:
        typer.echo(json.dumps(report.to_plain()))
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _checked(layer: str, options: dict[str, Any], features: int) -> "CheckReport":
    module, colon, name = layer.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"'{module}' is a file: write its module, '{dotted}:{name or 'MyConv'}'.")
    import torch

    from hydragnn_hpo.testing import check_conv

    torch.set_num_threads(1)  # threads cost more than they give with so few atoms
    try:
        return check_conv(layer, options, features=features)
    except SystemExit as error:
        raise ConfigError(
            f"conv '{layer}': its module ends the program when it is imported: put what it does "
            "under if __name__ == '__main__'."
        ) from error


def _option(text: str) -> tuple[str, Any]:
    """Split ``key=value``; a value is JSON (numbers, true, lists) or else a plain word."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--options {text}: write it as key=value.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _show(report: "CheckReport") -> None:
    from rich.markup import escape
    from rich.padding import Padding

    screen = console()
    screen.print(_table(report, wide=screen.width >= WIDE))
    for finding in report.failures:
        screen.print()
        screen.print(f"[bold red]{finding.name}[/]: {escape(finding.asks)}", highlight=False)
        place = f"at {finding.place}" if finding.place else ""
        for line in (finding.sentence, place, finding.advice):
            if line:
                screen.print(Padding(escape(line), (0, 0, 0, 2)), highlight=False)
    screen.print()
    screen.print(escape(closing(report)), highlight=False)


def _table(report: "CheckReport", *, wide: bool) -> "FittedTable":
    from rich.text import Text

    chosen = ", ".join(f"{key}={value}" for key, value in report.options.items())
    title = f"{report.conv} ({chosen})" if chosen else report.conv
    table = make_table(title)
    table.add_texts("check")
    table.add_texts("result", no_wrap=True)
    table.add_numbers("found", "limit")
    if wide:
        table.add_texts("must hold")
    for finding in report.findings:
        says = finding.asks if finding.result != "left out" else finding.detail
        measured = "-" if finding.measured is None else f"{finding.measured:.2g}"
        result = Text(finding.result, COLOURS[finding.result])
        row = (finding.name, result, measured, finding.bound)
        table.add_row(*row, *[says] * wide)
    return table


def closing(report: "CheckReport") -> str:
    """Sum a report up in a sentence."""
    checked = [finding for finding in report.findings if finding.result != "left out"]
    omitted = len(report.findings) - len(checked)
    aside = f", {omitted} left out" if omitted else ""
    if report.passed:
        return (
            f"All {len(checked)} checks passed{aside}, in {report.seconds:.1f} s: "
            f"a campaign can use '{report.conv}'."
        )
    failed = len(report.failures)
    return (
        f"{failed} of {len(checked)} checks failed{aside}, in {report.seconds:.1f} s: "
        f"mend '{report.conv}' before a campaign uses it."
    )
