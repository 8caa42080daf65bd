"""Serve the report of a run to a browser, kept up to date while the run directory grows.

Each line of the journal is read once, by a thread; links and cookies guard the pages.
"""

import asyncio
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
from concurrent.futures import Future
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from hydragnn_hpo.campaign import (
    JournalFollower,
    JournalHistory,
    JournalReplaced,
    alive,
    require_campaign,
)
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.http_service import listen, serve_on
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, facts_of, read_facts
from hydragnn_hpo.report.html_report import error_section, render_report, report_title
from hydragnn_hpo.report.page import (
    RenderedSection,
    Title,
    content_policy,
    live_script,
    render_live_page,
    render_section,
)
from hydragnn_hpo.report.sections import SECTIONS, MakeSection


class LiveFacts:
    """Follows a run directory; opens nothing for writing."""

    def __init__(self, run: RunDir) -> None:
        """Start before the first line of the journal."""
        self.run = run
        self._following, self._history = JournalFollower(run.journal), JournalHistory()

    def mark(self) -> tuple[object, ...]:
        """Return a value that changes when there is something new to read."""
        return tuple(map(_stamp, (self.run.campaign, self.run.journal, self._ensemble)))

    @property
    def _ensemble(self) -> Path:
        return self.run.report / "ensemble.json"

    def read(self) -> Facts:
        """Read what is new; facts that were returned before change, too.

        Raises:
            JournalReplaced: another journal stands in its place: start with a new object.
            RunError: there is no campaign, or its journal is damaged.
        """
        require_campaign(self.run)
        for event in list(self._following.read_new()):
            self._history.apply(event)
        return facts_of(self.run, self._history)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


logger = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""Not reachable from other computers (Law 10); an SSH tunnel brings it there."""

GRACE_SECONDS = 1.0
"""Time for answers in progress when the dashboard stops."""

POLL_SECONDS = 0.5
"""Time between two checks of the journal's size."""

LEAST_SECONDS = 2.0
"""Least time between two makings of one section."""

SECTION_SHARE = 0.02
"""Largest share of a core for one section, and for reading the journal."""

DOCUMENT_SECONDS = 300.0
"""Time for making the whole report."""


def serve_dashboard(run: RunDir, port: int, announce_link: Callable[[str, int], None]) -> None:
    """Serve the dashboard of a run until SIGINT or SIGTERM.

    Args:
        run: the run directory; nothing in it is written.
        port: to listen on; 0 takes a free one.
        announce_link: called with each new link and the port.

    Raises:
        RunError: the directory holds no campaign.
        ConfigError: the port is taken.
    """
    report = LiveReport(run, SECTIONS)
    with listen(ADDRESS, port) as opened:
        taken = opened.getsockname()[1]

        def announce_key(key: str) -> None:
            announce_link(f"http://{ADDRESS}:{taken}/enter?key={key}", taken)

        app = make_dashboard(report, AccessKeys(taken, announce_key))
        serve_on(opened, app, grace=GRACE_SECONDS)


# -- the report, kept up to date -------------------------------------------------------------


@dataclass
class LiveSection:
    """A section as it was made last."""

    version: str = ""
    """Changes with the content; empty before the section is made."""
    rendered: RenderedSection | None = None
    """None: the section has nothing to show."""
    error: str = ""
    """Why the section could not be made; logged once."""
    reading: int = 0
    """Number of the reading of the journal that it was made from."""
    due: float = 0.0
    """Earliest time of its next making, monotonic."""


