"""A campaign's state: trials, hosts and energy, computed from its journal alone."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from hydragnn_hpo.journal_events import (
    AddedEvent,
    AskedEvent,
    CheckpointEvent,
    EndedEvent,
    EnergyEvent,
    EpochEvent,
    JournalEvent,
    ObjectiveChangedEvent,
    OpenedEvent,
    PlacedEvent,
    PromotedEvent,
    ProposedEvent,
    RestedEvent,
    RetriedEvent,
    SearchedValues,
)
from hydragnn_hpo.search import Point, RungResult
from hydragnn_hpo.search.objective import rank_points

TrialStatus = Literal["queued", "running", "stopped", "completed", "failed", "cancelled"]

TRAIN_SHARE = "training.train_share"
"""Key that a fit of the learning curve has beside the values of its parent."""

FOLD = "training.fold"
"""Key that a fit of a cross-fitted ensemble has beside the values of its parent."""

RULES = ("median", "curve")
"""Reasons set by a stopping rule; a trial stopped for one of them is not promoted."""

LOST = ("host_lost", "stale")
"""Reasons that count against ``search.max_restarts`` until the next checkpoint is written.

So does ``out_of_memory`` where the next attempt runs in the same way.
An end that is ``excused`` (caused by losing a host, a lease or the controller) does not count.
"""

AT_ONCE_SECONDS = 30.0
"""Hosts lost within this time of each other share a cause, such as a switch or the power supply,
and none is at fault. Losses are noticed one by one, each when the host's own lease has lapsed."""


