"""Run a trial that is an arbitrary command, which reads ``trial.toml`` and writes ``result.json``.

A warm rank starts the command, supervises it and ends with its exit code, which alone does not
prove success. With ``command.launcher``, for commands that need a PMI, a single warm rank starts
``srun`` or ``mpiexec`` instead, and that starts ``launched_rank.py`` on every slot.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hydragnn_hpo.config import CommandConfig, MachineConfig, fill_arguments
from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.files import write_json, write_text
from hydragnn_hpo.host_info import count_memory_kills
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launched_rank import FAILED, LEASE, ORDER, LaunchOrder
from hydragnn_hpo.launching.process_control import tethered
from hydragnn_hpo.launching.profile_adapter import site_of
from hydragnn_hpo.launching.protocol import Rendezvous
from hydragnn_hpo.launching.rank_environment import JOB, make_rank_starts, visibility
from hydragnn_hpo.launching.scheduler_commands import find_mpiexec
from hydragnn_hpo.launching.slurm_allocation import step_environment
from hydragnn_hpo.launching.transports.mpiexec import mpiexec_argv, write_host_file
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.rank_requests import Request, RequestReader
from hydragnn_hpo.resources import resource_path

HOSTS = "HYDRAGNN_HPO_HOSTS"
"""Environment variable of commands that start their own ranks: comma-separated hosts of the trial,
in rank order."""

TIMED_OUT = 124
"""Exit code of a rank whose command exceeded its time limit, as of timeout(1)."""

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are forwarded to the command: requests for a checkpoint or an end."""

_LATE_SECONDS = 1.0
"""Most seconds by which a signal that Slurm sends to both may reach a rank after its command."""

_LAST_SECONDS = 10.0
"""Seconds that a process has to end after a request, before it is killed."""

_PEERS_SECONDS = 10.0
"""Seconds that the ranks of a launcher may run on after one has failed: Hydra's ``mpiexec`` never
ends if they wait for a rank that ended before ``MPI_Init``."""

_RENEWALS = 5
"""Renewals of the lease of launched ranks per duration of the lease."""

_LAUNCHED = "hydragnn_hpo.launching.launched_rank"

_OF_RANKS = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")


# -- the controller's side ---------------------------------------------------------------------


class LaunchSpec(msgspec.Struct, frozen=True):
    """How a launcher starts the ranks of a command."""

    hosts: tuple[str, ...]
    """Host of each rank, as the launcher names it, in rank order."""

    flags: tuple[str, ...]
    """Further arguments of the launcher."""

    order: LaunchOrder
    """Order for the launched ranks; its ``argv`` is the prefix of the command."""


class CommandSpec(msgspec.Struct, frozen=True):
    """``Job.spec`` of a trial that is a command."""

    trial_dir: str
    attempt: int
    epochs: int
    """Epoch at which the attempt ends."""

    command: dict[str, Any]
    """A ``CommandConfig`` as JSON."""

    slots: tuple[Slot, ...]
    """Slots of the trial, in rank order."""

    launch: LaunchSpec | None


def spec_of(
    command: CommandConfig,
    trial: TrialDir,
    *,
    attempt: int,
    epochs: int,
    slots: Sequence[Slot],
    machine: MachineConfig | None = None,
) -> dict[str, Any]:
    """Return the job spec from which every rank runs a command.

    Args:
        command: command of the campaign, with ``{here}`` filled in.
        trial: directory of the trial, which holds ``trial.toml``.
        attempt: number of the attempt.
        epochs: epoch at which the attempt ends.
        slots: slots of all ranks, in rank order.
        machine: config of the machine, for commands that a launcher starts.

    Returns:
        A ``CommandSpec`` as JSON.

    Raises:
        ConfigError: the wrapper that the machine's profile names does not exist.
    """
    launch = None
    if command.launcher is not None:
        job = f"{trial.path.name}.{attempt}"
        launch = _launch_spec(job, _host_by_host(slots), machine or MachineConfig())
    spec = CommandSpec(
        trial_dir=str(trial.path.resolve()),
        attempt=attempt,
        epochs=epochs,
        command=command.model_dump(mode="json"),
        slots=tuple(slots),
        launch=launch,
    )
    return dict(msgspec.to_builtins(spec))


