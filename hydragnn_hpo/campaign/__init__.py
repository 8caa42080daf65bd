"""The campaign: journal, state, and the loop that asks, places, watches and tells."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.backends import make_backend
    from hydragnn_hpo.campaign.campaign_checks import CheckedCampaign, check_campaign
    from hydragnn_hpo.campaign.controller import Controller
    from hydragnn_hpo.campaign.event_store import JournalFold, read_state, require_campaign
    from hydragnn_hpo.campaign.journal import JournalFollower, JournalReplaced, read_journal
    from hydragnn_hpo.campaign.promotion import CURVE_SHARES
    from hydragnn_hpo.campaign.setup import find_cards, open_run, stores_of, trial_config
    from hydragnn_hpo.campaign.shutdown import Drained, ShutdownRequest
    from hydragnn_hpo.campaign.state import State, Trial, fold
    from hydragnn_hpo.campaign.status import (
        Leaderboard,
        LeaderboardRow,
        Status,
        build_status,
        predict_seconds_left,
        rank_trials,
        read_leaderboard,
    )

__all__ = [
    "CURVE_SHARES",
    "CheckedCampaign",
    "Controller",
    "Drained",
    "JournalFold",
    "JournalFollower",
    "JournalReplaced",
    "Leaderboard",
    "LeaderboardRow",
    "ShutdownRequest",
    "State",
    "Status",
    "Trial",
    "build_status",
    "check_campaign",
    "find_cards",
    "fold",
    "make_backend",
    "open_run",
    "predict_seconds_left",
    "rank_trials",
    "read_journal",
    "read_leaderboard",
    "read_state",
    "require_campaign",
    "stores_of",
    "trial_config",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
