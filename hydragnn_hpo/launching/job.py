"""What every backend speaks: slots to run on, jobs to run, events that tell how it goes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from hydragnn_hpo.rank_requests import Request

JOBS: dict[str, str] = {
    "train": "hydragnn_hpo.training.trial:rank_main",
    "build": "hydragnn_hpo.data.store_builder:job_main",
    "ensemble": "hydragnn_hpo.ensemble.build:job_main",
    "predict": "hydragnn_hpo.ensemble.multi_rank:rank_main",
    "command": "hydragnn_hpo.launching.command_rank:rank_main",
    "probe": "hydragnn_hpo.training.allreduce_probe:job_main",
}
"""Kind of job -> ``module:function`` that a forked rank calls with the job's ``spec``.

The function returns the exit code of its rank, 0 when all went well.
"""

PRELOAD: tuple[str, ...] = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "hydragnn_hpo.training.trial",
    "hydragnn_hpo.ensemble.build",
)
"""What a fork server imports once, so that its ranks start warm.

DDP and the optimizers import ``torch._dynamo`` at their first use: 0.8 s in every rank.
"""


@dataclass(frozen=True)
class Slot:
    """What one rank occupies."""

    host: str
    """The id of the agent that owns the slot, never an address."""

    index: int
    """Number of the slot on its host."""

    cores: tuple[int, ...]
    """The CPU cores its rank is bound to; empty leaves it unbound."""

    device: str
    """What the rank calls its device: ``cpu`` or ``cuda:0``."""

    visible: str = ""
    """The one device its rank may see, as ``variable`` says it; empty on a CPU, and where a
    launcher chooses it."""

    memory_mb: int = 0
    """Memory that its rank may take where several share a device or a host; 0: no limit."""

    variable: str = "CUDA_VISIBLE_DEVICES"
    """The environment variable that says ``visible``; others like it are unset."""

    @property
    def name(self) -> str:
        """Return ``host:index``."""
        return f"{self.host}:{self.index}"


@dataclass(frozen=True)
class Job:
    """One function, called in ``width`` ranks that find each other."""

    id: str
    kind: str
    width: int
    spec: dict[str, Any]
    """Handed to every rank as it is; JSON."""

    log: Path
    """Where all ranks' stdout and stderr are appended."""

    watch: Path | None
    """A ``metrics.jsonl``; each whole line added while the job runs becomes a record."""

    slots: tuple[Slot, ...]
    """One per rank, in rank order."""

    other_hosts: tuple[str, ...] = ()
    """Further hosts on which a rank has processes of its own: the job ends when one is lost."""

    def __post_init__(self) -> None:
        assert len(self.slots) == self.width >= 1, f"{self.id}: {self.width} ranks, {self.slots}"


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
    "adopted",
    "counters",
]


@dataclass(frozen=True)
class Event:
    """Something that happened, in the order in which it happened to its job.

    ``ready``: a fork server is warm; ``import_seconds``, ``threads``.
    ``started``: all ranks were forked; ``pids``.
    ``record``: one line of the watched file, as it was written.
    ``ended``: all ranks are gone and all records were told; ``codes`` in rank order
    (negative: the signal), ``signal_sent`` (whether we signalled any of them), ``first``
    (the rank that ended first, or None), ``error`` (a sentence when the job could not run), and
    ``away`` (hosts of it that went away, where the backend knows).
    Exactly one follows every ``Backend.start``.
    ``zygote_lost``, ``agent_lost``: jobs that had ranks end too, and a new one is started;
    ``error`` is a sentence when no fork server can start (a preload that cannot be imported).
    ``host_joined``: its slots can be used from now on; ``host``, ``slots`` (their names).
    ``host_leaving``: it belongs to another allocation, which ends at ``ends_at`` (seconds since
    the epoch); ``host``.
    ``host_lost``: they cannot any more, and none of its ranks is alive; ``host``, ``reason``.
    Jobs that had ranks there end too, before it.
    ``adopted``: a job that a lost controller had started runs on, and is this one's now.
    ``counters``: what a host took in some seconds; ``host``, and the fields of
    ``counters.CounterSample``. Only where ``machine.sample_seconds`` asks for it.
    Whatever concerns one host names it in ``host``.
    """

    kind: EventKind
    job: str | None
    time: float
    """Seconds since the epoch."""

    data: dict[str, Any]


class Backend(Protocol):
    """Runs jobs on slots and reports how they end; one controller thread uses it."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of all hosts that are there now.

        Returns:
            Neighbours in the network side by side, and the slots of a host by their numbers.
        """

    @property
    def settled(self) -> bool:
        """Check whether all jobs of a lost controller were reported as ``adopted`` or are gone.

        Until then jobs are taken on, but none is started.
        """

    @property
    def ends_at(self) -> float:
        """When the allocation of the hosts ends, in seconds since the epoch; infinity if never."""

    @property
    def foreign_hosts(self) -> frozenset[str]:
        """Hosts of other allocations, which stay when ours ends, with what runs there."""

    def start(self, job: Job) -> None:
        """Run a job as soon as a fork server is warm; returns at once."""

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Ask a job to end by SIGTERM, force it after ``grace`` seconds; ended ones are ignored."""

    def ask(self, job_id: str, request: Request) -> None:
        """Ask rank 0 of a job for something; it obeys when its ranks next agree on a step.

        Ended jobs are ignored.
        """

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened; wait at most ``timeout`` seconds for something to happen."""

    def close(self) -> None:
        """End everything; no process is left."""

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""

    def __exit__(self, *error: object) -> None:
        """Close it."""
