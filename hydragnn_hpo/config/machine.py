"""Machines as data: what price, planner and simulation must know of one. Read by ``placement``."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hydragnn_hpo.config.harmless import Line, Title
from hydragnn_hpo.config.inheriting import inherited
from hydragnn_hpo.config.lint import doubtful, wrong
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.site import SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.shipped import find, shipped

PROFILES = "launch/machines"
"""Where profiles that ship lie."""

HERE = "workstation"
"""The profile of this computer."""


class LinkConfig(Config):
    """How ranks reach each other. Read by ``placement.cost.sending``."""

    latency_seconds: NonNegativeFloat
    """What one message costs however short it is."""

    bytes_per_second: PositiveFloat
    """Bytes per second of long ones, per rank within a host, per host between hosts."""

    peak_bytes_per_second: PositiveFloat | None = None
    """What the wires carry at best, by their data sheet: shown beside what is measured."""


class LimitConfig(Config):
    """The longest allocation of a size. Read by ``submit`` and ``plan``."""

    hosts: PositiveInt
    """For allocations of up to so many hosts."""

    wall_hours: PositiveFloat
    """Hours that they may ask for."""


class ProfileConfig(SiteConfig):
    """A machine. Read by ``placement.cost``, by the planner, its simulation, and ``launching``.

    Speeds are first guesses: what runs corrects them by a factor. Ratios between them matter more.
    """

    extends: Line | None = None
    """Profile that this one changes: a file beside it, a shipped name, or a path. Tables merge key
    by key, lists are replaced; nothing is left to do for it once a profile is read."""

    name: Title
    """Name of the machine."""

    description: Line
    """One line for tables."""

    source: Annotated[tuple[Line, ...], Field(min_length=1)]
    """Where its numbers come from, and which of them are guesses."""

    checked: date
    """When they were last compared with their source."""

    device: Literal["cpu", "gpu"]
    """What a slot computes on."""

    hosts: NonNegativeInt = 0
    """Hosts of the whole machine; 0: as many as there are."""

    slots_per_host: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Slots of a host; 0: as many as the backend finds."""

    slot_order: tuple[NonNegativeInt, ...] = ()
    """Slots of a host, neighbours side by side, so that any power of two of them in a row (from a
    multiple of itself on) is close; rising if left out."""

    memory_gb: NonNegativeFloat = 0.0
    """Memory of a slot's device, or a slot's part of its host, 10^9 bytes; 0: not known."""

    process_gb: NonNegativeFloat = 0.0
    """What a rank takes of it, as it measures itself, before it trains, 10^9 bytes."""

    flops_per_second: PositiveFloat
    """Operations per second that a slot sustains in the matrix products of a GNN, fp32."""

    bytes_per_second: PositiveFloat
    """Bytes per second that it moves between its memory and its arithmetic."""

    step_seconds: NonNegativeFloat
    """What an optimizer step costs beside arithmetic and memory."""

    layer_seconds: NonNegativeFloat
    """What each round of message passing in it adds: starting many small operations."""

    within: LinkConfig
    """Between ranks of one host."""

    between: LinkConfig
    """Between hosts."""

    start_seconds: NonNegativeFloat
    """From the placement of a trial to its first step, in a rank forked by a warm zygote."""

    cold_start_seconds: NonNegativeFloat
    """Until the agents of an allocation are there and their zygotes warm, once."""

    restart_seconds: NonNegativeFloat
    """What stopping a trial at a checkpoint and starting it again costs."""

    failures_per_host_hour: NonNegativeFloat = 0.0
    """Hosts that are lost, per host and hour."""

    hosts_per_group: PositiveInt = 1
    """Hosts that are close to each other in the network."""

    wall_hours: PositiveFloat | None = None
    """Longest allocation; no limit if left out."""

    limits: tuple[LimitConfig, ...] = ()
    """Shorter ones for fewer hosts, fewest first."""

    @model_validator(mode="after")
    def _order_names_every_slot(self) -> Self:
        if self.slot_order and sorted(self.slot_order) != list(range(self.slots_per_host)):
            raise ValueError(
                f"slot_order names slots {list(self.slot_order)}, the host has "
                f"{self.slots_per_host}: name each from 0 to {self.slots_per_host - 1} once."
            )
        return self

    @model_validator(mode="after")
    def _limits_rise(self) -> Self:
        sizes = [limit.hosts for limit in self.limits]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"limits are of {sizes} hosts: begin with the fewest, name each once.")
        return self

    def longest_hours(self, hosts: int) -> float | None:
        """Give the longest allocation of so many hosts, in hours; None without a limit."""
        fitting = (limit.wall_hours for limit in self.limits if hosts <= limit.hosts)
        return next(fitting, self.wall_hours)

    @property
    def memory_bytes(self) -> float:
        """Memory of a slot in bytes; infinity where it is not known."""
        return 1e9 * self.memory_gb or float("inf")


@dataclass(frozen=True)
class Profile:
    """A machine profile with where it is from."""

    config: ProfileConfig

    origins: dict[str, Path]
    """File of each value that is no default, by its dotted key."""

    files: tuple[Path, ...]
    """Its own file, then what it extends, and what that extends."""

    warnings: tuple[str, ...]
    """What is doubtful in it, a sentence each."""


def read_profile(argument: str | None = None) -> Profile:
    """Read a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    path = find(argument or HERE, PROFILES)
    found = inherited(path, PROFILES)
    config = parse(found.values, ProfileConfig, str(path))
    for sentence in wrong(config):
        raise ConfigError(f"{path}: {sentence}")
    return Profile(config, found.origins, found.files, tuple(doubtful(config)))


def find_profile(argument: str | None = None) -> ProfileConfig:
    """Give a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    return read_profile(argument).config


def located(named: str, folder: Path) -> str:
    """Give a profile's name so that it is found from anywhere: a shipped one's, or a whole path.

    Args:
        named: a shipped name or a path.
        folder: where a path is looked for first.

    Raises:
        ConfigError: there is no such profile.
    """
    beside = folder / named
    path = (beside if beside.is_file() else find(named, PROFILES)).resolve()
    return path.stem if path.parent == shipped(PROFILES).resolve() else str(path)


def known_profiles() -> tuple[str, ...]:
    """Give the names of the profiles that ship."""
    return tuple(sorted(path.stem for path in shipped(PROFILES).glob("*.toml")))
