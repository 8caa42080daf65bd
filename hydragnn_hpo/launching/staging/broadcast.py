"""A packed environment for every host of an allocation: sent by Slurm, or copied in slices."""

import json
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn_hpo.config import fill_path
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.slurm.allocation import Allocation, ask_again, unusable
from hydragnn_hpo.launching.slurm.slurm_transport import step_argv, step_environment
from hydragnn_hpo.launching.staging.pack import SUFFIXES, Pack
from hydragnn_hpo.launching.staging.software import ROOT, arrival_argv

logger = logging.getLogger(__name__)

PLACE = "/tmp"
"""Where it is unpacked on machines whose profile names no ``scratch``."""

AT_ONCE = 256
"""Hosts that read one archive from a shared file system at a time."""

_SECONDS = 1800.0
"""For sending it, and for a step that unpacks it: a busy host takes a minute."""

_OF_THE_HOST = "SLURMD_NODENAME"
"""A variable that differs from host to host: files that Slurm sends have one name for all."""

_LABEL = re.compile(r"^ *\d+: ?")


@dataclass(frozen=True)
class Delivery:
    """What goes where."""

    pack: Pack
    place: str
    """A folder of each host, see ``arrival.software_folder``."""
    logs: Path
    """An existing folder."""
    environment: Mapping[str, str]
    """Ours."""
    flags: tuple[str, ...] = ()
    """Of a machine's steps that start agents."""


def broadcast_argv(job: str, source: Path, target: str) -> list[str]:
    """Give the command by which Slurm sends a file to all hosts of a job."""
    return ["sbcast", "--force", f"--jobid={job}", str(source), target]


def broadcast_target(pack: Pack, place: str, environment: Mapping[str, str]) -> str | None:
    """Give where a file that Slurm sends lies on every host; None if it can send none.

    Raises:
        ConfigError: the place names a variable that is not set.
    """
    if _OF_THE_HOST in place or shutil.which("sbcast") is None:
        return None
    suffix = next(end for end in SUFFIXES if pack.path.name.endswith(end))
    return f"{fill_path(place, environment)}/.hydragnn-hpo-{pack.checksum[:16]}{suffix}"


def deliver(delivery: Delivery, allocation: Allocation) -> Allocation:
    """Have an environment unpacked on every host; blocks until that is done.

    Returns:
        The allocation without the hosts where it failed, of which a warning tells.

    Raises:
        ConfigError: the place is none.
        JobError: it failed on all hosts, or Slurm does not answer.
    """
    down = unusable(allocation.hosts, ask_again)
    failed = {host: f"is {state}" for host, state in down.items()}
    able = [host for host in allocation.hosts if host not in failed]
    target = broadcast_target(delivery.pack, delivery.place, delivery.environment)
    if target is not None and (why := _send(delivery, allocation.job, target)):
        logger.warning("%s; hosts copy %s themselves.", why, delivery.pack.path)
    told = {host: "" for host in able}
    if target is not None:
        told = _step(delivery, allocation, able, ("--broadcast", target))
    left = [host for host in able if target is None or told[host]]
    for first in range(0, len(left), AT_ONCE):
        some = left[first : first + AT_ONCE]
        told |= _step(delivery, allocation, some, ("--shared", str(delivery.pack.path)))
    failed |= {host: f"has no software: {why}" for host, why in told.items() if why}
    for host, why in failed.items():
        logger.warning("host %s is left out: it %s", host, why)
    kept = tuple(host for host in allocation.hosts if host not in failed)
    if not kept:
        host, why = next(iter(failed.items()))
        raise JobError(f"no host can be used: host {host} {why.rstrip('.')}.")
    return replace(allocation, hosts=kept)


def _send(delivery: Delivery, job: str, target: str) -> str:
    """Send the archive to all hosts; gives a sentence if that failed somewhere."""
    argv = broadcast_argv(job, delivery.pack.path, target)
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"sbcast gives no answer ({error})"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return f"sbcast failed (code {done.returncode}): {said[-1] if said else 'it says nothing'}"


def _step(
    delivery: Delivery, allocation: Allocation, hosts: Sequence[str], more: tuple[str, ...]
) -> dict[str, str]:
    """Unpack on some hosts at once; gives what went wrong on each, nothing where all is well."""
    if not hosts:
        return {}
    argv = arrival_argv("ready", delivery.pack, delivery.place, *more)
    environment = step_environment(delivery.environment, allocation.ends_at)
    log = delivery.logs / "software.log"
    with storage(log), log.open("ab") as said:
        process = subprocess.Popen(
            step_argv(allocation.job, hosts, argv, delivery.flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            answers, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # a step whose srun is killed ends about 2 s later
            answers, _ = process.communicate()
    told = dict(_answers(answers.decode(errors="replace")))
    silent = f"its step gave no answer (code {process.returncode}), see {log}"
    return {host: told.get(host, silent) for host in hosts}


def _answers(text: str) -> Iterator[tuple[str, str]]:
    """Give host and error of every line that is an answer; ``srun`` labels lines by task."""
    for line in text.splitlines():
        try:
            answer = json.loads(_LABEL.sub("", line))
            yield str(answer["host"]), str(answer["error"])
        except (ValueError, KeyError, TypeError):
            continue
