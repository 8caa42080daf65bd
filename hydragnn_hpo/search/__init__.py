"""Brains that propose trials, and what a searched space means."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.search.brain import Brain, make_brain
    from hydragnn_hpo.search.constraints import (
        check_feasible_share,
        find_broken_constraint,
        read_constraints,
    )
    from hydragnn_hpo.search.objective import Point, finite_number, pareto_front
    from hydragnn_hpo.search.rungs import (
        Promotion,
        RungResult,
        promote_asynchronously,
        promote_finalists,
        promote_synchronously,
    )
    from hydragnn_hpo.search.space import (
        active_parameters,
        apply_values,
        canonical_values,
        check_space,
        fixed_values,
        is_in,
        snap_value,
    )

__all__ = [
    "Brain",
    "Point",
    "Promotion",
    "RungResult",
    "active_parameters",
    "apply_values",
    "canonical_values",
    "check_feasible_share",
    "check_space",
    "find_broken_constraint",
    "finite_number",
    "fixed_values",
    "is_in",
    "make_brain",
    "pareto_front",
    "promote_asynchronously",
    "promote_finalists",
    "promote_synchronously",
    "read_constraints",
    "snap_value",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
