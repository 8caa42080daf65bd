"""What is known about a campaign's data before a price can be made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.setup import check_space, find_cards
from hydragnn_hpo.campaign.trial_kind import TrialKind, make_trial_kind
from hydragnn_hpo.cli.guessing import stats_of
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.config.mixture import united
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir

NO_DATA = "none: trials are a command of yours"


@dataclass(frozen=True)
class DataKnown:
    """The data of a campaign, as far as a forecast needs it."""

    work: TrialKind
    """What its trials are."""
    stats: dict[str, Any]
    """What the data hold together."""
    said: str
    """Where that is from, for people."""


def data_of_campaign(
    config: CampaignConfig, source: Path, run: RunDir, structures: int | None
) -> DataKnown:
    """Look at a campaign's data: its stores, or a few of its structures.

    Args:
        config: the campaign.
        source: its file.
        run: the run directory in which its stores may be.
        structures: how many there are of each data set; counted if left out.

    Raises:
        ConfigError: a card is wrong, or the space does not fit the data.
        DataError: nothing is known about the data.
    """
    if config.command is not None:
        return DataKnown(make_trial_kind(config, run, {}), {}, NO_DATA)
    cards = find_cards(config, source)
    guesses = [
        stats_of(path, [run.store(card.name), Path(f"{card.name}.bp")], structures)
        for path, card in cards.items()
    ]
    stats = united([guess.stats for guess in guesses], config.data, config.shared)
    built = all(guess.built for guess in guesses)
    check_space(config, stats["targets"], stats["cutoff"], stats if built else None)
    said = "; ".join(guess.said for guess in guesses)
    work = make_trial_kind(config, run, {path: card.name for path, card in cards.items()})
    return DataKnown(work, stats, said if built else f"not built yet, estimated: {said}")


def data_of_run(config: CampaignConfig, run: RunDir) -> DataKnown:
    """Look at a run's stores, which any of its trials names.

    Raises:
        RunError: no trial was placed yet.
    """
    if config.command is not None:
        return DataKnown(make_trial_kind(config, run, {}), {}, NO_DATA)
    trial = min(run.path.glob("trials/*/trial.toml"), default=None)
    if trial is None:
        raise RunError(f"{run.path}: no trial was placed yet; plan its campaign file instead.")
    names = [Path(entry.store).stem for entry in load(trial, TrialConfig).data]
    every = [read_json(run.store(name) / "stats.json") for name in names]
    stats = united(every, config.data, config.shared)
    work = make_trial_kind(config, run, {Path(name): name for name in names})
    return DataKnown(work, stats, f"the stores of {run.path}")
