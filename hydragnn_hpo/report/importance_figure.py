"""Figure of importances as a PNG: shares by three methods and all SHAP values of each target."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hydragnn_hpo.report.importance import Importance, beeswarm_offsets
from hydragnn_hpo.report.style import (
    COLOURS,
    FAINT,
    INK,
    make_figure,
    set_title,
    tidy_axis,
    write_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 12
"""Parameters of a panel, the most important ones."""

ROW_INCHES, HEAD_INCHES = 0.3, 1.2

METHODS = {"shap_share": "SHAP", "fanova": "fANOVA", "ped_anova": "PED-ANOVA"}


def draw_importance(found: Sequence[Importance], out: Path) -> None:
    """Draw two panels for each target: bars, and a point for each explained trial."""
    rows = [min(SHOWN, max(2, len(each.effects))) for each in found]
    heights = [HEAD_INCHES + ROW_INCHES * count for count in rows]
    figure = make_figure(11.0, sum(heights), pad=0.08)
    grid = figure.add_gridspec(len(found), 2, height_ratios=heights)
    for place, each in enumerate(found):
        bars, swarm = figure.add_subplot(grid[place, 0]), figure.add_subplot(grid[place, 1])
        heading = f"{each.target.label}: {each.trials:,} trials"
        set_title(
            bars, heading + ("" if each.skill is None else f", out-of-bag R2 {each.skill:.2f}")
        )
        if not each.effects:
            _write_note(bars, each.doubt or "")
            swarm.axis("off")
            continue
        _bars(bars, each)
        _swarm(swarm, each)
        if each.doubt:
            set_title(swarm, "not to be trusted")
            swarm.title.set_color(FAINT)
    write_png(figure, out)


def _write_note(axis: "Axes", text: str) -> None:
    axis.axis("off")
    axis.text(0.0, 0.8, text, transform=axis.transAxes, color=FAINT, fontsize=9, va="top")


def _bars(axis: "Axes", found: Importance) -> None:
    """Draw a bar for each parameter and method; pale where they are not to be trusted."""
    names = list(found.effects)[:SHOWN]
    shown = dict(METHODS)
    if not found.has_ped_anova:
        del shown["ped_anova"]
    for place, (key, method) in enumerate(shown.items()):
        at = np.arange(len(names)) + 0.26 * (place - 1)
        shares = [100.0 * (getattr(found.effects[name], key) or 0.0) for name in names]
        pale = 0.25 if found.doubt else 1.0
        axis.barh(at, shares, 0.24, color=COLOURS[place], alpha=pale, label=method)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("share (%)", fontsize=8, color=INK)
    axis.legend(fontsize=7, frameon=False, loc="lower right")
    tidy_axis(axis)
    axis.tick_params(axis="y", labelcolor=FAINT if found.doubt else INK)


def _swarm(axis: "Axes", found: Importance) -> None:
    """Draw the SHAP values of the explained trials, coloured by where their value stands."""
    names = list(found.effects)[:SHOWN]
    known = list(found.parameters)
    pale = 0.25 if found.doubt else 0.9
    for row, name in enumerate(names):
        place = known.index(name)
        effects, at = found.shap[:, place], found.positions[:, place]
        heights = row + beeswarm_offsets(effects)
        off = np.isnan(at)
        axis.scatter(effects[off], heights[off], s=6, color="#BBBBBB", alpha=pale, linewidths=0)
        drawn = axis.scatter(
            effects[~off],
            heights[~off],
            s=6,
            c=at[~off],
            cmap="viridis",
            vmin=0.0,
            vmax=1.0,
            alpha=pale,
            linewidths=0,
        )
    bar = axis.figure.colorbar(drawn, ax=axis, ticks=[0.0, 1.0], pad=0.01, aspect=30)
    bar.ax.set_yticklabels(["low,\nfirst", "high,\nlast"], fontsize=7)
    bar.outline.set_visible(False)
    axis.axvline(0.0, color=FAINT, linewidth=0.8)
    axis.set_yticks(range(len(names)), [""] * len(names))
    axis.set_ylim(len(names) - 0.4, -0.6)
    unit = f" ({found.target.unit})" if found.target.unit else ""
    axis.set_xlabel(f"SHAP value{unit}: to the left is less", fontsize=8, color=INK)
    tidy_axis(axis)
