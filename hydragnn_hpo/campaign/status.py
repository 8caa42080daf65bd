"""How a campaign stands, how long it may take, and its trials, best first.

What ``status``, the live table and ``leaderboard`` show.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

from hydragnn_hpo.campaign.accounting import SlotLedger, Utilization
from hydragnn_hpo.campaign.event_store import read_state
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import FOLD, TRAIN_SHARE, EnergyUse, State, Trial
from hydragnn_hpo.config import CampaignConfig, SearchConfig, load_config
from hydragnn_hpo.config.campaign_config import EnsembleConfig
from hydragnn_hpo.file_records import LeaderboardEntry, LeaderboardTable
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.search import Point, fixed_values, pareto_front

ROWS = 20
"""Running trials that are shown one by one."""

BUSY_ENDS = ("stopped", "completed", "failed", "cancelled")


@dataclass(frozen=True)
class RunningTrial:
    """A trial that holds slots."""

    trial: str
    configuration: str
    width: int
    hosts: tuple[str, ...]
    epoch: int
    until: int
    objective: float | None
    epoch_seconds: float | None
    """Its newest epoch at its present width."""
    stop_reason: str | None
    """Why it is asked to end, None while it may go on."""
    ends_in: float | None = None
    """Predicted seconds until it has reached its rung; None before anything is known."""


@dataclass(frozen=True)
class RungCounts:
    """An epoch budget, and the trials that are on their way to it or rest there."""

    epochs: int
    waiting: int
    running: int
    resting: int


@dataclass(frozen=True)
class Status:
    """A campaign at one moment."""

    budget: int
    """Trials to propose in all."""
    counts: dict[str, int]
    """Trials by status."""
    phase: str
    running: tuple[RunningTrial, ...]
    """The widest first; not all of them where they are many."""
    rungs: tuple[RungCounts, ...]
    utilization: Utilization
    training_now: float
    """Share of the slots in which something trains at this moment."""
    slots: int
    hosts: int
    lost: dict[str, str]
    """Why a host is gone, by host."""
    quarantined: dict[str, str]
    absent: dict[str, str] = field(default_factory=dict)
    """Why a host of the allocation never had an agent, by host."""
    excluded: int = 0
    """Hosts that the run leaves alone."""
    best: Trial | None = None
    ends_in: float | None = None
    """Predicted seconds until all that is known has ended."""
    joules: float = 0.0
    """Energy of all epochs so far, where ranks count it."""
    energy: EnergyUse = field(default_factory=EnergyUse)
    """Of all hosts, where their counters are sampled."""
    warned: dict[str, str] = field(default_factory=dict)
    """What is odd about a host, by host."""
    failures: dict[str, int] = field(default_factory=dict)
    """Failed trials by reason, the most frequent first."""

    @property
    def at_rest(self) -> int:
        """Trials that ended, for now or for good."""
        return sum(self.counts.get(status, 0) for status in BUSY_ENDS)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON.

        Returns:
            What ``status --json`` prints; times are seconds, energies joules.
        """
        best = self.best
        return {
            "trials": self.counts,
            "budget": self.budget,
            "phase": self.phase,
            "failures": self.failures,
            "best": best and {"trial": best.name, "objective": best.objective},
            "running": [asdict(row) for row in self.running],
            "rungs": [asdict(rung) for rung in self.rungs],
            "hosts": {
                "here": self.hosts,
                "slots": self.slots,
                "lost": self.lost,
                "quarantined": self.quarantined,
                "absent": self.absent,
                "warned": self.warned,
                "excluded": self.excluded,
            },
            "training_now": self.training_now,
            "slot_seconds": self.utilization.slot_seconds,
            "losses": self.utilization.shares,
            "ends_in": self.ends_in,
            "joules": self.joules or None,
            "energy": asdict(self.energy) | {"best_joules": best and best.energy},
        }


