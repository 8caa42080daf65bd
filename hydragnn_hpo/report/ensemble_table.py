"""``RUN/report/ensemble.json``: what ``ensemble.build_ensemble`` measured of an ensemble.

The splits that numbers come from are part of their names: ``val`` (validation during training),
``sel`` (selection of members) and ``test``. An unqualified error is one of the test split.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir

ScoreName = Literal[
    "test_rows",
    "test_mae",
    "test_rmse",
    "single_mae",
    "mean_baseline_mae",
    "ratio_to_mean",
    "coverage50",
    "coverage90",
    "raw_coverage90",
    "width90",
    "crps",
    "nll",
    "ence",
    "area",
    "spearman",
]
"""Numbers of a head that the report shows."""


class HeadScores(TypedDict):
    """Scores of the ensemble for one head on the test split.

    Errors, widths and CRPS are in ``unit``; ratios and coverages are shares, 1 is all. A score
    without a value, such as a rank correlation of constants, is None.
    """

    unit: str
    test_mae: float
    single_mae: float
    """MAE of the best single member."""
    mean_baseline_mae: float
    """MAE of always predicting the mean of the training data."""
    ratio_to_mean: float
    """``test_mae`` over ``mean_baseline_mae``."""
    coverage90: float
    """Share of values inside their 90 % interval."""
    test_rows: NotRequired[int]
    """Values of the test split; a vector counts once."""
    test_rmse: NotRequired[float | None]
    coverage50: NotRequired[float | None]
    raw_coverage90: NotRequired[float | None]
    """Coverage by the spread of the members alone, before calibration."""
    width90: NotRequired[float | None]
    """Mean width of the 90 % intervals."""
    crps: NotRequired[float | None]
    """Continuous ranked probability score."""
    nll: NotRequired[float | None]
    """Negative log likelihood in nats."""
    ence: NotRequired[float | None]
    """Expected normalized calibration error."""
    area: NotRequired[float | None]
    """Miscalibration area."""
    spearman: NotRequired[float | None]
    """Rank correlation of |error| and sigma."""


class EnsembleMember(TypedDict):
    """One member of the ensemble."""

    trial: str
    weight: float
    """Share in the mean, averaged over heads."""
    objective: float
    """Validation objective, in standard deviations of the targets."""
    val_mae: Mapping[str, float]
    """By head, in the head's unit."""


class HeadDiversity(TypedDict):
    """How differently the members of a head err on ``sel``: mse = mean_member_mse - ambiguity."""

    members: Sequence[str]
    """Trials, in the order of ``correlation``."""
    correlation: Sequence[Sequence[float]]
    """Of the members' errors, [M, M]."""
    mean_correlation: float | None
    """Mean off the diagonal; None for one member."""
    mse: float
    """Mean square error of the weighted mean, in the unit squared."""
    mean_member_mse: float
    ambiguity: float
    """Weighted mean square by which members differ from their mean, in the unit squared."""


class SizeErrors(TypedDict):
    """Errors of the plain mean of the first K candidates."""

    members: int
    """K."""
    added: str
    """Trial by which it differs from K - 1."""
    sel_mae: Mapping[str, float]
    """By head."""
    test_mae: Mapping[str, float] | None
    """By head; None where a candidate was not run on the test split."""


class CandidateErrors(TypedDict):
    """Errors of a trial that could have become a member."""

    trial: str
    sel_mae: Mapping[str, float]
    """By head."""


class LeaderboardRow(TypedDict):
    """A trial with a result."""

    trial: str
    conv: str
    status: str
    objective: float | None
    """Validation objective, in standard deviations of the targets."""


Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Points of the curves of a head, by curve and axis; see ``ensemble.compute_curves``."""


class EnsembleTable(TypedDict):
    """The whole file; keys that older versions did not write may be missing."""

    path: str
    """The ensemble file."""
    method: str
    """``top`` (the K of lowest objective) or ``greedy``."""
    why: str
    """Why that method was kept."""
    heads: Mapping[str, HeadScores]
    members: Sequence[EnsembleMember]
    leaderboard: Sequence[LeaderboardRow]
    """Best first."""
    diversity: Mapping[str, HeadDiversity]
    """By head."""
    curves: NotRequired[Mapping[str, Curves]]
    """By head."""
    candidates: NotRequired[Sequence[CandidateErrors]]
    by_size: NotRequired[Mapping[str, Sequence[SizeErrors]]]
    """By method, for K = 1, 2 and so on."""


def read_ensemble_table(run: RunDir) -> EnsembleTable | None:
    """Read the table of a run's ensemble; None before there is one.

    Raises:
        StorageError: the file is unreadable, or holds something else.
    """
    path = run.report / "ensemble.json"
    if not path.exists():
        return None
    table: EnsembleTable = read_json(path)
    if not isinstance(table, dict) or not isinstance(table.get("heads"), dict):
        raise StorageError(f"{path}: names no heads; remove it, and build the ensemble again.")
    return table
