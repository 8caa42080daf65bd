"""Serve the report of a run to a browser, kept up to date while the run directory grows.

A thread reads each new line of the journal once and renders the sections that are due. Only a
browser that has opened a one-time link, and so has a cookie, may read the pages.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from hydragnn_hpo.campaign import JournalFollower, JournalReplaced, require_campaign
from hydragnn_hpo.campaign.history import JournalHistory
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.http_service import listen, serve_on
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import find_controller
from hydragnn_hpo.optional_packages import require_package
from hydragnn_hpo.report.facts import Facts, facts_of
from hydragnn_hpo.report.html_report import make_sections, report_title
from hydragnn_hpo.report.page import (
    RenderedSection,
    Title,
    content_policy,
    live_script,
    render_live_page,
    render_section,
)
from hydragnn_hpo.report.sections import SECTIONS, MakeSection

logger = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""Loopback, so that other computers cannot connect (Law 10); an SSH tunnel forwards the page."""

GRACE_SECONDS = 1.0
"""Time for responses in progress to finish when the dashboard stops."""

POLL_SECONDS = 0.5
"""Time between two checks whether the run directory has changed."""

LEAST_SECONDS = 2.0
"""Minimum time between two updates of one section."""

SECTION_SHARE = 0.02
"""Maximum share of a CPU core, from 0 to 1, for each section and for reading the journal."""


def serve_dashboard(run: RunDir, port: int, announce_link: Callable[[str, int], None]) -> None:
    """Serve the dashboard of a run until SIGINT or SIGTERM.

    Args:
        run: the run directory, which is only read.
        port: port to listen on; 0 chooses a free one.
        announce_link: called with each new link and the port.

    Raises:
        RunError: the directory holds no campaign.
        ConfigError: the port is taken, or Plotly is not installed.
    """
    require_package("plotly", "a dashboard")
    report = LiveReport(run, SECTIONS)
    with listen(ADDRESS, port) as opened:
        taken = opened.getsockname()[1]

        def announce_key(key: str) -> None:
            announce_link(f"http://{ADDRESS}:{taken}/enter?key={key}", taken)

        app = make_dashboard(report, AccessKeys(taken, announce_key))
        serve_on(opened, app, grace=GRACE_SECONDS)


# -- the report, kept up to date -------------------------------------------------------------


class FactsFollower:
    """Reader of the facts of a growing run directory; opens no file for writing."""

    def __init__(self, run: RunDir) -> None:
        """Start before the first line of the journal."""
        self._run = run
        self._follower = JournalFollower(run.journal)
        self._history = JournalHistory()

    def mark(self) -> list[tuple[int, ...]]:
        """Return a value that changes when there is something new to read."""
        mark: list[tuple[int, ...]] = []
        for path in (self._run.campaign, self._run.journal, self._run.report / "ensemble.json"):
            try:
                status = path.stat()
                mark.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                mark.append(())
        return mark

    def read(self) -> Facts:
        """Read new events; facts returned by earlier calls change as well.

        Raises:
            JournalReplaced: another file took the journal's place: make a new object.
            RunError: there is no campaign, or its journal is damaged.
        """
        require_campaign(self._run)
        for event in self._follower.read_new():  # one by one: a later line may be damaged
            self._history.apply(event)
        return facts_of(self._run, self._history)


@dataclass
class LiveSection:
    """The latest version of a section."""

    version: str = ""
    """Changes with the content; empty before the section is made."""
    rendered: RenderedSection | None = None
    """Content of the section; None if it has nothing to show."""
    facts: Facts | None = None
    """Facts that the section was made from."""
    due: float = 0.0
    """Earliest time of the next update, in seconds of the monotonic clock."""


class News(TypedDict):
    """Status that the dashboard's page polls to learn which sections have changed."""

    state: str
    """State of the campaign, in a few words."""
    about: str
    """The line below the page's title."""
    waiting: int
    """Number of sections that are out of date."""
    sections: dict[str, str]
    """Version by key, in the order of the page; sections not made yet are left out."""


