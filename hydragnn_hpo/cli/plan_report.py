"""What ``plan`` shows of a forecast: text, JSON and a figure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.placement import Bar
from hydragnn_hpo.planning import CampaignPlan, Forecast
from hydragnn_hpo.planning.forecast import configuration_of, rung_of
from hydragnn_hpo.report import draw_gantt
from hydragnn_hpo.report.gantt import Chart
from hydragnn_hpo.words import count, duration, percent

CAUSES = {
    "training": "training and validation",
    "start-up": "starting: the machine, and every attempt",
    "held": "idle although trials wait",
    "brain": "idle until the brain proposes",
    "tail": "idle, nothing is left to start",
    "failures": "lost work, and hosts that are away",
}
"""Descriptions of the causes of lost slot time in the simulation."""

SHOWN_WIDTHS = 5

MOST_COLOURS = 6
"""Kinds of trials above which bars are coloured by rung instead."""


def report_lines(planned: CampaignPlan) -> Iterator[str]:
    """Yield the lines of the report."""
    search, forecast = planned.config.search, planned.forecast
    rungs = " -> ".join(map(str, search.rungs))
    yield (
        f"{planned.config.name}: {count(forecast.trials, 'trial')}, epochs {rungs}, "
        f"{count(search.finalists, 'finalist')}"
    )
    yield f"machine      {_describe_machine(forecast)}"
    yield f"data         {planned.data}"
    for title, seconds, size, origin in planned.features:
        yield (
            f"first        features of {title}: {duration(seconds)} on one slot ({origin}), "
            f"{size / 1e6:,.3g} MB on disk"
        )
    yield from _describe_fits(forecast)
    yield from _course(forecast)
    for advice in planned.advice:
        yield f"advice       {advice.sentence}"
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


def report_plain(planned: CampaignPlan) -> dict[str, JsonValue]:
    """Return the report as plain data for JSON; times are seconds unless a name says otherwise.

    Returns:
        ``campaign``; ``data``: where its sizes are from; ``features``: what foundation models take;
        ``forecast``.
    """
    forecast, went = planned.forecast, planned.forecast.simulated
    machine = forecast.machine
    return {
        "campaign": planned.config.name,
        "data": planned.data,
        "features": [price._asdict() for price in planned.features],
        "forecast": {
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
            "advice": [advice.sentence for advice in planned.advice],
            "sigma": forecast.sigma,
        },
    }


def draw_plan(planned: CampaignPlan, out: Path) -> None:
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
    draw_gantt(
        Chart(went.bars, slots, went.makespan, repr(planned), _colouring(went.bars, labels)), out
    )


def _colouring(bars: Sequence[Bar], labels: Mapping[str, str]) -> Callable[[Bar], str]:
    """Choose what colours stand for: kinds of trials, or rungs for one kind or too many."""
    kinds = {labels.get(configuration_of(bar.trial), "") for bar in bars}
    if 1 < len(kinds) <= MOST_COLOURS:
        return lambda bar: labels.get(configuration_of(bar.trial), "")
    return lambda bar: f"{rung_of(bar.trial)} epochs"
