"""A campaign as it is compared: its course result by result, and what it took."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.reading.course import slots_of, slots_per_host
from hydragnn_hpo.report.reading.facts import Facts, read_facts
from hydragnn_hpo.search.objective import number
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
    ledger, found = SlotLedger(), list[Result]()
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
                host_seconds=ledger.utilization().slot_seconds / share,
                numbers=numbers,
            )
            found.append(result)
    return found


def _numbers(event: dict[str, Any]) -> dict[str, float]:
    told = {"objective": event.get("objective"), "score": event.get("score")}
    told |= {f"val_mae.{head}": e for head, e in (event.get("val_mae") or {}).items()}
    return {key: value for key, raw in told.items() if (value := number(raw)) is not None}
