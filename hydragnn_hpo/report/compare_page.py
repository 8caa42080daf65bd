"""A comparison in the words of a page: the terminal shows the same tables."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from hydragnn_hpo.campaign.records.state import Status, Trial
from hydragnn_hpo.files import write_text
from hydragnn_hpo.report.compare import (
    Campaign,
    Comparison,
    Quantity,
    best_so_far,
    outcomes,
    spaces,
)
from hydragnn_hpo.report.page.blocks import Block, Cell, Column, Figure, Section, Table, Text
from hydragnn_hpo.report.page.page import Title, document
from hydragnn_hpo.report.page.palette import series
from hydragnn_hpo.report.pictures.look import ALARM, COLOURS, FAINT, blank, tidy, title, write_png
from hydragnn_hpo.text import shown

Row = tuple[Cell, ...]
Of = Callable[[Campaign], Cell]

NEVER = "not reached"

COSTS = {"host_seconds": "host-seconds", "trials": "trials", "seconds": "wall seconds"}
"""What it took to reach a level: fields of ``Result``, and their names."""


def sections_of(found: Comparison) -> list[Section]:
    """Give the sections of a page about some runs."""
    return [
        Section("runs", "Campaigns", "What ran, on what, and what it took.", _runs(found)),
        Section("winners", "Winners", "What each campaign found.", tuple(_winners(found))),
        Section("reach", "Cost to reach an error", _lead(found), tuple(_reach(found))),
        Section("spaces", "Spaces", "What each campaign searched.", tuple(_spaces(found))),
    ]


def _columns(found: Comparison, first: str) -> tuple[Column, ...]:
    runs = (Column(f"run{n}", run.label) for n, run in enumerate(found.runs, start=1))
    return (Column("what", first), *runs)


def _runs(found: Comparison) -> tuple[Block, ...]:
    there = {status for run in found.runs for status in outcomes(run)}
    statuses = [status for status in get_args(Status) if status in there]
    lines: list[tuple[str, Of]] = [
        ("finished", lambda run: "yes" if run.facts.state.finished else "no"),
        ("data checksum", lambda run: (run.data or "not known")[:12]),
        ("brain", lambda run: run.facts.config.search.brain),
        ("seed", lambda run: run.facts.config.seed),
        ("rungs [epochs]", lambda run: ", ".join(map(str, run.facts.config.search.rungs))),
        ("budget [trials]", lambda run: run.facts.config.search.trials + run.facts.state.added),
        *[(f"trials {status}", _count(status)) for status in statuses],
        ("hosts", lambda run: run.hosts),
        ("wall time [s]", lambda run: run.seconds),
        ("host-hours [h]", lambda run: run.host_seconds / 3600.0),
        ("utilization [%]", _utilization),
        ("energy [kWh]", _energy),
    ]
    rows = tuple((label, *map(of, found.runs)) for label, of in lines)
    table = Table("overview", _columns(found, "campaign"), rows)
    return (*map(Text, found.warnings), table)


def _count(status: str) -> Of:
    return lambda run: outcomes(run).get(status, 0)


def _utilization(run: Campaign) -> Cell:
    share = run.facts.figures["utilization"]
    return None if share is None else 100.0 * share


def _energy(run: Campaign) -> Cell:
    joules = run.facts.figures["energy_joules"]
    return None if joules is None else joules / 3.6e6


def _winners(found: Comparison) -> Iterator[Block]:
    runs, best = found.runs, [run.winner for run in found.runs]
    if not any(best):
        yield Text("No campaign has a result yet.")
        return
    rows: list[Row] = [
        ("best trial", *_each(best, lambda trial: shown(trial.name))),
        ("epochs", *_each(best, lambda trial: trial.epoch)),
        ("objective (validation)", *_each(best, lambda trial: trial.objective)),
    ]
    for head in found.heads:
        units = dict.fromkeys(run.facts.units.get(head, "") for run in runs if head in run.weights)
        unit = f" [{' or '.join(filter(None, units))}]" if any(units) else ""
        rows.append((f"val MAE {head}{unit}", *_errors(best, head)))
        if any(run.facts.ensemble for run in runs):
            tested = (run.test_mae(head) for run in runs)
            rows.append((f"ensemble test MAE {head}{unit}", *tested))
    yield Table("errors", _columns(found, "error"), tuple(rows))
    keys = dict.fromkeys(key for trial in best if trial for key in trial.values)
    values = tuple(
        (shown(key), *(_cell(trial.values.get(key)) if trial else None for trial in best))
        for key in keys
    )
    yield Table("values", _columns(found, "value of the best trial"), values)


def _each(trials: Sequence[Trial | None], of: Callable[[Trial], Cell]) -> list[Cell]:
    return [None if trial is None else of(trial) for trial in trials]


def _errors(trials: Sequence[Trial | None], head: str) -> list[Cell]:
    return _each(trials, lambda trial: trial.val_mae.get(head))


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return shown(value) if isinstance(value, str) else value


def _lead(found: Comparison) -> str:
    return (
        "What each campaign had spent when its best trial so far first was as good as a level. "
        "Counted are results on validation data, and hosts whether idle or not."
    )


def _reach(found: Comparison) -> Iterator[Block]:
    if found.levels:
        for attribute, said in COSTS.items():
            rows = tuple(_reach_rows(found, attribute))
            yield Table(attribute, _columns(found, f"{said} until"), rows)
    elif not found.same_data:
        yield Text("Left out: errors on different data are not comparable.")
    else:
        yield Text("The campaigns have no result in common that could be compared.")
    for quantity in found.quantities:
        yield _figure(found.runs, quantity)


def _reach_rows(found: Comparison, attribute: str) -> Iterator[Row]:
    for level in found.levels:
        unit = f" {level.quantity.unit}" if level.quantity.unit else ""
        name = f"{level.quantity.label} {level.level:.4g}{unit} ({level.why})"
        yield (name, *(NEVER if f is None else getattr(f, attribute) for f in level.first))


def _figure(runs: Sequence[Campaign], quantity: Quantity) -> Figure:
    unit = f" [{quantity.unit}]" if quantity.unit else ""
    traces, least = [], 0.0
    for place, run in enumerate(runs):
        times, values = steps(run, quantity.key)
        least = min([*values, *([least] if place else [])], default=least)
        line = {"color": series(place), "shape": "hv"}
        traces.append(
            {"type": "scatter", "mode": "lines", "name": run.label, "line": line}
            | {"x": times, "y": values}
        )
    return Figure(
        key=f"best.{quantity.key}",
        title=f"Best {quantity.label} so far",
        says=f"{quantity.label}{unit} of the best trial so far against host-seconds spent.",
        data=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "host-seconds"}, "type": "log"},
            "yaxis": {
                "title": {"text": f"{quantity.label}{unit}"},
                "type": "log" if least > 0.0 else "linear",
            },
        },
    )


def steps(run: Campaign, key: str) -> tuple[list[float], list[float]]:
    """Give host-seconds and the best so far, drawn on to the run's end."""
    points = [(result.host_seconds, value) for result, value in best_so_far(run, key)]
    if points:
        points.append((max(run.host_seconds, points[-1][0]), points[-1][1]))
    return [time for time, _ in points], [value for _, value in points]


