"""Types of the content of ``result.json``, ``stats.json`` and ``summary.json``.

The string under a field gives its unit and when it is absent. The types serve mypy and readers:
code that reads a file written by a user must check it. ``journal_events`` has the types of
``events.jsonl``.
"""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from hydragnn_hpo.journal_events import SearchedValues

FailureReason = Literal["diverged", "out_of_memory", "bad_config", "bug"]
"""Reasons for which a trial fails."""


class FinishedResult(TypedDict):
    """``result.json`` of an attempt that finished, written by rank 0 as its last file.

    A user's command writes this file itself: every field except ``status`` may be absent, and it
    may contain further numbers, which ``search.objective`` may name.
    """

    status: Literal["completed", "stopped", "cancelled"]
    """``completed``: full budget or early stopping; ``stopped``: at the end of its rung."""
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
    """Version of the package of a user's conv, by package name; empty for built-in convs."""
    kernels: NotRequired[str]
    """Implementation of passes over the edges, see ``model.kernels``; never ``auto``."""
    width: NotRequired[int]
    """Number of ranks of the last attempt."""
    micro_batches: NotRequired[int]
    """Pieces into which a step was split to fit into memory."""
    peak_bytes: NotRequired[int]
    """Peak memory of the rank that used most, in bytes."""
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
    """Mean per graph."""
    min: float
    """Value of the smallest graph."""
    max: float
    """Value of the largest graph."""
    total: NotRequired[float]
    """Sum over all graphs; absent in a sample that was not yet scaled to a data set."""


class Histogram(TypedDict):
    """Histogram of graph sizes."""

    edges: list[int]
    """Edges of the bins, ascending: bin ``k`` is ``edges[k] <= size < edges[k + 1]``."""
    counts: list[int]
    """Number of graphs in each bin."""


class ElementCount(TypedDict):
    """How often an element occurs."""

    atoms: int
    """Number of its atoms in all structures."""
    structures: int
    """Number of structures that contain it."""


class DegreeCounts(TypedDict):
    """Number of nodes with 0, 1, 2, ... neighbours within a cutoff."""

    train: list[int]
    """Counts in the train split."""
    all: list[int]
    """Counts in all splits."""


class SizeStats(TypedDict):
    """Size statistics of a set of graphs, computed by ``data.graph_sizes``."""

    num_graphs: int
    """Number of graphs."""
    cutoff: float
    """Largest cutoff in angstrom; ``edges`` counts the edges within it."""
    elements: list[int]
    """Atomic numbers that occur, ascending; empty if unknown."""
    nodes: SizeSummary
    """Nodes per graph."""
    edges: SizeSummary
    """Edges per graph, at the largest cutoff."""
    degree: dict[str, float]
    """Mean number of neighbours per node, by cutoff in angstrom."""
    train_nodes: NotRequired[int]
    """Nodes of the train split; absent in a sample."""
    train_edges: NotRequired[int]
    """Edges of the train split; absent in a sample."""
    element_counts: NotRequired[dict[str, ElementCount]]
    """Counts by chemical symbol; absent in merged and estimated statistics."""
    bytes: NotRequired[SizeSummary]
    """Bytes per graph in the columns of a store; absent in merged and estimated statistics."""
    histograms: NotRequired[dict[str, Histogram]]
    """Of ``nodes``, ``edges`` and ``bytes``; absent in merged and estimated statistics."""
    degrees: NotRequired[dict[str, DegreeCounts]]
    """Counts by cutoff in angstrom; absent in merged and estimated statistics."""


class ElementBaseline(TypedDict):
    """Fit of a target by one number per element, on the train split, in the target's unit."""

    by_number: list[float]
    """Coefficients by atomic number, [119]; 0 for elements that the train split lacks."""
    mean: float
    """Constant added to the mean of the coefficients over the atoms; 0 where they are summed."""
    std: float
    """Standard deviation of the residuals; for sums about 0."""


class AtomMean(TypedDict):
    """Fit of an extensive target by the same number for every atom, on the train split."""

    mean: float
    """Sum of the values over the number of atoms, in the target's unit."""
    std: float
    """Root mean square of what is left, in the target's unit."""
    atoms: int
    """Atoms of the structures with a value."""


