"""What a campaign's machine cannot run is said before anything starts."""

import pytest

from hydragnn_hpo.campaign.backends import make_backend
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.errors import ConfigError


@pytest.mark.parametrize(
    ("launcher", "backend", "says"),
    [
        ("srun", "local", "launcher is 'srun', but machine.backend is 'local'"),
        ("srun", "mpiexec", "launcher is 'srun', but machine.backend is 'mpiexec'"),
        ("mpiexec", "ray", "machine.backend is 'ray', which names no hosts"),
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
