"""Interface of all backends: slots to run on, jobs to run, events that report progress."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from hydragnn_hpo.rank_requests import Request

JOBS: dict[str, str] = {
    "train": "hydragnn_hpo.training.trial:rank_main",
    "build": "hydragnn_hpo.data.store_builder:job_main",
    "embed": "hydragnn_hpo.model.trunks.embed:job_main",
    "ensemble": "hydragnn_hpo.ensemble_build.build:job_main",
    "command": "hydragnn_hpo.launching.command_rank:rank_main",
    "probe": "hydragnn_hpo.training.allreduce_probe:job_main",
}
"""Kind of job -> ``module:function`` that a forked rank calls with the job's ``spec``.

The function returns the exit code of its rank, 0 on success.
"""

PRELOAD: tuple[str, ...] = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "hydragnn_hpo.training.trial",
    "hydragnn_hpo.ensemble_build.build",
    "hydragnn_hpo.kernels.preload",
)
"""Modules that a fork server imports once, so that its forked ranks need not.

DDP and the optimizers import ``torch._dynamo`` at their first use, which takes 0.8 s in each rank.
"""


@dataclass(frozen=True)
class Slot:
    """The share of a host that one rank occupies."""

    host: str
    """Id of the host, as its agent reports it; never a network address."""

    index: int
    """Number of the slot on its host."""

    cores: tuple[int, ...]
    """CPU cores that its rank is bound to; if empty, the rank is not bound."""

    device: str
    """Torch device of the rank, such as ``cpu`` or ``cuda:0``."""

    visible: str = ""
    """The one device that its rank may see, as a value of ``variable``; empty on a CPU and where a
    launcher selects the device."""

    memory_mb: int = 0
    """Memory limit of its rank in MiB, where slots share a device or a host; 0: no limit."""

    variable: str = "CUDA_VISIBLE_DEVICES"
    """Environment variable set to ``visible``; the others of this kind are unset."""

    @property
    def name(self) -> str:
        """Return ``host:index``."""
        return f"{self.host}:{self.index}"


@dataclass(frozen=True)
class Job:
    """One function, called in ``width`` ranks that can reach each other."""

    id: str
    kind: str
    width: int
    spec: dict[str, Any]
    """Argument of the function in every rank; must be valid JSON."""

    log: Path
    """File to which the stdout and stderr of all ranks are appended."""

    watch: Path | None
    """A ``metrics.jsonl``; each complete line added during the job becomes a ``record`` event."""

    slots: tuple[Slot, ...]
    """One per rank, in rank order."""

    other_hosts: tuple[str, ...] = ()
    """Further hosts on which ranks have child processes; if one is lost, the job ends."""

    def __post_init__(self) -> None:
        assert len(self.slots) == self.width >= 1, f"{self.id}: {self.width} ranks, {self.slots}"


ABSENT_SECONDS = 45.0
"""Hosts without an agent are reported this long after the first agent has come."""

EventKind = Literal[
    "ready",
    "started",
    "record",
    "ended",
    "zygote_lost",
    "agent_lost",
    "host_joined",
    "host_leaving",
    "host_lost",
    "hosts_absent",
    "adopted",
    "counters",
]


@dataclass(frozen=True)
class Event:
    """Something that happened, in the order in which it happened to its job.

    Kinds, with the keys of their ``data``; events about one host name it in ``host``:

    ``ready``: a fork server has imported its modules; ``import_seconds``, ``threads``.
    ``started``: all ranks were forked; ``pids``.
    ``record``: one line of the watched file; ``data`` is its JSON object.
    ``ended``: all ranks have ended and all records were reported; ``codes`` in rank order
    (negative: a signal), ``signal_sent`` (whether the backend signalled a rank), ``first`` (the
    rank that ended first, or None), ``error`` (a sentence if the job could not run, else None),
    ``away`` (its hosts that were lost, where the backend knows them).
    Each ``Backend.start`` is followed by exactly one ``ended``.
    ``zygote_lost``, ``agent_lost``: a fork server or an agent was lost and is replaced; jobs with
    ranks there end too. ``error`` is a sentence if no fork server can start because a module of
    ``preload`` cannot be imported.
    ``host_joined``: the slots of a host can be used from now on; ``slots`` (their names).
    ``host_leaving``: a host of another allocation leaves when that ends, or one of ours before
    ``Backend.ends_at``; ``ends_at`` (seconds since the epoch).
    ``host_lost``: the slots of a host can no longer be used, and no rank on it is alive;
    ``reason``. Jobs with ranks on the host have ended before this event.
    ``hosts_absent``: hosts that have never had an agent although others have, reported once;
    ``hosts`` (host -> end of a sentence that begins with it), ``of`` (number of all own hosts),
    ``waiting`` (number of those whose agents may still come).
    ``adopted``: a job that a lost controller started is still running; this controller owns it.
    ``counters``: readings of a host's counters, with the fields of ``counters.CounterSample``;
    only if ``machine.sample_seconds`` is not 0.
    """

    kind: EventKind
    job: str | None
    time: float
    """Seconds since the epoch."""

    data: dict[str, Any]


class Backend(Protocol):
    """Runs jobs on slots and reports how they end; only one thread may use it."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts that are available now.

        Returns:
            Hosts that are close in the network are adjacent; slots of a host by their numbers.
        """

    @property
    def settled(self) -> bool:
        """Check whether each job of a lost controller was reported as ``adopted`` or has ended.

        Until then ``start`` accepts jobs but does not run them.
        """

    @property
    def ends_at(self) -> float:
        """When the allocation of the hosts ends, in seconds since the epoch; infinity if never."""

    @property
    def foreign_hosts(self) -> frozenset[str]:
        """Hosts of other allocations; they and their jobs continue when this allocation ends."""

    def start(self, job: Job) -> None:
        """Run a job as soon as its fork servers are ready; return at once."""

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Send SIGTERM to a job, and SIGKILL after ``grace`` seconds; ignore ended jobs."""

    def ask(self, job_id: str, request: Request) -> None:
        """Send a request to rank 0 of a job, which acts on it when its ranks next synchronize.

        Requests to ended jobs are ignored.
        """

    def poll(self, timeout: float) -> list[Event]:
        """Return new events; wait at most ``timeout`` seconds for the first."""

    def close(self) -> None:
        """End all jobs and all processes that the backend started."""

    def __enter__(self) -> Self:
        """Return the backend, for a ``with`` statement."""

    def __exit__(self, *error: object) -> None:
        """Close the backend."""
