"""Machine profiles: properties of a machine, how ranks start there, ``extends``, ``[machine]``.

No shell command is built from a value. In addition, the string types here refuse characters that
would be harmful in a generated script: line ends, quotes, substitutions.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hydragnn_hpo.config.machine_checks import BackendName, cores_of, find_doubts, find_errors
from hydragnn_hpo.config.path_templates import one_line, place
from hydragnn_hpo.config.schema import Config, parse_config, read_toml
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.resources import find_resource, resource_path
from hydragnn_hpo.sanitize import quote

if TYPE_CHECKING:  # a profile needs no campaign, whose schemas take 35 ms to import
    from hydragnn_hpo.config.campaign_config import MachineConfig

PROFILES = "launch/machines"
"""Folder of the shipped profiles."""

HERE = "workstation"
"""Name of the profile of this computer."""

EXTENDS = "extends"

MAX_EXTENDED = 20
"""Most files that a profile extends, one after the other."""
"""Key that names the profile on which a file is based."""


# -- strings that do no harm ---------------------------------------------------------------


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{quote(text)} is no {what}.")
        return text

    return AfterValidator(check)


def _literal(text: str) -> str:
    if re.search(r"[$`]", one_line(text)):
        raise ValueError(
            f"{quote(text)} holds $ or a backquote, which nothing fills in: write the value itself."
        )
    return text


def _core_list(text: str) -> str:
    cores_of(text)
    return text


Line = Annotated[str, AfterValidator(one_line)]
"""Any text of one line."""

Place = Annotated[str, AfterValidator(place)]
"""An absolute path in which ``fill_path`` fills in variables."""

CoreList = Annotated[str, AfterValidator(_core_list)]
"""Cores as in ``1-7,65-71``."""

Variable = Annotated[
    str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "name of a variable: use letters, digits and _")
]
"""Name of an environment variable."""

Plain = Annotated[str, AfterValidator(_literal)]
"""Value of an environment variable, as it stands."""

Environment = dict[Variable, Plain]
"""Variables and their values."""

Title = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "name: use letters, digits, . _ and -")
]
"""Name of a machine."""

Interface = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,14}", "network interface: write one such as hsn0"),
]
"""Name of a network interface; Linux allows 15 characters."""

Module = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "environment module: write one such as rocm/7.1.1"),
]
"""Name of an environment module, with its version or without."""

Option = Annotated[
    str,
    _matching(
        r"--?[A-Za-z0-9][A-Za-z0-9_=:,.+/%@&|*()\[\]!^~{}-]*",
        "option: write one such as --gpus-per-node=8 or -c7",
    ),
]
"""One argument of an argv that begins with ``-`` and has no spaces."""

Directive = Annotated[
    str,
    _matching(
        r"--?[A-Za-z0-9][A-Za-z0-9 _=:,.+/%@&|*()\[\]!^~-]*",
        "directive: write one such as --partition=batch or -l place=scatter",
    ),
]
"""What follows ``#SBATCH`` or ``#PBS``: an option, perhaps with a value after a space."""

MemoryRequest = Annotated[
    str,
    _matching(r"([0-9]+[KMGT]?)?", "amount of memory: write 0 for all of it, or one such as 240G"),
]
"""Memory of a host, as Slurm's ``--mem`` reads it."""

Visible = Literal[
    "", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
]
"""Environment variables that select the devices a process may use."""


# -- how a machine is used -----------------------------------------------------------------


class LayoutConfig(Config):
    """Cores, device and network interface of each slot. Read by ``launching.slots``, ``doctor``."""

    cores: NonNegativeInt = 0
    """Physical cores of a host; 0: as many as there are."""

    reserved: CoreList = ""
    """Cores that the system reserves, such as ``0,8,16``."""

    cores_of_slot: tuple[CoreList, ...] = ()
    """Cores of each slot, near its device; equal shares of all cores if left out."""

    device_of_slot: tuple[NonNegativeInt, ...] = ()
    """Device index of each slot; the index of the slot if left out."""

    numa_of_slot: tuple[NonNegativeInt, ...] = ()
    """NUMA domain of each slot's device."""

    nic_of_slot: tuple[Interface, ...] = ()
    """Network interface nearest to each slot's device."""