class TargetStats(TypedDict):
    """A target of a data set: what it is by its card, and its values in the train split.

    It holds all fields of ``config.TargetKind``, see ``config.kind_of``; named here are those of
    them that nets and statistics depend on.
    """

    level: Literal["graph", "node"]
    """One value per structure, or one per atom."""
    shape: Literal["scalar", "vector", "tensor", "spectrum", "class"]
    """A number, three components, the nine components of a tensor, row by row, a spectrum, or a
    class."""
    classes: NotRequired[Sequence[str] | None]
    """Names of the classes, each of which has a probability; null for other shapes."""
    size: NotRequired[int | None]
    """Number of values of a spectrum; null for other shapes."""
    unit: str
    """Internal unit; ends with ``/atom`` if the value is per atom."""
    unit_guessed: NotRequired[bool]
    """Whether the unit of the file is a guess; absent where it is none, and in older stores."""
    energy: NotRequired[Literal["total", "per_atom"] | None]
    """Set only for energies, from which forces can be derived."""
    extensive: NotRequired[bool | None]
    """True for a sum over atoms; total energies are one without it."""
    derived_from: NotRequired[str | None]
    """Name of the energy whose derivative this is; set for forces and stress."""
    bounds: NotRequired[tuple[float | None, float | None] | None]
    """Smallest and largest possible value, in the unit; null where the card sets neither."""
    sum: NotRequired[float | str | None]
    """What the values of a structure sum to: a number in the unit, or the name of an attribute;
    null or absent where the card sets none."""
    sum_miss: NotRequired[float]
    """Most by which the labels of a structure that has all miss their ``sum``, in the unit; absent
    without ``sum``, and before the store is built."""
    origin: NotRequired[Literal["mass", "geometry", "none"] | None]
    """Origin of a vector or tensor of structures, as in the card; null for other targets."""
    charge: NotRequired[str | None]
    """Attribute with the total charge, for dipoles; null where the card names none."""
    mean: NotRequired[float]
    """Mean, in the unit (of a tensor's diagonal, 0 for vectors and stress); this and the fields
    below are absent before the store is built."""
    means: NotRequired[list[float]]
    """Mean of each value of a spectrum, in the unit, or frequency of each class; absent for other
    shapes."""
    std: NotRequired[float]
    """Standard deviation, in the unit; for a class the log-loss of the frequencies, in nats; 1 if
    all values are equal."""
    min: NotRequired[float]
    """Smallest value, in the unit; for a vector, over its components."""
    max: NotRequired[float]
    """Largest value, in the unit; for a vector, over its components."""
    count: NotRequired[int]
    """Number of known values."""
    mad: NotRequired[float]
    """Mean absolute deviation from the mean, in the unit."""
    unlabelled: NotRequired[list[str]]
    """Splits without a label of an element that has labels in the train split, in which it cannot
    be judged; absent before the store is built, and where there are none."""
    empty: NotRequired[list[str]]
    """Those of ``unlabelled`` without any label; absent as these."""
    unseen: NotRequired[dict[str, list[str]]]
    """Names of the classes that no label of a split has, by split; absent where there are none."""
    elements: NotRequired[ElementBaseline | None]
    """Baseline per element; null for vectors, tensors and targets that several data sets share."""
    atom_mean: NotRequired[AtomMean]
    """Mean per atom; absent for targets that are not extensive, and in older stores, which have a
    constant in ``elements``."""


class AttributeStats(TypedDict):
    """A graph or node attribute in the train split, in its own unit."""

    mean: float
    """Mean."""
    std: float
    """Standard deviation; 1 if all values are equal."""
    min: NotRequired[float]
    """Smallest value; absent from stores that are older than this field."""


class SetSize(TypedDict):
    """Size of the train split of one of several data sets."""

    train: int
    """Number of graphs."""
    train_nodes: int
    """Number of nodes."""


class FeatureStats(TypedDict):
    """Features of a foundation model over the atoms of the train split, in its own unit."""

    mean: list[float]
    """Mean of each feature, [F]."""
    std: list[float]
    """Standard deviation of each, [F]; 1 if all values are equal."""


class StoreStats(SizeStats):
    """``stats.json`` of a graph store, written when it is built; or of several stores, merged."""

    name: str
    """Name of the card; several names are joined by ``+``."""
    title: str
    """Title of the card."""
    splits: dict[str, int]
    """Number of graphs by split: train, val, sel, cal, test."""
    targets: dict[str, TargetStats]
    """Statistics by name of the target."""
    attributes: dict[str, AttributeStats]
    """Statistics by name of the attribute; empty if there are none, and in an estimate."""
    laplacian: int
    """Number of eigenvectors of each graph's Laplacian in the store."""
    features: NotRequired[dict[str, FeatureStats]]
    """Features of foundation models by their name, where they are opened with the graphs."""
    test_seen: NotRequired[int]
    """Test graphs whose group also occurs in another split; absent in merged statistics."""
    groups: NotRequired[int]
    """Groups of structures outside the test split; absent in an estimate and in older stores."""
    quarantined: NotRequired[int]
    """Number of invalid structures that were left out; absent in merged statistics."""
    checksum: NotRequired[str]
    """Checksum of the content, hex; several are joined by ``-``; absent in an estimate."""
    sets: NotRequired[list[SetSize]]
    """Size of each data set; absent if there is only one."""


