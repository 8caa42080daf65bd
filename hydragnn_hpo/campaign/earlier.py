"""What an earlier campaign found, for the brain and the cost model of this one."""

from pathlib import Path

from hydragnn_hpo.campaign.leaderboard import read_state
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.config.search import Objective, Space
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.search.space import fixed_values
from hydragnn_hpo.search.warm import Row


def earlier_rows(path: Path, objective: Objective, space: Space) -> list[Row]:
    """Read values and first scores of an earlier campaign's trials; None for failures.

    Args:
        path: its run directory.
        objective: of this campaign.
        space: searched keys of this campaign; what the earlier one had fixed of them is added.

    Raises:
        ConfigError: it minimized something else, so that its scores mean something else.
        RunError: there is no campaign, or its journal is damaged.
    """
    run = RunDir(path)
    state = read_state(run)
    theirs = load(run.campaign, CampaignConfig)
    if theirs.search.objective != objective:
        raise ConfigError(
            f"search.warm_start: {path} minimized {theirs.search.objective!r}, this campaign "
            f"{objective!r}: name a campaign with the same objective, or drop it."
        )
    fixed = {key: value for key, value in fixed_values(theirs.trial).items() if key in space}
    rows: list[Row] = []
    for trial in state.trials.values():
        if trial.parent is not None:  # its values are there with another seed
            continue
        if trial.rests:
            rows.append(({**fixed, **trial.values}, trial.rests[min(trial.rests)]))
        elif trial.status == "failed":
            rows.append(({**fixed, **trial.values}, None))
    return rows
