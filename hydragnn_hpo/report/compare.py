"""A campaign as it is compared: its course result by result, and what it took."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from hydragnn_hpo.campaign.records.losses import Ledger
from hydragnn_hpo.campaign.records.state import Status, Trial
from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.timeline import slots_of, slots_per_host
from hydragnn_hpo.search.objective import named, number
from hydragnn_hpo.text import shown


@dataclass(frozen=True)
class Result:
    """A trial that came to rest with a result, and what the campaign had spent by then."""

    trial: str
    trials: int
    """Trials that had ended at least once, failures too, this one included."""
    seconds: float
    """Since the first placement."""
    host_seconds: float
    """Of all hosts, idle or not; see ``losses.Ledger``."""
    numbers: dict[str, float]
    """``objective``, ``val_mae.HEAD``, ``score`` where it is one number."""


@dataclass(frozen=True)
class Campaign:
    """One of the runs that are compared."""

    label: str
    facts: Facts

    @cached_property
    def course(self) -> tuple[Result, ...]:
        """All results, in the order in which they came."""
        return tuple(_course(self.facts))

    @property
    def host_seconds(self) -> float:
        """What it spent in all."""
        return self.facts.losses.slot_seconds / slots_per_host(self.facts)

    @property
    def hosts(self) -> int:
        """Hosts that ever were there."""
        return len({slot.rpartition(":")[0] for slot in slots_of(self.facts)})

    @property
    def seconds(self) -> float | None:
        """From the first placement to the last event; None before it."""
        begin, end = self.facts.begin, self.facts.end
        return None if begin is None or end is None else end - begin

    @property
    def data(self) -> str | None:
        """Checksum of its graphs; None for a command, or before they are there."""
        opened = (e["data"] for e in reversed(self.facts.events) if e["event"] == "opened")
        found = next((sum_ for sum_ in opened if sum_), None)
        return None if found is None else str(found)

    @property
    def winner(self) -> Trial | None:
        """The best trial; None before there is a result."""
        ranked = self.facts.state.ranked()
        return ranked[0] if ranked else None

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the heads in the objective."""
        heads = self.facts.config.trial.get("heads", {})
        return {head: float(values.get("weight", 1.0)) for head, values in heads.items()}

    def test_mae(self, head: str) -> float | None:
        """Give the ensemble's test MAE of a head; None without an ensemble."""
        table: Any = self.facts.ensemble or {}
        return number(table.get("heads", {}).get(head, {}).get("test_mae"))


def read_campaigns(paths: Sequence[Path]) -> list[Campaign]:
    """Read the runs that are to be compared.

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
    return [Campaign(shown(label), facts) for label, facts in zip(labels, read, strict=True)]


def _labels(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Tell runs apart by as little as will do: the campaign, its directory, or its whole path."""
    folders = [path.resolve().name for path in paths]
    both = [f"{name} ({folder})" for name, folder in zip(names, folders, strict=True)]
    for labels in (list(names), folders, both):
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in paths]


def _course(facts: Facts) -> list[Result]:
    ledger, found = Ledger(), list[Result]()
    begin, share = facts.begin or 0.0, slots_per_host(facts)
    seen: set[str] = set()
    for event in facts.events:
        ledger.apply(event)
        if event["event"] != "ended" or event["outcome"] in ("interrupted", "cancelled"):
            continue
        seen.add(event["trial"])
        numbers = _numbers(event)
        if event["outcome"] != "failed" and numbers:
            result = Result(
                trial=event["trial"],
                trials=len(seen),
                seconds=event["time"] - begin,
                host_seconds=ledger.losses().slot_seconds / share,
                numbers=numbers,
            )
            found.append(result)
    return found


def _numbers(event: dict[str, Any]) -> dict[str, float]:
    told = {"objective": event.get("objective"), "score": event.get("score")}
    told |= {f"val_mae.{head}": e for head, e in (event.get("val_mae") or {}).items()}
    return {key: value for key, raw in told.items() if (value := number(raw)) is not None}


NEAR = 0.05
"""How far above the best of all one of the levels lies that are chosen if none is given."""


@dataclass(frozen=True)
class Quantity:
    """Something that all runs made smaller, and may be compared by."""

    key: str
    """A key of ``Result.numbers``."""
    label: str
    unit: str


@dataclass(frozen=True)
class Reached:
    """When a campaign's best first was at or below a level."""

    quantity: Quantity
    level: float
    why: str
    """Why this level: ``the worst of the bests``, ``5 % above the best``, ``asked for``."""
    first: tuple[Result | None, ...]
    """By run; None where it never was."""


