"""Tests that pass at the second try are listed with their reasons, and many of them fail a run."""

from pathlib import Path

import pytest

SHAKY = """
    import pathlib, pytest

    @pytest.mark.parametrize("case", range({count}))
    def test_shaky(case):
        mark = pathlib.Path(f"been-{{case}}")
        if not mark.exists():
            mark.touch()
            raise AssertionError(f"case {{case}} lost a race")

    def test_sound():
        pass
"""


@pytest.fixture
def shaky(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite of its own, with this repository's plugin."""
    pytester.syspathinsert(Path(__file__).parent)
    pytester.makeconftest("from second_try import pytest_addoption, pytest_configure")
    return pytester


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 0), (3, 1)])
def test_what_passed_alone_is_listed(shaky: pytest.Pytester, count: int, code: int) -> None:
    shaky.makepyfile(SHAKY.format(count=count))
    assert shaky.runpytest_inprocess().ret == 1
    assert shaky.runpytest_inprocess("--last-failed", "--collect-only").ret == 0

    second = shaky.runpytest_inprocess("--last-failed", "--second-try")

    assert second.ret == code
    for case in range(count):
        second.stdout.fnmatch_lines(
            [f"*test_shaky?{case}?", f"*failed first: *case {case} lost a race* (load *)"]
        )
    assert "test_sound" not in second.stdout.str()


def test_what_fails_again_is_no_second_try(shaky: pytest.Pytester) -> None:
    shaky.makepyfile("def test_broken():\n    assert 1 == 2")
    shaky.runpytest_inprocess()

    second = shaky.runpytest_inprocess("--last-failed", "--second-try")

    assert second.ret == 1
    assert "second try only" not in second.stdout.str()
