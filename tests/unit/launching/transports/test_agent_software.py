"""The software of agents: an image or an archive, where the backend can use it."""

from pathlib import Path

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import ContainerConfig, SiteConfig, resolve_machine
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.transports.agent_software import check_software, software_here
from hydragnn_hpo.launching.transports.transport import agent_argv

SITE = SiteConfig()


@pytest.fixture
def programs(tmp_path, monkeypatch) -> None:
    """Put an ``apptainer`` first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apptainer").write_text("#!/bin/sh\n")
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.fixture
def image(tmp_path) -> Path:
    file = tmp_path / "my image.sif"
    file.touch()
    return file


def test_agents_run_inside_an_image(programs, image, tmp_path):
    run = tmp_path / "it's a $(run)"
    site = SiteConfig(
        scratch="/mnt/$WHO", container=ContainerConfig(flags=("--rocm", "--bind=/opt"))
    )
    known = {"WHO": "me", "HYDRAGNN_HPO_DATA": "/data"}

    software = software_here(MachineConfig(container=str(image)), site, run, known)
    argv = agent_argv("h", parent=7, software=software)

    assert argv == [
        *("apptainer", "exec", "--rocm", "--bind=/opt"),
        *("--bind", str(run), "--bind", "/sys", "--bind", "/mnt/me", "--bind", "/data"),
        *(str(image), "python3", "-P", "-m", "hydragnn_hpo.launching.agent", "--host", "h"),
    ]  # without a parent: inside, it may be another process
    assert software.agent_environment({"PYTHONPATH": "/checkout", "A": "1"}) == {"A": "1"}


def test_a_missing_image_or_program_is_reported_first(programs, image, tmp_path, monkeypatch):
    machine = MachineConfig(container=str(image))
    with pytest.raises(ConfigError, match="no container can bind"):
        software_here(machine, SITE, tmp_path / "a:b")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="'apptainer', which is not on PATH"):
        check_software(machine, SITE, tmp_path)
    gone = MachineConfig(container=str(tmp_path / "no.sif"))
    with pytest.raises(ConfigError, match=r"no\.sif: no such container image"):
        check_software(gone, SITE, tmp_path)


def test_software_comes_one_way_and_only_where_it_can(tmp_path):
    with pytest.raises(ConfigError, match="drop one of them"):
        parse_config({"pack": "a", "container": "b"}, MachineConfig, "[machine]")
    for backend in ("local", "ray", "mpiexec"):
        with pytest.raises(ConfigError, match=f"does not work with the backend '{backend}'"):
            check_software(MachineConfig(backend=backend, pack="a"), SITE, tmp_path)
    with pytest.raises(ConfigError, match="hydragnn-hpo pack"):
        check_software(MachineConfig(backend="slurm", pack="a"), SITE, tmp_path)


def test_files_are_named_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    machine = MachineConfig(backend="slurm", pack="env.tar.gz")

    assert resolve_machine(machine, {}, Path("/campaigns")).pack == "/campaigns/env.tar.gz"
    resolved_machine = resolve_machine(MachineConfig(), {"container": "x.sif"}, Path("/campaigns"))
    assert resolved_machine.container == str(tmp_path / "x.sif")
