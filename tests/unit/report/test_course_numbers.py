"""Every number of the sections on a campaign's course equals the one computed independently."""

import shutil

import pytest
from made_campaign import make_campaign
from unit.report.independent_course import COURSE

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.page_blocks import Doubtful, Numbers, Table
from hydragnn_hpo.report.sections import SECTIONS

WISHES = {
    "plain": {"trials": 36},
    "two controllers": {"controllers": 2, "reseed": 2, "seed": 3, "trials": 36},
    "unfinished": {"finished": False, "seed": 4},
    "peaceful": {"hosts": 2, "slots": 1, "trials": 12, "failures": False, "energy": False},
}


def numbers_of(blocks):
    """Collect all numbers by their keys."""
    found = {}
    for block in blocks:
        if isinstance(block, Numbers):
            found |= {number.key: number.value for number in block.numbers}
        elif isinstance(block, Table):
            for row in block.rows:
                for column, cell in zip(block.columns, row, strict=True):
                    if not isinstance(cell, str) and cell is not None:
                        found[f"{block.key}.{row[0]}.{column.key}"] = cell
        elif isinstance(block, Doubtful):
            found |= numbers_of(block.blocks)
    return found


@pytest.fixture(params=WISHES.values(), ids=WISHES, scope="module")
def made(request, tmp_path_factory):
    run = make_campaign(tmp_path_factory.mktemp("made") / "run", **request.param)
    return run, read_facts(run)


def test_all_numbers_are_right_whenever_the_journal_is_read(made):
    run, facts = made
    lines = run.journal.read_bytes().splitlines(keepends=True)
    path = run.path.with_name("growing")
    shutil.copytree(run.path, path, dirs_exist_ok=True)
    (path / "report" / "ensemble.json").unlink(missing_ok=True)
    for count in range(0, len(lines), max(1, len(lines) // 5)):
        (path / "events.jsonl").write_bytes(b"".join(lines[:count]))
        growing = read_facts(RunDir(path))
        for key in COURSE:
            section = SECTIONS[key](growing)
            if section is not None and growing.state.ranked():
                assert_right(numbers_of(section.blocks), COURSE[key](path))


def assert_right(shown, expected):
    for name, value in shown.items():
        assert name in expected, name
        assert (value is None) == (expected[name] is None), name
        assert value is None or value == pytest.approx(expected[name], rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("key", COURSE)
def test_all_numbers_are_right(made, key):
    run, facts = made
    section = SECTIONS[key](facts)
    assert section is not None
    assert section.key == key
    shown = numbers_of(section.blocks)
    expected = COURSE[key](run.path)
    missing = {k: v for k, v in expected.items() if v is not None and k not in shown}
    assert not missing
    assert_right(shown, expected)
