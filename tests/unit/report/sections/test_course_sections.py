"""Progress, curves, failures, costs and provenance, on journals of a few lines."""

import hashlib
import json

import pytest
from unit.report.tiny_run import at, ended, facts_of, placed, trained

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import cost_unit, time_unit
from hydragnn_hpo.report.page_blocks import (
    Code,
    Figure,
    Table,
    Text,
    Verdict,
    VerdictConclusion,
    flatten,
)
from hydragnn_hpo.report.sections import costs, failures, headline, progress, provenance


def proposed(*trials):
    yield at(0, "opened", units={"gap": "eV"}, slots=["a:0", "a:1"])
    for name in trials:
        yield at(0, "proposed", name, values={"model.features": 3}, until=4)


def texts(section):
    return [block.text for block in section.blocks if isinstance(block, Text)]


def test_the_best_so_far_by_trials_and_by_slot_seconds(tmp_path):
    events = [*proposed("t0", "t1", "t2")]
    events += [placed(10, "t0", "a:0", "a:1"), placed(10, "t1", "a:0")]
    events += [ended(20, "t0", "stopped", 0.5), ended(30, "t1", "failed")]
    events += [placed(30, "t2", "a:0"), ended(35, "t2", "stopped", 0.7)]
    events += [at(35, "promoted", trials=["t0"], until=8, last=False)]
    events += [placed(40, "t0", "a:0", until=8), ended(41, "t0", "completed", 0.4)]
    results = progress.collect_results(facts_of(tmp_path, events))
    rows = [(r.trial, r.score, r.trials, r.seconds, r.best) for r in results]
    assert rows == [
        ("t0", 0.5, 1, 20.0, 0.5),
        ("t2", 0.7, 3, 20.0 + 20.0 + 5.0, 0.5),  # t1 failed, but it was a trial
        ("t0", 0.4, 3, 46.0, 0.4),
    ]
    assert progress.first_within(results, 1.3).trial == "t0"
    assert progress.first_within(results, 1.3).seconds == 20.0
    assert progress.first_within(results, 1.0).seconds == 46.0


def test_nothing_to_tell_yet(tmp_path):
    facts = facts_of(tmp_path, [*proposed("t0")])
    assert texts(progress.make_section(facts)) == ["No trial has a result yet."]
    assert texts(costs.make_section(facts)) == ["No epoch with a predicted time has ended yet."]
    assert len(texts(failures.make_section(facts))) == 1
    message = " ".join(texts(headline.make_section(facts)))
    assert "no trial has a result" in message


def numbers_of(section):
    numbers_by_block = (block.numbers for block in section.blocks if hasattr(block, "numbers"))
    return {number.key: number for numbers in numbers_by_block for number in numbers}


def test_a_campaign_at_work_shows_first_how_far_it_is_and_what_runs(tmp_path):
    """Four trials of 4 epochs; one ended, one has 2 epochs of 3 s left, two are to come."""
    events = [*proposed("t0", "t1"), placed(10, "t0", "a:0")]
    events += [trained(10 + 3 * k, "t0", k, 0.5, 3.0) for k in (1, 2, 3, 4)]
    events += [ended(22, "t0", "stopped", 0.5), placed(22, "t1", "a:0")]
    events += [trained(22 + 3 * k, "t1", k, 0.6, 3.0) for k in (1, 2)]
    section = headline.make_section(facts_of(tmp_path, events, rungs=(4,)))
    numbers = numbers_of(section)
    assert list(numbers)[:3] == ["progress", "left", "running"]
    assert numbers["progress"].value == 0.25
    assert numbers["progress"].note == "1 of 4, searching"
    # 2 + 2 * 4 epochs of 3 s on two slots, longer than the running trial's 6 s, and idle time.
    assert 15.0 < numbers["left"].value < 30.0
    assert numbers["running"].value == 1
    running = next(b for b in section.blocks if isinstance(b, Table) and b.key == "running_trials")
    keys = [column.key for column in running.columns]
    row = dict(zip(keys, running.rows[0], strict=True))
    assert (row["trial"], row["epoch"], row["until"], row["ends_in"]) == ("t1", 2, 4, 6.0)


