"""The events of ``events.jsonl``, one type per kind; the string under a field documents it.

``campaign.journal`` writes and reads them, and holds each event that is read against its type.
Keys beyond those of a type, and kinds that are not here, are left as they are.
``match event["event"]`` narrows ``JournalEvent`` to the type of one kind.

An event in memory may hold tuples where the same event, read from the file, holds lists; hence
``Sequence``. NaN and infinity are written as null.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

SearchedValues = dict[str, bool | int | float | str]
"""Values of the active searched keys of a trial, by dotted key."""

Outcome = Literal["completed", "stopped", "failed", "cancelled", "interrupted"]
"""How an attempt ended. ``stopped``: at the end of its rung; ``interrupted``: to be restarted."""


class _Event(TypedDict):
    """Fields of every event; ``Journal.append`` adds them."""

    time: float
    """When it was written, in seconds since the epoch."""
    epoch: int
    """Number of the controller that wrote it: increases each time a controller takes over."""


class _TrialEvent(_Event):
    trial: str
    """Name of the trial."""


class _HostEvent(_Event):
    host: str
    """Id of the host, as its agent reports it."""


class OpenedEvent(_Event):
    """A controller begins: its data are ready and its first hosts have joined."""

    event: Literal["opened"]
    units: dict[str, str]
    """Unit of each target, by name; empty where trials are a command."""
    slots: NotRequired[Sequence[str]]
    """Slots of the hosts that have joined, as ``host:number``; absent in older journals."""
    data: NotRequired[str | None]
    """Checksum of the graph stores; null where trials are a command."""
    software: NotRequired[dict[str, str]]
    """Versions of packages, Python and operating system on the controller's host, by name."""


class ZygoteReadyEvent(_Event):
    """A host can fork ranks: its zygote (fork server) has imported their modules."""

    event: Literal["zygote_ready"]
    host: NotRequired[str]
    """Id of the host, as its agent reports it; absent where the backend has one host only."""
    import_seconds: float
    """Duration of the imports in seconds."""


class _ProcessEvent(_Event):
    host: str | None
    """Id of the host; null if unknown."""


class ZygoteLostEvent(_ProcessEvent):
    """The zygote of a host died; a new one is started."""

    event: Literal["zygote_lost"]


class AgentLostEvent(_ProcessEvent):
    """The agent of a host died or stopped answering."""

    event: Literal["agent_lost"]


class HostJoinedEvent(_HostEvent):
    """A host joined for the first time or again."""

    event: Literal["host_joined"]
    slots: Sequence[str]
    """Its slots, ``host:number``."""


class HostLostEvent(_HostEvent):
    """A host was lost, with everything that ran on it."""

    event: Literal["host_lost"]
    reason: str
    """A sentence for a person."""


class HostsAbsentEvent(_Event):
    """Hosts of the allocation have never had an agent, although others have."""

    event: Literal["hosts_absent"]
    hosts: Mapping[str, str]
    """Host -> reason, as the end of a sentence that begins with the host."""


class HostFailedEvent(_HostEvent):
    """A failure that counts against a host; two with different causes put it in quarantine."""

    event: Literal["host_failed"]
    cause: str
    """Name of the trial that was lost there, or ``lost N`` for the Nth loss of the host itself."""


class QuarantinedEvent(_HostEvent):
    """A host gets no more trials."""

    event: Literal["quarantined"]
    reason: str
    """A sentence for a person."""


class HostWarnedEvent(_HostEvent):
    """The counters of a host show unusual values."""

    event: Literal["host_warned"]
    reason: str
    """A sentence for a person."""


class UnreadEvent(_Event):
    """The energy counters of a host cannot be read; written once per campaign."""

    event: Literal["unread"]
    host: NotRequired[str]
    """Id of the host, as its agent reports it; nothing is computed from it."""
    reason: str
    """A sentence for a person."""


class ProposedEvent(_TrialEvent):
    """A new trial was added to the queue."""

    event: Literal["proposed"]
    values: SearchedValues
    """Its searched values."""
    until: int
    """Epochs at the end of its first rung; for a trial with a parent, of its whole training."""
    parent: NotRequired[str]
    """Trial whose values it repeats with another seed; absent in trials of the search itself. A fit
    of the learning curve also has the value ``training.train_share``, and a fit of a cross-fitted
    ensemble ``training.fold``, which its parent lacks."""


class PlacedEvent(_TrialEvent):
    """An attempt is about to start on some slots."""

    event: Literal["placed"]
    attempt: int
    """Number of the attempt, from 1."""
    until: NotRequired[int]
    """Epoch at which the attempt ends: the end of the trial's rung; absent in older journals."""
    width: int
    """Number of ranks."""
    slots: Sequence[str]
    """Slots it holds until it ends, as ``host:number``, in rank order."""
    reason: NotRequired[str]
    """Why the planner starts it on these slots now: a sentence for a person; absent in older
    journals."""
    predicted_epoch_seconds: NotRequired[float | None]
    """Seconds per epoch that the cost model expects."""
    predicted_seconds: NotRequired[float | None]
    """Seconds that the cost model expects for all epochs up to ``until``."""


class FirstStepEvent(_TrialEvent):
    """The ranks of an attempt have done their first optimizer step."""

    event: Literal["first_step"]
    seconds: float
    """Time since the attempt was placed, by the clock of rank 0."""


class EpochEvent(_TrialEvent):
    """A running attempt finished an epoch; each epoch of a trial is written once."""

    event: Literal["epoch"]
    reached: int
    """Epochs that the trial has trained so far."""
    objective: float | None
    """Validation objective of this epoch, in units of each target's spread."""
    best_objective: float | None
    """The lowest one so far."""
    seconds: float
    """Duration of training and validation."""
    width: int
    """Number of ranks."""
    joules: NotRequired[float]
    """Energy of the epoch; absent if the ranks do not measure it."""
    watched: NotRequired[float | None]
    """Value that the stopping rule compares; absent if it equals ``objective``."""


