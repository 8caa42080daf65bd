"""Strays: found and ended by their tag."""

import os
import subprocess
import sys

import pytest
from processes import find_orphans

from hydragnn_hpo.launching.process_control import RUN, end_orphans, run_tag

SLEEP = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
FORKS = [*SLEEP[:2], f"import os; os.fork(); {SLEEP[2]}"]


def start(command, **environment):
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment)


@pytest.fixture
def tag(tmp_path):
    tag = run_tag(tmp_path)
    yield tag
    end_orphans(tag)


def test_a_run_has_one_tag_however_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    absolute = run_tag(tmp_path / "run")

    assert run_tag(tmp_path / "other") != absolute
    from_here = run_tag(type(tmp_path)("run"))
    assert absolute == from_here == run_tag(tmp_path / "link")


def test_strays_and_their_forks_are_found_and_ended(tag):
    with start(FORKS, **{RUN: tag}) as stray:
        stray.stdout.readline()
        stray.stdout.readline()
        actual = find_orphans(tag)
        assert stray.pid in actual
        assert len(actual) == 2

        assert end_orphans(tag) == actual
        assert find_orphans(tag) == []


def test_other_runs_and_longer_tags_are_left_alone(tag):
    with start(SLEEP, **{RUN: tag + "0"}) as other:
        other.stdout.readline()

        assert end_orphans(tag) == []

        assert other.poll() is None
        other.kill()


def test_the_asker_and_its_parents_are_no_strays(tag):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    asks = (
        f"import sys; sys.path.insert(0, {root!r});"
        "from hydragnn_hpo.launching.process_control import end_orphans;"
        f"print(end_orphans({tag!r}))"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}])"

    answer = subprocess.run(
        [sys.executable, "-c", parent],
        env=os.environ | {RUN: tag},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert answer.stdout == "[]\n", answer.stderr
