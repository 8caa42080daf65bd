"""``hydragnn-hpo doctor --acceptance``: run our commands on a machine once, and check the results.

A small trial on one rank and on two, the same trial killed and resumed, and some minutes of a
campaign. Bandwidth of the fabric and health of devices are for ReFrame and rccl-tests.
"""

import datetime
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hydragnn_hpo.campaign import Event
    from hydragnn_hpo.launching import Finding, JobHosts
    from hydragnn_hpo.layout import RunDir, TrialDir

    Weights = Mapping[str, NDArray[np.generic]]

MINUTES = 10.0
"""Length of the campaign, if nothing else is asked for."""

CARD, CAMPAIGN = "g2_xtb", "quickstart"
"""Data set and campaign that ship with us: 148 molecules."""

EPOCHS = 30
"""Of the trials: enough for the kill to find a trial at work."""

EQUAL_MAE = 1e-5
"""Largest relative difference of an error that placement may make (Law 1)."""

RESUMED_MAE = 1e-6
"""The same for a trial that was resumed on devices that add in no fixed order; on CPUs nothing may
differ at all (Law 5)."""

RESUMED = "same result: interrupted and unbroken"

TRIALS = 100_000
"""More than any machine ends in minutes: the campaign is paused."""

LEASE_SECONDS = 30.0
"""Of ranks: a host that was busy for a while is not lost."""

STEP_SECONDS = 600.0
"""Time limit of each command; of a campaign until its first trial is placed, and to its end once
it is paused."""

PATIENCE_SECONDS = 300.0
"""How much longer a campaign goes on where no trial has come to its first rung yet."""

POLL_SECONDS = 0.5

_KILLED = """\
import os, subprocess, sys, time
trial = subprocess.Popen(sys.argv[2:])
while trial.poll() is None and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
trial.kill()
sys.exit(0 if trial.wait() == -9 else 3)
"""
"""Run a trial, and kill it when its first checkpoint is there; exit code 3 if that was too late."""

STEPS = {
    "doctor": "doctor's checks of every host",
    "widths": "one trial on one rank and on two hosts: the same result",
    "interruption": "a trial killed and resumed: the same result",
    "campaign": "some minutes of a campaign on all hosts",
}
"""What is done, in this order."""


class StepFailed(Exception):
    """A command did not end as it should; the message is a sentence for the report."""


@dataclass(frozen=True)
class Acceptance:
    """What is accepted: a machine, through a folder, within a time."""

    machine: Mapping[str, str | None]
    """Values of ``[machine]``: ``profile``, ``pack`` and ``container``."""

    hosts: "JobHosts"
    folder: Path
    minutes: float

    @property
    def name(self) -> str:
        """The name of the machine's profile."""
        from hydragnn_hpo.config import find_profile

        return find_profile(self.machine["profile"]).name

    @property
    def store(self) -> Path:
        """The graph store of the trials."""
        return self.folder / "data" / f"{CARD}.bp"


def accept(
    site: Acceptance, examine: Callable[[], "list[Finding]"], *, as_json: bool, dry_run: bool
) -> None:
    """Run all steps; exit with 1 if something is wrong.

    Args:
        site: what is accepted.
        examine: doctor's own checks.
        as_json: print the report as JSON.
        dry_run: print what would be done.

    Raises:
        HydraError: the folder holds something else, or the minutes are no number.
    """
    from hydragnn_hpo.errors import ConfigError, RunError
    from hydragnn_hpo.files import storage

    if not math.isfinite(site.minutes):
        raise ConfigError(f"--minutes {site.minutes}: give a number of minutes.")
    if dry_run:
        _show_plan(site)
        return
    if site.folder.exists() and any(site.folder.iterdir()):
        raise RunError(f"{site.folder}: is not empty; choose another with --run.")
    with storage(site.folder):
        site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    findings: dict[str, list[Finding]] = {}
    for name, act in _actions(site, examine).items():
        began = time.monotonic()
        findings[name] = _try(name, act)
        if not as_json:
            typer.echo(f"{name}: {time.monotonic() - began:.0f} s", err=True)
        report = _write_report(site, findings)
    _print(report, findings, as_json=as_json, path=site.folder / "acceptance.json")
    if not report["accepted"]:
        raise typer.Exit(1)


