"""The command line as a whole: what a user is told when something is not his to read."""

import errno
import io
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from hydragnn_hpo.__main__ import main as begun
from hydragnn_hpo.cli import command_line as module
from hydragnn_hpo.cli.command_line import main


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EACCES, "ask its owner for access or choose another place"),
        (errno.ENAMETOOLONG, "choose a shorter name"),
        (errno.EMFILE, "raise the limit of open files of a process: ulimit -n"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(number, cure, monkeypatch, capsys):
    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "report", "there"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    message = f"error: there/campaign.toml: {os.strerror(number)}; {cure}.\n"
    assert capsys.readouterr().err == message


def test_a_bug_keeps_its_traceback(monkeypatch):
    def refuse(path):
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "report", "there"])
    with pytest.raises(FileNotFoundError):
        main()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_standard_output_is_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "--version"])
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as left:
            main()
        monkeypatch.undo()  # closing flushes what is left, which must not fail again
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("error: standard output: No space left on device")


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_closed_standard_stream_is_the_null_device(closed, monkeypatch):
    def use_all() -> None:
        assert sys.stdin.buffer.read() == b"" or closed != "stdin"
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr, flush=True)

    if closed != "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys, closed, None)
    monkeypatch.setattr(module, "app", use_all)
    with pytest.raises(SystemExit):
        main()
    opened = getattr(sys, closed)
    assert os.readlink(f"/proc/self/fd/{opened.fileno()}") == os.devnull
    opened.close()


def test_a_working_folder_that_was_removed_is_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(module, "app", lambda: Path("a").absolute())
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "error: the working folder was removed; change to another one.\n"
    )


def test_too_little_memory_is_a_sentence(monkeypatch, capsys):
    def fill() -> None:
        raise MemoryError

    monkeypatch.setattr(module, "app", fill)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("error: memory ran out; ")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("warnings_enabled", [True, False])
def test_warnings_of_libraries_are_for_those_who_ask(warnings_enabled, monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", _show_warning)
    monkeypatch.setattr(sys, "warnoptions", ["default"] if warnings_enabled else [])
    monkeypatch.setattr(module, "app", lambda: warnings.warn("odd", RuntimeWarning, stacklevel=1))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == ("RuntimeWarning: odd\n" if warnings_enabled else "")


def _show_warning(message, category, *place):
    print(f"{category.__name__}: {message}", file=sys.stderr)


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_store_needs_a_name(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "dataset", "build", "g2_xtb", "--out", out])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: --out {out}: names no store; end it in NAME.bp.\n"


def test_letters_that_a_terminal_lacks_are_spelt_out(monkeypatch):
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(module, "app", lambda: print("caf\u00e9 \udcff", flush=True))
    with pytest.raises(SystemExit):
        main()
    assert written.getvalue() == b"caf\\xe9 \\udcff\n"


def test_control_c_while_the_command_is_imported_ends_it_without_a_word(monkeypatch, capsys):
    class HalfImported(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.delattr("hydragnn_hpo.cli.main")  # it is kept there once it was asked for
    monkeypatch.setitem(sys.modules, module.__name__, HalfImported(module.__name__))
    with pytest.raises(SystemExit) as left:
        begun()
    assert left.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("theirs", "kept"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(theirs, kept, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", theirs or "")
    if theirs is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "--version"])
    with pytest.raises(SystemExit):
        begun()
    assert os.environ["OMP_WAIT_POLICY"] == kept