@dataclass
class Trial:
    """The state of one trial."""

    name: str
    values: SearchedValues
    """Active searched values by key."""
    until: int
    """Epoch of its present rung, up to which it trains."""
    parent: str | None = None
    """The trial that it repeats with another seed; such a replicate is not part of the search."""
    train_share: float | None = None
    """Share of the training data, for a fit of the learning curve; it has a parent, too."""
    fold: int | None = None
    """Fold left out, for a fit of a cross-fitted ensemble; it has a parent, too."""
    status: TrialStatus = "queued"
    reason: str | None = None
    message: str | None = None
    attempt: int = 0
    width: int = 0
    slots: tuple[str, ...] = ()
    placed: float = 0.0
    first_step: float | None = None
    last_progress: float = 0.0
    """Time of its present attempt's last progress, in seconds since the Unix epoch."""
    epoch: int = 0
    objective: float | None = None
    """The trainer's objective: weighted validation MAE, each target in units of its spread."""
    best_epoch: int | None = None
    """Epoch of that objective; None if it is not known."""
    score: Point | None = None
    """The value it is ranked by: one number, or one for each goal of the campaign."""
    val_mae: dict[str, float | None] = field(default_factory=dict)
    rung_scores: dict[int, Point] = field(default_factory=dict)
    """Its score at each rung that it completed, by the rung's epoch."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of its newest epoch at each width, over all attempts."""
    restarts: int = 0
    """Interruptions that count (see ``LOST``) since its newest checkpoint."""
    crashes: int = 0
    """Crashes of its program since its newest checkpoint."""
    resizes: int = 0
    requested_width: int | None = None
    """Width requested for its next attempt by a resize; None without one."""
    stop_reason: str | None = None
    """Why its running attempt was asked to end; None if it was not."""
    min_width: int = 1
    """Fewest ranks it may start with; raised after it ran out of memory."""
    whole_device: bool = False
    """Whether its ranks may not share devices, because it ran out of memory while sharing."""
    slot_seconds: float = 0.0
    """Slot-seconds held by its ended attempts."""
    joules: float = 0.0
    """Energy of its epochs as measured by its own ranks; 0 where they measure none."""
    energy: float | None = None
    """Joules charged to its slots from the hosts' counters; None if nothing was counted."""
    metered_seconds: float = 0.0
    """Slot-seconds in which ``energy`` was counted."""
    predicted: float | None = None
    """Seconds per epoch, predicted when its present attempt was placed."""

    @property
    def is_ranked(self) -> bool:
        """Whether its score compares with those of the search: it learned from the same data."""
        return self.train_share is None and self.fold is None

    @property
    def errors(self) -> tuple[float, ...]:
        """Validation error of each head, in the order of their names.

        Returns:
            Empty where one is not known, or where trials are ranked by something else.
        """
        errors = [self.val_mae[head] for head in sorted(self.val_mae)]
        known = tuple(error for error in errors if error is not None)
        return known if len(known) == len(errors) and self.score == self.objective else ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts it runs on, without duplicates.

        Returns:
            Ids of hosts in rank order; empty while it does not run.
        """
        return tuple(dict.fromkeys(slot.rpartition(":")[0] for slot in self.slots))

    @property
    def metered_share(self) -> float | None:
        """Share of its slot-seconds in which energy was counted; None while it runs."""
        if self.energy is None or self.slots or not self.slot_seconds:
            return None
        return min(1.0, self.metered_seconds / self.slot_seconds)

    @property
    def job(self) -> str:
        """Job id of its present attempt at the backend."""
        return f"{self.name}.{self.attempt}"


@dataclass
class Hosts:
    """Hosts that are present, lost or quarantined."""

    slots: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots of the present hosts, by host."""
    lost: dict[str, str] = field(default_factory=dict)
    """Reason of the loss, by lost host."""
    absent: dict[str, str] = field(default_factory=dict)
    """Why a host has never had an agent, by host."""
    failures: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Causes of failures by host: names of trials lost on it, and ``lost N`` for its own losses."""
    newest_loss: tuple[float, str] = (-math.inf, "")
    """Time (seconds since the Unix epoch) and host of the newest loss."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Why a host gets no more trials, by host."""
    warned: dict[str, str] = field(default_factory=dict)
    """Warning about the counters of a host, by host."""

    def apply(self, event: JournalEvent) -> None:
        """Apply an event about a host; others change nothing."""
        match event["event"]:
            case "host_joined":
                self.slots[event["host"]] = tuple(event["slots"])
                self.lost.pop(event["host"], None)
                self.absent.pop(event["host"], None)
            case "hosts_absent":
                self.absent |= event["hosts"]
            case "host_lost":
                self._lose(event["host"], event["time"], event["reason"])
            case "host_failed":
                self.failures[event["host"]].add(event["cause"])
            case "quarantined":
                self.quarantined[event["host"]] = event["reason"]
            case "host_warned":
                self.warned[event["host"]] = event["reason"]

    def _lose(self, host: str, time: float, reason: str) -> None:
        self.slots.pop(host, None)
        self.lost[host] = reason
        since, before = self.newest_loss
        if time - since <= AT_ONCE_SECONDS and before != host:
            for each in (before, host):
                causes = self.failures[each]
                causes -= {cause for cause in causes if cause.startswith("lost")}
        self.newest_loss = (time, host)


@dataclass
class EnergyUse:
    """Counted energy of all hosts, computed from the journal."""

    joules: float | None = None
    """Joules of trials and of idle slots; None until something is counted."""

    idle: float = 0.0
    """Joules of slots that no trial held: waiting, building data sets and ensembles."""

    watts: float | None = None
    """Power of the ``hosts`` hosts at the newest event, in watts."""

    hosts: int = 0
    """Number of hosts whose power is known at the newest event."""

    parts: tuple[str, ...] = ()
    """Parts of hosts that were counted, see ``CounterSample.parts``."""

    unread: str | None = None
    """Why some counters of a host could not be read."""

    def apply(self, event: EnergyEvent) -> None:
        """Apply an event ``energy``."""
        spent = sum(joules for joules, _ in event["trials"].values()) + event["idle"]
        self.joules = (self.joules or 0.0) + spent
        self.idle += event["idle"]
        self.watts, self.hosts = event["watts"], event["hosts"]
        self.parts = tuple(sorted({*self.parts, *event["parts"]}))


