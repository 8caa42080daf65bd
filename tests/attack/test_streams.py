"""Every command where its output has no reader, no room, or is closed, or its folder is gone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from command_lines import COMMANDS, LASTING, VALID, make_place
from sandbox import Case, Sandbox, Verdict

SURROUNDINGS: dict[str, dict[str, Any]] = {
    "no_stdin": {"closed": (0,)},
    "no_stdout": {"closed": (1,)},
    "no_stderr": {"closed": (2,)},
    "no_stream": {"closed": (0, 1, 2)},
    "no_reader": {"broken": (1,)},
    "no_reader_at_all": {"broken": (1, 2)},
    "no_room": {"full": (1,)},
    "no_room_at_all": {"full": (1, 2)},
    "no_folder": {"deleted": True},
}

ONCE = ("init", "run", "status", "predict", "serve")
"""Commands of ``make test``: they write files, start processes, read a run, read an artefact, and
last. All commands print and end by the same few lines of ``cli``."""

Try = Callable[..., Verdict]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("place")
    make_place(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def attempt(files: dict[str, bytes]) -> Iterator[Try]:
    with Sandbox() as sandbox:

        def run(name: str, **more: Any) -> Verdict:
            argv = tuple(VALID[name].split())
            lasting = name in LASTING
            return sandbox.run(Case(name, argv, files, interrupted=lasting, **more))

        yield run


def test_every_command_is_tried() -> None:
    assert set(VALID) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ONCE else pytest.mark.stress) for n in VALID]
)
def test_a_command_ends_well_whatever_its_streams_are(attempt: Try, name: str) -> None:
    usual = attempt(name)
    assert usual.kind == "clean", (usual.why, usual.err)
    bad = {
        around: fault
        for around, more in SURROUNDINGS.items()
        if (fault := _fault(usual, attempt(name, **more), around))
    }
    assert not bad, bad


def _fault(usual: Verdict, actual: Verdict, around: str) -> tuple[Any, ...] | None:
    """Return what is wrong with the end of a command, given how it ends elsewhere."""
    lost = around.startswith("no_r") and bool(usual.out)
    voiceless = around not in ("no_stdin", "no_stdout", "no_room", "no_folder")
    if actual.kind != "clean" and not (voiceless and "without a sentence" in actual.why):
        return actual.kind, actual.why, actual.err
    if around != "no_folder" and actual.code != (1 if lost else usual.code):
        return actual.code, actual.err
    if lost and ("No space left" in actual.err) != (around == "no_room"):
        return "words", actual.err
    return None
