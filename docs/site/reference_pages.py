"""The pages of all settings and of all commands.

Settings come from the JSON schema that pydantic makes of each config, commands from typer.
"""

import copy
import re
from typing import Any

from typer.cli import get_docs_for_click

from hydragnn_hpo.cli.reference_settings import NEEDED, Setting, read_files

SETTINGS = """\
# Settings

Every key of every file you write, from the strings under the fields in `config/`. Search the page
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
| 1 | failed: the work, not the question; or the output has no room, or its reader has left |
| 2 | misused: one sentence on stderr says what was found and what to do |
| 3 to 7 | of `trial` only: [how a trial ends](../../docs/guide/trials.md#how-a-trial-ends) |
| 75 | of `run` only: the allocation ends before the campaign; run it again |
| 130 | ended by Ctrl-C |

"""


def settings_page() -> str:
    """Return the page of all settings."""
    files = read_files()
    lines = [SETTINGS, "| file | tables |", "|---|---|"]
    for file in files:
        titled = (table for table in file.tables if table.heading)
        links = " ".join(f"[`{table.heading}`](#{table.anchor})" for table in titled)
        lines.append(f"| [{file.title}](#{_to_slug(file.title)}) | {links} |")
    for file in files:
        lines += ["", f"## {file.title}", "", file.text]
        for table in file.tables:
            if table.heading:
                lines += ["", f'### <a id="{table.anchor}"></a>`{table.heading}`']
            if table.text:
                lines += ["", _to_cell(table.text)]
            if table.settings:
                lines += ["", "| key | may be | default | means |", "|---|---|---|---|"]
            lines += [_to_row(setting) for setting in table.settings]
    return "\n".join(lines) + "\n"


def _to_row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else ""
    cells = (
        f'<a id="{setting.anchor}"></a>`{setting.name}`',
        setting.kind,
        f"**{NEEDED}**" if setting.default == NEEDED else default,
        setting.text,
    )
    return f"| {cells[0]} | {' | '.join(_to_cell(cell) for cell in cells[1:])} |"


def _to_cell(text: str) -> str:
    """Keep text what it is in a cell of Markdown: only what stands between backticks is code."""
    parts = text.replace("|", r"\|").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _to_slug(title: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def commands_page(program: Any) -> str:
    """Return the page of all commands of a program that are not hidden, as typer writes it."""
    shown = copy.copy(program)
    shown.commands = {name: c for name, c in program.commands.items() if not c.hidden}
    context = shown.context_class(shown, info_name="hydragnn-hpo")
    page = get_docs_for_click(obj=shown, ctx=context, name="hydragnn-hpo")
    _, heading, chapters = page.partition("## `")
    chapters = re.sub(r"^(hydragnn-hpo .*)$", r"`\1`", chapters, flags=re.MULTILINE)
    return f"{COMMANDS}{heading}{chapters.strip()}\n"
