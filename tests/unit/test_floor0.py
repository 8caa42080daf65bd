"""Files, records, units, errors, shipped files, layout: the floor all others stand on."""

import errno
import math
import os
import stat
import subprocess
import sys

import ase.units
import pytest

from hydragnn_hpo import files, metrics_log
from hydragnn_hpo.errors import ConfigError, StorageError, unknown
from hydragnn_hpo.layout import RunDir, TrialDir, derive_seed
from hydragnn_hpo.metrics_log import RecordWriter, read_records
from hydragnn_hpo.resources import find_resource, resource_path
from hydragnn_hpo.units import inside, interpret_unit, mark_guess
from hydragnn_hpo.words import fixed


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_written_whole(tmp_path):
    path = tmp_path / "a.json"
    files.write_bytes(path, b"old")
    files.write_bytes(path, b"new" * 1000)
    assert path.read_bytes() == b"new" * 1000
    assert names(tmp_path) == ["a.json"]


@pytest.fixture
def umask():
    """Set the umask of this process; the old one comes back."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(
    ("mask", "file", "folder"),
    [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o027, 0o640, 0o750), (0, 0o644, 0o755)],
)
def test_results_follow_the_umask_and_are_never_written_by_others(
    tmp_path, umask, mask, file, folder
):
    umask(mask)
    files.write_text(tmp_path / "result", "x")
    RecordWriter(tmp_path / "records").close()
    files.write_text(tmp_path / "secret", "x", private=True)
    with files.whole_folder(tmp_path / "results"):
        pass
    with files.whole_folder(tmp_path / "secrets", private=True):
        pass
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    results = {"result": file, "records": file, "results": folder}
    assert modes == results | {"secret": 0o600, "secrets": 0o700}


def test_what_others_may_write_or_what_is_a_link_is_not_ones_own(tmp_path):
    (tmp_path / "code").write_text("x")
    (tmp_path / "code").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "code")
    assert files.is_own(tmp_path / "code")
    assert not files.is_own(tmp_path / "link")
    assert not files.is_own(tmp_path / "nothing")
    (tmp_path / "code").chmod(0o622)
    assert not files.is_own(tmp_path / "code")


def test_an_open_umask_is_limited_and_a_strict_one_stays(umask):
    for mask, limited in ((0, 0o022), (0o002, 0o022), (0o077, 0o077), (0o027, 0o027)):
        umask(mask)
        files.limit_umask()
        assert umask(0) == limited


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_a_sentence(tmp_path, monkeypatch, step):
    path = tmp_path / "a.json"
    files.write_text(path, "old")
    monkeypatch.setattr(files.os, step, full_disk)
    with pytest.raises(StorageError) as caught:
        files.write_text(path, "new")
    assert str(caught.value) == (
        f"{path}: cannot be written (No space left on device); make room or choose another place."
    )
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room or choose another place"),
        (errno.EDQUOT, "your quota is used up: remove files or choose another place"),
        (errno.EFBIG, "raise the limit of 'ulimit -f' or choose a file system for larger files"),
        (errno.EROFS, "it is mounted read-only: choose another place"),
        (errno.ESTALE, "its network mount was lost: run the command again once it is back"),
        (errno.EACCES, "ask its owner for access or choose another place"),
        (errno.EMFILE, "raise the limit of open files of a process: ulimit -n"),
        (errno.ENOTDIR, "choose another place"),
    ],
    ids=errno.errorcode.get,
)
def test_each_error_of_the_storage_has_its_own_advice(number, advice, tmp_path):
    with pytest.raises(StorageError) as caught, files.storage(tmp_path):
        raise OSError(number, os.strerror(number))
    expected = f"{tmp_path}: cannot be written ({os.strerror(number)}); {advice}."
    assert str(caught.value) == expected


def test_content_is_on_disk_before_the_name_and_the_folder_after(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def watched(*arguments, name=name, real=real):
            order.append(name)
            return real(*arguments)

        monkeypatch.setattr(files.os, name, watched)
    files.write_bytes(tmp_path / "a", b"x")
    assert order == ["fsync", "replace", "fsync"]


def test_an_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_bytes(tmp_path / "a", b"x")
    assert names(tmp_path) == []


def test_json_round_trip_and_its_sentences(tmp_path):
    path = tmp_path / "a.json"
    value = {"a": [1, 0.1 + 0.2, None, "\u00e5"], "b": {}}
    files.write_json(path, value)
    assert files.read_json(path) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    assert files.read_json(path) == value
    path.write_text('{"a": 1')
    with pytest.raises(StorageError, match=r"a.json: is damaged \(.*\); remove it and run again"):
        files.read_json(path)
    with pytest.raises(StorageError, match=r"b.json: cannot be read \(No such file"):
        files.read_json(tmp_path / "b.json")


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "deep" / "store"
    for round_ in ("one", "two"):
        with files.whole_folder(target) as work:
            (work / round_).write_text(round_)
            if round_ == "one":
                assert not target.exists()
    assert names(target) == ["two"]
    assert names(target.parent) == ["store"]


def test_a_folder_that_fails_leaves_the_old_one(tmp_path):
    target = tmp_path / "store"
    with files.whole_folder(target) as work:
        (work / "old").touch()
    with pytest.raises(ZeroDivisionError), files.whole_folder(target) as work:
        (work / "new").write_text(str(1 / 0))
    with pytest.raises(StorageError, match="No space left"), files.whole_folder(target):
        full_disk()
    assert names(target) == ["old"]
    assert names(tmp_path) == ["store"]


def test_records_come_back_as_they_were(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = RecordWriter(path)
    inf = float("inf")
    nested = {"a": [1, inf, (float("nan"), 2.0)], "b": {"c": -inf, "d": "inf"}, "e": True}
    writer.write("epoch", 1.5, loss=nested, word="\n\u00e5")
    writer.close()
    again = RecordWriter(path)
    again.write("end", 2.5)
    again.close()
    finite = {"a": [1, None, [None, 2.0]], "b": {"c": None, "d": "inf"}, "e": True}
    assert list(read_records(path)) == [
        {"record": "epoch", "time": 1.5, "loss": finite, "word": "\n\u00e5"},
        {"record": "end", "time": 2.5},
    ]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"record": "a"}\n{"record": "b"}')
    assert list(read_records(path)) == [{"record": "a"}]
    assert list(read_records(tmp_path / "none")) == []


def test_a_line_that_only_half_fits_is_an_error(tmp_path, monkeypatch):
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    real = os.write
    monkeypatch.setattr(metrics_log.os, "write", lambda to, content: real(to, content[:5]))
    with pytest.raises(StorageError, match="No space left on device"):
        writer.write("epoch", 1.0)
    monkeypatch.undo()
    assert list(read_records(writer.path)) == []


def test_a_hint_for_an_unknown_name():
    assert unknown("conv", "schent", ["schnet", "pna", "gin"]) == (
        "unknown conv 'schent'. Did you mean 'schnet'? Known: gin, pna, schnet."
    )
    assert unknown("conv", "zzz", ["gin"]) == "unknown conv 'zzz'. Known: gin."
    with pytest.raises(ConfigError, match=r"unknown unit 'Hartre'. Did you mean 'Hartree'\?"):
        inside("Hartre")


@pytest.mark.parametrize(
    ("unit", "ours"),
    [
        ("eV", "eV"), ("meV", "eV"), ("Hartree", "eV"), ("Rydberg", "eV"), ("kcal/mol", "eV"),
        ("kJ/mol", "eV"), ("angstrom", "angstrom"), ("bohr", "angstrom"), ("nm", "angstrom"),
        ("Hartree/bohr", "eV/angstrom"), ("meV/nm", "eV/angstrom"), ("meV/atom", "eV/atom"),
        ("kcal/mol/angstrom", "eV/angstrom"), ("e", "e"), ("muB", "muB"), ("1", "1"),
        ("muB/atom", "muB/atom"), ("1/cm", "1/cm"), ("GPa", "GPa"), ("log10(GPa)", "log10(GPa)"),
        ("kbar", "GPa"), ("ppm", "ppm"), ("1/Hartree", "1/eV"), ("1/meV", "1/eV"),
    ],
)  # fmt: skip
def test_factors_against_ase(unit, ours):
    table = ase.units.create_units("2018")
    sizes = {
        "eV": 1.0, "meV": 1e-3, "Hartree": table["Hartree"], "Rydberg": table["Rydberg"],
        "kcal/mol": table["kcal"] / table["mol"], "kJ/mol": table["kJ"] / table["mol"],
        "angstrom": 1.0, "bohr": table["Bohr"], "nm": table["nm"],
        "Hartree/bohr": table["Hartree"] / table["Bohr"], "meV/nm": 1e-3 / table["nm"],
        "meV/atom": 1e-3, "kcal/mol/angstrom": table["kcal"] / table["mol"],
        "kbar": 1e3 * table["bar"] / table["GPa"],
        "1/Hartree": 1 / table["Hartree"], "1/meV": 1e3,
    }  # fmt: skip
    factor, name = inside(unit)
    assert name == ours
    assert factor == pytest.approx(sizes.get(unit, 1.0), rel=1e-9)
    assert inside(name) == (1.0, name), "our own units stay as they are"


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("Ha", "Hartree"), ("Hartree", "Hartree"), ("hartrees", "Hartree"), ("D", "debye"),
        ("Debye", "debye"), ("Bohr", "bohr"), ("a0", "bohr"), ("a0^3", "bohr^3"),
        ("a0 a0 a0", "bohr^3"), ("Bohr**3", "bohr^3"), ("kcal/mol", "kcal/mol"),
        ("kcal mol^-1", "kcal/mol"), ("kcal mol-1", "kcal/mol"), ("kJ/mol", "kJ/mol"),
        ("kcal/mol/Ang", "kcal/mol/angstrom"), ("kcal/(mol*A)", "kcal/mol/angstrom"),
        ("eV/Ang", "eV/angstrom"), ("Ha/Bohr", "Hartree/bohr"), ("eV/A^3", "eV/angstrom^3"),
        ("e*Ang", "e*angstrom"), ("e a0", "e*bohr"), ("eV per atom", "eV/atom"),
        ("cm^-1", "1/cm"), ("mu_B", "muB"), ("", "1"), ("GPa(stress)", "GPa(stress)"),
        ("Hartree/particle", "Hartree"), ("GHz", None), ("a0 a0", None), ("cal/mol K", None),
        ("MeV", None), ("furlong", None), ("Ha or eV", None), ("eV^x", None),
    ],
)  # fmt: skip
def test_spellings_of_units_in_other_programs(text, unit):
    assert interpret_unit(text) == unit


def test_a_guessed_unit_is_marked_but_not_the_lack_of_one():
    marked = [mark_guess("eV", guessed=True), mark_guess("eV", guessed=False)]
    assert marked == ["eV (guessed)", "eV"]
    assert mark_guess("1", guessed=True) == "1"


def test_an_argument_is_a_path_or_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = resource_path("graph_datasets/g2_xtb.toml")
    with pytest.raises(ConfigError, match="is not part of this installation"):
        resource_path("graph_datasets/none.toml")
    assert find_resource("g2_xtb", "graph_datasets") == ours
    assert find_resource("graph_datasets/g2_xtb.toml", "graph_datasets") == ours
    (tmp_path / "my.toml").touch()
    assert find_resource("my.toml", "graph_datasets").resolve() == tmp_path / "my.toml"
    with pytest.raises(ConfigError, match=r"^other.toml: no such file"):
        find_resource("other.toml", "graph_datasets")
    with pytest.raises(ConfigError, match=r"unknown name .* 'g2_xbt'. Did you mean 'g2_xtb'\?"):
        find_resource("g2_xbt", "graph_datasets")


def test_seeds_are_stable_and_differ_in_every_part():
    """Written down on the day this was agreed: another value breaks every old campaign."""
    assert derive_seed(0, "trial", "model") == 1_229_194_539
    parts = [(s, t, p) for s in range(20) for t in ("a", "b") for p in ("model", "order")]
    seeds = [derive_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_where_things_lie(tmp_path):
    trial = RunDir(tmp_path).trial("t0001")
    assert trial == TrialDir(tmp_path / "trials" / "t0001")
    assert trial.best == trial.path / "checkpoints" / "best.safetensors"
    assert trial.attempts() == []
    for number in (2, 10, 1):
        trial.attempt(number).mkdir(parents=True)
    (trial.path / "attempts" / "notes").mkdir()
    assert trial.attempts() == [1, 2, 10]
    assert trial.attempt(10).name == "010"


def test_what_a_kill_left_unfinished_is_swept(tmp_path):
    """A writer that is killed between its temporary name and the rename."""
    killed = (
        "import os, signal, sys; from pathlib import Path; from hydragnn_hpo import files;"
        "files.os.replace = files.os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
    )
    (tmp_path / "below").mkdir()
    for act in ("files.write_text(Path(sys.argv[1]), 'half')", "folder(Path(sys.argv[1]))"):
        code = f"{killed}\ndef folder(path):\n    with files.whole_folder(path): pass\n{act}"
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "below" / "x"], check=False)
        assert done.returncode == -9
    (tmp_path / ".kept").write_text("not ours")
    (tmp_path / "below" / "whole").write_text("whole")
    assert len(list(tmp_path.rglob(".x*"))) == 2

    files.remove_partial_files(tmp_path)

    assert {path.name for path in tmp_path.rglob("*")} == {"below", "whole", ".kept"}


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.12345, 4, "0.1235"),
        (-123456789.0, 3, "-123456789.000"),
        (1e300, 4, "1e+300"),
        (-1.25e9, 4, "-1.25e+09"),
        (math.inf, 4, "inf"),
        (math.nan, 4, "nan"),
    ],
)
def test_a_number_with_fixed_digits_is_never_longer_than_a_column(value, digits, shown):
    assert fixed(value, digits) == shown