class LiveReport:
    """Sections of a run that a thread keeps up to date, with a small share of a CPU core."""

    def __init__(self, run: RunDir, sections: Mapping[str, MakeSection]) -> None:
        """Prepare to follow a run.

        Raises:
            RunError: the directory holds no campaign.
        """
        if not run.campaign.exists():
            raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
        self.run = run
        self._make = dict(sections)
        self.sections = {key: LiveSection() for key in sections}
        self.state = "reading the journal"
        """State of the campaign, in a few words."""
        self.title = Title(run.path.resolve().name, self.state)
        self.facts: Facts | None = None
        self._growing = FactsFollower(run)
        self._mark: list[tuple[int, ...]] = []
        self._read_due = 0.0
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="live report", daemon=True)

    def stop(self) -> None:
        """Stop the thread without waiting for a section in progress."""
        self._stopped.set()

    def news(self) -> News:
        """Return the campaign's state and the versions of all sections."""
        versions = {key: live.version for key, live in self.sections.items() if live.version}
        waiting = sum(live.facts is not self.facts for live in self.sections.values())
        about = self.title.about
        return {"state": self.state, "about": about, "waiting": waiting, "sections": versions}

    def update(self) -> None:
        """Read new events of the journal, and update the sections that are due.

        Raises:
            HydraError: the run directory cannot be read.
        """
        now = time.monotonic()
        mark = self._growing.mark()
        if mark != self._mark and now >= self._read_due:
            try:
                self.facts = self._growing.read()
            except JournalReplaced:
                self._growing = FactsFollower(self.run)
                self.facts = None
                raise
            self._mark = mark
            self.title = report_title(self.facts)
            self._read_due = _next_time(now, POLL_SECONDS)
        if self.facts is None:
            return
        if mark == self._mark:
            self.state = self._describe_state(self.facts)
        for key, live in self.sections.items():
            late = self.facts.state.finished or time.monotonic() >= live.due
            if live.facts is not self.facts and late and not self._stopped.is_set():
                self._update_section(key, live, self.facts)

    def _update_section(self, key: str, live: LiveSection, facts: Facts) -> None:
        began = time.monotonic()
        made = make_sections(facts, {key: self._make[key]})
        live.rendered = render_section(made[0]) if made else None
        content = live.rendered and (live.rendered.html, live.rendered.figures)
        live.version = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        live.facts = facts  # last: news() would otherwise report an old version as current
        live.due = _next_time(began, LEAST_SECONDS)

    def _describe_state(self, facts: Facts) -> str:
        if facts.state.finished:
            return "finished"
        controller = find_controller(self.run.path)
        if controller:
            return f"run by {controller}"
        return "not running" if facts.events else "not begun"

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self.update()
            except HydraError as error:
                self.state = str(error)
            except Exception:
                logger.exception("the dashboard could not be brought up to date")
                self.state = "could not be brought up to date; the log says why"
                self._stopped.wait(LEAST_SECONDS)
            self._stopped.wait(POLL_SECONDS)


def _next_time(began: float, least: float) -> float:
    """Return the earliest time at which work that has just ended may be repeated."""
    now = time.monotonic()
    return now + max(least, (now - began) / SECTION_SHARE)


# -- access ----------------------------------------------------------------------------------

OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)
"""Valid Host headers; any other indicates a DNS rebinding attack."""

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of every response."""

CLOSED_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content security policy of responses that do not set one."""

LOGIN_HINT = "open the link that 'hydragnn-hpo dashboard' printed; each link opens once."


class AccessKeys:
    """The key of the next link, and the cookie of browsers that have used a link."""

    def __init__(self, port: int, announce_key: Callable[[str], None]) -> None:
        """Generate the key and the cookie's value at random.

        Args:
            port: part of the cookie's name; browsers share cookies between ports.
            announce_key: called with the key of every new link, first by this constructor.
        """
        self.cookie = f"hydragnn_hpo_{port}"
        self._session = secrets.token_urlsafe(32)
        self._announce_key = announce_key
        self._renew()

    def _renew(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._announce_key(self._key)

    def has_cookie(self, request: Request) -> bool:
        """Check whether a request carries the cookie."""
        return _is_same(request.cookies.get(self.cookie, ""), self._session)

    async def enter(self, request: Request) -> Response:
        """Exchange a link's key for the cookie, and generate the key of the next link."""
        if not self.has_cookie(request):
            if not _is_same(request.query_params.get("key", ""), self._key):
                return refusal(403, f"this link does not open (any more): {LOGIN_HINT}")
            self._renew()
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer

    async def guard(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answer a request from the dashboard's own page; refuse any other."""
        answer = self._refuse(request) or await call_next(request)
        answer.headers.update(HEADERS)
        answer.headers.setdefault("content-security-policy", CLOSED_POLICY)
        return answer

    def _refuse(self, request: Request) -> Response | None:
        headers = request.headers
        path = request.scope["path"]
        if not OWN_HOST.fullmatch(headers.get("host", "")):
            return refusal(421, "this is reached as 127.0.0.1 or localhost only.")
        if path == "/enter":
            return None
        if not self.has_cookie(request):
            return refusal(401, LOGIN_HINT)
        navigates = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not navigates:
            return refusal(403, "another page asks for this.")
        return None


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def refusal(status: int, sentence: str) -> Response:
    """Return an error page; the sentence is not escaped, so it must be a constant."""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hydragnn-hpo</title>'
        f'<p>{sentence[0].upper()}{sentence[1:]}</p><p><a href="/">Try again</a></p></html>'
    )
    return HTMLResponse(page, status_code=status)


# -- the application -------------------------------------------------------------------------


def make_dashboard(report: LiveReport, keys: AccessKeys) -> Starlette:
    """Make the application, with routes for the page, its news, and each section."""

    @contextlib.asynccontextmanager
    async def follow(_: Starlette) -> AsyncIterator[None]:
        report.thread.start()
        yield
        report.stop()

    async def show_page(request: Request) -> Response:
        made = [live.rendered for live in report.sections.values() if live.rendered]
        policy = f"{content_policy(live_script())}; connect-src 'self'; frame-ancestors 'none'"
        page = render_live_page(report.title, made)
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def show_news(request: Request) -> Response:
        return JSONResponse(report.news())

    async def show_section(request: Request) -> Response:
        live = report.sections.get(request.path_params["key"])
        if live is None or not live.version:
            return refusal(404, "there is no such section.")
        one = live.rendered
        section = one and {"title": one.title, "html": one.html, "figures": one.figures}
        return JSONResponse({"version": live.version, "section": section})

    routes = [
        Route("/", show_page),
        Route("/enter", keys.enter),
        Route("/news", show_news),
        Route("/sections/{key}", show_section),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=keys.guard)
    return Starlette(routes=routes, middleware=[guard], lifespan=follow)
