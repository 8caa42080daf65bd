"""The trials of a campaign, best first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hydragnn_hpo.campaign.event_store import read_state
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.search import Point, pareto_front


@dataclass(frozen=True)
class LeaderboardRow:
    """One trial."""

    rank: int | None
    """Place among the trials with a result; those trained furthest come first."""
    trial: str
    parent: str | None
    """The trial whose values it has with another seed; None for those of the search."""
    status: str
    reason: str | None
    epochs: int
    width: int
    objective: float | None
    """Weighted validation MAE in units of each target's standard deviation."""
    score: Point | None
    """What it is ranked by: one number, or one for each goal of the campaign."""
    front: bool | None
    """Whether no other trial is better at every goal; None where there is one goal."""
    val_mae: dict[str, float]
    """By head, in the head's unit."""
    slot_seconds: float
    energy_joules: float | None
    """What its slots took, by the counters of their hosts; None where nothing was counted."""
    energy_share: float | None
    """Share of the time it held slots in which that was counted; None while it runs."""
    values: dict[str, Any]


@dataclass(frozen=True)
class Leaderboard:
    """All trials, best first, and the units of their MAEs."""

    rows: tuple[LeaderboardRow, ...]
    units: dict[str, str]

    def best(self, top: int) -> "Leaderboard":
        """Keep the first rows."""
        return Leaderboard(self.rows[:top], self.units)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"units": self.units, "trials": [asdict(row) for row in self.rows]}


def rank_trials(state: State) -> Leaderboard:
    """Rank the trials of a state."""
    ranked = state.ranked()
    placed = {trial.name for trial in ranked}
    rest = [trial for trial in state.trials.values() if trial.name not in placed]
    fronts = _fronts(ranked)
    rows = [_row(n, trial, fronts.get(trial.name)) for n, trial in enumerate(ranked, start=1)]
    return Leaderboard(tuple(rows + [_row(None, trial, None) for trial in rest]), state.units)


def _fronts(ranked: Sequence[Trial]) -> dict[str, bool]:
    """Return, by trial, whether it is on the Pareto front of several goals; empty for one goal."""
    several = [(t.name, t.score) for t in ranked if isinstance(t.score, tuple)]
    front = set(pareto_front([point for _, point in several]))
    return {name: place in front for place, (name, _) in enumerate(several)}


def read_leaderboard(run: RunDir) -> Leaderboard:
    """Rank the trials of a run directory."""
    return rank_trials(read_state(run))


def explain_no_result(state: State) -> str:
    """Return a sentence on why no trial has a result."""
    failed = [trial for trial in state.trials.values() if trial.reason]
    if not failed:
        return "none was proposed"
    return f"{failed[-1].name} ended as {failed[-1].reason}: {failed[-1].message}"


def _row(rank: int | None, trial: Trial, front: bool | None) -> LeaderboardRow:
    return LeaderboardRow(
        rank=rank,
        trial=trial.name,
        parent=trial.parent,
        status=trial.status,
        reason=trial.reason,
        epochs=trial.epoch,
        width=trial.width,
        objective=trial.objective,
        score=trial.score,
        front=front,
        val_mae=trial.val_mae,
        slot_seconds=trial.slot_seconds,
        energy_joules=trial.energy,
        energy_share=trial.metered_share,
        values=trial.values,
    )