class LiveReport:
    """Sections of a run that a thread keeps up to date, with a small share of a core."""

    def __init__(self, run: RunDir, sections: Mapping[str, MakeSection]) -> None:
        """Prepare to follow a run.

        Raises:
            RunError: the directory holds no campaign.
        """
        if not run.campaign.exists():
            raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
        self.run, self._make = run, dict(sections)
        self.sections = {key: LiveSection() for key in sections}
        self.state = "reading the journal"
        """How the campaign stands, in a few words."""
        self.title = Title(run.path.resolve().name, self.state)
        self._growing = LiveFacts(run)
        self._facts: Facts | None = None
        self._mark: tuple[object, ...] = ()
        self._reading, self._read_due = 0, 0.0
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="live report", daemon=True)

    def stop(self) -> None:
        """End the thread; a section in progress is not waited for."""
        self._stopped.set()

    def news(self) -> dict[str, Any]:
        """Return the campaign's state and the versions of all sections, in order.

        Returns:
            ``state``, ``about``, ``waiting`` (sections that are out of date) and ``sections``
            (version by key).
        """
        versions = {key: live.version for key, live in self.sections.items() if live.version}
        waiting = sum(live.reading != self._reading for live in self.sections.values())
        about = self.title.about
        return {"state": self.state, "about": about, "waiting": waiting, "sections": versions}

    def rendered(self) -> list[RenderedSection]:
        """Return the sections that have something to show, in order."""
        return [live.rendered for live in self.sections.values() if live.rendered is not None]

    def update(self) -> None:
        """Read the new lines of the journal and make the sections that are due.

        Raises:
            HydraError: the run directory cannot be read.
        """
        self._read()
        self.state = self._describe_state()
        for key in self._make:
            if self._facts is not None and not self._stopped.is_set() and self._is_due(key):
                self._update_section(key, self._facts)

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

    def _read(self) -> None:
        mark, now = self._growing.mark(), time.monotonic()
        if mark == self._mark or now < self._read_due:
            return
        try:
            self._facts = self._growing.read()
        except JournalReplaced:
            self._growing, self._facts, self._mark = LiveFacts(self.run), None, ()
            raise
        self._mark = mark
        self._reading += 1
        self.title = report_title(self._facts)
        self._read_due = _next_time(now, POLL_SECONDS)

    def _is_due(self, key: str) -> bool:
        """Check whether a section is out of date and may be made; after the end it always may."""
        live = self.sections[key]
        if live.reading == self._reading:
            return False
        finished = self._facts is not None and self._facts.state.finished
        return finished or time.monotonic() >= live.due

    def _update_section(self, key: str, facts: Facts) -> None:
        live, began = self.sections[key], time.monotonic()
        live.rendered = self._render_section(key, live, facts)
        content = None if live.rendered is None else (live.rendered.html, live.rendered.figures)
        live.version = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        live.reading = self._reading  # last, or the news would call an old version up to date
        live.due = _next_time(began, LEAST_SECONDS)

    def _render_section(self, key: str, live: LiveSection, facts: Facts) -> RenderedSection | None:
        try:
            section = self._make[key](facts)
            rendered = None if section is None else render_section(section)
        except Exception as error:
            if repr(error) != live.error:
                logger.exception("section %s could not be made", key)
            live.error = repr(error)
            return render_section(error_section(key, error))
        live.error = ""
        return rendered

    def _describe_state(self) -> str:
        if self._facts is None:
            return self.state
        if self._facts.state.finished:
            return "finished"
        controller = alive(self.run.path)
        if controller:
            return f"run by {controller}"
        return "not running" if self._facts.events else "not begun"


def _next_time(began: float, least: float) -> float:
    """Return the earliest time at which work that has just ended may be repeated."""
    now = time.monotonic()
    return now + max(least, (now - began) / SECTION_SHARE)


# -- access ----------------------------------------------------------------------------------

OWN_NAMES = frozenset(("127.0.0.1", "localhost", "[::1]"))
"""Valid names in a Host header; any other is a page whose name was rebound to this computer."""

METHODS = ("GET", "HEAD")

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of every answer."""

CLOSED_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content security policy of answers that have no policy of their own."""

LOGIN_HINT = "open the link that 'hydragnn-hpo dashboard' printed; each link opens once."


