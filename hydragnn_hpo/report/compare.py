"""Campaigns side by side: what each ran and found, and what it cost to reach an error.

Objectives are compared only where heads and their weights are equal, errors only in equal units,
and costs only where checksums of the data (which cover the splits) are equal: a campaign on easier
structures is not a better one. Host-seconds are slot-seconds, idle ones too, by the slots of a
host. A result counts when its trial comes to rest, at any rung; failed trials count as spent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from hydragnn_hpo.campaign import SlotLedger, TrialStatus
from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.search import finite_number, goal_label

NEAR = 0.05
"""How far above the best of all runs one of the default levels lies."""


@dataclass(frozen=True)
class CostedResult:
    """A result, and what the campaign had spent when its trial came to rest."""

    trial: str
    trials: int
    """Trials that had ended at least once, failures too, this one included."""
    seconds: float
    """Since the first placement."""
    host_seconds: float
    """Of all hosts, idle or not; see ``accounting.SlotLedger``."""
    numbers: dict[str, float]
    """``objective``, ``val_mae.HEAD``, ``score`` where it is one number."""


@dataclass(frozen=True)
class WinningTrial:
    """The best trial of a campaign."""

    trial: str
    epochs: int
    objective: float | None
    val_mae: Mapping[str, float | None]
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class RunSummary:
    """One run of a comparison, with the fields of its JSON."""

    label: str
    run: str
    campaign: str
    finished: bool
    data: str | None
    """Checksum of its graphs; None for a command, or before they are there."""
    seed: int
    brain: str
    objective: Any
    rungs: list[int]
    budget_trials: int
    trials: dict[str, int]
    """By status."""
    hosts: int
    """Hosts that ever were there."""
    seconds: float | None
    """From the first placement to the last event."""
    host_seconds: float
    slot_seconds: float
    utilization: float | None
    energy_joules: float | None
    winner: WinningTrial | None
    """None before there is a result."""
    test_mae: dict[str, float | None]
    """Of the ensemble, by head; None without one."""
    units: dict[str, str]
    space: dict[str, str]
    """Range of each searched key."""


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared."""

    label: str
    facts: Facts

    @cached_property
    def results(self) -> tuple[CostedResult, ...]:
        """All results, in the order in which they came."""
        return tuple(_read_results(self.facts))

    @property
    def host_seconds(self) -> float:
        """Total spent."""
        return self.facts.losses.slot_seconds / self.facts.slots_per_host

    @property
    def data(self) -> str | None:
        """Checksum of its graphs; None for a command, or before they are there."""
        opened = (e["data"] for e in reversed(self.facts.events) if e["event"] == "opened")
        checksum = next((each for each in opened if each), None)
        return None if checksum is None else str(checksum)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the heads in the objective."""
        heads = self.facts.config.trial.get("heads", {})
        return {head: float(values.get("weight", 1.0)) for head, values in heads.items()}

    def best_so_far(self, key: str) -> list[tuple[CostedResult, float]]:
        """Return the results that were better than all before them, and their values."""
        best: list[tuple[CostedResult, float]] = []
        for result in self.results:
            value = result.numbers.get(key)
            if value is not None and (not best or value < best[-1][1]):
                best.append((result, value))
        return best


def read_campaigns(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs to compare.

    Raises:
        ConfigError: they are fewer than two, or one is named twice.
        RunError: one is no run, or is damaged.
    """
    if len(paths) < 2:
        raise ConfigError(
            "compare needs two run directories or more; one by itself: hydragnn-hpo report RUN."
        )
    seen: dict[Path, Path] = {}
    for path in paths:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise ConfigError(f"{path}: is named twice: name different runs.")
    read = [read_facts(RunDir(path)) for path in paths]
    for facts in read:
        if facts.begin is None:
            raise RunError(f"{facts.run.path}: nothing has run there yet: compare it later.")
    labels = _labels(paths, [facts.config.name for facts in read])
    return [
        ComparedRun(escape_controls(label), facts)
        for label, facts in zip(labels, read, strict=True)
    ]


