"""The checks of a campaign before its first trial: ``run``, its dry run, ``plan`` and ``submit``.

A training that passes them is refused by no rank, except for what only its data decide once they
are built. ``CHECKS`` is the whole list, in the order in which they are made.
"""

import contextlib
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.campaign.backends import check_launcher
from hydragnn_hpo.campaign.chosen_values import explain_skipped_points
from hydragnn_hpo.campaign.proposals import read_warm_start_rows
from hydragnn_hpo.campaign.setup import (
    DataFacts,
    check_corners,
    check_labels,
    check_search,
    corners_of,
)
from hydragnn_hpo.config import CampaignConfig, TrialConfig
from hydragnn_hpo.config.convs.spec import is_user_conv
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.launching import site_of
from hydragnn_hpo.launching.transports.agent_software import check_software
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.optional_packages import OPTIONAL, require_package
from hydragnn_hpo.search.constraints import count_configurations
from hydragnn_hpo.search.objective import check_objective
from hydragnn_hpo.words import count

logger = logging.getLogger(__name__)

IMPORT_SECONDS = 180.0
"""How long the models of a campaign may take to be built once, with the import of torch."""

BUILD_MODEL = """
import pathlib, sys
from hydragnn_hpo.training.training_parts import check_model
check_model(*map(pathlib.Path, sys.argv[1:]))
"""
"""What the process runs that imports a user's convs."""


@dataclass(frozen=True)
class CheckedCampaign:
    """A campaign, and what its checks know about it."""

    config: CampaignConfig
    run: Path
    """Its run directory, which need not exist."""
    data: DataFacts | None
    """None where trials are a command."""
    packed_later: bool = False
    """Whether the archive of its software is written after the checks."""

    def trainings(self) -> dict[str, TrialConfig]:
        """Return trials with the corners of the space; none where trials are a command.

        Returns:
            Configuration by what it tries, for messages.
        """
        return dict(corners_of(self.config)) if self.data is not None else {}


def check_campaign(campaign: CheckedCampaign, source: Path) -> None:
    """Make all checks of a campaign; nothing is written, and no trial is started.

    Args:
        campaign: the campaign.
        source: its file, which begins the messages.

    Raises:
        HydraError: one sentence about the first thing that is wrong, of the class that tells who
            mends it.
    """
    for check in CHECKS.values():
        with name_source(source):
            check(campaign)


@contextlib.contextmanager
def name_source(source: Path) -> Iterator[None]:
    """Put the path of a campaign file before the message of any error."""
    try:
        yield
    except HydraError as error:
        raise type(error)(f"{source}: {error}") from error


def _check_space(campaign: CheckedCampaign) -> None:
    config = campaign.config
    rules = check_search(config, parts=None) if campaign.data is None else check_search(config)
    points = count_configurations(config.space, rules, config.search.trials)
    if points < config.search.trials:
        logger.warning(
            "[space] has %s, fewer than the %d of search.trials: the search ends after them; add "
            "values to [space], or lower search.trials.",
            count(points, "point"),
            config.search.trials,
        )
    for sentence in explain_skipped_points(config):
        logger.warning("%s It is not tried.", sentence)


def _check_objective(campaign: CheckedCampaign) -> None:
    heads = None if campaign.data is None else campaign.config.trial.get("heads", {})
    check_objective(campaign.config.search.objective, heads)


def _check_data(campaign: CheckedCampaign) -> None:
    """Check heads, names, attributes, encodings, cutoffs and budgets against the data."""
    if campaign.data is not None:
        check_corners(campaign.config, campaign.data)
        if campaign.data.stats is not None:
            for sentence in check_labels(campaign.config, campaign.data.stats):
                logger.warning("%s", sentence)


def _check_warm_start(campaign: CheckedCampaign) -> None:
    search = campaign.config.search
    for path in search.warm_start:
        try:
            read_warm_start_rows(Path(path), search.objective, campaign.config.space)
        except HydraError as error:
            message = str(error).removeprefix("search.warm_start: ")
            raise ConfigError(f"search.warm_start: {message}") from error


def _check_packages(campaign: CheckedCampaign) -> None:
    """Check that the packages of the brain and of TensorBoard's records are installed."""
    if (brain := campaign.config.search.brain) in OPTIONAL:
        require_package(brain, f"search.brain '{brain}'", ", or choose 'gp', which needs none")
    if any(made.training.tensorboard for made in campaign.trainings().values()):
        require_package("tensorboard", "training.tensorboard", ", or drop it")


def _check_software(campaign: CheckedCampaign) -> None:
    """Check that the software for the campaign's hosts is there, and that the launcher fits."""
    check_launcher(campaign.config)
    machine = campaign.config.machine
    later = campaign.packed_later
    check_software(machine, site_of(machine), campaign.run, packed_later=later)


def _check_models(campaign: CheckedCampaign) -> None:
    """Build models with a user's conv or another trial's trunk as a rank does, in a process.

    What a container holds cannot be imported here; there the first trial tells.
    """
    if campaign.config.machine.container is not None:
        return
    folder = RunDir(campaign.run).trial("t0000").path.absolute()
    checked = set[str]()
    for where, made in campaign.trainings().items():
        start = made.training.start_from
        start = None if start is None else str(folder / start)
        if start is not None or is_user_conv(made.model.conv):
            model = made.model.model_dump(mode="json")
            key = json.dumps([model, start], sort_keys=True)
            if key not in checked:
                checked.add(key)
                _build_model(campaign, made, start, where)


def _build_model(
    campaign: CheckedCampaign, made: TrialConfig, start_from: str | None, where: str
) -> None:
    """Build the model of a trial in a process of its own, which may end or never come back.

    Args:
        campaign: the campaign.
        made: configuration of the trial.
        start_from: absolute path of the checkpoint that its trunk begins from.
        where: what the trial tries, for messages.

    Raises:
        ConfigError: the model cannot be built.
    """
    assert campaign.data is not None
    training = made.training.model_copy(update={"start_from": start_from})
    plain = made.model_copy(update={"training": training}).model_dump(mode="json")
    targets = {name: {"mean": 0.0, "std": 1.0, **t} for name, t in campaign.data.targets.items()}
    conv = f"{where}: conv '{made.model.conv}'"
    with tempfile.TemporaryDirectory(prefix="hydragnn-hpo-check-") as folder:
        question = Path(folder) / "question.json"
        answer = Path(folder) / "answer.json"
        question.write_text(json.dumps({"config": plain, "targets": targets}, default=float))
        code = _run_quietly([sys.executable, "-c", BUILD_MODEL, str(question), str(answer)])
        if code is None:
            raise ConfigError(
                f"{conv} does not come back from being imported and built within "
                f"{IMPORT_SECONDS:g} s: mend its module."
            )
        if not answer.exists():
            raise ConfigError(
                f"{conv} ends the process that imports and builds it (exit code {code}): mend its "
                "module."
            )
        if error := json.loads(answer.read_text()).get("error"):
            raise ConfigError(f"{where}: {error}")


def _run_quietly(argv: list[str]) -> int | None:
    """Run a command that prints nothing; return its exit code, or None if it takes too long."""
    none = subprocess.DEVNULL
    try:
        return subprocess.run(
            argv, stdin=none, stdout=none, stderr=none, timeout=IMPORT_SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


CHECKS: dict[str, Callable[[CheckedCampaign], None]] = {
    "space": _check_space,
    "objective": _check_objective,
    "data": _check_data,
    "warm_start": _check_warm_start,
    "packages": _check_packages,
    "software": _check_software,
    "models": _check_models,
}
"""All checks by what they are about, the quick ones first."""
