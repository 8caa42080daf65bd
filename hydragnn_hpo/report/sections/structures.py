"""Sections on structures: the worst predictions, and errors by element, size and composition."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo.file_records import DistanceFigures, TestTwins
from hydragnn_hpo.report.charts import (
    RISING,
    Layout,
    PlotlyValue,
    Trace,
    axes,
    format_number,
    format_percent,
    log_axis,
    readable_name,
    scatter,
    titled_axis,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Cell,
    Data,
    Figure,
    Fold,
    Row,
    Section,
    Table,
    Text,
    make_table,
)
from hydragnn_hpo.report.periodic_table import COLUMNS, list_places
from hydragnn_hpo.report.structure_errors import LabelledHead, PartError, StructureErrors
from hydragnn_hpo.report.test_predictions import sample_evenly
from hydragnn_hpo.report.test_structures import choose_shown, pack_structures, read_columns

ROWS, GROUPS = 8, 8
"""Numbers of rows in the tables of the worst predictions and of the worst groups."""
HEADS = 12
"""Maximum number of heads; the tables of ``ensemble evaluate --out`` hold all."""
BARS = 12
"""Maximum number of compositions in the chart."""
LISTED = 100
"""Maximum number of compositions in the table."""

NO_DISTANCE = (
    "Errors by distance to the training set are left out: this ensemble was built before distances "
    "were kept. 'hydragnn-hpo ensemble build RUN' adds them."
)

POINTS = 1500
"""Maximum number of points of a head in the chart of distances."""
LEAST_DISTANCE = 0.01
"""Distance to which smaller ones are raised in the chart, whose axes are logarithmic."""


def make_worst(facts: Facts) -> Section | None:
    """List the worst predictions of each head; None without an ensemble or its structures."""
    errors = facts.structure_errors
    if errors is None:
        return None
    blocks: list[Block] = []
    for number, name in enumerate(list(errors.heads)[:HEADS]):
        tables = Row((_worst_table(errors, name), _group_table(errors, name)), leads=True)
        blocks.append(Fold(_head_title(errors, name), (tables,), is_open=number == 0))
    blocks += _near_twins(facts, errors)
    shown = choose_shown(errors)
    blocks += _viewer_data(facts, errors, shown)
    lead = (
        "Which test structures are predicted worst? A click on a structure, here or on a point of "
        "a chart, shows its atoms."
    )
    return Section("worst", "Worst predictions", lead, tuple(blocks))


def _head_title(errors: StructureErrors, name: str) -> str:
    """Return the head and the share of its error that its worst groups have."""
    groups = errors.by_group(name)
    few = max(1, min(3, len(groups) // 4))
    share = format_percent(sum(part.share for part in groups[:few]))
    what = "group has" if few == 1 else f"{few} groups have"
    return f"{readable_name(name)}: the worst {what} {share} of all error, of {len(groups)} groups"


def _worst_table(errors: StructureErrors, name: str) -> Table:
    head = errors.heads[name]
    unit = errors.heads[name].unit
    columns: dict[str, str | Sequence[str]] = {"rank": "#", "structure": "structure"}
    columns |= {"formula": "formula", **({"atom": "atom"} if head.is_node else {})}
    columns |= {"truth": ("reference", unit), "mean": ("predicted", unit)}
    columns |= {"half90": ("90 % +-", unit), "error": ("error", unit)}
    columns |= {"distance": "distance"} if head.distance is not None else {}
    columns |= {"trust": "trust"} if errors.trust else {}
    note = f"The {ROWS} largest errors of the {errors.split} split."
    rows = []
    for rank, row in enumerate(errors.worst(name, ROWS), start=1):
        cells = worst_cells(errors, name, row)
        short = {"rank": str(rank), "trust": _shorten_trust(str(cells["trust"]))}
        rows.append([(cells | short)[key] for key in columns])
    return make_table(f"rows.{name}", columns, rows, note)


def _shorten_trust(text: str) -> str:
    """Count the targets with a large spread in the reasons not to trust, if they are several."""
    reasons = text.split("; ")
    begin = "large spread of "
    others = [reason for reason in reasons if not reason.startswith(begin)]
    spread = len(reasons) - len(others)
    return "; ".join([*others, f"{begin}{spread} targets"]) if spread > 1 else text


def worst_cells(errors: StructureErrors, name: str, row: int) -> dict[str, Cell]:
    """Return everything that is known about one prediction.

    Args:
        errors: structures and predictions.
        name: name of the head.
        row: the row of the head.

    Returns:
        Cells by column.
    """
    head = errors.heads[name]
    known = errors.structures
    graph = int(head.graph[row])
    half = float(head.half[row].max())
    truth, mean = head.truth[row], head.mean[row]
    return {
        "structure": known.names[graph],
        "formula": known.formulas[graph],
        "atom": errors.atom_label(graph, int(head.atom[row])) if head.is_node else None,
        "split": errors.split,
        "truth": _components(truth),
        "mean": _components(mean),
        "half90": half,
        "error": float(head.error[row]),
        "distance": None if head.distance is None else float(head.distance[row]),
        "trust": readable_name(errors.trust[graph]) if errors.trust else None,
    }


def _components(values: np.ndarray) -> Cell:
    if len(values) == 1:
        return float(values[0])
    return ", ".join(f"{value:.3g}" for value in values.tolist())


def _group_table(errors: StructureErrors, name: str) -> Table:
    parts = errors.by_group(name)
    columns = {
        "group": "worst groups",
        "share": ("share of error", "%"),
        "mae": ("MAE", errors.heads[name].unit),
        "structures": "count",
    }
    rows = [(part.label, part.share, part.mae, part.structures) for part in parts[:GROUPS]]
    note = "Structures of one group, such as geometries of one molecule, are not independent."
    return make_table(f"groups.{name}", columns, rows, note)


def _near_twins(facts: Facts, errors: StructureErrors) -> list[Block]:
    """Return the test structures that no member can tell from a near twin; none if not known."""
    assert facts.ensemble is not None
    if "test_twins" not in facts.ensemble:
        return []
    twins = facts.ensemble["test_twins"]
    if twins is None:
        return [Text("Near twins were not searched: 'hydragnn-hpo dataset check STORE' does.")]
    if not twins:
        return [
            Text("No test structure has a near twin with a target that geometry cannot explain.")
        ]
    columns = {
        "rank": "#",
        "structure": "test structure",
        "other": "near twin",
        "formula": "formula",
        "target": "target",
        "distance": ("apart", "angstrom"),
        "difference": "difference",
        "allowed": "geometry explains",
        "unit": "unit",
        "attributes": "told apart by",
        "error": "error",
    }
    rows = [_twin_cells(errors, rank, one) for rank, one in enumerate(twins, start=1)]
    note = (
        "Structures of one composition and close geometry whose target differs by more than "
        "geometry explains, the worst first. An attribute that tells them apart belongs into "
        "model.attributes. Where there is none, spin, charge or another condition may be missing "
        "from the card's [attributes]: without it a model has only their small difference in "
        "geometry."
    )
    title = f"Near twins of test structures that no member can tell apart: {len(twins)}"
    return [Fold(title, (make_table("twins", columns, rows, note),))]


def _twin_cells(errors: StructureErrors, rank: int, twins: TestTwins) -> list[Cell]:
    """Return the row of a pair.

    Args:
        errors: structures and predictions.
        rank: its place, from 1.
        twins: the pair.
    """
    head = errors.heads.get(twins["target"])
    error = None
    if head is not None and (rows := np.flatnonzero(head.graph == twins["test"])).size:
        error = float(head.error[rows].mean())
    return [
        str(rank),
        *twins["ids"],
        twins["formula"],
        readable_name(twins["target"]),
        twins["distance"],
        twins["difference"],
        twins["allowed"],
        twins["unit"],
        ", ".join(twins["told_apart_by"]) or None,
        error,
    ]


def _viewer_data(facts: Facts, errors: StructureErrors, shown: Sequence[int]) -> list[Block]:
    """Return the positions of the structures that can be viewed, and how many those are."""
    columns = read_columns(facts.run, facts.config, shown) if shown else None
    if columns is None:
        return [Text("No structure can be viewed: all are too large for the page.")]
    known = errors.structures
    content: dict[str, PlotlyValue] = {
        "names": [known.names[graph] for graph in shown],
        "formulas": [known.formulas[graph] for graph in shown],
        "facts": [_structure_facts(errors, graph) for graph in shown],
        **pack_structures(columns),
    }
    blocks: list[Block] = [Data("structures", content)]
    if len(shown) < len(known.names):
        text = (
            f"{len(shown):,} of {len(known.names):,} test structures can be viewed, those with the "
            "largest errors: the others would make this page too large."
        )
        blocks.append(Text(text))
    return blocks


def _structure_facts(errors: StructureErrors, graph: int) -> list[str]:
    """Return what is predicted for a structure, a line for each head."""
    lines = []
    for name, head in errors.heads.items():
        rows = np.flatnonzero(head.graph == graph)
        if not len(rows):
            continue
        label = readable_name(name)
        unit = "" if head.unit == "1" else f" {head.unit}"
        if head.is_node or head.truth.shape[1] > 1:
            error = format_number(float(head.error[rows].mean()))
            lines.append(f"{label}: mean error {error}{unit}")
            continue
        truth, mean, half = (float(part[rows[0], 0]) for part in (head.truth, head.mean, head.half))
        lines.append(f"{label}: predicted {mean:.4g} +- {half:.2g}, reference {truth:.4g}{unit}")
    return lines


# -- errors by element, size and composition -----------------------------------------------


def make_errors(facts: Facts) -> Section | None:
    """Show where errors are large; None without an ensemble or its structures."""
    errors = facts.structure_errors
    if errors is None:
        return None
    heads = dict(list(errors.heads.items())[:HEADS])
    sizes = {name: errors.by_size(name) for name in heads}
    formulas = {name: errors.by_formula(name) for name in heads}
    elements = {name: errors.by_element(name) for name in heads}
    by_element = {name: list(parts.values()) for name, parts in elements.items()}
    distances = {name: errors.by_distance(name) for name in heads}
    far = {name: figures for name in heads if (figures := errors.distance_figures(name))}
    charts = [_part_figure("sizes", "size", heads, sizes, "atoms")]
    tables = [
        _part_table("by_element", "element", heads, by_element),
        _part_table("by_size", "atoms", heads, sizes),
    ]
    if far:
        charts.append(_distance_figure(errors, far))
        tables.append(_part_table("by_distance", "distance", heads, distances))
    charts.append(_part_figure("formulas", "composition", heads, formulas, ""))
    tables.append(_part_table("by_formula", "composition", heads, formulas))
    blocks: list[Block] = [_element_figure(heads, elements), Row(tuple(charts))]
    blocks.append(Fold("The same as tables", tuple(tables)))
    if not far:
        blocks.append(Text(NO_DISTANCE))
    lead = (
        "For which elements, sizes and compositions of the test split are predictions wrong, and "
        "are they worse far from the training set?"
    )
    return Section("errors", "Where the errors are", lead, tuple(blocks))


def _menu(
    heads: Mapping[str, LabelledHead],
    *,
    before: int = 0,
    each: int = 1,
    axis: str = "",
    quantity: str = "MAE",
) -> list[Layout]:
    """Return a menu that shows the traces of one head at a time; none for one head.

    Args:
        heads: all heads, in the order of their traces.
        before: number of traces before these, which stay.
        each: number of traces of each head.
        axis: key of the axis whose title names the unit; empty if no axis does.
        quantity: what that title names.
    """
    traces: list[PlotlyValue] = list(range(before, before + each * len(heads)))
    buttons: list[Layout] = []
    for number, (name, head) in enumerate(heads.items()):
        visible: Layout = {"visible": [k == number for k in range(len(heads)) for _ in range(each)]}
        title: Layout = {f"{axis}.title.text": with_unit(quantity, head.unit)} if axis else {}
        args: list[PlotlyValue] = [visible, title, traces]
        buttons.append({"label": readable_name(name), "method": "update", "args": args})
    return [{"buttons": buttons}] if len(heads) > 1 else []


def _element_figure(
    heads: Mapping[str, LabelledHead], elements: Mapping[str, Mapping[int, PartError]]
) -> Figure:
    """Draw the errors of each head in the periodic table."""
    places = list_places({number for parts in elements.values() for number in parts})
    rows = 1 + max(row for row, _, _ in places)
    style: Trace = {"type": "heatmap", "xgap": 2, "ygap": 2, "texttemplate": "%{text}"}
    style["textfont"] = {"size": 10}
    traces: list[Trace] = [
        style
        | _element_cells(places, lambda number: (0.0, chemical_symbols[number], ""))
        | {"colorscale": [[0.0, "paper"], [1.0, "paper"]], "showscale": False}
        | {"hoverinfo": "skip", "textfont": {"color": "faint", "size": 11}}
    ]
    for place, (name, parts) in enumerate(elements.items()):
        traces.append(style | _element_trace(places, heads[name], parts) | {"visible": place == 0})
    plain: Layout = {"visible": False}
    across, down = plain | {"range": [-0.5, 17.5]}, plain | {"range": [rows - 0.5, -0.5]}
    return Figure(
        key="elements",
        name="errors_by_element",
        title="Error by element",
        caption="Mean absolute error, and the number of atoms or structures. A target of atoms has "
        "the error of the element's atoms; a target of structures, that of the structures that "
        "contain it, weighted by the element's share of their atoms.",
        data=tuple(traces),
        layout=axes(across, down, margin={"l": 0, "b": 8, "t": 8})
        | {"updatemenus": _menu(heads, before=1)},
        height=40 + 54 * rows,
        width=960,
    )


def _element_trace(
    places: Sequence[tuple[int, int, int]], head: LabelledHead, parts: Mapping[int, PartError]
) -> Trace:
    """Return the errors of one head by element.

    Args:
        places: row, column and atomic number of each element.
        head: the head.
        parts: errors by atomic number.
    """

    def cell(number: int) -> tuple[float, str, str]:
        """Describe an element: its error, and what its cell and the pointer show."""
        part = parts.get(number)
        if part is None:
            return np.nan, "", ""
        text = f"<b>{part.label}</b><br>{format_number(part.mae)}<br>n {part.rows}"
        return part.mae, text, f"{part.label}: {_describe(head, part)}"

    most = max((part.mae for part in parts.values()), default=0.0) or 1.0
    bar: Layout = {"title": {"text": with_unit("MAE", head.unit)}, "thickness": 12}
    return _element_cells(places, cell) | {
        "colorscale": RISING,
        "zmin": 0.0,
        "zmax": most,
        "colorbar": bar,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "hoverongaps": False,
    }


def _element_cells(
    places: Sequence[tuple[int, int, int]], cell: Callable[[int], tuple[float, str, str]]
) -> Trace:
    """Return value, text and text under the pointer of each cell of the periodic table.

    Args:
        places: row, column and atomic number of each element.
        cell: returns the three by atomic number; nan where there is no value.
    """
    shape = 1 + max(row for row, _, _ in places), COLUMNS
    values = np.full(shape, np.nan)
    texts, hovers = ([[""] * COLUMNS for _ in range(shape[0])] for _ in range(2))
    for row, column, number in places:
        values[row, column], texts[row][column], hovers[row][column] = cell(number)
    return {"z": values, "text": texts, "hovertext": hovers}


def _describe(head: LabelledHead, part: PartError) -> str:
    unit = "" if head.unit == "1" else f" {head.unit}"
    rows = f"{part.rows:,} atoms in " if head.is_node else ""
    return (
        f"MAE {format_number(part.mae)}{unit}, {rows}{part.structures:,} structures, "
        f"{format_percent(part.share)} of all error"
    )


def _part_figure(
    key: str,
    by: str,
    heads: Mapping[str, LabelledHead],
    parts_of: Mapping[str, Sequence[PartError]],
    across: str,
) -> Figure:
    """Draw the error of parts as bars, one head at a time.

    Args:
        key: key of the figure.
        by: what the parts differ in, for title and name.
        heads: all heads.
        parts_of: parts by head.
        across: title of the axis of parts.
    """
    traces = [
        _part_bars(heads[name], parts[:BARS]) | {"visible": number == 0}
        for number, (name, parts) in enumerate(parts_of.items())
    ]
    total = max(map(len, parts_of.values()), default=0)
    caption = "Mean absolute error; hover for the number of structures."
    if total > BARS:
        caption = f"The {BARS} of {total} with the largest share of all error."
    label = with_unit("MAE", next(iter(heads.values())).unit)
    return Figure(
        key=key,
        name=f"errors_by_{by}",
        title=f"Error by {by}",
        caption=caption,
        data=tuple(traces),
        layout=axes(titled_axis(across, type="category"), titled_axis(label, rangemode="tozero"))
        | {"updatemenus": _menu(heads, axis="yaxis"), "showlegend": False, "margin": {"t": 8}},
        height=260,
    )


def _distance_figure(errors: StructureErrors, far: Mapping[str, DistanceFigures]) -> Figure:
    """Draw errors against the distance to the training set, one head at a time.

    Args:
        errors: structures and predictions.
        far: errors against distances, by head.
    """
    heads = {name: errors.heads[name] for name in far}
    traces = [
        trace | {"visible": number == 0}
        for number, (name, figures) in enumerate(far.items())
        for trace in _distance_traces(errors, name, figures)
    ]
    ranks = [f"{readable_name(name)} {format_rank(figures)}" for name, figures in far.items()]
    across = np.concatenate([np.array(figures["distance"]) for figures in far.values()])
    label = with_unit("|error|", next(iter(heads.values())).unit)
    return Figure(
        key="distances",
        name="errors_by_distance",
        title="Error by distance to the training set",
        caption="In features of the trunk; 1 is usual in the training set. Rank correlation of "
        f"error and distance: {', '.join(ranks)}.",
        data=tuple(traces),
        layout=axes(
            log_axis(np.maximum(across, LEAST_DISTANCE), "distance"),
            titled_axis(label, type="log", exponentformat="power"),
            hovermode="closest",
            showlegend=False,
            margin={"t": 8},
            updatemenus=_menu(heads, each=2, axis="yaxis", quantity="|error|"),
        ),
        height=260,
    )


def _distance_traces(
    errors: StructureErrors, name: str, figures: DistanceFigures
) -> tuple[Trace, Trace]:
    """Return the errors of one head against the distance, and their mean in bins.

    Args:
        errors: structures and predictions.
        name: name of the head, whose distances are known.
        figures: its errors in bins.
    """
    head = errors.heads[name]
    assert head.distance is not None
    shown = sample_evenly(head.distance, POINTS)
    least = max(1e-3 * float(np.quantile(head.error, 0.99)), 1e-12)
    points = scatter(
        np.maximum(head.distance[shown], LEAST_DISTANCE),
        np.maximum(head.error[shown], least),
        "markers",
        marker={"color": "c8", "size": 4, "opacity": 0.5},
        hovertemplate="%{hovertext}<br>distance %{x:.3g}, error %{y:.3g}<extra></extra>",
        **errors.label_rows(name, shown),
    )
    line = scatter(
        np.array(figures["distance"]),
        np.array(figures["mae"]),
        "lines+markers",
        line={"color": "c1", "width": 2},
        hovertemplate="MAE %{y:.3g} at distance %{x:.3g}<extra></extra>",
    )
    return points, line


def format_rank(figures: DistanceFigures) -> str:
    """Return the rank correlation of error and distance, with its standard error."""
    value, error = figures["spearman"], figures["spearman_error"]
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if error is None else f" +- {error:.2f}")


def _part_bars(head: LabelledHead, parts: Sequence[PartError]) -> Trace:
    return {
        "type": "bar",
        "x": [part.label for part in parts],
        "y": np.array([part.mae for part in parts]),
        "hovertext": [f"{part.label}: {_describe(head, part)}" for part in parts],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": "c0"},
    }


def _part_table(
    key: str,
    first: str,
    heads: Mapping[str, LabelledHead],
    parts_of: Mapping[str, Sequence[PartError]],
) -> Table:
    """Make a table of parts, with error and counts of each head.

    Args:
        key: key of the table.
        first: title of the first column.
        heads: all heads.
        parts_of: parts by head.
    """
    labels = list(dict.fromkeys(part.label for parts in parts_of.values() for part in parts))
    columns: dict[str, str | Sequence[str]] = {"part": first}
    cells: list[Callable[[str], list[Cell]]] = []
    for name, parts in parts_of.items():
        title = readable_name(name)
        columns[f"mae.{name}"] = f"{title}, MAE", heads[name].unit
        columns[f"share.{name}"] = f"{title}, share of all error", "%"
        columns[f"rows.{name}"] = f"{title}, {'atoms' if heads[name].is_node else 'structures'}"
        by_label = {part.label: part for part in parts}
        cells.append(lambda label, by_label=by_label: _part_cells(by_label.get(label)))  # type: ignore[misc]
    rows = [(label, *(cell for of in cells for cell in of(label))) for label in labels[:LISTED]]
    more = f"The first {LISTED} of {len(labels):,}." if len(labels) > LISTED else ""
    return make_table(key, columns, rows, more)


def _part_cells(part: PartError | None) -> list[Cell]:
    return [None, None, None] if part is None else [part.mae, part.share, part.rows]
