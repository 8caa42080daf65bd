"""CPU time of tests: a run with ``--cpu-budget MINUTES`` fails when it takes a tenth more.

A processor that is slower than that on which the budget was measured, or shared with others, has
as much more: a short loop every ten seconds says how much. Counted are the test processes and those
of their children that they waited for, by test file. Where the budget is exceeded, or with
``--record-seconds``, the files that take most can be named.
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
"""Seconds of the tests marked ``stress`` or ``release``, by file; slices are cut by them."""


LOOPS, LOOP_SECONDS, BETWEEN = 300_000, 0.0155, 10.0
"""Additions of the loop that measures a processor, what they take where the budget was measured,
and seconds from one measurement to the next."""


def measure_slowness() -> float:
    """Return how many times as long this processor takes as that of the budget."""
    begin, total = time.process_time(), 0
    for number in range(LOOPS):
        total += number
    return (time.process_time() - begin) / LOOP_SECONDS


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
        self.measured, self.slow = time.monotonic(), list[float]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Send what a test and its fixtures took with the report of its end."""
        if call.when != "teardown":
            return
        now = (cpu_seconds(), time.monotonic())
        marked = any(item.get_closest_marker(mark) for mark in ("stress", "release"))
        taken = [end - begin for begin, end in zip(self.last, now, strict=True)]
        item.user_properties.append(("seconds", (*taken, marked)))
        if now[1] > self.measured + BETWEEN:
            self.slow.append(measure_slowness())
            self.measured = now[1]
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
        output = getattr(node, "workeroutput", {})
        self.workers += output.get("cpu_seconds", 0.0)
        self.slow += output.get("slow", [])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput |= {"cpu_seconds": cpu_seconds(), "slow": self.slow}
            return
        if self.config.getoption("record_seconds"):
            known = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
            known |= {path: round(wall) for path, wall in self.dear.items() if wall}
            SECONDS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        budget = self.config.getoption("cpu_budget")
        if budget and self.minutes() > TOLERANCE * budget * self.slowness:
            session.exitstatus = EXCEEDED

    @property
    def slowness(self) -> float:
        """How many times as long the processor took as that of the budget, at least 1."""
        return max(1.0, sum(self.slow) / len(self.slow)) if self.slow else 1.0

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
        slow = f", times {self.slowness:.1f} for a slow processor" if self.slowness > 1 else ""
        line = f"{self.minutes():.1f} CPU minutes of {budget:g}{slow}"
        exceeded = self.minutes() > TOLERANCE * budget * self.slowness
        advice = ": the run has failed; make the files above cheaper, or mark tests stress."
        terminalreporter.line(line + exceeded * advice, red=exceeded)