def _spaces(found: Comparison) -> Iterator[Block]:
    every = spaces(found.runs)
    alike = [key for key, ranges in every.items() if len(set(ranges)) == 1]
    if len(alike) == len(every):
        yield Text("All campaigns searched the same space.")
        pairs = tuple((shown(key), shown(str(ranges[0]))) for key, ranges in every.items())
        yield Table("ranges", (Column("what", "parameter"), Column("range", "range")), pairs)
        return
    rows = []
    for key, ranges in every.items():
        cells = ("not searched" if text is None else shown(text) for text in ranges)
        rows.append((shown(key), "same" if key in alike else "differs", *cells))
    runs = (Column(f"run{n}", run.label) for n, run in enumerate(found.runs, start=1))
    columns = (Column("what", "parameter"), Column("same", ""), *runs)
    yield Table("ranges", columns, tuple(rows))


def write_comparison(found: Comparison, out: Path) -> None:
    """Write a comparison, whole or not at all; it needs no network, as a report.

    Raises:
        StorageError: the file cannot be written.
    """
    labels = ", ".join(run.label for run in found.runs)
    title = Title(f"{len(found.runs)} campaigns side by side", labels)
    write_text(out, document(title, sections_of(found)))


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
    figure = blank(4.2 * across + 0.6, 3.2 * down + 0.6)
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
        title(axis, quantity.label.replace("_", " "))
        tidy(axis)
    axes[0].legend(frameon=False, fontsize=8)
    if not found.same_data:
        figure.suptitle(found.warnings[0], color=ALARM, fontsize=8, wrap=True)
    write_png(figure, out)
