"""The forecast of a campaign for ``plan``, as text, JSON and a figure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from hydragnn_hpo.campaign import (
    FeaturesPrice,
    Forecast,
    ForecastMachine,
    PricedTrial,
    TrialPricer,
    configuration_of,
    forecast_campaign,
    price_features,
    rung_of,
    sample_configurations,
)
from hydragnn_hpo.cli.progress import ProgressDisplay
from hydragnn_hpo.cli.words import count, duration, percent
from hydragnn_hpo.config import (
    HERE,
    CampaignConfig,
    find_profile,
)
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline import (
    Changes,
    DataKnown,
    data_of_campaign,
    load_campaign,
)
from hydragnn_hpo.placement import (
    Bar,
    CostModel,
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
"""Descriptions of the causes of lost slot time in the simulation."""

NOTABLE_LOSS = 0.1
"""Share of slot time from which a loss is worth advice."""

SHORT = 600.0
"""Makespan in seconds below which the start-up time does not matter."""

BOUND = 0.7
"""Share of the makespan from which the longest trial limits it."""

BUSY = 0.8
"""Share of slot time in training that a well-sized machine reaches."""

SHOWN_WIDTHS = 5

MOST_PLANNED = 5000
"""Most trials that are simulated; the time to do so grows with their square."""

MOST_COLOURS = 6
"""Kinds of trials above which bars are coloured by rung instead."""


@dataclass(frozen=True)
class PlanRequest:
    """Options of ``plan``; None means as the campaign or the machine profile says."""

    machine: str | None = None
    hosts: int | None = None
    slots: int | None = None
    trials: int | None = None
    structures: int | None = None
    failures: float = 0.0
    changes: Changes = field(default_factory=dict)
    """Values in place of the campaign file's."""


@dataclass(frozen=True)
class PlanReport:
    """A campaign and its forecast."""

    config: CampaignConfig
    data: str
    """Where the sizes of the data are from, in words."""
    forecast: Forecast
    features: tuple[FeaturesPrice, ...] = ()
    """What is computed by foundation models before the trials."""


def plan_campaign(
    campaign: str, request: PlanRequest, display: ProgressDisplay | None = None
) -> PlanReport:
    """Forecast a campaign from its beginning.

    Args:
        campaign: campaign file, or the name of a shipped one.
        request: options of the command.
        display: shows the progress; None for nothing.

    Raises:
        ConfigError: campaign or profile are wrong, or no drawn configuration is a valid trial.
        DataError: nothing is known about the data.
    """
    return forecast_known(read_campaign(campaign, request), request.trials, display)


def forecast_known(
    known: "KnownCampaign", trials: int | None = None, display: ProgressDisplay | None = None
) -> PlanReport:
    """Forecast a campaign that was read.

    Args:
        known: the campaign, its data and its machine.
        trials: number of trials; the campaign's own if None.
        display: shows the progress; None for nothing.

    Raises:
        ConfigError: no drawn configuration is a valid trial.
    """
    config, machine, data = known.config, known.machine, known.data
    drawn = _check_plannable(trials or config.search.trials)
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    display = display or ProgressDisplay("", quiet=True)
    values = sample_configurations(config, drawn)
    priced, refused = _price_all(pricing, values, display)
    if not priced:
        raise ConfigError(
            f"{config.name}: none of {drawn} drawn configurations is a valid trial: correct "
            "[space]."
        )
    forecast = forecast_campaign(
        config, machine, priced, refused=refused, report=_simulation_report(display)
    )
    features = price_features(config, data.stats) if data.stats else ()
    return PlanReport(config, data.origin, forecast, features)


def _check_plannable(trials: int) -> int:
    """Return a number of trials that can be simulated within minutes.

    Raises:
        ConfigError: there are more.
    """
    if trials > MOST_PLANNED:
        raise ConfigError(
            f"{trials:,} trials take too long to simulate: plan at most {MOST_PLANNED:,} with "
            "--trials; costs grow in proportion."
        )
    return trials


@dataclass(frozen=True)
class KnownCampaign:
    """A campaign with the statistics of its data and its machine."""

    config: CampaignConfig
    data: DataKnown
    machine: ForecastMachine


def read_campaign(campaign: str, request: PlanRequest) -> KnownCampaign:
    """Read a campaign, and apply the machine that was requested on the command line.

    Raises:
        ConfigError: campaign or profile are wrong.
        DataError: nothing is known about the data.
    """
    source = find_resource(campaign, "workflows")
    config = load_campaign(source, request.changes, profile=request.machine)
    run = RunDir(Path("runs") / config.name)
    data = data_of_campaign(config, source, run, request.structures)
    return KnownCampaign(config, data, _choose_machine(config, request))


