"""A small environment with a package and a script, packed, and unpacked where it never was."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.staging import contents
from hydragnn_hpo.launching.staging.unpack import unpack

ROOT = Path(__file__).parents[4]
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
PACK = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.launching.staging import contents
from hydragnn_hpo.launching.staging.pack import pack_environment
if sys.argv[2:]:
    contents._SYSTEM = sys.base_prefix
try:
    made = pack_environment(Path(sys.argv[1]))
except HydraError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"checksum": made.checksum, "fingerprint": made.fingerprint}))
"""
SCRIPT = """
import frog, json, sys, hydragnn_hpo
print(json.dumps([sys.prefix, *sys.path, frog.__file__, json.__file__, hydragnn_hpo.__file__]))
"""


@pytest.fixture
def small(tmp_path) -> Path:
    """Give an environment with one package of its own."""
    place = tmp_path / "small env"
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
def test_it_works_where_it_is_unpacked_and_needs_nothing_of_where_it_was(small, tmp_path):
    archive = tmp_path / "env.tar.gz"
    made = pack(small, archive, base=True)
    target = tmp_path / "target"
    unpack(archive, target, made["checksum"])
    shutil.rmtree(small)

    done = subprocess.run([target / "env/bin/frog"], capture_output=True, text=True, env={})

    assert done.returncode == 0, done.stderr
    prefix, *files = json.loads(done.stdout)
    assert prefix == str(target / "env")
    outside = [file for file in files if not file.startswith(f"{target}/")]
    assert outside == []
    shipped = target / "env" / LIBRARY / "site-packages/hydragnn_hpo/_shipped"
    assert (shipped / "launch/machines/frontier.toml").is_file()


def test_the_same_environment_gives_the_same_archive(small, tmp_path):
    first = pack(small, tmp_path / "one.tar.gz")
    for path in small.rglob("*"):
        os.utime(path, follow_symlinks=False)
    (small / LIBRARY / "site-packages/frog/__pycache__").mkdir()
    (small / LIBRARY / "site-packages/frog/__pycache__/x.cpython-311.pyc").write_bytes(b"cache")

    second = pack(small, tmp_path / "two.tar.gz")

    assert first["checksum"] == second["checksum"]
    assert first["fingerprint"] != second["fingerprint"]  # which only spares work
    (small / LIBRARY / "site-packages/frog/new.py").touch()
    assert pack(small, tmp_path / "three.tar.gz")["checksum"] != first["checksum"]


def test_an_archive_of_the_same_files_is_not_written_again(small, tmp_path):
    archive = tmp_path / "env.tar.gz"
    pack(small, archive)
    before = archive.stat().st_ino
    pack(small, archive)
    assert archive.stat().st_ino == before

    archive.write_bytes(archive.read_bytes()[:-1])
    pack(small, archive)
    assert archive.stat().st_ino != before


@pytest.mark.slow
def test_it_tells_what_it_holds(small, tmp_path):
    archive = tmp_path / "env.tar.gz"
    pack(small, archive, base=True)

    with tarfile.open(archive) as tar:
        names = tar.getnames()
        content = tar.extractfile("manifest.json")
        assert content is not None
        told = json.load(content)
    assert names[0] == "manifest.json"
    assert names[1:] == sorted(names[1:])
    assert told["files"] == len(names) - 1
    assert told["python"] == sys.version.split()[0]
    assert f"env/{LIBRARY}/site-packages/frog/__init__.py" in names
    assert f"base/{LIBRARY}/json/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert not [name for name in names if name.startswith(f"base/{LIBRARY}/site-packages")]


def test_an_unwritable_place_is_said_in_a_sentence(small, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in pack(small, tmp_path / "file/env.tar.gz")["error"]
    assert "NAME.tar.gz" in pack(small, tmp_path / "env.zip")["error"]


def test_a_conda_environment_is_refused(small, tmp_path):
    (small / "conda-meta").mkdir()
    assert "conda-pack" in pack(small, tmp_path / "env.tar.gz")["error"]
    assert not list(tmp_path.glob("*env.tar*"))


def test_a_link_to_somebodys_checkout_is_refused(small, tmp_path):
    about = small / LIBRARY / "site-packages/toad-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toad\nVersion: 1.0\n")
    origin = {"url": "file:///home/me/toad", "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(origin))

    assert "toad is installed as a link" in pack(small, tmp_path / "env.tar.gz")["error"]


def test_links_stay_inside_or_become_files(tmp_path):
    top, outside = tmp_path / "top", tmp_path / "outside"
    (top / "lib").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("x")
    (top / "lib/file").write_text("y")
    (top / "absolute").symlink_to(top / "lib/file")
    (top / "lib64").symlink_to("lib")
    (top / "away").symlink_to(outside / "file")

    found = {entry.name: entry for entry in contents.walk(top, "env")}

    assert found["env/absolute"].link == "lib/file"
    assert found["env/lib64"].link == "lib"
    assert (found["env/away"].link, found["env/away"].source) == ("", outside / "file")
    assert sorted(found) == ["env/absolute", "env/away", "env/lib/file", "env/lib64"]

    (top / "folder").symlink_to(outside)
    with pytest.raises(ConfigError, match="which is not packed"):
        list(contents.walk(top, "env"))