def _actions(
    site: Acceptance, examine: Callable[[], "list[Finding]"]
) -> "dict[str, Callable[[], list[Finding]]]":
    """Return the action of each of ``STEPS``."""
    return {
        "doctor": examine,
        "widths": partial(_check_widths, site),
        "interruption": partial(_check_resume, site),
        "campaign": partial(_check_campaign, site),
    }


def _try(name: str, act: Callable[[], "list[Finding]"]) -> "list[Finding]":
    """Run a step; a failure is a finding, and the others go on."""
    from hydragnn_hpo.errors import HydraError, StorageError
    from hydragnn_hpo.launching import Finding

    try:
        return act()
    except StorageError:
        raise
    except (HydraError, StepFailed) as error:
        return [Finding(name, "wrong", str(error))]


def _check_widths(site: Acceptance) -> "list[Finding]":
    """Train the same trial on one rank and on two."""
    from hydragnn_hpo.launching import Finding

    _run(site, "build", _program("dataset", "build", CARD, "--out", site.store))
    _train(site, "one", ranks=1)
    if not _two_ranks(site):
        why = "there is one host with one slot"
        return [Finding("same result: two ranks", "unknown", f"not testable here: {why}")]
    _train(site, "two", ranks=2)
    apart = errors_apart(*(_result(site, name)["val_mae"] for name in ("one", "two")))
    where = "two hosts" if len(site.hosts.able) > 1 else "one host"
    return [compare_widths(f"one rank, {where}", apart, site.hosts.able[:2])]


def compare_widths(what: str, apart: float, hosts: tuple[str, ...]) -> "Finding":
    """Check whether a trial on other slots came to the same result.

    Args:
        what: the two that are compared.
        apart: see ``errors_apart``.
        hosts: of the wider one.
    """
    from hydragnn_hpo.launching import Finding

    good = apart <= EQUAL_MAE
    cure = (
        "see whether sums are right (all-reduce sums), and whether all hosts have the same "
        "versions and devices."
    )
    return Finding(
        f"same result: {what}",
        "ok" if good else "wrong",
        found=f"validation MAE {apart:.1e} apart",
        expected=f"at most {EQUAL_MAE:.0e} in MAE",
        cure="" if good else cure,
        hosts=hosts,
        figure=apart,
    )


def _check_resume(site: Acceptance) -> "list[Finding]":
    """Kill a trial at its first checkpoint, run it again, and compare with an unbroken one."""
    from safetensors.numpy import load_file

    from hydragnn_hpo.launching import Finding
    from hydragnn_hpo.metrics_log import read_records

    ranks = 2 if _two_ranks(site) else 1
    whole, cut = ("one", "two")[ranks - 1], "cut"
    trial = _write_trial(site, cut)
    last = trial.checkpoints / "last.safetensors"
    killer = (sys.executable, "-P", "-c", _KILLED, str(last))
    killed = _run(
        site, "kill", _launch(site, (*killer, *_program("trial", trial.path)), ranks), check=False
    )
    if not killed and not last.exists():
        raise StepFailed(f"the trial left no checkpoint; see {site.folder / 'kill.log'}.")
    _train(site, cut, ranks=ranks)
    resumed = any(
        record["record"] == "ready" and record["resumed"]
        for record in read_records(trial.attempt(trial.attempts()[-1]) / "metrics.jsonl")
    )
    if not resumed:
        return [Finding(RESUMED, "unknown", "the trial ended before it could be killed")]
    apart = errors_apart(*(_result(site, name)["val_mae"] for name in (whole, cut)))
    same = same_bits(*(load_file(_trial(site, name).best) for name in (whole, cut)))
    hosts = site.hosts.able[:ranks]
    return [compare_resumed(same, apart, exact=_on_cores(site), hosts=hosts)]


def compare_resumed(same: bool, apart: float, *, exact: bool, hosts: tuple[str, ...]) -> "Finding":
    """Check whether a trial that was killed and resumed came to the result of an unbroken one.

    Args:
        same: whether all weights are the same in every bit.
        apart: see ``errors_apart``.
        exact: whether they must be, as on CPUs.
        hosts: of the trial.
    """
    from hydragnn_hpo.launching import Finding

    good = same if exact else apart <= RESUMED_MAE
    cure = "see whether checkpoints reach the file system whole (doctor's checks of files)."
    return Finding(
        RESUMED,
        "ok" if good else "wrong",
        found="the same in every bit" if same else f"validation MAE {apart:.1e} apart",
        expected="the same in every bit" if exact else f"at most {RESUMED_MAE:.0e} in MAE",
        cure="" if good else cure,
        hosts=hosts,
        figure=apart,
    )


