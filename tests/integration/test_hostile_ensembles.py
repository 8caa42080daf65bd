"""Ensembles and structures that somebody wants to harm us with, over every command that opens them.

Each is one sentence and an exit code: no traceback, no code that runs, no number that is
wrong, nothing raw on a terminal, nothing left behind.
"""

import json
import os
import pickle
import socket
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sealed_zip import sealed

from hydragnn_hpo.cli.command_line import main

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "unit/ensemble/golden/format2.zip"
GOOD = '2\nProperties=species:S:1:pos:R:3{more} pbc="F F F"\nC 0 0 0\nO 0 0 1.13\n'

Entries = dict[str, bytes]


class Done:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture
def hpo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run one command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", *map(str, argv)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert not {"\x1b", "\x07", "\x9b"} & set(out + err), "an order to the terminal"
        return Done(int(str(code or 0)), out, err)

    return run


@pytest.fixture
def entries() -> Entries:
    with zipfile.ZipFile(GOLDEN) as file:
        return {name: file.read(name) for name in file.namelist()}


# -- ensembles ---------------------------------------------------------------------------

MEMBER = "members/t0001"


def changed(entries: Entries, change: Callable[[dict], object]) -> bytes:
    values = json.loads(entries["ensemble.json"])
    change(values)
    return sealed({**entries, "ensemble.json": json.dumps(values).encode()})


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('ran').touch()",)


def pickled_weights(e: Entries) -> bytes:
    return sealed({**e, f"{MEMBER}.safetensors": pickle.dumps(Bomb())})


def encrypted(e: Entries) -> bytes:
    data = bytearray(sealed(e))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(mark)
        while place >= 0:
            data[place + offset] |= 1
            place = data.find(mark, place + 4)
    return bytes(data)


def overlapping(e: Entries) -> bytes:
    """All weights point at one place: a small file that claims to be large."""
    data = bytearray(sealed(e))
    first = data.find(b"PK\x01\x02")
    place = first
    starts = []
    while place >= 0:
        starts.append(place)
        place = data.find(b"PK\x01\x02", place + 4)
    for start in starts:
        data[start + 42 : start + 46] = struct.pack("<I", 0)
    return bytes(data)


def claims_gigabytes(e: Entries) -> bytes:
    """The list of entries says that a member has 4 GB."""
    data = bytearray(sealed(e))
    name = f"{MEMBER}.safetensors".encode()
    start = data.rfind(name) - 46
    data[start + 20 : start + 28] = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    return bytes(data)


def huge_list(e: Entries) -> bytes:
    """The list of entries is said to have gigabytes; the file is made to look as long."""
    data = bytearray(sealed(e))
    end = data.rfind(b"PK\x05\x06")
    data[end + 12 : end + 16] = struct.pack("<I", 2**31)
    return bytes(data)


def tensor_file(header: dict) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def huge_shape(e: Entries) -> bytes:
    part = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}
    return sealed({**e, f"{MEMBER}.safetensors": tensor_file({"x": part})})


def endless_layers(e: Entries) -> bytes:
    name = f"{MEMBER}.toml"
    return sealed({**e, name: e[name].replace(b"layers = 1", b"layers = 1000000000", 1)})


def endless_basis(e: Entries) -> bytes:
    name = f"{MEMBER}.toml"
    return sealed({**e, name: e[name].replace(b"basis_size = 4", b"basis_size = 1000000000")})


def endless_number(e: Entries) -> bytes:
    return sealed({**e, f"{MEMBER}.toml": b"seed = 1" + b"0" * 10_000})


def wrong_unit(e: Entries) -> bytes:
    return changed(e, lambda v: v["heads"]["energy"].update(unit="parsec"))


def foreign_unit(e: Entries) -> bytes:
    return changed(e, lambda v: v["heads"]["energy"].update(unit="kcal/mol"))


def ansi_title(e: Entries) -> bytes:
    return changed(e, lambda v: v["data"].update(title="\x1b]0;owned\x07\x1b[2J"))


