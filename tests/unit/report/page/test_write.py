"""The file of a run: what it weighs, that it is the same each time, and what it survives."""

import json
import logging

import pytest
from made_campaign import make_campaign

from hydragnn_hpo.campaign.records.journal import encode
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.page.blocks import Section, Text
from hydragnn_hpo.report.page.page import Title, document
from hydragnn_hpo.report.page.write import sections_of, write_report
from hydragnn_hpo.report.reading.facts import read_facts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = make_campaign(tmp_path_factory.mktemp("made") / "run", trials=24)
    return run, write_report(run)


def test_the_same_facts_give_the_same_bytes(made, tmp_path):
    run, path = made
    again = write_report(run, tmp_path / "again.html")
    assert again.read_bytes() == path.read_bytes()


def test_it_weighs_little_and_every_section_could_be_made(made):
    _, path = made
    assert path.stat().st_size < 5e6
    assert "could not be made" not in path.read_text()


def test_a_section_that_fails_costs_the_others_nothing(made, caplog):
    def fail(facts):
        raise ValueError(f"no <b>{facts.run.path.name}</b>\nsecond line")

    facts = read_facts(made[0])
    some = {
        "headline": lambda _: Section("one", "One", "", (Text("a"),)),
        "costs": fail,
        "members": lambda _: None,
    }
    with caplog.at_level(logging.ERROR):
        found = sections_of(facts, some)
    text = document(Title("a", "b"), found)
    assert [section.key for section in found] == ["one", "costs"]
    assert "This could not be made: no &lt;b&gt;run&lt;/b&gt;" in text
    assert "second line" not in text
    assert "Traceback" in caplog.text


def test_names_and_messages_of_a_run_are_only_text(tmp_path):
    hostile, folder = "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>"
    run = make_campaign(tmp_path / folder, trials=12)
    ensemble = read_json(run.report / "ensemble.json")
    ensemble["members"][0]["trial"] = ensemble["why"] = hostile
    (run.report / "ensemble.json").write_text(json.dumps(ensemble))
    journal = run.journal.read_bytes().splitlines()
    events = [json.loads(line)["e"] for line in journal]
    for event in events:
        if "message" in event:
            event["message"] = hostile
    run.journal.write_bytes(b"".join(encode(event) for event in events))
    written = write_report(run).read_text()
    assert hostile not in written
    assert folder not in written
    assert "&lt;img src=x" in written
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in written
    assert written.count("<script") == 3


def test_a_folder_without_a_campaign_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no campaign"):
        write_report(RunDir(tmp_path))
