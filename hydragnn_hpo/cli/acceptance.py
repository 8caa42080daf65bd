"""``hydragnn-hpo doctor --acceptance``: run our commands on a machine once, and check the results.

A small trial on one rank and on two, the same trial killed and resumed, and some minutes of a
campaign. Bandwidth of the fabric and health of devices are for ReFrame and rccl-tests.
"""

import datetime
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors.numpy import load_file

from hydragnn_hpo import __version__
from hydragnn_hpo.campaign import Trial, fold, read_journal, read_state
from hydragnn_hpo.campaign.outcome import last_lines
from hydragnn_hpo.config import (
    CampaignConfig,
    TrialConfig,
    dump_config,
    find_profile,
    load_config,
    parse_config,
    to_toml,
)
from hydragnn_hpo.errors import HydraError, RunError, StorageError
from hydragnn_hpo.files import read_json, storage, write_json, write_text
from hydragnn_hpo.host_checks import Finding
from hydragnn_hpo.host_checks.doctor import JobHosts
from hydragnn_hpo.host_checks.doctor_checks import worst
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.launching import detect_slots, find_devices, step_environment
from hydragnn_hpo.launching.excluded_hosts import read_run_excluded
from hydragnn_hpo.launching.slurm_allocation import compress_hosts, find_excluded
from hydragnn_hpo.layout import RunDir, TrialDir
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.resources import find_resource

Weights = Mapping[str, NDArray[np.generic]]
Examine = Callable[[], list[Finding]]

CARD, CAMPAIGN = "g2_xtb", "quickstart"
"""Data set whose results are compared, and campaign that is searched; both ship with us."""

EQUAL_MAE = 1e-5
"""Largest relative difference of an error that placement may make (Law 1)."""

RESUMED_MAE = 1e-6
"""The same for a trial that was resumed on devices that add in no fixed order; on CPUs nothing may
differ at all (Law 5)."""

RESUMED = "same result: interrupted and unbroken"

TRIALS = 100_000
"""More trials than any machine finishes in minutes: the campaign is paused."""

LEASE_SECONDS = 30.0
"""Lease of ranks, long enough that a busy host does not count as lost."""

STEP_SECONDS = 600.0
"""Time limit of each command; how much longer a campaign goes on where no trial has come to its
first rung yet, and how long it may take to pause."""

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
"""Descriptions of the steps, in their order."""

TRIAL: dict[str, JsonValue] = {
    "trial": "acceptance",
    "seed": 11,
    "model": {"conv": "painn", "features": 16, "layers": 2, "cutoff": 4.0},
    "heads": {"atomization_energy_per_atom": {"pool": "contributions"}, "partial_charge": {}},
    "training": {
        "epochs": 30,  # enough for the kill to find a trial at work
        "global_batch": 32,
        "learning_rate": 2e-3,
        "precision": "fp64",  # what devices add in no fixed order must not hide what is lost
        "checkpoint_seconds": 0.0,
    },
}
"""The trial that is trained on one rank (``one``), on two (``two``), and with a kill (``cut``)."""


class AcceptanceStage(TypedDict):
    """One step and its result."""

    name: str
    """A key of ``STEPS``."""
    state: str
    """The worst state of its findings: ``ok``, ``unknown``, ``slow`` or ``wrong``."""
    findings: list[dict[str, JsonValue]]
    """Fields of ``launching.Finding``."""


class AcceptanceReport(TypedDict):
    """The content of ``acceptance.json``."""

    machine: str
    """Name of the profile."""
    version: str
    """Version of this package."""
    hosts: str
    """Names of the hosts, compressed as Slurm writes them."""
    date: str
    """Begin, UTC, ISO 8601."""
    accepted: bool | None
    """Whether nothing is wrong; None before the last step has ended."""
    stages: list[AcceptanceStage]


class StepFailed(Exception):
    """A command did not end as it should; the message is a sentence for the report."""


