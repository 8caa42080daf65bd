"""A cluster of our own inside an allocation: what its step asks for."""

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.launching.ray import inside
from hydragnn_hpo.launching.slurm.allocation import Allocation


class Started:
    """A cluster of which nothing is started."""

    def __init__(self, address, **_):
        self.address, self.steps = f"{address}:6379", []

    def add(self, argv, name):
        self.steps.append(argv)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "ray"\ninterfaces = ["lo"]\n[step]\nagents = ["--gpus-per-node=2"]\n'
    )
    return str(path)


def test_its_step_has_the_options_and_its_head_the_interface_of_the_profile(
    profile, tmp_path, monkeypatch
):
    monkeypatch.setattr(inside, "StartedCluster", Started)
    held = Allocation("7", ("n1", "n2"), "10.255.255.1", 60.0)
    machine = MachineConfig(backend="ray", profile=profile)
    ground = inside._start(held, machine, {}, tmp_path)
    (argv,) = ground.started.steps
    assert "--gpus-per-node=2" in argv[: argv.index("-m")]
    assert ground.address == "127.0.0.1:6379"
