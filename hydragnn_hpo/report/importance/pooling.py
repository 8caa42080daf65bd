"""Runs that ask the same question, taken together."""

from collections.abc import Callable, Sequence
from typing import Any

from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.report.importance.targets import Observed, observed
from hydragnn_hpo.report.reading.facts import Facts
from hydragnn_hpo.search.space import fixed_values

ALIKE: dict[str, Callable[[Facts], Any]] = {
    "searched other parameters or ranges": lambda facts: facts.config.space,
    "minimized something else": lambda facts: facts.config.search.objective,
    "had another first rung": lambda facts: facts.config.search.rungs[0],
    "fixed other values in [trial]": lambda facts: fixed_values(facts.config.trial),
    "saw other data": lambda facts: _data(facts),
}
"""What runs must have in common, by what is said of one that has not."""


def pooled(runs: Sequence[Facts]) -> tuple[CampaignConfig, list[Observed]]:
    """Give the campaign that all runs share, and what their trials say.

    Raises:
        ConfigError: two runs asked different questions, so that their numbers do not mix.
    """
    first = runs[0]
    for other in runs[1:]:
        for said, of in ALIKE.items():
            if of(other) != of(first):
                raise ConfigError(
                    f"{other.run.path} {said} than {first.run.path}: their trials cannot be "
                    "pooled; ask for each run by itself."
                )
    return first.config, [row for facts in runs for row in observed(facts)]


def _data(facts: Facts) -> Any:
    """Give the checksum of the data that a run trained on last."""
    opened = [event.get("data") for event in facts.events if event["event"] == "opened"]
    return opened[-1] if opened else None
