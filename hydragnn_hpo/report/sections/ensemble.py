"""Sections on the ensemble: errors and calibration by head; members, and errors by their number."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hydragnn_hpo.file_records import (
    Curves,
    EnsembleSize,
    EnsembleTable,
    HeadDiversity,
    HeadScores,
)
from hydragnn_hpo.report.charts import (
    LEGEND,
    Layout,
    PlotlyValue,
    Trace,
    axes,
    format_number,
    format_percent,
    log_axis,
    scatter,
    square_axes,
    titled_axis,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Cell, Figure, Section, Table, Text, make_table
from hydragnn_hpo.report.test_predictions import read_test_predictions, sample_evenly

POINTS = 1500
"""Maximum number of points in a chart, to keep it readable and the page small."""
HEADS = 12
"""Maximum number of heads with charts; tables show all heads."""
NAMED = 14
"""Maximum number of members for which the correlations are written into the cells."""

ScoreName = Literal[
    "test_rows",
    "test_mae",
    "test_rmse",
    "single_mae",
    "mean_baseline_mae",
    "ratio_to_mean",
    "coverage50",
    "coverage90",
    "raw_coverage90",
    "width90",
    "crps",
    "nll",
    "ence",
    "area",
    "spearman",
]
"""Keys of ``HeadScores`` that are columns of the table of scores."""

SCORES: Mapping[ScoreName, str | tuple[str, str]] = {
    "test_rows": "values",
    "test_mae": "MAE",
    "test_rmse": "RMSE",
    "single_mae": "MAE, best single",
    "mean_baseline_mae": "MAE, training mean",
    "ratio_to_mean": "ratio to the mean",
    "coverage50": ("inside 50 % interval", "%"),
    "coverage90": ("inside 90 % interval", "%"),
    "raw_coverage90": ("inside 90 %, raw", "%"),
    "width90": "width of 90 % interval",
    "crps": "CRPS",
    "nll": ("NLL", "nats"),
    "ence": "ENCE",
    "area": "miscalibration area",
    "spearman": "rank correlation of error and sigma",
}
"""Column by the name of a score in ``ensemble.json``; without a unit it is in the head's unit."""

HONEST = (
    "Raw is what the members' spread alone claims; calibrated, a Gaussian whose sigma was fitted "
    "on the calibration split; conformal, the intervals that predictions carry. ENCE and area are "
    "0 for a perfect sigma; errors, CRPS and widths are in the head's unit."
)

BY_SIZE: tuple[tuple[str, Literal["sel_mae", "test_mae"], str, Trace], ...] = (
    ("top", "sel_mae", "the best K, on sel", {"color": "c0", "width": 2}),
    ("greedy", "sel_mae", "greedy, on sel", {"color": "c2", "width": 2, "dash": "dash"}),
    ("top", "test_mae", "the best K, on test", {"color": "c1", "width": 2}),
    ("greedy", "test_mae", "greedy, on test", {"color": "c3", "width": 2, "dash": "dash"}),
)
"""Lines of the error against K: method, split, label and style."""

Arrays = Mapping[str, np.ndarray]
"""``truth mean half90 sigma raw_sigma`` of one head, [n]; see ``read_test_predictions``."""


# -- the section on heads ------------------------------------------------------------------


def make_heads(facts: Facts) -> Section | None:
    """Show scores and charts of every head; None before there is an ensemble."""
    if facts.ensemble is None:
        return None
    heads, arrays = facts.ensemble["heads"], read_test_predictions(facts.run)
    curves = facts.ensemble.get("curves", {})
    rows = (
        (name, head["unit"], *(head.get(score) for score in SCORES)) for name, head in heads.items()
    )
    columns: dict[str, str | Sequence[str]] = {"head": "head", "unit": "unit"}
    columns |= {str(score): title for score, title in SCORES.items()}
    table = make_table("scores", columns, rows, "The ensemble on the test split.")
    blocks: list[Block] = [table, Text(HONEST)]
    for name in list(heads)[:HEADS]:
        if name in arrays:
            blocks.append(_parity(name, heads[name], arrays[name]))
        if name in curves:
            blocks.append(_calibration(name, curves[name]))
            blocks.append(_errors(name, heads[name], curves[name]["bins"], arrays.get(name, {})))
    if not curves:
        text = (
            "This ensemble was built before calibration curves were kept: "
            "'hydragnn-hpo ensemble build RUN' adds them."
        )
        blocks.append(Text(text))
    if not arrays:
        blocks.append(Text("The predictions on the test split are not there to be drawn."))
    lead = (
        "How far off is the ensemble on structures that no model has seen, and does it know? "
        "Errors are those of the test split, looked at once."
    )
    return Section("heads", "Predictions by head", lead, tuple(blocks))


