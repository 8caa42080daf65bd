"""What agents and the controller say to each other, and how the host's own processes do.

Every message is a MessagePack array behind its type's name, decoded into one of these types: what
does not fit is refused by ``link.py`` before anything acts on it. A change of meaning raises
``VERSION``: agents are of the controller's own software, and others are sent away.

A conversation begins with ``Hello``, answered by ``Welcome``, and then ``HostSlots``: the host has
joined. From then on orders go out and news come in, in any order; what a broken connection may have
lost is settled by the next ``Hello`` and ``Welcome``, which say what each side knows.
"""

from typing import Any, Literal

from msgspec import Struct, field

from hydragnn_hpo.launching.counters import CounterSample
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.slots import Layout
from hydragnn_hpo.rank_requests import Request

VERSION = 1

_HEARTBEATS = 3
"""Heartbeats of an agent per lease."""

_MOST_BETWEEN_HEARTBEATS = 5.0
"""Seconds, however long a lease is: the answer also says what the controller has read."""


def heartbeat_seconds(lease_seconds: float) -> float:
    """Return the time between two heartbeats of an agent."""
    return min(lease_seconds / _HEARTBEATS, _MOST_BETWEEN_HEARTBEATS)


class ProtocolError(Exception):
    """A peer sent what makes no sense; its connection is given up."""


class Rendezvous(Struct, frozen=True):
    """Where the ranks of a job meet."""

    address: str
    """Of the host of rank 0; empty where ranks know it already."""

    port: int
    interface: str
    """The network interface that gloo uses on this host; empty if unknown."""


class RankStart(Struct, frozen=True):
    """Environment, cores and folders of one rank."""

    rank: int
    slot: int
    """Number of its slot on its host."""

    cores: tuple[int, ...]
    """What it is bound to; empty leaves it as it is."""

    environment: dict[str, str]
    without: tuple[str, ...]
    """Names that it must not inherit."""

    folders: dict[str, str]
    """Variables that name folders of its own, to be filled in and made on its host, see
    ``scratch_folders.py``."""


class HostProfile(Struct, frozen=True):
    """What the machine's profile says of its hosts."""

    interfaces: tuple[str, ...] = ()
    """Network interfaces on which hosts meet: the first that is there."""

    scratch: str | None = None
    """The fastest place for files of a host's own, with variables such as ``$USER`` in it."""

    layout: Layout = Layout()


class KnownJob(Struct, frozen=True):
    """A job that an agent has, as a controller must know it that did not start it."""

    job: str
    slots: tuple[str, ...]
    """Names of the slots of all its ranks, in rank order."""

    meet: Rendezvous
    watch: str | None
    """The file whose records are forwarded; only where rank 0 is."""

    first_offset: int
    """Bytes of that file when the job began."""

    pids: tuple[int | None, ...]
    """Of the ranks on this host, in rank order."""

    forked: bool
    """Whether all ranks on this host were forked."""

    other_hosts: tuple[str, ...] = ()
    """Hosts without ranks on which the job has processes."""


# -- agent to controller ---------------------------------------------------------------


class Hello(Struct, frozen=True, tag=True, array_like=True):
    """The first message of a conversation."""

    protocol: int
    version: str
    """Of hydragnn-hpo."""

    run: str
    """Tag of the run, see ``process_control.run_tag``."""

    host: str
    life: str
    """Names this agent process and all it starts."""

    jobs: tuple[KnownJob, ...] = ()


class HostSlots(Struct, frozen=True, tag=True, array_like=True):
    """What there is to run on, once processes of an earlier life are gone."""

    slots: tuple[Slot, ...]
    address: str
    interface: str
    ends_at: float | None = None
    """When the allocation of the host ends, in seconds since the epoch; None: never."""


class Heartbeat(Struct, frozen=True, tag=True, array_like=True):
    """The agent lives; answered by ``Lease``."""

    at: float
    """The agent's monotonic time."""


class ForkServerReady(Struct, frozen=True, tag=True, array_like=True):
    """Ranks start warm from now on."""

    import_seconds: float
    threads: int


