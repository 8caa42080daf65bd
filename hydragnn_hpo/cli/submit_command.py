"""``hydragnn-hpo submit``: a campaign as batch jobs; ``pack``: the software for it."""

import functools
import json
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import (
    CampaignArgument,
    DryRunOption,
    JsonOption,
    SetOption,
    machine_option,
)
from hydragnn_hpo.cli.run_command import ContainerOption, MachineOption, RunOption
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.launching.batch_jobs import (
    MAX_JOBS,
    BatchJob,
    BatchRequest,
    JobRecords,
    check_batch_request,
    check_scheduler_installed,
    compare_with_request,
    look_command,
    parse_walltime,
    scheduler_of,
    settle_submissions,
    submit_jobs,
)
from hydragnn_hpo.launching.transports import find_scheduler
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import find_controller
from hydragnn_hpo.resources import find_resource

if TYPE_CHECKING:
    from hydragnn_hpo.config import CampaignConfig, MachineConfig, ProfileConfig
    from hydragnn_hpo.launching.schedulers import Scheduler
    from hydragnn_hpo.pipeline.campaign_changes import Changes

CARRIED = ("HYDRAGNN_HPO_DATA", "HYDRAGNN_HPO_SCRATCH")
"""Environment of the submitting shell that jobs need, too; not every scheduler hands it on."""

batch_option = functools.partial(typer.Option, rich_help_panel="Batch job")
HostsOption = Annotated[int, batch_option("--hosts", min=1, help="Hosts of each job.")]
TimeOption = Annotated[str, batch_option("--time", help="Wall-time of each job: H:MM or H:MM:SS.")]
AccountOption = Annotated[str | None, batch_option("--account", help="Account that is charged.")]
QueueOption = Annotated[
    str | None, batch_option("--queue", help="Queue, partition or QOS; the machine's if left out.")
]
JobsOption = Annotated[
    int, batch_option("--jobs", min=1, help="Most jobs in a row, if one wall-time is too short.")
]
AllocationsOption = Annotated[
    int, batch_option("--allocations", min=1, help="Jobs side by side, each with its own hosts.")
]
AfterOption = Annotated[
    str | None, batch_option("--after", help="Wait for the end of this batch job.")
]
PackOption = Annotated[
    str | None,
    machine_option(
        "--pack", help="Software for the hosts' own disks: auto, an archive of pack, or none."
    ),
]
ArchiveOption = Annotated[
    Path, typer.Option("--out", help="NAME.tar.gz, or NAME.tar.zst where zstd is at hand.")
]
AgainOption = Annotated[
    bool, batch_option("--again", help="Submit although a job of the run is queued or running.")
]


@dataclass(frozen=True)
class Submission:
    """A campaign that was read and checked, and where it is to run."""

    config: "CampaignConfig"
    profile: "ProfileConfig"
    run: Path
    machine: str
    """Name or absolute path of the profile."""
    source: Path
    """The campaign's file."""