def _check_campaign(site: Acceptance) -> "list[Finding]":
    """Run a campaign until its time is over, pause it, and read its journal."""
    from hydragnn_hpo.campaign import read_journal
    from hydragnn_hpo.layout import RunDir

    file, run = _write_campaign(site), RunDir(site.folder / "campaign")
    named = {"profile": "--machine", "pack": "--pack", "container": "--container"}
    options = [f"{named[key]}={value}" for key, value in site.machine.items() if value]
    log, paused = site.folder / "campaign.log", False
    with log.open("wb") as output:
        process = subprocess.Popen(
            _program("run", file, "--run", run.path, *options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_campaign(process, run, 60.0 * site.minutes)
            if paused := process.poll() is None:
                _run(site, "pause", _program("pause", run.path))
            code = process.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"the campaign did not end when it was paused; see {log}.") from error
        finally:
            process.kill()
    if code and not paused:
        raise StepFailed(f"the campaign ended with code {code}: {_last_line(log)}")
    expected = site.hosts.able if site.hosts.kind != "here" else ()
    return check_campaign(list(read_journal(run.journal)), set(expected) - _excluded(run), run)


def _write_campaign(site: Acceptance) -> Path:
    """Write the shipped campaign with more trials than there is time for; return its file."""
    from hydragnn_hpo.config import CampaignConfig, dump_config, load_config
    from hydragnn_hpo.files import write_text
    from hydragnn_hpo.resources import find_resource

    given, file = (
        load_config(find_resource(CAMPAIGN, "workflows"), CampaignConfig),
        site.folder / "campaign.toml",
    )
    wanted = {"trials": TRIALS, "brain": "random", "rungs": (5, 20), "finalists": 2}
    changes = {
        "name": "acceptance",
        "search": given.search.model_copy(update=wanted),
        "machine": given.machine.model_copy(update={"lease_seconds": LEASE_SECONDS}),
    }
    write_text(file, dump_config(given.model_copy(update=changes)))
    return file


def _wait_for_campaign(process: "subprocess.Popen[bytes]", run: "RunDir", seconds: float) -> None:
    """Wait until the campaign's time is over, or it has ended."""
    from hydragnn_hpo.campaign import read_state

    began, first = time.monotonic(), None
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        trials = list(read_state(run).trials.values()) if run.journal.exists() else []
        if first is None and any(trial.status == "running" for trial in trials):
            first = now
        rested = any(trial.rests for trial in trials)
        if now > deadline_of(began, first, rested=rested, seconds=seconds):
            return


def deadline_of(began: float, first: float | None, *, rested: bool, seconds: float) -> float:
    """Return when a campaign is paused: its time runs from its first trial on.

    Args:
        began: when it was started.
        first: when its first trial was placed, or None.
        rested: whether a trial has come to a rung; it is waited for.
        seconds: that trials have.
    """
    if first is None:
        return began + STEP_SECONDS
    return first + seconds + (0.0 if rested else PATIENCE_SECONDS)


def _excluded(run: "RunDir") -> set[str]:
    from hydragnn_hpo.launching import read_run_excluded

    return set(read_run_excluded(run.path))


def check_campaign(
    events: "Sequence[Event]", hosts: Collection[str], run: "RunDir"
) -> "list[Finding]":
    """Check whether trials ended, every host had some, and no result is missing.

    Args:
        events: the campaign's journal.
        hosts: those that should have had trials.
        run: its directory.
    """
    from hydragnn_hpo.campaign import fold
    from hydragnn_hpo.launching import Finding

    state = fold(events)
    placed = [event for event in events if event["event"] == "placed"]
    used = {slot.rpartition(":")[0] for event in placed for slot in event["slots"]}
    rested = [name for name, trial in state.trials.items() if trial.rests]
    hours = (events[-1]["time"] - placed[0]["time"]) / 3600.0 if placed else 0.0
    rate = len(rested) / hours if hours > 0.0 else 0.0
    progress = Finding(
        "trials at a rung",
        "ok" if rested else "wrong",
        found=f"{len(rested)}, or {rate:.0f} per hour, of {len(state.trials)} that began",
        expected="some",
        cure="" if rested else "read status and logs of the campaign, or give it more --minutes.",
        figure=float(len(rested)),
    )
    return [progress, _check_used(used, set(hosts)), _check_kept(state.trials, rested, run)]


def _check_used(used: set[str], hosts: set[str]) -> "Finding":
    from hydragnn_hpo.launching import Finding

    idle = sorted(hosts - used)
    return Finding(
        "hosts with trials",
        "wrong" if idle or not used else "ok",
        found=f"{len(used)} of {len(used | hosts)}",
        expected="all",
        cure="see the agents' logs of these hosts, and doctor's findings." if idle else "",
        hosts=tuple(idle),
    )


def _check_kept(trials: Mapping[str, Any], rested: Sequence[str], run: "RunDir") -> "Finding":
    from hydragnn_hpo.launching import Finding

    problems = list(_lost_results(trials, rested, run))
    return Finding(
        "results kept",
        "wrong" if problems else "ok",
        found="; ".join(problems[:3]) or f"all of {len(rested)} trials",
        expected="all, and no trial fails",
        cure="read the logs in the trials' folders." if problems else "",
        figure=float(len(problems)),
    )


def _lost_results(trials: Mapping[str, Any], rested: Sequence[str], run: "RunDir") -> Iterator[str]:
    """Yield what the journal or the files lack of trials that came to a rung, and failures."""
    for name, trial in trials.items():
        if trial.status == "running":
            yield f"no result of {name}"
        if trial.status == "failed" and trial.reason != "diverged":
            yield f"failed: {name} ({trial.reason}: {trial.message})"
    for name in rested:
        folder = run.trial(name)
        if not any((folder.attempt(n) / "result.json").exists() for n in folder.attempts()):
            yield f"no result of {name}"


def errors_apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the largest relative difference of errors over all heads; infinity of unlike heads."""
    if one.keys() != other.keys() or not one:
        return float("inf")
    return max(
        abs(one[head] - other[head]) / max(abs(one[head]), abs(other[head]), 1e-300) for head in one
    )


def same_bits(one: "Weights", other: "Weights") -> bool:
    """Check whether all weights are the same in every bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def _two_ranks(site: Acceptance) -> bool:
    """Check whether two ranks can run: on two hosts, or on two slots of this one."""
    from hydragnn_hpo.launching import detect_slots

    return len(site.hosts.able) > 1 or len(detect_slots(0)) > 1


def _on_cores(site: Acceptance) -> bool:
    """Check whether ranks compute on cores, whose sums have a fixed order."""
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.launching import find_devices

    return find_profile(site.machine["profile"]).device == "cpu" and not find_devices(os.environ)


def _launch(site: Acceptance, command: Sequence[str], ranks: int) -> list[str]:
    """Return the command that starts a rank on each of the first hosts, or all on this one."""
    from hydragnn_hpo.launching import find_mpiexec, step_argv

    hosts = site.hosts.able[:ranks]
    if site.hosts.kind == "slurm" and len(hosts) == ranks:
        return step_argv(site.hosts.job, hosts, command, ("--kill-on-bad-exit=1",))
    if site.hosts.kind == "pbs" and len(hosts) == ranks:
        where = ("-ppn", "1", "-hosts", ",".join(hosts))
        return [find_mpiexec(), "-n", str(ranks), *where, *command]
    if ranks == 1:
        return list(command)
    several = ("--standalone", f"--nproc-per-node={ranks}", "--no-python")
    return [sys.executable, "-P", "-m", "torch.distributed.run", *several, *command]


def _train(site: Acceptance, name: str, *, ranks: int) -> None:
    """Train a trial to its end; it is written first if it is new."""
    trial = _trial(site, name)
    if not trial.config.exists():
        _write_trial(site, name)
    _run(site, name, _launch(site, _program("trial", trial.path), ranks))


def _trial(site: Acceptance, name: str) -> "TrialDir":
    from hydragnn_hpo.layout import TrialDir

    return TrialDir(site.folder / "trials" / name)


def _write_trial(site: Acceptance, name: str) -> "TrialDir":
    """Write a trial in fp64: what devices add in no fixed order must not hide what is lost."""
    from hydragnn_hpo.config import TrialConfig, parse_config, to_toml
    from hydragnn_hpo.files import storage, write_text

    values: dict[str, Any] = {
        "trial": "acceptance",
        "seed": 11,
        "data": {"store": str(site.store.resolve())},
        "model": {"conv": "painn", "features": 16, "layers": 2, "cutoff": 4.0},
        "heads": {"atomization_energy_per_atom": {"pool": "contributions"}, "partial_charge": {}},
        "training": {
            "epochs": EPOCHS,
            "global_batch": 32,
            "learning_rate": 2e-3,
            "precision": "fp64",
            "checkpoint_seconds": 0.0,
        },
    }
    trial = _trial(site, name)
    parse_config(values, TrialConfig, str(trial.config))
    with storage(trial.path):
        trial.path.mkdir(mode=0o700, parents=True)
    write_text(trial.config, to_toml(values))
    return trial


def _result(site: Acceptance, name: str) -> dict[str, Any]:
    """Read the result of a trial's last attempt."""
    from hydragnn_hpo.files import read_json

    trial = _trial(site, name)
    path = trial.attempt(max(trial.attempts(), default=1)) / "result.json"
    if not path.exists():
        raise StepFailed(f"{trial.path} has no result; see {site.folder / name}.log.")
    result: dict[str, Any] = read_json(path)
    return result


def _program(*arguments: object) -> tuple[str, ...]:
    """Return the argv of one of our own commands."""
    return (sys.executable, "-P", "-m", "hydragnn_hpo", *map(str, arguments))


def _run(site: Acceptance, name: str, argv: Sequence[str], *, check: bool = True) -> bool:
    """Run a command to its end, its output in a log of the folder.

    Args:
        site: what is accepted.
        name: of the log.
        argv: the command.
        check: whether a failure ends the step.

    Returns:
        Whether it ended with 0.

    Raises:
        StepFailed: it did not end in time or, if ``check``, not with 0.
    """
    from hydragnn_hpo.launching import step_environment

    log = site.folder / f"{name}.log"
    environment = step_environment(os.environ, math.inf) if argv[0] == "srun" else None
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=STEP_SECONDS, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = f"did not end within {STEP_SECONDS:.0f} s: {shlex.join(argv)}; see {log}."
            raise StepFailed(said) from error
        except OSError as error:
            raise StepFailed(f"{argv[0]} cannot be started: {error.strerror}.") from error
    if check and done.returncode:
        raise StepFailed(f"{name} ended with code {done.returncode}: {_last_line(log)}; see {log}.")
    return done.returncode == 0


def _last_line(log: Path) -> str:
    from hydragnn_hpo.campaign import last_lines

    return last_lines(log)


def _show_plan(site: Acceptance) -> None:
    from hydragnn_hpo.cli.words import count

    hosts = count(len(site.hosts.able), "host")
    typer.echo(f"acceptance of {site.name}, {hosts}, into {site.folder}")
    for name, what in STEPS.items():
        typer.echo(f"  {name}: {what}")
    typer.echo(f"the campaign takes {site.minutes:g} minutes, the rest about as long")


def _write_report(site: Acceptance, findings: "Mapping[str, Sequence[Finding]]") -> dict[str, Any]:
    """Write what is known so far to ``acceptance.json``; return it."""
    from hydragnn_hpo import __version__
    from hydragnn_hpo.files import write_json
    from hydragnn_hpo.launching import compress, worst

    wrong = any(worst(some) == "wrong" for some in findings.values())
    report = {
        "machine": site.name,
        "version": __version__,
        "hosts": compress(site.hosts.able),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "accepted": not wrong if len(findings) == len(STEPS) else None,
        "stages": [
            {"name": name, "state": worst(some), "findings": [f.to_plain() for f in some]}
            for name, some in findings.items()
        ],
    }
    write_json(site.folder / "acceptance.json", report)
    return report


def _print(
    report: Mapping[str, Any],
    findings: "Mapping[str, Sequence[Finding]]",
    *,
    as_json: bool,
    path: Path,
) -> None:
    from hydragnn_hpo.cli.findings_view import findings_table
    from hydragnn_hpo.cli.tables import console

    if as_json:
        typer.echo(json.dumps(report))
        return
    out = console()
    together = [finding for some in findings.values() for finding in some]
    out.print(findings_table(together, f"Acceptance of {report['machine']}"))
    said = "accepted" if report["accepted"] else "not accepted: what is wrong stands above"
    whole = f"{report['machine']}: {said}; the whole report is {path}."
    out.print(whole, markup=False, soft_wrap=True)
