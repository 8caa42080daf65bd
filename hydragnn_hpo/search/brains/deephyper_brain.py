"""Propose with DeepHyper, which models all results and chooses among new candidates.

DeepHyper sees a flat space of numbers in [0, 1] and labels. This module handles steps, logarithms,
conditions and duplicates by the candidates that it draws. ``search/README.md`` explains why.
"""

import contextlib
import logging
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.optional_packages import explain_missing
from hydragnn_hpo.search.brains.sampling import SamplingBrain, is_enough, spread_points
from hydragnn_hpo.search.constraints import Constraint
from hydragnn_hpo.search.objective import Point, TrialScore, finite_or_none
from hydragnn_hpo.search.space import (
    active_parameters,
    canonical_values,
    choice_index,
    configuration_key,
    position_of,
    value_at,
    values_at,
)

CANDIDATES = 1000
"""Points the acquisition function chooses from at each fit."""

TREES = 25
"""Number of trees of the model (extremely randomized trees)."""

BATCH = 16
"""Most points of one request to DeepHyper, which fits its model once for each of them."""

POOL = 16
"""Random points per requested point that the model ranks when there are no new results."""

DRAWS = 4
"""Most points drawn per candidate; if rules reject too many, there are fewer candidates."""

Encoded = dict[str, float | str]
Result = tuple[dict[str, Scalar], Point | None]


