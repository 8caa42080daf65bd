"""What a brain is, and the brains there are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hydragnn_hpo.config import Scalar, Space
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.search.brains.deephyper_brain import DeepHyperBrain
from hydragnn_hpo.search.brains.optuna_brain import OptunaBrain
from hydragnn_hpo.search.brains.random_brain import RandomBrain
from hydragnn_hpo.search.brains.sobol_brain import SobolBrain
from hydragnn_hpo.search.constraints import read_constraints
from hydragnn_hpo.search.objective import Point
from hydragnn_hpo.search.space import order_by_conditions


class Brain(Protocol):
    """Proposes trials. Objectives are minimized; a brain is used by one thread at a time.

    Proposals depend on the seed and on the order of ``ask``, ``tell`` and ``replay`` alone.
    """

    def ask(self, count: int) -> list[dict[str, Scalar]]:
        """Propose active configurations that were never asked or told before.

        Fewer than ``count`` only when the space is exhausted.
        """
        ...

    def tell(self, values: Mapping[str, Scalar], objective: Point | None) -> None:
        """Take in a result: one number, or one for each goal.

        None, or what is not finite, is a failure.
        """
        ...

    def replay(
        self,
        results: Sequence[tuple[Mapping[str, Scalar], Point | None]],
        pending: Sequence[Mapping[str, Scalar]],
    ) -> None:
        """Bring a fresh brain up to date after a restart.

        Args:
            results: what was told before, in the journal's order.
            pending: proposals without a result yet, which are not to be proposed again.
        """
        ...

    def learn(self, results: Sequence[tuple[Mapping[str, Scalar], Point | None]]) -> None:
        """Take in results of earlier campaigns, before anything is asked or told.

        They teach the model, but are no trials of this campaign: each may be proposed.
        """
        ...


BRAINS: dict[str, Callable[..., Brain]] = {
    "deephyper": DeepHyperBrain,
    "optuna": OptunaBrain,
    "random": RandomBrain,
    "sobol": SobolBrain,
}
"""Classes of brains by name; each takes the space, ``seed``, ``initial`` and ``constraints``."""


def make_brain(
    name: str,
    space: Space,
    *,
    seed: int,
    initial: int,
    constraints: Sequence[str] = (),
    template: Mapping[str, Any] | None = None,
    warm: Sequence[tuple[Mapping[str, Scalar], Point | None]] = (),
) -> Brain:
    """Build a brain that knows nothing yet.

    Args:
        name: key of ``BRAINS``.
        space: searched keys and their ranges, already checked.
        seed: all its randomness derives from this.
        initial: proposals spread over the space before a model proposes.
        constraints: what every proposal meets: ``search.constraints``.
        template: values that all trials have in common, which constraints may name.
        warm: results of earlier campaigns, see ``warm_start.select_warm_start``.

    Raises:
        ConfigError: the name is unknown or its library missing, the space has conditions in a
            circle, or a constraint cannot be read.
    """
    if name not in BRAINS:
        raise ConfigError(unknown("brain", name, BRAINS))
    order_by_conditions(space)
    rules = read_constraints(constraints, space, template or {})
    brain = BRAINS[name](space, seed=seed, initial=initial, constraints=rules)
    if warm:
        brain.learn(warm)
    return brain
