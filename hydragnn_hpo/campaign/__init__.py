"""The campaign: journal, state, and the loop that asks, places, watches and tells."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.accounting import CAUSES, SlotLedger, Utilization
    from hydragnn_hpo.campaign.backends import check_host_count, make_backend
    from hydragnn_hpo.campaign.campaign_checks import (
        CHECKS,
        CheckedCampaign,
        check_campaign,
        name_source,
    )
    from hydragnn_hpo.campaign.controller import Controller
    from hydragnn_hpo.campaign.event_store import JournalFold, read_state, require_campaign
    from hydragnn_hpo.campaign.forecast import (
        Forecast,
        ForecastMachine,
        PricedTrial,
        TrialPricer,
        configuration_of,
        forecast_campaign,
        rung_of,
        sample_configurations,
    )
    from hydragnn_hpo.campaign.history import JournalHistory, TrialHistory
    from hydragnn_hpo.campaign.joining import AllocationMember, patient
    from hydragnn_hpo.campaign.journal import JournalFollower, JournalReplaced, read_journal
    from hydragnn_hpo.campaign.network_probe import probe_network
    from hydragnn_hpo.campaign.outcome import last_lines, read_tail
    from hydragnn_hpo.campaign.promotion import CURVE_SHARES, choose_replicates
    from hydragnn_hpo.campaign.search_budget import SearchBudget, fit_budget
    from hydragnn_hpo.campaign.setup import (
        DataFacts,
        FeaturesPrice,
        check_run_directory,
        facts_of_cards,
        facts_of_stats,
        find_cards,
        open_run,
        price_features,
        read_software_versions,
        settle,
        stores_of,
        trial_config,
    )
    from hydragnn_hpo.campaign.shutdown import Drained, ShutdownRequest
    from hydragnn_hpo.campaign.state import RULES, State, Trial, TrialStatus, first_goal, fold
    from hydragnn_hpo.campaign.status import (
        ROWS,
        Leaderboard,
        LeaderboardRow,
        RunningTrial,
        Status,
        build_status,
        count_progress,
        describe_origin,
        describe_trial,
        find_conv,
        predict_seconds_left,
        rank_trials,
        read_leaderboard,
    )
    from hydragnn_hpo.campaign.trial_kind import TrialKind, make_trial_kind
    from hydragnn_hpo.campaign.user_requests import Kind, UserRequest, check_request, write_request

__all__ = [
    "AllocationMember",
    "CAUSES",
    "CHECKS",
    "CURVE_SHARES",
    "CheckedCampaign",
    "Controller",
    "DataFacts",
    "Drained",
    "Forecast",
    "ForecastMachine",
    "JournalFold",
    "JournalFollower",
    "JournalHistory",
    "JournalReplaced",
    "Kind",
    "Leaderboard",
    "LeaderboardRow",
    "PricedTrial",
    "ROWS",
    "RULES",
    "RunningTrial",
    "SearchBudget",
    "ShutdownRequest",
    "SlotLedger",
    "State",
    "Status",
    "Trial",
    "TrialHistory",
    "TrialKind",
    "TrialPricer",
    "TrialStatus",
    "UserRequest",
    "Utilization",
    "build_status",
    "check_campaign",
    "check_host_count",
    "check_request",
    "check_run_directory",
    "choose_replicates",
    "configuration_of",
    "count_progress",
    "describe_origin",
    "describe_trial",
    "find_conv",
    "facts_of_cards",
    "facts_of_stats",
    "find_cards",
    "FeaturesPrice",
    "price_features",
    "first_goal",
    "fit_budget",
    "fold",
    "forecast_campaign",
    "last_lines",
    "make_backend",
    "make_trial_kind",
    "name_source",
    "open_run",
    "patient",
    "predict_seconds_left",
    "probe_network",
    "rank_trials",
    "read_journal",
    "read_leaderboard",
    "read_software_versions",
    "read_state",
    "read_tail",
    "require_campaign",
    "rung_of",
    "sample_configurations",
    "settle",
    "stores_of",
    "trial_config",
    "write_request",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
