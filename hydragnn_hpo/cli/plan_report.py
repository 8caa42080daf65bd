"""Behind ``plan``: from a campaign or a run to a forecast in words, as JSON, as a figure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign import (
    Forecast,
    ForecastMachine,
    JournalHistory,
    PricedTrial,
    SlotLedger,
    State,
    TrialPricer,
    configuration_of,
    forecast_campaign,
    read_journal,
    rung_of,
    sample_configurations,
    settle,
)
from hydragnn_hpo.cli.estimate_stats import DataKnown, data_of_campaign, data_of_run
from hydragnn_hpo.cli.words import count, duration, percent
from hydragnn_hpo.config import (
    HERE,
    CampaignConfig,
    TrialConfig,
    find_profile,
    load_config,
    resolve_machine,
)
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.journal_events import EpochEvent, JournalEvent, SearchedValues
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement import (
    Bar,
    CostModel,
    TrialPrediction,
    compare_with_prediction,
    typical_error,
)
from hydragnn_hpo.report import Chart, draw_gantt
from hydragnn_hpo.resources import find_resource

CAUSES = {
    "training": "training and validation",
    "start-up": "starting: the machine, and every attempt",
    "held": "idle although trials wait",
    "brain": "idle until the brain proposes",
    "tail": "idle, nothing is left to start",
    "failures": "lost work, and hosts that are away",
}
"""Causes of the simulation, for people."""

WORTH_A_WORD = 0.1
"""A loss above this share is advised upon."""

SHORT = 600.0
"""Seconds up to which it does not matter how long starting takes."""

BOUND = 0.7
"""The longest trial is the bound where it takes this share of the whole time."""

BUSY = 0.8
"""Share of slot-time that training takes on a machine that is not too large."""

SHOWN_WIDTHS = 5

COMPARED = 20
"""Finished trials that are shown one by one: those that were priced worst."""

MOST_COLOURS = 6
"""More kinds of trials than this, and bars are coloured by rung."""


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


def plan_campaign(campaign: str, request: PlanRequest) -> PlanReport:
    """Forecast a campaign from its beginning.

    Raises:
        ConfigError: campaign or profile are wrong, or no drawn configuration is a valid trial.
        DataError: nothing is known about the data.
    """
    return forecast_known(read_campaign(campaign, request), request.trials)


def forecast_known(known: "KnownCampaign", trials: int | None = None) -> PlanReport:
    """Forecast a campaign that was read.

    Args:
        known: the campaign.
        trials: how many; the campaign's own if left out.

    Raises:
        ConfigError: no drawn configuration is a valid trial.
    """
    config, machine, data = known.config, known.machine, known.data
    drawn = trials or config.search.trials
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    priced, refused = _price_all(pricing, sample_configurations(config, drawn), first=0)
    if not priced:
        raise ConfigError(f"{config.name}: none of {drawn} drawn configurations is a valid trial.")
    return PlanReport(
        config, data.said, forecast_campaign(config, machine, priced, refused=refused)
    )


@dataclass(frozen=True)
class KnownCampaign:
    """A campaign and what is known of its data and its machine."""

    config: CampaignConfig
    data: DataKnown
    machine: ForecastMachine


def read_campaign(campaign: str, request: PlanRequest) -> KnownCampaign:
    """Read a campaign, with whatever was asked for in place of what it says.

    Raises:
        ConfigError: campaign or profile are wrong.
        DataError: nothing is known about the data.
    """
    source = find_resource(campaign, "workflows")
    config = settle(load_config(source, CampaignConfig), source)
    asked = resolve_machine(config.machine, {"profile": request.machine}, source.parent)
    config = config.model_copy(update={"machine": asked})
    run = RunDir(Path("runs") / config.name)
    data = data_of_campaign(config, source, run, request.structures)
    return KnownCampaign(config, data, _choose_machine(config, request))


def plan_run(run: RunDir, request: PlanRequest) -> PlanReport:
    """Compare what a run's trials took with their prices, and forecast what is left.

    Raises:
        RunError: no trial was placed yet, or its journal is damaged.
    """
    config = load_config(run.campaign, CampaignConfig)
    history = JournalHistory(read_journal(run.journal))
    events, state, ledger = history.events, history.state, history.ledger
    machine, data = _choose_machine(config, request, ledger), data_of_run(config, run)
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    left = None if state.finished else _left(pricing, state, events, request)
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
    pricing: TrialPricer, state: State, events: Sequence[JournalEvent], request: PlanRequest
) -> Forecast:
    """Forecast what a run has still to do, by prices that its own epochs corrected."""
    config = pricing.config
    known = _known(pricing, state, events)
    budget = (request.trials or config.search.trials) + state.added
    missing = 0 if state.ending else max(0, budget - state.searched)
    values = sample_configurations(
        config, missing, [trial.values for trial in state.trials.values()]
    )
    new, refused = _price_all(pricing, values, first=len(state.trials))
    return forecast_campaign(config, pricing.machine, known | new, state=state, refused=refused)


def _known(
    pricing: TrialPricer, state: State, events: Sequence[JournalEvent]
) -> dict[str, PricedTrial]:
    """Price a run's trials, after all that its epochs tell."""
    trials = {name: t for name, t in state.trials.items() if t.reason != "bad_config"}
    configs = {name: pricing.configure(name, trial.values) for name, trial in trials.items()}
    for event in events:
        if event["event"] == "epoch" and (config := configs.get(event["trial"])) is not None:
            _observe(pricing.costs, config, trials[event["trial"]].values, event)
    return {name: pricing.priced(name, trials[name].values, c) for name, c in configs.items()}