@dataclass(frozen=True)
class Acceptance:
    """The machine to accept, and the folder and time to use."""

    machine: Mapping[str, str | None]
    """Values of ``[machine]``: ``profile``, ``pack`` and ``container``; None if not used."""

    hosts: JobHosts
    folder: Path
    minutes: float

    @property
    def name(self) -> str:
        """The name of the machine's profile."""
        return find_profile(self.machine["profile"]).name

    @property
    def store(self) -> Path:
        """The graph store of the trials."""
        return self.folder / "data" / f"{CARD}.bp"

    @property
    def campaign(self) -> RunDir:
        """The run directory of the campaign."""
        return RunDir(self.folder / "campaign")

    @property
    def ranks(self) -> int:
        """Ranks of the wide trial: 2 on two hosts, or on two slots of this one; else 1."""
        return 2 if len(self.hosts.able) > 1 or len(detect_slots(0)) > 1 else 1

    def trial(self, name: str) -> TrialDir:
        """Return the directory of one of the trials."""
        return TrialDir(self.folder / "trials" / name)

    def plan(self) -> list[str]:
        """Return lines that describe what would be done."""
        return [
            f"acceptance of {self.name}, {len(self.hosts.able)} hosts, into {self.folder}",
            *(f"  {name}: {what}" for name, what in STEPS.items()),
            f"the campaign takes {self.minutes:g} minutes, the rest about as long",
        ]


def accept(site: Acceptance, examine: Examine) -> tuple[AcceptanceReport, list[Finding]]:
    """Run all steps, and write ``acceptance.json`` after each.

    Args:
        site: the machine and the folder to use.
        examine: runs doctor's own checks, the first step.

    Returns:
        The report, and all findings.

    Raises:
        RunError: the folder holds something else.
        StorageError: it cannot be written.
    """
    if site.folder.exists() and any(site.folder.iterdir()):
        raise RunError(f"{site.folder}: is not empty; choose another with --run.")
    with storage(site.folder):
        site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    report: AcceptanceReport = {
        "machine": site.name,
        "version": __version__,
        "hosts": compress_hosts(site.hosts.able),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "accepted": None,
        "stages": [],
    }
    findings: list[Finding] = []
    ours: list[Examine] = [partial(act, site) for act in (_widths, _interruption, _campaign)]
    for name, act in zip(STEPS, [examine, *ours], strict=True):
        began = time.monotonic()
        step_findings = _findings_of(name, act)
        typer.echo(f"{name}: {time.monotonic() - began:.0f} s", err=True)
        findings += step_findings
        plain = [asdict(finding) for finding in step_findings]
        report["stages"].append({"name": name, "state": worst(step_findings), "findings": plain})
        if len(report["stages"]) == len(STEPS):
            report["accepted"] = worst(findings) != "wrong"
        write_json(site.folder / "acceptance.json", report)
    return report, findings


def _findings_of(name: str, act: Examine) -> list[Finding]:
    """Run a step; its failure becomes a finding, so that later steps still run."""
    try:
        return act()
    except StorageError:
        raise
    except (HydraError, StepFailed) as error:
        return [Finding(name, "wrong", str(error))]


def _widths(site: Acceptance) -> list[Finding]:
    """Train the same trial on one rank and on two, and compare the results."""
    _run(site, "build", _program("dataset", "build", CARD, "--out", site.store))
    _train(site, "one", ranks=1)
    if site.ranks == 1:
        why = "not testable here: there is one host with one slot"
        return [Finding("same result: two ranks", "unknown", why)]
    _train(site, "two", ranks=2)
    apart = errors_apart(_errors(site, "one"), _errors(site, "two"))
    where = "two hosts" if len(site.hosts.able) > 1 else "one host"
    cure = (
        "see whether sums are right (all-reduce sums), and whether all hosts have the same "
        "versions and devices."
    )
    check = f"same result: one rank, {where}"
    return [compare_results(check, apart, EQUAL_MAE, cure=cure, hosts=site.hosts.able[:2])]


def compare_results(
    check: str, apart: float, most: float, *, cure: str, hosts: tuple[str, ...]
) -> Finding:
    """Compare the results of two trainings with a tolerance.

    Args:
        check: name of the finding.
        apart: largest relative difference of the errors, see ``errors_apart``.
        most: largest difference that is accepted; 0 demands equal weights, bit by bit.
        cure: advice if the difference is larger.
        hosts: hosts of the second training.
    """
    good = apart <= most
    return Finding(
        check=check,
        state="ok" if good else "wrong",
        observed=f"validation MAE {apart:.1e} apart" if apart else "the same in every digit",
        expected=f"at most {most:.0e} in MAE" if most else "the same in every bit",
        cure="" if good else cure,
        hosts=hosts,
        figure=apart,
    )