class State:
    """All trials in the order of their proposals, and the progress of the campaign."""

    def __init__(self) -> None:
        """Start before the first event."""
        self.trials: dict[str, Trial] = {}
        self.reseed = 0
        """How many of the best trials the user wants trained again with new seeds."""
        self.reseeded: dict[str, str] = {}
        """Name of each trial's replicate with a new seed, by the original trial's name."""
        self.curve: dict[float, str] = {}
        """Names of the fits of the learning curve by their share of the training data."""
        self.folds: dict[tuple[str, int], str] = {}
        """Names of the fits of a cross-fitted ensemble, by their parent and the fold left out."""
        self.hosts = Hosts()
        self.energy = EnergyUse()
        self.results: defaultdict[int, list[RungResult]] = defaultdict(list)
        """Results of the trials that ended at each rung, by its epoch, in journal order."""
        self.promoted: defaultdict[int, set[str]] = defaultdict(set)
        """Names of the trials promoted from each rung, by its epoch."""
        self.closed = False
        """Whether the finalists were chosen; after that no trial is promoted."""
        self.ending = False
        """Whether the user asked to stop the search and finish with the results so far."""
        self.finished = False
        self.draining = False
        """Whether the allocation ends and trials are writing their checkpoints."""
        self.added = 0
        """Number of trials that the user added to the budget."""
        self.additions: set[str] = set()
        """Names of the requests that added trials, so that none is applied twice."""
        self.chosen: deque[SearchedValues] = deque()
        """Values that the user chose for trials that are not proposed yet."""
        self.units: dict[str, str] = {}
        """Unit of each target."""
        self.bugs: Counter[str] = Counter()
        """Number of failures by the last line of their message, since the newest start."""
        self.checkpoints: dict[str, tuple[int, int]] = {}
        """Epoch and step of the newest checkpoint by trial."""
        self._by: dict[TrialStatus, dict[str, Trial]] = {
            status: {} for status in get_args(TrialStatus)
        }

    @property
    def searched(self) -> int:
        """Number of trials proposed by the search, without those that repeat one of them."""
        return len(self.trials) - self.repeated

    @property
    def repeated(self) -> int:
        """Number of replicates, fits of the learning curve, and fits on folds."""
        return len(self.reseeded) + len(self.curve) + len(self.folds)

    def is_searching(self, trials: int) -> bool:
        """Check whether trials of the search are still to be proposed.

        Args:
            trials: the campaign's budget; trials that the user added come on top.
        """
        more = self.searched < trials + self.added
        return more and not self.ending and not self.finished

    def with_status(self, *status: TrialStatus) -> list[Trial]:
        """Return the trials with any of these statuses, by status and then by time of entry."""
        return [trial for each in status for trial in self._by[each].values()]

    def count(self, *status: TrialStatus) -> int:
        """Count the trials with any of these statuses."""
        return sum(len(self._by[each]) for each in status)

    def ranked(self) -> list[Trial]:
        """Return the trials with a score, highest rung first and then best score first.

        Fits of the learning curve and on folds have other data, and are not ranked.
        """
        at_rest = self.with_status("stopped", "completed")
        done = [(t, t.score) for t in at_rest if t.score is not None and t.is_ranked]
        done.sort(key=lambda pair: pair[0].name)
        best = [done[place][0] for place in rank_points([score for _, score in done])]
        return sorted(best, key=lambda trial: -trial.until)

    def count_equal_failures(self, trial: Trial) -> int:
        """Count the failures with the same error as this trial's, including its own."""
        return self.bugs[_gist(trial)]

    def add(self, trial: Trial) -> None:
        """Add a proposed trial."""
        self.trials[trial.name] = trial
        self._by[trial.status][trial.name] = trial

    def move(self, trial: Trial, status: TrialStatus) -> None:
        """Change the status of a trial, and its place among the trials by status."""
        del self._by[trial.status][trial.name]
        trial.status = status
        self._by[status][trial.name] = trial

    def apply(self, event: JournalEvent) -> None:
        """Apply one event."""
        match event["event"]:
            case "opened":
                _on_opened(self, event)
            case "proposed":
                _on_proposed(self, event)
            case "placed":
                _on_placed(self, event)
            case "first_step":
                trial = self.trials[event["trial"]]
                trial.first_step, trial.last_progress = event["seconds"], event["time"]
            case "epoch":
                _on_epoch(self, event)
            case "checkpoint":
                _on_checkpoint(self, event)
            case "asked":
                _on_asked(self, event)
            case "ended":
                _on_ended(self, event)
            case "promoted":
                _on_promoted(self, event)
            case "rested":
                _on_rested(self, event)
            case "retried":
                _on_retried(self, event)
            case "objective_changed":
                _on_objective_changed(self, event)
            case "added":
                _on_added(self, event)
            case "reseed":
                self.reseed = max(self.reseed, event["count"])
                self.finished = False
            case "energy":
                _on_energy(self, event)
            case "unread":
                self.energy.unread = event["reason"]
            case "ending":
                self.ending = True
            case "draining":
                self.draining = True
            case "finished":
                self.finished = True
            case _:
                self.hosts.apply(event)


