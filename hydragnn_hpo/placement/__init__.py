"""What trials cost, and where and how wide they run; pure functions."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.placement.cost_model import (
        CostModel,
    )
    from hydragnn_hpo.placement.planner import plan
    from hydragnn_hpo.placement.pool import SlotPool
    from hydragnn_hpo.placement.price import Price, mean_neighbors, mean_triplets
    from hydragnn_hpo.placement.simulator import (
        Bar,
        SimulatedWork,
        SimulationResult,
        SimulationSettings,
        draw_error,
        simulate,
    )
    from hydragnn_hpo.placement.task import Plan, PlanningContext, RunningTask, StartTask, Task

__all__ = [
    "Bar",
    "CostModel",
    "Plan",
    "PlanningContext",
    "Price",
    "RunningTask",
    "SimulatedWork",
    "SimulationResult",
    "SimulationSettings",
    "SlotPool",
    "StartTask",
    "Task",
    "draw_error",
    "mean_neighbors",
    "mean_triplets",
    "plan",
    "simulate",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
