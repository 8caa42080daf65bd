"""Which pages of the repository belong to the documentation site, and at which address.

Every page keeps its path in the repository as its name for links, so a link works on the site as it
does in a checkout, and no sentence is written twice. Only addresses are shorter. The pages of all
settings and commands are made from the code.
"""

from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import commands_page, settings_page
from typer.main import get_command

from hydragnn_hpo.cli.command_line import app

ROOT = Path(__file__).parents[2]

SOURCES = (
    *("*.md", "LICENSE", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "docs/**/*.ipynb"),
    *("docs/site/*.js", "docs/site/*.css"),
    *("workflows/**/*.md", "workflows/*.png", "graph_datasets/*.md", "launch/**/*.md"),
    *(
        "hydragnn_hpo/**/*.md",
        "tests/README.md",
        "tests/gpu/*.md",
        "tests/gpu/results/*.json",
        "tests/benchmarks/*.md",
        "tests/benchmarks/**/*.png",
    ),
)
"""What the site holds, as patterns below the root of the repository."""

PLACES = {
    "README.md": "front_page.html",
    "docs/README.md": "index.html",
    "hydragnn_hpo/README.md": "code/index.html",
}
"""Addresses of single pages."""

FOLDERS = {
    "docs/site/": "assets/",
    "docs/": "",
    "workflows/tutorials/": "tutorials/",
    "hydragnn_hpo/": "code/",
    "tests/benchmarks/": "benchmarks/",
}
"""Address of a folder of pages; the first that fits is taken."""


BOOSTS = {
    "docs/concepts/": 4.0,
    "docs/howto/": 3.0,
    "docs/start.md": 3.0,
    "workflows/tutorials/": 3.0,
    "docs/reference/": 2.0,
    "docs/decisions/": 0.2,
    "hydragnn_hpo/": 0.5,
    "tests/": 0.5,
    "CHANGELOG.md": 0.2,
}
"""Weight of pages in the search, by the beginning of their names: pages for users come first."""


def address_of(name: str) -> str | None:
    """Return the address of a page, or None where it is that of its path."""
    if name in PLACES:
        return PLACES[name]
    for folder, place in FOLDERS.items():
        if name.startswith(folder):
            path = Path(place, name.removeprefix(folder))
            if path.suffix != ".md":
                return path.as_posix()
            stem = "index" if path.stem == "README" else path.stem
            return path.with_name(f"{stem}.html").as_posix()
    return None


def expand(entry: object) -> object:
    """Replace the patterns in an entry of the navigation by the pages they stand for."""
    if isinstance(entry, list):
        return [expand(one) for one in entry]
    if isinstance(entry, dict):
        return {title: expand(one) for title, one in entry.items()}
    if not isinstance(entry, str) or "*" not in entry:
        return entry
    found = [sorted(ROOT.glob(pattern), key=_readme_first) for pattern in entry.split()]
    return [path.relative_to(ROOT).as_posix() for group in found for path in group]


def _readme_first(path: Path) -> tuple[Path, bool, str]:
    return path.parent, path.name != "README.md", path.name


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages that patterns stand for into the navigation."""
    config.nav = expand(config.nav)
    return config


def _generate_pages(config: MkDocsConfig) -> Iterator[File]:
    """Yield the pages of all settings and of all commands."""
    texts = {"settings": settings_page(), "commands": commands_page(get_command(app))}
    for name, text in texts.items():
        page = File.generated(config, f"docs/reference/{name}.md", content=text)
        page.dest_uri = f"reference/{name}.html"
        yield page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs/`` by those of the repository.

    Args:
        files: what MkDocs found; what themes and plugins bring is kept.
        config: the configuration of the site.

    Returns:
        The files of the site.
    """
    others = [file for file in files if file.src_dir != config.docs_dir]
    found = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()})
    made = []
    for path in found:
        name = path.relative_to(ROOT).as_posix()
        made.append(
            File(
                name,
                str(ROOT),
                config.site_dir,
                config.use_directory_urls,
                dest_uri=address_of(name),
            )
        )
    return Files([*others, *made, *_generate_pages(config)])


def on_page_markdown(markdown: str, page: Page, **_others: object) -> str:
    """Set the weight of a page in the search; its text stays as it is.

    Args:
        markdown: text of the page.
        page: the page.

    Returns:
        The text.
    """
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": boost})
            break
    return markdown
