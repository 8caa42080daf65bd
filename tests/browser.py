"""A real Chromium without a window, which says what a page asked for and complained of."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}

PATIENCE_MS = 180_000
"""A busy machine draws slowly."""

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str | None:
    """Return why there is no browser here."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed: extra [dev]."
    return None if PROGRAM else "there is no chromium on PATH."


@dataclass
class Seen:
    """A page, and what it did beside showing itself."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Of anything but files, data and blobs."""

    def unfold(self) -> None:
        """Open all that is folded."""
        self.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")

    def draw_all(self) -> int:
        """Scroll through all charts until all are drawn; give their number."""
        self.unfold()
        charts = self.page.locator("figure[data-key]")
        count = charts.count()
        for number in range(count):
            charts.nth(number).scroll_into_view_if_needed()
            self.page.wait_for_timeout(20)
        self.page.wait_for_function(
            f"report.drawn.size + report.errors.length >= {count}", timeout=PATIENCE_MS
        )
        return count

    def first_paint(self) -> float:
        """Return the first contentful paint, ms after the navigation began."""
        return float(
            self.page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
        )


class Browser:
    """Opens pages."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium

    @contextmanager
    def page(
        self, url: str, size: dict[str, int] = DESKTOP, scheme: str = "light", **options: Any
    ) -> Iterator[Seen]:
        """Show a page until the end of the block."""
        context = self.chromium.new_context(viewport=size, color_scheme=scheme, **options)
        context.set_default_timeout(PATIENCE_MS)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda message: _note(seen, message))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("request", lambda request: _ask(seen, request.url))
        try:
            seen.page.goto(url)
            yield seen
        finally:
            context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; its own profile and cache go with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as library:
        started = library.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        try:
            yield Browser(started)
        finally:
            started.close()


def _note(seen: Seen, message: Any) -> None:
    if message.type == "error":
        seen.errors.append(message.text)


def _ask(seen: Seen, url: str) -> None:
    if not url.startswith(("file:", "data:", "blob:", "about:")):
        seen.requests.append(url)