class EnsembleMember(TypedDict):
    """A trial that is a member of the ensemble."""

    trial: str
    """Name of the trial."""
    weights: dict[str, float]
    """Its weight in the mean, by head; only heads that use it."""
    weight: float
    """Mean of ``weights``."""
    objective: float
    """Validation objective, in units of each target's spread."""
    val_mae: dict[str, float]
    """Validation MAE by head, in the head's unit."""


class HeadScores(TypedDict):
    """One head of the ensemble on the test split.

    A score is null if it has no finite value, such as the correlation of constants. All scores from
    ``nll`` on are there for the members' spread before calibration, too, with Gaussian intervals;
    their names begin with ``raw_``.
    """

    unit: str
    """Unit of the errors and widths."""
    test_rows: int
    """Number of labelled structures or atoms."""
    test_mae: float | None
    """Mean absolute error, in the unit."""
    test_rmse: float | None
    """Root mean square error, in the unit."""
    test_norm_error: NotRequired[float | None]
    """Mean norm of the errors of vectors, Frobenius' of tensors, in the unit; absent for other
    shapes, whose errors count by component alone."""
    single_mae: float
    """MAE of the best single trial, in the unit; of a class its log-loss with a temperature of its
    own, fitted as that of the ensemble."""
    test_mae_top_k: float
    """MAE of the unweighted mean of the best trials by validation, in the unit."""
    test_mae_greedy: float
    """MAE of the greedy selection of nets, without a regression that joins them, in the unit."""
    elements_mae: NotRequired[float | None]
    """MAE of predicting from the elements alone, see ``ensemble.baselines``, in the unit; null for
    vectors per atom."""
    descriptor_mae: NotRequired[float | None]
    """MAE of a regression on local descriptors, see ``ensemble.local_descriptors``, in the unit, or
    log-loss of a class in nats."""
    mean_baseline_mae: float | None
    """MAE of predicting the mean of the training data, in the unit."""
    ratio_to_mean: float | None
    """``test_mae / mean_baseline_mae``; 0 where the baseline has no error."""
    nll: float | None
    """Mean negative log likelihood of the calibrated Gaussians, in nats."""
    crps: float | None
    """Mean continuous ranked probability score, in the unit."""
    ence: float | None
    """Expected normalised calibration error."""
    area: float | None
    """Area between the calibration curve and the diagonal, 0 to 0.5."""
    area_conformal: float | None
    """The same area for the conformal intervals."""
    sharpness: float | None
    """Root of the mean predicted variance, in the unit."""
    spearman: float | None
    """Spearman rank correlation of absolute error and predicted sigma."""
    ause: float | None
    """Area between the sparsification curve and its oracle; 0 if sigma ranks errors perfectly."""
    coverage50: float | None
    """Fraction of values inside the 50 % conformal interval; the same for 80, 90 and 95 %."""
    coverage80: float | None
    coverage90: float | None
    coverage95: float | None
    width50: float | None
    """Mean width of the 50 % conformal interval, in the unit; the same for 80, 90 and 95 %."""
    width80: float | None
    width90: float | None
    width95: float | None
    raw_coverage90: float | None
    """Fraction inside the Gaussian 90 % interval of the raw spread."""


class ChosenMember(TypedDict):
    """A trial that a selection method chose."""

    trial: str
    """Name of the trial."""
    weight: float
    """Mean of ``weights``."""
    weights: dict[str, float]
    """Its weight in the mean, by head."""


class SelectionScores(TypedDict):
    """Scores of one selection method on the split ``sel``."""

    sel_loss: float
    """Loss of their mean, in units of each target's spread."""
    sel_mae: dict[str, float]
    """MAE by head, in the head's unit."""
    flops_per_graph: float
    """Floating-point operations of one prediction."""
    members: list[ChosenMember]
    """The trials it chose."""


