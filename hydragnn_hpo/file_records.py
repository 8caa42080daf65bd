"""What ``result.json``, ``stats.json`` and ``summary.json`` hold, as types.

The string under a field says its unit, who writes it, and when it is absent. Types are for mypy
and for people: whoever reads a file that a user may have written checks it.
``journal_events`` has the events of ``events.jsonl``.
"""

from typing import Literal, NotRequired, TypedDict

from hydragnn_hpo.journal_events import SearchedValues

FailureReason = Literal["diverged", "out_of_memory", "bad_config", "bug"]
"""Why a trial may fail."""


class FinishedResult(TypedDict):
    """``result.json`` of an attempt that came to its end, written by rank 0 as its last file.

    A command of a user writes its own: all but ``status`` may be absent, and any other number may
    be there, which ``search.objective`` may name.
    """

    status: Literal["completed", "stopped", "cancelled"]
    """``completed``: trained to its budget, or early stopping; ``stopped``: at its rung."""
    trial: NotRequired[str]
    """Name of the trial."""
    reason: NotRequired[str | None]
    """``early_stopping``, else null."""
    epochs: NotRequired[int]
    """Epochs that the trial has trained, in all attempts."""
    best_epoch: NotRequired[int]
    """Epoch of the best objective."""
    objective: NotRequired[float]
    """Best validation objective, in units of each target's spread."""
    val_mae: NotRequired[dict[str, float]]
    """Validation MAE at the best epoch, by head, in the head's unit."""
    units: NotRequired[dict[str, str]]
    """Unit of each head."""
    parameters: NotRequired[int]
    """Number of the model's parameters."""
    packages: NotRequired[dict[str, str]]
    """Version of the package of a user's conv, by name; empty for convs of ours."""
    width: NotRequired[int]
    """Number of ranks of the last attempt."""
    micro_batches: NotRequired[int]
    """Pieces into which a step was split to fit into memory."""
    peak_bytes: NotRequired[int]
    """Most memory that a rank took, in bytes."""
    train_seconds: NotRequired[float]
    """Seconds of training in all attempts."""
    time: NotRequired[float]
    """When it was written, in seconds since the epoch."""


class FailedResult(TypedDict):
    """``result.json`` of an attempt that failed, written by the rank that failed."""

    status: Literal["failed"]
    reason: FailureReason
    """Why it failed."""
    message: str
    """A sentence or a traceback for a person."""
    time: NotRequired[float]
    """When it was written, in seconds since the epoch; a command may leave it out."""


TrialResult = FinishedResult | FailedResult
"""The content of ``result.json``."""


class SizeSummary(TypedDict):
    """Nodes, edges or bytes of the graphs of a store."""

    mean: float
    """Per graph."""
    min: float
    """Of the smallest graph."""
    max: float
    """Of the largest graph."""
    total: NotRequired[float]
    """Of all graphs; absent in a sample that was not scaled to a data set yet."""


class Histogram(TypedDict):
    """Graphs by size."""

    edges: list[int]
    """Borders of the bins, ascending: bin ``k`` is from ``edges[k]`` to below ``edges[k + 1]``."""
    counts: list[int]
    """Graphs in each bin."""


class ElementCount(TypedDict):
    """How often an element occurs."""

    atoms: int
    """Atoms of it, in all structures."""
    structures: int
    """Structures that hold it."""


class DegreeCounts(TypedDict):
    """How many nodes have 0, 1, 2 and so on neighbours within a cutoff."""

    train: list[int]
    """In the train split."""
    all: list[int]
    """In all splits."""


class SizeStats(TypedDict):
    """Sizes of some graphs, as ``data.graph_sizes`` counts them."""

    num_graphs: int
    """Number of graphs."""
    cutoff: float
    """Largest cutoff, which all edges are within, in angstrom."""
    elements: list[int]
    """Atomic numbers that occur, ascending; empty where they are not known."""
    nodes: SizeSummary
    """Nodes of a graph."""
    edges: SizeSummary
    """Edges of a graph, at the largest cutoff."""
    degree: dict[str, float]
    """Mean number of neighbours of a node, by cutoff in angstrom."""
    train_nodes: NotRequired[int]
    """Nodes of the train split; absent in a sample."""
    train_edges: NotRequired[int]
    """Edges of the train split; absent in a sample."""
    element_counts: NotRequired[dict[str, ElementCount]]
    """By chemical symbol; absent in united and estimated statistics."""
    bytes: NotRequired[SizeSummary]
    """Bytes of a graph in the columns of a store; absent in united and estimated statistics."""
    histograms: NotRequired[dict[str, Histogram]]
    """Of ``nodes``, ``edges`` and ``bytes``; absent in united and estimated statistics."""
    degrees: NotRequired[dict[str, DegreeCounts]]
    """By cutoff in angstrom; absent in united and estimated statistics."""