def test_the_verdict_of_the_summary_stands_first_and_what_is_no_verdict_is_left_out(tmp_path):
    facts = facts_of(tmp_path, [*proposed("t0")])
    given = [
        {"head": None, "rule": "a", "level": "good", "sentence": "It works."},
        {"head": "gap", "rule": "b", "level": "shout", "sentence": "<b>Loud</b>"},
        {"head": "gap", "rule": "c", "level": "warning"},
        "no sentence",
    ]
    for content, expected in (
        (
            {"verdict": given},
            (
                VerdictConclusion("good", "It works.", "a"),
                VerdictConclusion("note", "<b>Loud</b>", "b", "gap"),
            ),
        ),
        ({"verdict": "none"}, ()),
        ({}, ()),
        ([], ()),
    ):
        facts.run.summary.write_text(json.dumps(content))
        assert headline.read_verdict(facts) == expected
        first = headline.make_section(facts).blocks[0]
        assert isinstance(first, Verdict) == bool(expected)
    facts.run.summary.write_text("[")
    assert headline.read_verdict(facts) == ()


def test_an_epoch_that_was_trained_twice_counts_once(tmp_path):
    events = [*proposed("t0"), placed(1, "t0", "a:0"), trained(2, "t0", 1, 0.9, 1.0)]
    events += [trained(3, "t0", 2, 0.8, 1.0), ended(4, "t0", "interrupted", reason="host_lost")]
    events += [placed(5, "t0", "a:0", attempt=2), trained(6, "t0", 2, 0.7, 1.0)]
    facts = facts_of(tmp_path, events)
    assert progress.learning_curve(facts.trials["t0"]) == ([1, 2], [0.9, 0.7])


def test_of_many_curves_the_best_and_an_even_sample_are_drawn():
    known = {f"t{k}": (list(range(10)), [1.0] * 10) for k in range(3000)}
    best = [f"t{k}" for k in range(500)]
    results = progress.choose_curves(known, best)
    assert results[:120] == best[:120]
    assert 200 <= len(results) == len(set(results)) <= progress.MOST_TRIALS
    assert progress.choose_curves({"t1": ([1], [2.0])}, []) == ["t1"]


def failed_run(tmp_path):
    events = [*proposed("t0", "t1"), placed(1, "t0", "a:0")]
    events += [ended(4, "t0", "failed", reason="bug", message="Traceback\nKeyError: <b>x</b>")]
    events += [placed(5, "t1", "a:0"), ended(6, "t1", "interrupted", reason="stale")]
    events += [at(7, "host_lost", host="a", reason="silent")]
    return facts_of(tmp_path, events)


def test_failures_show_the_last_lines_of_the_log_or_the_message(tmp_path):
    facts = failed_run(tmp_path)
    code_block = next(b for b in failures.make_section(facts).blocks if isinstance(b, Code))
    assert code_block.text.startswith("Traceback\nKeyError: <b>x</b>")
    assert code_block.text.endswith(f"$ hydragnn-hpo retry {tmp_path} t0")
    log = facts.run.trial("t0").attempt(1) / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"line %d\n" % k for k in range(99_999)) + b"\xff" + 900 * b"x")
    code_block = next(b for b in failures.make_section(facts).blocks if isinstance(b, Code)).text
    lines = code_block.splitlines()
    assert lines[0] == "line 99992"
    assert len(lines[7]) == failures.WIDTH
    assert len(lines) == 10


def test_a_name_that_a_shell_would_obey_is_quoted():
    command = failures.retry_command(RunDir("a b").path, "t1; rm -rf $HOME")
    assert command == "hydragnn-hpo retry 'a b' 't1; rm -rf $HOME'"


def test_failures_are_counted(tmp_path):
    tables = {
        b.key: b.rows
        for b in failures.make_section(failed_run(tmp_path)).blocks
        if isinstance(b, Table)
    }
    assert tables["reasons"][0][:3] == ("bug", 1, pytest.approx(3.0))
    assert tables["interruptions"][0][:3] == ("stale", 1, 1)
    assert tables["hosts"] == (("a", "lost", "silent"),)