class CheckpointEvent(_TrialEvent):
    """A checkpoint was saved at a later step than all before it."""

    event: Literal["checkpoint"]
    reached: int
    """Number of finished epochs in it."""
    step: NotRequired[int]
    """Optimizer steps of the next, unfinished epoch; absent in older journals."""


class AskedEvent(_TrialEvent):
    """A running attempt is asked to end; written before the request is sent."""

    event: Literal["asked"]
    reason: str
    """``paused``, ``walltime``, ``resized``, ``cancelled``, ``median`` or ``curve``."""
    width: NotRequired[int]
    """Number of ranks of the next attempt; only for ``resized``."""
    why: NotRequired[str]
    """A sentence of the planner or the stopping rule; absent for other reasons."""


class AttemptOutcome(TypedDict):
    """How an attempt ended, or a trial without one: its values were refused, or it was cancelled.

    If there is a result, every other number in it is copied too; see ``outcome.read_outcome``.
    """

    outcome: Outcome
    """How it ended."""
    reason: NotRequired[str | None]
    """Why it ended, see the table in the README of ``campaign``; null at the end of a rung."""
    reached: NotRequired[int]
    """Epochs the trial has trained; only with a result."""
    objective: NotRequired[float | None]
    """Best validation objective, in units of each target's spread; only with a result."""
    score: NotRequired[float | Sequence[float] | None]
    """Value that ranks the trial, a list for several goals; null or absent without a result."""
    val_mae: NotRequired[dict[str, float | None]]
    """Validation MAE by head, in the head's unit; only with a result."""
    best_epoch: NotRequired[int]
    """Epoch of the best objective; only with a result."""
    parameters: NotRequired[int]
    """Number of the model's parameters; only with a result."""
    train_seconds: NotRequired[float]
    """Seconds of training in all attempts of the trial; only with a result."""
    peak_bytes: NotRequired[int]
    """Peak memory of the rank that used most, in bytes; only with a result."""
    micro_batches: NotRequired[int]
    """Pieces into which a step was split to fit into memory; only with a result."""
    joules: NotRequired[float]
    """Energy in joules, if the result of a command contains it."""
    message: NotRequired[str | None]
    """A sentence or a traceback for a person; only for a failure or an interruption."""
    codes: NotRequired[Sequence[int]]
    """Exit codes in rank order, negative for signals; only for ``host_lost`` and ``stale``."""
    excused: NotRequired[bool]
    """True if the cause was a lost controller, host or lease; else absent."""
    least: NotRequired[int]
    """Least number of ranks of the next attempt, after ``out_of_memory``; absent if unchanged."""
    whole: NotRequired[bool]
    """True if the next attempt may not share its device, after ``out_of_memory``; else absent."""


class EndedEvent(_TrialEvent, AttemptOutcome):
    """An attempt ended, or a trial that never had one."""

    event: Literal["ended"]
    attempt: NotRequired[int]
    """Number of the attempt; absent if there was none."""


class PromotedEvent(_Event):
    """Trials are promoted to another rung."""

    event: Literal["promoted"]
    trials: list[str]
    """Their names; empty where the search ends without promotion."""
    until: int
    """Epochs of their new rung."""
    last: NotRequired[bool]
    """Whether this was the last promotion, which chose the finalists; absent means true."""


class RestedEvent(_TrialEvent):
    """A promoted trial in the queue stays at its old rung, because the campaign was stopped."""

    event: Literal["rested"]


class RetriedEvent(_TrialEvent):
    """A person returned a failed or cancelled trial to the queue."""

    event: Literal["retried"]


class ObjectiveChangedEvent(_Event):
    """The campaign goes on with another ``search.objective``; its trials get new scores."""

    event: Literal["objective_changed"]
    objective: object
    """The new one, as in the campaign file."""
    scores: Mapping[str, Mapping[str, float | Sequence[float]]]
    """Score of each trial with results, by its name and the epoch of the rung."""


class AddedEvent(_Event):
    """A person increased the number of trials."""

    event: Literal["added"]
    trials: int
    """Number of additional trials."""
    request: NotRequired[str]
    """Name of the request's file, so that it is counted once; absent in older journals."""
    values: NotRequired[list[SearchedValues]]
    """Values that the person chose; empty where the brain chooses."""


class ReseedEvent(_Event):
    """A person requested that the best trials be trained again with new seeds."""

    event: Literal["reseed"]
    count: int
    """Number of trials to repeat."""


class EndingEvent(_Event):
    """A person requested to finish with the trials trained so far."""

    event: Literal["ending"]


class EnergyEvent(_Event):
    """Energy of the hosts since the last event of this kind."""

    event: Literal["energy"]
    trials: Mapping[str, Sequence[float]]
    """By trial: joules, and the slot-seconds in which they were counted."""
    idle: float
    """Joules of slots that no trial held."""
    watts: float
    """Power in watts of all counted hosts at the time of the event."""
    hosts: int
    """Number of counted hosts."""
    parts: list[str]
    """Parts of a host that were counted, see ``CounterSample.parts``."""


class DrainingEvent(_Event):
    """The allocation is about to end: running trials write checkpoints."""

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
    | HostsAbsentEvent
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
    | ObjectiveChangedEvent
    | AddedEvent
    | ReseedEvent
    | EndingEvent
    | EnergyEvent
    | DrainingEvent
    | FinishedEvent
)