def first_goal(score: float | Sequence[float] | None) -> float | None:
    """Return the first goal's part of a score; journals hold several goals as a list."""
    return score if score is None or isinstance(score, (float, int)) else score[0]


def fold(events: Iterable[JournalEvent]) -> State:
    """Compute the state from the events of a journal."""
    state = State()
    for event in events:
        state.apply(event)
    return state


def _on_opened(state: State, event: OpenedEvent) -> None:
    """Replace the hosts: those of the previous controller may be gone."""
    state.units = event["units"]
    state.bugs.clear()  # count again: the user may have fixed the cause
    by_host = defaultdict[str, list[str]](list)
    for slot in event.get("slots", ()):
        by_host[slot.rpartition(":")[0]].append(slot)
    state.hosts.slots = {host: tuple(slots) for host, slots in by_host.items()}
    state.hosts.lost.clear()
    state.hosts.absent.clear()
    state.draining = False


def _on_proposed(state: State, event: ProposedEvent) -> None:
    name, values = event["trial"], event["values"]
    parent = event.get("parent")
    trial = Trial(name=name, values=values, until=event["until"], parent=parent)
    state.add(trial)
    if parent is not None:
        if TRAIN_SHARE in values and TRAIN_SHARE not in state.trials[parent].values:
            trial.train_share = float(values[TRAIN_SHARE])
            state.curve[trial.train_share] = name
        elif FOLD in values and FOLD not in state.trials[parent].values:
            trial.fold = int(values[FOLD])
            state.folds[parent, trial.fold] = name
        else:
            state.reseeded[parent] = name
        state.finished = False
        return
    if state.chosen and state.chosen[0] == values:
        state.chosen.popleft()


def _on_placed(state: State, event: PlacedEvent) -> None:
    trial = state.trials[event["trial"]]
    state.move(trial, "running")
    trial.attempt, trial.width = event["attempt"], event["width"]
    trial.slots = tuple(event["slots"])
    trial.placed = event["time"]
    trial.last_progress = event["time"]
    trial.first_step, trial.stop_reason, trial.requested_width = None, None, None
    trial.predicted = event.get("predicted_epoch_seconds")


def _on_epoch(state: State, event: EpochEvent) -> None:
    trial = state.trials[event["trial"]]
    trial.epoch = event["reached"]
    trial.objective = event["best_objective"]
    trial.last_progress = event["time"]
    trial.seconds[event["width"]] = event["seconds"]
    trial.joules += event.get("joules", 0.0)


def _on_checkpoint(state: State, event: CheckpointEvent) -> None:
    name = event["trial"]
    reached = (event["reached"], event.get("step", 0))
    if reached > state.checkpoints.get(name, (0, 0)):
        state.checkpoints[name] = reached
        state.trials[name].restarts = state.trials[name].crashes = 0


def _on_asked(state: State, event: AskedEvent) -> None:
    trial = state.trials[event["trial"]]
    trial.stop_reason = event["reason"]
    trial.requested_width = event.get("width")
    trial.resizes += event["reason"] == "resized"