class HeadDiversity(TypedDict):
    """How much the members' predictions of a head differ on the split ``sel``."""

    members: list[str]
    """Names of trials, in the order of ``correlation``."""
    correlation: list[list[float]]
    """Correlation of the members' errors, [M, M]."""
    mean_correlation: float | None
    """Mean of the off-diagonal elements; null for one member."""
    mse: float
    """Mean squared error of the members' mean, in the unit squared."""
    mean_member_mse: float
    """Mean over the members of their mean squared errors, in the unit squared."""
    ambiguity: float
    """``mean_member_mse - mse``."""


class EnsembleSize(TypedDict):
    """Scores of the mean of the first members in an order of trials."""

    members: int
    """Number of members."""
    added: str
    """Name of the trial that was added last."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head, in the head's unit."""
    test_mae: dict[str, float] | None
    """MAE on ``test`` by head; null if a member did not predict that split, which only the final
    ensemble may use (Law 6)."""


class CandidateErrors(TypedDict):
    """Errors of a trial that could become a member."""

    trial: str
    """Name of the trial."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head, in the head's unit."""


class RankedTrial(TypedDict):
    """A trial with a result, as a row of the ensemble's leaderboard."""

    trial: str
    """Name of the trial."""
    conv: str
    """Name of its convolution."""
    status: str
    """``completed``, ``stopped``, ``failed`` or ``cancelled``."""
    objective: float | None
    """Validation objective, in units of each target's spread; null for a failed trial."""
    epochs: int | None
    """Epochs it has trained."""


Curves = dict[str, dict[str, list[float | None]]]
"""Curve (calibration, conformal, bins or sparsification) -> column -> numbers."""


VerdictLevel = Literal["good", "note", "warning"]
"""Whether a sentence of the verdict is good news, a limit to know, or a reason to act."""


class VerdictSentence(TypedDict):
    """One conclusion from an ensemble's figures; ``ensemble_build.verdict`` has the rules."""

    rule: str
    """Name of the rule."""
    head: str | None
    """Head that it is about; null for the search as a whole."""
    level: VerdictLevel
    """``good``, ``note`` or ``warning``."""
    sentence: str
    """For a person."""
    because: str
    """Threshold of the rule, and its reason."""


class DistanceFigures(TypedDict):
    """Errors of one head against the distance to the training set."""

    spearman: float | None
    """Rank correlation of |error| and distance; null if one of them is constant."""
    spearman_error: float | None
    """Its standard error, with groups of structures as the independent units; null for few."""
    distance: list[float]
    """Mean distance in bins of equal count and rising distance."""
    mae: list[float]
    """Mean absolute error in each bin, in the unit."""


class TestTwins(TypedDict):
    """A test structure and another one of close geometry whose target is far off."""

    target: str
    """Name of the target."""
    test: int
    """Position of the test structure in the test split."""
    ids: list[str]
    """Names of the test structure and of the other one."""
    formula: str
    """Their formula."""
    distance: float
    """Largest difference of their signatures, angstrom."""
    difference: float
    """Difference of the target."""
    allowed: float
    """Largest difference that geometry explains."""
    unit: str
    """Unit of the difference: per atom for total energies."""
    told_apart_by: list[str]
    """Attributes of the store, unread by the members, in which they differ."""


class LocalJoining(TypedDict):
    """What a regression on local descriptors adds to a head, on structures that nothing saw.

    They are those by which members are weighted: ``val`` and ``sel``, or all folds.
    """

    weight: float
    """Its weight in the mean; 0 where it is left out."""
    mae: float
    """Its error alone, in the head's unit."""
    mae_without: float
    """Error of the nets without it."""
    mae_with: float
    """Error with the weight that suits it best, also where it is left out."""
    z: float
    """Difference of the two, in standard errors over groups; it joins at -2 or less."""


