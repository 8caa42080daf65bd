"""``stop``, ``pause``, ``retry``, ``cancel``, ``add-trials``: send a request to a campaign.

Each writes a small file that the controller reads; none talks to a process.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import find_controller

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.user_requests import Kind

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the request; do not send it.")]
TrialArgument = Annotated[str, typer.Argument(help="Name of a trial, such as t0007.")]


def stop(run_dir: RunArgument, dry_run: DryRun = False, as_json: JsonOption = False) -> None:
    """Finish a campaign early: start no new trials, then build the ensemble."""
    will = "no more trials start, running ones end at their rung, then the ensemble is built"
    _send_request(run_dir, "stop", will, dry_run=dry_run, as_json=as_json)


def pause(run_dir: RunArgument, dry_run: DryRun = False, as_json: JsonOption = False) -> None:
    """Have running trials write checkpoints, then end the controller; 'run' resumes."""
    will = "running trials write a checkpoint, then the controller ends; 'run' resumes from there"
    _send_request(run_dir, "pause", will, dry_run=dry_run, as_json=as_json)


def retry(
    run_dir: RunArgument,
    trial: TrialArgument,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Queue a failed or cancelled trial again."""
    will = f"{trial} is queued again and resumes from its last checkpoint"
    _send_request(run_dir, "retry", will, dry_run=dry_run, as_json=as_json, trial=trial)


def cancel(
    run_dir: RunArgument,
    trial: TrialArgument,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """End a queued or running trial; other trials get its slots."""
    will = f"{trial} is ended, other trials get its slots"
    _send_request(run_dir, "cancel", will, dry_run=dry_run, as_json=as_json, trial=trial)


def add_trials(
    run_dir: RunArgument,
    number: Annotated[
        int | None, typer.Argument(min=1, help="Trials to add; the brain proposes them.")
    ] = None,
    values: Annotated[
        Path | None, typer.Option("--values", help="TOML file with a [[trial]] table for each.")
    ] = None,
    dry_run: DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Add trials to a campaign that is not finished."""
    if (number is None) == (values is None):
        raise ConfigError(
            "add-trials takes a number of trials or --values FILE; give one of them, not both."
        )
    if values is None:
        will = f"the brain proposes {number} trials beyond the campaign's own"
        _send_request(run_dir, "add-trials", will, dry_run=dry_run, as_json=as_json, count=number)
        return
    chosen = _read_values(values)
    will = f"{len(chosen)} trials of your own values are queued"
    _send_request(run_dir, "add-trials", will, dry_run=dry_run, as_json=as_json, values=chosen)


def _read_values(path: Path) -> list[dict[str, Any]]:
    """Read searched values: ``[[trial]]`` tables with keys as in ``[space]``.

    Raises:
        ConfigError: the file holds something else.
    """
    from hydragnn_hpo.config import read_toml
    from hydragnn_hpo.search import fixed_values

    content = read_toml(path)
    tables = content.pop("trial", None)
    whole = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if content or not tables or not whole:
        raise ConfigError(
            f"{path}: must hold [[trial]] tables and nothing else: write one for each trial, with "
            "the keys of [space]."
        )
    return [fixed_values(table) for table in tables]


def _send_request(
    run_dir: Path, kind: "Kind", will: str, *, dry_run: bool, as_json: bool, **values: Any
) -> None:
    """Check a request against the campaign, write it, and print what will happen."""
    from hydragnn_hpo.campaign import read_state
    from hydragnn_hpo.campaign.user_requests import UserRequest, check_request, write_request
    from hydragnn_hpo.cli.batch_view import cancel_rest_of_chain, read_job_statuses
    from hydragnn_hpo.config import CampaignConfig, load_config, parse_config
    from hydragnn_hpo.launching.batch_jobs import JobRecords
    from hydragnn_hpo.launching.schedulers import WAITING

    run = RunDir(run_dir)
    records = JobRecords(run_dir)
    state = read_state(run)
    holder = find_controller(run.path)
    request = parse_config({"request": kind, **values}, UserRequest, where=kind)
    check_request(request, load_config(run.campaign, CampaignConfig), state)
    jobs = read_job_statuses(records.jobs()) if kind in ("stop", "pause") else []
    waiting = [job for job in jobs if job.state in WAITING]
    if kind == "pause" and holder is None:
        more = f"; batch job {waiting[0].id} is {waiting[0].words}" if waiting else ""
        raise RunError(
            f"{run.path}: no controller is running, so there is nothing to pause{more}: see status."
        )
    path = None if dry_run else write_request(run, kind, **values)
    if waiting and kind == "stop":
        will += f"; {cancel_rest_of_chain(records, jobs, dry_run=dry_run)}"
    elif waiting:  # the job that ends by the pause cancels its successor
        names = ", ".join(job.id for job in waiting)
        will += f"; batch job {names}, queued behind it, is cancelled: submit again to resume"
    if as_json:
        plain = request.model_dump(mode="json", exclude_defaults=True)
        report = {"request": plain, "file": path and str(path), "controller": holder, "will": will}
        typer.echo(json.dumps(report))
        return
    waits = "no controller is running: the request waits for the next 'run'"
    sent = f"sent to {holder}" if holder else waits
    typer.echo(f"{'would send' if dry_run else sent}: {will}.")