class ElementBaseline(TypedDict):
    """A target fitted by one number per element, on the train split; in the target's unit."""

    by_number: list[float]
    """By atomic number, [119]; 0 for elements that the train split lacks."""
    mean: float
    """What is added to the sum or mean over the atoms."""
    std: float
    """Spread that is left."""


class TargetStats(TypedDict):
    """A target of a data set: what its card says of it, and its values in the train split."""

    level: Literal["graph", "node"]
    """One value per structure, or one per atom."""
    shape: Literal["scalar", "vector", "tensor"]
    """A number, three components, or the nine of a stress."""
    unit: str
    """Unit inside the package; ``/atom`` at its end where the value is per atom."""
    energy: NotRequired[Literal["total", "per_atom"] | None]
    """Set for energies, from which forces can be derived."""
    derived_from: NotRequired[str | None]
    """The energy whose derivative this is: forces, stress."""
    description: NotRequired[str]
    """What the property is, in the words of the card."""
    mean: NotRequired[float]
    """Mean, in the unit; this and all below are absent before the store is built."""
    std: NotRequired[float]
    """Standard deviation, in the unit; 1 where all values are alike."""
    min: NotRequired[float]
    """Smallest value, in the unit; of a vector its components."""
    max: NotRequired[float]
    """Largest value, in the unit; of a vector its components."""
    count: NotRequired[int]
    """Values that are known."""
    mad: NotRequired[float]
    """Mean absolute deviation from the mean, in the unit."""
    elements: NotRequired[ElementBaseline | None]
    """Baseline per element; null for vectors, tensors and targets that data sets share."""


class AttributeStats(TypedDict):
    """A graph or node attribute in the train split, in its own unit."""

    mean: float
    """Mean."""
    std: float
    """Standard deviation; 1 where all values are alike."""


class SetSize(TypedDict):
    """The train split of one of several data sets."""

    train: int
    """Graphs."""
    train_nodes: int
    """Nodes."""


class StoreStats(SizeStats):
    """``stats.json`` of a graph store, written when it is built; or of several stores, united."""

    name: str
    """Name of the card; joined by ``+`` for several."""
    title: str
    """Title of the card."""
    splits: dict[str, int]
    """Graphs of each split: train, val, sel, cal, test."""
    targets: dict[str, TargetStats]
    """By name."""
    attributes: dict[str, AttributeStats]
    """By name; empty without any, and in an estimate."""
    laplacian: int
    """Eigenvectors of each graph's Laplacian that the store holds."""
    test_seen: NotRequired[int]
    """Test graphs whose group also occurs in another split; absent in united statistics."""
    quarantined: NotRequired[int]
    """Structures that were left out as bad; absent in united statistics."""
    checksum: NotRequired[str]
    """Of the content, hex; joined by ``-`` for several; absent in an estimate."""
    sets: NotRequired[list[SetSize]]
    """The data sets one by one; absent for a single one."""


class EnsembleMember(TypedDict):
    """A trial inside the ensemble."""

    trial: str
    """Name of the trial."""
    weights: dict[str, float]
    """Its share in the mean of each head it takes part in."""
    weight: float
    """Mean of ``weights``."""
    objective: float
    """Validation objective, in units of each target's spread."""
    val_mae: dict[str, float]
    """Validation MAE by head, in the head's unit."""


