"""The file of a run: what it weighs, that it is the same each time, and what it survives."""

import json
import logging
import os
import re
import shutil
import stat

import numpy as np
import pytest
from made_campaign import make_campaign
from safetensors.numpy import save_file

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.errors import ConfigError, RunError, StorageError
from hydragnn_hpo.files import read_json, write_text
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.html_report import make_sections, report_title, write_report
from hydragnn_hpo.report.page import Title, render_page
from hydragnn_hpo.report.page_blocks import Figure, Section, Text, flatten
from hydragnn_hpo.report.test_predictions import read_test_predictions


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = make_campaign(tmp_path_factory.mktemp("made") / "run", trials=24)
    return run, write_report(run)


def test_it_weighs_little_and_the_same_facts_give_the_same_bytes(made, tmp_path):
    run, path = made
    again = write_report(run, tmp_path / "again.html")
    assert again.read_bytes() == path.read_bytes()
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
        results = make_sections(facts, some)
    text = render_page(Title("a", "b"), results)
    assert [section.key for section in results] == ["one", "costs"]
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


def test_captions_are_whole_sentences_and_nothing_is_written_twice(made):
    facts = read_facts(made[0])
    sections = make_sections(facts)
    captions = [b.caption for s in sections for b in flatten(s.blocks) if isinstance(b, Figure)]
    assert len(captions) > 20
    for caption in captions:
        assert caption.endswith("."), caption
        assert not re.search(r"[a-z] (The|Each|On|In|Shown)\b", caption), caption
    page = made[1].read_text()
    assert page.count("no readable counter") <= 1
    assert not re.search(r"came to rest|ever were there|is honest|looked at once", page)


def test_a_directory_named_as_its_campaign_is_named_once(tmp_path):
    facts = read_facts(make_campaign(tmp_path / "made", trials=6))
    assert report_title(facts).name == "made"
    assert report_title(facts).about.startswith("finished, as of")
    (tmp_path / "made").rename(tmp_path / "other")
    assert report_title(read_facts(RunDir(tmp_path / "other"))).about.startswith("other, finished")


OWN = ("events.jsonl", "campaign.toml", "summary.json", "ensemble.zip")


@pytest.mark.parametrize("name", OWN)
def test_it_is_not_written_over_files_of_the_run(made, name):
    run, _ = made
    path = run.path / name
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(ConfigError, match=r"name it NAME\.html"):
        write_report(run, path)
    assert (path.read_bytes() if path.exists() else None) == before


def test_what_is_no_ordinary_file_stays(tmp_path):
    """A device, as /dev/null, would give way to the file for everybody: here a pipe."""
    path = tmp_path / "pipe.html"
    os.mkfifo(path)
    with pytest.raises(StorageError, match="no ordinary file"):
        write_text(path, "x")
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_files_that_are_something_else_are_a_sentence(made, tmp_path):
    run = RunDir(tmp_path / "run")
    shutil.copytree(made[0].path, run.path)
    for content in ("[]", "7", "{}", '{"heads": null}', "[" * 100_000):
        (run.report / "ensemble.json").write_text(content)
        with pytest.raises(StorageError, match=r"ensemble\.json"):
            read_facts(run)
    run.journal.unlink()
    run.journal.mkdir()
    with pytest.raises(RunError, match="cannot be read"):
        read_facts(run)


def test_predictions_of_the_wrong_shape_are_left_out(tmp_path):
    run = RunDir(tmp_path)
    run.report.mkdir()
    rows = {"torn/truth": 9, "torn/mean": 3, "none/truth": 0, "none/mean": 0}
    rows |= {"gap/truth": 4, "gap/mean": 4}
    arrays = {name: np.zeros((count, 1)) for name, count in rows.items()}
    save_file(arrays, run.report / "test_predictions.safetensors")
    assert list(read_test_predictions(run)) == ["gap"]