def strangers_conv(e: Entries) -> bytes:
    Path("strangers_conv.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    name = f"{MEMBER}.toml"
    text = e[name].replace(b'conv = "schnet"', b'conv = "strangers_conv:Conv"')
    return sealed({**e, name: text})


HOSTILE: dict[Callable[[Entries], bytes], str] = {
    pickled_weights: "is not a safetensors file",
    encrypted: "' is encrypted;",
    overlapping: "cannot be read as a zip",
    claims_gigabytes: "bytes in a file of",
    huge_list: "cannot be read as a zip",
    huge_shape: "is not a safetensors file",
    endless_layers: "at most 1000 (rounds of message passing)",
    endless_basis: "at most 1000 (number of radial functions)",
    endless_number: "is not TOML",
    wrong_unit: "unknown unit 'parsec'",
    foreign_unit: "predictions are in eV, not in kcal/mol",
    ansi_title: "control characters",
}
"""One of each kind; what else an artefact may have wrong: ``unit/ensemble/test_artefact.py``."""


def commands(name: str) -> list[tuple[str, ...]]:
    ensemble = ("--ensemble", name)
    return [
        ("predict", "co.extxyz", *ensemble, "--out", "out.csv"),
        ("ensemble", "info", name),
        ("ensemble", "prune", name, "--keep", "2", "--out", "out.zip"),
        ("ensemble", "evaluate", "co.extxyz", *ensemble, "--target", "energy=e:eV/atom"),
        ("ensemble", "pick", "co.extxyz", *ensemble, "--n", "1"),
    ]


@pytest.mark.parametrize(
    ("make", "says"), HOSTILE.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_a_hostile_ensemble_is_one_sentence(hpo, tmp_path, entries, make, says) -> None:
    Path("co.extxyz").write_text(GOOD.format(more=""))
    Path("bad.zip").write_bytes(make(entries))
    before = sorted(path.name for path in tmp_path.iterdir())
    for argv in commands("bad.zip"):
        done = hpo(*argv)
        assert done.code == 2, (argv, done.out, done.err)
        [sentence] = done.errors
        assert "bad.zip" in sentence, argv
        assert says in sentence, argv
        assert len(sentence) < 700
        assert not done.out
        assert sorted(path.name for path in tmp_path.iterdir()) == before, argv


def test_a_strangers_code_runs_nowhere_without_trust(hpo, tmp_path, entries, monkeypatch) -> None:
    Path("co.extxyz").write_text(GOOD.format(more=" e=30.0"))
    Path("bad.zip").write_bytes(strangers_conv(entries))
    monkeypatch.syspath_prepend(str(tmp_path))
    for argv in commands("bad.zip"):
        done = hpo(*argv)
        builds_nets = argv[0] == "predict" or argv[1] in ("evaluate", "pick")
        assert done.code == (2 if builds_nets else 0), (argv, done.err)
        if builds_nets:
            assert "--trust strangers_conv" in done.errors[0]
        assert not Path("ran").exists(), argv


def bytes_read() -> int:
    """Count what this process has read, from files, devices and pipes."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_what_is_no_file_is_refused_and_not_read(hpo, tmp_path) -> None:
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("co.extxyz").write_text(GOOD.format(more=""))
    Path("link.zip").symlink_to("/dev/zero")
    for place in ("pipe", "/dev/zero", "folder", "link.zip", "none.zip"):
        for argv in commands(place):
            before = bytes_read()
            done = hpo(*argv)
            assert done.code == 2, (argv, done.err)
            assert len(done.errors) == 1
            assert bytes_read() - before < 2**26, argv  # modules that are imported are some of it
    done = hpo("predict", "pipe", "--ensemble", GOLDEN)
    assert done.code == 2, done.err
    assert "is a device or a pipe" in done.errors[0]


def test_a_good_one_opens_alone_without_network(hpo, monkeypatch) -> None:
    """The forger's tools above would prove nothing if they broke good files."""

    def closed(*args: object, **names: object) -> None:
        raise AssertionError("a socket was asked for")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, closed)
    Path("co.extxyz").write_text(GOOD.format(more=" e=30.0"))
    with zipfile.ZipFile(GOLDEN) as file:
        Path("good.zip").write_bytes(sealed({name: file.read(name) for name in file.namelist()}))
    for argv in commands("good.zip"):
        done = hpo(*argv)
        assert done.code == 0, (argv, done.err)
    assert Path("out.csv").exists()
    assert json.loads(hpo("ensemble", "info", "out.zip", "--json").out)["pruned"]


# -- structures --------------------------------------------------------------------------


def frame(body: str, *, cell: str = "", pbc: str = "F F F", columns: str = "species:S:1") -> str:
    lattice = f'Lattice="{cell}" ' if cell else ""
    count = len(body.splitlines())
    return f'{count}\n{lattice}Properties={columns}:pos:R:3 pbc="{pbc}"\n{body}\n'


STRUCTURES: dict[str, tuple[str, bytes | str, str]] = {
    "nan_cell": ("a.extxyz", frame("C 0 0 0", cell="nan 0 0 0 4 0 0 0 4", pbc="T T T"), "NaN"),
    "far_away": ("a.extxyz", frame("C 0 0 0\nO 0 0 1e300"), "angstrom wide"),
    "element_119": ("a.extxyz", frame("119 0 0 0", columns="Z:I:1"), "atomic number 119"),
    "element_huge": ("a.extxyz", frame("99999999999999999999 0 0 0", columns="Z:I:1"), "a.extxyz"),
    "endless_count": ("a.extxyz", "99999999999\nx\nC 0 0 0\n", "99999999999"),
    "no_volume": ("a.extxyz", frame("C 0 0 0", cell="4 0 0 8 0 0 0 0 4", pbc="T T T"), "no volume"),
    "latin": ("a.extxyz", GOOD.format(more=' n="\xe9"').encode("latin1"), "not a text file"),
    "a_script": ("a.py", "import pathlib\npathlib.Path('ran').touch()\n", "cannot be read"),
    "a_pickle": ("a.pckl", pickle.dumps(Bomb()), "is a pickle"),
    "huge_array": (
        "a.json",
        '{"1": {"numbers": {"__ndarray__": [[1000000000000], "float64", []]}}}',
        "cannot be read",
    ),
}
"""What else is refused: ``contracts/test_readers.py``, ``unit/data/test_structure.py``."""


@pytest.mark.parametrize(("name", "content", "says"), STRUCTURES.values(), ids=STRUCTURES)
def test_a_bad_structure_is_one_sentence(hpo, name, content, says) -> None:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for out in ((), ("--out", "out.csv")):
        done = hpo("predict", name, "--ensemble", GOLDEN, *out)
        assert done.code in (1, 2), done.err
        sentence, *rest = done.errors
        assert says in sentence, sentence
        assert all("could be read; " in more for more in rest), rest
        assert not Path("ran").exists()
    if Path("out.csv").exists():
        [_, row] = Path("out.csv").read_text().splitlines()
        assert row.split(",")[1:7] == [""] * 6, "a number for a structure that is none"


NAMES = {
    "terminal": "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "markup": "[red]x[/nonsense]",
    "long": "x" * 100_000,
    "turned": "\u202egnp.exe",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_is_no_order_to_the_terminal(hpo, name) -> None:
    text = GOOD.format(more=f' name="{name}"')
    Path("a.extxyz").write_text(text + text.replace("O 0 0 1.13", "O 0 0 0.0"))
    for out in ((), ("--json",), ("--out", "out.csv")):
        done = hpo("predict", "a.extxyz", "--ensemble", GOLDEN, *out)
        assert done.code == 0, done.err
        assert "at one place" in done.errors[0]
        assert len(done.errors[0]) < 1100
    text = Path("out.csv").read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_file_name_is_no_order_either(hpo) -> None:
    bad = Path(os.fsdecode(b"\x1b[31m\xff.extxyz"))
    bad.write_text(GOOD.format(more=""))
    for out in ((), ("--json",), ("--out", "out.csv")):
        assert hpo("predict", bad, "--ensemble", GOLDEN, *out).code == 0
    bad.write_text("nonsense")
    assert hpo("predict", bad, "--ensemble", GOLDEN).code in (1, 2)
    assert hpo("ensemble", "info", bad).code == 2


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)"])
def test_a_name_is_no_formula_of_a_spreadsheet(hpo, name) -> None:
    Path("a.extxyz").write_text(GOOD.format(more=f' name="{name}"'))
    assert hpo("predict", "a.extxyz", "--ensemble", GOLDEN, "--out", "out.csv").code == 0
    first = Path("out.csv").read_text().splitlines()[1].lstrip('"')
    assert not first.startswith(("=", "+", "-", "@"))


@pytest.mark.slow
def test_a_large_cell_is_predicted_like_its_small_cell(hpo) -> None:
    """1.2 million edges, in one piece: 30^3 atoms of simple cubic carbon, 2.6 angstrom apart."""
    side, apart = 30, 2.6
    grid = np.indices((side, side, side)).reshape(3, -1).T * apart
    body = "\n".join(f"C {x:.1f} {y:.1f} {z:.1f}" for x, y, z in grid)
    edge = side * apart
    for name, atoms, length in (("big", body, edge), ("small", "C 0 0 0", apart)):
        cell = f"{length} 0 0 0 {length} 0 0 0 {length}"
        Path(f"{name}.extxyz").write_text(frame(atoms, cell=cell, pbc="T T T"))
        done = hpo("predict", f"{name}.extxyz", "--ensemble", GOLDEN, "--out", f"{name}.csv")
        assert done.code == 0, done.err
    results = [
        Path(f"{name}.csv").read_text().splitlines()[1].split(",")[1:6] for name in ("big", "small")
    ]
    # fp32 sums over 27,000 atoms: mean and spread are off by some 1e-4, a lost image by far more.
    np.testing.assert_allclose(*np.array(results, dtype=float), rtol=1e-3)
