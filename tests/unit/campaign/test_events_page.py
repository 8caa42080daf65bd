"""The table of events in the campaign's README names what journals hold."""

import re
from pathlib import Path

from golden_journal import FOLDER, JOURNALS, matched_kinds

from hydragnn_hpo.campaign import state
from hydragnn_hpo.campaign.journal import read_journal

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "campaigns.md"
ALWAYS = {"event", "time", "epoch"}


def test_every_key_of_a_journal_is_on_the_page() -> None:
    page = PAGE.read_text().partition("## Events")[2].partition("\n## ")[0]
    table = {}
    for events, keys in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", page, re.MULTILINE):
        words = {word for code in re.findall(r"`([^`]*)`", keys) for word in code.split()}
        table |= {kind: words for kind in re.findall(r"`(\w+)`", events)}
    assert matched_kinds(state) <= set(table)
    for name in JOURNALS:
        for event in read_journal(FOLDER / f"{name}.jsonl"):
            unknown = set(event) - ALWAYS - table[event["event"]]
            assert not unknown, f"{event['event']}: {unknown}"
