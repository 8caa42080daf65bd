"""The dashboard in a real browser, beside a campaign that goes on; and who is turned away."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import chromium, missing
from made_campaign import make_campaign, scored_by_conv

from hydragnn_hpo.layout import RunDir

SECONDS = 180.0
"""Patience with a browser on a busy machine."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = make_campaign(tmp_path_factory.mktemp("dashboard") / "run", trials=40)
    return SimpleNamespace(run=run, lines=run.journal.read_bytes().splitlines(keepends=True))


class Growing:
    """A run directory whose journal is written bit by bit, as its controller would."""

    def __init__(self, path: Path, whole: SimpleNamespace) -> None:
        self.run = RunDir(path)
        self._lines = whole.lines
        path.mkdir()
        self.run.campaign.write_bytes(whole.run.campaign.read_bytes())
        self._written = 0

    def grow(self, share: float, torn: int = 0) -> None:
        """Go on to a share of the journal; of the next line some bytes are there, too."""
        until = round(share * len(self._lines))
        content = b"".join(self._lines[:until]) + (self._lines[until][:torn] if torn else b"")
        with self.run.journal.open("ab", buffering=0) as file:
            file.write(content[self._written :])
        self._written = len(content)

    def ended(self) -> int:
        """Count the trials that ended, from the lines alone."""
        bodies = [json.loads(line)["e"] for line in self._whole_lines()]
        return sum(e["event"] == "ended" for e in bodies)

    def scored(self) -> Counter[str]:
        """Count the trials that have a score, by conv."""
        return scored_by_conv(self._whole_lines())

    def _whole_lines(self) -> list[bytes]:
        return [x for x in self.run.journal.read_bytes().splitlines(True) if x.endswith(b"\n")]


@pytest.fixture
def growing(whole, tmp_path):
    growing_run = Growing(tmp_path / "run", whole)
    growing_run.grow(0.4, torn=25)
    return growing_run


@pytest.fixture
def dashboard(growing):
    with serving(growing.run.path) as served:
        yield served


@contextlib.contextmanager
def serving(run: Path):
    """Start the command, and give its link, its port and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hydragnn_hpo", "dashboard", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        output = process.stdout.readline()
        link = re.search(r"http://127\.0\.0\.1:\d+/enter\?key=[\w-]+", output)
        assert link, output + process.stdout.read()
        port = urlsplit(link[0]).port
        assert f"ssh -L {port}:127.0.0.1:{port} " in process.stdout.readline()
        yield SimpleNamespace(link=link[0], port=port, process=process)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def asking(port: int, path: str, method: str = "GET", **headers: str):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as line:
        line.request(method, path, headers=headers)
        with line.getresponse() as answer:
            yield answer


def ask(*args: Any, **headers: str) -> SimpleNamespace:
    with asking(*args, **headers) as answer:
        return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())


def cookie_of(served) -> str:
    answer = ask(served.port, served.link.partition(str(served.port))[2])
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0]


def test_it_listens_on_this_computer_alone_and_ctrl_c_ends_it_with_pages_open(growing, dashboard):
    """Who is turned away: ``unit/report/test_dashboard.py``."""
    addresses = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    assert f"0100007F:{dashboard.port:04X}" in addresses
    assert f"00000000:{dashboard.port:04X}" not in addresses
    assert ask(dashboard.port, "/").status == 401
    cookie = cookie_of(dashboard)
    assert ask(dashboard.port, "/", cookie=cookie).status == 200
    with asking(dashboard.port, "/news", cookie=cookie) as answer:
        assert json.loads(answer.read())["sections"] is not None
        dashboard.process.send_signal(signal.SIGINT)
        assert dashboard.process.wait(timeout=SECONDS) == 0, "while the connection is open"
    rest = dashboard.process.stdout.read()
    assert rest.endswith("stopped\n")
    assert "Traceback" not in rest
    assert sorted(p.name for p in growing.run.path.rglob("*")) == ["campaign.toml", "events.jsonl"]


def test_a_port_that_is_taken_and_a_folder_without_a_campaign_are_sentences(hpo, growing):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, says in (
            ((growing.run.path, "--port", port), f"cannot listen on 127.0.0.1 port {port}"),
            ((hpo.folder,), "holds no campaign"),
        ):
            hpo.refused("dashboard", *arguments, says=(says,))


@pytest.fixture(scope="module")
def browser():
    if reason := missing():
        pytest.skip(reason)
    with chromium() as started:
        yield started


@pytest.fixture
def seen(browser, dashboard):
    """The page of the dashboard, which notes what is wrong and what is asked for."""
    with browser.page(dashboard.link) as opened:
        yield opened


NUMBERS = (
    "() => [...document.querySelectorAll('data[data-key]')].map(d => [d.dataset.key, d.value])"
)


def state_of(page) -> str:
    return page.inner_text("#live [data-live=state]")


def is_current(page) -> bool:
    return page.query_selector("#live[data-current]") is not None


def until(page, condition, seconds: float = SECONDS) -> None:
    """Wait for something on a page; its policy forbids what playwright's own waiting does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, state_of(page)
        page.wait_for_timeout(100)