def _parity(name: str, scores: HeadScores, parts: Arrays) -> Figure:
    total, unit = len(parts["truth"]), scores["unit"]
    shown = sample_evenly(parts["truth"], POINTS)
    half = parts.get("half90", np.zeros(total))[shown]
    truth, mean = parts["truth"][shown], parts["mean"][shown]
    low, high = float(min(truth.min(), mean.min())), float(max(truth.max(), mean.max()))
    room = 0.05 * (high - low) or 0.5
    ends = (low - room, high + room)
    inside = np.abs(truth - mean) <= half
    values = np.stack([truth, mean, half])
    few = f"{len(shown)} of {total} values, evenly chosen"
    labels = with_unit("reference", unit), with_unit("predicted", unit)
    return Figure(
        key=f"parity.{name}",
        title=f"{name}: MAE {format_number(scores['test_mae'])}{'' if unit == '1' else ' ' + unit}",
        caption=f"{few if total > len(shown) else 'All values'}: predicted against reference with "
        f"90 % intervals, which hold {format_percent(scores['coverage90'])}. "
        "Intervals that miss are red.",
        data=(
            _points("inside the interval", values[:, inside], "c0"),
            _points("outside", values[:, ~inside], "bad", least=0.6),
            _line("perfect", ends, ends, color="ink", width=1),
        ),
        layout=square_axes(labels, ends) | {"hovermode": "closest"},
        height=440,
    )


def _points(label: str, values: np.ndarray, colour: str, *, least: float = 0.0) -> Trace:
    """Return a trace of points with intervals; more points are drawn fainter.

    Args:
        label: label in the legend.
        values: truth, mean and half the interval, [3, n].
        colour: colour of points and intervals.
        least: minimum opacity.
    """
    truth, mean, half = values
    return scatter(
        truth,
        mean,
        "markers",
        name=label,
        error_y={"array": half, "thickness": 1, "width": 0, "color": colour},
        marker={"color": colour, "size": 5},
        opacity=max(least, float(np.clip(8.0 / np.sqrt(max(len(truth), 1)), 0.25, 0.8))),
        hovertemplate="reference %{x:.4g}, predicted %{y:.4g}",
    )


def _line(
    name: str, x: Sequence[float | None], y: Sequence[float | None], **style: PlotlyValue
) -> Trace:
    return scatter(np.asarray(x, float), np.asarray(y, float), "lines", name=name, line=style)


def _calibration(name: str, curves: Curves) -> Figure:
    gaussian, conformal = curves["calibration"], curves["conformal"]
    level = [0, *gaussian["level"], 1]
    below = np.array(gaussian["raw"], float).mean() < np.array(gaussian["level"], float).mean()
    promised = [0, *conformal["level"], 1]
    return Figure(
        key=f"calibration.{name}",
        title=f"{name}: calibration",
        caption="Share of test values inside the intervals against the share that they promise; on "
        f"the diagonal is honest. The raw spread is {'over' if below else 'under'}confident.",
        data=(
            _line("perfect", [0, 1], [0, 1], color="ink", width=1),
            _line("conformal", promised, [0, *conformal["covered"], 1], color="c2", width=3),
            _line("calibrated", level, [0, *gaussian["gaussian"], 1], color="c0", width=2),
            _line("raw", level, [0, *gaussian["raw"], 1], color="c1", width=2, dash="dot"),
        ),
        layout=square_axes(("promised share", "share found inside"), (0.0, 1.0)),
        height=440,
    )