def quantities(runs: Sequence[Campaign]) -> list[Quantity]:
    """Name what the runs may be compared by: what all have, in one unit and with one meaning."""
    found = []
    weights = [run.weights for run in runs]
    if all(each == weights[0] for each in weights) and _all_have(runs, "objective"):
        found.append(Quantity("objective", "objective", ""))
    goals = [run.facts.config.search.objective for run in runs]
    goal = goals[0]
    ours = goal == "weighted" or (isinstance(goal, str) and goal.startswith("val_mae."))
    if not ours and not isinstance(goal, tuple) and all(each == goal for each in goals):
        found += [Quantity("score", named(goal), "")] if _all_have(runs, "score") else []
    for head in heads_of(runs):
        units = {run.facts.units.get(head) for run in runs}
        if len(units) == 1 and _all_have(runs, f"val_mae.{head}"):
            unit = units.pop() or ""
            found.append(Quantity(f"val_mae.{head}", f"val MAE {head}", unit))
    return found


def heads_of(runs: Sequence[Campaign]) -> list[str]:
    """Name the heads of all runs, in the order in which they are met."""
    found = dict.fromkeys(head for run in runs for head in run.weights)
    for run in runs:
        keys = (key for result in run.course for key in result.numbers)
        found |= dict.fromkeys(k.removeprefix("val_mae.") for k in keys if "val_mae." in k)
    return list(found)


def _all_have(runs: Sequence[Campaign], key: str) -> bool:
    return all(any(key in result.numbers for result in run.course) for run in runs)


def best_so_far(run: Campaign, key: str) -> list[tuple[Result, float]]:
    """Give the results that were better than all before them."""
    found: list[tuple[Result, float]] = []
    for result in run.course:
        value = result.numbers.get(key)
        if value is not None and (not found or value < found[-1][1]):
            found.append((result, value))
    return found


def reached(
    runs: Sequence[Campaign], known: Sequence[Quantity], asked: Sequence[tuple[str, float]] = ()
) -> list[Reached]:
    """Say what each level cost each run.

    Args:
        runs: the runs.
        known: what they may be compared by.
        asked: levels by name of a head or key of a quantity; chosen if none is given.

    Raises:
        ConfigError: a level is asked of something that the runs cannot be compared by.
    """
    levels = [_asked(known, name, level) for name, level in asked] or [
        level for quantity in known for level in _chosen(runs, quantity)
    ]
    return [
        Reached(quantity, level, why, tuple(_first(run, quantity.key, level) for run in runs))
        for quantity, level, why in levels
    ]


def _chosen(runs: Sequence[Campaign], quantity: Quantity) -> list[tuple[Quantity, float, str]]:
    bests = [best_so_far(run, quantity.key)[-1][1] for run in runs]
    near = min(bests) + NEAR * abs(min(bests))
    found = [(quantity, max(bests), "the worst of the bests")]
    if near < max(bests):
        found.append((quantity, near, f"{100 * NEAR:.0f} % above the best"))
    return found


def _asked(known: Sequence[Quantity], name: str, level: float) -> tuple[Quantity, float, str]:
    for quantity in known:
        if name in (quantity.key, quantity.key.removeprefix("val_mae.")):
            return quantity, level, "asked for"
    names = [quantity.key.removeprefix("val_mae.") for quantity in known]
    if not names:
        raise ConfigError("--reach: these runs have nothing in common to be compared by.")
    raise ConfigError(f"--reach: {unknown('quantity', name, names)}")


def _first(run: Campaign, key: str, level: float) -> Result | None:
    return next((result for result, value in best_so_far(run, key) if value <= level), None)


@dataclass(frozen=True)
class Comparison:
    """What is to be said of some runs together."""

    runs: tuple[Campaign, ...]
    warnings: tuple[str, ...]
    """What makes them hard to compare."""
    same_data: bool
    quantities: tuple[Quantity, ...]
    heads: tuple[str, ...]
    levels: tuple[Reached, ...]

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {
            "runs": [_run_to_plain(run, self.heads) for run in self.runs],
            "warnings": list(self.warnings),
            "same_data": self.same_data,
            "reached": [_reached_to_plain(level, self.runs) for level in self.levels],
        }


