"""Hosts that answer late, half, or with nonsense: what they do is a finding, never a hang."""

import itertools
import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

from hydragnn_hpo.launching.doctor import gather as module
from hydragnn_hpo.launching.doctor.gather import gather
from hydragnn_hpo.launching.doctor.lines import MARK, WIDTH, Collector, cut
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.probe import PATIENCE, examine, limited

ORDER = Order("x", "/tmp")


def answer(host, **more):
    return json.dumps({"host": host, "clock": 1.0, **more})


def run(code, hosts=("n1", "n2"), seconds=120.0):
    argv = [sys.executable, "-c", "import sys, time\n" + code]
    return gather(argv, hosts, environment=os.environ, seconds=seconds)


def printing(*lines):
    """Write each line by one call, also where nothing is buffered."""
    return "".join(f"sys.stdout.write({line + chr(10)!r})\nsys.stdout.flush()\n" for line in lines)


def test_long_answers_come_in_short_lines_and_are_put_together():
    text = answer("n1", errors={"devices": "x" * 5000})
    other = answer("n2", errors={"devices": "y" * 3000})
    lines, others = cut(text), cut(other)
    assert max(map(len, lines)) <= WIDTH + 60
    collector = Collector()
    mixed = [line for pair in zip(lines, others, strict=False) for line in pair]
    mixed += lines[len(others) :]
    told = [collector.hear(f"3: {line}") for line in mixed]
    assert [text for text in told if text] == [other, text]


@pytest.mark.parametrize("line", ["", "hello", f"{MARK} ", f"{MARK} a b c d", f"{MARK} a 1", "0: "])
def test_what_is_no_piece_is_passed_over(line):
    assert Collector().hear(line) is None


def test_all_answers_are_taken_and_noise_is_not():
    code = printing("a banner", f"0: {cut(answer('n1'))[0]}", "{'host': 'n2'}", "\x1b[2J")
    found = run(code + printing(*cut(answer("n2.site.gov")), *cut(answer("stranger"))))
    assert list(found.answers) == ["n1", "n2"]
    assert found.missing == {}


@pytest.fixture
def over_after_one_look(monkeypatch):
    """Let time stand until the command has said something, and be over then."""
    looks = itertools.chain([0.0, 0.0], itertools.repeat(1e9))
    clock = SimpleNamespace(monotonic=lambda: next(looks), time=time.time)
    monkeypatch.setattr(module, "time", clock)


@pytest.mark.usefixtures("over_after_one_look")
def test_a_host_that_is_late_is_left_behind():
    found = run(printing(*cut(answer("n1"))) + "time.sleep(600)", seconds=300.0)
    assert list(found.answers) == ["n1"]
    assert found.missing == {"n2": "no answer within 300 s"}


def test_a_command_that_never_falls_silent_is_ended():
    found = run("while True:\n    print('x' * 1000, flush=True)", seconds=0.5)
    assert set(found.missing) == {"n1", "n2"}


@pytest.mark.usefixtures("over_after_one_look")
def test_a_command_that_ignores_the_end_is_killed(monkeypatch):
    monkeypatch.setattr(module, "_ENDING_SECONDS", 0.5)
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + printing("deaf")
    found = run(f"{code}time.sleep(600)", seconds=300.0)
    assert found.missing == dict.fromkeys(("n1", "n2"), "no answer within 300 s")


def test_a_command_that_fails_says_why():
    found = run("sys.exit('srun: error: no such\\x1b host')")
    assert found.missing["n1"].startswith("ended with code 1 before it answered: srun: error")


@pytest.mark.parametrize("text", ["{}", '{"host": ""}', answer(""), answer("n1", system=3), "[1]"])
def test_what_is_no_answer_counts_as_none(text):
    assert run(printing(*cut(text)), hosts=("n1",)).answers == {}


def test_a_part_that_hangs_costs_itself_only(monkeypatch):
    for part in "bcd":  # a busy machine may need a while to fork
        monkeypatch.setitem(PATIENCE, part, 100.0)

    def hang(order):
        time.sleep(600)

    def crash(order):
        os._exit(9)

    def fail(order):
        raise KeyError("x")

    parts = {"a": hang, "b": crash, "c": fail, "d": lambda order: {"fine": 1}}
    found = examine(Order("x", "/tmp", seconds=0.5), parts)
    assert found["d"] == {"fine": 1}
    assert found["errors"] == {
        "a": "no answer in time",
        "b": "it crashed",
        "c": "KeyError: 'x'",
    }


def test_a_part_may_say_much():
    found = limited(lambda order: {"much": "x" * 1_000_000}, ORDER, 120.0)
    assert len(found["much"]) == 1_000_000
