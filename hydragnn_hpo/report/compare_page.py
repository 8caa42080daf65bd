"""A comparison of campaigns as tables and charts: in a terminal, as one HTML file, as one PNG."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from hydragnn_hpo.campaign import TrialStatus
from hydragnn_hpo.files import write_text
from hydragnn_hpo.report.charts import series_colour
from hydragnn_hpo.report.compare import (
    ComparedRun,
    Quantity,
    RunComparison,
    RunSummary,
    WinningTrial,
)
from hydragnn_hpo.report.page import Title, render_page
from hydragnn_hpo.report.page_blocks import Block, Cell, Column, Figure, Section, Table, Text
from hydragnn_hpo.report.style import (
    ALARM,
    COLOURS,
    FAINT,
    make_figure,
    set_title,
    tidy_axis,
    write_png,
)
from hydragnn_hpo.sanitize import escape_controls

Row = tuple[Cell, ...]

NEVER = "not reached"

COSTS = {"host_seconds": "host-seconds", "trials": "trials", "seconds": "wall seconds"}
"""Fields of ``CostedResult``, and their names."""

PANELS = 6
"""Most panels of the PNG: the first quantities."""

_ACROSS = 3


def write_comparison(comparison: RunComparison, out: Path) -> None:
    """Write a comparison as one HTML file, whole or not at all; it needs no network.

    Raises:
        StorageError: the file cannot be written.
    """
    labels = ", ".join(run.label for run in comparison.runs)
    heading = Title(f"{len(comparison.runs)} campaigns side by side", labels)
    write_text(out, render_page(heading, compare_sections(comparison)))


def draw_comparison(comparison: RunComparison, out: Path) -> None:
    """Draw the best so far against host-seconds, a panel for each quantity.

    Args:
        comparison: has a quantity at least.
        out: the PNG to write, whole.
    """
    panels = comparison.quantities[:PANELS]
    across = 2 if len(panels) == 4 else min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = make_figure(4.2 * across + 0.6, 3.2 * down + 0.6)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, quantity in zip(axes, panels, strict=False):
        for place, run in enumerate(comparison.runs):
            times, values = _steps(run, quantity.key)
            colour = COLOURS[place % len(COLOURS)]
            dash = ("-", "--", ":")[place // len(COLOURS) % 3]
            axis.step(times, values, where="post", color=colour, linestyle=dash, label=run.label)
        for level in comparison.levels:
            if level.quantity == quantity:
                axis.axhline(level.level, color=FAINT, linewidth=0.7, linestyle=":")
        unit = f" [{quantity.unit}]" if quantity.unit else ""
        axis.set(xscale="log", xlabel="host-seconds", ylabel=f"best so far{unit}")
        if axis.dataLim.y0 > 0.0:
            axis.set_yscale("log")
        set_title(axis, quantity.label.replace("_", " "))
        tidy_axis(axis)
    axes[0].legend(frameon=False, fontsize=8)
    if not comparison.same_data:
        figure.suptitle(comparison.warnings[0], color=ALARM, fontsize=8, wrap=True)
    write_png(figure, out)


def compare_sections(comparison: RunComparison) -> list[Section]:
    """Return the sections of the page; the terminal shows the same tables."""
    reach_lead = (
        "What each campaign had spent when its best trial so far first was as good as a level. "
        "Counted are results on validation data, and hosts whether idle or not."
    )
    warnings = [Text(warning) for warning in comparison.warnings]
    overview: tuple[Block, ...] = (*warnings, _overview(comparison))
    reach, spaces = tuple(_reach(comparison)), tuple(_spaces(comparison))
    return [
        Section("runs", "Campaigns", "What ran, on what, and what it took.", overview),
        Section("winners", "Winners", "What each campaign found.", tuple(_winners(comparison))),
        Section("reach", "Cost to reach an error", reach_lead, reach),
        Section("spaces", "Spaces", "What each campaign searched.", spaces),
    ]


def _columns(comparison: RunComparison, first: str) -> tuple[Column, ...]:
    runs = (Column(f"run{n}", run.label) for n, run in enumerate(comparison.runs, start=1))
    return (Column("what", first), *runs)


def _overview(comparison: RunComparison) -> Table:
    met = {status for run in comparison.summaries for status in run.trials}
    statuses = [status for status in get_args(TrialStatus) if status in met]
    lines: list[tuple[str, Callable[[RunSummary], Cell]]] = [
        ("finished", lambda run: "yes" if run.finished else "no"),
        ("data checksum", lambda run: (run.data or "not known")[:12]),
        ("brain", lambda run: run.brain),
        ("seed", lambda run: run.seed),
        ("rungs [epochs]", lambda run: ", ".join(map(str, run.rungs))),
        ("budget [trials]", lambda run: run.budget_trials),
        *[(f"trials {status}", _count(status)) for status in statuses],
        ("hosts", lambda run: run.hosts),
        ("wall time [s]", lambda run: run.seconds),
        ("host-hours [h]", lambda run: run.host_seconds / 3600.0),
        ("utilization [%]", lambda run: _scaled(run.utilization, 100.0)),
        ("energy [kWh]", lambda run: _scaled(run.energy_joules, 1.0 / 3.6e6)),
    ]
    rows = tuple((label, *map(value_of, comparison.summaries)) for label, value_of in lines)
    return Table("overview", _columns(comparison, "campaign"), rows)


def _count(status: str) -> Callable[[RunSummary], Cell]:
    return lambda run: run.trials.get(status, 0)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _winners(comparison: RunComparison) -> Iterator[Block]:
    best = [run.winner for run in comparison.summaries]
    if not any(best):
        yield Text("No campaign has a result yet.")
        return

    def each(value_of: Callable[[WinningTrial], Cell]) -> list[Cell]:
        return [None if trial is None else value_of(trial) for trial in best]

    rows: list[Row] = [
        ("best trial", *each(lambda trial: escape_controls(trial.trial))),
        ("epochs", *each(lambda trial: trial.epochs)),
        ("objective (validation)", *each(lambda trial: trial.objective)),
    ]
    has_ensemble = any(run.facts.ensemble for run in comparison.runs)
    for head in comparison.heads:
        with_head = [run for run in comparison.runs if head in run.weights]
        units = dict.fromkeys(run.facts.units.get(head, "") for run in with_head)
        unit = f" [{' or '.join(filter(None, units))}]" if any(units) else ""
        errors = [None if trial is None else trial.val_mae.get(head) for trial in best]
        rows.append((f"val MAE {head}{unit}", *errors))
        if has_ensemble:
            tested = (run.test_mae[head] for run in comparison.summaries)
            rows.append((f"ensemble test MAE {head}{unit}", *tested))
    yield Table("errors", _columns(comparison, "error"), tuple(rows))
    keys = dict.fromkeys(key for trial in best if trial for key in trial.values)
    values = tuple(
        (escape_controls(key), *(_cell(trial.values.get(key)) if trial else None for trial in best))
        for key in keys
    )
    yield Table("values", _columns(comparison, "value of the best trial"), values)


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape_controls(value) if isinstance(value, str) else value


def _reach(comparison: RunComparison) -> Iterator[Block]:
    if comparison.levels:
        for attribute, name in COSTS.items():
            rows = tuple(_reach_rows(comparison, attribute))
            yield Table(attribute, _columns(comparison, f"{name} until"), rows)
    elif not comparison.same_data:
        yield Text("Left out: errors on different data are not comparable.")
    else:
        yield Text("The campaigns have no result in common that could be compared.")
    for quantity in comparison.quantities:
        yield _figure(comparison.runs, quantity)


def _reach_rows(comparison: RunComparison, attribute: str) -> Iterator[Row]:
    for level in comparison.levels:
        unit = f" {level.quantity.unit}" if level.quantity.unit else ""
        name = f"{level.quantity.label} {level.level:.4g}{unit} ({level.why})"
        yield (name, *(NEVER if f is None else getattr(f, attribute) for f in level.first))


def _figure(runs: Sequence[ComparedRun], quantity: Quantity) -> Figure:
    unit = f" [{quantity.unit}]" if quantity.unit else ""
    traces, least = [], 0.0
    for place, run in enumerate(runs):
        times, values = _steps(run, quantity.key)
        least = min([*values, *([least] if place else [])], default=least)
        line = {"color": series_colour(place), "shape": "hv"}
        traces.append(
            {"type": "scatter", "mode": "lines", "name": run.label, "line": line}
            | {"x": times, "y": values}
        )
    return Figure(
        key=f"best.{quantity.key}",
        title=f"Best {quantity.label} so far",
        caption=f"{quantity.label}{unit} of the best trial so far against host-seconds spent.",
        data=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "host-seconds"}, "type": "log"},
            "yaxis": {
                "title": {"text": f"{quantity.label}{unit}"},
                "type": "log" if least > 0.0 else "linear",
            },
        },
    )


def _steps(run: ComparedRun, key: str) -> tuple[list[float], list[float]]:
    """Return host-seconds and the best so far at each, drawn on to the run's end."""
    points = [(result.host_seconds, value) for result, value in run.best_so_far(key)]
    if points:
        points.append((max(run.host_seconds, points[-1][0]), points[-1][1]))
    return [time for time, _ in points], [value for _, value in points]


def _spaces(comparison: RunComparison) -> Iterator[Block]:
    keys = dict.fromkeys(key for run in comparison.summaries for key in run.space)
    every = {key: [run.space.get(key) for run in comparison.summaries] for key in keys}
    alike = [key for key, ranges in every.items() if len(set(ranges)) == 1]
    if len(alike) == len(every):
        yield Text("All campaigns searched the same space.")
        pairs = tuple(
            (escape_controls(key), escape_controls(str(ranges[0]))) for key, ranges in every.items()
        )
        yield Table("ranges", (Column("what", "parameter"), Column("range", "range")), pairs)
        return
    rows = []
    for key, ranges in every.items():
        cells = ("not searched" if text is None else escape_controls(text) for text in ranges)
        rows.append((escape_controls(key), "same" if key in alike else "differs", *cells))
    first, *runs = _columns(comparison, "parameter")
    yield Table("ranges", (first, Column("same", ""), *runs), tuple(rows))
