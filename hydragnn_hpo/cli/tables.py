"""Tables on the terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.words import fixed

if TYPE_CHECKING:
    from rich.console import Console

    from hydragnn_hpo.campaign import Leaderboard
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.file_records import HeadScores, VerdictSentence

PLAIN_WIDTH = 110
"""Columns of a table that goes to a file or a pipe."""

MOST_KEYS = 6
"""Searched keys of a command that a table shows."""


def console() -> "Console":
    """Return the console for tables, as wide as the terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def make_table(title: str = "", **options: Any) -> "FittedTable":
    """Return a ``FittedTable`` without columns; rich is imported with the first one."""
    from hydragnn_hpo.cli.fitted_table import FittedTable

    return FittedTable(title, **options)


def leaderboard_table(
    board: "Leaderboard", members: Mapping[str, float] | None = None
) -> "FittedTable":
    """Lay out trials, best first; members of the ensemble carry their weight."""
    from hydragnn_hpo.campaign.status import describe_origin

    goals = max((len(row.score) for row in board.rows if isinstance(row.score, tuple)), default=0)
    keys = _choose_keys(board)
    heads = sorted({head for row in board.rows for head in row.val_mae})
    names = [key.rpartition(".")[2] for key in keys]
    errors = [f"{head.replace('_', ' ')} MAE [{board.units.get(head, '')}]" for head in heads]
    last = "weight" if members else "status"
    drop = ("ranks", "status", "epochs", "#", *errors[::-1], *names[::-1], "front", "weight")
    table = make_table("Leaderboard (validation)", drop=drop)
    table.add_numbers("#")
    table.add_texts("trial", no_wrap=True)
    for name in names:
        (table.add_texts if name == "conv" else table.add_numbers)(name)
    table.add_numbers("epochs", "ranks")
    table.add_numbers(*(f"goal {n + 1}" for n in range(goals)), "front" if goals else "objective")
    table.add_numbers(*errors, last)
    for row in board.rows:
        scores = list(row.score) if isinstance(row.score, tuple) else [None] * goals
        measured = [*map(_number, scores), "yes" if row.front else ""]
        weight = (members or {}).get(row.trial)
        origin = f", {describe_origin(row.parent, row.values)}" if row.parent else ""
        values = {"model.conv": row.conv} | row.values
        cells = [
            str(row.rank or "-"),
            f"{row.trial}{origin}",
            *(_to_cell(values.get(key, "")) for key in keys),
            str(row.epochs),
            str(row.width or "-"),
            *(measured if goals else [_number(row.objective)]),
            *(_number(row.val_mae.get(head)) for head in heads),
            (f"{weight:.2f}" if weight else "") if members else row.reason or row.status,
        ]
        table.add_row(*cells)
    return table


def _choose_keys(board: "Leaderboard") -> list[str]:
    """Return the keys to show: the conv of our trainings, searched keys of a command."""
    if any(row.conv for row in board.rows):
        return ["model.conv"]
    return list(dict.fromkeys(key for row in board.rows for key in row.values))[:MOST_KEYS]


def _to_cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else fixed(value)


def ensemble_table(heads: Mapping[str, "HeadScores"]) -> "FittedTable":
    """Lay out the ensemble's errors on the test split, next to those of simpler predictors."""
    title = "Ensemble on the test split (never seen before)"
    drop = ("mean", "elements", "local")
    table = make_table(title, drop=drop)
    table.add_texts("head")
    table.add_numbers("unit", "ensemble MAE", "best single", "local", "elements", "mean", "in 90 %")
    for name, head in heads.items():
        regressions = (head.get("descriptor_mae"), head.get("elements_mae"))
        baselines = (*regressions, head["mean_baseline_mae"])
        errors = (head["test_mae"], head["single_mae"], *baselines)
        inside = head["coverage90"]
        table.add_row(
            name.replace("_", " "),
            head["unit"],
            *map(_number, errors),
            "-" if inside is None else f"{100 * inside:.0f} %",
        )
    norms = ((name, head, head.get("test_norm_error")) for name, head in heads.items())
    table.caption = "\n".join(
        f"{name.replace('_', ' ')}: RMSE of a component {_number(head['test_rmse'])}, "
        f"mean norm of the error {fixed(norm)} {head['unit']}"
        for name, head, norm in norms
        if norm is not None
    )
    return table


_SIGNS = {"good": ("+", "green"), "note": ("-", "yellow"), "warning": ("!", "bold red")}


def print_verdict(verdict: Sequence["VerdictSentence"]) -> None:
    """Print the sentences of a verdict: first warnings (!), then limits (-), then good news (+)."""
    from rich.table import Table
    from rich.text import Text

    if not verdict:
        return
    table = Table(
        "", "", title="Verdict", title_justify="left", box=None, show_header=False, pad_edge=False
    )
    for each in sorted(verdict, key=lambda each: -list(_SIGNS).index(each["level"])):
        sign, style = _SIGNS[each["level"]]
        table.add_row(Text(sign, style=style), Text(each["sentence"]))
    console().print(table)
