"""Four PNG figures of each head of an evaluation, and ``evaluation.json``.

Shapes: R rows, w components, n = R w values.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydragnn_hpo.ensemble import Evaluation, HeadEvaluation, compute_curves, flatten_values
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.report.charts import with_unit
from hydragnn_hpo.report.parity import POINTS, draw_intervals
from hydragnn_hpo.report.style import (
    COLOURS,
    FAINT,
    INK,
    make_figure,
    set_title,
    tidy_axis,
    write_note,
    write_png,
)
from hydragnn_hpo.report.test_predictions import sample_evenly

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 4.6
"""Width and height of a picture, in inches."""


def write_evaluation(folder: Path, done: Evaluation, plain: dict[str, Any]) -> list[Path]:
    """Write ``evaluation.json``, and four PNG files for each head.

    Args:
        folder: output folder; created if it does not exist.
        done: the evaluation.
        plain: content of ``evaluation.json``: the evaluation and further entries as plain data.

    Returns:
        Paths of the files written.
    """
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "evaluation.json"]
    write_text(files[0], json.dumps(plain, indent=1, allow_nan=False) + "\n")
    for name, head in done.heads.items():
        curves = compute_curves(head.predicted, head.entry.calibration)
        for kind, draw in FIGURES.items():
            figure = make_figure(SIZE, SIZE)
            axis = figure.subplots()
            draw(axis, head, curves)
            set_title(axis, f"{name.replace('_', ' ')}: {kind.replace('_', ' ')}")
            tidy_axis(axis)
            axis.tick_params(which="minor", labelsize=8)
            files.append(folder / f"{name}_{kind}.png")
            write_png(figure, files[-1])
    return files


Curves = dict[str, dict[str, list[float]]]
"""Points of the calibration curves of a head, as ``compute_curves`` returns them."""


def draw_parity(axis: "Axes", head: HeadEvaluation, curves: Curves) -> None:
    """Draw predicted against reference values, with 90 % intervals.

    Args:
        axis: the panel.
        head: the evaluated head.
        curves: unused; all functions of ``FIGURES`` take the same arguments.
    """
    labelled, known = head.predicted, head.entry.calibration
    half = known.half_width(labelled.sigma(known), 0.9, labelled.stratum)
    truth, bars = flatten_values(labelled.truth, half)
    draw_intervals(axis, truth, labelled.mean.ravel(), bars, unit=head.entry.unit)
    inside = 100 * head.figures["coverage90"]
    write_note(axis, f"MAE {head.figures['mae']:.3g}\n{inside:.1f} % inside")


def draw_calibration(axis: "Axes", head: HeadEvaluation, curves: Curves) -> None:
    """Draw the observed against the nominal coverage of intervals.

    Args:
        axis: the panel.
        head: the evaluated head.
        curves: calibration curves of the head.
    """
    gaussian, conformal = curves["calibration"], curves["conformal"]
    figures = head.figures
    lines = (
        ("conformal", conformal["level"], conformal["covered"], figures["area_conformal"]),
        ("Gaussian, calibrated", gaussian["level"], gaussian["gaussian"], figures["area"]),
        ("Gaussian, raw spread", gaussian["level"], gaussian["raw"], figures["raw_area"]),
    )
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.9, zorder=0)
    for (label, level, covered, area), colour in zip(lines, COLOURS, strict=False):
        axis.plot(
            [0, *level, 1], [0, *covered, 1], color=colour, marker="o", markersize=2.5,
            linewidth=1.4, label=f"{label}: area {area:.3f}",
        )  # fmt: skip
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set_xlabel("share that the interval promises")
    axis.set_ylabel("share found inside")
    axis.legend(loc="lower right", fontsize=8, frameon=False)


def draw_error(axis: "Axes", head: HeadEvaluation, curves: Curves) -> None:
    """Draw |error| against sigma, and the root mean square error in bins of sigma.

    Args:
        axis: the panel.
        head: the evaluated head.
        curves: calibration curves of the head.
    """
    error, sigma = flatten_values(
        head.predicted.residual, head.predicted.sigma(head.entry.calibration)
    )
    error, bins = np.abs(error), curves["bins"]
    smallest = max(1e-3 * float(np.quantile(error, 0.99)), np.finfo(float).tiny)
    shown = sample_evenly(sigma, 2 * POINTS)
    axis.scatter(
        sigma[shown], np.maximum(error[shown], smallest), s=6, color=FAINT, alpha=0.35, linewidths=0
    )
    ends = np.array([sigma.min(), sigma.max()]) * np.array([0.9, 1.1])
    axis.plot(ends, ends, color=INK, linewidth=0.9, label="error = sigma")
    axis.plot(
        bins["sigma"], bins["rms_error"], color=COLOURS[1], marker="o", linewidth=1.6,
        label=f"root mean square error of {len(bins['sigma'])} bins",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", ylim=(0.7 * smallest, None))
    axis.set_xlabel(with_unit("sigma, calibrated", head.entry.unit))
    axis.set_ylabel(with_unit("|error|", head.entry.unit))
    axis.legend(loc="lower right", fontsize=8, frameon=False)
    write_note(axis, f"Spearman {head.figures['spearman']:.2f}\nENCE {head.figures['ence']:.2f}")


def draw_sparsification(axis: "Axes", head: HeadEvaluation, curves: Curves) -> None:
    """Draw the relative MAE of the remaining values when the least certain are removed.

    Args:
        axis: the panel.
        head: the evaluated head.
        curves: calibration curves of the head.
    """
    curve = curves["sparsification"]
    taken = 100 * np.array(curve["taken"])
    axis.plot(
        taken,
        curve["sigma"],
        color=COLOURS[0],
        linewidth=1.6,
        label=f"by sigma: AUSE {head.figures['ause']:.3f}",
    )
    axis.plot(taken, curve["oracle"], color=INK, linewidth=1.0, label="by the error (oracle)")
    axis.axhline(1.0, color=FAINT, linewidth=1.0, linestyle="--", label="in any order")
    axis.fill_between(taken, curve["oracle"], curve["sigma"], color=COLOURS[0], alpha=0.12)
    axis.set(xlim=(0, 100), ylim=(0, None))
    axis.set_xlabel("values taken away, least certain first (%)")
    axis.set_ylabel("MAE of the rest, relative")
    axis.legend(loc="best", fontsize=8, frameon=False)


FIGURES = {
    "parity": draw_parity,
    "calibration": draw_calibration,
    "error_over_sigma": draw_error,
    "sparsification": draw_sparsification,
}
"""Drawing function of each figure, by the end of the file's name."""
