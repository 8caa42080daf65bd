"""An examination: ask all hosts at once, judge what they answer."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.doctor.diagnose import CHECKS, OFF_SITE, diagnose
from hydragnn_hpo.launching.doctor.expected import Expected, plugin_names
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.doctor.gather import Gathered, gather
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.place import (
    Place,
    find_schedulers,
    flags_finding,
    not_seen,
    scheduler_finding,
)
from hydragnn_hpo.launching.staging.software import import_path

MOST_SAMPLED = 16
"""Hosts that import torch and work in the shared folder: thousands at once would be an outage."""

PART_SECONDS = 25.0
ALL_SECONDS = 180.0


@dataclass(frozen=True)
class Examination:
    """What came out."""

    place: Place
    findings: tuple[Finding, ...]


def sample_of(hosts: Sequence[str], most: int = MOST_SAMPLED) -> tuple[str, ...]:
    """Choose hosts evenly from all."""
    if len(hosts) <= most:
        return tuple(hosts)
    return tuple(hosts[index * len(hosts) // most] for index in range(most))


def order_for(
    profile: ProfileConfig, place: Place, folder: Path, environment: Mapping[str, str]
) -> Order:
    """Give the order for the hosts of a place; off the profile's site it asks for less."""
    on_site = is_on_site(profile, place)
    return Order(
        name=secrets.token_hex(4),
        folder=str(folder.absolute()),
        scratch=(profile.scratch or "") if on_site else "",
        slots=profile.layout.cores_of_slot if on_site else (),
        interfaces=profile.interfaces if on_site else (),
        libraries=plugin_names(profile, dict(environment)) if on_site else (),
        sample=sample_of(place.able),
        seconds=PART_SECONDS,
    )


def is_on_site(profile: ProfileConfig, place: Place) -> bool:
    """Say whether the hosts at hand are those that the profile describes."""
    return place.kind != "here" or profile.batch.scheduler == "none"


def examine(
    profile: ProfileConfig,
    place: Place,
    *,
    folder: Path,
    environment: Mapping[str, str],
    seconds: float = ALL_SECONDS,
) -> Examination:
    """Look at all hosts of a place.

    Args:
        profile: what they should be.
        place: they, and how to reach them.
        folder: which all of them should see; something is written there and removed.
        environment: for what is started there.
        seconds: after which nobody is waited for.

    Raises:
        StorageError: the folder cannot be written here.
    """
    on_site = is_on_site(profile, place)
    with meeting_place(folder) as met:
        order = order_for(profile, place, met, environment)
        ask = partial(
            gather,
            hosts=place.able,
            environment=place.environment(environment) | import_path(environment),
            seconds=seconds,
        )
        flags = profile.step.agents if place.kind == "slurm" else ()
        gathered = ask(place.argv(order, flags))
        findings = [scheduler_finding(place, find_schedulers(), profile)]
        if flags and not gathered.answers:
            findings.append(flags_finding(flags, next(iter(gathered.missing.values()), "")))
            gathered = ask(place.argv(order))
    findings += [] if on_site else [not_seen(profile)]
    expected = _expected(profile, place, order, gathered)
    findings += diagnose(gathered.answers, expected, CHECKS if on_site else OFF_SITE)
    return Examination(place, tuple(findings))


def _expected(profile: ProfileConfig, place: Place, order: Order, gathered: Gathered) -> Expected:
    down = {host: f"is {state}" for host, state in place.down.items()}
    return Expected(
        profile=profile,
        order=order,
        hosts=place.hosts,
        missing=down | gathered.missing,
        asked_at=gathered.asked_at,
        answered_at=gathered.answered_at,
        given=place.given,
        here=place.kind == "here",
    )


@contextmanager
def meeting_place(folder: Path) -> Iterator[Path]:
    """Make a folder where hosts meet, and remove it."""
    made = folder / f".doctor-{os.getpid()}-{secrets.token_hex(3)}"
    with storage(made):
        made.mkdir(mode=0o700, parents=True)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