class RankConfig(Config):
    """Environment of a rank. Read by ``launching.rank_environment``."""

    accelerator: Literal["", "cpu", "cuda", "xpu"] = ""
    """Device type in torch (AMD GPUs are ``cuda`` as well); detected on each host if left out."""

    visible: Visible = ""
    """Variable that selects a rank's device; all other such variables are unset. Chosen by the
    detected devices if left out."""

    environment: Environment = {}
    """Variables set in every rank."""

    one_host: Environment = {}
    """Variables set in addition if all ranks of a trial are on one host."""

    many_hosts: Environment = {}
    """Variables set in addition if the ranks of a trial are on several hosts."""

    folders: Environment = {}
    """Variables whose value is a folder for each rank. ``{scratch}``, ``{trial}``, ``{host}`` and
    ``{slot}`` in it are replaced, and the folder is created."""

    wrapper: Line | None = None
    """Shell script that becomes the program of each rank that a launcher starts
    (``command.launcher``): a shipped name (``launch/rank/...``) or a path."""


class StepConfig(Config):
    """Further options of ``srun`` or ``mpiexec``.

    They follow the options that hydragnn-hpo sets and override them.
    """

    agents: tuple[Option, ...] = ()
    """Options of the single ``srun`` or ``mpiexec`` that starts an agent on each host."""

    trials: tuple[Option, ...] = ()
    """Options of the ``srun`` or ``mpiexec`` that starts the ranks of a command
    (``command.launcher``). Each rank can access its whole host and binds itself to the cores and
    the device of its slot."""


class BatchConfig(Config):
    """How a batch job is written. Read by ``launching.batch_script``."""

    scheduler: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")] = "none"
    """Batch scheduler of the machine: ``slurm``, ``pbs``, one of another package, or ``none``."""

    directives: tuple[Directive, ...] = ()
    """Further ``#SBATCH`` or ``#PBS`` directives; those for hosts, time, account and queue are
    added."""

    queue: Directive | None = None
    """Default partition, queue or QOS, as a directive: ``--partition=batch``."""

    account_needed: bool = False
    """Whether the scheduler refuses jobs without an account."""

    memory: MemoryRequest = "0"
    """Memory of each host that a Slurm job asks for (``--mem``): ``0`` is all of it; empty asks for
    nothing, for sites that refuse such a request. ``directives`` about memory go before it."""

    modules: tuple[Module, ...] = ()
    """Environment modules to load, in this order."""

    environment: Environment = {}
    """Variables exported in the batch job before any program starts."""

    pack_from: NonNegativeInt = 0
    """Number of hosts from which ``submit`` by default packs the software and unpacks it on their
    disks, as imports by so many hosts would overload a shared file system. 0: only with
    ``--pack``."""

    drain_seconds: PositiveInt = 300
    """Seconds before the end of a job at which the scheduler signals it, so that trials can write
    checkpoints."""

    @property
    def has_scheduler(self) -> bool:
        """Whether the machine takes batch jobs."""
        return self.scheduler != "none"


class ContainerConfig(Config):
    """How ranks run inside a container image. Read by ``launching.transports``."""

    command: tuple[Line, ...] = ("apptainer", "exec")
    """Command in front of the image and the program."""

    flags: tuple[Line, ...] = ()
    """Further options of the command, such as ``--rocm``, ``--nv`` and bind mounts."""


class SiteConfig(Config):
    """How a machine is used. These parts of a profile do not affect prices."""

    backend: BackendName = "local"
    """``machine.backend`` of campaigns on this machine that do not set it."""

    interfaces: tuple[Interface, ...] = ()
    """Network interfaces of the fabric; ranks of several hosts communicate over the first that
    exists."""

    scratch: Place | None = None
    """Fastest local folder of a host; variables such as ``$USER`` are replaced on the host."""

    layout: LayoutConfig = LayoutConfig()
    """Cores, devices and network interfaces of one host."""

    rank: RankConfig = RankConfig()
    """Environment of ranks."""

    step: StepConfig = StepConfig()
    """Options of ``srun`` or ``mpiexec``."""

    batch: BatchConfig = BatchConfig()
    """Batch jobs."""

    container: ContainerConfig = ContainerConfig()
    """Container images."""


class LinkConfig(Config):
    """Latency and bandwidth between ranks. Read by ``placement.price``."""

    latency_seconds: NonNegativeFloat
    """Latency of the shortest message, in seconds."""

    bytes_per_second: PositiveFloat
    """Bandwidth for long messages in bytes per second: per rank within a host, per host between
    hosts."""

    peak_bytes_per_second: PositiveFloat | None = None
    """Peak bandwidth by the data sheet, shown next to the measured one."""


class LimitConfig(Config):
    """The longest allocation of a size. Read by ``submit`` and ``plan``."""

    hosts: PositiveInt
    """Largest allocation, in hosts, that this limit applies to."""

    wall_hours: PositiveFloat
    """Longest allocation of up to this many hosts, in hours."""


