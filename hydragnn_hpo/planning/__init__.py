"""What a campaign will cost, and which search fits a time: forecasts by simulation."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.planning.campaign_plan import (
        Advice,
        CampaignPlan,
        FeaturesPrice,
        PlanRequest,
        choose_machine,
        forecast_drawn,
    )
    from hydragnn_hpo.planning.forecast import Forecast, ForecastMachine, forecast_campaign
    from hydragnn_hpo.planning.search_budget import SearchBudget, fit_budget

__all__ = [
    "Advice",
    "CampaignPlan",
    "FeaturesPrice",
    "Forecast",
    "ForecastMachine",
    "PlanRequest",
    "SearchBudget",
    "choose_machine",
    "fit_budget",
    "forecast_campaign",
    "forecast_drawn",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
