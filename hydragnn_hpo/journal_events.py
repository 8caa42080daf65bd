"""The events of ``events.jsonl``, one type per kind; the string under a field documents it.

``campaign.journal`` writes and reads them. Reading checks no field: the types are for mypy and for
people. ``match event["event"]`` narrows ``JournalEvent`` to the type of a kind.

An event that is folded right after it was written may hold tuples where a journal that is read back
holds lists, hence ``Sequence``. NaN and infinity are written as null.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

SearchedValues = dict[str, bool | int | float | str]
"""Values of the active searched keys of a trial, by dotted key."""

Outcome = Literal["completed", "stopped", "failed", "cancelled", "interrupted"]
"""How an attempt ended. ``stopped``: at its rung; ``interrupted``: it will be started again."""


class _Event(TypedDict):
    """What every event holds; ``Journal.append`` adds it."""

    time: float
    """When it was written, in seconds since the epoch."""
    epoch: int
    """Number of the controller that wrote it: rises with each one that takes over."""


class _TrialEvent(_Event):
    trial: str
    """Name of the trial."""


class _HostEvent(_Event):
    host: str
    """Id of the host, as its agent chose it."""


class OpenedEvent(_Event):
    """A controller begins: its data are ready and its first hosts are there."""

    event: Literal["opened"]
    units: dict[str, str]
    """Unit of each target, by name; empty where trials are a command."""
    slots: NotRequired[Sequence[str]]
    """Slots of the hosts that are there, ``host:number``; older journals have none."""
    data: NotRequired[str | None]
    """Checksum of the graph stores; null where trials are a command."""
    software: NotRequired[dict[str, str]]
    """Versions of packages, Python and system on the controller's host, by name."""


class ZygoteReadyEvent(_HostEvent):
    """A host can fork ranks: its zygote has imported what they need."""

    event: Literal["zygote_ready"]
    import_seconds: float
    """Time that the imports took."""


class _ProcessEvent(_Event):
    host: str | None
    """Id of the host; null where it is not known."""


class ZygoteLostEvent(_ProcessEvent):
    """The zygote of a host died; a new one is started."""

    event: Literal["zygote_lost"]


class AgentLostEvent(_ProcessEvent):
    """The agent of a host died or stays silent."""

    event: Literal["agent_lost"]


class HostJoinedEvent(_HostEvent):
    """A host came, or came back."""

    event: Literal["host_joined"]
    slots: Sequence[str]
    """Its slots, ``host:number``."""


class HostLostEvent(_HostEvent):
    """A host is gone, with all that ran on it."""

    event: Literal["host_lost"]
    reason: str
    """A sentence for a person."""


class HostFailedEvent(_HostEvent):
    """A failure that counts against a host; two of different causes bring it into quarantine."""

    event: Literal["host_failed"]
    cause: str
    """Name of the trial that was lost there, or ``lost N`` for its own Nth loss."""


class QuarantinedEvent(_HostEvent):
    """A host gets no more trials."""

    event: Literal["quarantined"]
    reason: str
    """A sentence for a person."""


class HostWarnedEvent(_HostEvent):
    """The counters of a host look odd."""

    event: Literal["host_warned"]
    reason: str
    """A sentence for a person."""


class UnreadEvent(_HostEvent):
    """The energy counters of a host cannot be read; written once in a campaign."""

    event: Literal["unread"]
    reason: str
    """A sentence for a person."""


class ProposedEvent(_TrialEvent):
    """A new trial waits to be started."""

    event: Literal["proposed"]
    values: SearchedValues
    """Its searched values."""
    until: int
    """Epochs of its first rung, or of the last one for a trial with a parent."""
    parent: NotRequired[str]
    """Trial whose values it has with another seed; absent in trials of the search itself."""


class PlacedEvent(_TrialEvent):
    """An attempt is about to start on some slots."""

    event: Literal["placed"]
    attempt: int
    """Number of the attempt, from 1."""
    until: int
    """Epochs it is to reach: the trial's rung."""
    width: int
    """Number of ranks."""
    slots: Sequence[str]
    """Slots it holds until it ends, ``host:number``, by rank."""
    reason: str
    """Why the planner starts it here and now: a sentence for a person."""
    predicted_epoch_seconds: NotRequired[float | None]
    """Seconds per epoch that the cost model expects."""
    predicted_seconds: NotRequired[float | None]
    """The same for all epochs up to ``until``."""


class FirstStepEvent(_TrialEvent):
    """The ranks of an attempt have done their first optimizer step."""

    event: Literal["first_step"]
    seconds: float
    """Time since the attempt was placed, by the clock of its rank 0."""


class EpochEvent(_TrialEvent):
    """An epoch of a running attempt is done; each epoch of a trial counts once."""

    event: Literal["epoch"]
    reached: int
    """Epochs that the trial has trained so far."""
    objective: float | None
    """Validation objective of this epoch, in units of each target's spread."""
    best_objective: float | None
    """The lowest one so far."""
    seconds: float
    """Time of training and validation."""
    width: int
    """Number of ranks."""
    joules: NotRequired[float]
    """Energy of the epoch; absent where ranks measure none."""
    watched: NotRequired[float | None]
    """What the stopping rule compares; absent where it equals ``objective``."""


