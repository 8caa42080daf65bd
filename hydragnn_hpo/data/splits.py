"""Assign structures to train, val, sel, cal and test, and propose splits for new data.

Shapes: G graphs.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.config.data_config import TRAJECTORY, SplitConfig
from hydragnn_hpo.data.label_sharing import SparseLabels, share_labels
from hydragnn_hpo.data.name_patterns import NAMES
from hydragnn_hpo.data.structure import MISSING_NUMBERS
from hydragnn_hpo.data.trajectories import FoundRuns
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.sanitize import escape_line

TEST = SPLITS.index("test")

MIN_STRUCTURES = 5
"""Smallest number of structures for five splits."""

MIN_COMPOSITIONS = 20
"""Smallest number of compositions for which splits by composition are proposed."""

MIN_CALIBRATION = 9
"""Smallest number of groups in ``cal`` for a guaranteed 90 % interval: ceil(0.9 (9 + 1)) = 9."""

ENOUGH_GROUPS = 2000
"""Sufficient number of groups in each split but train; in larger data sets train gets the rest."""


def assign_splits(
    groups: Sequence[str] | NDArray[np.int32],
    published: Sequence[str | None],
    config: SplitConfig,
    name: str,
    labels: Sequence[SparseLabels] = (),
) -> NDArray[np.int8]:
    """Return the split of every structure as an index into ``SPLITS``, [G].

    Groups are shuffled by the seed and assigned one by one to the split that lacks the most
    structures, so that each group is in one split; see ``share_labels`` for targets that few have.
    A published test split is kept unchanged, even where it divides groups.

    Args:
        groups: group of each structure, [G]: names, or numbers that sort like the names.
        published: published split of each structure, [G]; None where it has none.
        config: shares, seed, and which published value means test.
        name: name of the data set, for errors.
        labels: of the targets that some structures lack.

    Raises:
        DataError: a split would be empty, or the published test split has no structure.
    """
    result = np.full(len(groups), -1, dtype=np.int8)
    fixed = _mark_published(published, config, name)
    result[fixed] = TEST
    shares = np.array(config.shares)
    if fixed.any():
        shares[TEST] = 0.0
    rows = group_rows(np.asarray(groups)[~fixed])
    wanted = int((shares > 0).sum())
    if len(rows) < wanted:
        raise DataError(
            f"{name}: has {len(rows)} groups (split.group = {config.group!r}) for {wanted} splits; "
            "add structures or choose another split.group."
        )
    free = np.flatnonzero(~fixed)
    dealt = deal_groups(rows, shares / shares.sum(), config.seed, len(free))
    result[free] = share_labels(dealt, rows, [one.of_rows(free) for one in labels])
    return result


def _mark_published(
    published: Sequence[str | None], config: SplitConfig, name: str
) -> NDArray[np.bool_]:
    """Mark the structures that the published split puts into test, [G]."""
    fixed = np.array([value == config.published_test for value in published], dtype=bool)
    wanted = config.published is not None or any(value is not None for value in published)
    if wanted and not fixed.any():
        raise DataError(
            f"{name}: no structure is marked '{config.published_test}' in its published split; "
            "correct split.published, or set split.published_test to the value that means test."
        )
    return fixed


def group_rows(groups: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the rows of each group, groups in alphabetical order."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(counts)[:-1])


def deal_groups(
    rows: Sequence[NDArray[np.int64]], shares: NDArray[np.float64], seed: int, total: int
) -> NDArray[np.int8]:
    """Assign each shuffled group to the split that lacks the most rows; fill all with a share.

    Args:
        rows: rows of each group.
        shares: share of each split; they sum to 1.
        seed: seed of the shuffle.
        total: number of rows, G.

    Returns:
        Split of each row, [G].
    """
    result = np.full(total, -1, dtype=np.int8)
    lacking = shares * total
    empty = set(np.flatnonzero(shares > 0).tolist())
    order = np.random.default_rng(seed).permutation(len(rows))
    for done, group in enumerate(order):
        # The last groups go to the splits that are still empty.
        choice = sorted(empty) if len(rows) - done <= len(empty) else range(len(shares))
        split = max(choice, key=lambda option: (lacking[option], -option))
        result[rows[group]] = split
        lacking[split] -= len(rows[group])
        empty.discard(split)
    return result


@dataclass(frozen=True)
class SplitProposal:
    """Values for ``[split]`` of a new card, with the reason."""

    group: str
    """Value of ``SplitConfig.group``."""
    shares: tuple[float, ...]
    """Share of each split, in the order of ``SPLITS``."""
    published: str | None
    """Name of the property with the published split; None where there is none."""
    published_test: str
    """Value of that property that means test."""
    published_why: str | None
    """Which parts of the published split are kept, for a comment in the card."""
    test_share: float | None
    """Share of the structures that the published split keeps for test; None where there is none."""
    why: str
    """Reason for the group, for a comment in the card."""
    warning: str | None
    """Warning for the user; None where there is none."""


def propose_split(
    total: int,
    read: int,
    *,
    compositions: int,
    labels: Mapping[str, Mapping[str, int]],
    runs: FoundRuns | None = None,
) -> SplitProposal:
    """Propose how to split the structures of a new data set.

    Args:
        total: number of structures of the data set.
        read: number of structures in the sample that was read.
        compositions: number of distinct compositions in the sample.
        labels: for each text property the number of structures with each text.
        runs: runs of frames among the structures that were read.
    """
    full = {key: _without_empty(counts) for key, counts in labels.items() if is_split(key, counts)}
    named_splits = ((k, _find_test(k, counts, read)) for k, counts in full.items())
    published, test = next(((k, t) for k, t in named_splits if t is not None), (None, "test"))
    kept = None if published is None else _explain_published(published, test, full[published], read)
    share = None if published is None else full[published].get(test, 0) / read
    known = (published, test, kept, share)
    if compositions >= MIN_COMPOSITIONS:
        scaled = total > read and compositions > read / 2
        groups = round(compositions * total / read) if scaled else compositions
        about = "about " if total > read else ""
        apart = "splits" if published is None else "of train, val, sel and cal"
        why = f"{about}{groups:,} compositions; none stands in two {apart}"
        warning = _warn_of_calibration(groups, "compositions")
        return SplitProposal("composition", propose_shares(groups), *known, why, warning)
    if runs is not None and runs.count >= len(SPLITS):
        groups = round(runs.count * total / read)
        why = f"{_describe_runs(read, runs)}; none stands in two splits"
        warning = _warn_of_calibration(groups, "runs")
        return SplitProposal(runs.group, propose_shares(groups), *known, why, warning)
    named = "one composition" if compositions == 1 else f"{compositions} compositions"
    why = f"{named}: too few to keep them apart; every structure for itself"
    few = (_warn_of_few(named, read, runs), _warn_of_calibration(total, "structures"))
    warning = " ".join(sentence for sentence in few if sentence)
    return SplitProposal("structure", propose_shares(total), *known, why, warning)


def _warn_of_few(compositions: str, read: int, runs: FoundRuns | None) -> str:
    """Return the warning of structures that are each a group of its own.

    Args:
        compositions: number of compositions, in words.
        read: number of structures in the sample that was read.
        runs: runs of frames among them.
    """
    if runs is not None:
        return (
            f"{_describe_runs(read, runs)}: too few for the {len(SPLITS)} splits, so frames of one "
            "run stand in train and test, and no error tells anything about another run; add runs."
        )
    return (
        f"only {compositions}: structures of one composition stand in train and test, so errors "
        "and error bars hold for more of the same, not for other substances."
    )


def _describe_runs(read: int, runs: FoundRuns) -> str:
    many = f"{runs.count} runs" if runs.count > 1 else "one run"
    by = "" if runs.group == TRAJECTORY else f", by {escape_line(runs.group)[:60]}"
    return f"{read:,} structures are the frames of {many}{by}"


def propose_shares(groups: int) -> tuple[float, ...]:
    """Propose the shares of train, val, sel, cal and test, which sum to 1.

    Each split but train gets 0.1, or in large data sets the share of ``ENOUGH_GROUPS`` groups, at
    least 0.02. ``cal`` gets more where 90 % intervals need it, up to 0.25.

    Args:
        groups: number of groups of the data set.

    Returns:
        Shares in the order of ``SPLITS``, rounded to 0.01.

    >>> propose_shares(1000)
    (0.6, 0.1, 0.1, 0.1, 0.1)
    >>> propose_shares(50)
    (0.5, 0.1, 0.1, 0.2, 0.1)
    >>> propose_shares(100_000)
    (0.92, 0.02, 0.02, 0.02, 0.02)
    """
    each = min(0.1, max(0.02, math.ceil(100.0 * ENOUGH_GROUPS / max(groups, 1)) / 100.0))
    needed = math.ceil(100.0 * (MIN_CALIBRATION + 1) / max(groups, 1)) / 100.0
    cal = min(0.25, max(each, needed))
    return (round(1.0 - 3 * each - cal, 2), each, each, cal, each)


def _warn_of_calibration(groups: int, what: str) -> str | None:
    left = groups * propose_shares(groups)[3]
    if left >= MIN_CALIBRATION:
        return None
    return (
        f"{groups} {what} leave {max(1, round(left))} to calibrate with, fewer than "
        f"{MIN_CALIBRATION}: the 90 % intervals have no guarantee."
    )


def is_split(key: str, counts: Collection[str]) -> bool:
    """Check whether a property holds a published split, by its name or its values.

    Args:
        key: its name.
        counts: its values.

    >>> is_split("Split", []), is_split("scaffold_split_0", []), is_split("splitting", [])
    (True, True, False)
    >>> is_split("part", ["train", "test"]), is_split("phase", ["test", "fcc"])
    (True, False)
    """
    words = {value.strip().lower() for value in counts if value.strip() not in MISSING_NUMBERS}
    is_named = NAMES["splits"].search(key) is not None
    if marks_test(key):
        return len(words) > 1 and words <= _MARKS
    return is_named or (len(words) > 1 and words <= _SPLIT_WORDS)


def marks_test(key: str) -> bool:
    """Check by its name whether a property marks the structures of a published test split.

    >>> marks_test("is_test"), marks_test("Test Set"), marks_test("test_energy")
    (True, True, False)
    """
    return NAMES["test_marks"].search(key) is not None


_TEST_WORDS = ("test", "testing", "holdout")
"""Names of the published test split, the most usual first."""

_SPLIT_WORDS = {
    *("train", "training", "val", "valid", "validation", "dev", *_TEST_WORDS),
}
_MARKED = ("1", "true", "yes")
_MARKS = {*_MARKED, "0", "false", "no"}
"""Values of a property that marks the test split."""


def _without_empty(counts: Mapping[str, int]) -> dict[str, int]:
    return {value: n for value, n in counts.items() if value.strip() not in MISSING_NUMBERS}


def _find_test(key: str, counts: Mapping[str, int], read: int) -> str | None:
    """Return the value that means test; None if there is none or nothing beside it.

    Args:
        key: name of the property.
        counts: number of structures with each value.
        read: number of structures that were read, those without a value included.
    """
    values = {value.strip().lower(): value for value in counts}
    words = _MARKED if marks_test(key) else _TEST_WORDS
    test = next((values[word] for word in words if word in values), None)
    return test if len(counts) <= 4 and counts.get(test or "", 0) < read else None


def _explain_published(key: str, test: str, counts: Mapping[str, int], read: int) -> str:
    """Explain which parts of a published split are kept.

    Args:
        key: name of the property with the split.
        test: its value that means test.
        counts: number of structures that were read with each value.
        read: number of structures that were read, those without a value included.
    """
    parts = [f"{name} ({n:,})" for name, n in counts.items() if name != test]
    missing = read - sum(counts.values())
    others = ", ".join([*parts, *([f"those without a value ({missing:,})"] if missing else [])])
    return (
        f"from {key}: {test} ({counts[test]:,} of {read:,} that were read) stays "
        f"test; {others} are joined and dealt out to train, val, sel and cal"
    )
