"""Propose with Optuna's tree-structured Parzen estimator (TPE).

Optuna sees only active keys: positions in [0, 1] and indices of choices. This module handles steps,
logarithms and duplicates. It rebuilds the study from its own results whenever there are new ones,
so that the study stays small and is the same after a restart.
"""

import contextlib
import logging
import random
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.optional_packages import explain_missing
from hydragnn_hpo.search.brains.sampling import SamplingBrain, is_enough, spread_points
from hydragnn_hpo.search.constraints import Constraint
from hydragnn_hpo.search.objective import Point, TrialScore, finite_or_none, rank_points
from hydragnn_hpo.search.space import (
    active_parameters,
    choice_index,
    configuration_key,
    is_active,
    order_by_conditions,
    position_of,
    value_at,
)


@contextlib.contextmanager
def silence_optuna() -> Iterator[None]:
    """Suppress Optuna's messages and warnings below the level of errors."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


BEST = 25
"""Most results that TPE models as good; its own default."""

LIARS = 64
"""Newest pending proposals that TPE sees; its time grows with each."""

OTHERS = 275
"""Further results that TPE sees, spread evenly over all; its time grows with each."""

TRIES = 3
"""Draws from the model per requested proposal; missing ones are drawn at random."""


Result = tuple[dict[str, Scalar], Point | None]


class OptunaBrain(SamplingBrain):
    """Spreads its first proposals evenly, then follows TPE.

    Pending proposals count as bad ones (the constant liar), failures as the worst.
    Source: Bergstra et al. (2011), "Algorithms for hyper-parameter optimization", NeurIPS.
    """

    def __init__(
        self, space: Space, *, seed: int, initial: int, constraints: Sequence[Constraint] = ()
    ) -> None:
        """Start without results."""
        with explain_missing("search.brain 'optuna'"):
            import optuna

        super().__init__(space, spread_points(len(space), seed, initial), constraints)
        self._optuna: Any = optuna
        self._order = order_by_conditions(space)
        self._generator = random.Random(seed)
        self._seed = seed
        self._initial = max(1, initial)
        self._results: list[Result] = []
        self._pending: dict[str, dict[str, Scalar]] = {}
        self._study: Any = None
        """None when there are new results, so that ``_current`` must rebuild it."""
        self._open: deque[Any] = deque()
        """Optuna's trials for the newest proposals."""

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose new configurations: spread ones first, then modelled ones."""
        if not is_enough([objective for _, objective in self._results], self._initial):
            taken = super().ask(count)
        else:
            with silence_optuna():
                taken = self._modelled(count)
            taken += self._known.take(count - len(taken), self._random)
        self._pending |= {configuration_key(values): values for values in taken}
        return taken

    def tell(self, score: TrialScore) -> None:
        """Take in a result of the first rung; the model learns it at the next ``ask``."""
        if score.rung > 0:
            return
        chosen = active_parameters(self._known.space, self._known.remember(score.values))
        self._pending.pop(configuration_key(chosen), None)
        self._take_in(chosen, score.objective)

    def _expect(self, values: Mapping[str, Scalar]) -> None:
        chosen = active_parameters(self._known.space, self._known.remember(values))
        self._pending[configuration_key(chosen)] = chosen

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Take in results of earlier campaigns."""
        for values, objective in results:
            self._take_in(
                active_parameters(self._known.space, self._known.convert_types(values)), objective
            )

    def _take_in(self, chosen: dict[str, Scalar], objective: Point | None) -> None:
        self._results.append((chosen, finite_or_none(objective)))
        self._study = None

    def _random(self) -> dict[str, Scalar]:
        space = self._known.space
        return {name: value_at(space[name], self._generator.random()) for name in space}

    def _modelled(self, count: int) -> list[dict[str, Scalar]]:
        """Draw configurations from the model; fewer if it repeats known ones."""
        study = self._current()
        taken: list[dict[str, Scalar]] = []
        for _ in range(TRIES * count):
            if len(taken) == count:
                break
            trial = study.ask()
            values = self._suggested(trial)
            if self._known.offer(values):
                taken.append(active_parameters(self._known.space, values))
                self._open.append(trial)
                trial = self._open.popleft() if len(self._open) > LIARS else None
            if trial is not None:  # TPE ignores failed trials
                study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return taken

    def _suggested(self, trial: Any) -> dict[str, Scalar]:
        values: dict[str, Scalar] = {}
        space = self._known.space
        for name in self._order:
            choices = space[name].choices
            if not is_active(space, name, values):
                continue
            if choices is not None:
                values[name] = choices[trial.suggest_categorical(name, range(len(choices)))]
            else:
                values[name] = value_at(space[name], trial.suggest_float(name, 0.0, 1.0))
        return values

    def _current(self) -> Any:
        """Return a study of what is known; pending proposals are running trials in it."""
        if self._study is None:
            optuna, states = self._optuna, self._optuna.trial.TrialState
            seed = derive_seed(self._seed, "optuna", str(len(self._results)))
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True
            )
            points = [objective for _, objective in self._results if objective is not None]
            count = len(points[0]) if isinstance(points[0], tuple) else 1
            self._study = optuna.create_study(sampler=sampler, directions=["minimize"] * count)
            self._open.clear()
            for values, objective in _thin_out(self._results):
                if objective is None:  # pruned before its first value: worse than all that have one
                    self._add(values, state=states.PRUNED)
                else:
                    several = objective if isinstance(objective, tuple) else (objective,)
                    self._add(values, state=states.COMPLETE, values=several)
            for values in list(self._pending.values())[-LIARS:]:
                self._add(values, state=states.RUNNING)
        return self._study

    def _add(self, chosen: Mapping[str, Scalar], **known: Any) -> None:
        kinds = self._optuna.distributions
        params: dict[str, Any] = {}
        distributions = {}
        for name, value in chosen.items():
            parameter = self._known.space[name]
            if parameter.choices is not None:
                params[name] = choice_index(parameter, value)
                places = range(len(parameter.choices))
                distributions[name] = kinds.CategoricalDistribution(places)
            else:
                params[name] = min(max(position_of(parameter, value), 0.0), 1.0)
                distributions[name] = kinds.FloatDistribution(0.0, 1.0)
        trial = self._optuna.trial.create_trial(params=params, distributions=distributions, **known)
        self._study.add_trial(trial)


def _thin_out(results: Sequence[Result]) -> list[Result]:
    """Keep the best results and some of the others, in their order."""
    if len(results) <= BEST + OTHERS:
        return list(results)
    scored = [place for place, (_, objective) in enumerate(results) if objective is not None]
    points = [objective for _, objective in results if objective is not None]
    best = {scored[place] for place in rank_points(points)[:BEST]}
    others = [place for place in range(len(results)) if place not in best]
    spread = {others[index * len(others) // OTHERS] for index in range(OTHERS)}
    return [results[place] for place in sorted(best | spread)]
