"""Colours, titles, axes and PNG writing of all matplotlib figures."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn_hpo.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito (2008): distinguishable with any colour vision."""

INK, FAINT, ALARM = "#222222", "#8A8A8A", "#B00020"


def make_figure(width: float, height: float, *, pad: float = 0.04) -> "Figure":
    """Return an empty figure that needs no display.

    Args:
        width: width in inches.
        height: height in inches.
        pad: space around each panel in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def write_png(figure: "Figure", out: Path) -> None:
    """Write a PNG atomically; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    write_bytes(out, buffer.getvalue())


def set_title(axis: "Axes", text: str) -> None:
    """Put a bold title at the left above a panel."""
    axis.set_title(text, loc="left", fontweight="bold", fontsize=11)


def tidy_axis(axis: "Axes") -> None:
    """Remove the upper and right frame, and draw a pale grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8, color=FAINT)
    axis.grid(color="#EEEEEE", linewidth=0.6)
    axis.set_axisbelow(True)


def write_note(axis: "Axes", text: str) -> None:
    """Write a few lines into the upper left corner of a panel."""
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2.0}
    axis.text(
        0.035, 0.965, text, fontsize=8, color=INK, va="top", bbox=box, transform=axis.transAxes
    )