class CheckpointEvent(_TrialEvent):
    """A checkpoint is on the disk, further than any before it."""

    event: Literal["checkpoint"]
    reached: int
    """Epochs that were finished."""
    step: NotRequired[int]
    """Optimizer steps of the epoch after them; older journals have none."""


class AskedEvent(_TrialEvent):
    """A running attempt is asked to end; written before the request is sent."""

    event: Literal["asked"]
    reason: str
    """``paused``, ``walltime``, ``resized``, ``cancelled``, ``median`` or ``curve``."""
    width: NotRequired[int]
    """Ranks with which it goes on; of ``resized`` alone."""
    why: NotRequired[str]
    """A sentence of the planner or the stopping rule; absent for other reasons."""


class EndedEvent(_TrialEvent):
    """An attempt ended, or a trial that has none: refused values, or cancelled while it waits.

    Of a result it also holds every other number, by its name there; see ``outcome.read_outcome``.
    """

    event: Literal["ended"]
    outcome: Outcome
    """What became of it."""
    reason: NotRequired[str | None]
    """Why, see the table in the README of ``campaign``; null at the end of a rung."""
    attempt: NotRequired[int]
    """Number of the attempt; absent where there was none."""
    reached: NotRequired[int]
    """Epochs the trial has trained; present with a result alone."""
    objective: NotRequired[float | None]
    """Best validation objective, in units of each target's spread; of a result."""
    score: NotRequired[float | list[float] | None]
    """What the trial is ranked by, a list for several goals; null or absent without a result."""
    val_mae: NotRequired[dict[str, float | None]]
    """Validation MAE by head, in the head's unit; of a result."""
    best_epoch: NotRequired[int]
    """Epoch of the best objective; of a result."""
    parameters: NotRequired[int]
    """Number of the model's parameters; of a result."""
    train_seconds: NotRequired[float]
    """Seconds of training in all attempts of the trial; of a result."""
    peak_bytes: NotRequired[int]
    """Most memory that a rank took, in bytes; of a result."""
    micro_batches: NotRequired[int]
    """Pieces into which a step was split to fit into memory; of a result."""
    joules: NotRequired[float]
    """Energy, where a command's result names it."""
    message: NotRequired[str | None]
    """A sentence or a traceback for a person; of a failure or an interruption."""
    codes: NotRequired[Sequence[int]]
    """Exit codes by rank, negative ones are signals; of ``host_lost`` and ``stale``."""
    excused: NotRequired[bool]
    """True if it was lost with its controller, a host or a lease, else absent."""
    least: NotRequired[int]
    """Fewest ranks of the next attempt, after ``out_of_memory``; absent where unchanged."""
    whole: NotRequired[bool]
    """True if the next attempt needs its device alone, after ``out_of_memory``, else absent."""


class PromotedEvent(_Event):
    """Trials are sent on to another rung."""

    event: Literal["promoted"]
    trials: list[str]
    """Their names; empty where the search ends without promotion."""
    until: int
    """Epochs of their new rung."""
    last: NotRequired[bool]
    """Whether the finalists are chosen and nothing is promoted any more; absent means true."""


class RestedEvent(_TrialEvent):
    """A promoted trial that waited is left at its rung, because the campaign was stopped."""

    event: Literal["rested"]


class RetriedEvent(_TrialEvent):
    """A person puts back a trial that failed or was cancelled."""

    event: Literal["retried"]


class AddedEvent(_Event):
    """A person widens the budget."""

    event: Literal["added"]
    trials: int
    """How many trials more."""
    request: NotRequired[str]
    """Name of the request's file, so that it counts once; older journals have none."""
    values: NotRequired[list[SearchedValues]]
    """Values that the person chose; empty where the brain chooses."""


class ReseedEvent(_Event):
    """A person wants the best trials to be trained again with new seeds."""

    event: Literal["reseed"]
    count: int
    """How many of the best."""


class EndingEvent(_Event):
    """A person asks to finish with what is there."""

    event: Literal["ending"]


class EnergyEvent(_Event):
    """Energy of the hosts since the last event of this kind."""

    event: Literal["energy"]
    trials: Mapping[str, Sequence[float]]
    """By trial, joules and the slot-seconds in which they were counted."""
    idle: float
    """Joules of slots that no trial held."""
    watts: float
    """Power of all counted hosts, at the time of the event."""
    hosts: int
    """How many hosts that is."""
    parts: list[str]
    """What was counted of a host, see ``CounterSample.parts``."""


class DrainingEvent(_Event):
    """The allocation ends: running trials write checkpoints."""

    event: Literal["draining"]


class FinishedEvent(_Event):
    """Nothing is left to train, and the summary is written."""

    event: Literal["finished"]


JournalEvent = (
    OpenedEvent
    | ZygoteReadyEvent
    | ZygoteLostEvent
    | AgentLostEvent
    | HostJoinedEvent
    | HostLostEvent
    | HostFailedEvent
    | QuarantinedEvent
    | HostWarnedEvent
    | UnreadEvent
    | ProposedEvent
    | PlacedEvent
    | FirstStepEvent
    | EpochEvent
    | CheckpointEvent
    | AskedEvent
    | EndedEvent
    | PromotedEvent
    | RestedEvent
    | RetriedEvent
    | AddedEvent
    | ReseedEvent
    | EndingEvent
    | EnergyEvent
    | DrainingEvent
    | FinishedEvent
)
