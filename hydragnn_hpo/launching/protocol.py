"""Messages between the controller and its agents, and between an agent and its fork server.

Each message is a MessagePack array: the name of its type, then the fields. ``link.py`` decodes it
into that type and rejects anything that does not match. ``VERSION`` increases whenever a message
changes its meaning; the controller rejects agents of another version.

A conversation begins with ``Hello`` from the agent, ``Welcome`` from the controller and
``HostSlots`` from the agent; then the host has joined. From then on orders and news may be sent in
any order. The next ``Hello`` and ``Welcome`` make up for messages that a broken connection lost:
they state what each side knows.
"""

from typing import Any, Literal

from msgspec import Struct, field

from hydragnn_hpo.energy_counters import CounterSample
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.slots import Layout
from hydragnn_hpo.rank_requests import Request

VERSION = 1

_HEARTBEATS = 3
"""Number of heartbeats that an agent sends per lease."""

_MOST_BETWEEN_HEARTBEATS = 5.0
"""Upper limit in seconds for long leases: each answer also acknowledges messages."""


def heartbeat_seconds(lease_seconds: float) -> float:
    """Return the time between two heartbeats of an agent, in seconds."""
    return min(lease_seconds / _HEARTBEATS, _MOST_BETWEEN_HEARTBEATS)


class ProtocolError(Exception):
    """A peer sent an inconsistent message; its conversation is ended."""


class Rendezvous(Struct, frozen=True):
    """Address and port at which the ranks of a job connect to each other."""

    address: str
    """Address of the host of rank 0; empty if the ranks' launcher provides it."""

    port: int
    interface: str
    """The network interface that gloo uses on this host; empty if unknown."""


class RankStart(Struct, frozen=True):
    """Slot, cores, environment and folders of one rank."""

    rank: int
    slot: int
    """Number of its slot on its host."""

    cores: tuple[int, ...]
    """CPU cores to bind it to; if empty, its binding is not changed."""

    environment: dict[str, str]
    without: tuple[str, ...]
    """Names of environment variables that it must not inherit."""

    folders: dict[str, str]
    """Environment variables and the path templates of its private folders, which are created on its
    host; see ``scratch_folders.py``."""


class HostProfile(Struct, frozen=True):
    """What the machine's profile specifies for each host."""

    interfaces: tuple[str, ...] = ()
    """Network interfaces between hosts; the first one that exists on a host is used."""

    scratch: str | None = None
    """Fastest local folder of a host; may contain variables such as ``$USER``."""

    layout: Layout = Layout()


class KnownJob(Struct, frozen=True):
    """A job of an agent, described for a controller that did not start it."""

    job: str
    slots: tuple[str, ...]
    """Names of the slots of all its ranks, in rank order."""

    meet: Rendezvous
    watch: str | None
    """File whose records are forwarded; None except on the host of rank 0."""

    first_offset: int
    """Size of that file in bytes when the job began."""

    pids: tuple[int | None, ...]
    """Process ids of the ranks on this host, in rank order; None for a rank not forked."""

    forked: bool
    """Whether all ranks on this host were forked."""

    other_hosts: tuple[str, ...] = ()
    """Hosts without ranks on which the job has child processes."""


# -- agent to controller ---------------------------------------------------------------


class Hello(Struct, frozen=True, tag=True, array_like=True):
    """The first message of a conversation."""

    protocol: int
    version: str
    """Version of hydragnn-hpo."""

    run: str
    """Tag of the run, see ``process_control.run_tag``."""

    host: str
    life: str
    """Unique name of this agent process, which also marks all processes it starts."""

    jobs: tuple[KnownJob, ...] = ()


class HostSlots(Struct, frozen=True, tag=True, array_like=True):
    """Slots of the host; sent once all processes of an earlier agent there have ended."""

    slots: tuple[Slot, ...]
    address: str
    interface: str
    ends_at: float | None = None
    """When the allocation of the host ends, in seconds since the epoch; None if never."""


class Heartbeat(Struct, frozen=True, tag=True, array_like=True):
    """The agent is alive; the controller answers with ``Lease``."""

    at: float
    """Monotonic time of the agent, in seconds."""


class ForkServerReady(Struct, frozen=True, tag=True, array_like=True):
    """The fork server has imported its modules and can fork ranks."""

    import_seconds: float
    threads: int


class ForkServerLost(Struct, frozen=True, tag=True, array_like=True):
    """The fork server ended, and all ranks with it; the agent starts another one."""

    code: int
    error: str | None
    """A sentence if no fork server can start, else None."""


class PortTaken(Struct, frozen=True, tag=True, array_like=True):
    """Another process listens on the rendezvous port of the job; no rank was started."""

    job: str


class JobStarted(Struct, frozen=True, tag=True, array_like=True):
    """All ranks of a job on this host were forked."""

    job: str
    pids: tuple[int, ...]


class NewRecords(Struct, frozen=True, tag=True, array_like=True):
    """New lines of the watched file of a job."""

    job: str
    records: list[dict[str, Any]]
    offset: int
    """Position in the file after these lines, in bytes."""


class RankEnded(Struct, frozen=True, tag=True, array_like=True):
    """A rank of a job was the first on this host to end; the job has ranks on other hosts."""

    job: str
    rank: int
    code: int


