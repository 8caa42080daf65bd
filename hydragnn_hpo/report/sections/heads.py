"""Section on the heads: test errors of the ensemble, and the calibration of its sigma."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hydragnn_hpo.report.charts import scatter, titled_axis
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import Block, Column, Figure, Section, Table, Text
from hydragnn_hpo.report.test_predictions import read_test_predictions, sample_evenly
from hydragnn_hpo.report.trial_scores import LEGEND, log_axis, with_unit

POINTS = 1500
"""Most points of a chart: they stay visible, and the page small."""
HEADS = 12
"""Most heads with charts of their own; the table has all."""

COLUMNS = (
    Column("test_rows", "values"),
    Column("test_mae", "MAE"),
    Column("test_rmse", "RMSE"),
    Column("single_mae", "MAE, best single"),
    Column("mean_baseline_mae", "MAE, training mean"),
    Column("ratio_to_mean", "ratio to the mean"),
    Column("coverage50", "inside 50 % interval", "%"),
    Column("coverage90", "inside 90 % interval", "%"),
    Column("raw_coverage90", "inside 90 %, raw", "%"),
    Column("width90", "width of 90 % interval"),
    Column("crps", "CRPS"),
    Column("nll", "NLL", "nats"),
    Column("ence", "ENCE"),
    Column("area", "miscalibration area"),
    Column("spearman", "rank correlation of error and sigma"),
)
"""Scores by their names in ``ensemble.json``; quantities are in the head's unit."""

_OLD = (
    "This ensemble was built before calibration curves were kept: "
    "'hydragnn-hpo ensemble build RUN' adds them."
)
_HONEST = (
    "Raw is what the members' spread alone claims; calibrated, a Gaussian whose sigma was fitted "
    "on the calibration split; conformal, the intervals that predictions carry. ENCE and area are "
    "0 for a perfect sigma; errors, CRPS and widths are in the head's unit."
)


def make_section(facts: Facts) -> Section | None:
    """Show scores and charts of every head; None before there is an ensemble."""
    if facts.ensemble is None:
        return None
    heads, arrays = facts.ensemble["heads"], read_test_predictions(facts.run)
    curves = facts.ensemble.get("curves", {})
    blocks: list[Block] = [_make_table(heads), Text(_HONEST)]
    for name in list(heads)[:HEADS]:
        if name in arrays:
            blocks.append(_parity(name, heads[name], arrays[name]))
        if name in curves:
            blocks.append(_calibration(name, curves[name]))
            blocks.append(_errors(name, heads[name], curves[name], arrays.get(name, {})))
    if not curves:
        blocks.append(Text(_OLD))
    if not arrays:
        blocks.append(Text("The predictions on the test split are not there to be drawn."))
    return Section(
        key="heads",
        title="Predictions by head",
        lead="How far off is the ensemble on structures that no model has seen, and does it know? "
        "Errors are those of the test split, looked at once.",
        blocks=tuple(blocks),
    )


def _make_table(heads: Mapping[str, Any]) -> Table:
    rows = [
        (name, scores["unit"], *(scores.get(column.key) for column in COLUMNS))
        for name, scores in heads.items()
    ]
    return Table(
        key="scores",
        columns=(Column("head", "head"), Column("unit", "unit"), *COLUMNS),
        rows=tuple(rows),
        note="The ensemble on the test split.",
    )


