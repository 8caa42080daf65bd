"""The forecasts of ``plan``, from a campaign or a run, as text, JSON and a figure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from hydragnn_hpo.campaign import (
    Forecast,
    ForecastMachine,
    JournalHistory,
    PricedTrial,
    SlotLedger,
    State,
    TrialPricer,
    configuration_of,
    find_conv,
    forecast_campaign,
    read_journal,
    rung_of,
    sample_configurations,
)
from hydragnn_hpo.cli.progress import ProgressDisplay
from hydragnn_hpo.cli.words import count, duration, percent
from hydragnn_hpo.config import (
    HERE,
    CampaignConfig,
    TrialConfig,
    find_profile,
    load_config,
)
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.journal_events import EpochEvent, JournalEvent, SearchedValues
from hydragnn_hpo.launching import detect_slots
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline import (
    Changes,
    DataKnown,
    data_of_campaign,
    data_of_run,
    load_campaign,
)
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

COMPARED = 20
"""Finished trials that are listed: those with the largest errors of prediction."""

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
    """A forecast, and for a run also its past."""

    config: CampaignConfig
    data: str
    """Where the sizes of the data are from, in words."""
    forecast: Forecast | None
    """None if nothing is left to do."""
    comparisons: tuple[TrialPrediction, ...] = ()
    """Predicted and actual seconds of the trials that ended; empty for a campaign."""
    bars: tuple[Bar, ...] = ()
    """Past activity of a run's slots; empty for a campaign."""
    slots: tuple[str, ...] = ()
    """All slots of the run."""
    labels: dict[str, str] = field(default_factory=dict)
    """Kind of each trial of the run, which decides the colour of its bars."""
    trained: float = 0.0
    """Share of the run's slot time in training, from 0 to 1."""


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
    priced, refused = _price_all(pricing, values, first=0, display=display)
    if not priced:
        raise ConfigError(
            f"{config.name}: none of {drawn} drawn configurations is a valid trial: correct "
            "[space]."
        )
    forecast = forecast_campaign(
        config, machine, priced, refused=refused, report=_simulation_report(display)
    )
    return PlanReport(config, data.origin, forecast)


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


def plan_run(
    run: RunDir, request: PlanRequest, display: ProgressDisplay | None = None
) -> PlanReport:
    """Compare the duration of a run's trials with the prediction, and forecast the rest of the run.

    Args:
        run: the run directory.
        request: options of the command.
        display: shows the progress; None for nothing.

    Raises:
        ConfigError: the settings of the campaign are to be changed.
        RunError: no trial was placed yet, or its journal is damaged.
    """
    if request.changes:
        raise ConfigError(
            f"{run.path}: is a run, whose settings stay as they are: leave --set out, or plan its "
            "campaign file."
        )
    config = load_config(run.campaign, CampaignConfig)
    history = JournalHistory(read_journal(run.journal))
    events, state, ledger = history.events, history.state, history.ledger
    machine = _choose_machine(config, request, ledger)
    data = data_of_run(config, run)
    pricing = TrialPricer(config, machine, _costs(config, machine, data.stats), data.work.configure)
    display = display or ProgressDisplay("", quiet=True)
    left = None if state.finished else _left(pricing, state, events, request, display)
    return PlanReport(
        config,
        data.origin,
        left if left is not None and left.works else None,
        comparisons=tuple(compare_with_prediction(events)),
        bars=tuple(history.slots.bars),
        slots=history.slots.all_slots,
        labels={name: find_conv(t, config) or "training" for name, t in state.trials.items()},
        trained=ledger.utilization().share("training"),
    )


def _left(
    pricing: TrialPricer,
    state: State,
    events: Sequence[JournalEvent],
    request: PlanRequest,
    display: ProgressDisplay,
) -> Forecast:
    """Forecast the rest of a run, with prices that its own epochs have corrected.

    Args:
        pricing: prices trials.
        state: how the run stands.
        events: its journal.
        request: options of the command.
        display: shows the progress.
    """
    config = pricing.config
    known = _known(pricing, state, events)
    budget = (request.trials or config.search.trials) + state.added
    missing = _check_plannable(0 if state.ending else max(0, budget - state.searched))
    values = sample_configurations(
        config, missing, [trial.values for trial in state.trials.values()]
    )
    new, refused = _price_all(pricing, values, first=len(state.trials), display=display)
    return forecast_campaign(
        config,
        pricing.machine,
        known | new,
        state=state,
        refused=refused,
        report=_simulation_report(display),
    )


