"""A trial that is any command: it reads ``trial.toml`` and leaves ``result.json``.

A warm rank starts it, watches over it, and ends with its exit code. The code proves nothing.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import CommandConfig, fill_arguments
from hydragnn_hpo.launching.agent.tether import tethered
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.rank_environment import visibility
from hydragnn_hpo.layout import TrialDir

HOSTS = "HYDRAGNN_HPO_HOSTS"
"""Hosts of a trial, in rank order, separated by commas: for commands that start own ranks."""

TIMED_OUT = 124
"""Exit code of a rank whose command took longer than it may, as timeout(1) has it."""

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask for something: a checkpoint, an end."""

_LATE_SECONDS = 1.0
"""How much later than its command a rank may hear a signal that Slurm sent to both."""

_LAST_SECONDS = 10.0
"""Between the request to end that follows a timeout, and the end."""

_OF_RANKS = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")


def spec_of(
    command: CommandConfig, trial: TrialDir, *, attempt: int, epochs: int, slots: Sequence[Slot]
) -> dict[str, Any]:
    """Give what every rank must know to run a command.

    Args:
        command: the campaign's, with ``{here}`` filled in.
        trial: its directory, which holds ``trial.toml``.
        attempt: number of this start.
        epochs: up to which epoch to go.
        slots: of all ranks, in rank order.
    """
    return {
        "trial_dir": str(trial.path.resolve()),
        "attempt": attempt,
        "epochs": epochs,
        "command": command.model_dump(mode="json"),
        "slots": [
            {
                "host": s.host,
                "cores": list(s.cores),
                "visible": s.visible,
                "device": s.device,
                "variable": s.variable,
            }
            for s in slots
        ],
    }


def rank_main(spec: dict[str, Any]) -> int:
    """Run the command as this rank, or for all ranks; gives its exit code.

    A command that was ended by a signal gives 128 and the signal's number, and so does one that
    failed without a result when it was asked to end: Slurm asks all processes of an allocation.
    """
    command = CommandConfig.model_validate(spec["command"])
    trial = TrialDir(Path(spec["trial_dir"]))
    folder = trial.attempt(spec["attempt"])
    fields = {
        "trial": trial.config,
        "folder": folder,
        "checkpoints": trial.checkpoints,
        "epochs": spec["epochs"],
        "width": len(spec["slots"]),
        "python": sys.executable,
    }
    trial.checkpoints.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, **command.env}
    if command.per == "trial":
        _spread(spec["slots"])
        environment = _for_all(environment, spec["slots"])
    heard: list[int] = []
    code = _run(fill_arguments(command.argv, fields), folder, environment, command.timeout, heard)
    if code and not (folder / "result.json").exists():
        until = time.monotonic() + _LATE_SECONDS
        while signal.SIGTERM not in heard and time.monotonic() < until:
            time.sleep(0.05)
        code = -signal.SIGTERM if signal.SIGTERM in heard else code
    return code if code >= 0 else 128 - code


def _run(
    argv: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float | None,
    heard: list[int],
) -> int:
    """Run a program that dies with us and hears the signals that we get, which are noted."""
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: object) -> None:
        heard.append(number)
        for process in started:
            process.send_signal(number)

    for wanted in _PASSED_ON:
        signal.signal(wanted, pass_on)
    process = subprocess.Popen(
        tethered(argv),
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
        close_fds=False,  # an MPI's process manager speaks through one that we inherited
    )
    started.append(process)
    for number in heard:
        process.send_signal(number)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return _end(process, timeout)


def _end(process: subprocess.Popen[bytes], timeout: float | None) -> int:
    process.terminate()
    try:
        process.wait(_LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    sys.stderr.write(f"the command took longer than {timeout:g} s and was ended.\n")
    return TIMED_OUT


def _spread(slots: Sequence[Mapping[str, Any]]) -> None:
    """Let this process run on the cores of all slots of its host."""
    cores = {core for slot in slots if slot["host"] == slots[0]["host"] for core in slot["cores"]}
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            sys.stderr.write(f"not bound to cores {sorted(cores)} ({error.strerror}).\n")


def _for_all(environment: Mapping[str, str], slots: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Give the environment of one process that starts its own ranks."""
    here = [slot for slot in slots if slot["host"] == slots[0]["host"]]
    devices = ",".join(dict.fromkeys(slot["visible"] for slot in here if slot["visible"]))
    cores = {core for slot in here for core in slot["cores"]}
    kept = {name: value for name, value in environment.items() if name not in _OF_RANKS}
    shown, hidden = visibility(slots[0]["device"], devices, slots[0]["variable"])
    kept = {name: value for name, value in kept.items() if name not in hidden}
    return (
        kept
        | shown
        | {
            HOSTS: ",".join(dict.fromkeys(slot["host"] for slot in slots)),
            "OMP_NUM_THREADS": str(max(1, len(cores) // len(here))),
        }
    )
