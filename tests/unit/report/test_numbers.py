"""Every number that a reader of the report sees equals the one computed without its code."""

from html.parser import HTMLParser

import pytest
from made_campaign import make_campaign
from unit.report.independent import INDEPENDENT

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.html_report import write_report
from hydragnn_hpo.report.sections import SECTIONS


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


def test_every_number_of_the_page(tmp_path):
    run = make_campaign(tmp_path / "run")
    text = write_report(RunDir(run.path)).read_text()
    assert "could not be made" not in text
    parser = Numbers()
    parser.feed(text)
    expected = {
        f"{key}.{name}": value
        for key, compute in INDEPENDENT.items()
        for name, value in compute(run.path).items()
    }
    strange = [key for key in parser.found if key not in expected]
    assert not strange, f"numbers that nobody checks: {strange[:10]}"
    for key, value in parser.found.items():
        assert value == pytest.approx(expected[key], rel=1e-6, abs=1e-9), key
    assert len(parser.found) > 300


def test_every_section_has_somebody_who_computes_it_anew():
    assert set(INDEPENDENT) == set(SECTIONS)
