"""Brains that propose trials, and what a searched space means."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.search.brain import Brain, Row, make_brain, select_warm_start
    from hydragnn_hpo.search.brains.optuna_brain import silence_optuna
    from hydragnn_hpo.search.constraints import (
        Constraint,
        check_feasible_share,
        complete_configuration,
        find_broken_constraint,
        read_constraints,
    )
    from hydragnn_hpo.search.objective import (
        Point,
        check_objective,
        finite_number,
        goal_label,
        goals,
        lacks_number,
        pareto_front,
        rank_points,
        read_epoch_objective,
        read_objective,
    )
    from hydragnn_hpo.search.pruner import TrialPruner
    from hydragnn_hpo.search.rungs import (
        Promotion,
        RungResult,
        promote_asynchronously,
        promote_finalists,
        promote_synchronously,
    )
    from hydragnn_hpo.search.space import (
        PARTS,
        active_parameters,
        apply_values,
        canonical_values,
        check_space,
        choice_index,
        fixed_values,
        is_in,
        list_values,
        position_of,
        snap_value,
        value_at,
    )

__all__ = [
    "Brain",
    "Constraint",
    "PARTS",
    "Point",
    "Promotion",
    "Row",
    "RungResult",
    "TrialPruner",
    "active_parameters",
    "apply_values",
    "canonical_values",
    "check_feasible_share",
    "check_objective",
    "check_space",
    "choice_index",
    "complete_configuration",
    "find_broken_constraint",
    "finite_number",
    "fixed_values",
    "goal_label",
    "goals",
    "is_in",
    "lacks_number",
    "list_values",
    "make_brain",
    "pareto_front",
    "position_of",
    "promote_asynchronously",
    "promote_finalists",
    "promote_synchronously",
    "rank_points",
    "read_constraints",
    "read_epoch_objective",
    "read_objective",
    "select_warm_start",
    "silence_optuna",
    "snap_value",
    "value_at",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
