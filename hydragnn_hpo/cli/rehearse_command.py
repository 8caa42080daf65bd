"""``hydragnn-hpo rehearse``: run the real controller of a campaign with stub hosts."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import CampaignArgument, JsonOption
from hydragnn_hpo.cli.plan_command import HostsOption, SlotsOption, StructuresOption, TrialsOption
from hydragnn_hpo.cli.run_command import MachineOption

if TYPE_CHECKING:
    from hydragnn_hpo.campaign import Rehearsal, RehearsalPlan

_HOSTS_PER_KILL = 256.0
"""Hosts per kill and minute, unless ``--kills`` says otherwise."""

SpeedUpOption = Annotated[
    float | None,
    typer.Option(
        "--speed-up", min=1.0, max=1e6, help="How much faster trials are; overrides --minutes."
    ),
]
MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.05, max=1e5, help="Approximate length in minutes.")
]
KillsOption = Annotated[
    float | None,
    typer.Option(
        "--kills", min=0.0, max=6e3, help="Hosts to kill per minute; one in 256 if left out."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed in place of the campaign's.")
]
RunOption = Annotated[
    Path | None, typer.Option("--run", help="Directory to keep; a temporary one if left out.")
]


def rehearse(
    campaign: CampaignArgument,
    machine: MachineOption = None,
    hosts: HostsOption = None,
    slots: SlotsOption = None,
    trials: TrialsOption = None,
    structures: StructuresOption = None,
    speed_up: SpeedUpOption = None,
    minutes: MinutesOption = 5.0,
    kills: KillsOption = None,
    seed: SeedOption = None,
    run_dir: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a campaign's controller, journal and link at full size, with stub hosts and trials."""
    from hydragnn_hpo import log
    from hydragnn_hpo.campaign import rehearse as rehearse_campaign
    from hydragnn_hpo.cli.plan_report import PlanRequest

    log.configure(level=40)  # hosts that are killed are no news here
    request = PlanRequest(machine, hosts, slots, trials, structures)
    plan = _make_plan(campaign, request, speed_up=speed_up, minutes=minutes, kills=kills, seed=seed)
    with tempfile.TemporaryDirectory(prefix="hydragnn-hpo-rehearsal-") as folder:
        rehearsal = rehearse_campaign(plan, run_dir or Path(folder) / "run")
    if as_json:
        typer.echo(json.dumps(report_plain(plan, rehearsal)))
    else:
        for line in report_lines(plan, rehearsal):
            typer.echo(line)
    for problem in rehearsal.problems():
        typer.echo(f"error: {problem}", err=True)
    if rehearsal.problems():
        raise typer.Exit(1)


def _make_plan(
    campaign: str,
    request: Any,
    *,
    speed_up: float | None,
    minutes: float,
    kills: float | None,
    seed: int | None,
) -> "RehearsalPlan":
    """Read a campaign as ``plan`` does, and choose the speed-up of its rehearsal."""
    from hydragnn_hpo.campaign import RehearsalPlan
    from hydragnn_hpo.cli.plan_report import forecast_known, read_campaign

    known = read_campaign(campaign, request)
    config = known.config
    if request.trials:
        initial = min(config.search.initial, request.trials)
        update = {"trials": request.trials, "initial": initial}
        config = config.model_copy(update={"search": config.search.model_copy(update=update)})
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    known = replace(known, config=config)
    forecast = forecast_known(known).forecast
    makespan = forecast.simulated.makespan if forecast else 0.0
    return RehearsalPlan(
        config=config,
        cards=known.data.cards,
        stats=known.data.by_card,
        pooled_stats=known.data.stats,
        machine=known.machine,
        makespan=makespan,
        speed_up=speed_up or max(1.0, makespan / (60.0 * minutes)),
        kills_per_minute=known.machine.hosts / _HOSTS_PER_KILL if kills is None else kills,
    )


def report_lines(plan: "RehearsalPlan", rehearsal: "Rehearsal") -> Iterator[str]:
    """Yield the lines of the report."""
    from hydragnn_hpo.cli.words import count, duration

    load = rehearsal.load
    size = f"{count(rehearsal.hosts, 'host')} of {count(plan.machine.slots_per_host, 'slot')}"
    yield (
        f"{plan.config.name} on {plan.machine.profile.name}: {size}, "
        f"{count(rehearsal.trials, 'trial')}, {plan.speed_up:,.4g} times as fast"
    )
    admission = "never all of them at once"
    if rehearsal.admission_seconds is not None:
        seconds, cpu = rehearsal.admission_seconds, rehearsal.admission_cpu_seconds or 0.0
        admission = f"all within {seconds:.1f} s, for {cpu:.1f} s of CPU"
    joined = f"{rehearsal.hosts_admitted:,} joined"
    yield f"hosts        {joined}, {admission}; {rehearsal.hosts_killed:,} killed"
    yield (
        f"load         {load.records_per_second:,.0f} records/s from "
        f"{load.running_trials:,.0f} trials at once, for {load.steady_seconds:.0f} s"
    )
    yield (
        f"controller   {load.controller_cores:.2f} cores; {load.memory_most_mb:,.0f} MB at most, "
        f"{load.memory_first_mb:,.0f} MB to {load.memory_last_mb:,.0f} MB meanwhile"
    )
    yield (
        f"results      {count(rehearsal.results, 'trial')} with one; {rehearsal.results_lost} "
        f"lost, {rehearsal.results_twice} counted twice; {rehearsal.attempts_lost:,} of "
        f"{count(rehearsal.attempts, 'attempt')} lost with their hosts"
    )
    ratio = rehearsal.makespan / max(rehearsal.predicted_makespan, 1e-9)
    yield (
        f"makespan     {duration(rehearsal.predicted_makespan)} predicted, "
        f"{duration(rehearsal.makespan)} rehearsed ({ratio:.2f} times)"
    )


def report_plain(plan: "RehearsalPlan", rehearsal: "Rehearsal") -> dict[str, Any]:
    """Return plan and outcome as plain data for JSON.

    Returns:
        ``campaign``, ``machine``, ``slots_per_host`` and ``speed_up`` of the plan; all fields of
        ``Rehearsal`` and of its ``ControllerLoad``; ``problems``, sentences.
    """
    figures = asdict(rehearsal)
    load = figures.pop("load")
    return {
        "campaign": plan.config.name,
        "machine": plan.machine.profile.name,
        "slots_per_host": plan.machine.slots_per_host,
        "speed_up": plan.speed_up,
        **figures,
        **load,
        "problems": rehearsal.problems(),
    }