def submit(
    campaign: CampaignArgument,
    hosts: HostsOption,
    time_limit: TimeOption,
    machine: MachineOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    run_dir: RunOption = None,
    settings: SetOption = None,
    jobs: JobsOption = MAX_JOBS,
    allocations: AllocationsOption = 1,
    after: AfterOption = None,
    pack: PackOption = None,
    container: ContainerOption = None,
    again: AgainOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Queue a campaign as batch jobs that follow each other until it is finished."""
    from hydragnn_hpo.campaign.backends import check_host_count
    from hydragnn_hpo.campaign.joining import patient
    from hydragnn_hpo.pipeline.campaign_changes import parse_settings

    submission = _read_campaign(campaign, parse_settings(settings or ()), machine, run_dir)
    submission = _choose_software(submission, pack, container, hosts)
    if allocations > 1:  # ranks must outlive a lost controller until another allocation misses it
        submission = _replace_machine(submission, patient(submission.config.machine))
    config = submission.config
    check_host_count(config.launch.min_hosts, hosts)
    seconds = parse_walltime(time_limit)
    scheduler = scheduler_of(submission.profile)
    account = account or os.environ.get(scheduler.account_variable) or None
    request = BatchRequest(config.name, hosts, seconds, account, queue, allocations, jobs, after)
    check_batch_request(request, submission.profile, config.machine.backend)
    records = JobRecords(submission.run)
    _refuse_second_submission(submission.run, records, again=again)
    _warn_of_environment(request, scheduler)
    name = records.next_script()
    script = _render_script(submission, request, records, name)
    job = BatchJob("", scheduler.name, name, hosts, link=1, jobs=jobs, submitted=0.0, after=after)
    ids = [] if dry_run else _submit(submission, records, job, script, allocations)
    _print_report(submission, job, script, ids, as_json=as_json, dry_run=dry_run)


def _read_campaign(
    campaign: str, changes: "Changes", machine: str | None, run_dir: Path | None
) -> Submission:
    """Read and check a campaign as ``run`` does.

    Args:
        campaign: its file, or the name of a shipped one.
        changes: values in place of the file's.
        machine: name or path of a profile; None for the campaign's.
        run_dir: the run directory; None for that of the campaign's name.
    """
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.pipeline import load_campaign

    source = find_resource(campaign, "workflows")
    config = load_campaign(source, changes, profile=machine)
    named = config.machine.profile
    if named is None:
        raise ConfigError(f"{source}: names no machine: say which with --machine.")
    run = (run_dir or Path("runs") / config.name).absolute()
    return Submission(config, find_profile(named), run, named, source)


def _choose_software(
    submission: Submission, pack: str | None, container: str | None, hosts: int
) -> Submission:
    """Choose how software reaches the hosts, and check the campaign as ``run`` does.

    Args:
        submission: the campaign as it was read.
        pack: ``auto``, an archive or ``none``; if left out, ``auto`` for as many hosts as the
            profile says, unless campaign or ``container`` say otherwise.
        container: an image.
        hosts: of each job.

    Raises:
        ConfigError: an archive, image or program is not there.
    """
    from hydragnn_hpo.config import resolve_machine
    from hydragnn_hpo.pipeline import check_campaign_file

    machine, many = submission.config.machine, submission.profile.batch.pack_from
    chosen = (pack, container, machine.pack, machine.container)
    if 0 < many <= hosts and all(choice is None for choice in chosen):
        pack = "auto"
    if pack == "none":
        machine, pack = machine.model_copy(update={"pack": None}), None
    own = pack == "auto"
    software = str(RunDir(submission.run).software) if own else pack
    machine = resolve_machine(machine, {"pack": software, "container": container})
    chosen_for = _replace_machine(submission, machine)
    source, run = submission.source, submission.run
    check_campaign_file(chosen_for.config, source, run, packed_later=own)
    return chosen_for


def _replace_machine(submission: Submission, machine: "MachineConfig") -> Submission:
    config = submission.config.model_copy(update={"machine": machine})
    return replace(submission, config=config)


def _refuse_second_submission(path: Path, records: JobRecords, *, again: bool) -> None:
    """Refuse a run that is finished, has a controller, or has jobs.

    Raises:
        RunError: one sentence that says which.
    """
    from hydragnn_hpo.campaign import read_state
    from hydragnn_hpo.cli.batch_view import read_job_statuses

    run = RunDir(path)
    if not run.campaign.exists():
        return
    if read_state(run).finished:
        raise RunError(f"{path}: is finished; choose another directory with --run.")
    uncertain = settle_submissions(records, forget=again)
    if again:
        return
    if uncertain:
        raise RunError(
            f"{path}: a batch job of it may be queued, whose number could not be read: look with "
            f"'{look_command(records, uncertain[0])}', and submit with --again if there is none."
        )
    for job in read_job_statuses(records.jobs()):
        if job.state != "ended":
            raise RunError(
                f"{path}: batch job {job.id} of it is {job.words}; wait for it, or submit "
                "another one with --again."
            )
    if holder := find_controller(path):
        raise RunError(f"{path}: is being run by {holder}; wait for it, or end it first.")


def _render_script(
    submission: Submission, request: BatchRequest, records: JobRecords, name: str
) -> str:
    from hydragnn_hpo.launching.batch_script import ScriptContent, render_batch_script

    run = str(submission.run)
    campaign = str(records.campaign_path(name))
    join = ["--join"] if request.allocations > 1 else []
    content = ScriptContent(
        program=(sys.executable, "-m", "hydragnn_hpo"),
        run=run,
        script=name,
        folder=str(Path.cwd()),
        command=("run", campaign, "--run", run, "--machine", submission.machine, *join),
        environment={name: os.environ[name] for name in CARRIED if name in os.environ},
        locale=os.environ.get("LC_ALL", ""),
    )
    return render_batch_script(request, submission.profile, content)


def _submit(
    submission: Submission,
    records: JobRecords,
    job: BatchJob,
    script: str,
    allocations: int,
) -> list[str]:
    """Open the run directory, write the script, and submit it; return the numbers of the jobs."""
    from hydragnn_hpo.campaign import open_run
    from hydragnn_hpo.config import dump_config
    from hydragnn_hpo.packed_environment import pack_environment

    check_scheduler_installed(job.scheduler)
    run = open_run(submission.config, submission.run)
    if submission.config.machine.pack == str(run.software):
        pack_environment(run.software)
    records.write_script(job.script, script, dump_config(submission.config))
    ids = submit_jobs(records, job, range(1, allocations + 1) if allocations > 1 else ())
    for difference in compare_with_request(records, job, ids):
        typer.echo(f"warning: {difference}", err=True)
    return ids


def _warn_of_environment(request: BatchRequest, scheduler: "Scheduler") -> None:
    """Warn of options of the scheduler in the environment, which do not reach the jobs."""
    options = {name for name in os.environ if name.startswith(scheduler.option_variables)}
    if request.account == os.environ.get(scheduler.account_variable):
        options.discard(scheduler.account_variable)
    if options and scheduler.option_variables:
        names = ", ".join(sorted(options))
        typer.echo(
            f"warning: {names[:120]} of the environment is not used: ask for it by an option of "
            "submit, or by batch.directives of the machine's profile.",
            err=True,
        )


def _print_report(
    submission: Submission,
    job: BatchJob,
    script: str,
    ids: list[str],
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    run = str(submission.run)
    pack = submission.config.machine.pack
    argv = find_scheduler(job.scheduler).submit_argv(job.script, after=job.after, task=None)
    if as_json:
        report = {"run": run, "scheduler": job.scheduler, "argv": argv, "pack": pack}
        typer.echo(json.dumps(report | {"script": script, "jobs": ids}))
        return
    typer.echo(script, nl=False)
    if dry_run:
        if pack:
            typer.echo(f"hosts would get their software onto own disks, from {pack}")
        typer.echo(f"would submit, in {run}/jobs: {shlex.join(argv)}")
        return
    typer.echo(f"submitted {', '.join(ids)} with {shlex.join(argv)}")
    typer.echo(f"look at it with: hydragnn-hpo status {shlex.quote(run)}")


def pack(out: ArchiveOption = Path("environment.tar.gz"), as_json: JsonOption = False) -> None:
    """Pack the environment that this program runs in, for run and submit --pack."""
    from dataclasses import asdict

    from hydragnn_hpo.packed_environment import pack_environment

    made = pack_environment(out)
    if as_json:
        typer.echo(json.dumps(asdict(made) | {"path": str(made.path)}))
        return
    typer.echo(f"{made.path}: {made.size / 1e6:.0f} MB, SHA-256 {made.checksum}")
    typer.echo(f"what it holds: {made.path}.json")
    typer.echo(f"use it: hydragnn-hpo submit CAMPAIGN --machine NAME --pack {made.path}")