def _errors(
    name: str, scores: HeadScores, bins: Mapping[str, Sequence[float | None]], parts: Arrays
) -> Figure:
    sigma, unit = np.array(bins["sigma"], dtype=float), scores["unit"]
    across = sigma
    traces: list[Trace] = []
    if "sigma" in parts:
        across = parts["sigma"]
        traces.append(_dots(across, np.abs(parts["truth"] - parts["mean"])))
    ends = [0.9 * float(sigma.min()), 1.1 * float(sigma.max())]
    traces.append(_line("error = sigma", ends, ends, color="ink", width=1))
    binned = _line("RMSE of bins", bins["sigma"], bins["rms_error"], color="c1", width=2)
    traces.append(binned | {"mode": "lines+markers"})
    rank = scores.get("spearman")
    rank_text = "" if rank is None else f" Rank correlation of error and sigma: {rank:.2f}."
    return Figure(
        key=f"sigma.{name}",
        title=f"{name}: error against sigma",
        caption=f"Root mean square error in {len(bins['sigma'])} bins of rising sigma; on the "
        f"diagonal is honest.{rank_text}",
        data=tuple(traces),
        layout=axes(
            log_axis(across, with_unit("sigma, calibrated", unit)),
            titled_axis(with_unit("|error|", unit), type="log"),
            legend=LEGEND,
        ),
        height=440,
    )


def _dots(sigma: np.ndarray, error: np.ndarray) -> Trace:
    """Return errors against sigma; errors close to zero are raised to a lower limit."""
    least = max(1e-3 * float(np.quantile(error, 0.99)), 1e-12)
    shown = sample_evenly(sigma, POINTS)
    return scatter(
        sigma[shown],
        np.maximum(error[shown], least),
        "markers",
        name="values",
        marker={"color": "c8", "size": 4, "opacity": 0.35},
        hovertemplate="sigma %{x:.3g}, error %{y:.3g}<extra></extra>",
    )


# -- the section on members ----------------------------------------------------------------


def make_members(facts: Facts) -> Section | None:
    """Show members, correlations of errors, and the error against the number of members."""
    table = facts.ensemble
    if table is None:
        return None
    shared = [name for name, seen in table["diversity"].items() if len(seen["members"]) > 1]
    blocks: list[Block] = [_members(facts, table), _diversity(table)]
    blocks += [_correlation(name, table["diversity"][name]) for name in shared[:HEADS]]
    if "by_size" in table:
        blocks += [_by_size(name, table) for name in list(table["heads"])[:HEADS]]
        blocks.append(_sizes(table["heads"], table["by_size"]))
    else:
        text = (
            "This ensemble was built before errors were kept for every number of members: "
            "'hydragnn-hpo ensemble build RUN' adds them."
        )
        blocks.append(Text(text))
    kept = "the K best" if table["method"] == "top" else "weights by errors on val and sel"
    lead = (
        "Which trials are its members, do they err in different ways, and would fewer or more do "
        "as well? "
        f"Kept: {kept}, because {table['why']}."
    )
    return Section("members", "The ensemble", lead, tuple(blocks))


def _members(facts: Facts, table: EnsembleTable) -> Table:
    units = {name: head["unit"] for name, head in table["heads"].items()}
    sel = {one["trial"]: one["sel_mae"] for one in table.get("candidates", ())}
    convs = {row["trial"]: row["conv"] for row in table["leaderboard"]}
    columns = {
        "trial": "trial",
        "weight": ("weight", "%"),
        "conv": "conv",
        "parameters": "parameters",
        "objective": ("objective", "MAE / std"),
        **{f"val_mae.{name}": (f"{name}, val MAE", unit) for name, unit in units.items()},
        **{f"sel_mae.{name}": (f"{name}, sel MAE", unit) for name, unit in units.items() if sel},
    }
    rows = []
    for member in table["members"]:
        name, known = member["trial"], sel.get(member["trial"], {})
        parameters = facts.trials[name].parameters if name in facts.trials else None
        row: list[Cell] = [name, member["weight"], convs.get(name), parameters, member["objective"]]
        row += [member["val_mae"].get(head) for head in units]
        row += [known.get(head) for head in units if sel]
        rows.append(row)
    note = "Weight: the mean over heads. val chose the trials, sel the members."
    return make_table("members", columns, rows, note)


