"""``plan``: from a campaign and what is known of its data to a forecast on a machine."""

from pathlib import Path

from hydragnn_hpo.config import HERE, CampaignConfig
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline.estimate_stats import data_of_campaign
from hydragnn_hpo.pipeline.feature_prices import price_features
from hydragnn_hpo.planning import CampaignPlan, PlanRequest, choose_machine, forecast_drawn
from hydragnn_hpo.planning.campaign_plan import ReportWork


def plan_campaign(
    config: CampaignConfig,
    source: Path,
    request: PlanRequest,
    report: ReportWork = lambda work, done, total: None,
) -> CampaignPlan:
    """Forecast a campaign from its beginning; nothing is started.

    Args:
        config: the campaign with its machine.
        source: its file.
        request: size of machine, campaign and data.
        report: shows the progress.

    Raises:
        ConfigError: campaign or profile are wrong, or no drawn configuration is a valid trial.
        DataError: nothing is known about the data.
    """
    run = RunDir(Path("runs") / config.name)
    data = data_of_campaign(config, source, run, request.structures)
    machine = choose_machine(config, request)
    configure = data.work.configure
    trials = request.trials or config.search.trials
    forecast = forecast_drawn(config, machine, data.stats, configure, trials, report)
    features = price_features(config, data, here=machine.profile.name == HERE)
    return CampaignPlan(config, data.origin, forecast, features)
