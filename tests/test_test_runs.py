"""How tests are run: each file is in one slice, time has a budget, the checkout stays untouched."""

import os
import shutil
from pathlib import Path

import checkout_guard
import pytest
from checkout_guard import ROOT
from cpu_budget import measure_slowness
from hypothesis import given
from hypothesis import strategies as st
from slices import UNKNOWN, assign_slices

BUSY = """
    import subprocess, sys

    WORK = "import time\\nwhile time.process_time() < 0.5: pass"

    def test_busy():
        subprocess.run([sys.executable, "-c", WORK], check=True)

    def test_idle():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of its own, with the plugins of this repository."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makeini("[pytest]\nmarkers =\n  stress: x\n  release: x")
    return pytester


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 300), max_size=30), st.integers(1, 6))
def test_every_file_is_in_one_slice_and_no_slice_has_a_file_too_many(seconds, count):
    slices = assign_slices(seconds, seconds, count)
    assert slices.keys() == seconds.keys()
    assert set(slices.values()) <= set(range(count))
    load = [sum(seconds[p] for p in seconds if slices[p] == k) for k in range(count)]
    # Graham (1966): no machine is busy longer than the mean and the longest job together.
    assert max(load) <= sum(seconds.values()) / count + max(seconds.values(), default=0)


def test_the_longest_file_is_assigned_first():
    seconds = {"a": 50, "b": 30, "c": 20}
    assert assign_slices([*"abcd"], seconds, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert UNKNOWN == 10  # so "d" goes where both have 50, into the first


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("minutes", "code"), [("0.001", 9), ("5", 0)])
def test_a_run_over_its_budget_fails_and_names_its_files(suite, workers, minutes, code):
    suite.makepyfile(test_busy=BUSY)
    plugins = ("-p", "cpu_budget", "-p", "no:cacheprovider")
    done = suite.runpytest_subprocess(*plugins, "-n", workers, "--cpu-budget", minutes)
    assert done.ret == code
    (line,) = [line for line in done.outlines if line.endswith("test_busy.py")]
    assert float(line.split()[0]) in (0.0, 1.0)  # half a second, rounded
    (total,) = [line for line in done.outlines if "CPU minutes, files" in line]
    assert total.split(" recorded: ")[0].endswith("taking 1.00 times as long as")
    assert ("the run has failed" in total) == (code == 9)


def test_a_slow_processor_is_told_from_a_file_that_became_dear():
    recorded = {"a": 10.0, "b": 10.0, "c": 10.0, "quick": 0.1}
    slow = {"a": 30.0, "b": 30.0, "c": 30.0, "quick": 9.0, "new": 50.0}
    assert measure_slowness(slow, recorded) == 3  # "quick" is too short, "new" was never recorded
    assert measure_slowness({"a": 10.0, "b": 10.0, "c": 90.0}, recorded) == 1
    assert measure_slowness({"new": 50.0}, recorded) == 1


def test_files_left_in_the_checkout_fail_a_run(suite, monkeypatch):
    tests = suite.mkdir("checkout") / "tests"
    tests.mkdir()
    shutil.copy(checkout_guard.__file__, tests)
    monkeypatch.setenv("PYTHONPATH", str(tests))
    suite.makepyfile("def test_sound(): pass")
    done = suite.runpytest_subprocess("-p", "checkout_guard", "-p", "no:cacheprovider")
    assert done.ret == 0
    suite.makepyfile(f"""
        import subprocess
        def test_leaves_a_folder():
            subprocess.run(["mkdir", "-p", "{tests.parent}/runs/left"], check=True)
        """)
    done = suite.runpytest_subprocess("-p", "checkout_guard", "-p", "no:cacheprovider")
    assert done.ret == checkout_guard.LEFT_FILES
    done.stdout.fnmatch_lines(["Tests left in the checkout: runs, runs/left"])


@pytest.mark.parametrize(
    ("event", "arguments", "forbidden"),
    [
        ("open", ("pyproject.toml", "r", os.O_RDONLY), False),
        ("open", ("pyproject.toml", "a", os.O_WRONLY | os.O_APPEND), True),
        ("open", ("runs/quickstart/campaign.toml", "r", os.O_RDONLY), True),
        ("open", (".venv/lib/cache", "w", os.O_WRONLY | os.O_CREAT), False),
        ("open", ("tests/__pycache__/x.pyc", "w", os.O_WRONLY | os.O_CREAT), False),
        ("os.listdir", ("runs",), True),
        ("os.scandir", ("tests/goldens",), False),
        ("os.mkdir", ("new", 0o777, -1), True),
        ("os.remove", ("README.md", -1), True),
        ("import", ("runs", None), False),
    ],
)
def test_accesses_to_the_checkout_are_judged(event, arguments, forbidden):
    path, *others = arguments
    audit = (os.path.join(ROOT, path), *others)
    judged = event in {*checkout_guard.READS, *checkout_guard.WRITES}
    access = judged and checkout_guard.access_to_checkout(event, audit)
    assert bool(access) == forbidden
    assert not checkout_guard.access_to_checkout("os.mkdir", ("/elsewhere/new", 0o777, -1))


def test_a_test_begins_in_an_empty_folder_and_what_it_opens_is_recorded(tmp_path):
    assert os.listdir() == []
    assert not Path.cwd().is_relative_to(ROOT)
    assert checkout_guard.touched == []
    with pytest.raises(FileNotFoundError):
        Path(ROOT, "runs", "never", "there").read_text()
    assert [access.split()[0] for access in checkout_guard.touched] == ["open"]
    checkout_guard.touched.clear()