class HeadScores(TypedDict):
    """One head of the ensemble on the test split.

    ``raw_`` marks what the members' spread scores before calibration. Null where a score has no
    finite value, such as the correlation of constants.
    """

    unit: str
    """Unit of the errors and widths."""
    test_rows: int
    """Labelled structures or atoms."""
    test_mae: float | None
    """Mean absolute error, in the unit."""
    test_rmse: float | None
    """Root mean square error, in the unit."""
    single_mae: float
    """MAE of the best single trial."""
    test_mae_top_k: float
    """MAE of the plain mean of the best by validation."""
    test_mae_greedy: float
    """MAE of the greedy selection."""
    mean_baseline_mae: float | None
    """MAE of the training data's mean."""
    ratio_to_mean: float | None
    """``test_mae / mean_baseline_mae``; 0 where the baseline has no error."""
    nll: float | None
    """Mean negative log likelihood of the calibrated Gaussians, in nats."""
    crps: float | None
    """Mean continuous ranked probability score, in the unit."""
    ence: float | None
    """Expected normalised calibration error."""
    area: float | None
    """Between calibration curve and diagonal, 0 to 0.5."""
    area_conformal: float | None
    """The same of the conformal intervals."""
    sharpness: float | None
    """Root mean variance, in the unit."""
    spearman: float | None
    """Rank correlation of absolute error and sigma."""
    ause: float | None
    """Area between the sparsification curve and its oracle; 0 where sigma ranks perfectly."""
    coverage50: float | None
    """Share of the values inside the 50 % conformal interval; the same for 80, 90 and 95 %."""
    coverage80: float | None
    coverage90: float | None
    coverage95: float | None
    width50: float | None
    """Mean width of the 50 % conformal interval, in the unit; the same for 80, 90 and 95 %."""
    width80: float | None
    width90: float | None
    width95: float | None
    raw_nll: float | None
    raw_crps: float | None
    raw_ence: float | None
    raw_area: float | None
    raw_sharpness: float | None
    raw_spearman: float | None
    raw_ause: float | None
    raw_coverage50: float | None
    """Share inside the Gaussian 50 % interval of the raw spread; the same for 80, 90 and 95 %."""
    raw_coverage80: float | None
    raw_coverage90: float | None
    raw_coverage95: float | None
    raw_width50: float | None
    """Mean width of that interval, in the unit; the same for 80, 90 and 95 %."""
    raw_width80: float | None
    raw_width90: float | None
    raw_width95: float | None


class ChosenMember(TypedDict):
    """A trial that a method of selection takes."""

    trial: str
    """Name of the trial."""
    weight: float
    """Mean of ``weights``."""
    weights: dict[str, float]
    """Its share in the mean of each head."""


class SelectionScores(TypedDict):
    """How the members of one method of selection do on the split ``sel``."""

    sel_loss: float
    """Loss of their mean, in units of each target's spread."""
    sel_mae: dict[str, float]
    """MAE by head, in the head's unit."""
    flops_per_graph: float
    """Operations of a prediction."""
    members: list[ChosenMember]
    """The trials it takes."""


class HeadDiversity(TypedDict):
    """How much the members of a head differ on the split ``sel``."""

    members: list[str]
    """Trials, in the order of ``correlation``."""
    correlation: list[list[float]]
    """Correlation of the members' errors, [M, M]."""
    mean_correlation: float | None
    """Mean off the diagonal; null for one member."""
    mse: float
    """Squared error of the mean, in the unit squared."""
    mean_member_mse: float
    """Mean squared error of the members, in the unit squared."""
    ambiguity: float
    """``mean_member_mse - mse``."""


class EnsembleSize(TypedDict):
    """The mean of the first members of an order."""

    members: int
    """How many."""
    added: str
    """The trial that came in last."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head, in the head's unit."""
    test_mae: dict[str, float] | None
    """MAE on ``test``; null where one of them did not predict it (Law 6)."""


class CandidateErrors(TypedDict):
    """A trial that could become a member."""

    trial: str
    """Name of the trial."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head, in the head's unit."""


class RankedTrial(TypedDict):
    """A trial with a result."""

    trial: str
    """Name of the trial."""
    conv: str
    """Its conv."""
    status: str
    """``completed``, ``stopped``, ``failed`` or ``cancelled``."""
    objective: float | None
    """Validation objective, in units of each target's spread; null for a failed trial."""
    epochs: int | None
    """Epochs it has trained."""


Curves = dict[str, dict[str, list[float | None]]]
"""Columns of numbers by curve: ``calibration conformal bins sparsification``."""