def _labels(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Choose the shortest distinct labels: the campaign, its directory, or its whole path."""
    folders = [path.resolve().name for path in paths]
    both = [f"{name} ({folder})" for name, folder in zip(names, folders, strict=True)]
    for labels in (list(names), folders, both):
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in paths]


def _read_results(facts: Facts) -> Iterator[CostedResult]:
    ledger, seen = SlotLedger(), set[str]()
    begin, share = facts.begin or 0.0, facts.slots_per_host
    for event in facts.events:
        ledger.apply(event)
        if event["event"] != "ended" or event["outcome"] in ("interrupted", "cancelled"):
            continue
        seen.add(event["trial"])
        raw = {"objective": event.get("objective"), "score": event.get("score")}
        raw |= {f"val_mae.{head}": e for head, e in (event.get("val_mae") or {}).items()}
        numbers = {key: value for key, v in raw.items() if (value := finite_number(v)) is not None}
        if event["outcome"] != "failed" and numbers:
            yield CostedResult(
                trial=event["trial"],
                trials=len(seen),
                seconds=event["time"] - begin,
                host_seconds=ledger.utilization().slot_seconds / share,
                numbers=numbers,
            )


def _summarize(run: ComparedRun, heads: Sequence[str]) -> RunSummary:
    facts, search = run.facts, run.facts.config.search
    counts = Counter(trial.status for trial in facts.state.trials.values())
    table: Any = facts.ensemble or {}
    tested = {head: table.get("heads", {}).get(head, {}).get("test_mae") for head in heads}
    ranked = facts.state.ranked()
    assert facts.begin is not None
    assert facts.end is not None
    return RunSummary(
        label=run.label,
        run=str(facts.run.path),
        campaign=facts.config.name,
        finished=facts.state.finished,
        data=run.data,
        seed=facts.config.seed,
        brain=search.brain,
        objective=search.model_dump(mode="json")["objective"],
        rungs=list(search.rungs),
        budget_trials=search.trials + facts.state.added,
        trials={status: counts[status] for status in get_args(TrialStatus) if counts[status]},
        hosts=len({slot.rpartition(":")[0] for slot in facts.history.slots.all_slots}),
        seconds=facts.end - facts.begin,
        host_seconds=run.host_seconds,
        slot_seconds=facts.losses.slot_seconds,
        utilization=facts.figures["utilization"],
        energy_joules=facts.figures["energy_joules"],
        winner=_winner(ranked[0]) if ranked else None,
        test_mae={head: finite_number(error) for head, error in tested.items()},
        units=dict(facts.units),
        space={key: range_of(parameter) for key, parameter in facts.config.space.items()},
    )


def _winner(trial: Any) -> WinningTrial:
    return WinningTrial(trial.name, trial.epoch, trial.objective, trial.val_mae, trial.values)


def range_of(parameter: ParameterConfig) -> str:
    """Describe the values of a parameter.

    >>> range_of(ParameterConfig(low=1, high=9, step=2))
    '1 to 9, step 2'
    """
    if parameter.choices is not None:
        text = ", ".join(map(str, parameter.choices))
    else:
        text = f"{parameter.low} to {parameter.high}"
        text += ", log" if parameter.log else ""
        text += f", step {parameter.step}" if parameter.step is not None else ""
    when = " and ".join(f"{key} {_one_of(wanted)}" for key, wanted in parameter.when.items())
    return f"{text}; if {when}" if when else text


def _one_of(wanted: Any) -> str:
    return " or ".join(map(str, wanted)) if isinstance(wanted, tuple) else f"is {wanted}"


@dataclass(frozen=True)
class Quantity:
    """Something that all runs minimized, and may be compared by."""

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
    """By run; None where it never was."""


@dataclass(frozen=True)
class RunComparison:
    """Some runs side by side."""

    runs: tuple[ComparedRun, ...]
    summaries: tuple[RunSummary, ...]
    warnings: tuple[str, ...]
    """What makes them hard to compare."""
    same_data: bool
    quantities: tuple[Quantity, ...]
    heads: tuple[str, ...]
    levels: tuple[LevelCost, ...]

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "runs": [asdict(summary) for summary in self.summaries],
            "warnings": list(self.warnings),
            "same_data": self.same_data,
            "reached": [self._level_to_plain(level) for level in self.levels],
        }

    def _level_to_plain(self, level: LevelCost) -> dict[str, Any]:
        costs = {
            run.label: first and {k: v for k, v in vars(first).items() if k != "numbers"}
            for run, first in zip(self.runs, level.first, strict=True)
        }
        return {
            "quantity": level.quantity.key,
            "unit": level.quantity.unit,
            "level": level.level,
            "why": level.why,
            "by": costs,
        }


def compare_runs(
    runs: Sequence[ComparedRun], asked: Sequence[tuple[str, float]] = ()
) -> RunComparison:
    """Set runs side by side.

    Args:
        runs: two or more.
        asked: levels whose cost is wanted, by name of a head or key of a quantity; chosen from
            the runs' bests if none is given.

    Raises:
        ConfigError: a level is asked of something that the runs cannot be compared by.
    """
    checksums = {run.data for run in runs}
    commands = all(run.facts.config.command is not None for run in runs)
    same = len(checksums) == 1 and (commands or None not in checksums)
    heads, quantities = _heads(runs), _quantities(runs)
    return RunComparison(
        runs=tuple(runs),
        summaries=tuple(_summarize(run, heads) for run in runs),
        warnings=tuple(_warnings(runs, quantities)),
        same_data=same,
        quantities=tuple(quantities),
        heads=tuple(heads),
        levels=tuple(_level_costs(runs, quantities, asked)) if same or asked else (),
    )


def _heads(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the heads of all runs, in the order in which they are met."""
    heads = dict.fromkeys(head for run in runs for head in run.weights)
    for run in runs:
        keys = (key for result in run.results for key in result.numbers)
        heads |= dict.fromkeys(k.removeprefix("val_mae.") for k in keys if "val_mae." in k)
    return list(heads)


def _quantities(runs: Sequence[ComparedRun]) -> list[Quantity]:
    """Return what the runs may be compared by: what all have, in one unit and with one meaning."""

    def all_have(key: str) -> bool:
        return all(any(key in result.numbers for result in run.results) for run in runs)

    quantities = []
    weights = [run.weights for run in runs]
    if all(each == weights[0] for each in weights) and all_have("objective"):
        quantities.append(Quantity("objective", "objective", ""))
    goals = [run.facts.config.search.objective for run in runs]
    goal = goals[0]
    ours = goal == "weighted" or (isinstance(goal, str) and goal.startswith("val_mae."))
    single = not isinstance(goal, tuple) and all(each == goal for each in goals)
    if not ours and not isinstance(goal, tuple) and single and all_have("score"):
        quantities.append(Quantity("score", goal_label(goal), ""))
    for head in _heads(runs):
        units = {run.facts.units.get(head) for run in runs}
        if len(units) == 1 and all_have(f"val_mae.{head}"):
            quantities.append(Quantity(f"val_mae.{head}", f"val MAE {head}", units.pop() or ""))
    return quantities


def _warnings(runs: Sequence[ComparedRun], quantities: Sequence[Quantity]) -> Iterator[str]:
    """Yield what makes runs hard to compare, most important first."""
    yield from _data_warnings(runs)
    trained = [run for run in runs if run.weights]
    if len(trained) == len(runs) and "objective" not in {each.key for each in quantities}:
        yield "Their objectives weigh heads differently, or one has no result: not compared."
    partly = [h for h in _heads(trained) if any(h not in run.weights for run in trained)]
    if partly:
        yield f"Not compared, since not all runs have them: {', '.join(partly)}."
    for head in _heads(trained):
        units = dict.fromkeys(r.facts.units.get(head) for r in trained if head in r.weights)
        if len(units) > 1:
            yield f"Head {head} has different units ({', '.join(map(str, units))}): not compared."
    for run in runs:
        if not run.facts.state.finished:
            yield f"{run.label} is not finished: its figures are those of this moment."
        if not run.results:
            yield f"{run.label} has no result yet."


def _data_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    commands = [run.facts.config.command is not None for run in runs]
    checksums = {run.data for run in runs}
    if all(commands):
        yield "Their trials are commands: whether they mean the same is for you to know."
    elif any(commands):
        yield "Some runs train on data, others run a command: their errors are not comparable."
    elif None in checksums:
        yield "The data of some runs is not known: their errors may not be comparable."
    elif len(checksums) > 1:
        yield (
            "The runs saw different data (checksums differ): errors of different structures are "
            "not comparable, and what it cost to reach one is left out."
        )


def _level_costs(
    runs: Sequence[ComparedRun], known: Sequence[Quantity], asked: Sequence[tuple[str, float]]
) -> Iterator[LevelCost]:
    levels = [(*_asked_level(known, name, level), "asked for") for name, level in asked] or [
        chosen for quantity in known for chosen in _default_levels(runs, quantity)
    ]
    for quantity, level, why in levels:
        best = [run.best_so_far(quantity.key) for run in runs]
        first = (next((r for r, value in each if value <= level), None) for each in best)
        yield LevelCost(quantity, level, why, tuple(first))


def _default_levels(
    runs: Sequence[ComparedRun], quantity: Quantity
) -> list[tuple[Quantity, float, str]]:
    """Choose levels: one that all runs have reached, and one near the best of all."""
    bests = [run.best_so_far(quantity.key)[-1][1] for run in runs]
    near = min(bests) + NEAR * abs(min(bests))
    levels = [(quantity, max(bests), "the worst of the bests")]
    if near < max(bests):
        levels.append((quantity, near, f"{100 * NEAR:.0f} % above the best"))
    return levels


def _asked_level(known: Sequence[Quantity], name: str, level: float) -> tuple[Quantity, float]:
    for quantity in known:
        if name in (quantity.key, quantity.key.removeprefix("val_mae.")):
            return quantity, level
    names = [quantity.key.removeprefix("val_mae.") for quantity in known]
    if not names:
        raise ConfigError("--reach: these runs have nothing in common to be compared by.")
    raise ConfigError(f"--reach: {unknown('quantity', name, names)}")