class DeepHyperBrain(SamplingBrain):
    """Spreads its first proposals evenly, then follows DeepHyper's CBO.

    Results are collected and reported in one batch at the next ``ask``. The optimizer is asked only
    when there are new results; else its newest model ranks random points.
    """

    def __init__(
        self, space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
    ) -> None:
        super().__init__(space, spread_points(len(space), seed, initial), constraints)
        self._labels = {name: f"x{index:03d}" for index, name in enumerate(space)}
        self._generator = random.Random(seed)
        self._initial = max(1, initial)
        self._news: list[Result] = []
        self._objectives: list[Point | None] = []
        self._search = self._make_search(seed)

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose new configurations: spread ones first, then modelled ones."""
        if not is_enough(self._objectives, self._initial):
            return super().ask(count)
        taken = []
        if self._news and count > 0:
            with _quiet():
                self._search.tell([self._encode_result(result) for result in self._news])
                self._news = []
                del self._search._opt.models[:-1]
                proposals = [self._decode(point) for point in self._search.ask(min(count, BATCH))]
            taken = [
                active_parameters(self._known.space, p) for p in proposals if self._known.offer(p)
            ]
        return taken + self._ranked(count - len(taken))

    def tell(self, score: TrialScore) -> None:
        """Take in a result of the first rung; the model learns it at the next ``ask``."""
        if score.rung == 0:
            self._take_in(self._known.remember(score.values), score.objective)

    def _take_in(self, full: dict[str, Scalar], objective: Point | None) -> None:
        objective = finite_or_none(objective)
        self._news.append((full, objective))
        self._objectives.append(objective)

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Take in results of earlier campaigns; the model learns them at the first ``ask``."""
        for values, objective in results:
            self._take_in(
                canonical_values(self._known.space, self._known.convert_types(values)), objective
            )

    def _ranked(self, count: int) -> list[dict[str, Scalar]]:
        """Return the best of new random points by the predictions of the newest model."""
        if count <= 0:
            return []
        pool = self._candidates(POOL * count)
        optimizer = self._search._opt
        names = optimizer.space.dimension_names
        rows = [[point[name] for name in names] for point in map(self._encode, pool)]
        with _quiet():
            scores = optimizer.models[-1].predict(optimizer.space.transform(rows)) if rows else []
        ranking = sorted(range(len(pool)), key=lambda index: (float(scores[index]), index))
        best = iter([pool[index] for index in ranking[:count]])
        return self._known.take(count, lambda: next(best, None) or self._random())

    def _random(self) -> dict[str, Scalar]:
        return values_at(self._known.space, [self._generator.random() for _ in self._known.space])

    def _candidates(self, size: int) -> list[dict[str, Scalar]]:
        """Draw distinct canonical configurations that are new; fewer if they run out."""
        space = self._known.space
        distinct = {}
        allowed = 0
        for _ in range(DRAWS * size):
            chosen = active_parameters(space, self._random())
            if not self._known.allows(chosen):
                continue
            allowed += 1
            if self._known.is_new(chosen):
                distinct[configuration_key(chosen)] = canonical_values(space, chosen)
            if len(distinct) == size or allowed == 2 * size:
                break
        return list(distinct.values())

    def _sample(self, size: int) -> list[Encoded]:
        """Return candidates for DeepHyper; at least one, because it fails without any."""
        candidates = self._candidates(size) or [canonical_values(self._known.space, self._random())]
        return [self._encode(values) for values in candidates]

    def _encode(self, values: Mapping[str, Scalar]) -> Encoded:
        point: Encoded = {}
        for name, parameter in self._known.space.items():
            if parameter.choices is not None:
                point[self._labels[name]] = f"c{choice_index(parameter, values[name])}"
            else:
                place = position_of(parameter, values[name])
                point[self._labels[name]] = min(max(place, 0.0), 1.0)
        return point

    def _decode(self, point: Mapping[str, float | str]) -> dict[str, Scalar]:
        values: dict[str, Scalar] = {}
        for name, parameter in self._known.space.items():
            raw = point[self._labels[name]]
            if parameter.choices is not None:
                values[name] = parameter.choices[int(str(raw)[1:])]
            else:
                values[name] = value_at(parameter, float(raw))
        return canonical_values(self._known.space, values)

    def _encode_result(self, result: Result) -> tuple[Encoded, float | str | list[float]]:
        """Encode a result for DeepHyper, which maximizes: objectives change their sign.

        It combines several goals into one number with weights that it redraws for each fit.
        """
        values, objective = result
        if objective is None:
            return self._encode(values), "F_diverged"
        if isinstance(objective, tuple):
            return self._encode(values), [-score for score in objective]
        return self._encode(values), -objective

    def _make_search(self, seed: int) -> Any:
        with _without_mpi(), explain_missing():
            from deephyper.hpo import CBO, HpProblem

        problem = HpProblem()
        for name, parameter in self._known.space.items():
            if parameter.choices is None:
                problem.add((0.0, 1.0), self._labels[name])
            else:
                labels = [f"c{index}" for index in range(len(parameter.choices))]
                problem.add(labels, self._labels[name])
        # A plain function: DeepHyper deep-copies the problem, with a bound method also the brain.
        problem.set_sampling_fn(lambda size: self._sample(size))
        with _quiet(), tempfile.TemporaryDirectory() as folder:
            search = CBO(
                problem,
                random_state=seed % 2**32,
                log_dir=folder,
                checkpoint_history_to_csv=False,
                surrogate_model="ET",
                surrogate_model_kwargs={"n_estimators": TREES, "min_impurity_decrease": 0.0},
                acq_optimizer="sampling",
                acq_optimizer_kwargs={"n_points": CANDIDATES, "max_total_failures": -1},
                n_initial_points=self._initial,
            )
        # It counts successes alone; ``is_enough`` waits for the results that the schedule expects.
        search._opt_kwargs["n_initial_points"] = min(2, self._initial)
        return search


@contextlib.contextmanager
def _without_mpi() -> Iterator[None]:
    """Hide mpi4py from an import.

    If mpi4py is installed, DeepHyper imports it without initializing MPI. ASE then assumes that
    MPI runs, and its calls make MPI end the process (seen with mpi4py 4.1, ASE 3.29).
    """
    there = "mpi4py" in sys.modules
    if not there:
        sys.modules["mpi4py"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not there:
            del sys.modules["mpi4py"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep DeepHyper from logging through the root logger or adding a handler to it."""
    root = logging.getLogger()
    listener = logging.NullHandler()
    package = logging.getLogger("deephyper")
    level = package.level
    root.addHandler(listener)
    root.addFilter(_not_from_deephyper)
    package.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Issued when candidates run out; ``ask`` replaces duplicates.
            warnings.filterwarnings("ignore", message="The objective has been evaluated")
            yield
    finally:
        package.setLevel(level)
        root.removeFilter(_not_from_deephyper)
        root.removeHandler(listener)


def _not_from_deephyper(record: logging.LogRecord) -> bool:
    return "deephyper" not in record.pathname or record.levelno >= logging.WARNING
