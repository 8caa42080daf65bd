"""The documentation site: it builds without a warning, its links hold, it asks no network."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import chromium, missing

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        not (find_spec("mkdocs") and find_spec("material") and find_spec("mkdocstrings")),
        reason="the site's packages are not installed: extra [docs].",
    ),
]


class Parts(HTMLParser):
    """What a page links to, what it loads, and where one can link into it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("next", "prev"):
            self.loads.append(values["href"])
        elif "src" in values:
            self.loads.append(values["src"])


@cache
def parts_of(page: Path) -> Parts:
    return Parts(page.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "WARNING -" not in output, output
    return folder


def broken_links(site: Path) -> Iterator[str]:
    """Return the links of all pages that lead nowhere."""
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue  # its links begin at the root of a server
        for link in [*parts_of(page).links, *parts_of(page).loads]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            where = f"{page.relative_to(site)}: {link}"
            if not target.is_file():
                yield f"{where}: no such page"
            elif parts.fragment and unquote(parts.fragment) not in parts_of(target).anchors:
                yield f"{where}: no such place on that page"


def test_every_link_leads_somewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 70
    assert not list(broken_links(site))


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="a.html#here">x</a>')
    assert not list(broken_links(tmp_path))
    (tmp_path / "b.html").write_text('<a href="a.html#there">x</a><img src="c.png">')
    assert len(list(broken_links(tmp_path))) == 2


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [load for load in parts_of(page).loads if "//" in load], page


@pytest.mark.skipif(missing() is not None, reason=f"no browser: {missing()}")
def test_pages_and_search_work_without_a_network(site: Path) -> None:
    with chromium() as browser:
        for name in ("index.html", "api/ensembles.html", "reference/settings.html"):
            with browser.page((site / name).as_uri()) as seen:
                seen.page.wait_for_load_state("networkidle")
            assert not seen.requests
            assert not seen.errors
        with browser.page((site / "index.html").as_uri()) as seen:
            seen.page.locator("input.md-search__input").click()
            seen.page.keyboard.type("finalist")
            result = seen.page.locator(".md-search-result__link")
            result.first.wait_for()
            assert result.count() > 1
        assert not seen.requests
        assert not seen.errors