def _observe(costs: CostModel, config: Any, values: SearchedValues, event: EpochEvent) -> None:
    if isinstance(config, TrialConfig):
        costs.observe(config, event["width"], event["seconds"])
    else:
        costs.observe_values(values, event["width"], event["seconds"])


def _choose_machine(
    config: CampaignConfig, request: PlanRequest, ledger: SlotLedger | None = None
) -> ForecastMachine:
    """Settle what is simulated: as asked, as a run has it, as campaign or profile say.

    Raises:
        ConfigError: there is no such profile, or it has fewer hosts.
    """
    profile = find_profile(request.machine or config.machine.profile)
    hosts, slots = request.hosts, request.slots
    if ledger is not None and request.machine is None and ledger.slots:
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
    return ForecastMachine(profile, hosts, slots, request.failures)


def _costs(config: CampaignConfig, machine: ForecastMachine, stats: StoreStats | None) -> CostModel:
    return CostModel(stats, machine.profile, max_width=min(config.machine.max_width, machine.slots))


def _price_all(
    pricing: TrialPricer, values: Sequence[dict[str, Any]], *, first: int
) -> tuple[dict[str, PricedTrial], int]:
    """Price drawn configurations; those that are no valid trial are counted."""
    named = ((f"t{number:04d}", each) for number, each in enumerate(values, start=first))
    priced = [pricing.price(name, each) for name, each in named]
    valid = {each.name: each for each in priced if each is not None}
    return valid, len(priced) - len(valid)


# -- in words, as JSON, as a figure ---------------------------------------------------------


def report_lines(planned: PlanReport) -> Iterator[str]:
    """Yield the whole report, line by line."""
    search, found = planned.config.search, planned.forecast
    rungs = " -> ".join(map(str, search.rungs))
    if planned.comparisons:
        yield from _hindsight(planned)
    if found is None:
        yield f"{planned.config.name}: nothing is left to do"
        return
    what = "what is left: " if planned.bars else ""
    yield (
        f"{planned.config.name}: {what}{count(found.trials, 'trial')}, epochs {rungs}, "
        f"{count(search.finalists, 'finalist')}"
    )
    yield f"machine      {_describe_machine(found)}"
    yield f"data         {planned.data}"
    yield from _course(found)
    for advice in advice_lines(found):
        yield f"advice       {advice}"
    yield f"trust        {_trust(found)}"


