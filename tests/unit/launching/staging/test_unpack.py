"""Archives that were not made by us, or not wholly sent: nothing of them is left."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from hydragnn_hpo.launching.staging.unpack import ArchiveRefused, unpack

GOOD = {
    "format": 1,
    "files": 2,
    "bytes": 5,
    "prefix": "/old/place",
    "base": "/old/base/of/it",
    "home": "",
    "python": "3.11.7",
    "executable": "python3.11",
    "system_site": False,
}
PYTHON = ("base/bin/python3.11", b"#!sh\n")


def regular(name: str, content: bytes = b"", mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    return member, content


def special(name: str, kind: bytes, leads: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, leads
    return member, b""


def link(name: str, leads: str) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.SYMTYPE, leads)


def packed(file: Path, *members, told: dict | None = None, python: bool = True) -> str:
    """Write an archive with a manifest that fits, unless told; gives its checksum."""
    listed = [regular(*PYTHON)] * python + [*members]
    said = GOOD | {"files": len(listed), "bytes": sum(len(c) for _, c in listed)} | (told or {})
    with gzip.open(file, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        first = json.dumps(said).encode()
        for member, content in [regular("manifest.json", first), *listed]:
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def refused(tmp_path: Path, file: Path, checksum: str) -> str:
    """Give the sentence; neither the target nor anything beside it may be there."""
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(ArchiveRefused) as caught:
        unpack(file, tmp_path / "target", checksum)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    return str(caught.value)


HOSTILE = {
    "absolute": ([regular("/etc/hpo-was-here", b"x")], "would lie elsewhere"),
    "upwards": ([regular("env/../../hpo-was-here", b"x")], "would lie elsewhere"),
    "beside": ([regular("other/file", b"x")], "would lie elsewhere"),
    "no name": ([regular("env", b"x"), regular("env/x", b"x")], "cannot be unpacked"),
    "absolute link": ([link("env/a", "/etc/passwd")], "leads to '/etc/passwd'"),
    "link out": ([link("env/a", "../../../etc/passwd")], "leads out of it"),
    "link to the top": ([link("env/a", "..")], "leads out of it"),
    "chain of links": (
        [link("env/deep/er/up", "../.."), link("env/out", "deep/er/up/../..")],
        "leads out of it",
    ),
    "through a link": ([link("env/d", "../.."), regular("env/d/hpo-was-here", b"x")], "cannot be"),
    "over a link": ([link("env/f", "../../x"), regular("env/f", b"x")], "cannot be unpacked"),
    "hard link": ([special("env/a", tarfile.LNKTYPE, "/etc/passwd")], "neither a file nor a link"),
    "device": ([special("env/a", tarfile.CHRTYPE)], "neither a file nor a link"),
    "pipe": ([special("env/a", tarfile.FIFOTYPE)], "neither a file nor a link"),
    "folder": ([special("env/a", tarfile.DIRTYPE)], "neither a file nor a link"),
    "twice": ([regular("env/a", b"x"), regular("env/a", b"y")], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_lands_outside(tmp_path, case):
    members, said = HOSTILE[case]
    file = tmp_path / "env.tar.gz"

    assert said in refused(tmp_path, file, packed(file, *members))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"files": 3}, "ends after 2 of 3 files"),
        ({"bytes": 5}, "holds more than the 5 bytes"),
        ({"bytes": 1 << 60}, "are free"),
        ({"format": 2}, "not of format 1"),
        ({"home": None}, "lacks something"),
        ({"executable": "../../bin/sh"}, "names an interpreter"),
        ({"executable": "python3.99"}, "lacks its interpreter"),
        ({"home": "/no/such/place"}, "which this host does not have"),
    ],
)
def test_a_manifest_is_not_believed(tmp_path, told, said):
    file = tmp_path / "env.tar.gz"

    assert said in refused(tmp_path, file, packed(file, regular("env/a", b"more"), told=told))


def test_what_is_no_archive_is_refused(tmp_path):
    for name, content in {"empty": b"", "text": b"hello", "gzip": gzip.compress(b"hello")}.items():
        file = tmp_path / name
        file.write_bytes(content)
        refused(tmp_path, file, hashlib.sha256(content).hexdigest())
    assert "cannot be unpacked" in refused(tmp_path, tmp_path / "missing", "")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_refused_even_with_a_checksum_that_fits(tmp_path, share):
    file = tmp_path / "env.tar.gz"
    packed(file, *(regular(f"env/{n}", bytes(range(256)) * n) for n in range(40)))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])

    refused(tmp_path, file, hashlib.sha256(file.read_bytes()).hexdigest())
    assert "another checksum" in refused(tmp_path, file, hashlib.sha256(whole).hexdigest())


def test_a_link_in_the_archives_place_is_not_followed(tmp_path):
    checksum = packed(tmp_path / "env.tar.gz")
    (tmp_path / "link").symlink_to("env.tar.gz")

    assert "cannot be unpacked" in refused(tmp_path, tmp_path / "link", checksum)


def test_scripts_find_the_python_beside_them(tmp_path):
    file, target = tmp_path / "env.tar.gz", tmp_path / "target"
    checksum = packed(
        file,
        regular("env/bin/tool", b"#!/old/place/bin/python3\nprint(1)\n"),
        regular("env/bin/activate", b'VIRTUAL_ENV="/old/place"\nOTHER=/old/places/x\n', 0o644),
        regular("env/bin/binary", b"\0/old/place/bin\0"),
        link("env/lib64", "lib"),
        regular("env/lib/x", b""),
    )
    before = os.umask(0o022)
    try:
        unpack(file, target, checksum)
    finally:
        os.umask(before)

    env = target / "env"
    assert (env / "bin/tool").read_text() == f"#!{env}/bin/python3\nprint(1)\n"
    assert (env / "bin/activate").read_text() == f'VIRTUAL_ENV="{env}"\nOTHER=/old/places/x\n'
    assert (env / "bin/binary").read_bytes() == b"\0/old/place/bin\0"
    assert (env / "bin/activate").stat().st_mode & 0o777 == 0o644
    assert (env / "bin/python").resolve() == target / "base/bin/python3.11"
    assert (env / "lib64").readlink() == Path("lib")
    assert (env / "pyvenv.cfg").read_text() == (
        f"home = {target}/base/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n"
    )


def test_the_interpreter_looks_for_its_library_beside_itself(tmp_path):
    file, target = tmp_path / "env.tar.gz", tmp_path / "target"
    program = b"ELF\0/old/base/of/it/lib\0/old/base/of/it/library\0"
    members = [regular("base/bin/python3.11", program)]
    unpack(file, target, packed(file, *members, python=False))

    expected = b"ELF\0$ORIGIN/../lib\0\0\0\0\0\0/old/base/of/it/library\0"
    assert (target / "base/bin/python3.11").read_bytes() == expected


def test_a_first_line_that_is_too_long_for_a_kernel_goes_through_a_shell(tmp_path):
    file = tmp_path / "env.tar.gz"
    target = tmp_path / ("a-long-name" * 10) / "target"
    target.parent.mkdir()
    checksum = packed(file, regular("env/bin/tool", b"#!/old/place/bin/python3\nprint(1)\n"))
    unpack(file, target, checksum)

    lines = (target / "env/bin/tool").read_text().splitlines()
    python = target / "env/bin/python3"
    assert lines == ["#!/bin/sh", f"'''exec' {python} \"$0\" \"$@\"", "' '''", "print(1)"]
