"""What the pages of the house say can be checked: files, links, anchors, commands, maps."""

import doctest
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import hydragnn_hpo
from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.config.convs import CONV_SPECS

ROOT = Path(__file__).parents[1]
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
]
PAGES = [path for path in TRACKED if path.suffix == ".md" and path.exists()]
MODULES = [path for path in TRACKED if path.suffix == ".py" and "hydragnn_hpo" in path.parts]
ALL: Any = typer.main.get_command(app)
OUTSIDE = ("http://", "https://", "mailto:")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(params=PAGES, ids=name_of)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def prose(text: str) -> str:
    """Give a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def slug(title: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>", r"\1", title).replace("`", "")
    return re.sub(r"[^\w -]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    """Give what links into a page can name."""
    text = path.read_text()
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {slug(title) for title in titles} | set(re.findall(r'<a id="([^"]+)"', text))


def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if target.startswith(OUTSIDE):
            continue
        where, _, anchor = target.partition("#")
        result = (page.parent / where).resolve() if where else page
        assert result.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(result), f"{target}: no such place on that page"


NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|toml|md|def))`")
FOREIGN = {
    *("trial.toml", "placement.toml", "campaign.toml", "card.toml", "my.toml", "my_search.toml"),
    *("mine.toml", "001.toml", "001.sh", "job.sh", "MODEL_CARD.md", "gpu_tile_compact.sh"),
    *("members/TRIAL.toml", "data/CARD.toml"),
}
"""Names of files that users or others write."""


def places(page: Path) -> Iterator[Path]:
    """Give where a file that a page names may lie."""
    yield from (page.parent, *page.parent.parents)
    yield from (ROOT / room for room in ("hydragnn_hpo", "tests", "launch", "workflows"))


def rooms(page: Path) -> Iterator[Path]:
    """Return the rooms below a page: a table may name a file by the heading of its room."""
    yield from (path for path in page.parent.iterdir() if path.is_dir())


def test_files_that_a_page_names_are_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    text = page.read_text()
    code_blocks = "".join(re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL))
    own = set(re.findall(r"^\*\*`([^`]+)`\*\*", text, re.MULTILINE))
    for name in set(NAMED.findall(prose(text))) - FOREIGN - own:
        if page.parent.name in ("tutorials", "howto") and name in code_blocks:
            continue  # a command of the page makes it
        if "NAME" in name:
            continue
        around = [*places(page), *rooms(page)]
        assert any((place / name).exists() for place in around), f"`{name}` is nowhere near"


def test_every_module_has_its_place_on_a_map() -> None:
    """A README of its folder, or of one above, names it; there by name, or in code by its stem."""
    missing = []
    for module in MODULES:
        above = [path for path in module.parents if path.is_relative_to(ROOT / "hydragnn_hpo")]
        maps = [folder / "README.md" for folder in above if (folder / "README.md").exists()]
        if not module.name.startswith("__") and not any(names(path, module) for path in maps):
            missing.append(f"{name_of(module)}: add a line in {name_of(maps[0])}")
    assert not missing


ROOM_PAGES = sorted((ROOT / "hydragnn_hpo").glob("*/README.md"))


def test_the_page_of_a_room_is_short() -> None:
    """Purpose, map, public names, how to extend; what users look up is in docs/guide."""
    words = {name_of(path): len(path.read_text().split()) for path in ROOM_PAGES}
    assert not {page: count for page, count in words.items() if count > 600}


def names(page: Path, module: Path) -> bool:
    """Say whether a page names a module."""
    stem = re.escape(module.stem)
    pattern = rf"(?<!\w){stem}\.py(?!\w)|`[^`\n]*(?<!\w){stem}(?!\w)[^`\n]*`"
    return re.search(pattern, page.read_text()) is not None


COMMAND = re.compile(r"^(?: {4}|\$ )(?:\$ )?(?:\w+=\S+ )*(hydragnn-hpo .*)$", re.MULTILINE)
FENCED = re.compile(r"^(?:\S.* \| |srun .* )?(hydragnn-hpo .*)$", re.MULTILINE)
INLINE = re.compile(r"`(hydragnn-hpo (?!COMMAND)[^`\n]+)`")
NO_ARGUMENTS = re.compile(
    r"hydragnn-hpo [a-z][a-z-]*( (build|info|check|evaluate|pick|export|prune|show))?"
)


def commands(text: str) -> Iterator[str]:
    """Return the commands that a page shows, without what is said beside them."""
    fences = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    fenced = [line for fence in fences for line in FENCED.findall(fence)]
    for name in INLINE.findall(prose(text)):  # a sentence may name a command alone
        yield f"{name} --help" if NO_ARGUMENTS.fullmatch(name) else name
    for command_text in [*COMMAND.findall(text), *fenced]:
        line = re.split(r"\s{2,}|\s#\s|;| \| | > ", command_text)[0].strip()
        if "[" not in line and "..." not in line:
            yield line


def parse(line: str) -> None:
    """Have the command line read a command, without running it."""
    if line == "hydragnn-hpo --version":
        return
    command = ALL
    words = shlex.split(line)[1:]
    context = None
    while getattr(command, "commands", None) is not None:
        assert words, "names no command"
        if words == ["--help"]:
            return
        assert words[0] in command.commands, f"no command '{words[0]}'"
        name, *words = words
        context = command.make_context(command.name, [name], parent=context, resilient_parsing=True)
        command = command.commands[name]
    if "--help" not in words:
        command.make_context(command.name, words, parent=context)


def test_commands_that_a_page_shows_are_commands(page: Path) -> None:
    wrong = []
    for line in commands(page.read_text()):
        try:
            parse(line)
        except Exception as error:  # whatever the command line's parser raises
            wrong.append(f"{line}: {error}")
    assert not wrong


def test_a_wrong_command_is_seen() -> None:
    """Else the test above would prove nothing."""
    for line in (
        "hydragnn-hpo rnu x.toml",
        "hydragnn-hpo run x.toml --slotz 2",
        "hydragnn-hpo run",
        "hydragnn-hpo rnu --help",
    ):
        with pytest.raises(Exception, match=r".+"):
            parse(line)
    parse("hydragnn-hpo run x.toml --slots 2")
    page = "`hydragnn-hpo stop RUN`\n```\ncat x | hydragnn-hpo predict - --ensemble E\n```\n"
    page += "\n    hydragnn-hpo run x.toml   # said\n"
    assert list(commands(page)) == [
        "hydragnn-hpo stop RUN",
        "hydragnn-hpo run x.toml",
        "hydragnn-hpo predict - --ensemble E",
    ]


WITH_EXAMPLES = [path for path in MODULES if path.exists() and ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_examples_in_docstrings_hold(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


YAML = [path for path in TRACKED if path.suffix in (".yml", ".yaml", ".cff") and path.exists()]


@pytest.mark.parametrize("path", YAML, ids=name_of)
def test_yaml_files_can_be_read(path: Path) -> None:
    text = path.read_text().replace("!!python/object/apply:", "# ")
    assert isinstance(yaml.safe_load(text), dict)


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hydragnn_hpo.__version__


def test_prose_is_wrapped(page: Path) -> None:
    lines = prose(page.read_text()).splitlines()
    long = [line for line in lines if len(line) > 120 and not line.startswith(("|", "    ", "!["))]
    assert not long


RECORDS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


@pytest.mark.parametrize("path", RECORDS, ids=name_of)
def test_a_decision_is_a_record_of_at_most_200_words(path: Path) -> None:
    text = path.read_text()
    heads = ["Context", "Decision", "Measured", "Consequence"]
    assert re.findall(r"^\*\*(\w+)\.\*\* ", text, re.MULTILINE) == heads
    assert len(text.split()) <= 200
    assert f"({path.name})" in (path.parent / "README.md").read_text()


def test_the_front_page_counts_the_convs() -> None:
    """The only page that does."""
    assert f"It tries {len(CONV_SPECS)} graph" in (ROOT / "README.md").read_text()


def test_every_page_of_users_is_in_the_navigation() -> None:
    """Add a line in ``mkdocs.yml``; folders of patterns there look after themselves."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    folders = ("docs/howto", "docs/concepts", "docs/api", "workflows/tutorials")
    pages = [name_of(page) for page in PAGES if name_of(page.parent) in folders]
    assert not [page for page in pages if f" {page}\n" not in navigation]
