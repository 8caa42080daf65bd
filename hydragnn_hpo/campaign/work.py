"""What the trials of a campaign are: trainings of ours, or any command."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hydragnn_hpo.campaign.commands import Command
from hydragnn_hpo.campaign.outcome import Attempt, outcome_of
from hydragnn_hpo.campaign.setup import check_space, stores_of, trial_config
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import dump
from hydragnn_hpo.config.mixture import united
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.layout import RunDir, TrialDir

RunJob = Callable[[str, dict[str, Any]], Any]
"""Runs a job that is no trial and gives its answer."""


class Work(Protocol):
    """What a trial of a campaign is."""

    kind: str
    """Kind of its jobs, see ``launching.job.JOBS``."""

    stats: dict[str, Any]
    """What the data hold; empty without data."""

    needs: tuple[Path, ...]
    """What every trial reads beside its own folder."""

    def prepare(self, job: RunJob) -> None:
        """Make ready what all trials need.

        Raises:
            ConfigError: the space does not fit the data.
        """

    def configure(self, name: str, values: Mapping[str, Any]) -> Any:
        """Make a trial's whole configuration.

        Raises:
            ConfigError: the values do not make a valid trial.
        """

    def written(self, config: Any) -> str:
        """Give the content of ``trial.toml``."""

    def ranks(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Give those of a trial's slots on which a rank is started."""

    def spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Give what every rank of an attempt is told."""

    def ended(self, attempt: Attempt, *, until: int, first: int | None) -> dict[str, Any]:
        """Say how an attempt ended, see ``outcome.outcome_of``.

        Args:
            attempt: what is known of it.
            until: epoch up to which it was to go.
            first: the rank that ended first, if anybody saw it.
        """


class Training:
    """Trials that train a model on graph stores."""

    kind = "train"

    def __init__(self, config: CampaignConfig, run: RunDir, cards: Mapping[Path, str]) -> None:
        """Know the cards of the campaign: path and name, which is the store's too."""
        self.config, self.run_dir, self.cards = config, run, cards
        self.stats: dict[str, Any] = {}
        self.needs = tuple(run.store(name) for name in cards.values())
        self._stores = stores_of(config, list(cards.values()))

    def prepare(self, job: RunJob) -> None:
        """Build the stores that are not there yet, and try the space on them."""
        every = []
        for path, name in self.cards.items():
            store = self.run_dir.store(name)
            if not (store / "index.json").exists():
                with storage(self.run_dir.data):
                    self.run_dir.data.mkdir(exist_ok=True)
                job("build", {"card": str(path), "out": str(store)})
            every.append(read_json(store / "stats.json"))
        self.stats = united(every, self.config.data, self.config.shared)
        check_space(self.config, self.stats["targets"], self.stats["cutoff"], self.stats)

    def configure(self, name: str, values: Mapping[str, Any]) -> TrialConfig:
        """Make a trial's configuration from the template and searched values."""
        return trial_config(self.config, name, values, self._stores)

    def written(self, config: TrialConfig) -> str:
        """Give the content of ``trial.toml``."""
        return dump(config)

    def ranks(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Give all slots."""
        return slots

    def spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Give trial and attempt; ``placement.toml`` says the rest."""
        one_host = len({slot.host for slot in slots}) == 1
        return {"trial_dir": str(trial.path.resolve()), "attempt": attempt, "one_host": one_host}

    def ended(self, attempt: Attempt, *, until: int, first: int | None) -> dict[str, Any]:
        """Say how an attempt ended."""
        return outcome_of(attempt)


def work_of(config: CampaignConfig, run: RunDir, cards: Mapping[Path, str]) -> Work:
    """Choose by what the campaign says."""
    if config.command is not None:
        return Command(config, config.command)
    return Training(config, run, cards)