def test_provenance_holds_commands_versions_and_the_checksum(tmp_path):
    software = {"python": "3.12.1", "torch": "2.9"}
    later = at(5, "opened", epoch=2, units={}, slots=["a:0"], software={"python": "3.12.2"})
    facts = facts_of(tmp_path, [at(0, "opened", units={}, slots=["a:0"], software=software), later])
    facts.run.ensemble.write_bytes(b"abc")
    section = provenance.make_section(facts)
    blocks = list(flatten(section.blocks))
    codes = {block.title: block.text for block in blocks if isinstance(block, Code)}
    assert f"hydragnn-hpo run {tmp_path}/campaign.toml --run {tmp_path}" in codes.values()
    assert codes["Ensemble, SHA-256"].startswith(hashlib.sha256(b"abc").hexdigest())
    tables = {b.key: b.rows for b in blocks if isinstance(b, Table)}
    assert tables["software"] == (("python", "3.12.1, 3.12.2"), ("torch", "2.9"))
    assert tables["openings"][0] == ("controller 1", "1970-01-01 00:00:00 UTC", 1, 1)


def test_units_of_time():
    assert [time_unit(s)[0] for s in (10, 3000, 40_000, 900_000)] == ["s", "min", "h", "days"]
    assert [cost_unit(s)[1] for s in (10, 3000, 40_000, 9e7)] == [1.0, 60.0, 3600.0, 3600.0]


def test_a_trial_that_a_rule_ended_early_has_the_colour_of_its_rung(tmp_path):
    events = [at(0, "opened", units={}, slots=["a:0", "a:1", "a:2"])]
    for number, (reached, score) in enumerate([(9, 1.0), (9, 0.7), (4, 2.0)]):
        events += [at(0, "proposed", f"t{number}", values={}, until=9)]
        events += [placed(1, f"t{number}", f"a:{number}", until=9)]
        events += [ended(5 + number, f"t{number}", "stopped", score, reached=reached)]
    blocks = flatten(progress.make_section(facts_of(tmp_path, events)).blocks)
    by_trials = next(b for b in blocks if isinstance(b, Figure) and b.key == "by_trials")
    assert [trace["name"] for trace in by_trials.data] == ["to epoch 9", "best so far"]
    assert by_trials.data[0]["y"].tolist() == [1.0, 0.7, 2.0]


def test_predicted_and_actual_seconds(tmp_path):
    """Median epochs take 3, 4 and 8 s where 2, 4 and 1 s were predicted."""
    events = [*proposed("t0", "t1", "t2")]
    predicted = {"t0": 2.0, "t1": 4.0, "t2": 1.0}
    for name, seconds in (("t0", (3.0, 1.0, 9.0)), ("t1", (4.0,)), ("t2", (8.0,))):
        fields = {"predicted_epoch_seconds": predicted[name], "predicted_seconds": 6.0}
        events += [placed(1, name, "a:0", **fields)]
        events += [trained(2 + k, name, 1 + k, 0.5, s) for k, s in enumerate(seconds)]
    events += [
        ended(10, "t0", "stopped", 0.5, reason=None),
        ended(11, "t1", "stopped", 0.5, reason="median"),
    ]
    facts = facts_of(tmp_path, events)
    actual = {n.key: n.value for n in costs.make_section(facts).blocks[0].numbers}
    # Sorted ratios are 1, 1.5 and 8; the 10th percentile lies a fifth of the way to the median.
    ratios = {"epoch_low": 1.1, "epoch_ratio": 1.5, "epoch_high": 1.5 + 0.8 * 6.5}
    assert actual == pytest.approx({**ratios, "attempt_ratio": 1.5})


def test_each_rung_is_counted(tmp_path):
    events = [*proposed("t0", "t1", "t2")]
    for number, score in enumerate((0.5, 0.2, None)):
        name = f"t{number}"
        events += [placed(1, name, "a:0"), trained(2, name, 1, 0.9, 1.0)]
        events += [ended(3, name, "failed" if score is None else "stopped", score)]
    events += [at(4, "promoted", trials=["t1"], until=8, last=False)]
    blocks = flatten(progress.make_section(facts_of(tmp_path, events)).blocks)
    table = next(b for b in blocks if isinstance(b, Table) and b.key == "rungs")
    rows = [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]
    keys = ("rested", "scored", "promoted", "best", "median")
    assert [rows[0][key] for key in keys] == [3, 2, 1, 0.2, pytest.approx(0.35)]
    assert [rows[1][key] for key in keys[:3]] == [0, 0, 0]