def build_status(
    state: State,
    ledger: SlotLedger,
    *,
    trials: int,
    rungs: Sequence[int],
    now: float | None = None,
    ends_in: float | None = None,
    rows: int = ROWS,
) -> Status:
    """Build the status of a campaign, in a few milliseconds with thousands of trials.

    Args:
        state: the campaign's state.
        ledger: where its slot-seconds went.
        trials: trials that the campaign was to propose.
        rungs: epochs of its rungs.
        now: seconds since the epoch, while a controller is at work.
        ends_in: predicted seconds until all has ended.
        rows: most running trials to list one by one.
    """
    return Status(
        budget=trials + state.added + state.repeated,
        counts=dict(Counter(trial.status for trial in state.trials.values())),
        phase=_phase(state, rungs, trials),
        running=running_trials(state, rows, now),
        rungs=_rungs(state, rungs),
        utilization=ledger.utilization(now, more=state.is_searching(trials)),
        training_now=ledger.training_now,
        slots=ledger.slots,
        hosts=ledger.hosts[0],
        lost=dict(state.hosts.lost),  # copies, since the fold goes on
        quarantined=dict(state.hosts.quarantined),
        absent=dict(state.hosts.absent),
        warned=dict(state.hosts.warned),
        best=_best(state),
        ends_in=ends_in,
        joules=sum(trial.joules for trial in state.trials.values()),
        energy=replace(state.energy),
        failures=dict(Counter(str(t.reason) for t in state.with_status("failed")).most_common()),
    )


def describe_trial(trial: Trial) -> str:
    """Name the values that matter most for a person; the first ones where all are unknown."""
    keys = ("model.conv", "model.features", "model.layers", "training.learning_rate")
    shown = [key for key in keys if key in trial.values] or list(trial.values)[:4]
    values = [trial.values[key] for key in shown]
    text = " ".join(f"{v:.2g}" if isinstance(v, float) else str(v) for v in values)
    return (
        text if trial.parent is None else f"{describe_origin(trial.parent, trial.values)}: {text}"
    )


def describe_origin(parent: str, values: SearchedValues) -> str:
    """Name how a trial with a parent follows from it."""
    share = values.get(TRAIN_SHARE)
    fold = values.get(FOLD)
    if fold is not None:
        return f"without fold {fold}, as {parent}"
    if share is None:
        return f"reseed of {parent}"
    return f"{100 * float(share):.0f} % of the data, as {parent}"


def find_conv(trial: Trial, config: CampaignConfig) -> str:
    """Return the conv of a trial, searched or fixed; empty where trials are a command.

    Args:
        trial: the trial.
        config: the campaign, whose ``[trial]`` has the fixed values.
    """
    return str((fixed_values(config.trial) | trial.values).get("model.conv", ""))


def _phase(state: State, rungs: Sequence[int], trials: int) -> str:
    if state.finished:
        return "finished"
    if state.ending:
        return "stopping"
    if not state.trials:
        return "preparing"
    if state.is_searching(trials):
        return "searching"
    late = [t for t in state.with_status("queued", "running") if t.parent]
    if late and all(t.train_share for t in late):
        return "measuring whether more data would help"
    if any(t.fold is not None for t in late):
        return "training the best configurations on folds"
    if late:
        return "training the best again with new seeds"
    last = rungs[-1]
    finals = any(t.until == last for t in state.with_status("queued", "running"))
    return "training the finalists on" if finals and len(rungs) > 1 else "training"


def running_trials(state: State, most: int, now: float | None = None) -> tuple[RunningTrial, ...]:
    """Return the running trials, the widest first.

    Args:
        state: the campaign's state.
        most: rows at most.
        now: seconds since the epoch.

    Returns:
        At most ``most`` rows.
    """
    trials = state.with_status("running")
    shown = sorted(trials, key=lambda t: (-t.width, t.placed, t.name))[:most]
    return tuple(
        RunningTrial(
            trial=t.name,
            configuration=describe_trial(t),
            width=t.width,
            hosts=t.hosts,
            epoch=t.epoch,
            until=t.until,
            objective=t.objective,
            epoch_seconds=t.seconds.get(t.width),
            stop_reason=t.stop_reason,
            ends_in=_ends_in(t, now),
        )
        for t in shown
    )


def _ends_in(trial: Trial, now: float | None) -> float | None:
    """Predict when a trial reaches its rung: from its own epochs, else as the planner did."""
    each = trial.seconds.get(trial.width, trial.predicted)
    if each is None:
        return None
    since = 0.0 if now is None else min(each, max(0.0, now - trial.last_progress))
    return max(0.0, (trial.until - trial.epoch) * each - since)


def _rungs(state: State, rungs: Sequence[int]) -> tuple[RungCounts, ...]:
    waiting = Counter(trial.until for trial in state.with_status("queued"))
    running = Counter(trial.until for trial in state.with_status("running"))
    resting = Counter(trial.until for trial in state.with_status("stopped", "completed"))
    return tuple(RungCounts(e, waiting[e], running[e], resting[e]) for e in rungs)


