"""Comparison of campaigns: what each ran, its best result, and its cost to reach an error.

Objectives are compared only where heads and their weights are equal, errors only in equal units,
and costs only where checksums of the data (which cover the splits) are equal: a campaign on easier
structures is not a better one. Host-seconds are slot-seconds, idle ones included, divided by the
slots of a host. A result counts from the time at which its trial stops, at any rung; the time of
failed trials counts as spent.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict, get_args

from hydragnn_hpo.campaign import SlotLedger, Trial, TrialStatus
from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.files import write_text
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import Trace, series_colour
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.page import Title, render_page
from hydragnn_hpo.report.page_blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    Text,
    searched_cell,
)
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.search import finite_number, goal_label
from hydragnn_hpo.units import GUESSED

NEAR = 0.05
"""Distance of a default level above the best result of all runs, as a share of that result."""

NEVER = "not reached"

STATUSES = get_args(TrialStatus)

COSTS = {"host_seconds": "host-seconds", "trials": "trials", "seconds": "wall seconds"}
"""Labels of the cost fields of ``CostedResult``."""


class WinnerJson(TypedDict):
    """The best trial of a run."""

    trial: str
    epochs: int
    objective: float | None
    val_mae: Mapping[str, float | None]
    """Validation error by head, in the head's unit."""
    values: Mapping[str, Scalar]
    """Searched values."""


class RunJson(TypedDict):
    """One run as JSON."""

    label: str
    run: str
    """The run directory."""
    campaign: str
    finished: bool
    data: str | None
    """Checksum of the graphs."""
    seed: int
    brain: str
    objective: str | list[str]
    rungs: list[int]
    """In epochs."""
    budget_trials: int
    """Trials to search, including those added later."""
    trials: dict[str, int]
    """Number of trials by status; a status without trials is left out."""
    hosts: int
    seconds: float
    """Wall time from the first placement to the last event."""
    host_seconds: float
    slot_seconds: float
    utilization: float | None
    """Share of all slot time in training, from 0 to 1."""
    energy_joules: float | None
    winner: WinnerJson | None
    test_mae: dict[str, float | None]
    """Test error of the ensemble by head, in the head's unit."""
    units: dict[str, str]
    """Unit by head."""
    space: dict[str, str]
    """Range by searched key."""


class SpentJson(TypedDict):
    """Cost of a run up to the time when it first reached a level."""

    trial: str
    trials: int
    seconds: float
    host_seconds: float


class ReachedJson(TypedDict):
    """Cost of each run to reach one level."""

    quantity: str
    unit: str
    level: float
    why: str
    by: dict[str, SpentJson | None]
    """Cost by label of the run; None if the run never reached the level."""


class ComparisonJson(TypedDict):
    """``RunComparison`` as JSON."""

    runs: list[RunJson]
    warnings: list[str]
    same_data: bool
    reached: list[ReachedJson]


@dataclass(frozen=True)
class CostedResult:
    """A result, and the campaign's cost up to the time when its trial stopped."""

    trial: str
    trials: int
    """Trials that had ended at least once, including failures and this trial."""
    seconds: float
    """Wall time since the first placement."""
    host_seconds: float
    """Time of all hosts, idle or not; see ``accounting.SlotLedger``."""
    numbers: dict[str, float]
    """Result by name: ``objective``, ``val_mae.HEAD``, and ``score`` if it is a single number."""

    def to_plain(self) -> SpentJson:
        """Return plain data for JSON, without the result itself."""
        return {
            "trial": self.trial,
            "trials": self.trials,
            "seconds": self.seconds,
            "host_seconds": self.host_seconds,
        }


