"""The table of events in the campaign's README is what journals hold."""

import ast
import re
from pathlib import Path

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import _HANDLERS

ROOM = Path(__file__).parents[3] / "hydragnn_hpo" / "campaign"
ALWAYS = {"event", "time", "epoch"}


@pytest.fixture(scope="module")
def table() -> dict[str, set[str]]:
    """Return the keys that the page names, by event."""
    page = (ROOM / "README.md").read_text()
    page = page[page.index("## Events") :].partition("\n## ")[0]
    found = {}
    for events, keys in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", page, re.MULTILINE):
        words = {word for code in re.findall(r"`([^`]*)`", keys) for word in code.split()}
        found |= {kind: words for kind in re.findall(r"`(\w+)`", events)}
    return found


def test_every_kind_of_event_is_on_the_page(table: dict[str, set[str]]) -> None:
    noted = set()
    for path in ROOM.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "append":
                noted |= {a.value for a in call.args[:1] if isinstance(a, ast.Constant)}
    assert len(noted) > 15
    assert set(table) == noted | set(_HANDLERS) | {"zygote_lost", "agent_lost"}


def test_every_key_of_a_journal_is_on_the_page(table: dict[str, set[str]], tmp_path: Path) -> None:
    run = make_campaign(tmp_path / "run", trials=40)
    for event in read_journal(run.journal):
        unknown = set(event) - ALWAYS - table[event["event"]]
        assert not unknown, f"{event['event']}: {unknown}"
