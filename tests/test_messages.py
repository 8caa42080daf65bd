"""A test that provokes a bad message fails; each rule has an example."""

from pathlib import Path

import pytest
from messages import LONGEST, faults

SUITE = """
    import pytest
    from hydragnn_hpo.errors import {error}
    from hydragnn_hpo.config.schema import read_toml

    def test_message(tmp_path):
        {body}
"""


def test_a_test_that_provokes_a_bad_message_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hydragnn_hpo.config.schema as schema

    pytester.syspathinsert(Path(__file__).parent)
    pytester.makeconftest('pytest_plugins = ["messages"]')
    body = "with pytest.raises(ConfigError):\n            read_toml(tmp_path / 'none.toml')"
    pytester.makepyfile(SUITE.format(error="ConfigError", body=body))
    assert pytester.runpytest_inprocess().ret == 0

    monkeypatch.setattr(schema, "_hint", lambda path: " ValidationError.")
    deep = "(tmp_path / 'a.toml').write_text('a = [')\n        "
    body = deep + "with pytest.raises(ConfigError):\n            read_toml(tmp_path / 'a.toml')"
    pytester.makepyfile(SUITE.format(error="ConfigError", body=body))
    failed = pytester.runpytest_inprocess()

    assert failed.ret == 1
    failed.stdout.fnmatch_lines(["*messages that break the rules*", "*holds 'ValidationError'*"])


def test_an_error_that_a_test_makes_itself_is_not_checked(pytester: pytest.Pytester) -> None:
    pytester.syspathinsert(Path(__file__).parent)
    pytester.makeconftest('pytest_plugins = ["messages"]')
    pytester.makepyfile(SUITE.format(error="ConfigError", body="ConfigError('bad')"))
    assert pytester.runpytest_inprocess().ret == 0


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("a.toml: 'trials' is 1.5: write a whole number.", None),
        ("unknown conv 'schent'. Did you mean 'schnet'? Known: gin, pna.", None),
        (
            "a.toml: is gone; see " + "b/" * (LONGEST // 2) + ".",
            "has 322 characters, more than 300",
        ),
        ("unknown key 'a'. Known: " + ", ".join("name" for _ in range(100)) + ".", None),
        ("1 validation error of pydantic: correct it.", "holds 'pydantic'"),
        ("is not JSON (JSONDecodeError): mend it.", "holds 'DecodeError'"),
        ("a.cif: fails in ase.io: mend it.", "holds 'ase.i'"),
        ("<class 'int'> was found: write a text.", "holds '<class'"),
        ("found <Atoms object at 0x7f>: give a file.", "holds 'at 0x7'"),
        ("a.toml: two\nlines; correct it.", "holds a newline"),
        ("a.toml: is empty; get it again", "does not end with one full stop"),
        ("a.toml: is empty; get it again..", "does not end with one full stop"),
        ("a.toml: cannot be read (No such file or directory).", "does not say what to do"),
        ("conv 'gin' is no conv.", "does not say what to do"),
        ("search.rungs [3, 3] must rise.", "does not say what to do"),
        ("a.toml: conv 'gin' lacks a set, name.", "does not say what to do"),
        ("Correct the file 'a.toml'.", "does not say what was found"),
        ("Failed: correct the file.", "does not say what was found"),
    ],
)
def test_rules(sentence: str, fault: str | None) -> None:
    results = faults(sentence)
    assert (not results) if fault is None else (len(results) == 1 and fault in results[0]), results


def test_paths_below_the_tests_folder_are_short_names() -> None:
    sentence = f"/tmp/run-1/{'deep/' * 90}a.toml: is empty; get it again."
    assert faults(sentence) == ["has 492 characters, more than 300"]
    assert faults(sentence, ("/tmp/run-1",)) == []


@pytest.mark.parametrize(
    "body",
    [
        "command_line._report('bad', 1)",
        "subprocess.run([sys.executable, '-c', 'print(\"error: bad\")'], capture_output=True)",
        "subprocess.run([sys.executable, '-c', 'print(\"warning: bad\")'], stdout=-1, text=True)",
    ],
)
def test_what_a_command_prints_is_checked(pytester: pytest.Pytester, body: str) -> None:
    pytester.syspathinsert(Path(__file__).parent)
    pytester.makeconftest('pytest_plugins = ["messages"]')
    imports = "import subprocess\nimport sys\nfrom hydragnn_hpo.cli import command_line\n"
    pytester.makepyfile(f"{imports}\ndef test_message():\n    {body}\n")
    failed = pytester.runpytest_inprocess()
    assert failed.ret == 1
    failed.stdout.fnmatch_lines(["'bad': *does not say what to do*"])