class AccessKeys:
    """The key of the next link, and the cookie of browsers that have used a link."""

    def __init__(self, port: int, announce_key: Callable[[str], None]) -> None:
        """Generate both at random.

        Args:
            port: part of the cookie's name; browsers share cookies between ports.
            announce_key: called with the key of every link, the first one at once.
        """
        self.cookie = f"hydragnn_hpo_{port}"
        self._session = secrets.token_urlsafe(32)
        self._announce_key = announce_key
        self._renew()

    def _renew(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._announce_key(self._key)

    def has_cookie(self, headers: Mapping[str, str]) -> bool:
        """Check whether a request carries the cookie."""
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return _is_same(morsel.value if morsel else "", self._session)

    async def enter(self, request: Request) -> Response:
        """Exchange the key of a link for the cookie; the next link has another key."""
        if not self.has_cookie(request.headers):
            if not _is_same(request.query_params.get("key", ""), self._key):
                return refusal(403, f"this link does not open (any more): {LOGIN_HINT}")
            self._renew()
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer

    async def guard(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answer a request, or refuse it unless one of our own pages asks to read."""
        return _harden(self._refuse(request) or await call_next(request))

    def _refuse(self, request: Request) -> Response | None:
        headers, path = request.headers, request.scope["path"]
        if request.method not in METHODS:
            return refusal(405, "this can only be read.", {"allow": ", ".join(METHODS)})
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return refusal(413, "nothing is to be sent here.", {"connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_name(hosts[0]) not in OWN_NAMES:
            return refusal(421, "this is reached as 127.0.0.1 or localhost only.")
        if path == "/enter":
            return None
        if not self.has_cookie(headers):
            return refusal(401, LOGIN_HINT)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not (
            path == "/" and headers.get("sec-fetch-mode") == "navigate"
        ):
            return refusal(403, "another page asks for this.")
        return None


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page with the reason in one sentence, without any text of the request.

    Args:
        status: HTTP status.
        sentence: the reason; not escaped, so only our own words.
        headers: further headers.
    """
    link = '<p><a href="/">Try again</a></p>' if status in (401, 403) else ""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hydragnn-hpo</title>'
        f"<p>{sentence[0].upper()}{sentence[1:]}</p>{link}</html>"
    )
    return HTMLResponse(page, status_code=status, headers=headers)


def _harden(answer: Response) -> Response:
    """Set the headers that forbid a browser what the dashboard does not need."""
    answer.headers.update(HEADERS)
    answer.headers.setdefault("content-security-policy", CLOSED_POLICY)
    return answer


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


# -- the application -------------------------------------------------------------------------


def make_dashboard(report: LiveReport, keys: AccessKeys) -> Starlette:
    """Make the application: the page, its news, one section, and the whole report as a file."""

    @contextlib.asynccontextmanager
    async def follow(_: Starlette) -> AsyncIterator[None]:
        report.thread.start()
        yield
        report.stop()

    views = Views(report)
    routes = [
        Route("/", views.page),
        Route("/enter", keys.enter),
        Route("/news", views.news),
        Route("/sections/{key}", views.section),
        Route("/report.html", views.document),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=keys.guard)
    failures: dict[Any, Any] = {Exception: _answer_failure}
    return Starlette(
        routes=routes, middleware=[guard], exception_handlers=failures, lifespan=follow
    )


async def _answer_failure(request: Request, error: Exception) -> Response:
    return _harden(refusal(500, "the dashboard failed; its log says why."))


class Views:
    """The answers of a dashboard."""

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self._one_document = asyncio.Lock()

    async def page(self, request: Request) -> Response:
        """Return the page with the sections made so far."""
        page = render_live_page(self._report.title, self._report.rendered())
        policy = f"{content_policy(live_script())}; connect-src 'self'; frame-ancestors 'none'"
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def news(self, request: Request) -> Response:
        """Return the campaign's state and the versions of sections."""
        return JSONResponse(self._report.news())

    async def section(self, request: Request) -> Response:
        """Return one section: its version, and its HTML and charts unless it has none."""
        live = self._report.sections.get(request.path_params["key"])
        if live is None or not live.version:
            return refusal(404, "there is no such section.")
        answer: dict[str, Any] = {"version": live.version, "section": None}
        if (one := live.rendered) is not None:
            answer["section"] = {"title": one.title, "html": one.html, "figures": one.figures}
        return JSONResponse(answer)

    async def document(self, request: Request) -> Response:
        """Return the whole report as a file, made from what the run directory holds now."""
        run = self._report.run
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS), self._one_document:
                page = await _run_in_thread(lambda: render_report(read_facts(run)))
        except (HydraError, TimeoutError):
            return refusal(503, "the report could not be made; the page says how it stands.")
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", run.path.resolve().name) or "run"
        headers = {"content-disposition": f'attachment; filename="{name}-report.html"'}
        return HTMLResponse(page, headers=headers)


async def _run_in_thread(work: Callable[[], str]) -> str:
    """Run something slow in a daemon thread; a thread of the loop's executor would delay Ctrl-C."""
    future: Future[str] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="whole report", daemon=True).start()
    return await asyncio.wrap_future(future)
