"""Examine the hosts of a job: find them, probe them all at once, and check their answers."""

import contextlib
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from hydragnn_hpo.config import ProfileConfig
from hydragnn_hpo.files import storage
from hydragnn_hpo.host_checks.doctor_checks import (
    OFF_SITE,
    Expected,
    Finding,
    plugin_names,
    run_checks,
)
from hydragnn_hpo.host_checks.host_probe import (
    HostFacts,
    ProbeRequest,
    host_id,
    join_answers,
    short,
)
from hydragnn_hpo.launching import step_environment
from hydragnn_hpo.launching.transports import find_scheduler, list_schedulers
from hydragnn_hpo.launching.transports.agent_software import import_path


@dataclass(frozen=True)
class JobHosts:
    """Hosts to examine, and how a command gets onto each of them."""

    kind: str
    """Name of the scheduler; ``here`` without one."""
    hosts: tuple[str, ...]
    job: str = ""
    """Id of the scheduler's job; empty outside of one."""
    down: Mapping[str, str] = field(default_factory=dict)
    """Host -> state, of hosts on which nothing can start."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Host -> number of devices that the scheduler allocated; empty if it does not report them."""

    @property
    def in_job(self) -> bool:
        """Whether a scheduler has given the hosts."""
        return self.kind != "here"

    @property
    def able(self) -> tuple[str, ...]:
        """Hosts on which something can start.

        Returns:
            Their names, in the order of ``hosts``.
        """
        return tuple(host for host in self.hosts if host not in self.down)

    def argv(self, request: ProbeRequest, flags: Sequence[str] = ()) -> list[str]:
        """Return the command that probes every host.

        Args:
            request: what to collect.
            flags: flags of the profile for steps of agents.
        """
        probe = [sys.executable, "-P", "-m", "hydragnn_hpo.host_checks.host_probe"]
        return self.step(self.able, [*probe, msgspec.json.encode(request).decode()], flags)

    def step(
        self, hosts: Sequence[str], command: Sequence[str], flags: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs ``command`` once on each of some hosts.

        Args:
            hosts: hosts of the job.
            command: program and arguments to run there.
            flags: further flags for the step.
        """
        if not self.in_job:
            return list(command)
        return find_scheduler(self.kind).step_argv(self.job, hosts, command, flags)


def find_job_hosts(environment: Mapping[str, str], most: int = 0) -> JobHosts:
    """Find the hosts of the job that this process runs in; outside of a job, this host.

    Args:
        environment: environment of this process, which names the job.
        most: most hosts to examine; 0: all.

    Raises:
        ConfigError: the hosts of a job cannot be read, or it is not running.
        JobError: a scheduler does not answer.
    """
    for scheduler in list_schedulers():
        if held := scheduler.find_hosts(environment, most):
            return JobHosts(scheduler.name, *held)
    return JobHosts("here", (host_id(),))


def scheduler_finding(hosts: JobHosts, present: Sequence[str], profile: ProfileConfig) -> Finding:
    """Return a finding about the schedulers that are installed here.

    Args:
        hosts: hosts to examine.
        present: schedulers whose commands are on PATH.
        profile: profile of the machine.
    """
    shown = ", ".join(present) or "none"
    batch = profile.batch
    wanted = find_scheduler(batch.scheduler).title if batch.has_scheduler else ""
    if hosts.in_job:
        return Finding("scheduler", "ok", f"{shown}, job {hosts.job}")
    if wanted and wanted not in present:
        cure = f"Log in to {profile.name}, or name another --machine."
        return Finding("scheduler", "wrong", shown, wanted, cure)
    if wanted:
        return Finding("scheduler", "ok", f"{shown}, outside of any job", wanted)
    if present:
        cure = "To use it, name a profile: --machine generic-slurm (see machine list)."
        return Finding("scheduler", "ok", f"{shown}, not asked for", cure=cure)
    return Finding("scheduler", "ok", "none: trials run on this computer, nothing is lost")


_ENDING_SECONDS = 3.0
"""Time for a process to end by itself, after SIGTERM, and after SIGKILL."""

_LONGEST = 1 << 24
"""Most bytes without a line end: longer output is no answer."""


@dataclass
class Answers:
    """Facts of the hosts that answered; for the others, why no answer came."""

    facts: dict[str, HostFacts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    asked_at: float = 0.0
    answered_at: float = 0.0


def collect_answers(
    argv: Sequence[str],
    hosts: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
) -> Answers:
    """Run the command that probes all hosts; late hosts are reported as missing.

    Args:
        argv: command that prints the answers of all hosts.
        hosts: hosts that should answer.
        environment: environment of the command.
        seconds: time limit for all answers.
    """
    answers = Answers(asked_at=time.time())
    deadline = time.monotonic() + seconds
    known = {short(host): host for host in hosts}
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(environment),
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout:
            for text in join_answers(_lines(process.stdout.fileno(), deadline)):
                if (facts := _parse_answer(text)) and (host := known.get(short(facts.host))):
                    answers.facts[host] = msgspec.structs.replace(facts, host=host)
                if len(answers.facts) == len(known):
                    break
        answers.answered_at = time.time()
        code = _end(process, patient=time.monotonic() < deadline)
        why = _reason(code, stderr, seconds)
    answers.missing = {host: why for host in hosts if host not in answers.facts}
    return answers


def _parse_answer(text: str) -> HostFacts | None:
    """Return the facts that a text encodes; None if it is no answer."""
    try:
        return msgspec.json.decode(text, type=HostFacts)
    except (msgspec.DecodeError, RecursionError):
        return None


def _lines(descriptor: int, deadline: float) -> Iterator[str]:
    """Yield the lines of a pipe as they arrive, until it closes or the deadline passes."""
    waiting = b""
    while len(waiting) < _LONGEST:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *whole, waiting = (waiting + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def _end(process: subprocess.Popen[bytes], *, patient: bool) -> int | None:
    """End the process; return its exit code, or None if it had to be killed.

    A process that cannot be killed is left to the scheduler, which ends it with the job.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_ENDING_SECONDS if patient else 0.0)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
            break
    return None


