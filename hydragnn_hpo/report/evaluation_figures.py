"""PNG figures and CSV tables of an evaluation, and ``evaluation.json``.

Shapes: R rows, w components, n = R w values.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo.ensemble import Evaluation, HeadEvaluation, compute_curves, flatten_values
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.report.charts import readable_name, with_unit
from hydragnn_hpo.report.export_formats import format_csv_cell
from hydragnn_hpo.report.page_blocks import Cell
from hydragnn_hpo.report.parity import POINTS, draw_intervals
from hydragnn_hpo.report.periodic_table import COLUMNS, list_places
from hydragnn_hpo.report.sections.structures import format_rank, worst_cells
from hydragnn_hpo.report.structure_errors import LabelledHead, PartError, StructureErrors
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
    """Write ``evaluation.json``, up to six PNG files for each head, and CSV tables of the errors.

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
            if draw is draw_distance and head.by_distance is None:
                continue
            if head.entry.shape == "class" and draw is not draw_distance:
                continue  # the others compare numbers with intervals
            figure = make_figure(SIZE, SIZE)
            axis = figure.subplots()
            draw(axis, head, curves)
            set_title(axis, f"{name.replace('_', ' ')}: {kind.replace('_', ' ')}")
            tidy_axis(axis)
            axis.tick_params(which="minor", labelsize=8)
            files.append(folder / f"{name}_{kind}.png")
            write_png(figure, files[-1])
    errors = structure_errors_of(done)
    for name in done.heads:
        files.append(folder / f"{name}_errors.png")
        draw_errors(errors, name, files[-1])
    for kind, rows in list_error_rows(errors).items():
        files.append(folder / f"{kind}.csv")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(format_csv_cell, row) for row in rows)
        write_text(files[-1], text.getvalue())
    return files


# -- errors by structure -------------------------------------------------------------------

WORST = 100
"""Number of worst predictions of each head in their table."""

BARS = 15
"""Maximum number of bars in a panel."""


def structure_errors_of(done: Evaluation) -> StructureErrors:
    """Return the predictions of an evaluation beside its structures."""
    heads = {}
    for name, head in done.heads.items():
        labelled, known = head.predicted, head.entry.calibration
        half = known.half_width(labelled.sigma(known), 0.9, labelled.stratum)
        heads[name] = LabelledHead(
            unit=head.entry.shown_unit,
            is_node=head.entry.level == "node",
            truth=labelled.truth,
            mean=labelled.mean,
            half=half,
            graph=head.graph,
            atom=head.atom,
            distance=head.distance if head.by_distance else None,
        )
    return StructureErrors(done.compositions, done.split, heads, done.trust)


def list_error_rows(errors: StructureErrors) -> dict[str, list[Sequence[Cell]]]:
    """Return the tables of errors.

    Returns:
        Rows by name of the table, titles first: the worst predictions of each head, and errors by
        element, size, composition, group and, where it is known, distance to the training set.
    """
    columns = ["structure", "formula", "atom", "split", "truth", "mean", "half90", "error"]
    columns += ["distance", "trust"]
    worst: list[Sequence[Cell]] = [("head", "unit", "rank", *columns)]
    for name, head in errors.heads.items():
        for rank, row in enumerate(errors.worst(name, WORST), start=1):
            cells = worst_cells(errors, name, row)
            worst.append((name, head.unit, rank, *(cells[column] for column in columns)))
    tables = {"worst_predictions": worst}
    parts: dict[str, Callable[[str], Iterable[PartError]]] = {
        "element": lambda name: errors.by_element(name).values(),
        "size": errors.by_size,
        "composition": errors.by_formula,
        "group": errors.by_group,
    }
    if any(head.distance is not None for head in errors.heads.values()):
        parts["distance"] = errors.by_distance
    for kind, parts_of in parts.items():
        rows: list[Sequence[Cell]] = [
            ("head", "unit", kind, "mae", "share_of_error", "structures", "rows")
        ]
        for name, head in errors.heads.items():
            rows += [
                (name, head.unit, p.label, p.mae, p.share, p.structures, p.rows)
                for p in parts_of(name)
            ]
        tables[f"errors_by_{kind}"] = rows
    return tables


