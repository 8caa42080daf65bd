"""The steps of a user's work: data files to a campaign, and a campaign to its result."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.pipeline.campaign_changes import load_campaign
    from hydragnn_hpo.pipeline.campaign_plans import plan_campaign
    from hydragnn_hpo.pipeline.campaign_runs import (
        RunDisplay,
        RunSettings,
        forget_run,
        make_shutdown_request,
        run_campaign,
    )
    from hydragnn_hpo.pipeline.estimate_stats import check_campaign_file
    from hydragnn_hpo.pipeline.init_files import (
        InitRequest,
        InitResult,
        describe_data,
        describe_search,
        describe_split,
        explain_units,
        init_from_card,
        init_from_files,
        is_card,
        write_files,
    )

__all__ = [
    "InitRequest",
    "InitResult",
    "RunDisplay",
    "RunSettings",
    "check_campaign_file",
    "describe_data",
    "describe_search",
    "describe_split",
    "explain_units",
    "forget_run",
    "init_from_card",
    "init_from_files",
    "is_card",
    "load_campaign",
    "make_shutdown_request",
    "plan_campaign",
    "run_campaign",
    "write_files",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