def _reason(code: int | None, stderr: IO[bytes], seconds: float) -> str:
    """Return why some hosts did not answer."""
    if code is None:
        return f"no answer within {seconds:.0f} s"
    stderr.seek(0)
    lines = stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
    return f"ended with code {code} before it answered" + (f": {errors[-1]}" if errors else "")


MOST_SAMPLED = 16
"""Most hosts that import torch and use the shared folder: thousands at once would overload it."""

ALL_SECONDS = 180.0
"""Time limit of all answers together."""


def choose_sample(hosts: Sequence[str]) -> tuple[str, ...]:
    """Choose hosts for the probes that must not run on all of them at once.

    Returns:
        At most ``MOST_SAMPLED`` hosts, evenly spread over all.
    """
    if len(hosts) <= MOST_SAMPLED:
        return tuple(hosts)
    return tuple(hosts[index * len(hosts) // MOST_SAMPLED] for index in range(MOST_SAMPLED))


def make_request(
    profile: ProfileConfig, hosts: JobHosts, folder: Path, environment: Mapping[str, str]
) -> ProbeRequest:
    """Return the request for some hosts; other hosts than the profile's collect fewer facts.

    Args:
        profile: description of the hosts.
        hosts: hosts to probe.
        folder: folder that all of them should see.
        environment: environment of the ranks, which names their network plugin.
    """
    on_site = is_on_site(profile, hosts)
    return ProbeRequest(
        folder=str(folder.absolute()),
        scratch=(profile.scratch or "") if on_site else "",
        interfaces=profile.interfaces if on_site else (),
        libraries=plugin_names(profile, environment) if on_site else (),
        sample=choose_sample(hosts.able),
    )


def is_on_site(profile: ProfileConfig, hosts: JobHosts) -> bool:
    """Check whether these hosts are the ones that the profile describes."""
    return hosts.in_job or not profile.batch.has_scheduler


def examine_hosts(
    profile: ProfileConfig,
    hosts: JobHosts,
    *,
    folder: Path,
    environment: Mapping[str, str],
    machine: str | None = None,
) -> list[Finding]:
    """Probe all hosts and return the findings of all checks.

    Args:
        profile: description of the hosts.
        hosts: the hosts, and how to reach them.
        folder: folder that all of them should see; temporary files are written there.
        environment: environment of the probes.
        machine: name or path of the profile, as a command line needs it.

    Raises:
        StorageError: the folder cannot be written here.
    """
    present = [each.title for each in list_schedulers() if shutil.which(each.query_program)]
    findings = [scheduler_finding(hosts, present, profile)]
    with temporary_folder(folder) as shared:
        request = make_request(profile, hosts, shared, environment)
        answers = _probe_hosts(profile, hosts, request, environment, findings)
    down = {host: f"is {state}" for host, state in hosts.down.items()}
    expected = Expected(
        profile=profile,
        request=request,
        hosts=hosts.hosts,
        in_job=hosts.in_job,
        missing=down | answers.missing,
        asked_at=answers.asked_at,
        answered_at=answers.answered_at,
        given=hosts.given,
    )
    if is_on_site(profile, hosts):
        return findings + run_checks(answers.facts, expected)
    unseen = _unseen_hosts(profile, machine or profile.name)
    return [*findings, unseen, *run_checks(answers.facts, expected, OFF_SITE)]


def _unseen_hosts(profile: ProfileConfig, machine: str) -> Finding:
    start = find_scheduler(profile.batch.scheduler).interactive
    command = f"hydragnn-hpo doctor --machine {shlex.quote(machine)}"
    cure = f"Run it inside a job: {start} ..., then {command}."
    return Finding(f"hosts of {profile.name}", "unknown", "not seen from here", cure=cure)


def _probe_hosts(
    profile: ProfileConfig,
    hosts: JobHosts,
    request: ProbeRequest,
    environment: Mapping[str, str],
    findings: list[Finding],
) -> Answers:
    """Probe all hosts in a step with the flags of agents; if no host answers, without flags."""
    takes_flags = hosts.in_job and find_scheduler(hosts.kind).step_flags
    flags = profile.step.agents if takes_flags else ()
    base = environment if not hosts.in_job else step_environment(environment, float("inf"))
    more = {**base, **import_path(environment)}
    collect = partial(collect_answers, hosts=hosts.able, environment=more, seconds=ALL_SECONDS)
    answers = collect(hosts.argv(request, flags))
    if not flags or answers.facts:
        return answers
    why = next(iter(answers.missing.values()), "")
    finding = Finding(
        check="options of steps",
        state="wrong",
        observed=f"{' '.join(flags)}: {why}",
        expected="a step on all hosts",
        cure="Some host has not what they ask for (see below), or the job was not given it: "
        "ask for it when you submit, or change step.agents of the profile.",
    )
    findings.append(finding)
    return collect(hosts.argv(request))


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a folder that all hosts use, and remove it afterwards."""
    made = folder / f".doctor-{os.getpid()}-{secrets.token_hex(3)}"
    with storage(made):
        made.mkdir(mode=0o700, parents=True)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