def _describe_machine(found: Forecast) -> str:
    machine = found.machine
    size = f"{count(machine.hosts, 'host')} of {count(machine.slots_per_host, 'slot')}"
    lost = f", {machine.failures:g} lost per host and hour" if machine.failures else ""
    return f"{machine.profile.name}: {size}{lost}"


def _course(found: Forecast) -> Iterator[str]:
    """Return how the simulation went."""
    went = found.simulated
    yield f"takes        {duration(went.makespan)}, {found.host_hours:,.4g} host-hours"
    yield f"useful       {percent(went.useful)} of slot-time is work that one rank would have, too"
    shares = sorted(went.shares.items(), key=lambda pair: (pair[0] != "training", -pair[1]))
    for number, (cause, share) in enumerate(shares):
        if share >= 5e-4 or cause == "training":
            name = "slot-time" if number == 0 else ""
            yield f"{name:9} {percent(share):>9}  {CAUSES[cause]}"
    restarts = count(went.restarts, "restart")
    yield f"attempts     {_ranks(found.widths)}; {restarts} for a better width"
    name, seconds = found.longest
    yield f"longest      {name}: {duration(seconds)} as wide as is efficient"
    if found.machine.failures:
        yield f"failures     {count(went.failed_hosts, 'host')} lost"


def advice_lines(found: Forecast) -> Iterator[str]:
    """Return what would make better use of the machine."""
    went, machine = found.simulated, found.machine
    shares, (_, longest) = went.shares, found.longest
    idle = shares["tail"] + shares["held"]
    if went.unfinished:
        yield (
            f"{count(len(went.unfinished), 'trial')} would be left undone when the allocation "
            f"ends after {duration(went.makespan)}: fewer trials, more hosts, or a second run."
        )
    if shares["held"] > max(WORTH_A_WORD, shares["tail"]):
        yield "slots idle although trials wait: let trials be narrower (machine.max_width)."
    elif idle > WORTH_A_WORD:
        last = longest < BOUND * went.makespan
        yield (
            f"with {count(found.trials, 'trial')} on {count(machine.hosts, 'host')} "
            f"{'the last rungs are' if last else 'the longest trial is'} the bound: more trials or "
            f"fewer hosts. {_enough(found)}"
        ).rstrip()
    if shares["brain"] > WORTH_A_WORD:
        yield "slots wait for the brain: search.brain = 'sobol', or more search.initial."
    if shares["start-up"] > WORTH_A_WORD and went.makespan > SHORT:
        yield "starting takes long beside training: fewer hosts, or longer rungs."
    if found.refused:
        yield (
            f"{found.refused} of {found.refused + len(found.priced)} drawn configurations are no "
            "valid trial: rule them out by search.constraints."
        )


def _enough(found: Forecast) -> str:
    """Return how many hosts would nearly do: those that the work keeps busy for the whole time."""
    went, each = found.simulated, found.machine.slots_per_host
    hosts = math.ceil(went.useful_seconds / (BUSY * max(went.makespan, 1e-9)) / each)
    if hosts >= found.machine.hosts:
        return ""
    return f"{count(max(1, hosts), 'host')} would take about as long."