def _choose_machine(config: CampaignConfig, request: PlanRequest) -> ForecastMachine:
    """Choose the machine to simulate: as requested, else the campaign's, the profile's.

    Raises:
        ConfigError: there is no such profile, or it has fewer hosts.
    """
    profile = find_profile(request.machine or config.machine.profile)
    hosts, slots = request.hosts, request.slots
    hosts = hosts or config.machine.hosts or profile.hosts or 1
    if hosts > profile.hosts > 1:
        raise ConfigError(
            f"{profile.name} has {profile.hosts:,} hosts, {hosts:,} were requested: request fewer."
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
    pricing: TrialPricer, values: Sequence[SearchedValues], display: ProgressDisplay
) -> tuple[dict[str, PricedTrial], int]:
    """Price drawn configurations; those that are no valid trial are counted.

    Args:
        pricing: prices trials.
        values: searched values of each.
        display: shows the progress.

    Returns:
        The valid trials by name, and the number of the others.
    """
    display.begin("pricing trials", len(values))
    priced = []
    for number, each in enumerate(values):
        priced.append(pricing.price(f"t{number:04d}", each))
        display.show(len(priced))
    valid = {each.name: each for each in priced if each is not None}
    return valid, len(priced) - len(valid)


def _simulation_report(display: ProgressDisplay) -> Callable[[int, int], None]:
    """Return a function that shows the progress of the simulation, whose work may still grow."""
    display.begin("simulating trials", None)

    def report(done: int, total: int) -> None:
        display.total = total
        display.show(done)

    return report


# -- in words, as JSON, as a figure ---------------------------------------------------------


def report_lines(planned: PlanReport) -> Iterator[str]:
    """Yield the lines of the report."""
    search, forecast = planned.config.search, planned.forecast
    rungs = " -> ".join(map(str, search.rungs))
    yield (
        f"{planned.config.name}: {count(forecast.trials, 'trial')}, epochs {rungs}, "
        f"{count(search.finalists, 'finalist')}"
    )
    yield f"machine      {_describe_machine(forecast)}"
    yield f"data         {planned.data}"
    for title, seconds, size in planned.features:
        yield (
            f"first        features of {title}: {duration(seconds)} on one slot, "
            f"{size / 1e6:,.3g} MB on disk"
        )
    yield from _describe_fits(forecast)
    yield from _course(forecast)
    for advice in advice_lines(forecast):
        yield f"advice       {advice}"
    yield f"trust        {_trust(forecast)}"


def _describe_fits(forecast: Forecast) -> Iterator[str]:
    """Yield a line for each kind of fits that follow the search."""
    kinds = (
        (forecast.curve_works, "of the best trial for the learning curve"),
        (forecast.fold_works, "of the best configurations on folds"),
    )
    for fits, what in kinds:
        if fits:
            seconds = math.fsum(work.useful for work in fits)
            yield (
                f"then         {count(len(fits), 'fit')} {what}, to "
                f"epoch {rung_of(fits[0].name)}: {duration(seconds)} on one slot"
            )


def _describe_machine(forecast: Forecast) -> str:
    machine = forecast.machine
    size = f"{count(machine.hosts, 'host')} of {count(machine.slots_per_host, 'slot')}"
    lost = f", {machine.failures:g} lost per host and hour" if machine.failures else ""
    return f"{machine.profile.name}: {size}{lost}"


def _course(forecast: Forecast) -> Iterator[str]:
    """Yield time, cost and slot utilization of the simulated campaign."""
    went = forecast.simulated
    yield f"takes        {duration(went.makespan)}, {forecast.host_hours:,.4g} host-hours"
    yield f"useful       {percent(went.useful)} of slot-time is work that one rank would have, too"
    shares = sorted(went.shares.items(), key=lambda pair: (pair[0] != "training", -pair[1]))
    for number, (cause, share) in enumerate(shares):
        if share >= 5e-4 or cause == "training":
            name = "slot-time" if number == 0 else ""
            yield f"{name:9} {percent(share):>9}  {CAUSES[cause]}"
    restarts = count(went.restarts, "restart")
    yield f"attempts     {_ranks(forecast.widths)}; {restarts} for a better width"
    name, seconds = forecast.longest
    yield f"longest      {name}: {duration(seconds)} on as many ranks as are efficient"
    if forecast.machine.failures:
        yield f"failures     {count(went.failed_hosts, 'host')} lost"


def advice_lines(forecast: Forecast) -> Iterator[str]:
    """Yield advice on how to use the machine better."""
    went, machine = forecast.simulated, forecast.machine
    shares, (_, longest) = went.shares, forecast.longest
    idle = shares["tail"] + shares["held"]
    if went.unfinished:
        yield (
            f"{count(len(went.unfinished), 'trial')} would not be finished when the allocation "
            f"ends after {duration(went.makespan)}: fewer trials, more hosts, or a second run."
        )
    if shares["held"] > max(NOTABLE_LOSS, shares["tail"]):
        yield "slots idle although trials wait: let trials be narrower (machine.max_width)."
    elif idle > NOTABLE_LOSS:
        last = longest < BOUND * went.makespan
        yield (
            f"with {count(forecast.trials, 'trial')} on {count(machine.hosts, 'host')} "
            f"{'the last rungs are' if last else 'the longest trial is'} the bound: more trials or "
            f"fewer hosts. {_enough(forecast)}"
        ).rstrip()
    if shares["brain"] > NOTABLE_LOSS:
        yield "slots wait for the brain: search.brain = 'sobol', or more search.initial."
    if shares["start-up"] > NOTABLE_LOSS and went.makespan > SHORT:
        yield "starting takes long beside training: fewer hosts, or longer rungs."
    if forecast.refused:
        yield (
            f"{forecast.refused} of {forecast.refused + len(forecast.priced)} drawn configurations "
            "are no valid trial: rule them out by search.constraints."
        )


