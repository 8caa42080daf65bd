"""Every number that a reader of the report sees equals the one computed without its code."""

import json
from html.parser import HTMLParser

import pytest
from made_campaign import make_campaign
from unit.report.independent import INDEPENDENT

from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.html_report import make_sections
from hydragnn_hpo.report.page import render_section
from hydragnn_hpo.report.sections import SECTIONS

WISHES = {
    "plain": {},
    "several goals": {
        **{"objective": ["val_mae.gap", "train_seconds"], "trials": 36},
        **{"controllers": 2, "reseed": 2, "seed": 3},
    },
    "unfinished": {"finished": False, "controllers": 2, "reseed": 2, "seed": 4},
    "peaceful": {"hosts": 2, "slots": 1, "trials": 9, "failures": False, "energy": False},
}


class Numbers(HTMLParser):
    """Collects what stands in ``<data>``."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attrs):
        if tag == "data":
            known = dict(attrs)
            assert known["data-key"] not in self.found, f"{known['data-key']} stands there twice"
            self.found[known["data-key"]] = float(known["value"])


def numbers_of(run, makers):
    """Return the numbers of all sections by key, and the sections that are there."""
    parser = Numbers()
    sections = make_sections(read_facts(run), makers)
    for section in sections:
        html = render_section(section).html
        assert "could not be made" not in html
        parser.feed(html)
    return parser.found, [section.key for section in sections]


def assert_right(run, makers=SECTIONS):
    shown, sections = numbers_of(run, makers)
    expected = {
        f"{key}.{name}": value
        for key in sections
        for name, value in INDEPENDENT[key](run.path).items()
        if value is not None
    }
    assert shown == pytest.approx(expected, rel=1e-6, abs=1e-9)
    return shown, sections


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_every_number_of_the_report(wishes, tmp_path):
    run = make_campaign(tmp_path / "run", **wishes)
    folder = run.trial("t0003").attempt(1)
    folder.mkdir(parents=True)
    records = [{"record": "start", "world": 1}, {"record": "epoch", "val_seconds": 0.4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shown, sections = assert_right(run)
    absent = {"heads", "members"} if "finished" in wishes else set()
    assert set(sections) == set(SECTIONS) - absent
    assert len(shown) > 150


def test_every_number_whenever_the_journal_is_read(tmp_path):
    run = make_campaign(tmp_path / "run", trials=24)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    (run.report / "ensemble.json").unlink()
    makers = {key: make for key, make in SECTIONS.items() if key not in ("importance", "slices")}
    for share in (0.8, 0.5, 0.2):
        run.journal.write_bytes(b"".join(lines[: int(share * len(lines))]))
        assert_right(run, makers)


def test_every_section_is_computed_twice():
    assert set(INDEPENDENT) == set(SECTIONS)
