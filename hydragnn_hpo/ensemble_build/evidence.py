"""What the verdict needs to know beside the figures of heads: data, search, and twins."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from hydragnn_hpo.config import TrunkSpec
from hydragnn_hpo.data import Columns, close, mark_far, open_store
from hydragnn_hpo.ensemble_build.candidates import (
    BuildContext,
    Net,
    compare_embeddings,
    find_curve_fits,
    list_leaderboard,
    read_learning_curve,
    read_stored_predictions,
)
from hydragnn_hpo.ensemble_build.member_selection import ScoredHead
from hydragnn_hpo.ensemble_build.verdict_evidence import (
    DataCurve,
    FarValue,
    HeadEvidence,
    SearchEvidence,
    make_data_curve,
)
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.file_records import TestTwins
from hydragnn_hpo.inspection.quality import UnresolvedTwins, find_twins_of_models
from hydragnn_hpo.training.training_parts import make_sampler
from hydragnn_hpo.training.trial import open_graphs

logger = logging.getLogger(__name__)

MOST_SEARCHED, MOST_TWINS = 50_000, 200
"""Maximum numbers of structures among which near twins are searched, and of pairs that are kept."""


def find_far_labels(context: BuildContext) -> dict[str, FarValue]:
    """Find the labels of all splits that are far from all others.

    Args:
        context: data shared by all steps of the build.

    Returns:
        The farthest by head, if there is one; of atoms, vectors and tensors the largest size in a
        structure, of total energies the farthest per atom.
    """
    rows = np.flatnonzero(context.graphs.split >= 0)
    farthest = dict[str, FarValue]()
    names = [n for n, t in context.targets.items() if t["shape"] not in ("class", "spectrum")]
    labels: dict[str, list[np.ndarray]] = {name: [] for name in names}
    sizes = context.graphs.num_nodes()[rows]
    for columns in context.take(rows):
        for name, values in labels.items():
            values.append(_largest_labels(columns, name))
    for name, values in labels.items():
        value = np.concatenate(values)
        known = np.flatnonzero(np.isfinite(value))
        total = context.targets[name].get("energy") == "total"
        compared = value[known] / sizes[known] if total else value[known]
        if mark_far(compared).any():
            place = known[np.abs(compared - np.median(compared)).argmax()]
            name_of = context.graphs.take(rows[place : place + 1]).ids[0]
            median = float(np.median(value[known]))
            farthest[name] = FarValue(name_of, float(value[place]), median, is_error=False)
    return farthest


def _largest_labels(columns: Columns, name: str) -> np.ndarray:
    """Return each graph's label of a target, or the largest size of those of its atoms, [G].

    Args:
        columns: some graphs.
        name: name of the target.

    Returns:
        NaN for graphs without one.
    """
    values, mask = columns.targets[name], columns.masks[name]
    if columns.levels[name] == "graph":
        one = values[:, 0] if values.shape[1] == 1 else np.linalg.norm(values, axis=1)
        return np.where(mask, one, np.nan)
    sizes = np.where(mask, np.linalg.norm(values, axis=1), -1.0)
    largest = np.maximum.reduceat(sizes, columns.node_offset[:-1])
    return np.where(largest < 0, np.nan, largest)


def find_data_curves(context: BuildContext) -> dict[str, DataCurve]:
    """Compare the errors on ``sel`` of the fits of the learning curve.

    Args:
        context: data shared by all steps of the build.

    Returns:
        By head; empty where the campaign has no such fits.
    """
    fits = find_curve_fits(context.run)
    if not fits:
        return {}
    full = context.candidates[0].config.training.epochs
    graphs = open_graphs(fits[0].folder, fits[0].config)  # with the splits of the search
    of_search = BuildContext(context.run, context.campaign, context.cards, graphs, fits)
    sets = [make_sampler(fit.config, graphs).sets for fit in fits]
    stored = [read_stored_predictions(f, "sel", of_search.rows_of("sel")) for f in fits]
    curves = {}
    for name in context.targets:
        truth, mask = of_search.truth(name, "sel")
        scored = ScoredHead(truth, truth, 1.0, mask, of_search.is_class(name))
        errors = [scored.errors(one[name])[mask] for one in stored]
        curves[name] = make_data_curve(
            [(sum(map(len, rows)), error) for rows, error in zip(sets, errors, strict=True)],
            of_search.group_of_row(name, "sel")[mask],
            epochs=fits[0].config.training.epochs,
            full=full,
        )
    return curves


def own_trunks(context: BuildContext) -> dict[str, TrunkSpec]:
    """Return what is known of the foundation models of the user's.

    Returns:
        Their facts, by name.
    """
    entries = context.campaign.trunks.items()
    return {name: entry.spec for name, entry in entries if entry.spec is not None}


def collect_search_evidence(context: BuildContext) -> SearchEvidence:
    """Collect what the verdict needs to know about the search and its best trial."""
    best = context.candidates[0]
    ranked = sorted(list_leaderboard(context.run), key=lambda row: row["trial"])
    scored = {row["trial"]: row["objective"] for row in ranked if row["objective"] is not None}
    named = len(context.campaign.search.initial_points)
    return SearchEvidence(
        best=best.trial,
        objectives=list(scored.values()),
        named=sum(trial < f"t{named:04d}" for trial in scored),
        curve=read_learning_curve(best.folder),
        candidates=len(context.candidates),
        embeddings=compare_embeddings(context.run),
        trunks=tuple(sorted({one.config.model.embedding for one in context.candidates})),
        own_trunks=own_trunks(context),
    )


class TwinsOfTest(NamedTuple):
    """Structures that no member can tell from test structures."""

    near: list[TestTwins]
    """Near twins with other labels, the worst first, at most ``MOST_TWINS``."""
    same: list[np.ndarray]
    """Rows of each set of twins with a test structure."""


def find_test_twins(context: BuildContext, nets: Iterable[Net]) -> TwinsOfTest | None:
    """Find the structures that no member can tell from test structures.

    Args:
        context: data shared by all steps of the build.
        nets: those of the ensemble.

    Returns:
        The twins; None if the stores hold more than ``MOST_SEARCHED`` graphs or cannot be searched.
    """
    if context.graphs.num_graphs > MOST_SEARCHED:
        return None
    read = set.intersection(*(set(net.trained.config.model.attributes) for net in nets))
    place = {int(row): k for k, row in enumerate(context.rows_of("test"))}
    listed = list[TestTwins]()
    same = list[np.ndarray]()
    first = 0
    best = context.candidates[0]
    for entry in best.config.data:
        store = best.folder.path / entry.store
        try:
            twins_of_store = find_twins_of_models(store, read)
        except HydraError as error:  # an ensemble does not need them
            logger.warning("near twins are not searched: %s", error)
            return None
        sets = [rows + first for rows in twins_of_store.same]
        same += [rows for rows in sets if not place.keys().isdisjoint(rows.tolist())]
        for twins in twins_of_store.near:
            target = entry.prefix + twins["target"]
            rows = [first + row for row in twins["rows"]]
            if target in context.targets and not place.keys().isdisjoint(rows):
                listed.append(_place_in_test(twins, target, [place.get(row) for row in rows]))
        graphs = open_store(store, access="windows")
        first += graphs.num_graphs
        close(graphs)
    listed.sort(key=lambda twins: -twins["difference"] / max(twins["allowed"], 1e-300))
    return TwinsOfTest(listed[:MOST_TWINS], same)


def count_independent(
    context: BuildContext, facts: HeadEvidence, same: Sequence[np.ndarray]
) -> HeadEvidence:
    """Count the test structures of a head, those with twins elsewhere, and independent groups.

    Args:
        context: data shared by all steps of the build.
        facts: what else is known of the head.
        same: rows of each set of twins with a test structure.

    Returns:
        The facts with ``groups``, ``structures`` and ``remembered``.
    """
    name = facts.name
    _, mask = context.truth(name, "test")
    rows = context.rows_of("test")[np.unique(context.graph_of_row(name, "test")[mask])]
    tested = set(rows.tolist())
    test = set(context.rows_of("test").tolist())
    joint = {int(group): int(group) for group in context.graphs.group[rows]}
    remembered = 0
    for twins in same:
        here = [row for row in twins.tolist() if row in tested]
        remembered += len(here) * any(row not in test for row in twins.tolist())
        groups = {joint[int(group)] for group in context.graphs.group[here]}
        joint = {group: min(groups) if of in groups else of for group, of in joint.items()}
    groups_left = len(set(joint.values()))
    return replace(facts, groups=groups_left, structures=len(rows), remembered=remembered)


def _place_in_test(twins: UnresolvedTwins, target: str, places: Sequence[int | None]) -> TestTwins:
    """Return a pair of which at least one structure is in the test split, that one first.

    Args:
        twins: the pair.
        target: name of the target in the ensemble.
        places: position of each structure in the test split; None outside of it.
    """
    test = next(place for place in places if place is not None)
    ids = twins["ids"] if places[0] is not None else twins["ids"][::-1]
    placed = {**twins, "target": target, "test": test, "ids": ids}
    return cast("TestTwins", {key: placed[key] for key in TestTwins.__annotations__})
