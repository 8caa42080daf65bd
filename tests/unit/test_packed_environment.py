"""An environment that is packed, and unpacked where it never was.

Archives that are not what was packed, or came in part, leave nothing.
"""

import fcntl
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hydragnn_hpo import packed_environment
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.packed_environment import (
    ROOT,
    ArchiveRefused,
    Pack,
    install,
    isolated_environment,
    pack_environment,
    software_folder,
    unpack,
)

MODULE = "hydragnn_hpo.packed_environment"
ON_HOST = (sys.executable, "-S", "-P", "-m", MODULE)
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"

# -- packing -----------------------------------------------------------------------------

PACK = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo import packed_environment as environment
if sys.argv[2:]:
    environment._SYSTEM = sys.base_prefix
try:
    made = environment.pack_environment(Path(sys.argv[1]))
except HydraError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"checksum": made.checksum}))
"""
SCRIPT = """
import frog, json, sys, hydragnn_hpo
print(json.dumps([sys.prefix, *sys.path, frog.__file__, json.__file__, hydragnn_hpo.__file__]))
"""


@pytest.fixture
def small(tmp_path) -> Path:
    """Return an environment with one package of its own."""
    place = tmp_path / "small"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([base, "-m", "venv", "--without-pip", place], check=True)
    package = place / LIBRARY / "site-packages" / "frog"
    package.mkdir()
    (package / "__init__.py").write_text("COLOUR = 'green'\n")
    tool = place / "bin/frog"
    tool.write_text(f"#!{place}/bin/python\n{SCRIPT}")
    tool.chmod(0o755)
    return place


def pack(place: Path, out: Path, *, base: bool = False) -> dict:
    """Pack in a process of that environment, with its interpreter or as if hosts had it."""
    done = subprocess.run(
        [place / "bin/python", "-P", "-c", PACK, out, *(() if base else ("system",))],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["env.tar.gz", "env.tar.zst"])
def test_it_works_where_it_is_unpacked_and_needs_nothing_of_where_it_was(small, tmp_path, name):
    if shutil.which("zstd") is None and name.endswith("zst"):
        pytest.skip("no zstd here")
    archive = tmp_path / name
    made = pack(small, archive, base=True)
    target = tmp_path / "a folder" / "target"
    target.parent.mkdir()
    unpack(archive, target, made["checksum"])
    shutil.rmtree(small)

    outside = isolated_environment(target, {"PATH": os.environ["PATH"]})
    done = subprocess.run([target / "env/bin/frog"], capture_output=True, text=True, env=outside)

    assert done.returncode == 0, done.stderr
    prefix, *files = json.loads(done.stdout)
    assert prefix == str(target / "env")
    assert [file for file in files if not file.startswith(f"{target}/")] == []
    shipped = target / "env" / LIBRARY / "site-packages/hydragnn_hpo/_shipped"
    assert (shipped / "launch/machines/frontier.toml").is_file()
    assert (target / f"base/{LIBRARY}/json/__init__.py").is_file()
    assert not (target / f"base/{LIBRARY}/site-packages").exists()
    assert not (target / f"base/{LIBRARY}/test").exists()
    mapped = subprocess.run(
        [target / "env/bin/python3", "-c", "print(open('/proc/self/maps').read())"],
        capture_output=True,
        text=True,
        check=True,
        env=outside,
    ).stdout
    assert str(Path(sys.base_prefix).resolve()) not in mapped  # nor its shared library


def test_the_same_environment_gives_the_same_archive(small, tmp_path):
    archive = tmp_path / "env.tar.gz"
    first = pack(small, archive)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert not [name for name in names if name.startswith("base")], "hosts have the interpreter"
    described = json.loads((tmp_path / "env.tar.gz.json").read_text())
    assert described["python"] == sys.version.split()[0]
    assert described["checksum"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    target = tmp_path / "target"
    unpack(archive, target, first["checksum"])
    done = subprocess.run(
        [target / "env/bin/frog"], capture_output=True, text=True, check=True, env={}
    )
    prefix, *_, frog, json_file, ours = json.loads(done.stdout)
    assert prefix == str(target / "env")
    assert all(file.startswith(f"{target}/") for file in (frog, ours))
    assert json_file.startswith(sys.base_prefix)

    for path in small.rglob("*"):
        os.utime(path, follow_symlinks=False)
    (small / LIBRARY / "site-packages/frog/__pycache__").mkdir()
    (small / LIBRARY / "site-packages/frog/__pycache__/x.cpython-311.pyc").write_bytes(b"cache")
    assert pack(small, archive) == first
    (small / LIBRARY / "site-packages/frog/new.py").touch()
    assert pack(small, archive)["checksum"] != first["checksum"]


def test_what_cannot_be_packed_or_written_is_a_sentence(small, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in pack(small, tmp_path / "file/env.tar.gz")["error"]
    assert "NAME.tar.gz" in pack(small, tmp_path / "env.zip")["error"]
    about = small / LIBRARY / "site-packages/toad-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toad\nVersion: 1.0\n")
    origin = {"url": "file:///home/me/toad", "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(origin))
    assert "toad is installed as a link" in pack(small, tmp_path / "env.tar.gz")["error"]
    (about / "direct_url.json").unlink()
    (small / "conda-meta").mkdir()
    said = pack(small, tmp_path / "env.tar.gz")["error"]
    assert "needs conda-pack" in said
    assert "'hydragnn-hpo[pack]', or use a container." in said
    assert not list(tmp_path.glob("*env.tar*"))


CONDA_PACK = """
import os, tarfile
class CondaPackException(Exception): pass
def pack(*, prefix, output, arcroot, ignore_editable_packages):
    assert ignore_editable_packages, "this package may be a checkout"
    if "refuse" in os.environ:
        raise CondaPackException("files are missing")
    with tarfile.open(output, "w") as tar:
        tar.add(prefix, arcroot)
