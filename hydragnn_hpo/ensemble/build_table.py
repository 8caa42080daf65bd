"""The fields of ``RUN/report/ensemble.json``: what a build reports about the ensemble it made.

``build_ensemble`` writes the file; the report and ``ensemble build`` show it. The ensemble file has
its own ``ensemble.json`` with another schema: ``artefact.Manifest``.

Lengths: M members of a head. Errors are in the unit of their head.
"""

from typing import NotRequired, TypedDict

HeadScores = dict[str, float | int | str | None]
"""Scores of one head on the test split by name; None for a score that has no value.

``unit``, then ``test_rows test_mae test_rmse`` and every other figure of
``uncertainty_scores.compute_figures``, then ``single_mae`` (MAE of the trial with the lowest
validation objective), ``test_mae_top_k`` and ``test_mae_greedy`` (MAE of the ensemble that each
selection method proposes).
"""

Curves = dict[str, dict[str, list[float]]]
"""Curves of one head by name and axis, see ``uncertainty_scores.compute_curves``."""


class TrialSummary(TypedDict):
    """One trial with a result."""

    trial: str
    """Name of the trial."""
    conv: str
    """Name of its conv."""
    status: str
    """How its last attempt ended, as ``completed``."""
    objective: float | None
    """Validation objective, in standard deviations; None for a failed trial."""
    epochs: int | None
    """Epochs trained; None where the result does not hold them."""


class MemberRow(TypedDict):
    """One member of the ensemble."""

    trial: str
    """Name of the trial."""
    weights: dict[str, float]
    """Share in the mean of each head that it takes part in, > 0."""
    objective: float
    """Validation objective, in standard deviations."""
    val_mae: dict[str, float]
    """Validation MAE by head."""
    weight: float
    """Mean of ``weights``."""


class MemberWeights(TypedDict):
    """One member of a mix that was compared on ``sel``."""

    trial: str
    """Name of the trial."""
    weight: float
    """Mean share over all heads, those it takes no part in included."""
    weights: dict[str, float]
    """Share in the mean of each head that it takes part in, > 0."""


class MixScores(TypedDict):
    """One mix of candidates on ``sel``."""

    sel_loss: float
    """Weighted MAE over heads, in standard deviations of the targets."""
    sel_mae: dict[str, float]
    """MAE by head."""
    flops_per_graph: float
    """Floating point operations of all its members on the mean structure."""
    members: list[MemberWeights]
    """The candidates with weight in any head."""


class HeadDiversity(TypedDict):
    """How much one head gains by mixing its members, on ``sel``; see ``Diversity``."""

    members: list[str]
    """Trials of the M members."""
    correlation: list[list[float]]
    """Correlation of the members' errors, M x M; 1 on the diagonal."""
    mean_correlation: float | None
    """Mean off the diagonal; None for one member."""
    mse: float
    """Mean square error of the mix, in the unit squared."""
    mean_member_mse: float
    """Weighted mean of the members' mean square errors, in the unit squared."""
    ambiguity: float
    """Weighted mean square by which members differ from the mix, in the unit squared."""


class CandidateErrors(TypedDict):
    """One candidate alone."""

    trial: str
    """Name of the trial."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head."""


class SizeErrors(TypedDict):
    """The plain mean of the first K candidates of an order."""

    members: int
    """K."""
    added: str
    """Trial that came in as number K."""
    sel_mae: dict[str, float]
    """MAE on ``sel`` by head."""
    test_mae: dict[str, float] | None
    """MAE on ``test`` by head; None where one of the K did not predict ``test`` (Law 6)."""


class BuildTable(TypedDict):
    """All that a build reports."""

    path: NotRequired[str]
    """Path of the ensemble file; the report's file leaves it out."""
    method: str
    """Selection method that was kept: ``top`` or ``greedy``."""
    why: str
    """Why that one."""
    members: list[MemberRow]
    """Members of the ensemble."""
    heads: dict[str, HeadScores]
    """Scores on the test split by head."""
    selection: dict[str, MixScores]
    """The mixes of ``top`` and ``greedy``, and ``single``: the lowest validation objective."""
    leaderboard: list[TrialSummary]
    """Every trial with a result, best first."""
    diversity: dict[str, HeadDiversity]
    """By head."""
    curves: dict[str, Curves]
    """By head."""
    warnings: list[str]
    """Reasons to distrust the ensemble, a sentence each."""
    candidates: list[CandidateErrors]
    """Every trial that could have become a member."""
    by_size: dict[str, list[SizeErrors]]
    """By order (``top``: rising objective; ``greedy``: as drawn), for K = 1, 2 and so on."""
