"""A parity picture of each head and CSV tables of an evaluation, and ``evaluation.json``.

Shapes: R rows, w components, n = R w values.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.ensemble_build import Evaluation, HeadEvaluation
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.report.export_formats import format_csv_cell
from hydragnn_hpo.report.page_blocks import Cell
from hydragnn_hpo.report.parity import draw_intervals
from hydragnn_hpo.report.sections.structures import worst_cells
from hydragnn_hpo.report.structure_errors import LabelledHead, PartError, StructureErrors
from hydragnn_hpo.report.style import make_figure, set_title, tidy_axis, write_note, write_png
from hydragnn_hpo.uncertainty import flatten_values

SIZE = 4.6
"""Width and height of a picture, in inches."""


def write_evaluation(folder: Path, done: Evaluation, plain: dict[str, Any]) -> list[Path]:
    """Write ``evaluation.json``, a picture of each head that has numbers, and tables of the errors.

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
        if head.entry.shape != "class":
            files.append(folder / f"{name}_parity.png")
            draw_parity(name, head, files[-1])
    errors = structure_errors_of(done)
    for kind, rows in list_error_rows(errors).items():
        files.append(folder / f"{kind}.csv")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(format_csv_cell, row) for row in rows)
        write_text(files[-1], text.getvalue())
    return files


# -- errors by structure -------------------------------------------------------------------

WORST = 100
"""Number of worst predictions of each head in their table."""


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


def draw_parity(name: str, head: HeadEvaluation, out: Path) -> None:
    """Draw predicted against reference values, with 90 % intervals.

    Args:
        name: name of the head.
        head: the evaluated head.
        out: PNG file to write.
    """
    figure = make_figure(SIZE, SIZE)
    axis = figure.subplots()
    labelled, known = head.predicted, head.entry.calibration
    half = known.half_width(labelled.sigma(known), 0.9, labelled.stratum)
    truth, bars = flatten_values(labelled.truth, half)
    draw_intervals(axis, truth, labelled.mean.ravel(), bars, unit=head.entry.shown_unit)
    inside = 100 * head.figures["coverage90"]
    write_note(axis, f"MAE {head.figures['mae']:.3g}\n{inside:.1f} % inside")
    set_title(axis, f"{name.replace('_', ' ')}: parity")
    tidy_axis(axis)
    axis.tick_params(which="minor", labelsize=8)
    write_png(figure, out)
