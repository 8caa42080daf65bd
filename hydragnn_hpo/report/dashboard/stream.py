"""Server-sent events: one line of news to every page that is open, and how it is written.

Source: WHATWG HTML, "Server-sent events", html.spec.whatwg.org/multipage/server-sent-events.html.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

MOST_PAGES = 16
"""Pages that may listen at a time."""

ALIVE_SECONDS = 15.0
"""Silence after which a page is told that the server is there."""

RETRY_MILLISECONDS = 2000
"""After which a page that lost the connection tries again."""


def framed(kind: str, content: Any) -> bytes:
    """Write one event; the content is one line of JSON, whatever it holds."""
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


class Crowded(Exception):
    """Too many pages listen already."""


class Stream:
    """Tells all open pages the newest news; a slow page misses what is out of date."""

    def __init__(self, news: Callable[[], Any]) -> None:
        """Take who knows the newest."""
        self._news = news
        self._pages: set[asyncio.Event] = set()
        self._closed = False

    def announce(self) -> None:
        """Say that there is something new; in the thread of the loop."""
        for page in self._pages:
            page.set()

    def close(self) -> None:
        """End the stream of every page; in the thread of the loop."""
        self._closed = True
        self.announce()

    def listen(self) -> AsyncIterator[bytes]:
        """Give the events for one page.

        Raises:
            Crowded: too many listen already.
        """
        if len(self._pages) >= MOST_PAGES:
            raise Crowded
        page = asyncio.Event()
        page.set()
        self._pages.add(page)
        return self._tell(page)

    async def _tell(self, page: asyncio.Event) -> AsyncIterator[bytes]:
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            while not self._closed:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await page.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                page.clear()
                if not self._closed:
                    yield framed("news", self._news())
        finally:
            self._pages.discard(page)
