"""The plan of a campaign on a machine: which machine, its forecast, and advice on its use."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from hydragnn_hpo.config import HERE, CampaignConfig, find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.placement import CostModel
from hydragnn_hpo.planning.forecast import (
    Configure,
    Forecast,
    ForecastMachine,
    TrialPricer,
    forecast_campaign,
    price_draws,
)
from hydragnn_hpo.words import count, duration, percent

NOTABLE_LOSS = 0.1
"""Share of slot time from which a loss is worth advice."""

SHORT = 600.0
"""Makespan in seconds below which the start-up time does not matter."""

BOUND = 0.7
"""Share of the makespan from which the longest trial limits it."""

BUSY = 0.8
"""Share of slot time in training that a well-sized machine reaches."""

MOST_PLANNED = 5000
"""Most trials that are simulated; the time to do so grows with their square."""

ReportWork = Callable[[str, int, int], None]
"""Shows what is being done, how much is done, and how much there is so far."""


class FeaturesPrice(NamedTuple):
    """What the features of a foundation model take for all atoms of the data."""

    title: str
    """Name and version of the model."""
    seconds: float
    """Time on one slot."""
    bytes: int
    """Room on disk."""
    origin: str
    """Where the time is from, in words."""


@dataclass(frozen=True)
class PlanRequest:
    """What is planned; None means as the campaign or the machine profile says."""

    hosts: int | None = None
    slots: int | None = None
    """Slots per host."""
    trials: int | None = None
    structures: int | None = None
    """Structures of each data set; None counts them in the files."""
    failures: float = 0.0
    """Expected failures per host and hour."""


@dataclass(frozen=True)
class Advice:
    """How to use the machine better."""

    cause: Literal["unfinished", "held", "tail", "brain", "start-up", "refused"]
    """What it is against: lost slot time by its cause, trials without an end, or invalid draws."""
    sentence: str
    hosts: int | None = None
    """A smaller number of hosts that would take about as long; None if there is none."""


@dataclass(frozen=True, repr=False)
class CampaignPlan:
    """A campaign and its forecast."""

    config: CampaignConfig
    data: str
    """Where the sizes of the data are from, in words."""
    forecast: Forecast
    features: tuple[FeaturesPrice, ...] = ()
    """What is computed by foundation models before the trials."""

    @property
    def advice(self) -> list[Advice]:
        """How to use the machine better."""
        return list(advise(self.forecast))

    def __repr__(self) -> str:
        forecast, simulated = self.forecast, self.forecast.simulated
        return (
            f"{self.config.name} on {forecast.machine.profile.name}: "
            f"{count(forecast.trials, 'trial')} in {duration(simulated.makespan)}, "
            f"{percent(simulated.shares['training'])} of slot-time in training"
        )


def choose_machine(config: CampaignConfig, request: PlanRequest) -> ForecastMachine:
    """Choose the machine to simulate: as requested, else the campaign's, the profile's.

    Raises:
        ConfigError: there is no such profile, or it has fewer hosts.
    """
    profile = find_profile(config.machine.profile)
    hosts = request.hosts or config.machine.hosts or profile.hosts or 1
    if hosts > profile.hosts > 1:
        raise ConfigError(
            f"{profile.name} has {profile.hosts:,} hosts, {hosts:,} were requested: request fewer."
        )
    slots = request.slots or config.machine.slots or profile.slots_per_host
    if not slots and profile.name != HERE:
        raise ConfigError(
            f"{profile.name} does not say how many slots a host has: give --slots, or a profile "
            "with slots_per_host."
        )
    return ForecastMachine(profile, hosts, slots or len(detect_slots()), request.failures)


def forecast_drawn(
    config: CampaignConfig,
    machine: ForecastMachine,
    stats: StoreStats | None,
    configure: Configure,
    trials: int,
    report: ReportWork = lambda work, done, total: None,
) -> Forecast:
    """Forecast a campaign from its beginning, by configurations drawn from its space.

    Args:
        config: the campaign.
        machine: where it runs.
        stats: of its data; None where trials are a command.
        configure: makes a trial's whole configuration, or raises ``ConfigError``.
        trials: number of trials.
        report: shows the progress.

    Raises:
        ConfigError: there are too many trials, or no drawn configuration is a valid one.
    """
    if trials > MOST_PLANNED:
        raise ConfigError(
            f"{trials:,} trials take too long to simulate: plan at most {MOST_PLANNED:,} with "
            "--trials; costs grow in proportion."
        )
    width = min(config.machine.max_width, machine.slots)
    costs = CostModel(stats, machine.profile, max_width=width)
    pricer = TrialPricer(config, machine, costs, configure)
    priced, refused = price_draws(pricer, trials, partial(report, "pricing trials"))
    if not priced:
        raise ConfigError(
            f"{config.name}: none of {trials} drawn configurations is a valid trial: correct "
            "[space]."
        )
    simulating = partial(report, "simulating trials")
    return forecast_campaign(config, machine, priced, refused=refused, report=simulating)


def advise(forecast: Forecast) -> Iterator[Advice]:
    """Yield advice on how to use the machine better."""
    went, machine = forecast.simulated, forecast.machine
    shares, (_, longest) = went.shares, forecast.longest
    if went.unfinished:
        yield Advice(
            "unfinished",
            f"{count(len(went.unfinished), 'trial')} would not be finished when the allocation "
            f"ends after {duration(went.makespan)}: fewer trials, more hosts, or a second run.",
        )
    if shares["held"] > max(NOTABLE_LOSS, shares["tail"]):
        sentence = "slots idle although trials wait: let trials be narrower (machine.max_width)."
        yield Advice("held", sentence)
    elif shares["tail"] + shares["held"] > NOTABLE_LOSS:
        last = longest < BOUND * went.makespan
        hosts = _enough_hosts(forecast)
        enough = f" {count(hosts, 'host')} would take about as long." if hosts else ""
        sentence = (
            f"with {count(forecast.trials, 'trial')} on {count(machine.hosts, 'host')} "
            f"{'the last rungs are' if last else 'the longest trial is'} the bound: more trials or "
            f"fewer hosts.{enough}"
        )
        yield Advice("tail", sentence, hosts)
    if shares["brain"] > NOTABLE_LOSS:
        sentence = "slots wait for the brain: search.brain = 'sobol', or more search.initial."
        yield Advice("brain", sentence)
    if shares["start-up"] > NOTABLE_LOSS and went.makespan > SHORT:
        sentence = "starting takes long beside training: fewer hosts, or longer rungs."
        yield Advice("start-up", sentence)
    if forecast.refused:
        sentence = (
            f"{forecast.refused} of {forecast.refused + len(forecast.priced)} drawn configurations "
            "are no valid trial: rule them out by search.constraints."
        )
        yield Advice("refused", sentence)


def _enough_hosts(forecast: Forecast) -> int | None:
    """Return a smaller number of hosts that would take about as long; None if there is none."""
    went, machine = forecast.simulated, forecast.machine
    slots = went.useful_seconds / (BUSY * max(went.makespan, 1e-9))
    hosts = max(1, math.ceil(slots / machine.slots_per_host))
    return hosts if hosts < machine.hosts else None