def _host_by_host(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Group slots by host, which is the order in which launchers number ranks."""
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    return tuple(sorted(slots, key=lambda slot: hosts.index(slot.host)))


def _launch_spec(name: str, slots: tuple[Slot, ...], machine: MachineConfig) -> LaunchSpec:
    """Return how to launch the ranks, with the same environment as ranks that agents start."""
    site = site_of(machine)
    job = Job(name, "command", len(slots), {}, Path(os.devnull), None, slots)
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    meet = Rendezvous("", 0, (*site.interfaces, "")[0] if len(hosts) > 1 else "")
    ranks = []
    for host in hosts:
        here = [rank for rank, slot in enumerate(slots) if slot.host == host]
        for rank in make_rank_starts(job, here, site=site, meet=meet, tag=""):
            del rank.environment[JOB]  # inherited
            ranks.append(rank)
    order = LaunchOrder(
        name, rank_wrapper(site), machine.lease_seconds, site.scratch, ranks=tuple(ranks)
    )
    names = tuple(slot.host.partition("@")[0] for slot in slots)
    return LaunchSpec(names, tuple(site.step.trials), order)


def rank_wrapper(site: SiteConfig) -> tuple[str, ...]:
    """Return the prefix of a launched rank's command.

    Returns:
        ``sh`` and the wrapper's path; empty without a wrapper.

    Raises:
        ConfigError: the profile names a wrapper that is not there.
    """
    if not site.rank.wrapper:
        return ()
    path = Path(site.rank.wrapper)
    if path.parts[0] == "launch" and not path.exists():
        path = resource_path(site.rank.wrapper)
    if not path.is_file():
        raise ConfigError(f"rank.wrapper: {path} is no file: name a shell script.")
    return ("sh", str(path.absolute()))


# -- the warm rank -----------------------------------------------------------------------------


@dataclass
class _Program:
    """The process that a warm rank starts."""

    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    timeout: float | None
    signals: list[int] = field(default_factory=list)
    """Signals received so far."""


MEMORY_RESULT = {
    "status": "failed",
    "reason": "out_of_memory",
    "message": "the kernel killed the command, as the memory of the host, or of its control group, "
    "had run out: lower machine.slots, or ask for more memory.",
}
"""Result of a command that was killed for lack of memory, and so wrote none."""


def rank_main(job_spec: dict[str, Any]) -> int:
    """Run the command as this rank, or for all ranks; return its exit code.

    A command ended by a signal yields 128 plus the signal's number. So does a command that failed
    without a result after a SIGTERM, since Slurm sends it to all processes of an allocation.
    """
    spec = msgspec.convert(job_spec, CommandSpec)
    command = CommandConfig.model_validate(spec.command)
    trial = TrialDir(Path(spec.trial_dir))
    folder = trial.attempt(spec.attempt)
    fields = {
        "trial": trial.config,
        "folder": folder,
        "checkpoints": trial.checkpoints,
        "epochs": spec.epochs,
        "width": len(spec.slots),
        "python": sys.executable,
    }
    trial.checkpoints.mkdir(mode=0o700, exist_ok=True)
    kills = count_memory_kills()
    argv = fill_arguments(command.argv, fields)
    program = _Program(argv, folder, {**os.environ, **command.env}, command.timeout)
    if command.launcher is not None and spec.launch is not None:
        _spread(spec.slots)
        code = _launch(program, command.launcher, spec.launch)
    else:
        if command.per == "trial":
            _spread(spec.slots)
            program.environment = _for_all(program.environment, spec.slots)
        code = _run(program)
    if code and not (folder / "result.json").exists():
        until = time.monotonic() + _LATE_SECONDS
        while signal.SIGTERM not in program.signals and time.monotonic() < until:
            time.sleep(0.05)
        code = -signal.SIGTERM if signal.SIGTERM in program.signals else code
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and count_memory_kills() > kills:
            write_json(folder / "result.json", MEMORY_RESULT)
    return code if code >= 0 else 128 - code


def _run(program: _Program) -> int:
    """Run a program that is killed with this process, and forward received signals to it."""
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        for process in processes:
            process.send_signal(number)

    _listen(program, pass_on)
    process = subprocess.Popen(
        tethered(program.argv),
        stdin=subprocess.DEVNULL,
        cwd=program.folder,
        env=program.environment,
    )
    processes.append(process)
    for number in program.signals:  # received before the process was there
        process.send_signal(number)
    try:
        return process.wait(program.timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        return _end_late(process, program.timeout)


def _listen(program: _Program, pass_on: Callable[[int], None]) -> None:
    def note(number: int, frame: object) -> None:
        program.signals.append(number)
        pass_on(number)

    for wanted in _PASSED_ON:
        signal.signal(wanted, note)


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a process that was asked to end; kill it after ``_LAST_SECONDS``."""
    try:
        process.wait(_LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_late(process: "subprocess.Popen[bytes]", timeout: float | None) -> int:
    """End a program that exceeded its time limit, after it was asked to; return ``TIMED_OUT``."""
    _wait_or_kill(process)
    sys.stderr.write(f"the command took longer than {timeout:g} s and was ended.\n")
    return TIMED_OUT


# -- by a launcher -----------------------------------------------------------------------------


def _launch(program: _Program, launcher: str, launch: LaunchSpec) -> int:
    """Start the ranks by ``srun`` or ``mpiexec``, renew their lease, and forward signals."""
    lease = program.folder / LEASE
    try:
        write_text(lease, "", private=True)
        whole = (*launch.order.argv, *program.argv)
        order = msgspec.structs.replace(launch.order, argv=whole)
        write_json(program.folder / ORDER, msgspec.to_builtins(order), private=True)
        ranks = [sys.executable, "-P", "-m", _LAUNCHED, str(program.folder)]
        start = _LAUNCHERS[launcher]
        argv, environment = start(launch, program.folder, _without_rank(program.environment))
    except HydraError as error:
        sys.stderr.write(f"{error}\n")
        return 1

    def pass_on(order: int | Request) -> None:
        with contextlib.suppress(OSError), lease.open("a") as file:
            file.write(f"{order}\n")

    _listen(program, pass_on)
    process = subprocess.Popen(
        tethered([*argv, *ranks], signal.SIGTERM),  # srun then ends its step at once
        stdin=subprocess.DEVNULL,
        cwd=program.folder,
        env=environment,
        start_new_session=True,  # else it dies with our process group, and its ranks live on
    )
    try:
        return _keep(process, program, lease, launch.order.lease_seconds, pass_on)
    finally:
        lease.unlink(missing_ok=True)


def _keep(
    process: "subprocess.Popen[bytes]",
    program: _Program,
    lease: Path,
    lease_seconds: float,
    pass_on: Callable[[Request], None],
) -> int:
    """Renew the lease of the ranks until their launcher has ended.

    Args:
        process: the launcher.
        program: the command of the ranks.
        lease: the file whose age the ranks watch.
        lease_seconds: how long ranks live after a renewal.
        pass_on: sends a request of the controller to rank 0.

    Returns:
        The exit code of the rank that failed first, or of the launcher.
    """
    deadline = time.monotonic() + (program.timeout or float("inf"))
    failed = None
    peers_end = math.inf
    requests = RequestReader()
    passed_on = None
    while (now := time.monotonic()) < deadline:
        if failed is None and not program.signals:  # a requested end takes its time
            failed = _read_failure(lease.with_name(FAILED))
            peers_end = math.inf if failed is None else now + _PEERS_SECONDS
        if failed is not None and now > peers_end:
            sys.stderr.write("a rank failed and others waited for it: they were ended.\n")
            return _end_peers(process, lease, failed)
        if (request := requests.read()) is not None and request != passed_on:
            passed_on = request
            pass_on(request)
        with contextlib.suppress(OSError):
            os.utime(lease)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(min(1.0, lease_seconds / _RENEWALS))
            return code and (_read_failure(lease.with_name(FAILED)) or code)
    with contextlib.suppress(OSError), lease.open("a") as file:
        file.write(f"{int(signal.SIGTERM)}\n")
    return _end_late(process, program.timeout)


def _read_failure(path: Path) -> int | None:
    """Return the exit code that a failed rank wrote; None if it cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _end_peers(process: "subprocess.Popen[bytes]", lease: Path, code: int) -> int:
    """End the ranks of a launcher by removing their lease, then the launcher; return ``code``."""
    lease.unlink(missing_ok=True)
    _wait_or_kill(process)
    return code


def _without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that make a process a rank."""
    return {name: value for name, value in environment.items() if name not in _OF_RANKS}


def srun_command(
    launch: LaunchSpec, folder: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return an ``srun`` command line without the ranks' command, and its environment.

    Measured on Slurm 22.05: ``--nodelist`` does not order ranks, a host file with
    ``--distribution=arbitrary`` does; a step that inherits SLURM_GPUS_PER_NODE shows a lone rank
    all devices of its host, even with ``--gpus-per-task=1``. Here each rank sees its whole host,
    as agents do (``--overlap --whole``), and binds itself to the cores and the device of its slot:
    Slurm would bind overlapping steps to the same ones.

    Args:
        launch: hosts, flags and order of the ranks.
        folder: folder of the attempt, where the host file is written.
        environment: environment of the ranks.

    Returns:
        The beginning of the command, and the values of its environment by name.

    Raises:
        StorageError: the host file cannot be written.
    """
    hosts = launch.hosts
    path = folder / "launch.hosts"
    write_text(path, "".join(f"{host}\n" for host in hosts))
    argv = [
        *("srun", f"--nodes={len(set(hosts))}", f"--ntasks={len(hosts)}"),
        *("--distribution=arbitrary", "--overlap", "--whole", "--cpu-bind=none", "--export=ALL"),
        *("--input=none", "--kill-on-bad-exit=1", "--wait=0", f"--job-name={launch.order.job}"),
        *launch.flags,
    ]
    return argv, step_environment(environment, float("inf")) | {"SLURM_HOSTFILE": str(path)}


def mpiexec_command(
    launch: LaunchSpec, folder: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return an ``mpiexec`` command line without the ranks' command, and its environment.

    Args:
        launch: hosts, flags and order of the ranks.
        folder: folder of the attempt, where the host file is written.
        environment: environment of the ranks.

    Returns:
        The beginning of the command, and the values of its environment by name.

    Raises:
        ConfigError: there is no ``mpiexec``, or hosts have different numbers of ranks.
        StorageError: the host file cannot be written.
    """
    path = folder / "launch.hosts"
    argv = mpiexec_argv(find_mpiexec(), launch.hosts, path, flags=launch.flags)
    write_host_file(path, launch.hosts)
    return argv, step_environment(environment, float("inf"))


_LAUNCHERS = {"srun": srun_command, "mpiexec": mpiexec_command}


# -- one process for all slots -----------------------------------------------------------------


def _spread(slots: Sequence[Slot]) -> None:
    """Bind this process to the cores of all slots of its host."""
    cores = {core for slot in slots if slot.host == slots[0].host for core in slot.cores}
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            sys.stderr.write(f"not bound to cores {sorted(cores)} ({error.strerror}).\n")


def _for_all(environment: Mapping[str, str], slots: Sequence[Slot]) -> dict[str, str]:
    """Return the environment of one process that starts its own ranks."""
    here = [slot for slot in slots if slot.host == slots[0].host]
    devices = ",".join(dict.fromkeys(slot.visible for slot in here if slot.visible))
    cores = {core for slot in here for core in slot.cores}
    shown, hidden = visibility(slots[0].device, devices, slots[0].variable)
    kept = {n: value for n, value in _without_rank(environment).items() if n not in hidden}
    shared = {
        HOSTS: ",".join(dict.fromkeys(slot.host for slot in slots)),
        "OMP_NUM_THREADS": str(max(1, len(cores) // len(here))),
    }
    return kept | shown | shared
