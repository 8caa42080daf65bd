"""An archive arrives on a host, whole or not; what is unpacked is used again, and cleared away."""

import fcntl
import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hydragnn_hpo.launching.staging import arrival
from hydragnn_hpo.launching.staging.arrival import ready, settled_environment
from hydragnn_hpo.launching.staging.unpack import ArchiveRefused

ROOT = Path(__file__).parents[4]
ARRIVAL = (sys.executable, "-S", "-P", "-m", "hydragnn_hpo.launching.staging.arrival")


def archive(file: Path, content: bytes = b"x") -> str:
    """Write an archive whose interpreter shows what it was started with; gives its checksum."""
    shell = b'#!/bin/sh\necho "$@" "$PYTHONPATH" "$PYTHONNOUSERSITE"\n'
    members = [("base/bin/python3.11", shell), ("env/file", content)]
    told = {
        "format": 1,
        "prefix": "/old",
        "base": "/base",
        "home": "",
        "python": "3.11.7",
        "files": 2,
    }
    told |= {"executable": "python3.11", "system_site": False}
    told["bytes"] = sum(len(content) for _, content in members)
    with gzip.open(file, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, data in [("manifest.json", json.dumps(told).encode()), *members]:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def shared(tmp_path) -> Path:
    return tmp_path / "shared.tar.gz"


@pytest.fixture
def checksum(shared) -> str:
    return archive(shared, random.Random(1).randbytes(10_000))


def unpacked(place: Path) -> list[str]:
    """Give what lies in a place, but for locks."""
    names = (path.name for path in place.glob("hydragnn-hpo-*/software/*"))
    return sorted(name for name in names if not name.endswith((".lock", ".used")))


def test_it_is_unpacked_once(tmp_path, shared, checksum):
    sent = tmp_path / "sent.tar.gz"
    sent.write_bytes(shared.read_bytes())
    place = tmp_path / "place"

    target = ready(str(place), checksum, str(sent))

    assert (target / "env/file").stat().st_size == 10_000
    assert unpacked(place) == [checksum[:16]]
    assert not sent.exists()
    before = (target / "env/file").stat().st_ino
    assert ready(str(place), checksum) == target
    assert (target / "env/file").stat().st_ino == before


def damage(sent: Path, how: str) -> None:
    whole = sent.read_bytes()
    match how:
        case "short":
            sent.write_bytes(whole[:5000])
        case "empty":
            sent.write_bytes(b"")
        case "changed":
            sent.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        case "missing":
            sent.unlink()


@pytest.mark.parametrize("how", ["short", "empty", "changed", "missing"])
def test_a_partial_file_is_refused_and_removed(tmp_path, shared, checksum, how):
    sent, place = tmp_path / "sent.tar.gz", tmp_path / "place"
    sent.write_bytes(shared.read_bytes())
    damage(sent, how)

    with pytest.raises(
        ArchiveRefused, match="did not come" if how == "missing" else "not what was sent"
    ):
        ready(str(place), checksum, str(sent))

    assert not sent.exists()
    assert unpacked(place) == []
    assert ready(str(place), checksum, str(sent), str(shared)).is_dir()  # it is copied then
    assert unpacked(place) == [checksum[:16]]
    assert shared.exists()


def test_a_shared_archive_that_is_damaged_leaves_nothing(tmp_path, shared, checksum):
    damage(shared, "short")
    with pytest.raises(ArchiveRefused, match="pack it again"):
        ready(str(tmp_path / "place"), checksum, "", str(shared))
    with pytest.raises(ArchiveRefused, match="cannot be copied"):
        ready(str(tmp_path / "place"), checksum, "", str(tmp_path / "nowhere"))
    assert unpacked(tmp_path / "place") == []


def test_what_a_sweeper_took_parts_of_is_unpacked_again(tmp_path, shared, checksum):
    place = str(tmp_path / "place")
    target = ready(place, checksum, "", str(shared))
    (target / "env/__pycache__").mkdir()
    (target / "env/__pycache__/file.pyc").touch()
    (target / "env/file").unlink()

    with pytest.raises(ArchiveRefused, match="nothing was sent"):
        ready(place, checksum)
    assert ready(place, checksum, "", str(shared)) == target
    assert (target / "env/file").exists()


def test_earlier_ones_are_removed_unless_somebody_uses_them(tmp_path, shared, checksum):
    place = tmp_path / "place"
    files = [tmp_path / f"{n}.tar.gz" for n in range(3)]
    sums = [archive(file, file.name.encode()) for file in files]
    used, unused, _ = (ready(str(place), s, "", str(f)) for s, f in zip(sums, files, strict=True))
    assert unpacked(place) == [sums[2][:16]]  # nobody held them so far
    ready(str(place), sums[0], "", str(files[0]))
    left = used.with_name(f".{unused.name}.part")
    left.mkdir()
    with (used.parent / f"{used.name}.used").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        ready(str(place), checksum, "", str(shared))
        assert unpacked(place) == sorted([sums[0][:16], checksum[:16]])
    ready(str(place), sums[1], "", str(files[1]))
    assert unpacked(place) == [sums[1][:16]]


def test_hosts_that_share_a_disk_unpack_once(tmp_path, shared, checksum):
    place = tmp_path / "place"
    argv = (*ARRIVAL, "ready", "--checksum", checksum, "--place", str(place), "--host-of", "H")
    running = [
        subprocess.Popen(
            [*argv, "--shared", shared],
            env={"H": f"h{n}", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in running]

    assert sorted(answer["host"] for answer in told) == ["h0", "h1", "h2", "h3"]
    assert {answer["error"] for answer in told} == {""}
    assert unpacked(place) == [checksum[:16]]


def test_it_becomes_the_unpacked_python(tmp_path, shared, checksum):
    argv = (*ARRIVAL, "start", "--checksum", checksum, "--place", "$PLACE/here")
    environment = {"PYTHONPATH": str(ROOT), "PLACE": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*argv, "--shared", shared, "--", "-P", "-m", "some.module", "--host", "h"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("-P -m some.module --host h  1\n", 0), done.stderr
    assert unpacked(tmp_path / "here") == [checksum[:16]]

    shared.unlink()
    done = subprocess.run(
        [*argv, "--place", "$NOWHERE", "--", "-P"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: $NOWHERE: names 'NOWHERE', which this host does not have.\n"


def test_nothing_of_another_environment_is_found():
    ours = {"PATH": "/old/bin:/usr/bin", "PYTHONPATH": "/x", "PYTHONHOME": "/y", "HOME": "/home/me"}

    found = settled_environment(Path("/local/sum"), "/old", ours)

    assert found == {
        "HOME": "/home/me",
        "PATH": "/local/sum/env/bin:/usr/bin",
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": "/local/sum/env",
    }


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/tmp/a b", "scripts cannot lie there"),
        ("/tmp/$(touch x)", "names"),
        ("/tmp/`x`", "scripts cannot lie there"),
        ("relative", "scripts cannot lie there"),
        ("/tmp/'x\n", "scripts cannot lie there"),
        ("/proc/nowhere", "cannot be written"),
        ("$LOCAL/x", "names 'LOCAL'"),
    ],
)
def test_a_place_that_will_not_do_is_said(place, said):
    with pytest.raises(ArchiveRefused, match=said.replace("(", "\\(")):
        arrival.software_folder(place, {"HOME": "/root"})


def test_a_folder_that_others_can_enter_is_not_used(tmp_path):
    folder = tmp_path / f"hydragnn-hpo-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ArchiveRefused, match="only you can enter"):
        arrival.software_folder(str(tmp_path), {})


def test_it_imports_little():
    """One process per host reads this from a file system that all share."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import hydragnn_hpo.launching.staging.arrival\n"
        "top = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert top <= sys.stdlib_module_names | {'hydragnn_hpo'}, top\n"
        "ours = [name for name in sys.modules if name.startswith('hydragnn_hpo')]\n"
        "assert len(ours) <= 8, ours\n"
    )
    argv = [sys.executable, "-S", "-P", "-c", code]
    done = subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
