"""The trials of a campaign, best first."""

from dataclasses import asdict, dataclass
from typing import Any

from hydragnn_hpo.campaign.journal import read
from hydragnn_hpo.campaign.state import State, Trial, fold
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir


@dataclass(frozen=True)
class Row:
    """One trial."""

    rank: int | None
    """Place among the trials with a result; those trained furthest come first."""
    trial: str
    status: str
    reason: str | None
    epochs: int
    width: int
    objective: float | None
    """Weighted validation MAE in units of each target's standard deviation."""
    val_mae: dict[str, float]
    """By head, in the head's unit."""
    slot_seconds: float
    values: dict[str, Any]


@dataclass(frozen=True)
class Leaderboard:
    """All trials, best first, and the units of their MAEs."""

    rows: tuple[Row, ...]
    units: dict[str, str]

    def best(self, top: int) -> "Leaderboard":
        """Keep the first rows."""
        return Leaderboard(self.rows[:top], self.units)

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return {"units": self.units, "trials": [asdict(row) for row in self.rows]}


def leaderboard_of(state: State) -> Leaderboard:
    """Rank the trials of a state."""
    ranked = state.ranked()
    rest = [trial for trial in state.trials.values() if trial not in ranked]
    rows = [_row(place, trial) for place, trial in enumerate(ranked, start=1)]
    return Leaderboard(tuple(rows + [_row(None, trial) for trial in rest]), state.units)


def read_leaderboard(run: RunDir) -> Leaderboard:
    """Rank the trials of a run directory."""
    return leaderboard_of(read_state(run))


def read_state(run: RunDir) -> State:
    """Fold the journal of a run directory.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    if not run.campaign.exists():
        raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
    return fold(read(run.journal))


def _row(rank: int | None, trial: Trial) -> Row:
    return Row(
        rank=rank,
        trial=trial.name,
        status=trial.status,
        reason=trial.reason,
        epochs=trial.epoch,
        width=trial.width,
        objective=trial.objective,
        val_mae=trial.val_mae,
        slot_seconds=trial.slot_seconds,
        values=trial.values,
    )
