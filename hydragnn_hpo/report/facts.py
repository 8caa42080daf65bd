"""The facts of a run directory, from which every section, table, chart and export is made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign import (
    Event,
    JournalFold,
    State,
    Trial,
    Utilization,
    read_journal,
    require_campaign,
)
from hydragnn_hpo.config import CampaignConfig, CardConfig, load_config
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.search import Point


@dataclass
class Attempt:
    """One start of a trial."""

    number: int
    until: int
    """Epochs it was to reach: its rung."""
    width: int
    slots: tuple[str, ...]
    placed: float
    """Seconds since the epoch, as all times here."""
    predicted_epoch_seconds: float | None
    predicted_seconds: float | None
    """Of the whole attempt, when it was placed."""
    first_step_seconds: float | None = None
    """From placed to the first optimizer step."""
    ended: float | None = None
    """None while it runs, and where its controller died."""
    outcome: str | None = None
    """``completed``, ``stopped``, ``failed``, ``cancelled`` or ``interrupted``."""
    reason: str | None = None
    message: str | None = None
    train_seconds: float | None = None
    peak_bytes: int | None = None
    score: Point | list[float] | None = None
    """What it was judged by at its end; journals hold several goals as a list."""
    val_mae: Mapping[str, float | None] = field(default_factory=dict)
    """Validation MAE of each head at its end."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts it ran on, each once."""
        return tuple(dict.fromkeys(slot.rpartition(":")[0] for slot in self.slots))


@dataclass(frozen=True)
class Epoch:
    """One epoch of a trial; epochs that were lost and trained again are there twice."""

    epoch: int
    time: float
    objective: float | None
    best_objective: float | None
    seconds: float
    width: int


@dataclass
class TrialFacts:
    """A trial: its state, and what the state forgets."""

    trial: Trial
    attempts: list[Attempt] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    parameters: int | None = None
    """Of the model; None before its first result."""
    peak_bytes: int | None = None
    """The most memory that a rank of any attempt took."""

    @property
    def name(self) -> str:
        """The trial's name."""
        return self.trial.name


@dataclass(frozen=True)
class Facts:
    """The content of a run directory."""

    run: RunDir
    config: CampaignConfig
    """The resolved campaign."""
    cards: Mapping[str, CardConfig]
    """Cards of the stores, by name; empty where there are none."""
    state: State
    figures: Mapping[str, Any]
    """What ``JournalFold.figures`` returns."""
    losses: Utilization
    events: tuple[Event, ...]
    trials: Mapping[str, TrialFacts]
    """In the order in which they were proposed."""
    ensemble: Mapping[str, Any] | None
    """``report/ensemble.json``; None before there is an ensemble."""

    @property
    def begin(self) -> float | None:
        """Time of the first placement; None before it."""
        times = (e["time"] for e in self.events if e["event"] == "placed")
        return next(times, None)

    @property
    def end(self) -> float | None:
        """Time of the last event."""
        return self.events[-1]["time"] if self.events else None

    @property
    def units(self) -> Mapping[str, str]:
        """Units of the targets."""
        return self.state.units


def read_facts(run: RunDir) -> Facts:
    """Read a run directory; the campaign may be running.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    require_campaign(run)
    events = tuple(read_journal(run.journal))
    reckoning = JournalFold(events)
    return facts_of(run, events, reckoning, trials_of(reckoning.state, events))


def facts_of(
    run: RunDir, events: tuple[Event, ...], reckoning: JournalFold, trials: dict[str, TrialFacts]
) -> Facts:
    """Combine what was read of a journal with the files beside it.

    Args:
        run: the run directory.
        events: all events of its journal.
        reckoning: state and figures after these events.
        trials: attempts and epochs of each trial.
    """
    state = reckoning.state
    config = load_config(run.campaign, CampaignConfig)
    more = not state.finished and state.searched < config.search.trials + state.added
    ensemble = run.report / "ensemble.json"
    return Facts(
        run=run,
        config=config,
        cards=_cards(run),
        state=state,
        figures=reckoning.figures(),
        losses=reckoning.ledger.utilization(more=more),
        events=events,
        trials=trials,
        ensemble=_table(ensemble) if ensemble.exists() else None,
    )


def _table(path: Path) -> Mapping[str, Any]:
    """Read the table of an ensemble.

    Raises:
        StorageError: the file is unreadable, or holds something else.
    """
    table = read_json(path)
    if not isinstance(table, dict) or not isinstance(table.get("heads"), dict):
        raise StorageError(f"{path}: names no heads; remove it, and build the ensemble again.")
    return table


def trials_of(state: State, events: Iterable[Event]) -> dict[str, TrialFacts]:
    """Collect attempts and epochs of every trial."""
    trials: dict[str, TrialFacts] = {}
    update_trials(trials, state, events)
    return trials


def update_trials(trials: dict[str, TrialFacts], state: State, events: Iterable[Event]) -> None:
    """Add the attempts and epochs of new events.

    Args:
        trials: facts so far; grows.
        state: the campaign's state after the events.
        events: new ones, in order.
    """
    for name, trial in state.trials.items():
        if name not in trials:
            trials[name] = TrialFacts(trial)
    for event in events:
        known = trials.get(event.get("trial", ""))
        add = _HANDLERS.get(event["event"])
        if known is not None and add is not None:
            add(known, event)


def _cards(run: RunDir) -> dict[str, CardConfig]:
    paths = sorted(run.data.glob("*.bp/card.toml"))
    cards = [load_config(path, CardConfig) for path in paths]
    return {card.name: card for card in cards}


def _add_attempt(trial: TrialFacts, event: Event) -> None:
    attempt = Attempt(
        number=event["attempt"],
        until=event["until"],
        width=event["width"],
        slots=tuple(event["slots"]),
        placed=event["time"],
        predicted_epoch_seconds=event.get("predicted_epoch_seconds"),
        predicted_seconds=event.get("predicted_seconds"),
    )
    trial.attempts.append(attempt)


def _add_first_step(trial: TrialFacts, event: Event) -> None:
    if trial.attempts:
        trial.attempts[-1].first_step_seconds = event["seconds"]


def _add_epoch(trial: TrialFacts, event: Event) -> None:
    epoch = Epoch(
        epoch=event["reached"],
        time=event["time"],
        objective=event.get("objective"),
        best_objective=event.get("best_objective"),
        seconds=event["seconds"],
        width=event["width"],
    )
    trial.epochs.append(epoch)


def _end_attempt(trial: TrialFacts, event: Event) -> None:
    trial.parameters = event.get("parameters") or trial.parameters
    peak = event.get("peak_bytes")
    if peak is not None:
        trial.peak_bytes = max(peak, trial.peak_bytes or 0)
    if not trial.attempts or trial.attempts[-1].number != event.get("attempt"):
        return
    attempt = trial.attempts[-1]
    attempt.ended, attempt.outcome = event["time"], event["outcome"]
    attempt.reason, attempt.message = event.get("reason"), event.get("message")
    attempt.train_seconds, attempt.peak_bytes = event.get("train_seconds"), peak
    attempt.score = event.get("score", event.get("objective"))
    attempt.val_mae = event.get("val_mae") or {}


_HANDLERS = {
    "placed": _add_attempt,
    "first_step": _add_first_step,
    "epoch": _add_epoch,
    "ended": _end_attempt,
}
