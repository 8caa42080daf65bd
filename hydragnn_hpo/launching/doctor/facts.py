"""What a probe answers, read strictly: it comes from another host, perhaps of another version."""

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Facts(BaseModel):
    """Part of an answer; what it does not know is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class System(Facts):
    """Cores, memory and limits."""

    cores: int
    allowed: str
    memory_mb: int
    kernel: str
    files: int
    """Open files that can be allowed; -1: no limit. So are the next two, in bytes."""
    core_bytes: int
    locked_bytes: int
    shm_mb: int


class Binding(Facts):
    """Cores that a process got which was bound to a slot's."""

    masks: tuple[str, ...]


class Devices(Facts):
    """As the driver shows them to a process."""

    seen: int
    memory_mb: int


class Interface(Facts):
    """One of the fabric's."""

    address: str | None = None
    up: bool


class Network(Facts):
    """Interfaces of the host."""

    known: dict[str, str]
    fabric: dict[str, Interface]


class Libraries(Facts):
    """What could be loaded, and why others could not."""

    loaded: str
    tried: dict[str, str]


class Scratch(Facts):
    """The host's own disk; speeds in bytes per second."""

    path: str
    problem: str
    ours: bool = True
    free_mb: int = 0
    filesystem: str = "unknown"
    write: float | None = None
    read: float | None = None


class Shared(Facts):
    """The folder that all hosts see; the last five of hosts of the sample only."""

    path: str
    problem: str
    filesystem: str = "unknown"
    free_mb: int = 0
    won: tuple[int, ...] | None = None
    rename: bool | None = None
    sync_seconds: float | None = None
    ahead_seconds: float | None = None
    locks: str | None = None


class Software(Facts):
    """Versions, and variables whose names tell no secret."""

    python: str
    executable: str
    package: str
    version: str
    torch_at: str
    torch_filesystem: str
    environment: dict[str, str]


class Torch(Facts):
    """How long an import took."""

    seconds: float | None = None
    version: str = ""
    problem: str = ""


class HostFacts(Facts):
    """All that one host answered."""

    host: str = Field(min_length=1, max_length=255)
    clock: float
    errors: dict[str, str] = {}
    """Part -> why it is missing."""
    system: System | None = None
    binding: Binding | None = None
    devices: Devices | None = None
    network: Network | None = None
    libraries: Libraries | None = None
    scratch: Scratch | None = None
    shared: Shared | None = None
    software: Software | None = None
    torch: Torch | None = None


def parse_answer(text: str) -> HostFacts | None:
    """Read what a host answered; None where it is no answer."""
    try:
        return HostFacts.model_validate_json(text)
    except ValidationError:
        return None
