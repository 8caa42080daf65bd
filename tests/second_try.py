"""Slow tests that failed run once more, alone; those that pass then are listed with their reasons.

``make test`` writes down why tests failed, ``make test-again`` (``--second-try``) lists those that
passed now, and fails when there are more than ``MOST``.
"""

import os

import pytest

MOST = 2
"""Tests of one run that may need a second try."""

KEY = "second_try/reasons"
"""Where pytest's cache keeps why the tests of the last first try failed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that tells the second try from the first."""
    parser.addoption(
        "--second-try",
        action="store_true",
        help="list which of the last run's failures pass now; fail if there are many",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the reports of all tests, in the process that hears from all workers."""
    cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache and not (hasattr(config, "workerinput") or config.getoption("collectonly")):
        config.pluginmanager.register(Tries(config, cache))


def reason_of(report: pytest.TestReport) -> str:
    """Return why a test failed, on one line, and how busy the machine was."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{(lines or ['no reason given'])[0][:200]} (load {os.getloadavg()[0]:.1f})"


class Tries:
    """Remembers why tests fail at the first try, and which of them pass at the second."""

    def __init__(self, config: pytest.Config, cache: pytest.Cache) -> None:
        self.cache = cache
        self.again = bool(config.getoption("--second-try"))
        self.reasons: dict[str, str] = cache.get(KEY, {}) if self.again else {}
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.again:
            if report.when == "call" and report.passed and report.nodeid in self.reasons:
                self.passed.append(report.nodeid)
        elif report.failed:
            self.reasons.setdefault(report.nodeid, reason_of(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.again:
            self.cache.set(KEY, self.reasons)
        elif len(self.passed) > MOST and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.passed:
            return
        terminalreporter.section("passed at the second try only")
        for name in self.passed:
            terminalreporter.line(f"{name}\n    failed first: {self.reasons[name]}")
        if len(self.passed) > MOST:
            terminalreporter.line(f"More than {MOST} are too many: the run has failed.", red=True)