def _parity(name: str, scores: Mapping[str, Any], parts: Mapping[str, np.ndarray]) -> Figure:
    shown, unit = sample_evenly(parts["truth"], POINTS), scores["unit"]
    truth, mean = parts["truth"][shown], parts["mean"][shown]
    half = parts.get("half90", np.zeros(len(parts["truth"])))[shown]
    inside = np.abs(truth - mean) <= half
    low, high = float(min(truth.min(), mean.min())), float(max(truth.max(), mean.max()))
    room = 0.05 * (high - low) or 0.5
    ends = (low - room, high + room)
    traces = [
        _points("inside the interval", (truth, mean, half), inside, "c0"),
        _points("outside", (truth, mean, half), ~inside, "bad"),
        _line("perfect", ends, ends, color="ink", width=1),
    ]
    many = len(parts["truth"]) > len(shown)
    sample = (
        f"{len(shown)} of {len(parts['truth'])} values, evenly chosen" if many else "All values"
    )
    number = f"MAE {scores['test_mae']:.3g}{'' if unit == '1' else ' ' + unit}"
    labels = with_unit("reference", unit), with_unit("predicted", unit)
    return Figure(
        key=f"parity.{name}",
        title=f"{name}: {number}",
        caption=f"{sample}: predicted against reference with 90 % intervals, which hold "
        f"{100 * scores['coverage90']:.0f} %. Intervals that miss are red.",
        data=tuple(traces),
        layout=_square(labels, ends) | {"hovermode": "closest"},
        height=440,
    )


def _square(labels: tuple[str, str], ends: tuple[float, float]) -> dict[str, Any]:
    """Return the layout of two axes of the same length and range."""
    across, up = (titled_axis(label, range=list(ends), constrain="domain") for label in labels)
    return {"xaxis": across, "yaxis": up | {"scaleanchor": "x"}, "legend": LEGEND}


def _points(
    label: str, values: tuple[np.ndarray, np.ndarray, np.ndarray], rows: np.ndarray, colour: str
) -> dict[str, Any]:
    truth, mean, half = (part[rows] for part in values)
    faint = float(np.clip(8.0 / np.sqrt(max(len(truth), 1)), 0.25, 0.8))
    return scatter(
        truth,
        mean,
        "markers",
        name=label,
        error_y={"array": half, "thickness": 1, "width": 0, "color": colour},
        marker={"color": colour, "size": 5},
        opacity=faint if colour != "bad" else max(faint, 0.6),
        hovertemplate="reference %{x:.4g}, predicted %{y:.4g}",
    )


def _line(name: str, x: Any, y: Any, **look: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": np.asarray(x, dtype=float),
        "y": np.asarray(y, dtype=float),
        "line": look,
    }


def _calibration(name: str, curves: Mapping[str, Any]) -> Figure:
    gaussian, conformal = curves["calibration"], curves["conformal"]
    lines = (
        ("conformal", conformal["level"], conformal["covered"], {"color": "c2", "width": 3}),
        ("calibrated", gaussian["level"], gaussian["gaussian"], {"color": "c0", "width": 2}),
        ("raw", gaussian["level"], gaussian["raw"], {"color": "c1", "width": 2, "dash": "dot"}),
    )
    traces = [_line("perfect", [0, 1], [0, 1], color="ink", width=1)]
    traces += [_line(n, [0, *x, 1], [0, *y, 1], **look) for n, x, y, look in lines]
    below = float(np.mean(gaussian["raw"])) < float(np.mean(gaussian["level"]))
    return Figure(
        key=f"calibration.{name}",
        title=f"{name}: calibration",
        caption="Share of test values inside the intervals against the share that they promise; on "
        f"the diagonal is honest. The raw spread is {'over' if below else 'under'}confident.",
        data=tuple(traces),
        layout=_square(("promised share", "share found inside"), (0.0, 1.0)),
        height=440,
    )


def _errors(
    name: str, scores: Mapping[str, Any], curves: Mapping[str, Any], parts: Mapping[str, np.ndarray]
) -> Figure:
    bins, unit = curves["bins"], scores["unit"]
    across, traces = np.array(bins["sigma"]), []
    if "sigma" in parts:
        across = parts["sigma"]
        traces.append(_dots(across, np.abs(parts["truth"] - parts["mean"])))
    ends = [0.9 * min(bins["sigma"]), 1.1 * max(bins["sigma"])]
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
        layout={
            "xaxis": log_axis(across, with_unit("sigma, calibrated", unit)),
            "yaxis": titled_axis(with_unit("|error|", unit), type="log"),
            "legend": LEGEND,
        },
        height=440,
    )


def _dots(sigma: np.ndarray, error: np.ndarray) -> dict[str, Any]:
    """Return errors over sigma; those close to zero stand at the lower end."""
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
