"""Tables on the terminal."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hydragnn_hpo.campaign.leaderboard import Leaderboard
    from hydragnn_hpo.training.watching.feeding import Feeding


PLAIN_WIDTH = 110
"""Columns of a table that goes to a file or a pipe."""


def console() -> "Console":
    """Give the console for tables, as wide as the terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def _spaced(name: str) -> str:
    """Let a long name wrap at its underscores."""
    return name.replace("_", " ")


def leaderboard_table(board: "Leaderboard", members: Mapping[str, float] | None = None) -> "Table":
    """Lay out trials, best first; members of the ensemble carry their weight."""
    from rich.table import Table

    heads = sorted({head for row in board.rows for head in row.val_mae})
    table = Table(title="Leaderboard (validation)", title_justify="left")
    for name in ("#", "trial", "conv", "epochs", "ranks", "objective"):
        table.add_column(name, justify="left" if name in ("trial", "conv") else "right")
    for head in heads:
        table.add_column(f"{_spaced(head)} MAE \\[{board.units.get(head, '')}]", justify="right")
    table.add_column("weight" if members else "status", justify="right")
    for row in board.rows:
        last = f"{members.get(row.trial, 0.0):.2f}" if members else row.reason or row.status
        table.add_row(
            str(row.rank or "-"),
            row.trial,
            str(row.values.get("model.conv", "")),
            str(row.epochs),
            str(row.width or "-"),
            "-" if row.objective is None else f"{row.objective:.4f}",
            *[f"{row.val_mae[h]:.4f}" if h in row.val_mae else "-" for h in heads],
            "" if last == "0.00" else last,
        )
    return table


def ensemble_table(heads: Mapping[str, Mapping[str, Any]]) -> "Table":
    """Lay out the ensemble's errors on the test split beside its yardsticks."""
    from rich.table import Table

    table = Table(title="Ensemble on the test split (never seen before)", title_justify="left")
    table.add_column("head")
    columns = ("unit", "ensemble MAE", "best single", "predict the mean", "ratio", "in 90 %")
    for name in columns:
        table.add_column(name, justify="right")
    for name, head in heads.items():
        table.add_row(
            _spaced(name),
            head["unit"],
            f"{head['test_mae']:.4f}",
            f"{head['single_mae']:.4f}",
            f"{head['mean_baseline_mae']:.4f}",
            f"{head['ratio_to_mean']:.2f}",
            f"{100 * head['coverage90']:.0f} %",
        )
    return table


def feeding_table(found: "Feeding") -> "Table":
    """Lay out how fast a trial is with real, cached and synthetic batches."""
    from rich.table import Table

    title = f"{found.steps} steps on {found.ranks} rank{'s' if found.ranks > 1 else ''}"
    table = Table(title=title, title_justify="left")
    table.add_column("batches")
    for name in ("graphs/s", "ms per step"):
        table.add_column(name, justify="right")
    for way, seconds in found.seconds.items():
        table.add_row(way, f"{found.graphs_per_second[way]:.0f}", f"{1e3 * seconds:.2f}")
    table.add_section()
    for part, seconds in reversed(found.parts.items()):
        table.add_row(part, "", f"{1e3 * seconds:.2f}")
    return table
