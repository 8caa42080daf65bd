"""Sections on the ensemble: errors and calibration by head; the best model and the members."""

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, cast

import numpy as np

from hydragnn_hpo.campaign.status import find_conv
from hydragnn_hpo.file_records import Curves, EnsembleSize, EnsembleTable, HeadScores
from hydragnn_hpo.report.charts import (
    LEGEND,
    Layout,
    PlotlyValue,
    Trace,
    axes,
    format_number,
    format_percent,
    log_axis,
    readable_name,
    scatter,
    square_axes,
    titled_axis,
    with_unit,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.head_figures import draw_head
from hydragnn_hpo.report.page_blocks import (
    Block,
    Cell,
    Code,
    Figure,
    Fold,
    Row,
    Section,
    Table,
    Text,
    make_table,
)
from hydragnn_hpo.report.test_predictions import parity_range, read_test_predictions, sample_evenly

POINTS = 1500
"""Maximum number of points in a chart, to keep it readable and the page small."""
HEADS = 12
"""Maximum number of heads with charts; tables show all heads."""

SCORES: Mapping[str, str | tuple[str, str]] = {
    "test_rows": "values",
    "test_mae": "MAE",
    "test_rmse": "RMSE",
    "test_norm_error": "mean norm of the error",
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

SCORES_EXPLAINED = (
    "Raw: the members' spread alone. Calibrated: a Gaussian whose sigma was fitted on structures "
    "that trained none of what predicted them. Conformal: the intervals that predictions carry. "
    "ENCE and miscalibration area are 0 for a perfect sigma; errors, CRPS and widths are in the "
    "unit of the target, MAE and RMSE of vectors and tensors those of a component."
)

BY_SIZE: tuple[tuple[str, Literal["sel_mae", "test_mae"], str, Trace], ...] = (
    ("top", "sel_mae", "best K, sel", {"color": "c0", "width": 2}),
    ("greedy", "sel_mae", "greedy, sel", {"color": "c2", "width": 2, "dash": "dash"}),
    ("top", "test_mae", "best K, test", {"color": "c1", "width": 2}),
    ("greedy", "test_mae", "greedy, test", {"color": "c3", "width": 2, "dash": "dash"}),
)
"""Lines of the error against K: method, split, label and style."""

Arrays = Mapping[str, np.ndarray]
"""``truth mean half90 sigma raw_sigma`` of one head, [n]; see ``read_test_predictions``."""


# -- the section on heads ------------------------------------------------------------------


def make_heads(facts: Facts) -> Section | None:
    """Show scores and charts of every head; None before there is an ensemble."""
    if facts.ensemble is None:
        return None
    heads = facts.ensemble["heads"]
    arrays = read_test_predictions(facts.run)
    curves = facts.ensemble["curves"]
    shown = list(heads)[:HEADS]
    numbers = [name for name in shown if "reliability" not in curves.get(name, {})]
    parities = tuple(_parity(facts, name, arrays[name]) for name in numbers if name in arrays)
    calibrations = tuple(_calibration(name, curves[name]) for name in numbers if name in curves)
    errors = tuple(
        _errors(facts, name, curves[name]["bins"], arrays.get(name, {}))
        for name in numbers
        if name in curves
    )
    own = tuple(figure for name in shown for figure in draw_head(facts, name))
    blocks: list[Block] = [Row(charts) for charts in (parities, own, calibrations) if charts]
    more: list[Block] = [_scores(heads), Text(SCORES_EXPLAINED), *([Row(errors)] if errors else [])]
    if not arrays:
        blocks.append(Text("The predictions on the test split are not there to be drawn."))
    blocks.append(Fold("All scores, and error against predicted sigma", tuple(more)))
    lead = (
        "How far off is the ensemble on structures that no model has seen, and does it know? "
        "Errors are those of the test split, which was evaluated once."
    )
    return Section("heads", "Predictions and their error bars", lead, tuple(blocks))


def _scores(heads: Mapping[str, HeadScores]) -> Table:
    turns = any("test_norm_error" in head for head in heads.values())
    scores = [score for score in SCORES if turns or score != "test_norm_error"]
    rows = (
        (readable_name(name), head["unit"], *map(cast("Mapping[str, Cell]", head).get, scores))
        for name, head in heads.items()
    )
    columns: dict[str, str | Sequence[str]] = {"head": "target", "unit": "unit"}
    columns |= {score: SCORES[score] for score in scores}
    return make_table("scores", columns, rows, "The ensemble on the test split.")


def label_values(facts: Facts, head: str, values: np.ndarray) -> Trace:
    """Return what names some values of ``read_test_predictions``; empty if it is not known.

    Args:
        facts: content of the run directory.
        head: name of the head.
        values: positions of the values.
    """
    errors = facts.structure_errors
    if errors is None or head not in errors.heads:
        return {}
    return errors.label_rows(head, values // errors.heads[head].truth.shape[1])


def _parity(facts: Facts, name: str, parts: Arrays) -> Figure:
    """Draw predictions against references.

    Args:
        facts: content of the run directory.
        name: name of the head.
        parts: its values.
    """
    assert facts.ensemble is not None
    scores = facts.ensemble["heads"][name]
    total = len(parts["truth"])
    unit = scores["unit"]
    shown = sample_evenly(parts["truth"], POINTS)
    half = parts.get("half90", np.zeros(total))[shown]
    truth, mean = parts["truth"][shown], parts["mean"][shown]
    ends = parity_range(truth, mean, half)
    inside = np.abs(truth - mean) <= half
    label = partial(label_values, facts, name)
    values = np.stack([truth, mean, half])
    few = f"{len(shown)} of {total} values, evenly chosen. " if total > len(shown) else ""
    labels = with_unit("reference", unit), with_unit("predicted", unit)
    unit = "" if unit == "1" else f" {unit}"
    return Figure(
        key=f"parity.{name}",
        name=f"parity.{name}",
        title=f"{readable_name(name)}: MAE {format_number(scores['test_mae'])}{unit}",
        caption=f"{few}{format_percent(scores['coverage90'])} of the 90 % intervals contain the "
        "reference; those that miss are red.",
        data=(
            _points("inside", values[:, inside], "c0", label(shown[inside])),
            _points("outside", values[:, ~inside], "bad", label(shown[~inside]), least=0.6),
            _line("perfect", ends, ends, color="ink", width=1) | {"showlegend": False},
        ),
        layout=square_axes(labels, ends) | {"hovermode": "closest"},
        height=350,
    )


def _points(
    label: str,
    values: np.ndarray,
    colour: str,
    labels: Trace,
    *,
    least: float = 0.0,
) -> Trace:
    """Return a trace of points with intervals; more points are drawn fainter.

    Args:
        label: label in the legend.
        values: truth, mean and half the interval, [3, n].
        colour: colour of points and intervals.
        labels: what names the points.
        least: minimum opacity.
    """
    truth, mean, half = values
    return scatter(
        truth,
        mean,
        "markers",
        name=label,
        error_y={"array": half, "thickness": 0.8, "width": 0, "color": colour},
        marker={"color": colour, "size": 5},
        opacity=max(least, float(np.clip(8.0 / np.sqrt(max(len(truth), 1)), 0.45, 0.8))),
        **_named(labels, "reference %{x:.4g}, predicted %{y:.4g}"),
    )


def _named(labels: Trace, hover: str) -> Trace:
    """Return what the pointer shows at a point: its structure, if known, and values."""
    above = "%{hovertext}<br>" if labels else ""
    return labels | {"hovertemplate": f"{above}{hover}<extra></extra>"}


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
        name=f"calibration.{name}",
        title=f"{readable_name(name)}: calibration",
        caption="Share of test values inside the intervals against the nominal share; the diagonal "
        f"is perfect. The uncalibrated spread is {'over' if below else 'under'}confident.",
        data=(
            _line("perfect", [0, 1], [0, 1], color="ink", width=1) | {"showlegend": False},
            _line("conformal", promised, [0, *conformal["covered"], 1], color="c2", width=3),
            _line("calibrated", level, [0, *gaussian["gaussian"], 1], color="c0", width=2),
            _line("raw", level, [0, *gaussian["raw"], 1], color="c1", width=2, dash="dot"),
        ),
        layout=square_axes(("nominal share", "share found inside"), (0.0, 1.0)),
        height=330,
    )


def _errors(
    facts: Facts, name: str, bins: Mapping[str, Sequence[float | None]], parts: Arrays
) -> Figure:
    """Draw errors against sigma.

    Args:
        facts: content of the run directory.
        name: name of the head.
        bins: sigma and error in bins of rising sigma.
        parts: its values.
    """
    assert facts.ensemble is not None
    scores = facts.ensemble["heads"][name]
    sigma = np.array(bins["sigma"], dtype=float)
    unit = scores["unit"]
    across = sigma
    traces: list[Trace] = []
    if "sigma" in parts:
        across = parts["sigma"]
        errors = np.abs(parts["truth"] - parts["mean"])
        traces.append(_dots(facts, name, across, errors))
    ends = [0.9 * float(sigma.min()), 1.1 * float(sigma.max())]
    traces.append(_line("error = sigma", ends, ends, color="ink", width=1))
    binned = _line("RMSE of bins", bins["sigma"], bins["rms_error"], color="c1", width=2)
    traces.append(binned | {"mode": "lines+markers"})
    rank = scores.get("spearman")
    rank_text = "" if rank is None else f" Rank correlation of error and sigma: {rank:.2f}."
    return Figure(
        key=f"sigma.{name}",
        name=f"error_against_sigma.{name}",
        title=f"{readable_name(name)}: error against sigma",
        caption=f"Root mean square error in {len(bins['sigma'])} bins of rising sigma; the line "
        f"is perfect.{rank_text}",
        data=tuple(traces),
        layout=axes(
            log_axis(across, with_unit("sigma, calibrated", unit)),
            titled_axis(with_unit("|error|", unit), type="log", exponentformat="power"),
            legend=LEGEND,
        ),
        height=360,
    )


def _dots(facts: Facts, name: str, sigma: np.ndarray, error: np.ndarray) -> Trace:
    """Return errors against sigma; errors close to zero are raised to a lower limit.

    Args:
        facts: content of the run directory.
        name: name of the head.
        sigma: calibrated sigma of each value, [n].
        error: absolute error of each value, [n].
    """
    least = max(1e-3 * float(np.quantile(error, 0.99)), 1e-12)
    shown = sample_evenly(sigma, POINTS)
    return scatter(
        sigma[shown],
        np.maximum(error[shown], least),
        "markers",
        name="values",
        marker={"color": "c8", "size": 5, "opacity": 0.6},
        **_named(label_values(facts, name, shown), "sigma %{x:.3g}, error %{y:.3g}"),
    )


# -- the section on members ----------------------------------------------------------------


def make_members(facts: Facts) -> Section | None:
    """Show the best trial's configuration and the members; None before a trial has a result."""
    ranked = facts.state.ranked()
    table = facts.ensemble
    if not ranked:
        return None
    conv = find_conv(ranked[0], facts.config)
    values = ({"model.conv": conv} if conv else {}) | ranked[0].values
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    best = Code("\n".join(lines), f"Configuration of {ranked[0].name}, the best trial")
    if table is None:
        lead = "The configuration of the best trial so far."
        return Section("members", "The best model", lead, (best,))
    judged = "out of fold" if table.get("folds") else "on val and sel"
    kept = "the K best" if table["method"] == "top" else f"weights by errors {judged}"
    text = Text(f"Members of the ensemble: {kept}, because {table['why']}.")
    errors = (_member_errors(table), _diversity(table))
    blocks: list[Block] = [Row((best, _members(facts, table))), text]
    blocks.append(Fold("Errors of the members, and how much these differ", errors))
    figures = tuple(_by_size(name, table) for name in list(table["heads"])[:HEADS])
    sizes = _sizes(table["heads"], table["by_size"])
    blocks.append(Fold("Would fewer or more members do as well?", (Row(figures), sizes)))
    lead = "Which configuration won, and which trials make up the ensemble?"
    return Section("members", "The best model and the ensemble", lead, tuple(blocks))


def _members(facts: Facts, table: EnsembleTable) -> Table:
    columns: dict[str, str | Sequence[str]] = {
        "trial": "trial",
        "weight": ("weight", "%"),
        "conv": "conv",
        "parameters": "parameters",
        "objective": ("objective", "MAE / std"),
    }
    joined = table.get("local_descriptors", {})
    shares = {name: one["weight"] for name, one in joined.items() if one["weight"]}
    heads = list(table["heads"]) if shares else []
    columns |= {f"weight.{head}": (f"{readable_name(head)}, weight", "%") for head in heads}
    rows: list[Sequence[Cell]] = []
    for member in table["members"]:
        name = member["trial"]
        weights = share_weights(member["weights"], shares)
        trial = facts.trials.get(name)
        conv = find_conv(trial.trial, facts.config) if trial else None
        parameters = trial.parameters if trial else None
        row = (name, statistics.fmean(weights.values()), conv, parameters, member["objective"])
        rows.append((*row, *map(weights.get, heads)))
    note = "Weight: the mean over the targets that have the member."
    if shares:
        weight = statistics.fmean(shares.values())
        name = table.get("described_by", "local descriptors")
        rows.append((name, weight, None, None, None, *map(shares.get, heads)))
        note += f" The last row is the regression on {name}, which joined the nets."
    return make_table("members", columns, rows, note)


def share_weights(nets: Mapping[str, float], joined: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of a net, where nets share what a regression leaves them.

    Args:
        nets: weight of the net among all nets, by head.
        joined: weight of the regression that joins the nets, by head that has one.

    Returns:
        Weight of the net among nets and regression, by head.
    """
    return {head: weight * (1.0 - joined.get(head, 0.0)) for head, weight in nets.items()}


def _member_errors(table: EnsembleTable) -> Table:
    units = {name: head["unit"] for name, head in table["heads"].items()}
    sel = {one["trial"]: one["sel_mae"] for one in table["candidates"]}
    columns: dict[str, str | Sequence[str]] = {"trial": "trial"}
    for split in ("val", "sel"):
        for name, unit in units.items():
            columns[f"{split}_mae.{name}"] = f"{readable_name(name)}, {split} MAE", unit
    rows = []
    for member in table["members"]:
        row: list[Cell] = [member["trial"], *(member["val_mae"].get(head) for head in units)]
        known = sel.get(member["trial"], {})
        rows.append(row + [known.get(head) for head in units])
    note = "val chose the trials, sel the members."
    return make_table("member_errors", columns, rows, note)


def _diversity(table: EnsembleTable) -> Table:
    columns = {
        "head": "target",
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
        unit = table["heads"][name]["unit"]
        row: list[Cell] = [readable_name(name), unit, seen["mean_correlation"]]
        row += [float(np.sqrt(alone)), float(np.sqrt(seen["mse"])), gained]
        rows.append([*row, gained / alone if alone else None])
    note = (
        "On sel. Where the correlation is 1, members err alike and mixing them gains nothing. The "
        "mean square error of the mix is that of its members less the ambiguity (in "
        "the unit squared): the mean square by which they differ from the mix (Krogh and Vedelsby, "
        "1995)."
    )
    return make_table("alike", columns, rows, note)


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
    kept = len(table["members"])
    most = max(size["members"] for size in table["by_size"]["top"])
    upright: Layout = {"type": "line", "x0": kept, "x1": kept, "y0": 0, "y1": 1, "yref": "paper"}
    dotted: Layout = {"color": "faint", "width": 1, "dash": "dot"}
    return Figure(
        key=f"by_size.{name}",
        name=f"ensemble_size.{name}",
        title=f"{readable_name(name)}: MAE by number of members",
        caption=f"The error of the mean of 1 to {most} members; the ensemble has {kept} (vertical "
        "line). Where the lines are flat, more members gain nothing. On test only members were "
        "run.",
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
            columns[key] = f"{readable_name(name)}, {label}", head["unit"]
    rows: list[list[Cell]] = []
    for place in range(max(map(len, by_size.values()))):
        row: list[Cell] = [str(place + 1)]
        for name in heads:
            for method, split, _, _ in BY_SIZE:
                sizes = by_size[method]
                row.append(_error(sizes[place], split, name) if place < len(sizes) else None)
        rows.append(row)
    return make_table("by_size", columns, rows, "MAE of the mean of K members.")
