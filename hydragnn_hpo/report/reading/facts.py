"""A run directory as plain facts: what every section, table, chart and export is made from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.accounting import Utilization
from hydragnn_hpo.campaign.event_store import JournalFold, require_campaign
from hydragnn_hpo.campaign.journal import Event, read_journal
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir


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

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts it ran on, each once."""
        return tuple(dict.fromkeys(slot.rpartition(":")[0] for slot in self.slots))


@dataclass(frozen=True)
class Epoch:
    """One epoch of a trial, as it was told; epochs after a loss may be there twice."""

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
        """Give the trial's name."""
        return self.trial.name


@dataclass(frozen=True)
class Facts:
    """What a run directory says, read once."""

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
    """Read a run directory; the campaign may be at work.

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
    """Put together what was read of a journal, and the files beside it."""
    state = reckoning.state
    config = load(run.campaign, CampaignConfig)
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
    """Read what an ensemble is made of.

    Raises:
        StorageError: it is unreadable, or something else.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("heads"), dict):
        raise StorageError(f"{path}: names no heads; remove it, and build the ensemble again.")
    return found


def trials_of(state: State, events: Iterable[Event]) -> dict[str, TrialFacts]:
    """Collect attempts and epochs of every trial."""
    found: dict[str, TrialFacts] = {}
    take_trials(found, state, events)
    return found


def take_trials(found: dict[str, TrialFacts], state: State, events: Iterable[Event]) -> None:
    """Take attempts and epochs in that are new.

    Args:
        found: what is known so far; grows.
        state: the campaign's state after the events.
        events: that were not taken in yet.
    """
    for name, trial in state.trials.items():
        if name not in found:
            found[name] = TrialFacts(trial)
    for event in events:
        known = found.get(event.get("trial", ""))
        take = _TAKERS.get(event["event"])
        if known is not None and take is not None:
            take(known, event)


def _cards(run: RunDir) -> dict[str, CardConfig]:
    paths = sorted(run.data.glob("*.bp/card.toml"))
    cards = [load(path, CardConfig) for path in paths]
    return {card.name: card for card in cards}


def _placed(trial: TrialFacts, event: Event) -> None:
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


def _first_step(trial: TrialFacts, event: Event) -> None:
    if trial.attempts:
        trial.attempts[-1].first_step_seconds = event["seconds"]


def _epoch(trial: TrialFacts, event: Event) -> None:
    epoch = Epoch(
        epoch=event["reached"],
        time=event["time"],
        objective=event.get("objective"),
        best_objective=event.get("best_objective"),
        seconds=event["seconds"],
        width=event["width"],
    )
    trial.epochs.append(epoch)


def _ended(trial: TrialFacts, event: Event) -> None:
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


_TAKERS = {"placed": _placed, "first_step": _first_step, "epoch": _epoch, "ended": _ended}
