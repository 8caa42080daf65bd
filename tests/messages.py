"""Every error for users that a test provokes is checked: a test that made a bad one fails.

The rules are those of ``hydragnn_hpo/errors.py``: one short sentence with what was found and what
to do, in our own words. Only errors made by the package count, not those that a test makes. What a
process of its own prints after ``error:`` or ``warning:`` counts, and what a command prints here.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import hydragnn_hpo
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.sanitize import shorten_words

LONGEST = 300
"""Most characters of a sentence before a list of names."""

PACKAGE = str(Path(hydragnn_hpo.__file__).parent)

LIBRARIES = re.compile(
    r"pydantic|ValidationError|DecodeError|RuntimeError|\bValueError|\bTypeError|\bKeyError"
    r"|\bOSError|\brdkit\b|\base\.\w|\btorch\.(?!nn\b)\w|<class|Traceback|Errno|\bat 0x[0-9a-f]"
)
"""Names of classes and modules of libraries, and objects as Python shows them."""

LISTS = re.compile(
    r"(?<=[ (])(?:Known|known|columns|All names|one of|choose from|use): .*|one of .*"
)
"""Lists of names, which may be long."""

DO = frozenset(
    re.findall(
        r"\w+",
        """add ask begin break build call change check chmod choose close compare correct
    create derive drop end enlarge exchange export finish free get give gives
    have install keep leave let link load look lower make mend move name open
    pack plan predict put raise read rebuild reinstall remove rename
    repeat request restore run save say search see send separate set shard show
    split start submit take train try unset update upgrade use wait watch widen
    write""",
    )
)
"""What a user can be asked to do."""

HINT = re.compile(r"Did you mean|[Kk]nown: |pip install |(?:^|[ '(])hydragnn-hpo [a-z]")
"""Other ways to say what to do."""


NAMED = re.compile(r"'[^']+'|\bPATH\b|\d|[\w.*]/|/\w|\w\.\w|--\w|\w_\w")
"""A value, a number, a file, a key or an option: what was found."""


def faults(sentence: str, folders: tuple[str, ...] = ()) -> list[str]:
    """Return what is wrong with the sentence of an error.

    Args:
        sentence: of an error for users.
        folders: whose paths count as short names.
    """
    for folder in folders:
        sentence = re.sub(re.escape(folder) + r"[^\s'\":;,)]*[^\s'\":;,).]", "PATH", sentence)
    results = []
    length = len(LISTS.sub("", shorten_words(sentence)))  # as it is printed
    if length > LONGEST:
        results.append(f"has {length} characters, more than {LONGEST}")
    if match := LIBRARIES.search(sentence):
        results.append(f"holds '{match[0]}'")
    if "\n" in sentence:  # other control characters are escaped where it is printed
        results.append("holds a newline")
    if sentence.endswith(("..", ":.", ";.", " .")) or not sentence.endswith((".", "?")):
        results.append("does not end with one full stop")
    clauses = re.split(r"[:;.,(?]\s+|\s(?:or|and|but|then)\s", sentence)
    before = list(itertools.takewhile(lambda clause: not _says_what_to_do(clause), clauses))
    if len(before) == len(clauses) and not HINT.search(sentence):
        results.append("does not say what to do")
    if len(" ".join(before).split()) < 3 and not NAMED.search(" ".join(before)):
        results.append("does not say what was found")
    return results


def _says_what_to_do(clause: str) -> bool:
    """Say whether a clause is a verb of ``DO`` and its object."""
    verb, _, what = clause.partition(" ")
    return bool(what) and verb.lower() in DO


MADE: list[str] = []
"""Sentences of the errors that the package made since a test began."""


def _remember(error: HydraError, *args: Any) -> None:
    Exception.__init__(error, *args)
    if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):
        MADE.append(str(error))


HydraError.__init__ = _remember  # type: ignore[method-assign]

MESSAGE_PATTERN = re.compile(r"^(?:error|warning): (.+)$", re.MULTILINE)
"""Sentences that a command prints."""


def _remember_words(words: Any) -> None:
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    MADE.extend(MESSAGE_PATTERN.findall(text))


def _watch(communicate: Callable[..., Any]) -> Callable[..., Any]:
    """Remember the sentences of a command that ran in a process of its own."""

    def watched(*arguments: Any, **options: Any) -> Any:
        ended = communicate(*arguments, **options)
        for words in ended:
            _remember_words(words)
        return ended

    return watched


def _watch_echo(echo: Callable[..., None]) -> Callable[..., None]:
    """Remember the sentences that a command prints in this process."""

    def watched(message: Any = None, *arguments: Any, **options: Any) -> None:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):
            _remember_words(message)
        echo(message, *arguments, **options)

    return watched


subprocess.Popen.communicate = _watch(subprocess.Popen.communicate)  # type: ignore[method-assign]
typer.echo = _watch_echo(typer.echo)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passed, and during which the package made an error with a bad sentence."""
    factory = getattr(item.config, "_tmp_path_factory", None)
    folders = (str(factory.getbasetemp()),) if factory else ()
    MADE.clear()
    yield
    bad = {text: what for text in MADE if (what := faults(text, folders))}
    MADE.clear()  # a suite that a test runs inside itself has judged its own
    if bad:
        lines = [f"{text!r}: {', '.join(what)}" for text, what in bad.items()]
        pytest.fail("\n".join(["messages that break the rules:", *lines]), pytrace=False)