def _enough(forecast: Forecast) -> str:
    """Name a smaller number of hosts that would take about as long; empty if there is none."""
    went, each = forecast.simulated, forecast.machine.slots_per_host
    hosts = math.ceil(went.useful_seconds / (BUSY * max(went.makespan, 1e-9)) / each)
    if hosts >= forecast.machine.hosts:
        return ""
    return f"{count(max(1, hosts), 'host')} would take about as long."


def _ranks(widths: dict[int, int]) -> str:
    """Describe the numbers of ranks of the attempts, in short if there are many."""
    if len(widths) <= SHOWN_WIDTHS:
        shown = (f"{number:,} x {count(width, 'rank')}" for width, number in widths.items())
        return ", ".join(shown) or "none"
    every = [width for width, number in widths.items() for _ in range(number)]
    middle = every[len(every) // 2]
    return f"{len(every):,}, of {min(every)} to {max(every):,} ranks, half of them up to {middle:,}"


def _trust(forecast: Forecast) -> str:
    """Describe the uncertainty of the prices."""
    factor = math.exp(forecast.sigma)
    if factor < 1.3:
        return "prices follow what ran before"
    return (
        f"prices are first guesses, all of them may be off by a factor of about {factor:.1f}; "
        "the campaign corrects them as it runs"
    )


def report_plain(planned: PlanReport) -> dict[str, JsonValue]:
    """Return the report as plain data for JSON; times are seconds unless a name says otherwise.

    Returns:
        ``campaign``; ``data``: where its sizes are from; ``features``: what foundation models take;
        ``forecast``.
    """
    return {
        "campaign": planned.config.name,
        "data": planned.data,
        "features": [price._asdict() for price in planned.features],
        "forecast": _plain(planned.forecast),
    }


def _plain(forecast: Forecast) -> dict[str, JsonValue]:
    went, machine = forecast.simulated, forecast.machine
    return {
        "machine": machine.profile.name,
        "hosts": machine.hosts,
        "slots_per_host": machine.slots_per_host,
        "trials": forecast.trials,
        "curve_fits": len(forecast.curve_works),
        "fold_fits": len(forecast.fold_works),
        "refused": forecast.refused,
        "makespan": went.makespan,
        "host_hours": forecast.host_hours,
        "useful": went.useful,
        "shares": {**went.shares},
        "widths": {str(width): number for width, number in forecast.widths.items()},
        "restarts": went.restarts,
        "failed_hosts": went.failed_hosts,
        "unfinished": len(went.unfinished),
        "longest": {"trial": forecast.longest[0], "seconds": forecast.longest[1]},
        "advice": [*advice_lines(forecast)],
        "sigma": forecast.sigma,
    }


def draw_plan(planned: PlanReport, out: Path) -> None:
    """Draw which trial holds which slots when in the simulation.

    Args:
        planned: the report.
        out: the PNG to write.

    Raises:
        RunError: there are no bars to draw.
    """
    forecast = planned.forecast
    if not forecast.simulated.bars:
        raise RunError(
            f"campaign '{planned.config.name}': leave --figure out, there is nothing to draw."
        )
    machine, went = forecast.machine, forecast.simulated
    order = machine.profile.slot_order or range(machine.slots_per_host)
    slots = [f"n{host:05}:{slot}" for host in range(machine.hosts) for slot in order]
    labels = {name: each.label for name, each in forecast.priced.items()}
    heading = (
        f"{planned.config.name} on {machine.profile.name}: {count(forecast.trials, 'trial')} in "
        f"{duration(went.makespan)}, {percent(went.shares['training'])} of slot-time in training"
    )
    draw_gantt(Chart(went.bars, slots, went.makespan, heading, _colouring(went.bars, labels)), out)


def _colouring(bars: Sequence[Bar], labels: Mapping[str, str]) -> Callable[[Bar], str]:
    """Choose what colours stand for: kinds of trials, or rungs for one kind or too many."""
    kinds = {labels.get(configuration_of(bar.trial), "") for bar in bars}
    if 1 < len(kinds) <= MOST_COLOURS:
        return lambda bar: labels.get(configuration_of(bar.trial), "")
    return lambda bar: f"{rung_of(bar.trial)} epochs"