@dataclass(frozen=True)
class ComparedRun:
    """One of the compared runs, with a label that identifies it."""

    label: str
    facts: Facts

    @cached_property
    def results(self) -> tuple[CostedResult, ...]:
        """The results of the run.

        Returns:
            One entry for each attempt that ended with a result, in order of time.
        """
        return tuple(_read_results(self.facts))

    @property
    def host_seconds(self) -> float:
        """Host-seconds that the run has spent so far, idle ones included."""
        return self.facts.losses.slot_seconds / self.facts.slots_per_host

    @property
    def is_command(self) -> bool:
        """Whether the trials run the user's own command."""
        return self.facts.config.command is not None

    @property
    def data(self) -> str | None:
        """Checksum of the graphs; None for a command, or before the data is opened."""
        opened = (e["data"] for e in reversed(self.facts.events) if e["event"] == "opened")
        checksum = next((each for each in opened if each), None)
        return None if checksum is None else str(checksum)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the heads in the objective.

        Returns:
            Weight by head, as configured; they need not sum to 1.
        """
        heads = self.facts.config.trial.get("heads", {})
        return {head: float(values.get("weight", 1.0)) for head, values in heads.items()}

    @property
    def winner(self) -> Trial | None:
        """The best trial; None until a trial has a result."""
        return next(iter(self.facts.state.ranked()), None)

    @property
    def space(self) -> dict[str, str]:
        """Range of each searched key, in words.

        Returns:
            Range by key, as ``range_of`` describes it.
        """
        return {key: range_of(parameter) for key, parameter in self.facts.config.space.items()}

    def test_mae(self, head: str) -> float | None:
        """Return the ensemble's mean absolute test error for a head; None without an ensemble."""
        scores = self.facts.ensemble["heads"].get(head) if self.facts.ensemble is not None else None
        return None if scores is None else finite_number(scores.get("test_mae"))

    def best_so_far(self, key: str) -> list[tuple[CostedResult, float]]:
        """Return each result that improved on all earlier ones, with its value of ``key``."""
        best: list[tuple[CostedResult, float]] = []
        for result in self.results:
            value = result.numbers.get(key)
            if value is not None and (not best or value < best[-1][1]):
                best.append((result, value))
        return best

    def to_plain(self, heads: Sequence[str]) -> RunJson:
        """Return the run as plain data for JSON, with the ensemble's test errors for ``heads``."""
        facts, search, best = self.facts, self.facts.config.search, self.winner
        counts = Counter(trial.status for trial in facts.state.trials.values())
        return {
            "label": self.label,
            "run": str(facts.run.path),
            "campaign": facts.config.name,
            "finished": facts.state.finished,
            "data": self.data,
            "seed": facts.config.seed,
            "brain": search.brain,
            "objective": search.model_dump(mode="json")["objective"],
            "rungs": list(search.rungs),
            "budget_trials": search.trials + facts.state.added,
            "trials": {
                status: counts[status] for status in get_args(TrialStatus) if counts[status]
            },
            "hosts": len({slot.rpartition(":")[0] for slot in facts.history.slots.all_slots}),
            "seconds": (facts.end or 0.0) - (facts.begin or 0.0),
            "host_seconds": self.host_seconds,
            "slot_seconds": facts.losses.slot_seconds,
            "utilization": facts.figures["utilization"],
            "energy_joules": facts.figures.get("energy_joules"),
            "winner": None if best is None else _winner_to_plain(best),
            "test_mae": {head: self.test_mae(head) for head in heads},
            "units": dict(facts.units),
            "space": self.space,
        }


def _winner_to_plain(best: Trial) -> WinnerJson:
    return {
        "trial": best.name,
        "epochs": best.epoch,
        "objective": best.objective,
        "val_mae": best.val_mae,
        "values": best.values,
    }


def _read_results(facts: Facts) -> Iterator[CostedResult]:
    """Yield the results of a run in order of time, each with what the run had spent by then."""
    ledger = SlotLedger()
    ended = set[str]()
    begin = facts.begin or 0.0
    for event in facts.events:
        ledger.apply(event)
        if event["event"] != "ended" or event["outcome"] in ("interrupted", "cancelled"):
            continue
        ended.add(event["trial"])  # before failures are skipped: they count as ended trials
        raw = {"objective": event.get("objective"), "score": event.get("score")}
        raw |= {f"val_mae.{head}": mae for head, mae in (event.get("val_mae") or {}).items()}
        numbers = {key: value for key, v in raw.items() if (value := finite_number(v)) is not None}
        if event["outcome"] != "failed" and numbers:
            yield CostedResult(
                trial=event["trial"],
                trials=len(ended),
                seconds=event["time"] - begin,
                host_seconds=ledger.utilization().slot_seconds / facts.slots_per_host,
                numbers=numbers,
            )


