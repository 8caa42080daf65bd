"""Figure of a run as a PNG: the ensemble on the test split, and the leaderboard."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.file_records import EnsembleTable, HeadScores, RankedTrial
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import format_number, format_percent, with_unit
from hydragnn_hpo.report.facts import read_ensemble_table
from hydragnn_hpo.report.style import (
    ALARM,
    COLOURS,
    INK,
    make_figure,
    set_title,
    tidy_axis,
    write_note,
    write_png,
)
from hydragnn_hpo.report.test_predictions import load_predictions, parity_range, sample_evenly

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1500
"""Maximum number of points in a parity panel."""
BARS = 20
"""Number of best trials shown; members beyond them are added."""


def draw_parity(run: Path, out: Path) -> None:
    """Draw a panel for each head and the leaderboard into one PNG.

    Numbers are drawn against references with 90 % intervals, all components of vectors, tensors
    and spectra in one panel; of classes, how often the most probable one is right.

    Args:
        run: the run directory; its ensemble has been built.
        out: PNG file to write.

    Raises:
        RunError: there is no ensemble yet, or its report is damaged.
    """
    arrays = load_predictions(RunDir(run))
    table = read_ensemble_table(RunDir(run))
    if table is None:
        raise RunError(f"{run}: has no ensemble yet: run 'hydragnn-hpo ensemble build {run}'.")
    heads = table["heads"]
    places = len(heads) + 1
    columns = 2 if places == 4 else min(places, 3)
    lines = -(-places // columns)
    figure = make_figure(4.3 * columns, 4.3 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis in axes[places:]:
        axis.set_axis_off()
    for axis, name in zip(axes, heads, strict=False):
        bins = table["curves"].get(name, {}).get("reliability")
        if bins is not None:
            draw_reliability(axis, bins)
        else:
            parts = (arrays[f"{name}/{part}"] for part in ("truth", "mean", "half90"))
            values = (part.ravel() for part in np.broadcast_arrays(*parts))
            draw_intervals(axis, *values, unit=heads[name]["unit"])
        set_title(axis, name.replace("_", " "))
        write_note(axis, _errors(heads[name], bins is not None))
        tidy_axis(axis)
    draw_leaderboard(axes[places - 1], table["leaderboard"], find_members(table))
    write_png(figure, out)


def find_members(table: EnsembleTable) -> set[str]:
    """Return the names of the members, and of the trials whose fits on folds are members."""
    members = {member["trial"] for member in table["members"]}
    return members.union(*(of_head["members"] for of_head in table["diversity"].values()))


def _errors(scores: HeadScores, is_class: bool) -> str:
    label, what = ("log-loss", "sets") if is_class else ("MAE", "bars")
    blank = " " * (15 if is_class else 9)  # as wide as the label
    return (
        f"{label}  {format_number(scores['test_mae'])} ensemble\n"
        f"{blank}{format_number(scores['single_mae'])} best single\n"
        f"{blank}{format_number(scores['mean_baseline_mae'])} training mean\n"
        f"90 % {what} hold {format_percent(scores['coverage90'])}"
    )


def draw_reliability(axis: "Axes", bins: Mapping[str, Sequence[float | None]]) -> None:
    """Draw how often the most probable class is right against its probability.

    Args:
        axis: the panel.
        bins: mean ``confidence`` and share ``right`` of test values, by bin.
    """
    axis.plot((0.0, 1.0), (0.0, 1.0), color=INK, linewidth=0.9, zorder=0)
    confidence, right = (np.array(bins[key], dtype=np.float64) for key in ("confidence", "right"))
    axis.plot(confidence, right, "o-", color=COLOURS[0], markersize=5)
    axis.set(xlim=(0.0, 1.02), ylim=(0.0, 1.02), aspect="equal")
    axis.set_xlabel("probability of the most probable class")
    axis.set_ylabel("share that is right")


def draw_intervals(
    axis: "Axes", truth: np.ndarray, mean: np.ndarray, half: np.ndarray, *, unit: str
) -> None:
    """Draw predictions against references with 90 % intervals; those that miss are red.

    Args:
        axis: the panel.
        truth: references, [n].
        mean: predictions, [n].
        half: half of each interval, [n].
        unit: unit of all three.
    """
    outside = np.abs(truth - mean) > half
    shown = sample_evenly(truth, POINTS)
    # intervals are thin and faint, so that the points stay visible where hundreds overlap
    faint = float(np.clip(5.0 / np.sqrt(len(shown)), 0.08, 0.4))
    for colour, rows in ((COLOURS[0], shown[~outside[shown]]), (ALARM, shown[outside[shown]])):
        axis.vlines(
            truth[rows], mean[rows] - half[rows], mean[rows] + half[rows], colors=colour,
            linewidths=0.6, alpha=faint,
        )  # fmt: skip
        axis.scatter(truth[rows], mean[rows], s=10, color=colour, linewidths=0, alpha=0.8)
    ends = parity_range(truth[shown], mean[shown], half[shown])
    axis.plot(ends, ends, color=INK, linewidth=0.9, zorder=0)
    axis.set(xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel(with_unit("reference", unit))
    axis.set_ylabel(with_unit("predicted, 90 % interval", unit))


def draw_leaderboard(axis: "Axes", rows: Sequence[RankedTrial], members: Collection[str]) -> None:
    """Draw the validation objective of the best trials, members marked by a ring.

    Args:
        axis: the panel.
        rows: trials with a result, best first.
        members: names of the trials to mark.
    """
    scored = [row for row in rows if row["objective"] is not None]
    if not scored:
        axis.set_axis_off()
        return
    shown = scored[:BARS] + [row for row in scored[BARS:] if row["trial"] in members]
    convs = sorted({row["conv"] for row in scored})
    _draw_trials(axis, shown, members, convs)
    names = [row["trial"] if row["status"] == "completed" else f"{row['trial']}*" for row in shown]
    axis.set_yticks(range(len(shown)), names, fontsize=7)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    starred = any(row["status"] != "completed" for row in shown)
    note = "\n* not trained to the full budget" if starred else ""
    axis.set_xlabel(f"validation objective (MAE / standard deviation){note}")
    count = f"best {len(shown)} of {len(rows)} trials" if len(shown) < len(rows) else "trials"
    axis.set_ylabel(count)
    axis.legend(
        loc="lower right", ncols=len(convs) + 1, fontsize=8, frameon=False, columnspacing=1.0,
        handlelength=1.2, bbox_to_anchor=(1.02, 1.0), borderaxespad=0.3,
    )  # fmt: skip
    tidy_axis(axis)


def _draw_trials(
    axis: "Axes", rows: Sequence[RankedTrial], members: Collection[str], convs: Sequence[str]
) -> None:
    """Draw a dot for each trial, with a ring for a member; a triangle points to one further right.

    Args:
        axis: the panel.
        rows: the trials, each with an objective, from top to bottom.
        members: names of the trials to mark.
        convs: convs of all trials, in the order of their colours.
    """
    places = np.arange(len(rows))
    values = np.array([row["objective"] for row in rows], dtype=np.float64)
    # a single very bad trial must not compress the places of all others
    low = float(values.min())
    high = float(min(values.max(), 3.0 * np.median(values)))
    room = 0.06 * (high - low) or 0.05 * abs(low) or 0.1
    far = values > high
    at = np.minimum(values, high)
    for place, conv in enumerate(convs):
        colour = COLOURS[place % len(COLOURS)]
        of_conv = np.array([r["conv"] == conv for r in rows])
        axis.scatter(at[of_conv & ~far], places[of_conv & ~far], s=42, color=colour, label=conv)
        axis.scatter(at[of_conv & far], places[of_conv & far], s=42, color=colour, marker=">")
    ringed = np.array([row["trial"] in members for row in rows])
    axis.scatter(
        at[ringed], places[ringed], s=110, facecolors="none", edgecolors=INK, label="member"
    )
    axis.set_xlim(low - room, high + room)
