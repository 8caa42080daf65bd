"""``hydragnn-hpo submit``: a campaign as batch jobs."""

import itertools
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption
from hydragnn_hpo.cli.run_command import ContainerOption, MachineOption, RunOption
from hydragnn_hpo.launching import MOST_JOBS, Order, check_order, wall_seconds

if TYPE_CHECKING:
    from hydragnn_hpo.config import CampaignConfig, ProfileConfig
    from hydragnn_hpo.launching import BatchJob, JobRecords

CARRIED = ("HYDRAGNN_HPO_DATA", "HYDRAGNN_HPO_SCRATCH")
"""Environment of the submitting shell that jobs need, too; not every scheduler hands it on."""

HostsOption = Annotated[int, typer.Option("--hosts", min=1, help="Hosts of each job.")]
TimeOption = Annotated[str, typer.Option("--time", help="Wall-time of each job: H:MM or H:MM:SS.")]
AccountOption = Annotated[str | None, typer.Option("--account", help="Account that is charged.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", help="Queue, partition or QOS; the machine's if left out.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, help="Most jobs in a row, if one wall-time is too short.")
]
AllocationsOption = Annotated[
    int, typer.Option("--allocations", min=1, help="Jobs side by side, each with its own hosts.")
]
AfterOption = Annotated[
    str | None, typer.Option("--after", help="Wait for the end of this batch job.")
]
PackOption = Annotated[
    str | None,
    typer.Option(
        "--pack", help="Software for the hosts' own disks: auto, an archive of pack, or none."
    ),
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Submit although a job of the run is queued or running.")
]


@dataclass(frozen=True)
class Submission:
    """All that is needed to submit, settled and checked."""

    config: "CampaignConfig"
    profile: "ProfileConfig"
    run: Path
    machine: str
    """Name or absolute path of the profile."""


def submit(
    campaign: Annotated[str, typer.Argument(help="Campaign file, or the name of a shipped one.")],
    hosts: HostsOption,
    time_limit: TimeOption,
    machine: MachineOption = None,
    account: AccountOption = None,
    queue: QueueOption = None,
    run_dir: RunOption = None,
    jobs: JobsOption = MOST_JOBS,
    allocations: AllocationsOption = 1,
    after: AfterOption = None,
    pack: PackOption = None,
    container: ContainerOption = None,
    again: AgainOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Queue a campaign as batch jobs that follow each other until it is finished."""
    from hydragnn_hpo.launching import JobRecords

    made = _settled(campaign, machine, run_dir)
    if pack is None and container is None and _many(made, hosts):
        pack = "auto"
    made = _side_by_side(_with_software(made, pack, container), allocations)
    seconds = wall_seconds(time_limit)
    order = Order(made.config.name, hosts, seconds, account, queue, allocations, jobs, after)
    check_order(order, made.profile, made.config.machine.backend)
    records = JobRecords(made.run)
    _refuse_twice(made.run, records, again=again)
    number = records.next_number()
    script = _script(made, order, records, number)
    argv = _argv(made, order, f"{number:03d}.sh")
    told: dict[str, Any] = {
        "run": str(made.run),
        "scheduler": made.profile.batch.scheduler,
        "argv": argv,
    }
    told["pack"] = made.config.machine.pack
    ids = [] if dry_run else _submit(made, order, records, number, script)
    _tell(told | {"script": script, "jobs": ids}, as_json=as_json, dry_run=dry_run)


def _settled(campaign: str, machine: str | None, run_dir: Path | None) -> Submission:
    """Read and check a campaign as ``run`` does."""
    from hydragnn_hpo.cli.run_command import fitting_cards, settled
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.data import find_files
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.resources import find_resource

    source = find_resource(campaign, "workflows")
    config = settled(source, profile=machine)
    named = config.machine.profile
    if named is None:
        raise ConfigError(f"{source}: names no machine: say which with --machine.")
    cards = fitting_cards(config, source) if config.command is None else {}
    run = (run_dir or Path("runs") / config.name).absolute()
    if not any(RunDir(run).data.glob("*/index.json")):
        for card in cards:
            find_files(card)
    return Submission(config, find_profile(named), run, named)


def _many(made: Submission, hosts: int) -> bool:
    """Check whether so many hosts want software on their own disks without a word about it."""
    machine, least = made.config.machine, made.profile.batch.pack_from
    return machine.pack is None and machine.container is None and 0 < least <= hosts


def _with_software(made: Submission, pack: str | None, container: str | None) -> Submission:
    """Settle how software reaches hosts.

    Raises:
        ConfigError: an archive, image or program is not there.
    """
    from hydragnn_hpo.config import resolve_machine
    from hydragnn_hpo.launching import check_software
    from hydragnn_hpo.layout import RunDir

    machine = made.config.machine
    if pack == "none":
        machine, pack = machine.model_copy(update={"pack": None}), None
    own = pack == "auto"
    asked = {"pack": str(RunDir(made.run).software) if own else pack, "container": container}
    machine = resolve_machine(machine, asked)
    check_software(machine, made.profile, made.run, packed_later=own)
    return replace(made, config=made.config.model_copy(update={"machine": machine}))


def _side_by_side(made: Submission, allocations: int) -> Submission:
    """Have ranks wait until one of several allocations has missed a lost controller."""
    from hydragnn_hpo.campaign import patient

    if allocations == 1:
        return made
    machine = patient(made.config.machine)
    return replace(made, config=made.config.model_copy(update={"machine": machine}))


def _refuse_twice(path: Path, records: "JobRecords", *, again: bool) -> None:
    """Refuse a run that is finished, at work, or has jobs.

    Raises:
        RunError: one sentence that says which.
    """
    from hydragnn_hpo.campaign import read_state
    from hydragnn_hpo.cli.batch_view import standing_of_jobs
    from hydragnn_hpo.errors import RunError
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.leases import find_controller

    run = RunDir(path)
    if not run.campaign.exists():
        return
    if read_state(run).finished:
        raise RunError(f"{path}: is finished; choose another directory with --run.")
    if again:
        return
    for job in standing_of_jobs(records.jobs()):
        if job.state in ("queued", "running", "unknown"):
            raise RunError(
                f"{path}: batch job {job.id} of it is {job.words}; wait for it, or submit "
                "another one with --again."
            )
    if holder := find_controller(path):
        raise RunError(f"{path}: is being run by {holder}; wait for it, or end it first.")


def _script(made: Submission, order: Order, records: "JobRecords", number: int) -> str:
    from hydragnn_hpo.launching import Content, batch_script

    command = ["run", str(records.campaign(number)), "--run", str(made.run)]
    command += ["--machine", made.machine]
    if order.allocations > 1:
        command.append("--join")
    content = Content(
        program=(sys.executable, "-m", "hydragnn_hpo"),
        run=str(made.run),
        script=f"{number:03d}.sh",
        folder=str(Path.cwd()),
        command=tuple(command),
        environment={name: os.environ[name] for name in CARRIED if name in os.environ},
    )
    return batch_script(order, made.profile, content)


def _argv(made: Submission, order: Order, script: str) -> list[str]:
    from hydragnn_hpo.launching import scheduler_of

    scheduler = scheduler_of(made.profile.batch.scheduler)
    return scheduler.submit(script, order.after, None)


def _submit(
    made: Submission, order: Order, records: "JobRecords", number: int, script: str
) -> list[str]:
    """Open the run directory, write the script, submit it, and write down what came of it."""
    from hydragnn_hpo.campaign import open_run
    from hydragnn_hpo.config import dump_config
    from hydragnn_hpo.launching import check_there, pack_environment, scheduler_of, submit_script

    scheduler = scheduler_of(made.profile.batch.scheduler)
    check_there(scheduler)
    run = open_run(made.config, made.run)
    if made.config.machine.pack == str(run.software):
        pack_environment(run.software)
    path = records.prepare(number, script, dump_config(made.config))
    tasks = range(1, order.allocations + 1) if order.allocations > 1 else ()
    ids = scheduler.submitted(submit_script(_argv(made, order, path.name), records.folder), tasks)
    for job, task in itertools.zip_longest(ids, tasks):
        records.add(_record(made, order, job, path.name, task))
    return ids


def _record(made: Submission, order: Order, job: str, script: str, task: int | None) -> "BatchJob":
    from hydragnn_hpo.launching import BatchJob

    return BatchJob(
        id=job,
        scheduler=made.profile.batch.scheduler,
        script=script,
        hosts=order.hosts,
        link=1,
        jobs=order.jobs,
        submitted=time.time(),
        after=order.after,
        task=task,
    )


def _tell(told: dict[str, Any], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        typer.echo(json.dumps(told))
        return
    typer.echo(told["script"], nl=False)
    if dry_run:
        if told["pack"]:
            typer.echo(f"hosts would get their software onto own disks, from {told['pack']}")
        typer.echo(f"would submit, in {told['run']}/jobs: {shlex.join(told['argv'])}")
        return
    typer.echo(f"submitted {', '.join(told['jobs'])} with {shlex.join(told['argv'])}")
    typer.echo(f"look at it with: hydragnn-hpo status {shlex.quote(told['run'])}")