def _known(
    pricing: TrialPricer, state: State, events: Sequence[JournalEvent]
) -> dict[str, PricedTrial]:
    """Price a run's trials with a cost model that has observed all its epochs."""
    trials = {name: t for name, t in state.trials.items() if t.reason != "bad_config"}
    configs = {name: pricing.configure(name, trial.values) for name, trial in trials.items()}
    for event in events:
        if event["event"] == "epoch" and (config := configs.get(event["trial"])) is not None:
            _observe(pricing.costs, config, trials[event["trial"]].values, event)
    return {
        name: pricing.price_configured(name, trials[name].values, c) for name, c in configs.items()
    }


def _observe(costs: CostModel, config: Any, values: SearchedValues, event: EpochEvent) -> None:
    if isinstance(config, TrialConfig):
        costs.observe(config, event["width"], event["seconds"])
    else:
        costs.observe_values(values, event["width"], event["seconds"])


def _choose_machine(
    config: CampaignConfig, request: PlanRequest, ledger: SlotLedger | None = None
) -> ForecastMachine:
    """Choose the machine to simulate: as requested, else the run's, the campaign's, the profile's.

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
    pricing: TrialPricer,
    values: Sequence[SearchedValues],
    *,
    first: int,
    display: ProgressDisplay,
) -> tuple[dict[str, PricedTrial], int]:
    """Price drawn configurations; those that are no valid trial are counted.

    Args:
        pricing: prices trials.
        values: searched values of each.
        first: number of the first trial.
        display: shows the progress.

    Returns:
        The valid trials by name, and the number of the others.
    """
    display.begin("pricing trials", len(values))
    priced = []
    for number, each in enumerate(values):
        priced.append(pricing.price(f"t{first + number:04d}", each))
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
    if planned.comparisons:
        yield from _hindsight(planned)
    if forecast is None:
        yield f"{planned.config.name}: nothing is left to do"
        return
    what = "what is left: " if planned.bars else ""
    yield (
        f"{planned.config.name}: {what}{count(forecast.trials, 'trial')}, epochs {rungs}, "
        f"{count(search.finalists, 'finalist')}"
    )
    yield f"machine      {_describe_machine(forecast)}"
    yield f"data         {planned.data}"
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


def _hindsight(planned: PlanReport) -> Iterator[str]:
    """Yield predicted and actual seconds of the trials that ended."""
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


def report_plain(planned: PlanReport) -> dict[str, JsonValue]:
    """Return the report as plain data for JSON.

    Returns:
        ``campaign``; ``data``: where its sizes are from; ``ended``: the trials that ended, with
        seconds per epoch ``predicted`` and ``actual``; ``typical_error``: the median of the
        absolute logarithm of their ratios; ``forecast``, in seconds unless a name says otherwise.
    """
    ended: list[JsonValue] = [asdict(row) | {"ratio": row.ratio} for row in planned.comparisons]
    return {
        "campaign": planned.config.name,
        "data": planned.data,
        "ended": ended,
        "typical_error": typical_error(planned.comparisons),
        "forecast": None if planned.forecast is None else _plain(planned.forecast),
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
    """Draw which trial held which slots when; for a campaign, in the simulation.

    Args:
        planned: the report.
        out: the PNG to write.

    Raises:
        RunError: there are no bars to draw.
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
    forecast = planned.forecast
    if forecast is None or not forecast.simulated.bars:
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
    return Chart(went.bars, slots, went.makespan, heading, _colouring(went.bars, labels))


def _colouring(bars: Sequence[Bar], labels: Mapping[str, str]) -> Callable[[Bar], str]:
    """Choose what colours stand for: kinds of trials, or rungs for one kind or too many."""
    kinds = {labels.get(configuration_of(bar.trial), "") for bar in bars}
    if 1 < len(kinds) <= MOST_COLOURS:
        return lambda bar: labels.get(configuration_of(bar.trial), "")
    return lambda bar: f"{rung_of(bar.trial)} epochs"
