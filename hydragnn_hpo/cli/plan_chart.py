"""The figure of ``plan``: what a run did, or what a campaign is expected to do."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.campaign.forecast import rung_of, values_of
from hydragnn_hpo.cli.planning import Planned
from hydragnn_hpo.cli.words import count, duration, percent
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.placement.simulated import Bar
from hydragnn_hpo.report.gantt import Chart, draw_gantt

MOST_COLOURS = 6
"""More kinds of trials than this, and bars are coloured by rung."""


def draw(planned: Planned, out: Path) -> None:
    """Draw who ran where and when, or will.

    Args:
        planned: what there is to tell.
        out: the PNG to write.

    Raises:
        RunError: nothing ran, and nothing will.
    """
    draw_gantt(_past(planned) if planned.bars else _future(planned), out)


def _past(planned: Planned) -> Chart:
    seconds = max(bar.end for bar in planned.bars)
    heading = (
        f"{planned.config.name}: {count(len(planned.labels), 'trial')} in {duration(seconds)}, "
        f"{percent(planned.trained)} of slot-time in training"
    )
    colours = _colouring(planned.bars, planned.labels)
    return Chart(planned.bars, planned.slots, seconds, heading, colours)


def _future(planned: Planned) -> Chart:
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
    kinds = {labels.get(values_of(bar.trial), "") for bar in bars}
    if 1 < len(kinds) <= MOST_COLOURS:
        return lambda bar: labels.get(values_of(bar.trial), "")
    return lambda bar: f"{rung_of(bar.trial)} epochs"
