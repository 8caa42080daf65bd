"""The work behind ``plan``: from a campaign or a run to a forecast."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign import (
    Event,
    Forecast,
    ForecastMachine,
    JournalHistory,
    PricedTrial,
    SlotLedger,
    State,
    TrialPricer,
    forecast_campaign,
    read_journal,
    sample_configurations,
    settle,
)
from hydragnn_hpo.cli.estimate_stats import data_of_campaign, data_of_run
from hydragnn_hpo.config import (
    HERE,
    CampaignConfig,
    TrialConfig,
    find_profile,
    load_config,
    resolve_machine,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement import Bar, CostModel, TrialPrediction, compare_with_prediction
from hydragnn_hpo.resources import find_resource


@dataclass(frozen=True)
class PlanRequest:
    """What a person asked for; what is left out is as the campaign or the machine says."""

    machine: str | None = None
    hosts: int | None = None
    slots: int | None = None
    trials: int | None = None
    structures: int | None = None
    failures: float = 0.0


@dataclass(frozen=True)
class PlanReport:
    """What there is to tell."""

    config: CampaignConfig
    data: str
    """Where the sizes of the data are from."""
    forecast: Forecast | None
    """None where nothing is left to do."""
    comparisons: tuple[TrialPrediction, ...] = ()
    """What was predicted of trials that ended, and what they took."""
    bars: tuple[Bar, ...] = ()
    """What a run's slots did so far."""
    slots: tuple[str, ...] = ()
    """A run's slots."""
    labels: dict[str, str] = field(default_factory=dict)
    """A run's trials, by what their colour tells."""
    trained: float = 0.0
    """Share of a run's slot-time in training."""


def plan_campaign(campaign: str, wish: PlanRequest) -> PlanReport:
    """Forecast a campaign from its beginning.

    Raises:
        ConfigError: campaign or profile are wrong, or no drawn configuration is a valid trial.
        DataError: nothing is known about the data.
    """
    source = find_resource(campaign, "workflows")
    config = settle(load_config(source, CampaignConfig), source)
    asked = resolve_machine(config.machine, {"profile": wish.machine}, source.parent)
    config = config.model_copy(update={"machine": asked})
    run = RunDir(Path("runs") / config.name)
    data = data_of_campaign(config, source, run, wish.structures)
    machine = _machine(config, wish)
    count = wish.trials or config.search.trials
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    priced, refused = _priced(pricing, sample_configurations(config, count), first=0)
    if not priced:
        raise ConfigError(f"{source}: none of {count} drawn configurations is a valid trial.")
    return PlanReport(
        config, data.said, forecast_campaign(config, machine, priced, refused=refused)
    )


def plan_run(run: RunDir, wish: PlanRequest) -> PlanReport:
    """Compare what a run's trials took with their prices, and forecast what is left.

    Raises:
        RunError: no trial was placed yet, or its journal is damaged.
    """
    config = load_config(run.campaign, CampaignConfig)
    history = JournalHistory(read_journal(run.journal))
    events, state, ledger = history.events, history.state, history.ledger
    machine, data = _machine(config, wish, ledger), data_of_run(config, run)
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    left = None if state.finished else _left(pricing, state, events, wish)
    return PlanReport(
        config,
        data.said,
        left if left is not None and left.works else None,
        comparisons=tuple(compare_with_prediction(events)),
        bars=tuple(history.slots.bars),
        slots=history.slots.all_slots,
        labels={name: trial.conv or "training" for name, trial in state.trials.items()},
        trained=ledger.utilization().share("training"),
    )


def _left(
    pricing: TrialPricer, state: State, events: Sequence[Event], wish: PlanRequest
) -> Forecast:
    """Forecast what a run has still to do, by prices that its own epochs corrected."""
    config = pricing.config
    known = _known(pricing, state, events)
    budget = (wish.trials or config.search.trials) + state.added
    missing = 0 if state.ending else max(0, budget - state.searched)
    values = sample_configurations(
        config, missing, [trial.values for trial in state.trials.values()]
    )
    new, refused = _priced(pricing, values, first=len(state.trials))
    return forecast_campaign(config, pricing.machine, known | new, state=state, refused=refused)


def _known(pricing: TrialPricer, state: State, events: Sequence[Event]) -> dict[str, PricedTrial]:
    """Price a run's trials, after all that its epochs tell."""
    trials = {name: t for name, t in state.trials.items() if t.reason != "bad_config"}
    configs = {name: pricing.configure(name, trial.values) for name, trial in trials.items()}
    for event in events:
        if event["event"] == "epoch" and (config := configs.get(event["trial"])) is not None:
            _observe(pricing.costs, config, trials[event["trial"]].values, event)
    return {name: pricing.priced(name, trials[name].values, c) for name, c in configs.items()}


def _observe(costs: CostModel, config: Any, values: dict[str, Any], event: Event) -> None:
    if isinstance(config, TrialConfig):
        costs.observe(config, event["width"], event["seconds"])
    else:
        costs.observe_values(values, event["width"], event["seconds"])


def _machine(
    config: CampaignConfig, wish: PlanRequest, ledger: SlotLedger | None = None
) -> ForecastMachine:
    """Settle what is simulated: as asked, as a run has it, as campaign or profile say.

    Raises:
        ConfigError: there is no such profile, or it has fewer hosts.
    """
    profile = find_profile(wish.machine or config.machine.profile)
    hosts, slots = wish.hosts, wish.slots
    if ledger is not None and wish.machine is None and ledger.slots:
        hosts = hosts or ledger.hosts[0]
        slots = slots or max(1, ledger.slots // ledger.hosts[0])
    hosts = hosts or config.machine.hosts or profile.hosts or 1
    if hosts > profile.hosts > 1:
        raise ConfigError(
            f"{profile.name} has {profile.hosts:,} hosts, asked was {hosts:,}: ask for fewer."
        )
    slots = slots or config.machine.slots or profile.slots_per_host
    if not slots and profile.name != HERE:
        raise ConfigError(
            f"{profile.name} does not say how many slots a host has: give --slots, or a profile "
            "with slots_per_host."
        )
    slots = slots or len(detect_slots())
    return ForecastMachine(profile, hosts, slots, wish.failures)


def _costs(config: CampaignConfig, machine: ForecastMachine, stats: dict[str, Any]) -> CostModel:
    return CostModel(stats, machine.profile, max_width=min(config.machine.max_width, machine.slots))


def _priced(
    pricing: TrialPricer, values: Sequence[dict[str, Any]], *, first: int
) -> tuple[dict[str, PricedTrial], int]:
    """Price drawn configurations; those that are no valid trial are counted."""
    named = ((f"t{number:04d}", each) for number, each in enumerate(values, start=first))
    found = [pricing.price(name, each) for name, each in named]
    kept = {each.name: each for each in found if each is not None}
    return kept, len(found) - len(kept)
