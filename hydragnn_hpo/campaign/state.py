"""A campaign's state: a fold over its journal, and nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from hydragnn_hpo.campaign.journal import Event

Status = Literal["queued", "running", "stopped", "completed", "failed", "cancelled"]


@dataclass
class Trial:
    """What is known of one trial."""

    name: str
    values: dict[str, Any]
    """Active searched values."""
    until: int
    """Epochs it may train at present: its rung."""
    status: Status = "queued"
    reason: str | None = None
    message: str | None = None
    attempt: int = 0
    width: int = 0
    slots: tuple[str, ...] = ()
    placed: float = 0.0
    first_step: float | None = None
    epoch: int = 0
    objective: float | None = None
    val_mae: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    """Interruptions in a row without a new checkpoint."""
    slot_seconds: float = 0.0
    """Time its slots were held, summed."""

    @property
    def conv(self) -> str:
        """Name of the conv if it was searched."""
        return str(self.values.get("model.conv", ""))


@dataclass
class State:
    """All trials, in the order they were proposed, and the campaign's own course."""

    trials: dict[str, Trial] = field(default_factory=dict)
    promoted: bool = False
    """Whether the finalists were chosen."""
    finished: bool = False
    units: dict[str, str] = field(default_factory=dict)
    bugs_in_a_row: int = 0
    checkpoints: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and step of the newest checkpoint by trial."""

    def with_status(self, *status: Status) -> list[Trial]:
        """Give the trials in any of some states."""
        return [trial for trial in self.trials.values() if trial.status in status]

    def ranked(self) -> list[Trial]:
        """Give the trials that have a result: furthest trained first, then best objective."""
        done = [t for t in self.with_status("stopped", "completed") if t.objective is not None]
        return sorted(done, key=lambda t: (-t.until, t.objective, t.name))

    def apply(self, event: Event) -> None:
        """Take one event in."""
        handler = _HANDLERS.get(event["event"])
        if handler is not None:
            handler(self, event)


def fold(events: Iterable[Event]) -> State:
    """Make the state out of a journal."""
    state = State()
    for event in events:
        state.apply(event)
    return state


def _opened(state: State, event: Event) -> None:
    state.units = event["units"]


def _proposed(state: State, event: Event) -> None:
    name = event["trial"]
    state.trials[name] = Trial(name=name, values=event["values"], until=event["until"])


def _placed(state: State, event: Event) -> None:
    trial = state.trials[event["trial"]]
    trial.status, trial.attempt, trial.width = "running", event["attempt"], event["width"]
    trial.slots, trial.placed = tuple(event["slots"]), event["time"]
    trial.first_step = None


def _first_step(state: State, event: Event) -> None:
    state.trials[event["trial"]].first_step = event["seconds"]


def _epoch(state: State, event: Event) -> None:
    trial = state.trials[event["trial"]]
    trial.epoch = event["reached"]
    trial.objective = event["best_objective"]


def _checkpoint(state: State, event: Event) -> None:
    name, reached = event["trial"], (event["reached"], event.get("step", 0))
    if reached > state.checkpoints.get(name, (0, 0)):
        state.checkpoints[name] = reached
        state.trials[name].restarts = 0


def _ended(state: State, event: Event) -> None:
    trial = state.trials[event["trial"]]
    if trial.status == "running":
        trial.slot_seconds += len(trial.slots) * (event["time"] - trial.placed)
    trial.slots = ()
    outcome, trial.reason = event["outcome"], event.get("reason")
    trial.message = event.get("message")
    if outcome == "interrupted":
        trial.status = "queued"
        trial.restarts += trial.reason in ("host_lost", "stale")
        trial.epoch, _ = state.checkpoints.get(trial.name, (0, 0))
        return
    trial.status = outcome
    if outcome in ("completed", "stopped", "cancelled"):
        trial.objective, trial.val_mae = event.get("objective"), event.get("val_mae", {})
        trial.epoch = event.get("reached", trial.epoch)
    else:
        trial.objective = None
    state.bugs_in_a_row = state.bugs_in_a_row + 1 if trial.reason == "bug" else 0


def _promoted(state: State, event: Event) -> None:
    state.promoted = True
    for name in event["trials"]:
        trial = state.trials[name]
        trial.until = event["until"]
        if trial.status == "stopped":
            trial.status = "queued"


def _finished(state: State, event: Event) -> None:
    state.finished = True


_HANDLERS = {
    "opened": _opened,
    "proposed": _proposed,
    "placed": _placed,
    "first_step": _first_step,
    "epoch": _epoch,
    "checkpoint": _checkpoint,
    "ended": _ended,
    "promoted": _promoted,
    "finished": _finished,
}