def _best(state: State) -> Trial | None:
    """Return the best of the trials that have come furthest, by the first goal."""
    at_rest = state.with_status("stopped", "completed")
    done = [t for t in at_rest if t.score is not None and t.is_ranked]
    return min(done, key=lambda t: (-t.until, t.score, t.name), default=None)


USUAL_SHARE = 0.9
"""Share of the slot-seconds that goes into training, until the run itself has shown its own."""

ASYNCHRONOUS_EXCESS = 1.2
"""Trials that asynchronous promotion sends on, over ``1 / reduction`` of all: some are among the
best when they rest, and no longer at the end. 1.15 for trials in random order, more where the brain
learns."""


FOLD_STEPS = 1.2
"""Steps of an epoch on all folds but one over those of a trial of the search: with five folds, and
the default shares of the splits."""


def predict_seconds_left(
    state: State,
    ledger: SlotLedger,
    search: SearchConfig,
    now: float | None = None,
    ensemble: EnsembleConfig | None = None,
    finishing: float = 0.0,
) -> float | None:
    """Predict when everything has ended: what is known, and what is still to be proposed.

    Epochs that are left, times the slot-seconds of one (a trial's own, or the mean), over the slots
    and the share of their time that goes into training; at least the longest of the running trials.

    Args:
        state: the campaign's state.
        ledger: where its slot-seconds went.
        search: how many trials, and which rungs.
        now: seconds since the epoch.
        ensemble: how it is fitted once the search is over; None counts the search alone.
        finishing: seconds that ensemble and report take after the last trial.

    Returns:
        Seconds; None before the first epoch, and without slots.
    """
    own = {
        trial.name: statistics.fmean(width * each for width, each in trial.seconds.items())
        for trial in state.trials.values()
        if trial.seconds
    }
    if not own or not ledger.slots:
        return None
    typical = statistics.fmean(own.values())
    to_come = count_epochs_to_come(state, search)
    to_come += 0.0 if ensemble is None else count_fit_epochs_to_come(state, search, ensemble)
    work = to_come * typical
    for trial in state.with_status("queued", "running"):
        work += max(0, trial.until - trial.epoch) * own.get(trial.name, typical)
    share = _training_share(ledger, ledger.slots * search.rungs[0] * typical, now)
    if not to_come and not state.count("queued"):
        share = 1.0  # the others wait for nothing but the longest
    known = (_ends_in(trial, now) for trial in state.with_status("running"))
    trained = max(work / (ledger.slots * share), *(seconds or 0.0 for seconds in known), 0.0)
    return trained + finishing


def _training_share(ledger: SlotLedger, assumed: float, now: float | None) -> float:
    """Return the share of the slot-seconds that goes into training.

    Args:
        ledger: where they went.
        assumed: slot-seconds beside them of which the usual share does: one trial on each slot.
        now: seconds since the epoch.
    """
    used = ledger.utilization(now)
    trained = used.by_cause["training"] + USUAL_SHARE * assumed
    return trained / (used.slot_seconds + assumed) if assumed else USUAL_SHARE


def count_epochs_to_come(state: State, search: SearchConfig) -> float:
    """Count the epochs to the end of the search of trials that are not proposed or promoted yet."""
    if state.ending or state.finished:
        return 0.0
    budget = search.trials + state.added
    epochs = float(max(0, budget - state.searched) * search.rungs[0])
    arriving = float(budget)
    for rung, following in pairwise(search.rungs):
        sent = len(state.promoted[rung]) if rung in state.promoted else 0
        rested = len(state.results[rung]) if rung in state.results else 0
        least = search.finalists - sent if following == search.rungs[-1] else 0
        more = max(0.0, least, _count_promotions(search, arriving, rested=rested, sent=sent))
        epochs += 0.0 if state.closed else more * (following - rung)
        arriving = sent + more
    return epochs


def count_fit_epochs_to_come(state: State, search: SearchConfig, ensemble: EnsembleConfig) -> float:
    """Count the epochs of fits on folds that are not proposed yet, in epochs of the search.

    Args:
        state: the campaign's.
        search: has the epochs of a full training.
        ensemble: how it is fitted.
    """
    if ensemble.fit == "split" or state.folds or state.ending or state.finished:
        return 0.0
    return FOLD_STEPS * ensemble.configurations * ensemble.folds * search.rungs[-1]