class ProfileConfig(SiteConfig):
    """A machine. Read by ``placement.price``, ``campaign.dispatch`` and ``launching``.

    Speeds are first guesses, which measurements correct by a factor; their ratios matter more.
    """

    extends: Line | None = None
    """Profile on which this one is based: a file in the same folder, a shipped name, or a path.
    Tables are merged key by key, lists are replaced; ``false`` removes a value."""

    name: Title
    """Name of the machine."""

    description: Line
    """One line for tables."""

    source: Annotated[tuple[Line, ...], Field(min_length=1)]
    """Sources of the numbers, and which of them are guesses."""

    checked: date
    """Date on which the numbers were last compared with their source."""

    device: Literal["cpu", "gpu"]
    """Kind of device of a slot."""

    hosts: NonNegativeInt = 0
    """Number of hosts of the whole machine; 0: not known."""

    slots_per_host: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of slots of a host; 0: as many as the backend detects."""

    slot_order: tuple[NonNegativeInt, ...] = ()
    """Slots of a host, ordered so that close ones are neighbours: each aligned pair, each aligned
    four, and so on, should be well connected. Ascending if left out."""

    memory_gb: NonNegativeFloat = 0.0
    """Memory of a slot's device, or a slot's share of its host, in 10^9 bytes; 0: not known."""

    process_gb: NonNegativeFloat = 0.0
    """Memory of a rank before it trains, as the rank measures it, in 10^9 bytes."""

    flops_per_second: PositiveFloat
    """Operations per second that a slot sustains in the matrix products of a GNN, fp32."""

    bytes_per_second: PositiveFloat
    """Memory bandwidth of a slot, in bytes per second."""

    step_seconds: NonNegativeFloat
    """Overhead of an optimizer step beyond arithmetic and memory, in seconds."""

    layer_seconds: NonNegativeFloat
    """Overhead of each round of message passing in a step, in seconds: launches of many small
    operations."""

    within: LinkConfig
    """Link between ranks of one host."""

    between: LinkConfig
    """Link between hosts."""

    start_seconds: NonNegativeFloat
    """Seconds from the placement of a trial to its first step, in ranks forked by a warm zygote
    (a process that has imported torch)."""

    cold_start_seconds: NonNegativeFloat
    """Seconds from the start of an allocation until its agents are ready and their zygotes warm."""

    restart_seconds: NonNegativeFloat
    """Seconds to stop a trial at a checkpoint and start it again."""

    failures_per_host_hour: NonNegativeFloat = 0.0
    """Expected failures per host and hour."""

    hosts_per_group: PositiveInt = 1
    """Number of consecutive hosts that are close to each other in the network."""

    wall_hours: PositiveFloat | None = None
    """Longest allocation, in hours; no limit if left out."""

    limits: tuple[LimitConfig, ...] = ()
    """Shorter limits for smaller allocations, fewest hosts first."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for sentence in find_errors(self):
            raise ValueError(sentence)
        return self

    def longest_hours(self, hosts: int) -> float | None:
        """Return the longest allocation of ``hosts`` hosts, in hours; None without a limit."""
        fitting = (limit.wall_hours for limit in self.limits if hosts <= limit.hosts)
        return next(fitting, self.wall_hours)

    @property
    def memory_bytes(self) -> float:
        """Memory of a slot in bytes; infinity where it is not known."""
        return 1e9 * self.memory_gb or float("inf")


# -- reading profiles ----------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """A machine profile with the files that it comes from."""

    config: ProfileConfig

    origins: dict[str, Path]
    """File that sets each value, by dotted key; defaults are absent."""

    files: tuple[Path, ...]
    """The profile's file, then the chain of files that it extends."""

    warnings: tuple[str, ...]
    """Sentences on doubtful values."""


def read_profile(argument: str | None = None) -> Profile:
    """Read a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    path = find_resource(argument or HERE, PROFILES)
    chain = read_chain(path)
    values: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for file, own in reversed(chain):
        values = merge(values, own)
        origins |= {key: file for key, _ in flatten_values(own)}
    config = parse_config(values, ProfileConfig, str(path))
    kept = {key: origins[key] for key, _ in flatten_values(values) if key in origins}
    return Profile(config, kept, tuple(file for file, _ in chain), tuple(find_doubts(config)))


def read_chain(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Read a profile and the chain of profiles that it extends, without merging them.

    Returns:
        Path and values of each file, the profile itself first.

    Raises:
        ConfigError: a file is missing, is not TOML, or extends itself.
    """
    chain: list[tuple[Path, dict[str, Any]]] = []
    seen: set[Path] = {path.resolve()}
    following: Path | None = path
    while following is not None:
        current = following
        values = read_toml(following)
        named = values.pop(EXTENDS, None)
        chain.append((current, values))
        following = None if named is None else _find_extended(current, named)
        if following is not None and following.resolve() in seen:
            circle = " -> ".join(str(file) for file in (*(file for file, _ in chain), following))
            raise ConfigError(f"{path}: {EXTENDS} runs in a circle: {circle}: break it.")
        if following is not None and len(seen) > MAX_EXTENDED:
            raise ConfigError(
                f"{path}: {EXTENDS} more than {MAX_EXTENDED} files, one after the other: put them "
                "together."
            )
        if following is not None:
            seen.add(following.resolve())
    return chain


