"""What can be asked of a dashboard: its page, one section of it, the news, the whole as a file."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.report.dashboard.board import Board
from hydragnn_hpo.report.dashboard.gate import Gate, Keys, refusal
from hydragnn_hpo.report.dashboard.shell import ASSETS, own_file, served_policy, shell
from hydragnn_hpo.report.dashboard.stream import Crowded, Stream

DOCUMENT_SECONDS = 300.0
"""Time for making the whole report."""


class Desk:
    """Answers; ends its streams when it is told to stop."""

    def __init__(self, board: Board, keys: Keys) -> None:
        """Take who follows the run, and who lets people in."""
        self.board, self.keys = board, keys
        self.stream = Stream(board.news)
        self._loop: asyncio.AbstractEventLoop | None = None

    def app(self) -> ASGIApp:
        """Give the application behind its gate."""
        routes = [
            Route("/", self._page),
            Route("/enter", self._enter),
            *(Route(f"/{name}", _own(name)) for name in ASSETS),
            Route("/news", self._news),
            Route("/sections/{key}", self._section),
            Route("/report.html", self._document),
        ]
        return Gate(Starlette(routes=routes, lifespan=self._life), self.keys)

    def stop(self) -> None:
        """Let open streams end; from any thread, or a signal's handler."""
        self._call(self.stream.close)

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.board.start(lambda: self._call(self.stream.announce))
        yield
        self.board.stop()

    def _call(self, what: Callable[[], None]) -> None:
        """Do something in the thread of the loop, if it still runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(what)

    async def _enter(self, request: Request) -> Response:
        return self.keys.enter(request)

    async def _page(self, request: Request) -> Response:
        content = shell(self.board.title, self.board.made())
        headers = {"content-security-policy": served_policy()}
        return Response(content, media_type="text/html", headers=headers)

    async def _news(self, request: Request) -> Response:
        try:
            told = self.stream.listen()
        except Crowded:
            return refusal(503, "too many pages are open; close one.", {"retry-after": "5"})
        return StreamingResponse(told, media_type="text/event-stream")

    async def _section(self, request: Request) -> Response:
        part = self.board.parts.get(request.path_params["key"])
        if part is None or not part.version:
            return refusal(404, "there is no such section.")
        told: dict[str, Any] = {"version": part.version, "section": None}
        if part.drawn is not None:
            section, drawn = part.drawn
            inside = {"title": section.title, "html": drawn.html, "figures": drawn.figures}
            told["section"] = inside
        return JSONResponse(told)

    async def _document(self, request: Request) -> Response:
        asked = asyncio.wrap_future(self.board.document())
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS):
                content = await asked
        except (HydraError, TimeoutError):
            return refusal(503, "the report could not be made; the page says how it stands.")
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", self.board.run.path.resolve().name) or "run"
        headers = {"content-disposition": f'attachment; filename="{name}-report.html"'}
        return Response(content, media_type="text/html", headers=headers)


def _own(name: str) -> Callable[[Request], Response]:
    content = own_file(name)
    return lambda _: Response(content, media_type=ASSETS[name])
