"""Campaigns over a stub backend, and how a controller of one dies."""

from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.campaign.shutdown import NEVER
from hydragnn_hpo.campaign.user_requests import write_request
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config


class Killed(BaseException):
    """As kill -9 ends a controller: nothing catches it."""


def campaign(**search):
    plan = {"brain": "random", "trials": 6, "rungs": [2], "finalists": 2, **search}
    values = {
        "name": "stub",
        "seed": 3,
        "space": {"x": {"low": 0.0, "high": 1.0}},
        "search": plan,
        "command": {"argv": ["true"]},
    }
    return parse_config(values, CampaignConfig, "stub")


class Ran:
    """A campaign that ran to its end, or to what ended it."""

    def __init__(self, folder, config, backend, watch=lambda *_: None, pause=NEVER):
        self.config, self.backend = config, backend
        self.run = open_run(config, folder / "run")
        self.controller = Controller(
            config, self.run, cards={}, make_backend=lambda: backend, watch=watch, pause=pause
        )
        try:
            self.state = self.controller.run()
        finally:
            self.controller.close()

    def events(self, *kinds):
        return events_of(self.run.path, *kinds)


def events_of(folder, *kinds):
    """Return the events of these kinds in the journal of a run directory, or all."""
    journal = read_journal(folder / "events.jsonl")
    return [event for event in journal if not kinds or event["event"] in kinds]


def asking(*wishes):
    """Leave a wish once its moment has come: (when, kind, values)."""
    left = list(wishes)

    def watch(state, controller):
        if left and left[0][0](state):
            _, kind, values = left.pop(0)
            write_request(controller.run_dir, kind, **values)

    return watch


def kill_when(due):
    """Kill the controller once ``due(state)`` holds."""

    def watch(state, controller):
        if due(state):
            raise Killed

    return watch