class EnsembleTable(TypedDict):
    """Facts about an ensemble: the answer of its job, and ``report/ensemble.json``."""

    path: NotRequired[str]
    """Path of the ensemble's file; absent in ``report/ensemble.json``."""
    method: str
    """Selection method: ``top`` or ``greedy``."""
    why: str
    """Why this method was used: a sentence for a person."""
    folds: NotRequired[int | None]
    """Folds that the members were trained on, and judged out of; null for members trained on the
    training split and judged on ``sel``; absent in the tables of earlier versions."""
    members: list[EnsembleMember]
    """The members."""
    heads: dict[str, HeadScores]
    """Scores on the test split, by head."""
    selection: dict[str, SelectionScores]
    """Scores by method: ``top``, ``greedy``, and ``single`` for the best trial alone."""
    leaderboard: list[RankedTrial]
    """All trials with a result, best first."""
    diversity: dict[str, HeadDiversity]
    """Diversity of the members, by head."""
    curves: dict[str, Curves]
    """Curves on the test split, by head."""
    verdict: NotRequired[list[VerdictSentence]]
    """What to conclude from the figures; absent in the tables of earlier versions."""
    warnings: list[str]
    """Sentences for a person."""
    candidates: list[CandidateErrors]
    """Trials that could become members."""
    by_size: dict[str, list[EnsembleSize]]
    """Scores of ensembles of increasing size, by order: ``top`` and ``greedy``."""
    local_descriptors: NotRequired[dict[str, LocalJoining]]
    """Regressions on local descriptors as members, by head that they may join; absent in the tables
    of earlier versions."""
    described_by: NotRequired[str]
    """What these describe atoms by: ``local descriptors``, which is meant where it is absent, or
    ``features of`` a foundation model."""
    test_twins: NotRequired[list[TestTwins] | None]
    """Near twins in the test split, the worst first; null where the stores are too large for the
    search; absent in the tables of earlier versions."""


class LeaderboardEntry(TypedDict):
    """A trial of the leaderboard; ``campaign.status.LeaderboardRow`` as plain data."""

    rank: int | None
    """Position among the trials with a result, from 1, those with most epochs first; null without a
    result."""
    trial: str
    """Name of the trial."""
    parent: str | None
    """Trial whose values it repeats with another seed; null in trials of the search itself."""
    status: str
    """``queued``, ``running``, ``stopped``, ``completed``, ``failed`` or ``cancelled``."""
    reason: str | None
    """Reason of its status; null if there is none."""
    epochs: int
    """Epochs it has trained."""
    width: int
    """Number of ranks of its newest attempt."""
    objective: float | None
    """Validation objective, in units of each target's spread."""
    score: float | list[float] | None
    """Value that ranks it, a list for several goals."""
    front: bool | None
    """Whether it is on the Pareto front; null if there is only one goal."""
    val_mae: dict[str, float | None]
    """Validation MAE by head, in the head's unit."""
    slot_seconds: float
    """Seconds that it held slots, summed over the slots."""
    energy_joules: float | None
    """Energy of its slots in joules, from the hosts' counters; null if nothing was counted."""
    energy_share: float | None
    """Fraction of ``slot_seconds`` in which energy was counted; null while it runs."""
    conv: str
    """Its conv, searched or fixed; empty where trials are a command. Absent in older files."""
    values: SearchedValues
    """Its searched values."""


class LeaderboardTable(TypedDict):
    """All trials, best first."""

    units: dict[str, str]
    """Unit of each target."""
    trials: list[LeaderboardEntry]
    """The rows."""


class StatusCounts(TypedDict, total=False):
    """Number of trials by status; zero counts are absent."""

    queued: int
    running: int
    stopped: int
    completed: int
    failed: int
    cancelled: int


class RunFigures(StatusCounts):
    """How a campaign used its slots, computed by ``JournalFold.figures``."""

    trials: int
    """Number of proposed trials."""
    attempts: int
    """Number of placed attempts."""
    wide_attempts: int
    """Number of attempts with two ranks or more."""
    restarts: dict[str, int]
    """Number of interrupted attempts by reason."""
    first_step_seconds: float | None
    """Median time from placement to the first optimizer step, in a forked rank; null before one."""
    cold_start_seconds: float | None
    """The same plus the median import time of a zygote: the time without one."""
    slot_seconds: float
    """Seconds of all slots, from the first placement to the last end under each controller."""
    utilization: float | None
    """Fraction of ``slot_seconds`` spent in training and validation; null before anything ran."""
    losses: dict[str, float]
    """Fractions of ``slot_seconds`` by cause, see ``accounting.CAUSES``; their sum is 1."""
    energy_joules: NotRequired[float | None]
    """Energy of all hosts in joules; null if nothing was counted. Early versions wrote none of the
    three energy fields."""
    energy_idle_joules: NotRequired[float | None]
    """Energy in joules of slots that no trial held."""
    energy_parts: NotRequired[list[str] | None]
    """Parts of a host that were counted."""


class RunSummary(TypedDict):
    """``summary.json`` of a finished run, written once by ``hydragnn-hpo run``."""

    ensemble: EnsembleTable | None
    """Null where trials are a command."""
    verdict: NotRequired[list[VerdictSentence]]
    """What to conclude from the ensemble's figures; empty where trials are a command."""
    leaderboard: LeaderboardTable
    """All trials, best first."""
    figures: RunFigures
    """How the campaign used its slots."""