@pytest.mark.slow
def test_a_page_keeps_up_with_its_campaign(seen, growing, dashboard, tmp_path):
    page = seen.page
    assert page.url == f"http://127.0.0.1:{dashboard.port}/", "the key is gone"
    page.wait_for_selector("#provenance")
    until(page, lambda: is_current(page))
    for part in ("headline.progress", "headline.left", "headline.running"):
        place = page.locator(f"data[data-key='{part}']").bounding_box()
        assert place["y"] < page.viewport_size["height"], f"{part} is not on the first screen"
    assert page.locator("[data-key='headline.running_trials'] tbody tr").count() > 0
    assert "to come" not in state_of(page)
    page.evaluate("document.body.mark = 'the first'")
    page.evaluate("window.scrollTo(0, 500)")
    first = dict(page.evaluate(NUMBERS))
    growing.grow(0.7, torn=40)
    until(page, lambda: dict(page.evaluate(NUMBERS)) != first)
    growing.grow(1.0)
    until(page, lambda: "finished" in state_of(page))
    until(page, lambda: is_current(page))
    last = dict(page.evaluate(NUMBERS))
    assert last != first
    assert page.evaluate("document.body.mark") == "the first"
    assert page.evaluate("window.scrollY") == 500
    with serving(growing.run.path) as fresh, contextlib.closing(page.context.new_page()) as other:
        other.goto(fresh.link)
        other.wait_for_selector("#provenance")
        until(other, lambda: is_current(other))
        assert dict(other.evaluate(NUMBERS)) == last, "as a page that was opened now"
    allowed = f"http://127.0.0.1:{dashboard.port}/"
    assert [url for url in seen.requests if not url.startswith(allowed)] == []
    assert seen.errors == []
    growing.run.path.rename(tmp_path / "aside")
    until(page, lambda: "no campaign" in state_of(page))
    assert dict(page.evaluate(NUMBERS)) == last, "what was there stays to be read"
    dashboard.process.send_signal(signal.SIGINT)
    until(page, lambda: "no connection" in state_of(page))


def places_of(axis) -> tuple[list[float], float]:
    """Return the heights of the first and the last tick of an axis, and of its mark's upper end."""
    ticks = axis.locator("text:not(.name)").evaluate_all(
        "all => all.map(t => +t.getAttribute('y'))"
    )
    return [ticks[0], ticks[-1]], float(axis.locator(".brush").get_attribute("y"))


@pytest.mark.stress
def test_brushes_outlive_what_is_new(seen, growing):
    """Lines that come later are judged by them, too, also where an axis has grown meanwhile."""
    page = seen.page
    page.locator("#parallel > details > summary").click()
    chart = page.locator('figure[data-key^="parallel."] .chart').first
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    convs = chart.locator('[data-axis="0"]')
    convs.wait_for()

    def kept() -> int:
        return int(chart.get_attribute("data-kept") or -1)

    until(page, lambda: kept() == growing.scored().total())
    convs.focus()
    page.keyboard.press("ArrowUp")
    until(page, lambda: "brushed" in convs.get_attribute("aria-label"))
    [conv] = [c for c in growing.scored() if c in convs.get_attribute("aria-label")]
    few = growing.scored()[conv]
    until(page, lambda: kept() == few)
    growing.grow(0.7)
    assert few < growing.scored()[conv] < growing.scored().total()
    until(page, lambda: kept() == growing.scored()[conv])
    page.keyboard.press("Escape")
    until(page, lambda: kept() == growing.scored().total())
    objective = chart.locator("[data-axis]").last
    objective.focus()
    page.keyboard.press("ArrowUp")
    until(page, lambda: "brushed" in objective.get_attribute("aria-label"))
    ticks, mark = places_of(objective)
    growing.grow(1.0)
    until(page, lambda: "finished" in state_of(page) and is_current(page))
    moved, still = places_of(objective)
    assert moved != pytest.approx(ticks), "the axis has not grown"
    share = (mark - ticks[0]) / (ticks[1] - ticks[0])
    assert (still - moved[0]) / (moved[1] - moved[0]) == pytest.approx(share, abs=0.01)
    assert seen.errors == []