def draw_errors(errors: StructureErrors, name: str, out: Path) -> None:
    """Draw the errors of one head by element, size and group into one PNG.

    Args:
        errors: structures and predictions.
        name: name of the head.
        out: PNG file to write.
    """
    unit = errors.heads[name].unit
    elements = errors.by_element(name)
    places = list_places(elements)
    rows = 1 + max(row for row, _, _ in places)
    figure = make_figure(9.0, 3.2 + 0.5 * rows)
    grid = figure.add_gridspec(2, 2, height_ratios=[0.5 * rows + 0.4, 3.0])
    table = figure.add_subplot(grid[0, :])
    _draw_elements(table, places, {z: part.mae for z, part in elements.items()}, unit)
    set_title(table, f"{readable_name(name)}: error by element")
    for column, title, parts in (
        (0, "number of atoms", errors.by_size(name)),
        (1, "worst groups, by share of error", errors.by_group(name)[:BARS]),
    ):
        axis, labels = figure.add_subplot(grid[1, column]), [part.label for part in parts]
        axis.bar(range(len(parts)), [part.mae for part in parts], color=COLOURS[0])
        axis.set_xticks(range(len(parts)), labels, rotation=60 * column, fontsize=7)
        axis.set_xlabel(title)
        axis.set_ylabel(with_unit("MAE", unit))
        tidy_axis(axis)
    write_png(figure, out)


def _draw_elements(
    axis: "Axes", places: list[tuple[int, int, int]], values: dict[int, float], unit: str
) -> None:
    """Draw values in the periodic table.

    Args:
        axis: the panel.
        places: row, column and atomic number of each element.
        values: values by atomic number.
        unit: unit of the values.
    """
    table = np.full((1 + max(row for row, _, _ in places), COLUMNS), np.nan)
    for row, column, number in places:
        value = values.get(number)
        table[row, column] = np.nan if value is None else value
        text = "" if value is None else f"\n{value:.3g}"
        dark = value is not None and value > 0.7 * max(values.values())
        ink = FAINT if value is None else "white" if dark else INK
        axis.text(
            column,
            row,
            chemical_symbols[number] + text,
            color=ink,
            fontsize=6.5,
            ha="center",
            va="center",
        )
    picture = axis.imshow(table, cmap="Oranges", vmin=0.0, aspect="auto", alpha=0.85)
    axis.figure.colorbar(picture, ax=axis, label=with_unit("MAE", unit), pad=0.01)
    axis.set_axis_off()


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
    draw_intervals(axis, truth, labelled.mean.ravel(), bars, unit=head.entry.shown_unit)
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
    axis.set_xlabel(with_unit("sigma, calibrated", head.entry.shown_unit))
    axis.set_ylabel(with_unit("|error|", head.entry.shown_unit))
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


def draw_distance(axis: "Axes", head: HeadEvaluation, curves: Curves) -> None:
    """Draw |error| against the distance to the training set, and the mean error in bins of it.

    Args:
        axis: the panel.
        head: the evaluated head, whose distances are known.
        curves: unused; all functions of ``FIGURES`` take the same arguments.
    """
    distance, figures = head.distance, head.by_distance
    assert figures is not None
    error = np.abs(head.predicted.residual).mean(axis=1)
    smallest = max(1e-3 * float(np.quantile(error, 0.99)), np.finfo(float).tiny)
    shown = sample_evenly(distance, 2 * POINTS)
    raised = np.maximum(error[shown], smallest)
    axis.scatter(distance[shown], raised, s=6, color=FAINT, alpha=0.35, linewidths=0)
    axis.plot(
        figures["distance"], figures["mae"], color=COLOURS[1], marker="o", linewidth=1.6,
        label=f"mean of {len(figures['mae'])} bins",
    )  # fmt: skip
    axis.set(yscale="log", ylim=(0.7 * smallest, None))
    axis.set_xlabel("distance to the training set (1 is usual)")
    axis.set_ylabel(with_unit("|error|", head.entry.shown_unit))
    axis.legend(loc="lower right", fontsize=8, frameon=False)
    write_note(axis, f"Spearman {format_rank(figures)}")


FIGURES = {
    "parity": draw_parity,
    "calibration": draw_calibration,
    "error_over_sigma": draw_error,
    "sparsification": draw_sparsification,
    "error_over_distance": draw_distance,
}
"""Drawing function of each figure, by the end of the file's name."""
