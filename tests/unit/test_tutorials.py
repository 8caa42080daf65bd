"""How tutorials are read, and that no block of them stands unexamined."""

import re

import pytest
from tutorials import MARKS, PAGES, agrees, blocks, steps

NAMES = sorted(path.name for path in PAGES.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize(
    ("shown", "said", "alike"),
    [
        ("best 0.25 eV", "best 17.125 eV", True),
        ("best 0.25 eV", "best 17 eV", False),
        ("6 trials", "6  trials  ", True),
        ("6 trials", "7 trials", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("took ... s", "took 3 s", True),
        ("\u2502 a   \u2502", "\u2502 a \u2502", True),
        ("a.b", "axb", False),
        ("...\nend", "a\n   end  ", True),
        ("a\nb", "a\n\nb", False),
        ("", "", True),
        ("", "something", False),
    ],
)
def test_what_may_vary_varies_and_nothing_else(shown: str, said: str, alike: bool) -> None:
    assert agrees(shown, said) is alike


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_run_or_says_why_not(name: str) -> None:
    page = (PAGES / name).read_text()
    found = blocks(page)
    assert len(found) == len(re.findall(r"^```", page, re.MULTILINE)) / 2, "a fence is not closed"
    for block in found:
        where = f"{name}:{block.line}"
        assert not block.mark or block.mark.startswith(MARKS), f"{where}: unknown mark"
        assert not (block.skipped or block.varies) or len(block.mark.split()) > 4, f"{where}: why?"
        runs = block.skipped or block.file or (block.language == "console" and list(steps(block)))
        assert runs, f"{where}: neither a file with a name nor commands"
