"""What a campaign's machine says of software: checked before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.config.machine import ContainerConfig, SiteConfig, resolve_machine
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.fleet.transport import agent_argv
from hydragnn_hpo.launching.staging.container import binds_of, contained
from hydragnn_hpo.launching.staging.equip import check_software, software_here
from hydragnn_hpo.launching.staging.pack import Pack
from hydragnn_hpo.launching.staging.software import OWN, ROOT, packed

SITE = SiteConfig()


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    """Put an ``apptainer`` first on PATH that writes down its arguments and runs the rest."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "apptainer"
    program.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" > {folder}/argv\n'
        f"env > {folder}/environment\n"
        'while [ "$1" != python3 ]; do shift; done\n'
        f'shift\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def image(tmp_path) -> Path:
    file = tmp_path / "my image.sif"
    file.touch()
    return file


def test_our_own_python_is_the_default():
    assert agent_argv("h", software=OWN) == agent_argv("h")
    assert agent_argv("h", parent=7) == [
        *(sys.executable, "-P", "-m", "hydragnn_hpo.launching.agent"),
        *("--host", "h", "--parent", "7"),
    ]


def test_agents_become_the_python_of_a_pack():
    pack = Pack(Path("/shared/env.tar.gz"), "a" * 64, 9, "/home/me/venv", "b")

    software = packed(pack, "/mnt/bb/$USER")

    assert agent_argv(host_of="SLURMD_NODENAME", software=software) == [
        *(sys.executable, "-S", "-P", "-m", "hydragnn_hpo.launching.staging.arrival", "start"),
        *("--checksum", "a" * 64, "--place", "/mnt/bb/$USER", "--old-prefix", "/home/me/venv"),
        *("--shared", "/shared/env.tar.gz", "--"),
        *("-P", "-m", "hydragnn_hpo.launching.agent", "--host-of", "SLURMD_NODENAME"),
    ]
    assert software.settle({"PYTHONPATH": "/x", "A": "1"}) == {"PYTHONPATH": str(ROOT), "A": "1"}


def test_agents_run_inside_an_image(programs, image, tmp_path):
    run = tmp_path / "it's a $(run)"
    container = ContainerConfig(flags=("--rocm", "--bind=/opt"))
    binds = binds_of(run, "/mnt/$WHO", {"WHO": "me", "HYDRAGNN_HPO_DATA": "/data"})

    software = contained(container, image, binds=binds)
    argv = agent_argv("h", parent=7, software=software)

    assert argv == [
        *("apptainer", "exec", "--rocm", "--bind=/opt"),
        *("--bind", str(run), "--bind", "/sys", "--bind", "/mnt/me", "--bind", "/data"),
        *(str(image), "python3", "-P", "-m", "hydragnn_hpo.launching.agent", "--host", "h"),
    ]  # without a parent: inside, it may be another process
    assert software.settle({"PYTHONPATH": "/checkout", "A": "1"}) == {"A": "1"}
    shown = [*argv[: argv.index("python3") + 1], "-c", "import sys; print(sys.argv[1:])", "$(x) 'y"]
    done = subprocess.run(shown, capture_output=True, text=True, check=True)
    assert done.stdout == '["$(x) \'y"]\n'
    assert (programs / "argv").read_text().splitlines()[1:] == shown[2:]


def test_a_missing_image_or_program_is_said_first(image, tmp_path, monkeypatch):
    machine = MachineConfig(container=str(image))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="'apptainer', which is not on PATH"):
        check_software(machine, SITE, tmp_path)
    gone = MachineConfig(container=str(tmp_path / "no.sif"))
    with pytest.raises(ConfigError, match=r"no\.sif: no such container image"):
        check_software(gone, SITE, tmp_path)


def test_a_folder_that_cannot_be_bound_is_said(programs, image, tmp_path):
    with pytest.raises(ConfigError, match="cannot be bound"):
        software_here(MachineConfig(container=str(image)), SITE, tmp_path / "a:b")


def test_software_comes_one_way_and_only_where_it_can(tmp_path):
    with pytest.raises(ConfigError, match="drop one of them"):
        parse_config({"pack": "a", "container": "b"}, MachineConfig, "[machine]")
    for backend in ("local", "ray", "steps", "mpiexec"):
        with pytest.raises(ConfigError, match=f"does not work with the backend '{backend}'"):
            check_software(MachineConfig(backend=backend, pack="a"), SITE, tmp_path)
    with pytest.raises(ConfigError, match="hydragnn-hpo pack"):
        check_software(MachineConfig(backend="slurm", pack="a"), SITE, tmp_path)


def test_files_are_named_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    machine = MachineConfig(backend="slurm", pack="env.tar.gz")

    assert resolve_machine(machine, {}, Path("/campaigns")).pack == "/campaigns/env.tar.gz"
    asked = resolve_machine(MachineConfig(), {"container": "x.sif"}, Path("/campaigns"))
    assert asked.container == str(tmp_path / "x.sif")


def test_an_archive_that_is_not_the_one_that_was_written_is_said(tmp_path):
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"12345")
    beside = tmp_path / "env.tar.gz.json"
    with pytest.raises(ConfigError, match="hydragnn-hpo pack"):
        Pack.read(archive)
    beside.write_text('{"checksum": "c", "size": 6, "prefix": "/p", "fingerprint": "f"}')
    with pytest.raises(ConfigError, match="has 5 bytes, 6 were written"):
        Pack.read(archive)
    for damaged in ("[]", "{", '{"size": 5}'):
        beside.write_text(damaged)
        with pytest.raises(ConfigError, match="is damaged"):
            Pack.read(archive)
    beside.write_text('{"checksum": "c", "size": 5, "prefix": "/p", "fingerprint": "f", "x": 1}')
    assert Pack.read(archive) == Pack(archive, "c", 5, "/p", "f")