def _ranks(widths: dict[int, int]) -> str:
    """Return how wide attempts are; in short where there are many widths."""
    if len(widths) <= SHOWN_WIDTHS:
        shown = (f"{number:,} x {count(width, 'rank')}" for width, number in widths.items())
        return ", ".join(shown) or "none"
    every = [width for width, number in widths.items() for _ in range(number)]
    middle = every[len(every) // 2]
    return f"{len(every):,}, of {min(every)} to {max(every):,} ranks, half of them up to {middle:,}"


def _trust(found: Forecast) -> str:
    """Return how far prices can be believed."""
    factor = math.exp(found.sigma)
    if factor < 1.3:
        return "prices follow what ran before"
    return (
        f"prices are first guesses, all of them may be off by a factor of about {factor:.1f}; "
        "the campaign corrects them as it runs"
    )


def _hindsight(planned: PlanReport) -> Iterator[str]:
    """Return what was predicted of finished trials, and what they took."""
    rows = planned.comparisons
    error = typical_error(rows) or 0.0
    yield (
        f"{planned.config.name}: {count(len(rows), 'trial')} ended; seconds per epoch were off by "
        f"a factor of {math.exp(error):.2f} in the median when they were placed"
    )
    worst = sorted(rows, key=lambda row: -abs(math.log(max(row.ratio, 1e-9))))[:COMPARED]
    yield f"{'trial':8} {'ranks':>5} {'predicted':>10} {'actual':>10} {'ratio':>6}"
    for row in worst:
        numbers = f"{row.predicted:>10.3g} {row.actual:>10.3g} {row.ratio:>6.2f}"
        yield f"{row.trial:8} {row.width:>5} {numbers}"
    if len(rows) > len(worst):
        yield f"and {len(rows) - len(worst)} more that were priced better"


def report_plain(planned: PlanReport) -> dict[str, Any]:
    """Return everything as plain data for JSON."""
    return {
        "campaign": planned.config.name,
        "data": planned.data,
        "ended": [asdict(row) | {"ratio": row.ratio} for row in planned.comparisons],
        "typical_error": typical_error(planned.comparisons),
        "forecast": None if planned.forecast is None else _plain(planned.forecast),
    }


def _plain(found: Forecast) -> dict[str, Any]:
    went, machine = found.simulated, found.machine
    return {
        "machine": machine.profile.name,
        "hosts": machine.hosts,
        "slots_per_host": machine.slots_per_host,
        "trials": found.trials,
        "refused": found.refused,
        "makespan": went.makespan,
        "host_hours": found.host_hours,
        "useful": went.useful,
        "shares": went.shares,
        "widths": found.widths,
        "restarts": went.restarts,
        "failed_hosts": went.failed_hosts,
        "unfinished": len(went.unfinished),
        "longest": {"trial": found.longest[0], "seconds": found.longest[1]},
        "advice": list(advice_lines(found)),
        "sigma": found.sigma,
    }


def draw_plan(planned: PlanReport, out: Path) -> None:
    """Draw who ran where and when, or will.

    Args:
        planned: what there is to tell.
        out: the PNG to write.

    Raises:
        RunError: nothing ran, and nothing will.
    """
    draw_gantt(_past(planned) if planned.bars else _future(planned), out)


def _past(planned: PlanReport) -> Chart:
    seconds = max(bar.end for bar in planned.bars)
    heading = (
        f"{planned.config.name}: {count(len(planned.labels), 'trial')} in {duration(seconds)}, "
        f"{percent(planned.trained)} of slot-time in training"
    )
    colours = _colouring(planned.bars, planned.labels)
    return Chart(planned.bars, planned.slots, seconds, heading, colours)


def _future(planned: PlanReport) -> Chart:
    found = planned.forecast
    if found is None or not found.simulated.bars:
        raise RunError(f"campaign '{planned.config.name}': there is nothing to draw.")
    machine, went = found.machine, found.simulated
    order = machine.profile.slot_order or range(machine.slots_per_host)
    slots = [f"n{host:05}:{slot}" for host in range(machine.hosts) for slot in order]
    labels = {name: each.label for name, each in found.priced.items()}
    heading = (
        f"{planned.config.name} on {machine.profile.name}: {count(found.trials, 'trial')} in "
        f"{duration(went.makespan)}, {percent(went.shares['training'])} of slot-time in training"
    )
    return Chart(went.bars, slots, went.makespan, heading, _colouring(went.bars, labels))


def _colouring(bars: Sequence[Bar], labels: Mapping[str, str]) -> Callable[[Bar], str]:
    """Colour by what the trials are, or by rung where there are too many kinds, or one."""
    kinds = {labels.get(configuration_of(bar.trial), "") for bar in bars}
    if 1 < len(kinds) <= MOST_COLOURS:
        return lambda bar: labels.get(configuration_of(bar.trial), "")
    return lambda bar: f"{rung_of(bar.trial)} epochs"
