"""Software on the hosts' own disks, on a real Slurm: sent or copied, checked, used, lost."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playing import Play
from processes import find_orphans, tagged
from virtual_slurm import VirtualSlurm, until

from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.config.campaign_config import MachineConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.transports.slurm import slurm_transport
from hydragnn_hpo.resources import resource_path

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
NEEDED = (
    *("annotated_types", "msgspec", "pydantic", "pydantic_core", "pyzmq.libs"),
    *("typing_extensions.py", "typing_inspection", "zmq"),
)
"""What an agent imports beside the standard library."""

SYSTEM = ("/usr/", "/lib/", "/lib64/", "/etc/", "/proc/", "/dev/", "/sys/")


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """Pack an environment that has little more than agents need, and a function for ranks."""
    folder = tmp_path_factory.mktemp("pack")
    place, out = folder / "env", folder / "env.tar.gz"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([base, "-m", "venv", "--without-pip", place], check=True)
    for name in NEEDED:
        source = Path(sys.prefix) / LIBRARY / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, place / LIBRARY / name)
    shutil.copy(Path(__file__).with_name("staging_ranks.py"), place / LIBRARY)
    code = (
        "import sys; from pathlib import Path\n"
        "from hydragnn_hpo.packed_environment import pack_environment; "
        "pack_environment(Path(sys.argv[1]))"
    )
    argv = [place / "bin/python", "-P", "-c", code, out]
    subprocess.run(argv, check=True, env={"PYTHONPATH": str(ROOT)})
    shutil.rmtree(place)
    return out


class Fleet(Play):
    """A backend with packed software on some hosts of a Slurm."""

    def __init__(self, archive: Path, folder: Path, place: str) -> None:
        profile = folder / "machine.toml"
        known = resource_path("launch/machines/generic-slurm.toml").read_text()
        profile.write_text(f'scratch = "{place}"\n{known}')
        machine = MachineConfig(
            backend="slurm", slots=1, lease_seconds=10.0, profile=str(profile), pack=str(archive)
        )
        run = folder / "run"
        run.mkdir()
        jobs = {"show": "staging_ranks:rank_main"}
        transport = slurm_transport(machine, run)
        super().__init__(fleet_on(transport, machine, run, ("staging_ranks",), jobs=jobs), run)

    def show(self, hosts: int, name: str = "job") -> list[SimpleNamespace]:
        """Run a rank on each host; gives what they show."""
        self.have(hosts)
        job = self.start("show", self.backend.slots, name)
        assert self.wait("ended", name)["codes"] == [0] * hosts, job.log.read_text()
        paths = [self.folder / name / f"shown.{rank}" for rank in range(hosts)]
        return [SimpleNamespace(**json.loads(path.read_text())) for path in paths]


@pytest.fixture
def fleet(slurm: VirtualSlurm, archive, tmp_path, monkeypatch) -> Iterator[Callable[..., Fleet]]:
    """Make a fleet in an allocation; it and all below it are ended."""
    made = []

    def make(hosts: int, place: str, archive: Path = archive) -> Fleet:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        for name, value in slurm.allocate(hosts).items():
            monkeypatch.setenv(name, value)
        made.append(Fleet(archive, tmp_path, place))
        return made[-1]

    yield make
    for each in made:
        each.backend.close()
    until(lambda: find_orphans(run_tag(tmp_path / "run")) == [], "end of all processes")


def is_local(listing: SimpleNamespace, place: Path) -> None:
    """See that whatever a rank, its zygote and its agent run lies on their host or its system."""
    local = next(place.glob("hydragnn-hpo-*/software/*/env")).parent
    files = [*listing.modules, *listing.path]
    for mapped in listing.mapped.values():
        assert len(mapped) > 3
        files += mapped
    allowed = (f"{local}/", *SYSTEM)
    assert [file for file in files if file and not file.startswith(allowed)] == []
    assert any(f"{local}/env/{LIBRARY}/hydragnn_hpo/" in file for file in listing.modules)
    assert any(f"{local}/env/{LIBRARY}/staging_ranks.py" in file for file in listing.modules)


def test_ranks_import_from_their_own_disk_and_a_host_without_room_is_left_out(
    fleet, slurm, tmp_path, caplog
):
    disks = tmp_path / "disk"
    disks.mkdir()
    (disks / "node2").touch()  # no folder can be made there

    control = fleet(3, f"{disks}/$SLURMD_NODENAME")

    assert list(control.backend._transport.hosts) == ["node1", "node3"]
    (message,) = [record.message for record in caplog.records if "left out" in record.message]
    assert message.startswith("host node2 is left out: it has no software, exited with exit code 1")
    assert "cannot be written (Not a directory)" in message
    listing = control.show(2)
    assert [each.host for each in listing] == ["node1", "node3"]
    for each in listing:
        is_local(each, disks / each.host)


def test_slurm_sends_it_and_a_host_that_lost_it_fetches_it_again(fleet, tmp_path, caplog):
    disk = tmp_path / "disk"
    disk.mkdir()

    control = fleet(1, str(disk))

    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    (listing,) = control.show(1)
    is_local(listing, disk)
    assert list(disk.glob(".*")) == []  # what was sent is not needed any more
    (agent,) = tagged(tmp_path / "run", "hpo-agent")
    (software,) = disk.glob("hydragnn-hpo-*/software/*/")
    shutil.rmtree(software)

    os.kill(agent, signal.SIGKILL)

    control.wait("host_lost")
    (again,) = control.show(1, "again")
    is_local(again, disk)


@pytest.fixture
def broken_sbcast(tmp_path, monkeypatch) -> Path:
    """Put an ``sbcast`` first on PATH that leaves a part of the file and fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "sbcast"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/argv\nhead -c 100000 "$3" > "$4"\n'
        'echo "sbcast: error: no room" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def test_a_partial_file_is_never_used(fleet, archive, tmp_path, caplog, broken_sbcast):
    disk = tmp_path / "disk"
    disk.mkdir()

    control = fleet(1, str(disk))

    sent = (broken_sbcast / "argv").read_text().splitlines()
    assert sent[0] == "--force"
    assert sent[2] == str(archive)
    assert not Path(sent[3]).exists()
    messages = [text for text in caplog.messages if "sbcast: error: no room" in text]
    assert len(messages) == 1
    (listing,) = control.show(1)  # it was copied from the shared file system then
    is_local(listing, disk)


def test_a_damaged_archive_reaches_nobody(fleet, archive, tmp_path):
    copy = tmp_path / "copy.tar.gz"
    shutil.copy(archive.with_name(f"{archive.name}.json"), tmp_path / f"{copy.name}.json")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    disk = tmp_path / "disk"
    disk.mkdir()

    with pytest.raises(JobError, match=r"no host can be used: host node1 has no software, .*again"):
        fleet(1, str(disk), copy)

    assert list(disk.glob("hydragnn-hpo-*/software/*/env")) == []
