"""``hydragnn-hpo plan``: forecast the time and cost of a campaign before it runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import (
    CampaignArgument,
    JsonOption,
    SetOption,
    campaign_option,
    machine_option,
    parse_count,
)
from hydragnn_hpo.cli.progress import ProgressDisplay
from hydragnn_hpo.cli.run_command import MachineOption
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.resources import find_resource

HostsOption = Annotated[
    int | None,
    machine_option(
        "--hosts", min=1, max=100_000, help="Number of hosts; all of the machine if left out."
    ),
]
SlotsOption = Annotated[
    int | None,
    machine_option("--slots", min=1, max=10_000, help="Slots per host; the machine's if left out."),
]
TrialsOption = Annotated[
    int | None,
    campaign_option(
        "--trials", min=1, max=100_000, help="Number of trials; the campaign's if left out."
    ),
]
StructuresOption = Annotated[
    int | None,
    campaign_option(
        "--structures",
        parser=parse_count,
        metavar="INTEGER",
        help="Number of structures from 5 to 1e12, if the data is not here.",
    ),
]
FailuresOption = Annotated[
    float,
    machine_option("--failures", min=0.0, max=60.0, help="Expected failures per host and hour."),
]
FigureOption = Annotated[
    Path | None,
    typer.Option("--figure", help="Also draw a PNG: which trial holds which slots when."),
]


def plan(
    campaign: CampaignArgument,
    machine: MachineOption = None,
    hosts: HostsOption = None,
    slots: SlotsOption = None,
    trials: TrialsOption = None,
    structures: StructuresOption = None,
    settings: SetOption = None,
    failures: FailuresOption = 0.0,
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast time and cost of a campaign with the real planner."""
    from hydragnn_hpo.cli import plan_report
    from hydragnn_hpo.pipeline import load_campaign, plan_campaign
    from hydragnn_hpo.pipeline.campaign_changes import parse_settings
    from hydragnn_hpo.planning import PlanRequest

    if figure is not None and figure.suffix.lower() != ".png":
        raise ConfigError(f"--figure {figure}: is drawn as PNG; give it a name that ends in .png.")
    changes = parse_settings(settings or ())
    if RunDir(Path(campaign)).campaign.exists():
        raise ConfigError(
            f"{campaign}: is a run: 'hydragnn-hpo report {campaign}' shows predicted and actual "
            "times, 'hydragnn-hpo status' what is left; plan takes a campaign file."
        )
    source = find_resource(campaign, "workflows")
    with ProgressDisplay("drawing trials", quiet=as_json) as display:
        config = load_campaign(source, changes, profile=machine)
        request = PlanRequest(hosts, slots, trials, structures, failures)
        planned = plan_campaign(config, source, request, display.show_work)
    if figure is not None:
        plan_report.draw_plan(planned, figure)
    if as_json:
        typer.echo(json.dumps(plan_report.report_plain(planned)))
        return
    for line in plan_report.report_lines(planned):
        typer.echo(line)
    if figure is not None:
        typer.echo(f"Figure: {figure}")