def _interruption(site: Acceptance) -> list[Finding]:
    """Kill a trial at its first checkpoint, run it again, and compare with an unbroken one."""
    whole = site.trial("two" if site.ranks == 2 else "one")
    trial = site.trial("cut")
    _write_trial(site, trial)
    last = trial.checkpoints / "last.safetensors"
    killer = (sys.executable, "-P", "-c", _KILLED, str(last), *_program("trial", trial.path))
    killed = _run(site, "kill", _launch(site, killer, site.ranks), check=False)
    if not killed and not last.exists():
        raise StepFailed(f"the trial left no checkpoint; see {site.folder / 'kill.log'}.")
    _train(site, "cut", ranks=site.ranks)
    records = read_records(trial.attempt(trial.attempts()[-1]) / "metrics.jsonl")
    if not any(record["record"] == "ready" and record["resumed"] for record in records):
        return [Finding(RESUMED, "unknown", "the trial ended before it could be killed")]
    apart = errors_apart(_errors(site, whole.path.name), _errors(site, "cut"))
    on_cores = find_profile(site.machine["profile"]).device == "cpu"
    exact = on_cores and not find_devices(os.environ)  # sums on cores have a fixed order
    if exact and not same_bits(load_file(whole.best), load_file(trial.best)):
        apart = max(apart, sys.float_info.min)
    cure = "see whether checkpoints reach the file system whole (doctor's checks of files)."
    most = 0.0 if exact else RESUMED_MAE
    hosts = site.hosts.able[: site.ranks]
    return [compare_results(RESUMED, apart, most, cure=cure, hosts=hosts)]


def errors_apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the largest relative difference of errors over all heads; infinite for other heads."""
    if one.keys() != other.keys() or not one:
        return float("inf")
    return max(
        abs(one[head] - other[head]) / max(abs(one[head]), abs(other[head]), 1e-300) for head in one
    )


def same_bits(one: Weights, other: Weights) -> bool:
    """Check whether all weights are the same in every bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def _campaign(site: Acceptance) -> list[Finding]:
    """Run a campaign until its time is over, pause it, and read its journal."""
    run = site.campaign
    log = site.folder / "campaign.log"
    named = {"profile": "--machine", "pack": "--pack", "container": "--container"}
    options = [f"{named[key]}={value}" for key, value in site.machine.items() if value]
    argv = _program("run", _write_campaign(site), "--run", run.path, *options)
    paused = False
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
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
        raise StepFailed(f"the campaign ended with code {code}: {last_lines(log)}")
    hosts = site.hosts.able if site.hosts.in_job else ()
    events = list(read_journal(run.journal))
    excluded, _ = find_excluded(hosts, read_run_excluded(run.path))
    return check_campaign(events, set(hosts) - excluded, run)


def _write_campaign(site: Acceptance) -> Path:
    """Write the shipped campaign with more trials than there is time for; return its file."""
    shipped = load_config(find_resource(CAMPAIGN, "workflows"), CampaignConfig)
    search = {"trials": TRIALS, "brain": "random", "rungs": (5, 20), "finalists": 2}
    changes = {
        "name": "acceptance",
        "search": shipped.search.model_copy(update=search),
        "machine": shipped.machine.model_copy(update={"lease_seconds": LEASE_SECONDS}),
    }
    file = site.folder / "campaign.toml"
    write_text(file, dump_config(shipped.model_copy(update=changes)))
    return file


def _wait_for_campaign(process: subprocess.Popen[bytes], run: RunDir, seconds: float) -> None:
    """Wait until the campaign has ended, or its time is over and a trial has come to a rung."""
    began = time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        passed = time.monotonic() - began
        trials = read_state(run).trials.values() if run.journal.exists() else ()
        if passed > seconds and any(trial.rung_scores for trial in trials):
            return
        if passed > seconds + STEP_SECONDS:
            return


def check_campaign(
    events: Sequence[JournalEvent], hosts: Collection[str], run: RunDir
) -> list[Finding]:
    """Check that trials reached a rung, every host had a trial, and no result is missing.

    Args:
        events: the campaign's journal.
        hosts: hosts that should have had trials.
        run: the campaign's run directory.
    """
    trials = fold(events).trials
    rested = [name for name, trial in trials.items() if trial.rung_scores]
    problems = list(_lost_results(trials, rested, run))
    return [
        Finding(
            check="trials at a rung",
            state="ok" if rested else "wrong",
            observed=f"{len(rested)} of {len(trials)} that began",
            expected="some",
            cure="" if rested else "read status and logs of the campaign, or use more --minutes.",
            figure=float(len(rested)),
        ),
        _check_hosts(events, hosts),
        Finding(
            check="results kept",
            state="wrong" if problems else "ok",
            observed="; ".join(problems[:3]) or f"all of {len(rested)} trials",
            expected="all, and no trial fails",
            cure="read the logs in the trials' folders." if problems else "",
            figure=float(len(problems)),
        ),
    ]


