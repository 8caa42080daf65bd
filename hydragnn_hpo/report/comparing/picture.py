"""Campaigns side by side as one PNG: best so far against host-seconds."""

from pathlib import Path

from hydragnn_hpo.report.comparing.comparison import Comparison
from hydragnn_hpo.report.comparing.sections import steps
from hydragnn_hpo.report.style import (
    ALARM,
    COLOURS,
    FAINT,
    make_figure,
    set_title,
    tidy_axis,
    write_png,
)

PANELS = 6
"""Most panels: the first quantities."""

_ACROSS = 3


def draw_comparison(found: Comparison, out: Path) -> None:
    """Draw a panel for each quantity that the runs may be compared by.

    Args:
        found: the comparison; it has a quantity at least.
        out: the PNG to write, whole.
    """
    shown = found.quantities[:PANELS]
    across = 2 if len(shown) == 4 else min(_ACROSS, len(shown))
    down = -(-len(shown) // across)
    figure = make_figure(4.2 * across + 0.6, 3.2 * down + 0.6)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis, quantity in zip(axes, shown, strict=False):
        for place, run in enumerate(found.runs):
            times, values = steps(run, quantity.key)
            colour = COLOURS[place % len(COLOURS)]
            dash = ("-", "--", ":")[place // len(COLOURS) % 3]
            axis.step(times, values, where="post", color=colour, linestyle=dash, label=run.label)
        for level in found.levels:
            if level.quantity == quantity:
                axis.axhline(level.level, color=FAINT, linewidth=0.7, linestyle=":")
        unit = f" [{quantity.unit}]" if quantity.unit else ""
        axis.set(xscale="log", xlabel="host-seconds", ylabel=f"best so far{unit}")
        if axis.dataLim.y0 > 0.0:
            axis.set_yscale("log")
        set_title(axis, quantity.label.replace("_", " "))
        tidy_axis(axis)
    axes[0].legend(frameon=False, fontsize=8)
    if not found.same_data:
        figure.suptitle(found.warnings[0], color=ALARM, fontsize=8, wrap=True)
    write_png(figure, out)
