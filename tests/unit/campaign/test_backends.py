"""What a campaign's machine cannot run is said before anything starts."""

from types import SimpleNamespace

import pytest

from hydragnn_hpo import optional_packages
from hydragnn_hpo.campaign import backends
from hydragnn_hpo.campaign.backends import make_backend, start_profile
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.transports import BACKENDS, BackendKind


@pytest.mark.parametrize(
    ("launcher", "backend", "says"),
    [
        ("srun", "local", "launcher is 'srun', but machine.backend is 'local'"),
        ("srun", "mpiexec", "launcher is 'srun', but machine.backend is 'mpiexec'"),
        (
            "mpiexec",
            "ray",
            "machine.backend is 'ray', which starts no ranks by it: set it to 'slurm' or",
        ),
    ],
)
def test_a_launcher_that_cannot_start_ranks_there_is_refused(tmp_path, launcher, backend, says):
    values = {
        "name": "commands",
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {"brain": "random", "trials": 6, "rungs": [2, 4], "finalists": 3},
        "command": {"argv": ["x"], "launcher": launcher},
        "machine": {"backend": backend},
    }
    with pytest.raises(ConfigError, match=says):
        make_backend(CampaignConfig.model_validate(values), tmp_path)


def campaign(access, backend="local"):
    values = {
        "name": "shared",
        "data": {"card": "one.toml", "access": access},
        "space": {"model.layers": [1, 2]},
        "search": {"brain": "random", "trials": 6, "rungs": [2, 4], "finalists": 3},
        "machine": {"backend": backend},
    }
    return CampaignConfig.model_validate(values)


def test_a_store_is_not_spread_where_ranks_have_no_mpi(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="machine.backend is 'ray', which has no MPI: choose"):
        make_backend(campaign("distributed", "ray"), tmp_path)
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"data.access 'distributed' needs .*mpi4py.*'windows'"):
        make_backend(campaign("distributed"), tmp_path)


def test_more_hosts_than_the_allocation_has_are_refused_before_an_agent_starts(
    tmp_path, monkeypatch
):
    held = SimpleNamespace(hosts=("n1", "n2"), close=lambda: None)
    monkeypatch.setitem(BACKENDS, "slurm", BackendKind(open=lambda *_: held))
    monkeypatch.setattr(backends, "fleet_on", lambda *_: "started")
    config = campaign("stage", "slurm")
    three, two = (config.launch.model_copy(update={"min_hosts": number}) for number in (3, 2))
    with pytest.raises(ConfigError, match=r"min_hosts is 3, but the allocation has 2 hosts: lower"):
        make_backend(config.model_copy(update={"launch": three}), tmp_path)
    assert make_backend(config.model_copy(update={"launch": two}), tmp_path) == "started"


def test_launched_ranks_import_everything_at_each_start():
    here = find_profile("workstation")
    assert start_profile(here, campaign("stage")) == here
    launched = start_profile(here, campaign("distributed"))
    assert launched.start_seconds == here.start_seconds + here.cold_start_seconds
    assert launched.restart_seconds == here.restart_seconds + here.cold_start_seconds
    assert launched.cold_start_seconds == here.cold_start_seconds