class ForkServerLost(Struct, frozen=True, tag=True, array_like=True):
    """The fork server ended, and all ranks with it; another one is started."""

    code: int
    error: str | None
    """A sentence when none can start."""


class PortTaken(Struct, frozen=True, tag=True, array_like=True):
    """Another process listens at the port of the job; nothing was started."""

    job: str


class JobStarted(Struct, frozen=True, tag=True, array_like=True):
    """All ranks of a job on this host were forked."""

    job: str
    pids: tuple[int, ...]


class NewRecords(Struct, frozen=True, tag=True, array_like=True):
    """Lines of the watched file of a job."""

    job: str
    records: list[dict[str, Any]]
    offset: int
    """Bytes of the file up to here."""


class RankEnded(Struct, frozen=True, tag=True, array_like=True):
    """The first rank of a job here ended, while it has ranks on other hosts too."""

    job: str
    rank: int
    code: int


class JobEnded(Struct, frozen=True, tag=True, array_like=True):
    """All ranks of a job on this host are gone; repeated in each conversation until ``Forget``."""

    job: str
    codes: dict[int, int]
    """Exit code of each rank; negative ones are signals."""

    signal_sent: bool
    first: int | None
    error: str | None
    cut_off: bool = False
    """Whether the host was cut off from its controller, and ended its ranks for that."""


class CounterReport(Struct, frozen=True, tag=True, array_like=True):
    """What the host's counters say of the last seconds."""

    sample: CounterSample


class Farewell(Struct, frozen=True, tag=True, array_like=True):
    """The agent has ended all it had started, and goes."""


class HostsLeave(Struct, frozen=True, tag=True, array_like=True):
    """The hosts of a foreign allocation leave sooner than their agents know.

    Sent by whoever holds it, in a conversation of its own without ``Hello``.
    """

    hosts: tuple[str, ...]
    ends_at: float
    """In seconds since the epoch."""


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
    """The terms on which an agent works for this controller."""

    lease_seconds: float
    preload: tuple[str, ...]
    slots: int | None
    """How many to offer, 0: all; None: the controller knows them."""

    lanes: int
    """Slots that share one GPU."""

    profile: HostProfile
    sample_seconds: float = 0.0
    """Between two samples of the host's counters; 0: none."""

    fenced: bool = True
    """Whether ranks may run only as long as the controller answers; else as their agent lives."""

    epoch: int = 0
    """Number of the controller."""

    keep: dict[str, int | None] = field(default_factory=dict)
    """Jobs to go on with, and the offset from which to forward their records; others end."""


class Lease(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a heartbeat: ranks may run until ``at`` + ``lease_seconds``."""

    at: float
    """As the heartbeat said."""

    received: int
    """Messages of this conversation that the controller has read."""


class StartJob(Struct, frozen=True, tag=True, array_like=True):
    """Run the ranks of a job that belong to this host."""

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
    """Hosts without ranks on which the job has processes."""

    @property
    def has_peers(self) -> bool:
        """Check whether ranks of the job live on other hosts too."""
        return len(self.ranks) < len(self.slots)


class StopJob(Struct, frozen=True, tag=True, array_like=True):
    """SIGTERM now, SIGKILL after ``grace`` seconds."""

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
    """The end of the job was read."""

    job: str


class DropJob(Struct, frozen=True, tag=True, array_like=True):
    """End the job at once and report nothing of it."""

    job: str


class Goodbye(Struct, frozen=True, tag=True, array_like=True):
    """End everything and go."""

    reason: str = ""


class Restart(Struct, frozen=True, tag=True, array_like=True):
    """Messages were lost, or this controller does not know you: say ``Hello`` again."""


JobOrder = StopJob | PeerEnded | AskRank
"""Orders about a running job, repeated to agents that may have missed them."""

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
    """Agent to fork server: show that you live."""


ForkOrder = ForkRanks | SignalJob | AskRank | Ping


class ImportFailed(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent: a module of ``preload`` cannot be imported."""

    error: str


class RankForked(Struct, frozen=True, tag=True, array_like=True):
    """Fork server to agent."""

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
"""How far the ranks of a job on one host are, as the controller knows it."""