def compare(runs: Sequence[Campaign], asked: Sequence[tuple[str, float]] = ()) -> Comparison:
    """Set runs side by side.

    Args:
        runs: two or more.
        asked: levels of errors whose cost is wanted; see ``reach.reached``.

    Raises:
        ConfigError: a level is asked of something that the runs cannot be compared by.
    """
    sums = {run.data for run in runs}
    commands = all(run.facts.config.command is not None for run in runs)
    same = len(sums) == 1 and (commands or None not in sums)
    known = quantities(runs)
    return Comparison(
        runs=tuple(runs),
        warnings=tuple(_warnings(runs, known)),
        same_data=same,
        quantities=tuple(known),
        heads=tuple(heads_of(runs)),
        levels=tuple(reached(runs, known, asked)) if same or asked else (),
    )


def _warnings(runs: Sequence[Campaign], known: Sequence[Quantity]) -> Iterator[str]:
    """Say what makes runs hard to compare, most important first."""
    yield from _on_data(runs)
    trained = [run for run in runs if run.weights]
    if len(trained) == len(runs) and "objective" not in {each.key for each in known}:
        yield "Their objectives weigh heads differently, or one has no result: not compared."
    partly = [h for h in heads_of(trained) if any(h not in run.weights for run in trained)]
    if partly:
        yield f"Not compared, since not all runs have them: {', '.join(partly)}."
    for head in heads_of(trained):
        units = dict.fromkeys(r.facts.units.get(head) for r in trained if head in r.weights)
        if len(units) > 1:
            told = ", ".join(map(str, units))
            yield f"Head {head} has different units ({told}): not compared."
    for run in runs:
        if not run.facts.state.finished:
            yield f"{run.label} is not finished: its figures are those of this moment."
        if not run.course:
            yield f"{run.label} has no result yet."


def _on_data(runs: Sequence[Campaign]) -> Iterator[str]:
    commands = [run.facts.config.command is not None for run in runs]
    sums = {run.data for run in runs}
    if all(commands):
        yield "Their trials are commands: whether they mean the same is for you to know."
    elif any(commands):
        yield "Some runs train on data, others run a command: their errors are not comparable."
    elif None in sums:
        yield "The data of some runs is not known: their errors may not be comparable."
    elif len(sums) > 1:
        yield (
            "The runs saw different data (checksums differ): errors of different structures are "
            "not comparable, and what it cost to reach one is left out."
        )


def range_of(parameter: ParameterConfig) -> str:
    """Say what a parameter may be.

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


def spaces(runs: Sequence[Campaign]) -> dict[str, list[str | None]]:
    """Give what each run searched by key; None where it did not search it."""
    keys = dict.fromkeys(key for run in runs for key in run.facts.config.space)
    every = [run.facts.config.space for run in runs]
    return {key: [range_of(s[key]) if key in s else None for s in every] for key in keys}


def outcomes(run: Campaign) -> Mapping[str, int]:
    """Count a run's trials by how they stand."""
    counts = Counter(trial.status for trial in run.facts.state.trials.values())
    return {status: counts[status] for status in get_args(Status) if counts[status]}


def _run_to_plain(run: Campaign, heads: Sequence[str]) -> dict[str, Any]:
    facts, winner = run.facts, run.winner
    search, figures = facts.config.search, facts.figures
    return {
        "label": run.label,
        "run": str(facts.run.path),
        "campaign": facts.config.name,
        "finished": facts.state.finished,
        "data": run.data,
        "seed": facts.config.seed,
        "brain": search.brain,
        "objective": search.model_dump(mode="json")["objective"],
        "rungs": list(search.rungs),
        "budget_trials": search.trials + facts.state.added,
        "trials": dict(outcomes(run)),
        "hosts": run.hosts,
        "seconds": run.seconds,
        "host_seconds": run.host_seconds,
        "slot_seconds": facts.losses.slot_seconds,
        "utilization": figures["utilization"],
        "energy_joules": figures["energy_joules"],
        "winner": winner
        and {
            "trial": winner.name,
            "epochs": winner.epoch,
            "objective": winner.objective,
            "val_mae": winner.val_mae,
            "values": winner.values,
        },
        "test_mae": {head: run.test_mae(head) for head in heads},
        "units": dict(facts.units),
        "space": {key: range_of(parameter) for key, parameter in facts.config.space.items()},
    }


def _reached_to_plain(level: Reached, runs: Sequence[Campaign]) -> dict[str, Any]:
    return {
        "quantity": level.quantity.key,
        "unit": level.quantity.unit,
        "level": level.level,
        "why": level.why,
        "by": {
            run.label: first
            and {
                "trial": first.trial,
                "trials": first.trials,
                "seconds": first.seconds,
                "host_seconds": first.host_seconds,
            }
            for run, first in zip(runs, level.first, strict=True)
        },
    }