class EnsembleTable(TypedDict):
    """What is known of an ensemble: answer of its job, and ``report/ensemble.json``."""

    path: NotRequired[str]
    """Its file; absent in ``report/ensemble.json``."""
    method: str
    """How members were chosen: ``top`` or ``greedy``."""
    why: str
    """Why that method: a sentence for a person."""
    members: list[EnsembleMember]
    """The trials it holds."""
    heads: dict[str, HeadScores]
    """By head, on the test split."""
    selection: dict[str, SelectionScores]
    """By method: ``top``, ``greedy``, and ``single`` for the best trial alone."""
    leaderboard: list[RankedTrial]
    """All trials with a result, best first."""
    diversity: dict[str, HeadDiversity]
    """By head."""
    curves: NotRequired[dict[str, Curves]]
    """By head, on the test split."""
    warnings: list[str]
    """Sentences for a person."""
    candidates: NotRequired[list[CandidateErrors]]
    """Trials that could become members."""
    by_size: NotRequired[dict[str, list[EnsembleSize]]]
    """By order: ``top`` and ``greedy``."""


class LeaderboardEntry(TypedDict):
    """A trial of the leaderboard; ``campaign.status.LeaderboardRow`` as plain data."""

    rank: int | None
    """Place among the trials with a result, from 1; those trained furthest come first. Null without
    one."""
    trial: str
    """Name of the trial."""
    parent: str | None
    """Trial whose values it has with another seed; null in trials of the search itself."""
    status: str
    """``queued running stopped completed failed cancelled``."""
    reason: str | None
    """Why it ended like that; null where there is none."""
    epochs: int
    """Epochs it has trained."""
    width: int
    """Ranks of its newest attempt."""
    objective: float | None
    """Validation objective, in units of each target's spread."""
    score: float | list[float] | None
    """What it is ranked by, a list for several goals."""
    front: bool | None
    """Whether it is on the Pareto front; null where there is one goal."""
    val_mae: dict[str, float | None]
    """Validation MAE by head, in the head's unit."""
    slot_seconds: float
    """Time its slots were held, summed."""
    energy_joules: float | None
    """What its slots took by the counters of hosts; null where nothing was counted."""
    energy_share: float | None
    """Share of ``slot_seconds`` in which that was counted; null while it runs."""
    values: SearchedValues
    """Its searched values."""


class LeaderboardTable(TypedDict):
    """All trials, best first."""

    units: dict[str, str]
    """Unit of each target."""
    trials: list[LeaderboardEntry]
    """The rows."""


class StatusCounts(TypedDict, total=False):
    """Trials by their status; one that is 0 is absent."""

    queued: int
    running: int
    stopped: int
    completed: int
    failed: int
    cancelled: int


class RunFigures(StatusCounts):
    """What a campaign did with its slots, as ``JournalFold.figures`` computes it."""

    trials: int
    """Trials that were proposed."""
    attempts: int
    """Attempts that were placed."""
    wide_attempts: int
    """Those of two ranks or more."""
    restarts: dict[str, int]
    """Interrupted attempts by reason."""
    first_step_seconds: float | None
    """Median time from placed to the first optimizer step, in a warm rank; null before one."""
    cold_start_seconds: float | None
    """The same in a rank that first imports what the zygote holds: median import added."""
    slot_seconds: float
    """Of all slots, from the first placement to the last end of each controller."""
    utilization: float | None
    """Share of them in training and validation; null before anything ran."""
    losses: dict[str, float]
    """All shares by cause, see ``accounting.CAUSES``; they sum to 1."""
    energy_joules: NotRequired[float | None]
    """Of all hosts; null where nothing was counted. Runs of early versions lack all three."""
    energy_idle_joules: NotRequired[float | None]
    """Part of it while no trial held the slots."""
    energy_parts: NotRequired[list[str] | None]
    """What was counted of a host."""


class RunSummary(TypedDict):
    """``summary.json`` of a finished run, written once by ``hydragnn-hpo run``."""

    ensemble: EnsembleTable | None
    """Null where trials are a command."""
    leaderboard: LeaderboardTable
    """All trials, best first."""
    figures: RunFigures
    """What the campaign did with its slots."""
