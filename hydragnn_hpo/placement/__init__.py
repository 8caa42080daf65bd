"""What trials cost, and where and how wide they run; pure functions."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.placement.cost_model import CostModel
    from hydragnn_hpo.placement.planner import plan
    from hydragnn_hpo.placement.pool import SlotPool
    from hydragnn_hpo.placement.price import Price
    from hydragnn_hpo.placement.task import (
        Bar,
        Plan,
        PlanningContext,
        ResizeTask,
        RunningTask,
        StartTask,
        Task,
    )

__all__ = [
    "Bar",
    "CostModel",
    "Plan",
    "PlanningContext",
    "Price",
    "ResizeTask",
    "RunningTask",
    "SlotPool",
    "StartTask",
    "Task",
    "plan",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