def _find_extended(file: Path, named: Any) -> Path:
    """Find the profile that a file extends: in its folder, then a shipped one, then a path.

    The file itself is skipped, so it may have the same name as the profile that it extends.
    """
    if not isinstance(named, str) or not named or not named.isprintable():
        raise ConfigError(f"{file}: '{EXTENDS}' is {named!r}: write the name of a profile or file.")
    for path in (file.parent / named, file.parent / f"{named}.toml"):
        if path.is_file() and not path.samefile(file):
            return path
    try:
        return find_resource(named, PROFILES)
    except ConfigError as error:
        raise ConfigError(f"{file}: {EXTENDS}: {error}") from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Override the values of one table by those of another: tables key by key, lists as a whole.

    TOML has no null, so ``false`` removes a value, unless that value is a boolean itself.

    Args:
        below: the table that is overridden; it stays as it is.
        above: the values that count.

    Returns:
        A new table.
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


def flatten_values(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf; an empty table counts as a leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_values(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def find_profile(argument: str | None = None) -> ProfileConfig:
    """Return a machine profile by its shipped name or its path; this computer's if left out.

    Raises:
        ConfigError: there is no such profile, or it is wrong.
    """
    return read_profile(argument).config


def locate_profile(named: str, folder: Path) -> str:
    """Return a name of a profile that is valid in any folder: a shipped name or an absolute path.

    Args:
        named: a shipped name or a path.
        folder: folder in which a path is searched first.

    Raises:
        ConfigError: there is no such profile.
    """
    own = folder / named
    path = (own if own.is_file() else find_resource(named, PROFILES)).resolve()
    return path.stem if path.parent == resource_path(PROFILES).resolve() else str(path)


def known_profiles() -> tuple[str, ...]:
    """List the shipped profiles.

    Returns:
        Names, sorted.
    """
    return tuple(sorted(path.stem for path in resource_path(PROFILES).glob("*.toml")))


# -- a campaign's [machine] on one ------------------------------------------------------------

OF_ONE_MACHINE = ("backend", "interface", "address")
"""Keys whose values are valid for one machine only."""

FILES = ("pack", "container")
"""Keys whose values are paths of files."""

WORKING_FOLDER = Path()
"""Folder to which paths on the command line are relative."""


def resolve_machine(
    machine: "MachineConfig",
    overrides: Mapping[str, str | int | float | None],
    folder: Path = WORKING_FOLDER,
) -> "MachineConfig":
    """Complete ``[machine]``: overrides take precedence, then the campaign, then the profile.

    Paths of a user's profile, a pack or an image become absolute, so that a run can be resumed from
    any folder.

    Args:
        machine: ``[machine]`` of the campaign.
        overrides: values from the command line by key; None leaves a key as it is. A ``profile``
            that differs from the campaign's drops the campaign's ``backend``, ``interface`` and
            ``address``.
        folder: folder of the campaign's file, in which its profile is searched first.

    Raises:
        ConfigError: there is no such profile, or a value is wrong.
    """
    own = machine.model_dump(exclude_unset=True)
    wanted: dict[str, Any] = {k: value for k, value in overrides.items() if value is not None}
    if "profile" in wanted:
        wanted["profile"] = locate_profile(wanted["profile"], WORKING_FOLDER)
        if not _is_same_profile(own.pop("profile", None), folder, wanted["profile"]):
            own = {key: value for key, value in own.items() if key not in OF_ONE_MACHINE}
    elif own.get("profile") is not None:
        own["profile"] = locate_profile(own["profile"], folder)
    for named, base in ((own, folder), (wanted, WORKING_FOLDER)):
        named |= {key: str((base / named[key]).absolute()) for key in FILES if named.get(key)}
    values = own | wanted
    if values.get("profile") is not None:
        values = {"backend": find_profile(values["profile"]).backend} | values
    return parse_config(values, type(machine), "[machine]")


def _is_same_profile(named: str | None, folder: Path, profile: str) -> bool:
    """Check whether a campaign's name refers to a located profile; False if it is not found."""
    try:
        return named is not None and locate_profile(named, folder) == profile
    except ConfigError:
        return False
