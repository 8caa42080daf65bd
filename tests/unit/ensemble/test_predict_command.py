"""``hydragnn-hpo predict``: what it prints, writes, and how it ends."""

import csv
import gzip
import io
import json
import os
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.io import write

from hydragnn_hpo.cli import predict_command
from hydragnn_hpo.cli.command_line import main
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.predict_output import PartFolder
from hydragnn_hpo.ensemble.structure_batches import (
    ChunkReader,
    StructureFiles,
    list_input_sources,
    read_structures,
    rules_for,
)
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.launching.rank_environment import LauncherInfo

BAD = Atoms("CC", np.zeros((2, 3)))


@pytest.fixture
def predict(built_zip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        line = ["hydragnn-hpo", "predict", *arguments, "--ensemble", str(built_zip)]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return run


def energies(built_zip: Path, *atoms: Atoms) -> list[float]:
    results = Ensemble.load(built_zip).predict(atoms).heads["energy"].mean[:, 0]
    return [float(value) for value in results]


def test_a_bad_structure_is_counted_and_the_others_are_written(predict, built_zip):
    write("a.extxyz", [molecule("H2O"), BAD, molecule("NH3")])
    code, out, err = predict("a.extxyz", "--out", "o.csv")
    assert (code, out) == (0, "wrote o.csv\nwrote o.nodes.csv\n")
    assert "structure 1 (a.extxyz@1)" in err
    assert err.endswith("1 of 3 structures could not be predicted\n")
    with Path("o.csv").open() as file:
        rows = list(csv.DictReader(file))
    actual = [float(row["energy"]) for row in rows if row["energy"]]
    expected = energies(built_zip, molecule("H2O"), molecule("NH3"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    code, _, err = predict("a.extxyz", "--out", "o.extxyz")
    assert code == 0
    assert "o.extxyz leaves out what could not be predicted" in err


def test_standard_output_takes_lines_of_csv_or_json(predict, built_zip):
    write("a.extxyz", [molecule("H2O"), BAD])
    (expected,) = energies(built_zip, molecule("H2O"))
    _, out, err = predict("a.extxyz", "--out", "-", "--levels", "50,95")
    first, second = csv.DictReader(io.StringIO(out))
    assert float(first["energy"]) == pytest.approx(expected, rel=1e-5)
    assert float(first["energy_lo95"]) < float(first["energy_lo50"]) < expected
    assert "at one place" in second["error"]
    assert "values per atom are left out" in err
    _, out, _ = predict("a.extxyz", "--out", "-", "--json", "--members")
    head, first, second = map(json.loads, out.splitlines())
    assert head["units"]["energy"] == "eV/atom"
    assert first["heads"]["energy"]["mean"] == pytest.approx(expected, rel=1e-5)
    assert len(first["heads"]["energy"]["members"]) == 6
    assert "at one place" in second["error"]
    _, out, _ = predict("a.extxyz", "--json")
    assert [entry["id"] for entry in json.loads(out)["structures"]] == ["a.extxyz@0", "a.extxyz@1"]


def test_the_table_has_the_intervals_that_were_asked_for(predict, built_zip, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    prediction = Ensemble.load(built_zip).predict(molecule("H2O"), levels=(50, 95))["energy"]
    write("a.extxyz", [molecule("H2O")])
    _, out, _ = predict("a.extxyz", "--levels", "50,95")
    assert "[50 % interval], [95 % interval]" in " ".join(out.split())
    row = next(line for line in out.splitlines() if "a.extxyz@0" in line)
    expected = [float(end[0, 0]) for level in (50, 95) for end in prediction.bounds[level]]
    shown = [float(end) for pair in re.findall(r"\[(.*?)\]", row) for end in pair.split(",")]
    assert shown == pytest.approx(expected, abs=6e-4)
    assert "90 %" in predict("a.extxyz")[1]


def test_a_level_without_a_guarantee_is_named_wherever_it_is_shown(predict, built_zip, caplog):
    """95 % take 19 groups in cal: the 19th of 19 scores is the first that covers (19 + 1) 0.95."""
    ensemble = Ensemble.load(built_zip)
    groups = {ensemble.manifest.heads[name].calibration.groups for name in ("energy", "charge")}
    assert groups == {12}
    sentences = [
        f"head '{name}' was calibrated on 12 groups, too few for a guaranteed 95 % interval (it "
        "takes 19): raise the share of cal."
        for name in ("energy", "charge")
    ]
    write("a.extxyz", [molecule("H2O")])
    outputs = (("--out", "o.csv"), ("--out", "-"), ("--json",), ())
    for levels, expected in (("95", sentences), ("50,90", []), ("90", [])):
        for out in outputs:
            _, _, err = predict("a.extxyz", *out, "--levels", levels)
            told = [line for line in err.splitlines() if line.startswith("warning: head")]
            assert told == [f"warning: {sentence}" for sentence in expected]
    card = ensemble.model_card()
    assert all(f"Beware: {sentence}" in card for sentence in sentences)
    assert "95 % interval (it takes 19)" not in "".join(caplog.messages)
    for _ in range(2):
        ensemble.predict(molecule("H2O"), levels=(50, 95))
    assert caplog.messages == sentences


def test_standard_input_is_read_once_and_leaves_nothing(predict, monkeypatch, tmp_path):
    text = io.StringIO()
    write(text, [molecule("H2O")] * 2, format="extxyz")
    for _ in range(2):  # parts of another run that was fed do not count
        piped = io.TextIOWrapper(io.BytesIO(text.getvalue().encode()))
        monkeypatch.setattr(sys, "stdin", piped)
        assert predict("-", "--out", "o.csv")[0] == 0
        (tmp_path / "o.csv.parts").mkdir()
        (tmp_path / "o.csv.parts/plan.json").write_text("{}")
    with Path("o.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["stdin@0", "stdin@1"]


def test_what_cannot_be_done_is_reported_before_anything_is_written(predict):
    write("a.xyz", molecule("H2O"), format="extxyz")
    Path("empty").mkdir()
    for arguments, says in (
        (("none.xyz", "--out", "o.csv"), "none.xyz: no such file"),
        (("a.xyz", "--out", "o.pdf"), "o.pdf: cannot tell the format"),
        (("a.xyz", "--out", "no/o.csv"), "no/o.csv"),
        (("empty", "--out", "o.csv"), "there is no structure to predict"),
        (("empty",), "there is no structure to predict"),
    ):
        code, out, err = predict(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert says in err
    assert sorted(path.name for path in Path().iterdir()) == ["a.xyz", "empty"]
    write("a.xyz", [BAD], format="extxyz")
    for options in (("--out", "o.csv"), ("--json",), ()):
        code, _, err = predict("a.xyz", *options)
        assert code == 1, "all fail"
        assert "1 of 1 structure could not be predicted" in err


def cut_gzip() -> None:
    write("whole.extxyz", [molecule("H2O")] * 50)
    packed = gzip.compress(Path("whole.extxyz").read_bytes())
    Path("a.extxyz.gz").write_bytes(packed[: len(packed) - 20])


def torn_text() -> None:
    write("a.extxyz", [molecule("H2O")] * 8)
    lines = Path("a.extxyz").read_text().splitlines(keepends=True)
    lines[10] = "no number\n"  # the head of the third of frames of 5 lines
    Path("a.extxyz").write_text("".join(lines))


@pytest.mark.parametrize(
    ("spoil", "file", "note"),
    [
        (cut_gzip, "a.extxyz.gz", "how many are missing is not known"),
        (torn_text, "a.extxyz", "by its size about 6 more are missing"),
    ],
)
@pytest.mark.parametrize("out", [["--out", "o.csv"], ["--out", "-"], ["--json"]])
def test_a_file_that_is_read_in_part_fails_after_its_rows(predict, spoil, file, note, out):
    spoil()
    code, printed, err = predict(file, *out)
    assert code == 1
    if "o.csv" in out:
        printed = Path("o.csv").read_text()
    assert f"{file}@1" in printed
    only = (
        rf"^error: {file}: only its first \d+ structures could be read; {note}; get the file again"
    )
    assert re.search(only, err, re.M)


def test_a_large_file_that_shrinks_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "a.extxyz"
    write(path, [molecule("C6H6")] * 100)
    assert path.stat().st_size > 2**16
    with ChunkReader(list_input_sources([path]), rules_for(4.0), StructureFiles()) as reader:
        write(path, [molecule("C6H6")] * 40)
        results = list(read_structures(reader))
    assert sum(len(some.ids) for some in results) == 41
    assert results[-1].incomplete[0].startswith(f"{path}: only its first 40 structures")


def test_the_second_writer_of_an_output_gets_the_name_of_the_first(predict):
    write("a.extxyz", [molecule("H2O")])
    folder = PartFolder(Path("o.csv"))
    folder.folder.mkdir()
    with folder.hold():
        code, _, err = predict("a.extxyz", "--out", "o.csv")
        assert code == 2
        who = f"process {os.getpid()} on {socket.gethostname()}"
        assert (
            err
            == f"error: o.csv: is being written by {who}; wait for it, or choose another name.\n"
        )
        assert not Path("o.csv").exists()
    assert predict("a.extxyz", "--out", "o.csv")[0] == 0
    assert not folder.folder.exists()


def test_a_full_disk_leaves_no_empty_folder(predict, monkeypatch):
    def full(*_: object) -> None:
        raise StorageError("o.csv.parts/plan.json: cannot be written; make room.")

    monkeypatch.setattr("hydragnn_hpo.ensemble.predict_output.write_json", full)
    write("a.extxyz", [molecule("H2O")])
    assert predict("a.extxyz", "--out", "o.csv")[0] == 2
    assert [path.name for path in Path().iterdir()] == ["a.extxyz"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a.extxyz",), "several ranks write a file: add --out NAME.csv."),
        (("-", "--out", "o.csv"), "several ranks cannot all read standard input"),
        (("a.extxyz", "--out", "o.csv", "--device", "cpu"), "--device is for one process"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(predict, monkeypatch, arguments, says):
    own_rank = LauncherInfo("torchrun", rank=0, world=2, local=0, local_world=2)
    monkeypatch.setattr(predict_command, "find_own_rank", lambda: own_rank)
    write("a.extxyz", molecule("H2O"))
    code, out, err = predict(*arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_the_input_is_never_replaced(predict, built_zip):
    write("a.extxyz", [molecule("H2O"), molecule("NH3")])
    Path("folder").mkdir()
    Path("folder/link.extxyz").symlink_to("../a.extxyz")
    before = Path("a.extxyz").read_bytes()
    for given in ("a.extxyz", "folder"):
        code, out, err = predict(given, "--out", "a.extxyz")
        assert (code, out) == (2, "")
        assert err == "error: a.extxyz: is read from; give --out another name.\n"
    assert Path("a.extxyz").read_bytes() == before
    Path("e.csv").symlink_to(built_zip)
    code, out, err = predict("a.extxyz", "--out", "e.csv")
    assert (code, out, err) == (2, "", "error: e.csv: is read from; give --out another name.\n")
    Path("e.csv").unlink()
    assert sorted(path.name for path in Path().iterdir()) == ["a.extxyz", "folder"]


def test_a_key_that_no_structure_has_is_reported(predict):
    """The column stays, so that scripts do not break; one key in one structure is enough."""
    labelled = molecule("H2O")
    labelled.info["label"] = "new"
    write("a.extxyz", [molecule("NH3")] * 25 + [labelled])
    expected = "warning: --keep lable: no structure has such a key; correct it or leave it out.\n"
    for out in (("--out", "o.csv"), ("--out", "-", "--json")):
        code, _, err = predict("a.extxyz", *out, "--keep", "label,lable")
        assert (code, err.count("warning")) == (0, 1)
        assert err.endswith(expected)
    _, out, err = predict("a.extxyz", "--keep", "label,lable")
    assert "no structure has" not in err, "it saw 20 of 26"
    assert "the first 20; all of them with --out NAME.csv" in out


def test_a_file_of_another_kind_is_an_error_and_no_table(predict):
    Path("README.md").write_text("# A page\n\nwithout structures\n")
    code, out, err = predict("README.md")
    assert (code, out) == (1, "")
    assert err.startswith("error: README.md: ")
    assert "get it again" not in err
    assert "get the file again" not in err
    write("a.xyz", molecule("H2O"), format="extxyz")
    code, out, err = predict("a.xyz", "README.md")
    assert code == 1
    assert "a.xyz@0" in out
    assert "not predicted" in out
