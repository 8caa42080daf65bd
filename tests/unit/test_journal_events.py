"""The types of events and files are what the code writes and what runs of users hold."""

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from golden_journal import matched_kinds

from hydragnn_hpo.campaign import accounting, event_store, history, read_journal, state
from hydragnn_hpo.file_records import StoreStats, TrialResult
from hydragnn_hpo.journal_events import JournalEvent

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens"
JOURNALS = [*sorted((GOLDENS / "journal").glob("*.jsonl")), GOLDENS / "run" / "events.jsonl"]
KINDS: dict[str, type] = {
    kind: event
    for event in get_args(JournalEvent)
    for kind in get_args(get_type_hints(event)["event"])
}


def written_events() -> Iterable[tuple[set[str], set[str]]]:
    """Yield, for every call that appends to the journal, possible kinds and spelt-out keys."""
    for path in sorted((ROOT / "hydragnn_hpo").rglob("*.py")):
        text = path.read_text()
        calls = ast.walk(ast.parse(text)) if "event_store.append" in text else ()
        for call in calls:
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if not ast.unparse(call.func).endswith("event_store.append"):
                continue
            keys = {word.arg for word in call.keywords if word.arg} - {"durable"}
            first = call.args[0]
            if isinstance(first, ast.Constant):
                yield {str(first.value)}, keys
            else:
                assert ast.unparse(first) == "event.kind", f"{path}: {ast.unparse(call)}"
                yield {"zygote_lost", "agent_lost"}, keys


def test_every_event_that_is_appended_has_a_type_with_its_keys() -> None:
    calls = list(written_events())
    assert len(calls) > 20
    for kinds, keys in calls:
        for kind in kinds:
            assert keys <= set(KINDS[kind].__annotations__), kind
    assert set().union(*(kinds for kinds, _ in calls)) == set(KINDS)


@pytest.mark.parametrize("module", [state, accounting, event_store, history])
def test_every_kind_that_is_matched_has_a_type(module: ModuleType) -> None:
    """The type checker holds what follows a ``case`` against the type of its kind."""
    kinds = matched_kinds(module)
    assert kinds
    assert kinds <= set(KINDS)


def test_golden_journals_fit_the_types() -> None:
    seen = set()
    for path in JOURNALS:
        for event in map(dict[str, Any], read_journal(path)):
            known = KINDS[event["event"]]
            msgspec.convert(event, known)
            assert set(event) <= set(known.__annotations__), event
            seen.add(event["event"])
    assert seen == set(KINDS)


@pytest.mark.parametrize(
    ("pattern", "kind"), [("result.json", TrialResult), ("stats.json", StoreStats)]
)
def test_golden_files_fit_the_types(pattern: str, kind: Any) -> None:
    paths = sorted(GOLDENS.rglob(pattern))
    assert paths
    for path in paths:
        content = json.loads(path.read_bytes())
        variants = [
            each
            for each in get_args(kind) or (kind,)
            if content.get("status") in (None, *get_args(get_type_hints(each).get("status")))
        ]
        assert len(variants) == 1
        msgspec.convert(content, variants[0])
        assert set(content) <= set(variants[0].__annotations__)
