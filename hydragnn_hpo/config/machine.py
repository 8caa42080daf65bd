"""Machine profiles: what a machine is, ``extends``, and a campaign's ``[machine]`` on one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hydragnn_hpo.config.machine_checks import doubtful, wrong
from hydragnn_hpo.config.schema import Config, parse_config, read_toml
from hydragnn_hpo.config.site import Line, SiteConfig, Title
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.resources import find_resource, resource_path

if TYPE_CHECKING:  # a profile needs no campaign, whose schemas take 35 ms to import
    from hydragnn_hpo.config.campaign_config import MachineConfig

EXTENDS = "extends"
"""The key that names what a file changes."""


@dataclass(frozen=True)
class Inherited:
    """What a chain of files says together."""

    values: dict[str, Any]
    """Tables merged key by key, everything else as the nearest file says it."""

    origins: dict[str, Path]
    """File of each value, by its dotted key."""

    files: tuple[Path, ...]
    """The chain: the file that was asked for, then what each extends."""


def inherited(path: Path, folder: str) -> Inherited:
    """Read a file and all that it extends.

    Args:
        path: the file.
        folder: where files that ship lie.

    Raises:
        ConfigError: a file is missing, is no TOML, or extends itself.
    """
    chain: list[tuple[Path, dict[str, Any]]] = []
    following: Path | None = path
    while following is not None:
        current, values = following, read_toml(following)
        named = values.pop(EXTENDS, None)
        chain.append((current, values))
        following = None if named is None else _named(current, named, folder)
        seen = [file for file, _ in chain]
        if following is not None and following.resolve() in [file.resolve() for file in seen]:
            circle = " -> ".join(str(file) for file in (*seen, following))
            raise ConfigError(f"{path}: {EXTENDS} runs in a circle: {circle}: break it.")
    merged: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for file, values in reversed(chain):
        merged = merge(merged, values)
        origins |= dict.fromkeys(_leaves(values), file)
    kept = set(_leaves(merged))
    origins = {key: origins[key] for key in origins if key in kept}
    return Inherited(merged, origins, tuple(file for file, _ in chain))


def _named(file: Path, named: Any, folder: str) -> Path:
    """Find what a file extends: beside it first, then among what ships, then as a path.

    A file may have the name of what it extends.
    """
    if not isinstance(named, str) or not named or not named.isprintable():
        raise ConfigError(f"{file}: '{EXTENDS}' is {named!r}: write the name of a profile or file.")
    for beside in (file.parent / named, file.parent / f"{named}.toml"):
        if beside.is_file() and not beside.samefile(file):
            return beside
    try:
        return find_resource(named, folder)
    except ConfigError as error:
        raise ConfigError(f"{file}: {EXTENDS}: {error}") from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another: tables key by key, lists and values replace.

    ``false`` takes away what it lies over, unless that is a yes or no itself: TOML has no null.
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(under if isinstance(under, Mapping) else {}, value)
        elif value is False and key in merged and not isinstance(under, bool):
            del merged[key]
        else:
            merged[key] = value
    return merged


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


PROFILES = "launch/machines"
"""Where profiles that ship lie."""

HERE = "workstation"
"""The profile of this computer."""


class LinkConfig(Config):
    """How ranks reach each other. Read by ``placement.communication_cost``."""

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
    """A machine. Read by ``placement.price``, ``campaign.dispatch`` and ``launching``.

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
        """Return the longest allocation of so many hosts, in hours; None without a limit."""
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
    path = find_resource(argument or HERE, PROFILES)
    found = inherited(path, PROFILES)
    config = parse_config(found.values, ProfileConfig, str(path))
    for sentence in wrong(config):
        raise ConfigError(f"{path}: {sentence}")
    return Profile(config, found.origins, found.files, tuple(doubtful(config)))


def find_profile(argument: str | None = None) -> ProfileConfig:
    """Return a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    return read_profile(argument).config


def located(named: str, folder: Path) -> str:
    """Return a profile's name so that it is found from anywhere: a shipped one's, or a whole path.

    Args:
        named: a shipped name or a path.
        folder: where a path is looked for first.

    Raises:
        ConfigError: there is no such profile.
    """
    beside = folder / named
    path = (beside if beside.is_file() else find_resource(named, PROFILES)).resolve()
    return path.stem if path.parent == resource_path(PROFILES).resolve() else str(path)


def known_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that ship."""
    return tuple(sorted(path.stem for path in resource_path(PROFILES).glob("*.toml")))


OF_ONE_MACHINE = ("backend", "interface", "address")
"""Keys that another machine has values of its own for."""

FILES = ("pack", "container")
"""Keys that name a file."""

WORKING_FOLDER = Path()
"""The folder that names on the command line are looked up from."""


def resolve_machine(
    machine: "MachineConfig", asked: dict[str, Any], folder: Path = WORKING_FOLDER
) -> "MachineConfig":
    """Settle ``[machine]``: what was asked counts most, then the campaign, then the profile.

    A profile of the user's own, an archive or an image is named by its absolute path from here
    on: a run goes on from any folder.

    Args:
        machine: of the campaign.
        asked: values from the command line; ``profile`` among them changes the machine, and then
            the campaign's own ``backend``, ``interface`` and ``address`` do not count any more.
        folder: of the campaign's file: its profile is looked for beside it first.

    Raises:
        ConfigError: there is no such profile, or a value is wrong.
    """
    said = machine.model_dump(exclude_unset=True)
    wanted = {key: value for key, value in asked.items() if value is not None}
    if "profile" in wanted:
        wanted["profile"] = located(wanted["profile"], WORKING_FOLDER)
        if not _same(said.pop("profile", None), folder, wanted["profile"]):
            said = {key: value for key, value in said.items() if key not in OF_ONE_MACHINE}
    elif said.get("profile") is not None:
        said["profile"] = located(said["profile"], folder)
    for named, beside in ((said, folder), (wanted, WORKING_FOLDER)):
        named |= {key: str((beside / named[key]).absolute()) for key in FILES if named.get(key)}
    values = said | wanted
    if values.get("profile") is not None:
        values = {"backend": find_profile(values["profile"]).backend} | values
    return parse_config(values, type(machine), "[machine]")


def _same(named: str | None, folder: Path, asked: str) -> bool:
    """Whether a campaign means the machine that is asked for; it may mean one that is not here."""
    try:
        return named is not None and located(named, folder) == asked
    except ConfigError:
        return False
