"""What a person asks of a batch system, checked against the machine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:  # the command line reads this module before it knows what is wanted
    from hydragnn_hpo.config import ProfileConfig

MOST_JOBS = 16
"""Jobs of a chain, if nobody says how many. Only one waits at a time, and what has nothing left to
do or to gain ends its chain, so this is a stop for what nobody foresaw."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+,=-]{0,127}")
"""Accounts, queues and numbers of jobs: what no directive and no argv can misunderstand."""


@dataclass(frozen=True)
class Order:
    """Batch jobs for one campaign."""

    name: str
    """Of the campaign."""

    hosts: int
    """Of each job."""

    seconds: int
    """Wall-time of each job."""

    account: str | None = None
    queue: str | None = None
    """Of the machine's profile if left out."""

    allocations: int = 1
    """Jobs that may run side by side, each with its own hosts."""

    jobs: int = MOST_JOBS
    """Jobs in a row, at most."""

    after: str | None = None
    """Job whose end the first one waits for."""

    @property
    def time(self) -> str:
        """Give the wall-time as schedulers write it."""
        minutes, seconds = divmod(self.seconds, 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def wall_seconds(text: str) -> int:
    """Read a wall-time written as H:MM or H:MM:SS.

    Raises:
        ConfigError: it is written otherwise, or is no time at all.
    """
    found = re.fullmatch(r"([0-9]{1,4}):([0-5][0-9])(?::([0-5][0-9]))?", text)
    seconds = 0
    if found:
        seconds = 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3] or 0)
    if seconds == 0:
        raise ConfigError(f"--time is '{text}': write hours and minutes, such as 2:00 or 0:30:00.")
    return seconds


def check_order(order: Order, profile: ProfileConfig, backend: str) -> None:
    """Refuse what the machine cannot give.

    Args:
        order: what is asked.
        profile: the machine's.
        backend: what runs the trials there.

    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    batch, machine = profile.batch, profile.name
    if batch.scheduler == "none":
        raise ConfigError(
            f"machine '{machine}' takes no batch jobs: use 'hydragnn-hpo run', or set "
            "batch.scheduler in its profile."
        )
    for option in ("account", "queue", "after"):
        value = getattr(order, option)
        if value is not None and not _WORD.fullmatch(value):
            raise ConfigError(f"--{option} is {value!r}: use letters, digits and _ . : @ + , = -.")
    if batch.account_needed and order.account is None:
        raise ConfigError(f"machine '{machine}' charges an account: name yours with --account.")
    _check_size(order, profile, backend)
    if order.seconds < 2 * batch.drain_seconds:
        raise ConfigError(
            f"--time is {order.time}, and trials leave checkpoints {batch.drain_seconds} s before "
            f"the end: ask for at least {math.ceil(2 * batch.drain_seconds / 60)} minutes, or lower"
            " batch.drain_seconds in the profile."
        )


def _check_size(order: Order, profile: ProfileConfig, backend: str) -> None:
    wanted = order.hosts * order.allocations
    if profile.hosts and wanted > profile.hosts:
        raise ConfigError(
            f"--hosts asks for {wanted} hosts, machine '{profile.name}' has {profile.hosts}: ask "
            "for fewer."
        )
    if backend == "local" and order.hosts > 1:
        raise ConfigError(
            f"--hosts is {order.hosts}, but the backend 'local' uses one host: ask for one, or "
            "choose another machine.backend."
        )
    if backend != "slurm" and order.allocations > 1:
        raise ConfigError(
            f"--allocations is {order.allocations}, but the hosts of several allocations find each "
            f"other by the backend 'slurm' alone, this is '{backend}': ask for one."
        )
    longest = profile.longest_hours(order.hosts)
    if longest is not None and order.seconds > 3600 * longest:
        raise ConfigError(
            f"--time is {order.time}, machine '{profile.name}' gives {order.hosts} hosts at most "
            f"{longest:g} hours: ask for less, the jobs of a chain follow each other."
        )