class JobEnded(Struct, frozen=True, tag=True, array_like=True):
    """All ranks of a job on this host ended; sent in each conversation until ``ForgetJob``."""

    job: str
    codes: dict[int, int]
    """Exit code by rank; a negative code is a signal."""

    signal_sent: bool
    first: int | None
    error: str | None
    cut_off: bool = False
    """Whether the agent ended the ranks because its controller did not answer."""


class CounterReport(Struct, frozen=True, tag=True, array_like=True):
    """A sample of the host's counters."""

    sample: CounterSample


class Farewell(Struct, frozen=True, tag=True, array_like=True):
    """The agent has ended everything that it started, and exits."""


class HostsLeave(Struct, frozen=True, tag=True, array_like=True):
    """Hosts of another allocation leave before the end that their agents reported.

    The process that holds that allocation sends it in a separate conversation, without ``Hello``.
    """

    hosts: tuple[str, ...]
    ends_at: float
    """When they leave, in seconds since the epoch."""


News = (
    Hello
    | HostSlots
    | Heartbeat
    | ForkServerReady
    | ForkServerLost
    | PortTaken
    | JobStarted
    | NewRecords
    | RankEnded
    | JobEnded
    | CounterReport
    | Farewell
    | HostsLeave
)


# -- controller to agent ---------------------------------------------------------------


class Welcome(Struct, frozen=True, tag=True, array_like=True):
    """The controller accepts an agent; settings that it must use."""

    lease_seconds: float
    preload: tuple[str, ...]
    slots: int | None
    """Number of slots to offer, 0: all; None: the controller knows the slots already."""

    lanes: int
    """Number of slots that share one GPU."""

    profile: HostProfile
    sample_seconds: float = 0.0
    """Seconds between two samples of the host's counters; 0: no samples."""

    fenced: bool = True
    """Whether ranks must end when the controller stops answering; else only with their agent."""

    epoch: int = 0
    """Number of the controller."""

    keep: dict[str, int | None] = field(default_factory=dict)
    """Jobs to continue, with the byte offset to forward their records from; others must end."""


class Lease(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a heartbeat: ranks may run until ``at`` + ``lease_seconds``."""

    at: float
    """``Heartbeat.at`` of the heartbeat that is answered."""

    received: int
    """Number of messages in this conversation that the controller has read."""


class StartJob(Struct, frozen=True, tag=True, array_like=True):
    """Start the ranks of a job that are assigned to this host."""

    job: str
    target: str
    spec: dict[str, Any]
    log: str
    watch: str | None
    slots: tuple[str, ...]
    """Names of the slots of all ranks, in rank order."""

    meet: Rendezvous
    ranks: tuple[RankStart, ...]
    other_hosts: tuple[str, ...] = ()
    """Hosts without ranks on which the job has child processes."""

    @property
    def has_peers(self) -> bool:
        """Check whether the job also has ranks on other hosts."""
        return len(self.ranks) < len(self.slots)


class StopJob(Struct, frozen=True, tag=True, array_like=True):
    """Send SIGTERM to the ranks of a job, and SIGKILL after ``grace`` seconds."""

    job: str
    grace: float


class PeerEnded(Struct, frozen=True, tag=True, array_like=True):
    """A rank of the job on another host ended."""

    job: str
    code: int


class AskRank(Struct, frozen=True, tag=True, array_like=True):
    """A request for rank 0 of a job, see ``rank_requests.py``."""

    job: str
    request: Request


class ForgetJob(Struct, frozen=True, tag=True, array_like=True):
    """The controller has processed ``JobEnded``; the agent may forget the job."""

    job: str


class DropJob(Struct, frozen=True, tag=True, array_like=True):
    """Kill the ranks of a job now; send no more news about it."""

    job: str


class Goodbye(Struct, frozen=True, tag=True, array_like=True):
    """End everything, send ``Farewell`` and exit."""

    reason: str = ""


class Restart(Struct, frozen=True, tag=True, array_like=True):
    """Messages were lost, or the controller does not know the agent: send ``Hello`` again."""


JobOrder = StopJob | PeerEnded | AskRank
"""Orders about a running job; repeated to an agent that may have lost them."""

Order = Welcome | Lease | StartJob | JobOrder | ForgetJob | DropJob | Goodbye | Restart


# -- agent and fork server -------------------------------------------------------------


class ForkRanks(Struct, frozen=True, tag=True, array_like=True):
    """Agent to fork server: fork the ranks of a job."""

    start: StartJob
    lease_seconds: float


class SignalJob(Struct, frozen=True, tag=True, array_like=True):
    """Agent to fork server: signal the ranks of a job."""

    job: str
    number: int


class Ping(Struct, frozen=True, tag=True, array_like=True):
    """Agent to fork server: answer with ``Pong`` to show that it is alive."""


ForkOrder = ForkRanks | SignalJob | AskRank | Ping


class ImportFailed(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent: a module of ``preload`` cannot be imported."""

    error: str


class RankForked(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent: a rank was forked."""

    job: str
    rank: int
    pid: int


class RankExit(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent: a rank ended, or could not be forked."""

    job: str
    rank: int
    code: int
    error: str | None = None


class Pong(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent: the answer to ``Ping``."""


ForkNews = ForkServerReady | ImportFailed | RankForked | RankExit | Pong

RankState = Literal["waiting", "sent", "started", "ended"]
"""State of the ranks of a job on one host, as far as the controller knows."""