def _on_ended(state: State, event: EndedEvent) -> None:
    trial = state.trials[event["trial"]]
    if trial.status == "running":
        held = max(0.0, event["time"] - trial.placed)  # the next controller's clock may be behind
        trial.slot_seconds += len(trial.slots) * held
    trial.slots = ()
    trial.stop_reason = None
    outcome = event["outcome"]
    trial.reason = event.get("reason")
    trial.message = event.get("message")
    if outcome == "interrupted":
        _interrupted(state, trial, event)
        return
    state.move(trial, outcome)
    trial.requested_width = None  # it ended before the resize took effect
    trial.epoch = event.get("reached", trial.epoch)
    trial.objective = event.get("objective")
    trial.val_mae = event.get("val_mae", {})
    trial.best_epoch = event.get("best_epoch")
    score = event.get("score", trial.objective)
    trial.score = None if score is None else _point(score)
    if trial.score is not None:
        trial.rung_scores[trial.until] = trial.score
    if outcome != "cancelled" and trial.parent is None:
        ruled = trial.reason in RULES
        score = None if ruled else trial.score
        rested = RungResult(trial.name, score, outcome == "completed", trial.errors)
        state.results[trial.until].append(rested)
    if trial.reason == "bug":
        state.bugs[_gist(trial)] += 1


def _interrupted(state: State, trial: Trial, event: EndedEvent) -> None:
    state.move(trial, "queued")
    excused = event.get("excused") or event.get("codes") == []  # older journals have no ``excused``
    as_it_was = trial.reason == "out_of_memory" and not {"whole", "least"} & event.keys()
    trial.restarts += (trial.reason in LOST and not excused) or as_it_was
    trial.crashes += trial.reason == "crashed"
    trial.epoch, _ = state.checkpoints.get(trial.name, (0, 0))
    trial.min_width = event.get("least", trial.min_width)
    trial.whole_device = event.get("whole", trial.whole_device)


def _gist(trial: Trial) -> str:
    """Return the last line of a failure's message, by which equal failures are recognized."""
    lines = (trial.message or "").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _on_promoted(state: State, event: PromotedEvent) -> None:
    state.closed = state.closed or event.get("last", True)
    for name in event["trials"]:
        trial = state.trials[name]
        state.promoted[trial.until].add(name)
        trial.until = event["until"]
        if trial.status == "stopped":
            state.move(trial, "queued")


def _on_rested(state: State, event: RestedEvent) -> None:
    """Cancel the promotion of a queued trial: its result at the previous rung stays."""
    trial = state.trials[event["trial"]]
    state.move(trial, "stopped")
    trial.until = max(trial.rung_scores)
    trial.score = trial.rung_scores[trial.until]


def _on_retried(state: State, event: RetriedEvent) -> None:
    trial = state.trials[event["trial"]]
    state.move(trial, "queued")
    trial.reason = trial.message = None
    trial.restarts = trial.crashes = 0
    for rows in state.results.values():
        rows[:] = [row for row in rows if row[:2] != (trial.name, None)]


def _on_objective_changed(state: State, event: ObjectiveChangedEvent) -> None:
    """Replace the scores, and choose the finalists among them again."""
    for name, scores in event["scores"].items():
        trial = state.trials[name]
        trial.rung_scores = {int(rung): _point(score) for rung, score in scores.items()}
        if trial.status != "failed":
            trial.score = trial.rung_scores[max(trial.rung_scores)]
    for rung, rows in state.results.items():
        for place, row in enumerate(rows):
            trial = state.trials[row.trial]
            ruled = trial.reason in RULES and trial.until == rung
            score = None if ruled else trial.rung_scores.get(rung)
            rows[place] = row._replace(objective=score, errors=())
    state.closed = False


def _point(score: float | Sequence[float]) -> Point:
    return score if isinstance(score, (float, int)) else tuple(score)


def _on_added(state: State, event: AddedEvent) -> None:
    state.added += event["trials"]
    state.additions.add(event.get("request", ""))
    state.chosen.extend(event.get("values", ()))
    state.closed = False


def _on_energy(state: State, event: EnergyEvent) -> None:
    state.energy.apply(event)
    for name, (joules, seconds) in event["trials"].items():
        trial = state.trials[name]
        trial.energy = (trial.energy or 0.0) + joules
        trial.metered_seconds += seconds
