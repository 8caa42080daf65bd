"""The command line as a whole: what a user is told when something is not his to read."""

import errno
import io
import os
import sys
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
    said = f"error: there/campaign.toml: {os.strerror(number)}; {cure}.\n"
    assert capsys.readouterr().err == said


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
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: standard output: No space left on device")


def test_letters_that_a_terminal_lacks_are_spelt_out(monkeypatch):
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(module, "app", lambda: print("caf\u00e9 \udcff", flush=True))
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