def range_of(parameter: ParameterConfig) -> str:
    """Return the range of a parameter in words, and the condition under which it is active.

    >>> range_of(ParameterConfig(low=1, high=9, step=2))
    '1 to 9, step 2'
    """
    if parameter.choices is not None:
        text = ", ".join(map(str, parameter.choices))
    else:
        text = f"{parameter.low} to {parameter.high}"
        text += ", log" if parameter.log else ""
        text += f", step {parameter.step}" if parameter.step is not None else ""
    when = " and ".join(f"{key} is {_one_of(wanted)}" for key, wanted in parameter.when.items())
    return f"{text}; if {when}" if when else text


def _one_of(wanted: Scalar | tuple[Scalar, ...]) -> str:
    return " or ".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted)


def read_campaigns(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs to compare.

    Raises:
        ConfigError: there are fewer than two paths, or one is given twice.
        RunError: a directory holds no run, or one that is damaged or has not started.
    """
    if len(paths) < 2:
        raise ConfigError(
            "one run directory is nothing to compare; give two, or see hydragnn-hpo report RUN."
        )
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(paths):
        if resolved[place] in resolved[:place]:
            raise ConfigError(f"{path}: is named twice: name different runs.")
    read = [read_facts(RunDir(path)) for path in paths]
    for facts in read:
        if facts.begin is None:
            raise RunError(f"{facts.run.path}: nothing has run there yet: compare it later.")
    # the shortest distinct labels: the campaign, its directory, both, or its whole path
    names = [facts.config.name for facts in read]
    folders = [path.name for path in resolved]
    both = [f"{name} ({folder})" for name, folder in zip(names, folders, strict=True)]
    choices = (names, folders, both, list(map(str, paths)))
    labels = next(labels for labels in choices if len(set(labels)) == len(labels))
    return [ComparedRun(escape_controls(n), facts) for n, facts in zip(labels, read, strict=True)]


# -- comparing -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """A minimized quantity by which all runs can be compared."""

    key: str
    """A key of ``CostedResult.numbers``."""
    label: str
    unit: str


@dataclass(frozen=True)
class LevelCost:
    """The first result of each run that was at or below a level."""

    quantity: Quantity
    level: float
    why: str
    """Why this level: ``the worst of the bests``, ``5 % above the best``, ``asked for``."""
    first: tuple[CostedResult | None, ...]
    """In the order of the runs; None if a run never reached the level."""


@dataclass(frozen=True)
class RunComparison:
    """Compared runs, and what each spent to reach common levels."""

    runs: tuple[ComparedRun, ...]
    warnings: tuple[str, ...]
    """Reasons why the runs are hard to compare."""
    same_data: bool
    quantities: tuple[Quantity, ...]
    heads: tuple[str, ...]
    levels: tuple[LevelCost, ...]

    def to_plain(self) -> ComparisonJson:
        """Return plain data for JSON."""
        return {
            "runs": [run.to_plain(self.heads) for run in self.runs],
            "warnings": list(self.warnings),
            "same_data": self.same_data,
            "reached": [self._reached(level) for level in self.levels],
        }

    def _reached(self, level: LevelCost) -> ReachedJson:
        return {
            "quantity": level.quantity.key,
            "unit": level.quantity.unit,
            "level": level.level,
            "why": level.why,
            "by": {
                run.label: None if first is None else first.to_plain()
                for run, first in zip(self.runs, level.first, strict=True)
            },
        }


def compare_runs(
    runs: Sequence[ComparedRun], wanted: Sequence[tuple[str, float]] = ()
) -> RunComparison:
    """Compare runs, and compute what each spent to reach common levels.

    Args:
        runs: two or more runs.
        wanted: levels whose cost to report: name of a head or key of a quantity, and the level in
            its unit. If empty, levels are chosen from the best results of the runs.

    Raises:
        ConfigError: a level names a quantity by which the runs cannot be compared.
    """
    checksums = {run.data for run in runs}
    commands = all(run.is_command for run in runs)
    same = len(checksums) == 1 and (commands or None not in checksums)
    heads = _heads(runs)
    quantities = _quantities(runs)
    return RunComparison(
        runs=tuple(runs),
        warnings=tuple(_warnings(runs, quantities)),
        same_data=same,
        quantities=tuple(quantities),
        heads=tuple(heads),
        levels=tuple(_level_costs(runs, quantities, wanted)) if same or wanted else (),
    )


def _heads(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the heads of all runs, in order of first appearance."""
    heads = dict.fromkeys(head for run in runs for head in run.weights)
    for run in runs:
        keys = (key for result in run.results for key in result.numbers)
        heads |= dict.fromkeys(k.removeprefix("val_mae.") for k in keys if "val_mae." in k)
    return list(heads)


def _quantities(runs: Sequence[ComparedRun]) -> list[Quantity]:
    """Return the quantities that all runs have in the same unit and with the same meaning."""

    def all_have(key: str) -> bool:
        return all(any(key in result.numbers for result in run.results) for run in runs)

    quantities = []
    if all(run.weights == runs[0].weights for run in runs) and all_have("objective"):
        quantities.append(Quantity("objective", "objective", ""))
    goals = [run.facts.config.search.objective for run in runs]
    goal = goals[0]
    ours = goal == "weighted" or (isinstance(goal, str) and goal.startswith("val_mae."))
    single = not isinstance(goal, tuple) and all(each == goal for each in goals)
    if not ours and not isinstance(goal, tuple) and single and all_have("score"):
        quantities.append(Quantity("score", goal_label(goal), ""))
    for head in _heads(runs):
        units = _distinct_units(runs, head)
        if len(units) == 1 and all_have(f"val_mae.{head}"):
            quantities.append(Quantity(f"val_mae.{head}", f"val MAE {head}", units[0]))
    return quantities


def _distinct_units(runs: Iterable[ComparedRun], head: str) -> list[str]:
    """Return the units of a head in several runs; of a guess and the same unit only the guess."""
    units = sorted({run.facts.units.get(head, "") for run in runs})  # a guess follows its unit
    return [*{unit.removesuffix(GUESSED): unit for unit in units}.values()]


def _warnings(runs: Sequence[ComparedRun], quantities: Sequence[Quantity]) -> Iterator[str]:
    """Yield the reasons why runs are hard to compare, most important first."""
    yield from _data_warnings(runs)
    trained = [run for run in runs if run.weights]
    if len(trained) == len(runs) and "objective" not in {each.key for each in quantities}:
        yield "Their objectives weigh heads differently, or one has no result: not compared."
    partly = [h for h in _heads(trained) if any(h not in run.weights for run in trained)]
    if partly:
        yield f"Not compared, since not all runs have them: {', '.join(partly)}."
    for head in _heads(trained):
        units = _distinct_units([run for run in trained if head in run.weights], head)
        if len(units) > 1:
            yield f"Head {head} has different units ({', '.join(units)}): not compared."
    for run in runs:
        if not run.facts.state.finished:
            yield f"{run.label} is not finished: its figures are those of this moment."
        if not run.results:
            yield f"{run.label} has no result yet."


def _data_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    checksums = {run.data for run in runs}
    if all(run.is_command for run in runs):
        yield "Their trials are commands: whether they mean the same is for you to know."
    elif any(run.is_command for run in runs):
        yield "Some runs train on data, others run a command: their errors are not comparable."
    elif None in checksums:
        yield "The data of some runs is not known: their errors may not be comparable."
    elif len(checksums) > 1:
        yield (
            "The runs saw different data (checksums differ): errors of different structures are "
            "not comparable, and what it cost to reach one is left out."
        )


def _level_costs(
    runs: Sequence[ComparedRun], known: Sequence[Quantity], wanted: Sequence[tuple[str, float]]
) -> Iterator[LevelCost]:
    """Yield the cost of the wanted levels, or else of two levels of every quantity.

    Args:
        runs: two or more runs.
        known: quantities by which the runs can be compared.
        wanted: name of a head or key of a quantity, and the level in its unit.

    Raises:
        ConfigError: a name is not known.
    """
    levels = [(_find_quantity(known, name), level, "asked for") for name, level in wanted]
    for quantity in () if wanted else known:
        bests = [run.best_so_far(quantity.key)[-1][1] for run in runs]
        near = min(bests) + NEAR * abs(min(bests))
        levels.append((quantity, max(bests), "the worst of the bests"))
        if near < max(bests):
            levels.append((quantity, near, f"{100 * NEAR:.0f} % above the best"))
    for quantity, level, why in levels:
        best = [run.best_so_far(quantity.key) for run in runs]
        first = (next((r for r, value in each if value <= level), None) for each in best)
        yield LevelCost(quantity, level, why, tuple(first))


def _find_quantity(known: Sequence[Quantity], name: str) -> Quantity:
    for quantity in known:
        if name in (quantity.key, quantity.key.removeprefix("val_mae.")):
            return quantity
    names = [quantity.key.removeprefix("val_mae.") for quantity in known]
    if not names:
        raise ConfigError(
            "--reach: these runs have nothing in common to be compared by: name others."
        )
    raise ConfigError(f"--reach: {unknown('quantity', name, names)}")


# -- tables and charts -----------------------------------------------------------------------


def write_comparison(comparison: RunComparison, out: Path) -> None:
    """Write a comparison atomically as one HTML file that needs no network.

    Raises:
        StorageError: the file cannot be written.
    """
    labels = ", ".join(run.label for run in comparison.runs)
    heading = Title(f"{len(comparison.runs)} campaigns side by side", labels)
    write_text(out, render_page(heading, compare_sections(comparison)))


def compare_sections(comparison: RunComparison) -> list[Section]:
    """Return the sections of the page; the terminal shows the same tables."""
    reach_lead = (
        "What each campaign had spent when its best trial so far first was as good as a level. "
        "Counted are results on validation data, and hosts whether idle or not."
    )
    overview: tuple[Block, ...] = (*map(Text, comparison.warnings), _overview(comparison))
    reach = tuple(_reach(comparison))
    spaces = tuple(_spaces(comparison.runs))
    return [
        Section("runs", "Campaigns", "What ran, on what, and what it took.", overview),
        Section("winners", "Winners", "What each campaign found.", tuple(_winners(comparison))),
        Section("reach", "Cost to reach an error", reach_lead, reach),
        Section("spaces", "Spaces", "What each campaign searched.", spaces),
    ]


def _run_table(
    key: str, first: str, runs: Sequence[ComparedRun], rows: Mapping[str, Sequence[Cell]]
) -> Table:
    """Make a table with one column for each run.

    Args:
        key: key of the table.
        first: title of the first column, which names the rows.
        runs: the compared runs.
        rows: one cell for each run, by name of the row.
    """
    columns = (Column(f"run{n}", run.label) for n, run in enumerate(runs, start=1))
    cells = tuple((name, *each) for name, each in rows.items())
    return Table(key, (Column("what", first), *columns), cells)


def _overview(comparison: RunComparison) -> Table:
    plain = [run.to_plain(comparison.heads) for run in comparison.runs]
    statuses = [s for s in STATUSES if any(s in each["trials"] for each in plain)]

    def scaled(values: Iterable[float | None], factor: float) -> list[Cell]:
        return [None if value is None else factor * value for value in values]

    rows: dict[str, list[Cell]] = {
        "finished": ["yes" if each["finished"] else "no" for each in plain],
        "data checksum": [(each["data"] or "not known")[:12] for each in plain],
        "brain": [each["brain"] for each in plain],
        "seed": [each["seed"] for each in plain],
        "rungs [epochs]": [", ".join(map(str, each["rungs"])) for each in plain],
        "budget [trials]": [each["budget_trials"] for each in plain],
        **{f"trials {s}": [each["trials"].get(s, 0) for each in plain] for s in statuses},
        "hosts": [each["hosts"] for each in plain],
        "wall time [s]": [each["seconds"] for each in plain],
        "host-hours [h]": scaled((each["host_seconds"] for each in plain), 1.0 / 3600.0),
        "utilization [%]": scaled((each["utilization"] for each in plain), 100.0),
        "energy [kWh]": scaled((each["energy_joules"] for each in plain), 1.0 / 3.6e6),
    }
    return _run_table("overview", "campaign", comparison.runs, rows)


def _winners(comparison: RunComparison) -> Iterator[Block]:
    runs = comparison.runs
    best = [run.winner for run in runs]
    if not any(best):
        yield Text("No campaign has a result yet.")
        return

    def of_best(value_of: Callable[[Trial], Cell]) -> list[Cell]:
        return [None if trial is None else value_of(trial) for trial in best]

    rows = {
        "best trial": of_best(lambda trial: escape_controls(trial.name)),
        "epochs": of_best(lambda trial: trial.epoch),
        "objective (validation)": of_best(lambda trial: trial.objective),
    }
    has_ensemble = any(run.facts.ensemble for run in runs)
    for head in comparison.heads:
        units = _distinct_units([run for run in runs if head in run.weights], head)
        unit = f" [{' or '.join(filter(None, units))}]" if any(units) else ""
        errors: list[Cell] = [None if t is None else t.val_mae.get(head) for t in best]
        rows[f"val MAE {head}{unit}"] = errors
        if has_ensemble:
            rows[f"ensemble test MAE {head}{unit}"] = [run.test_mae(head) for run in runs]
    yield _run_table("errors", "error", runs, rows)
    keys = dict.fromkeys(key for trial in best if trial for key in trial.values)
    values = {
        escape_controls(key): [None if t is None else _value_cell(t.values.get(key)) for t in best]
        for key in keys
    }
    yield _run_table("values", "value of the best trial", runs, values)


def _value_cell(value: Scalar | None) -> Cell:
    return escape_controls(value) if isinstance(value, str) else searched_cell(value)


def _reach(comparison: RunComparison) -> Iterator[Block]:
    if not comparison.levels and not comparison.same_data:
        yield Text("Left out: errors on different data are not comparable.")
    elif not comparison.levels:
        yield Text("The campaigns have no result in common that could be compared.")
    for attribute, title in COSTS.items() if comparison.levels else ():
        rows: dict[str, list[Cell]] = {}
        for level in comparison.levels:
            unit = f" {level.quantity.unit}" if level.quantity.unit else ""
            name = f"{level.quantity.label} {level.level:.4g}{unit} ({level.why})"
            rows[name] = [NEVER if one is None else getattr(one, attribute) for one in level.first]
        yield _run_table(attribute, f"{title} until", comparison.runs, rows)
    for quantity in comparison.quantities:
        yield _best_so_far_figure(comparison.runs, quantity)


def _best_so_far_figure(runs: Sequence[ComparedRun], quantity: Quantity) -> Figure:
    unit = f" [{quantity.unit}]" if quantity.unit else ""
    traces: list[Trace] = []
    least = float("inf")
    for place, run in enumerate(runs):
        points = [(result.host_seconds, value) for result, value in run.best_so_far(quantity.key)]
        # extends the line to the end of the run
        points.append((max(run.host_seconds, points[-1][0]), points[-1][1]))
        times, values = zip(*points, strict=True)
        least = min(least, *values)
        line: Trace = {"color": series_colour(place), "shape": "hv"}
        named: Trace = {"type": "scatter", "mode": "lines", "name": run.label, "line": line}
        traces.append({**named, "x": times, "y": values})
    scale = "log" if least > 0.0 else "linear"
    return Figure(
        key=f"best.{quantity.key}",
        title=f"Best {quantity.label} so far",
        caption=f"{quantity.label}{unit} of the best trial so far against host-seconds spent.",
        data=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "host-seconds"}, "type": "log"},
            "yaxis": {"title": {"text": f"{quantity.label}{unit}"}, "type": scale},
        },
    )


def _spaces(runs: Sequence[ComparedRun]) -> Iterator[Block]:
    spaces = [run.space for run in runs]
    ranges = {key: [space.get(key) for space in spaces] for space in spaces for key in space}
    if all(len(set(each)) == 1 for each in ranges.values()):
        yield Text("All campaigns searched the same space.")
        shared = tuple(
            (escape_controls(key), escape_controls(str(each[0]))) for key, each in ranges.items()
        )
        yield Table("ranges", (Column("what", "parameter"), Column("range", "range")), shared)
        return
    rows: dict[str, list[Cell]] = {}
    for key, each in ranges.items():
        cells = ["not searched" if text is None else escape_controls(text) for text in each]
        rows[escape_controls(key)] = ["same" if len(set(each)) == 1 else "differs", *cells]
    table = _run_table("ranges", "parameter", runs, rows)
    first, *others = table.columns
    yield Table("ranges", (first, Column("same", ""), *others), table.rows)
