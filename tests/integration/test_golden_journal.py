"""Journals that users have fold to what they folded to before, event by event.

Times and energies of the golden journals are multiples of 1/8: their sums are exact in any order.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from comparing import assert_alike, golden_text
from golden_journal import FOLDER, JOURNALS, folded, matched_kinds, prefixes, text_of

from hydragnn_hpo.campaign import state
from hydragnn_hpo.campaign.journal import encode, read_journal

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "campaigns.md"
CAMPAIGN: dict[str, Any] = {
    "name": "golden",
    "data": [{"card": "golden"}],
    "trial": {"heads": {"energy": {}, "charge": {}}},
    "space": {"model.conv": ["schnet", "painn"]},
    "search": {"trials": 8, "rungs": [2, 4], "brain": "random"},
}


def kinds(path: Path) -> set[str]:
    return {event["event"] for event in read_journal(path)}


def test_the_golden_journal_holds_every_kind_of_event() -> None:
    page = GUIDE.read_text().partition("## Events")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    assert kinds(FOLDER / "events.jsonl") == named
    assert matched_kinds(state) == named - {"zygote_ready", "zygote_lost", "agent_lost"}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_folds_to_the_golden_state_after_each_event(name: str) -> None:
    golden = (FOLDER / f"{name}.prefixes.txt").read_text().splitlines()
    for actual, wanted in zip(prefixes(FOLDER / f"{name}.jsonl"), golden, strict=True):
        assert actual == wanted


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_folds_to_the_golden_state(name: str) -> None:
    golden = json.loads((FOLDER / f"{name}.state.json").read_text())
    actual = json.loads(text_of(folded(FOLDER / f"{name}.jsonl")))
    assert actual["state"] == golden["state"]
    assert actual["leaderboard"] == golden["leaderboard"]
    assert_alike(actual, golden, rel=1e-12)


@pytest.mark.parametrize("name", JOURNALS)
def test_events_are_written_as_they_stand_in_journals_of_users(name: str) -> None:
    path = FOLDER / f"{name}.jsonl"
    assert b"".join(map(encode, read_journal(path))) == path.read_bytes()


@pytest.mark.parametrize("command", ["status", "leaderboard"])
@pytest.mark.parametrize("name", JOURNALS)
def test_commands_show_the_golden_journal_as_before(hpo: Any, name: str, command: str) -> None:
    run = hpo.toml("run/campaign.toml", CAMPAIGN).parent
    (run / "events.jsonl").write_bytes((FOLDER / f"{name}.jsonl").read_bytes())
    actual = hpo.json(command, "run")
    golden = golden_text(FOLDER / f"{name}.{command}.json", text_of(actual))
    assert_alike(actual, json.loads(golden), rel=1e-12)
