"""Tables on the terminal."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hydragnn_hpo.campaign import Leaderboard, LeaderboardRow
    from hydragnn_hpo.training import IoBenchmark

    Cell = Callable[[LeaderboardRow], str]

PLAIN_WIDTH = 110
"""Columns of a table that goes to a file or a pipe."""

LEARNED = 0.95
"""Error over that of predicting the mean from which nothing counts as learned."""

MOST_KEYS = 6
"""Searched keys of a command that a table shows."""


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
    from rich.text import Text

    columns: list[tuple[str, Cell]] = [
        ("#", lambda row: str(row.rank or "-")),
        ("trial", lambda row: f"{row.trial}, reseed of {row.parent}" if row.parent else row.trial),
        *[(key.rpartition(".")[2], _value_of(key)) for key in _shown_keys(board)],
        ("epochs", lambda row: str(row.epochs)),
        ("ranks", lambda row: str(row.width or "-")),
        *_score_columns(board),
        *_error_columns(board),
        ("weight", _weight_in(members)) if members else ("status", _status),
    ]
    table = Table(title="Leaderboard (validation)", title_justify="left")
    for name, _ in columns:
        left = name in ("trial", "conv")
        table.add_column(name, justify="left" if left else "right", no_wrap=name == "trial")
    for row in board.rows:
        table.add_row(*[Text(text(row)) for _, text in columns])
    return table


def _shown_keys(board: "Leaderboard") -> list[str]:
    """Give the searched keys to show: the conv of our trainings, all keys of a command."""
    keys = list(dict.fromkeys(key for row in board.rows for key in row.values))
    ours = any(row.val_mae for row in board.rows) or "model.conv" in keys
    return ["model.conv"] if ours else keys[:MOST_KEYS]


def _value_of(key: str) -> "Cell":
    def text(row: "LeaderboardRow") -> str:
        value = row.values.get(key, "")
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return text


def _score_columns(board: "Leaderboard") -> "list[tuple[str, Cell]]":
    """Show the objective, or every goal and who is on their Pareto front."""
    counts = [len(row.score) for row in board.rows if isinstance(row.score, tuple)]
    if not counts:
        return [("objective", lambda row: _number(row.objective))]

    def goal(place: int) -> "Cell":
        return lambda row: _number(row.score[place] if isinstance(row.score, tuple) else None)

    goals = [(f"goal {place + 1}", goal(place)) for place in range(max(counts))]
    return [*goals, ("front", lambda row: "yes" if row.front else "")]


def _error_columns(board: "Leaderboard") -> "list[tuple[str, Cell]]":
    def error(head: str) -> "Cell":
        return lambda row: _number(row.val_mae.get(head))

    heads = sorted({head for row in board.rows for head in row.val_mae})
    units = board.units
    return [(f"{_spaced(head)} MAE \\[{units.get(head, '')}]", error(head)) for head in heads]


def _weight_in(members: Mapping[str, float]) -> "Cell":
    return lambda row: f"{members[row.trial]:.2f}" if members.get(row.trial) else ""


def _status(row: "LeaderboardRow") -> str:
    return row.reason or row.status


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


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


def not_learned(heads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Name the heads whose errors are those of predicting the mean."""
    return [
        f"{name} was not learned: the ensemble's error is {head['ratio_to_mean']:.2f} of that of "
        "predicting the mean. Is it a property of the structure alone?"
        for name, head in heads.items()
        if head["ratio_to_mean"] > LEARNED
    ]


def feeding_table(found: "IoBenchmark") -> "Table":
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
