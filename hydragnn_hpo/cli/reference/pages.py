"""The two pages: ``config/REFERENCE.md`` of all settings, ``cli/REFERENCE.md`` of all commands."""

from collections.abc import Iterable, Iterator, Sequence

import typer

from hydragnn_hpo.cli.reference.commands import Choice, verbs
from hydragnn_hpo.cli.reference.files import FILES, File
from hydragnn_hpo.cli.reference.keys import NEEDED, Key, Table, options

MADE = "<!-- Made by `make reference` from the code; do not edit. -->"

SETTINGS = """\
# Settings

Every key of every file you write, from the strings under the fields in this folder. Search the page
for a dotted name as `training.learning_rate`, or ask the terminal:
`hydragnn-hpo reference learning_rate`.

*Default*: **needed** must be given; where the column is empty the key may be left out, and its text
says what happens then. `NAME` stands for a name of yours: a letter, then letters, digits and
underscores. Files are [TOML](https://toml.io). An unknown key is refused with the one that was
meant.
"""

COMMANDS = """\
# Commands

From the command line's own declarations; `hydragnn-hpo COMMAND --help` says the same. What reports
has `--json`, what starts something has `--dry-run`.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed: the work, not the question |
| 2 | misused: one sentence on stderr says what was found and what to do |
| 3 to 7 | of `trial` only: [interrupted](../training/README.md), it goes on from its checkpoint |
| 75 | of `run` only: the allocation ends before the campaign; run it again |
"""


def settings() -> str:
    """Give the page of all settings."""
    files = [(file, file.tables()) for file in FILES]
    lines = [MADE, "", SETTINGS, *_contents(files), ""]
    for file, tables in files:
        lines += [f"## {file.title}", "", file.says, ""]
        for table in tables:
            lines += [*_table(file, table), ""]
    lines += [*_options(), ""]
    return "\n".join(lines).rstrip() + "\n"


def commands(app: typer.Typer) -> str:
    """Give the page of all commands."""
    found = list(verbs(app))
    links = " ".join(f"[`{verb.name}`](#{_slug(verb.name)})" for verb in found)
    lines = [MADE, "", COMMANDS, links, ""]
    for verb in found:
        lines += [f"## {verb.name}", "", _cell(verb.says), "", f"    {verb.usage}", ""]
        lines += _rows(("", "", "default", ""), map(_choice, verb.choices)) if verb.choices else []
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def anchor(file: File, name: str) -> str:
    """Give where a key stands on the page of settings."""
    return f"{file.prefix}{name}"


def _contents(files: Sequence[tuple[File, Sequence[Table]]]) -> Iterator[str]:
    """Give what the page holds: by file, each table as a link."""
    yield from ("| file | tables |", "|---|---|")
    for file, tables in files:
        named = (table for table in tables if table.name)
        links = " ".join(f"[`{table.name}`](#{anchor(file, table.name)})" for table in named)
        yield f"| [{file.title}](#{_slug(file.title)}) | {links} |"
    links = " ".join(f"[`{conv}`](#conv.{conv})" for conv, _ in options())
    yield f"| [Options of convs](#options-of-convs) | {links} |"


def _table(file: File, table: Table) -> Iterator[str]:
    if table.name:
        yield f'### <a id="{anchor(file, table.name)}"></a>`{file.within(table)}`'
        yield ""
    if table.says:
        yield _cell(table.says)
        yield ""
    if table.keys:
        rows = (_key(anchor(file, key.name), key) for key in table.keys)
        yield from _rows(("key", "may be", "default", "means"), rows)


def _options() -> Iterator[str]:
    yield from ("## Options of convs", "")
    yield (
        "`[trial.model.options]`, or `model.options.KEY` in `[space]`, for the conv that "
        "`model.conv` names. The last column is the range that `init` writes into a campaign."
    )
    yield ""
    for conv, table in options():
        yield f'### <a id="conv.{conv}"></a>`{conv}`'
        yield ""
        yield _cell(table.says)
        yield ""
        rows = (
            (*_key(f"conv.{conv}.{key.name.rpartition('.')[2]}", key), _code(key.search))
            for key in table.keys
        )
        yield from _rows(("key", "may be", "default", "means", "to search"), rows)
        yield ""


def _key(place: str, key: Key) -> tuple[str, ...]:
    return (
        f'<a id="{place}"></a>`{key.name}`',
        _cell(key.kind),
        _default(key.default),
        _cell(key.says),
    )


def _choice(choice: Choice) -> tuple[str, ...]:
    written = choice.written.strip("[]") if not choice.option else choice.written
    return f"`{written}`", _cell(choice.kind), _default(choice.default), _cell(choice.says)


def _default(text: str) -> str:
    return f"**{NEEDED}**" if text == NEEDED else _code(text)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _cell(text: str) -> str:
    """Keep text what it is in Markdown: only what stands between backticks is code."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", r"\*") for part in parts[::2]]
    return "`".join(parts)


def _slug(title: str) -> str:
    """Give the anchor that GitHub makes of a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
