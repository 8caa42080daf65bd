"""How tutorials are read, and that no block of them stands unexamined."""

import re

import pytest
from tutorials import HOWTO, MARKS, PAGES, agrees, blocks, find_page, steps

NAMES = sorted(
    path.stem
    for folder in (PAGES, HOWTO)
    for path in folder.glob("*.md")
    if path.name != "README.md"
)


@pytest.mark.parametrize(
    ("expected_output", "output", "alike"),
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
def test_what_may_vary_varies_and_nothing_else(
    expected_output: str, output: str, alike: bool
) -> None:
    assert agrees(expected_output, output) is alike


def test_every_page_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_pages_can_be_followed_in_one_folder() -> None:
    """``init`` never replaces a card, so no page may need one of a name that another one made."""
    pages = {name: find_page(name).read_text() for name in NAMES}
    stems = {n: set(re.findall(r"^\$ hydragnn-hpo init (\w+)", pages[n], re.M)) for n in NAMES}
    assert sum(map(len, stems.values())) == len(set().union(*stems.values())) > 3


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_run_or_says_why_not(name: str) -> None:
    page = find_page(name).read_text()
    results = blocks(page)
    assert len(results) == len(re.findall(r"^```", page, re.MULTILINE)) / 2, "a fence is not closed"
    for block in results:
        where = f"{name}.md:{block.line}"
        assert not block.mark or block.mark.startswith(MARKS), f"{where}: unknown mark"
        assert not (block.skipped or block.varies) or len(block.mark.split()) > 4, f"{where}: why?"
        runs = block.skipped or block.file or (block.language == "console" and list(steps(block)))
        assert runs, f"{where}: neither a file with a name nor commands"
