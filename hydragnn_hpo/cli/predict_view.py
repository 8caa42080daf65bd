"""What ``predict`` shows: how far it is, and a table of the first structures."""

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from hydragnn_hpo.cli.words import count

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.ensemble import Manifest, PartHeader, PredictedRows, PredictOutcome

LINE_SECONDS = 15.0
"""How often a line tells how far it is, where there is no terminal."""


class PredictProgress:
    """How far it is, on stderr: a bar on a terminal, lines elsewhere; use it in a ``with``."""

    def __init__(self, total: int | None, *, quiet: bool = False) -> None:
        """Choose between both.

        Args:
            total: structures, where that is known.
            quiet: show nothing.
        """
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )  # fmt: skip

        console = Console(stderr=True)
        columns = (
            TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
        )  # fmt: skip
        lively = console.is_terminal and not quiet
        self.bar = Progress(*columns, console=console, transient=True) if lively else None
        self.task = self.bar.add_task("", total=total, rate="") if self.bar else None
        self.total, self.quiet = total, quiet
        self.done = self._here = 0
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def on_chunk(self, header: "PartHeader", before: bool) -> None:
        """Show that a chunk is done.

        Args:
            header: of its part.
            before: it was done when this process began.
        """
        now = time.monotonic()
        self.done += header.structures
        self._here += 0 if before else header.structures
        rate = f"{self._here / max(now - self._began, 1e-6):.0f} structures/s"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=rate)
        elif not self.quiet and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            of = "" if self.total is None else f" of {self.total}"
            print(f"{self.done}{of} structures, {rate}", file=sys.stderr, flush=True)


def print_outcome(outcome: "PredictOutcome", *, quiet: bool) -> bool:
    """Print what was written and what went wrong; return whether all failed."""
    for path in outcome.files:
        print(f"wrote {path}", file=sys.stderr if quiet else sys.stdout, flush=True)
    if outcome.failed and outcome.files[0].suffix in (".extxyz", ".xyz"):
        print(f"{outcome.files[0]} leaves out what could not be predicted", file=sys.stderr)
    for line in summarize_failures(
        outcome.structures, outcome.failed, outcome.errors, outcome.lacking
    ):
        print(line, file=sys.stderr)
    return outcome.failed == outcome.structures


def summarize_failures(
    structures: int, failed: int, reasons: Iterable[str], lacking: Iterable[str]
) -> list[str]:
    """Return lines about structures that could not be predicted, and keys that none had.

    Args:
        structures: how many there are.
        failed: how many could not be predicted.
        reasons: the first reasons why.
        lacking: keys to copy that no structure had.
    """
    lines = [f"error: {reason}" for reason in reasons]
    if failed > len(lines):
        lines.append(f"and {failed - len(lines)} more, see the column 'error'")
    if failed:
        lines.append(f"{failed} of {count(structures, 'structure')} could not be predicted")
    lines += [f"warning: --keep {key}: no structure has such a key" for key in lacking]
    return lines


def render_table(
    manifest: "Manifest", some: "list[PredictedRows]", most: int, more: bool
) -> "Table":
    """Lay out graph-level predictions; node-level ones would not fit.

    Args:
        manifest: heads and units.
        some: structures, in order.
        most: rows of the table.
        more: there are structures that were not looked at.
    """
    from rich.markup import escape
    from rich.table import Table

    heads = manifest.heads.items()
    graph = {n: head for n, head in heads if (head.level, head.shape) == ("graph", "scalar")}
    table = Table(title="Mean, standard deviation, [90 % interval]", title_justify="left")
    table.add_column("structure")
    for name, head in graph.items():
        table.add_column(f"{name}\n{escape(f'[{head.unit}]')}", justify="right")
    table.add_column("trust")
    lines = [line for rows in some for line in _lines(rows, list(graph))]
    for line in lines[:most]:
        table.add_row(*map(escape, line))
    notes = []
    if len(graph) < len(manifest.heads):
        notes.append("values per atom: add --out NAME.csv or --out NAME.extxyz")
    if more or len(lines) > most:
        notes.append(f"the first {most}; all of them with --out NAME.csv")
    table.caption = "\n".join(notes) or None
    return table


def _lines(rows: "PredictedRows", heads: list[str]) -> Iterable[list[str]]:
    row, prediction = 0, rows.prediction
    for place, name in enumerate(rows.structures.ids):
        if place in rows.structures.errors:
            yield [name, *["-"] * len(heads), "not predicted"]
            continue
        cells = []
        for head in heads:
            p = prediction.heads[head]
            mean, std = p.mean[row, 0], p.std[row, 0]
            cells.append(f"{mean:.3f} +- {std:.3f}  [{p.lo90[row, 0]:.3f}, {p.hi90[row, 0]:.3f}]")
        yield [name, *cells, prediction.trust[row]]
        row += 1
