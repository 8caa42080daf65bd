"""CPU time of tests: a run with ``--cpu-budget MINUTES`` fails when it takes a tenth more.

A minute is one of the processor that ``seconds.json`` was recorded on. Another one, or one that is
shared with others, may take three times as long for the same work, and a short loop does not show
it: memory and caches slow tests, not the loop. So files are compared with their recorded seconds,
and what they took is divided by the ratio of the median file. A file that became dearer exceeds the
budget, a slow processor does not.

Counted are the test processes and those of their children that they waited for, by test file. Where
the budget is exceeded, the files that take most are named.
"""

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

TOLERANCE = 1.1
"""Share of the budget at which a run fails: CPU time varies with what shares the caches."""

DEAREST = 10
"""Files that are named."""

EXCEEDED = 9
"""Exit code of a run that takes too long; no second try helps."""

SECONDS = Path(__file__).with_name("seconds.json")
"""Seconds by file: CPU time of what ``make test`` runs, and wall time of what is marked ``stress``
or ``release``, by which slices are cut."""

COMPARED = 1.0
"""Recorded CPU-seconds from which on a file is compared."""


def read_seconds(kind: str) -> dict[str, float]:
    """Return the recorded seconds by file, ``kind`` being ``cpu`` or ``slices``."""
    return json.loads(SECONDS.read_text()).get(kind, {}) if SECONDS.exists() else {}


def measure_slowness(taken: dict[str, float], recorded: dict[str, float]) -> float:
    """Return how many times as long as recorded the median file took, each by its recorded seconds.

    Args:
        taken: CPU-seconds by file.
        recorded: the same on the processor of the budget.

    Returns:
        The ratio, 1 where no file can be compared.
    """
    compared = {p: s for p, s in recorded.items() if s >= COMPARED and p in taken}
    ratios = sorted((taken[path] / seconds, seconds) for path, seconds in compared.items())
    left = sum(compared.values()) / 2
    for ratio, seconds in ratios:
        left -= seconds
        if left <= 0:
            return ratio
    return 1.0


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children that have ended, in seconds."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the budget and the recording of seconds."""
    parser.addoption("--cpu-budget", type=float, help="fail if tests take more CPU minutes")
    parser.addoption(
        "--record-seconds", action="store_true", help=f"write what files take to {SECONDS.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests; add up in the one that started them."""
    config.pluginmanager.register(CpuTime(config), "cpu_time")


class CpuTime:
    """CPU and wall seconds by file, of this process and of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.last = (cpu_seconds(), time.monotonic())
        self.files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.dear: dict[str, float] = defaultdict(float)
        self.workers = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Send what a test and its fixtures took with the report of its end."""
        if call.when != "teardown":
            return
        now = (cpu_seconds(), time.monotonic())
        marked = any(item.get_closest_marker(mark) for mark in ("stress", "release"))
        taken = [end - begin for begin, end in zip(self.last, now, strict=True)]
        item.user_properties.append(("seconds", (*taken, marked)))
        self.last = (cpu_seconds(), time.monotonic())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up by file."""
        if report.when != "teardown":
            return
        for cpu, wall, marked in (v for k, v in report.user_properties if k == "seconds"):
            path = report.nodeid.split("::")[0]
            seconds = self.files[path]
            seconds[0] += cpu
            seconds[1] += wall
            self.dear[path] += wall * marked

    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker took as a whole, imports and collection included."""
        self.workers += getattr(node, "workeroutput", {}).get("cpu_seconds", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu_seconds"] = cpu_seconds()
            return
        if self.config.getoption("record_seconds"):
            self.record()
        budget = self.config.getoption("cpu_budget")
        if budget and self.exceeds(budget):
            session.exitstatus = EXCEEDED

    def record(self) -> None:
        """Write the seconds of the files that ran over those of earlier runs."""
        slices = {path: round(wall) for path, wall in self.dear.items() if wall}
        cpu = {p: round(s[0], 1) for p, s in self.files.items() if p not in slices}
        seconds = {"cpu": read_seconds("cpu") | cpu, "slices": read_seconds("slices") | slices}
        SECONDS.write_text(json.dumps(seconds, indent=1, sort_keys=True) + "\n")

    @property
    def slowness(self) -> float:
        """How many times as long as recorded the median file took."""
        taken = {path: seconds[0] for path, seconds in self.files.items()}
        return measure_slowness(taken, read_seconds("cpu"))

    def exceeds(self, budget: float) -> bool:
        """Return whether the run took more than its budget in minutes, and a tenth."""
        return self.minutes() / self.slowness > TOLERANCE * budget

    def minutes(self) -> float:
        """Return the CPU time of the whole run in minutes."""
        if not self.workers:
            return cpu_seconds() / 60
        own = os.times()
        return (self.workers + own.user + own.system) / 60

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        budget = self.config.getoption("cpu_budget")
        if not budget:
            return
        terminalreporter.section("CPU time")
        for path in sorted(self.files, key=lambda p: -self.files[p][0])[:DEAREST]:
            cpu, wall = self.files[path]
            terminalreporter.line(f"{cpu:7.0f} s of CPU, {wall:5.0f} s  {path}")
        minutes = self.minutes()
        slow = self.slowness
        line = f"{minutes:.1f} CPU minutes, files taking {slow:.2f} times as long as recorded: "
        exceeded = self.exceeds(budget)
        advice = ": the run has failed; make the files above cheaper, or mark tests stress."
        line += f"{minutes / slow:.1f} of {budget:g}"
        terminalreporter.line(line + exceeded * advice, red=exceeded)
