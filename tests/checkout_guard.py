"""Each test runs in an empty folder of its own, and fails where it touches the checkout.

What a test writes must not stay behind, and what a user has made in the checkout (``runs/`` of the
demo) must not change a test. An audit hook records what this process opens, lists, creates, renames
and removes; entries that commands leave in the checkout fail the run at its end.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).resolve().parents[1])

CACHES = {".venv", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
"""Entries of the checkout that tools keep."""

OUTPUTS = {"runs", "dist", "build", "site", "wheelhouse"}
"""Entries of the checkout that users make: ``.gitignore`` lists them."""

READS = {"open", "os.listdir", "os.scandir"}
WRITES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

LEFT_FILES = 8
"""Exit code of a run that left files in the checkout; no second try helps."""

touched: list[str] = []
"""Accesses to the checkout since the last test ended."""


def access_to_checkout(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return a forbidden access to the checkout in words, None for any other audit event.

    Args:
        event: name of the audit event.
        arguments: of the event; paths come first.
    """
    writes = event in WRITES or (event == "open" and bool(arguments[2] & WRITE_FLAGS))
    for path in arguments[: 2 if event in {"os.rename", "os.link", "os.symlink"} else 1]:
        if not isinstance(path, str | bytes | os.PathLike):
            continue
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(ROOT + os.sep):
            continue
        top = name[len(ROOT) + 1 :].split(os.sep, 1)[0]
        if top in CACHES or "__pycache__" in name:
            continue
        if writes or top in OUTPUTS:
            return f"{event} {name}"
    return None


def record_access(event: str, arguments: tuple[Any, ...]) -> None:
    """Record forbidden accesses; an audit hook."""
    if (event in READS or event in WRITES) and (access := access_to_checkout(event, arguments)):
        touched.append(access)


def list_entries() -> set[str]:
    """Return what lies in the checkout and in its ``runs/``, without what tools keep there."""
    names = {path.relative_to(ROOT) for glob in ("*", "runs/*") for path in Path(ROOT).glob(glob)}
    return {str(name) for name in names if str(name) not in CACHES}


@pytest.fixture(scope="session")
def test_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Paths of folders that do not exist yet, for tests to run in."""
    base = tmp_path_factory.mktemp("folders")
    sys.addaudithook(record_access)
    os.chdir(base)  # fixtures of the first module are set up before the first test has its folder
    yield (base / str(number) for number in itertools.count())
    os.chdir(ROOT)


@pytest.fixture(autouse=True)
def own_folder(test_folders: Iterator[Path]) -> Iterator[Path]:
    """The empty folder in which a test runs; it stays, as a cluster may go on working in it."""
    folder = next(test_folders)
    folder.mkdir()
    os.chdir(folder)
    yield folder
    os.chdir(folder.parent)
    accesses = list(touched)
    touched.clear()
    assert not accesses, f"the test touched the checkout: {accesses[:5]}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what lies in the checkout."""
    session.config.stash[ENTRIES] = list_entries()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose commands left something in the checkout."""
    if hasattr(session.config, "workerinput"):
        return
    if added := sorted(list_entries() - session.config.stash[ENTRIES]):
        session.config.stash[ADDED] = added
        session.exitstatus = LEFT_FILES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left in the checkout."""
    if added := terminalreporter.config.stash.get(ADDED, []):
        terminalreporter.line(f"Tests left in the checkout: {', '.join(added)}", red=True)


ENTRIES = pytest.StashKey[set[str]]()
ADDED = pytest.StashKey[list[str]]()