def _count_promotions(search: SearchConfig, arriving: float, *, rested: int, sent: int) -> float:
    """Predict how many more trials a rung sends on.

    Args:
        search: names the rule.
        arriving: trials that rest at the rung in the end.
        rested: those that rest there or did.
        sent: those that were sent on.
    """
    if search.promotion == "together":
        return arriving // search.reduction - sent
    share = ASYNCHRONOUS_EXCESS / search.reduction
    open_results = max(0.0, arriving - rested)
    # Half as if the trials so far said nothing, half as if the total were known.
    predicted = (open_results * share + max(0.0, arriving * share - sent)) / 2
    return min(open_results, predicted)


def count_progress(run: RunDir) -> int:
    """Count what would be lost with the run directory: epochs, checkpoints, results, stores.

    Epochs that are trained once more after a loss do not count again.

    Raises:
        RunError: the journal is damaged.
    """
    furthest: dict[str, tuple[int, int]] = {}
    steps = len(list(run.data.glob("*/index.json")))
    for event in read_journal(run.journal):
        match event["event"]:
            case "epoch" | "checkpoint":
                step = event.get("step", 0) if event["event"] == "checkpoint" else 0
                reached = (event["reached"], step)
                if reached > furthest.get(event["trial"], (0, 0)):
                    furthest[event["trial"]] = reached
                    steps += 1
            case "ended" if event["outcome"] != "interrupted":
                steps += 1
            case "finished":
                steps += 1
    return steps


# -- the leaderboard -----------------------------------------------------------------------


@dataclass(frozen=True)
class LeaderboardRow:
    """One trial; what its fields hold is said in ``file_records.LeaderboardEntry``."""

    rank: int | None
    trial: str
    parent: str | None
    status: str
    reason: str | None
    epochs: int
    width: int
    objective: float | None
    score: Point | None
    front: bool | None
    val_mae: dict[str, float | None]
    slot_seconds: float
    energy_joules: float | None
    energy_share: float | None
    conv: str
    values: SearchedValues


@dataclass(frozen=True)
class Leaderboard:
    """All trials, best first, and the units of their MAEs."""

    rows: tuple[LeaderboardRow, ...]
    units: dict[str, str]

    def best(self, top: int) -> "Leaderboard":
        """Keep the first rows."""
        return Leaderboard(self.rows[:top], self.units)

    def to_plain(self) -> LeaderboardTable:
        """Return plain data for JSON."""
        rows = [cast("LeaderboardEntry", asdict(row)) for row in self.rows]
        return {"units": self.units, "trials": rows}


def rank_trials(state: State, config: CampaignConfig) -> Leaderboard:
    """Rank the trials of a state.

    Args:
        state: the campaign's state.
        config: the campaign, whose ``[trial]`` has the fixed values.
    """
    ranked = state.ranked()
    placed = {trial.name for trial in ranked}
    rest = [trial for trial in state.trials.values() if trial.name not in placed]
    fronts = _fronts(ranked)
    places = [*enumerate(ranked, start=1), *((None, trial) for trial in rest)]
    rows = tuple(
        LeaderboardRow(
            rank=place,
            trial=trial.name,
            parent=trial.parent,
            status=trial.status,
            reason=trial.reason,
            epochs=trial.epoch,
            width=trial.width,
            objective=trial.objective,
            score=trial.score,
            front=fronts.get(trial.name),
            val_mae=trial.val_mae,
            slot_seconds=trial.slot_seconds,
            energy_joules=trial.energy,
            energy_share=trial.metered_share,
            conv=find_conv(trial, config),
            values=trial.values,
        )
        for place, trial in places
    )
    return Leaderboard(rows, state.units)


def _fronts(ranked: Sequence[Trial]) -> dict[str, bool]:
    """Return, by trial, whether it is on the Pareto front of several goals; empty for one goal."""
    several = [(t.name, t.score) for t in ranked if isinstance(t.score, tuple)]
    front = set(pareto_front([point for _, point in several]))
    return {name: place in front for place, (name, _) in enumerate(several)}


def read_leaderboard(run: RunDir) -> Leaderboard:
    """Rank the trials of a run directory."""
    state = read_state(run)
    return rank_trials(state, load_config(run.campaign, CampaignConfig))


def explain_no_result(state: State) -> str:
    """Return a sentence, without its full stop, on why no trial has a result."""
    if not state.trials:
        return "none was proposed"
    failed = [t for t in state.trials.values() if t.status in ("failed", "cancelled")]
    if not failed:
        return (
            f"{min(state.trials)} and all others ended without a finite number for "
            "search.objective; correct it in the campaign file, and run the same command again: "
            "the trials are kept"
        )
    last = failed[-1]
    cause = f": {last.message}" if last.message else ""
    return f"{last.name} ended as {last.reason}{cause}".rstrip(".")