def _check_hosts(events: Sequence[JournalEvent], hosts: Collection[str]) -> Finding:
    """Check whether trials were placed on every host."""
    placed = [event for event in events if event["event"] == "placed"]
    used = {slot.rpartition(":")[0] for event in placed for slot in event["slots"]}
    idle = sorted(set(hosts) - used)
    return Finding(
        check="hosts with trials",
        state="wrong" if idle or not used else "ok",
        observed=f"{len(used)} of {len(used.union(hosts))}",
        expected="all",
        cure="see the agents' logs of these hosts, and doctor's findings." if idle else "",
        hosts=tuple(idle),
    )


def _lost_results(trials: Mapping[str, Trial], rested: Sequence[str], run: RunDir) -> Iterator[str]:
    """Yield the failed trials, and those whose result is not in the journal or on disk."""
    for name, trial in trials.items():
        if trial.status == "running":
            yield f"no result of {name}"
        if trial.status == "failed" and trial.reason != "diverged":
            yield f"failed: {name} ({trial.reason}: {trial.message})"
    for name in rested:
        folder = run.trial(name)
        if not any((folder.attempt(n) / "result.json").exists() for n in folder.attempts()):
            yield f"no result of {name}"


def _train(site: Acceptance, name: str, *, ranks: int) -> None:
    """Train a trial to its end; write its configuration first if it is new."""
    trial = site.trial(name)
    if not trial.config.exists():
        _write_trial(site, trial)
    _run(site, name, _launch(site, _program("trial", trial.path), ranks))


def _write_trial(site: Acceptance, trial: TrialDir) -> None:
    values = TRIAL | {"data": {"store": str(site.store.resolve())}}
    parse_config(values, TrialConfig, str(trial.config))
    with storage(trial.path):
        trial.path.mkdir(mode=0o700, parents=True)
    write_text(trial.config, to_toml(values))


def _errors(site: Acceptance, name: str) -> dict[str, float]:
    """Return the validation MAE of each head from the last attempt of a trial."""
    trial = site.trial(name)
    path = trial.attempt(max(trial.attempts(), default=1)) / "result.json"
    if not path.exists():
        raise StepFailed(f"{trial.path} has no result; see {site.folder / name}.log.")
    errors: dict[str, float] = read_json(path)["val_mae"]
    return errors


def _launch(site: Acceptance, command: Sequence[str], ranks: int) -> list[str]:
    """Return the command that starts a rank on each of the first hosts, or all on this one."""
    hosts = site.hosts.able[:ranks]
    if len(hosts) == ranks:
        return site.hosts.step(hosts, command, ("--kill-on-bad-exit=1",))
    several = ("--standalone", f"--nproc-per-node={ranks}", "--no-python")
    return [sys.executable, "-P", "-m", "torch.distributed.run", *several, *command]


def _program(*arguments: object) -> tuple[str, ...]:
    """Return the argv of one of our own commands."""
    return (sys.executable, "-P", "-m", "hydragnn_hpo", *map(str, arguments))


def _run(site: Acceptance, name: str, argv: Sequence[str], *, check: bool = True) -> bool:
    """Run a command to its end, and append its output to ``NAME.log`` in the folder.

    Args:
        site: the folder and the hosts.
        name: name of the log, without its suffix.
        argv: program and arguments.
        check: whether a non-zero exit code raises ``StepFailed``.

    Returns:
        Whether the exit code was 0.

    Raises:
        StepFailed: it did not end in time or, if ``check``, not with 0.
    """
    log = site.folder / f"{name}.log"
    environment = step_environment(os.environ, math.inf)
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=STEP_SECONDS, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            why = f"did not end within {STEP_SECONDS:.0f} s: {shlex.join(argv)}; see {log}."
            raise StepFailed(why) from error
        except OSError as error:
            raise StepFailed(f"{argv[0]} cannot be started: {error.strerror}.") from error
    if check and done.returncode:
        raise StepFailed(f"{name} ended with code {done.returncode}: {last_lines(log)}; see {log}.")
    return done.returncode == 0