def _diversity(table: EnsembleTable) -> Table:
    columns = {
        "head": "head",
        "unit": "unit",
        "mean_correlation": "mean correlation of errors",
        "member_rmse": "RMSE of a member",
        "rmse": "RMSE of the mix",
        "ambiguity": "ambiguity",
        "gained": ("mean square error saved", "%"),
    }
    rows: list[list[Cell]] = []
    for name, seen in table["diversity"].items():
        alone, gained = seen["mean_member_mse"], seen["ambiguity"]
        row: list[Cell] = [name, table["heads"][name]["unit"], seen["mean_correlation"]]
        row += [float(np.sqrt(alone)), float(np.sqrt(seen["mse"])), gained]
        rows.append([*row, gained / alone if alone else None])
    note = (
        "On sel. The mean square error of the mix is that of its members less the ambiguity (in "
        "the unit squared): the mean square by which they differ from the mix (Krogh and Vedelsby, "
        "1995)."
    )
    return make_table("alike", columns, rows, note)


def _correlation(name: str, seen: HeadDiversity) -> Figure:
    matrix, members = np.array(seen["correlation"], dtype=float), list(seen["members"])
    trace: Trace = {
        "type": "heatmap",
        "z": matrix,
        "x": members,
        "y": members,
        "colorscale": "Viridis",
        "zmin": float(min(0.0, matrix.min())),
        "zmax": 1.0,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "r"}, "thickness": 12},
        "hovertemplate": "%{y} and %{x}: %{z:.3f}",
    }
    if len(members) <= NAMED:
        trace["texttemplate"] = "%{z:.2f}"
    plain: Layout = {"type": "category", "constrain": "domain"}
    down = plain | {"autorange": "reversed", "scaleanchor": "x"}
    return Figure(
        key=f"correlation.{name}",
        title=f"{name}: correlation of the members' errors",
        caption=f"Mean off the diagonal {seen['mean_correlation']:.2f}: at 1 members err alike and "
        "mixing them gains nothing; the lower, the more it does.",
        data=(trace,),
        layout=axes(plain | {"tickangle": -45}, down),
        height=420,
    )


def _by_size(name: str, table: EnsembleTable) -> Figure:
    traces = []
    for method, split, label, line in BY_SIZE:
        sizes = table["by_size"].get(method, ())
        sizes = [size for size in sizes if _error(size, split, name) is not None]
        if sizes:
            trace = scatter(
                np.array([size["members"] for size in sizes]),
                np.array([_error(size, split, name) for size in sizes]),
                "lines+markers",
                name=label,
                text=[size["added"] for size in sizes],
                line=line,
                hovertemplate="%{x} members, with %{text}: %{y:.4g}",
            )
            traces.append(trace)
    kept, most = len(table["members"]), max(size["members"] for size in table["by_size"]["top"])
    upright: Layout = {"type": "line", "x0": kept, "x1": kept, "y0": 0, "y1": 1, "yref": "paper"}
    dotted: Layout = {"color": "faint", "width": 1, "dash": "dot"}
    return Figure(
        key=f"by_size.{name}",
        title=f"{name}: MAE against the number of members",
        caption=f"The error of the mean of 1 to {most} members; the ensemble has {kept} "
        "(upright line). Where the lines are flat, further members are worth nothing. On test only "
        "members were run.",
        data=tuple(traces),
        layout=axes(
            titled_axis("members", dtick=1 if most <= 12 else 4),
            with_unit("MAE", table["heads"][name]["unit"]),
            legend=LEGEND,
            shapes=[upright | {"line": dotted}],
        ),
    )


def _error(size: EnsembleSize, split: Literal["sel_mae", "test_mae"], head: str) -> float | None:
    return (size[split] or {}).get(head)


def _sizes(heads: Mapping[str, HeadScores], by_size: Mapping[str, Sequence[EnsembleSize]]) -> Table:
    columns: dict[str, str | Sequence[str]] = {"members": "members"}
    for name, head in heads.items():
        for method, split, label, _ in BY_SIZE:
            key = f"{method}_{split.removesuffix('_mae')}.{name}"
            columns[key] = f"{name}, {label}", head["unit"]
    rows: list[list[Cell]] = []
    for place in range(max(map(len, by_size.values()))):
        row: list[Cell] = [str(place + 1)]
        for name in heads:
            for method, split, _, _ in BY_SIZE:
                sizes = by_size[method]
                row.append(_error(sizes[place], split, name) if place < len(sizes) else None)
        rows.append(row)
    return make_table("by_size", columns, rows, "MAE of the mean of K members.")
