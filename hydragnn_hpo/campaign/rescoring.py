"""What trials score by another objective: a misspelt one may be corrected, and trials are kept."""

from collections.abc import Iterable, Mapping

from hydragnn_hpo.campaign.outcome import RESERVED_KEYS
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config import Objective
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.search import Point
from hydragnn_hpo.search.objective import read_objective


def compute_scores(
    events: Iterable[JournalEvent], objective: Objective, spreads: Mapping[str, float]
) -> dict[str, dict[int, Point | None]]:
    """Compute what each trial with results scored, by any objective.

    Args:
        events: of the journal.
        objective: what is minimized.
        spreads: standard deviation of each target in its unit.

    Returns:
        By trial and epoch of the rung; None where a result lacks a number of the objective.
    """
    state = State()
    scores = dict[str, dict[int, Point | None]]()
    for event in events:
        if event["event"] == "ended" and event["outcome"] in ("completed", "stopped"):
            trial = state.trials[event["trial"]]
            numbers = {key: each for key, each in event.items() if key not in RESERVED_KEYS}
            numbers |= {"joules": trial.joules} if trial.joules else {}
            score = read_objective(objective, numbers, spreads)
            scores.setdefault(trial.name, {})[trial.until] = score
        state.apply(event)
    return scores