"""
"""What conda-pack does, as far as we call it; version 0.9.2 was tried."""

CONDA_UNPACK = """#!/bin/sh
echo "$0" > "$(dirname "$0")/place"
"""


def test_conda_environments_are_written_by_conda_pack_and_finished_on_hosts(tmp_path, monkeypatch):
    prefix = tmp_path / "conda"
    for folder in ("conda-meta", "bin", "modules"):
        (prefix / folder).mkdir(parents=True)
    (prefix / "modules/conda_pack.py").write_text(CONDA_PACK)
    for name, text in {"python": '#!/bin/sh\nexec "$@"\n', "conda-unpack": CONDA_UNPACK}.items():
        (prefix / "bin" / name).write_text(text)
        (prefix / "bin" / name).chmod(0o755)
    monkeypatch.syspath_prepend(prefix / "modules")
    monkeypatch.setitem(sys.modules, "conda_pack", None)  # forgotten after the test
    del sys.modules["conda_pack"]
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(packed_environment, "_add_own", lambda tar: None)

    made = pack_environment(tmp_path / "env.tar.gz")
    unpack(made.path, tmp_path / "target", made.checksum)

    place = (tmp_path / "target/env/bin/place").read_text()
    assert place == f"{tmp_path}/target/env/bin/conda-unpack\n"
    monkeypatch.setenv("refuse", "1")
    with pytest.raises(ConfigError, match=r"conda-pack refuses \(files are missing\): mend"):
        pack_environment(tmp_path / "env.tar.gz")
    assert Pack.read(tmp_path / "env.tar.gz") == made


# -- unpacking ---------------------------------------------------------------------------

PYTHON = b'#!/bin/sh\necho "$@" "$PYTHONPATH" "$PYTHONNOUSERSITE"\n'


def write_archive(file: Path, name: str = "env/file", content: bytes = b"") -> str:
    """Write an archive with an interpreter and one more file; gives its checksum."""
    files = {"base/bin/python": PYTHON, "env/pyvenv.cfg": b"home = /elsewhere\n", name: content}
    with gzip.open(file, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            member.mode = 0o755
            tar.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("env/bin/python")
        link.type = tarfile.SYMTYPE
        link.linkname = "../../base/bin/python"
        tar.addfile(link)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def refused(tmp_path: Path, file: Path, checksum: str) -> str:
    """Return the sentence; neither the target nor anything beside it may be there."""
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(ArchiveRefused) as caught:
        unpack(file, tmp_path / "target", checksum)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", gzip.compress(b"hello", mtime=0)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    file = tmp_path / "env.tar.gz"
    file.write_bytes(content)
    assert "cannot be unpacked" in refused(tmp_path, file, hashlib.sha256(content).hexdigest())


def test_an_archive_that_is_missing_or_a_link_is_refused(tmp_path):
    file = tmp_path / "env.tar.gz"
    checksum = write_archive(file)
    (tmp_path / "link.tar.gz").symlink_to(file)
    for name in ("missing", "link"):
        assert "cannot be unpacked" in refused(tmp_path, tmp_path / f"{name}.tar.gz", checksum)


def test_an_interpreter_that_is_not_here_is_named(tmp_path):
    file = tmp_path / "env.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        link = tarfile.TarInfo("env/bin/python")
        link.type = tarfile.SYMTYPE
        link.linkname = "/no/such/python3.11"
        tar.addfile(link)

    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    assert "wants /no/such/python3.11" in refused(tmp_path, file, checksum)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_archive_is_refused_even_with_a_checksum_that_fits(tmp_path, share):
    file = tmp_path / "env.tar.gz"
    write_archive(file, content=random.Random(1).randbytes(100_000))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])

    refused(tmp_path, file, hashlib.sha256(file.read_bytes()).hexdigest())
    assert "checksum differs" in refused(tmp_path, file, hashlib.sha256(whole).hexdigest())


# -- on a host ---------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path) -> Path:
    return tmp_path / "shared.tar.gz"


@pytest.fixture
def checksum(shared) -> str:
    return write_archive(shared, content=random.Random(1).randbytes(10_000))


@pytest.fixture
def place(tmp_path) -> Path:
    return software_folder(str(tmp_path / "place"), {})


def unpacked(place: Path) -> list[str]:
    """Return what lies in a folder for software, but for locks."""
    return sorted(path.name for path in place.iterdir() if path.is_dir())


def test_it_is_unpacked_once(place, shared, checksum):
    target = install(place, checksum, [shared])

    assert (target / "env/file").stat().st_size == 10_000
    assert (target / "env/bin/python").resolve() == target / "base/bin/python"
    assert (target / "env/pyvenv.cfg").read_text() == f"home = {target}/base/bin\n"
    assert unpacked(place) == [checksum[:16]]
    before = (target / "env/file").stat().st_ino
    assert install(place, checksum, []) == target
    assert (target / "env/file").stat().st_ino == before


DAMAGE = {
    "short": lambda whole: whole[:5000],
    "empty": lambda whole: b"",
    "changed": lambda whole: whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
    "missing": None,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_partial_file_is_refused_and_the_shared_one_taken(tmp_path, place, shared, checksum, how):
    sent = tmp_path / "sent.tar.gz"
    if how != "missing":
        sent.write_bytes(DAMAGE[how](shared.read_bytes()))

    wanted = "No such file" if how == "missing" else "checksum differs"
    with pytest.raises(ArchiveRefused, match=wanted):
        install(place, checksum, [sent])

    assert unpacked(place) == []
    assert install(place, checksum, [sent, shared]).is_dir()
    assert unpacked(place) == [checksum[:16]]
    assert shared.exists()


def test_what_a_sweeper_took_parts_of_is_unpacked_again(place, shared, checksum):
    target = install(place, checksum, [shared])
    (target / "env/__pycache__").mkdir()
    (target / "env/__pycache__/file.pyc").touch()
    assert install(place, checksum, []) == target
    (target / "env/file").unlink()

    with pytest.raises(ArchiveRefused, match="no archive was sent"):
        install(place, checksum, [])
    assert install(place, checksum, [shared]) == target
    assert (target / "env/file").exists()


def test_earlier_ones_are_removed_unless_agents_run_from_them(tmp_path, place, shared, checksum):
    files = [tmp_path / f"{n}.tar.gz" for n in range(3)]
    sums = [write_archive(file, f"env/{file.name}") for file in files]
    used, _, _ = (install(place, s, [f]) for s, f in zip(sums, files, strict=True))
    assert unpacked(place) == [sums[2][:16]]  # no agent held them so far
    install(place, sums[0], [files[0]])
    with (place / f"{used.name}.used").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        install(place, checksum, [shared])
        assert unpacked(place) == sorted([sums[0][:16], checksum[:16]])
    install(place, sums[1], [files[1]])
    assert unpacked(place) == [sums[1][:16]]


def test_hosts_that_share_a_disk_unpack_once_and_remove_what_was_sent(tmp_path, shared, checksum):
    sent = [tmp_path / f"sent{n}.tar.gz" for n in range(3)]
    for file in sent:
        shutil.copy(shared, file)
    argv = (*ON_HOST, "install", "--checksum", checksum, "--place", "$PLACE/place", "--sent")
    environment = {"PYTHONPATH": str(ROOT), "PLACE": str(tmp_path), "PATH": os.environ["PATH"]}
    running = [
        subprocess.Popen(
            [*argv, f"$PLACE/{file.name}"],
            env=environment,
        )
        for file in sent
    ]

    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert unpacked(software_folder(str(tmp_path / "place"), {})) == [checksum[:16]]
    assert not any(file.exists() for file in sent)


def test_it_becomes_the_unpacked_python(tmp_path, shared, checksum):
    argv = (*ON_HOST, "start", "--checksum", checksum, "--place", "$PLACE/here")
    environment = {"PYTHONPATH": str(ROOT), "PLACE": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*argv, "--source", shared, "--", "-P", "-m", "some.module", "--host", "h"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("-P -m some.module --host h  1\n", 0), done.stderr
    assert unpacked(software_folder(str(tmp_path / "here"), {})) == [checksum[:16]]

    done = subprocess.run(
        [*argv, "--place", "$NOWHERE", "--", "-P"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "error: $NOWHERE: names 'NOWHERE', which this host does not have; correct it.\n"
    )


def test_nothing_of_another_environment_is_found():
    bin_here = str(Path(sys.executable).parent)
    ours = {"PATH": f"{bin_here}:/usr/bin", "PYTHONPATH": "/x", "PYTHONHOME": "/y", "HOME": "/h"}

    assert isolated_environment(Path("/local/sum"), ours) == {
        "HOME": "/h",
        "LD_LIBRARY_PATH": "/local/sum/base/lib",
        "PATH": "/local/sum/env/bin:/usr/bin",
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": "/local/sum/env",
    }


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/tmp/$(touch x)", "names"),
        ("relative", "no absolute path"),
        ("/proc/nowhere", "cannot be written"),
        ("$LOCAL/x", "names 'LOCAL'"),
        ("$OPEN", "only you can enter"),
    ],
)
def test_a_place_that_cannot_be_used_is_named(tmp_path, place, message):
    folder = tmp_path / f"hydragnn-hpo-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ArchiveRefused, match=message):
        software_folder(place, {"HOME": "/root", "OPEN": str(tmp_path)})


def test_it_imports_little():
    """One process per host reads this from a file system that all share."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import hydragnn_hpo.packed_environment\n"
        "top = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert top <= sys.stdlib_module_names | {'hydragnn_hpo'}, top\n"
        "ours = [name for name in sys.modules if name.startswith('hydragnn_hpo')]\n"
        "assert len(ours) <= 8, ours\n"
    )
    argv = [sys.executable, "-S", "-P", "-c", code]
    done = subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_archive_that_is_not_the_one_that_was_written_is_reported(tmp_path):
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"12345")
    beside = tmp_path / "env.tar.gz.json"
    with pytest.raises(ConfigError, match="hydragnn-hpo pack"):
        Pack.read(archive)
    good = {"checksum": "c", "size": 5, "x": 1}
    beside.write_text(json.dumps(good | {"size": 6}))
    with pytest.raises(ConfigError, match=r"has size 5, env\.tar\.gz\.json says 6: pack again"):
        Pack.read(archive)
    for damaged in ("[]", "{", '{"size": 5}'):
        beside.write_text(damaged)
        with pytest.raises(ConfigError, match="is damaged"):
            Pack.read(archive)
    beside.write_text(json.dumps(good))
    assert Pack.read(archive) == Pack(archive, "c", 5)
