"""The two pages: ``config/REFERENCE.md`` of all settings, ``cli/REFERENCE.md`` of all commands.

Settings come from the JSON schema that pydantic makes of each config, commands from typer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import typer
from pydantic import TypeAdapter

from hydragnn_hpo.config import (
    CampaignConfig,
    CardConfig,
    Config,
    PlacementConfig,
    ProfileConfig,
    TrialConfig,
    to_toml,
)
from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.convs.spec import search_ranges

Schema = Mapping[str, Any]

NEEDED = "needed"
"""Stands where a key has no default."""

_READERS = re.compile(r"(Read|Built|Built into stores) by .*?\.( |$)")
"""What configs say to those who work on the code."""

_NAMES = {"space": "KEY"}
"""What stands for a name of the user's, where it is no ``NAME``."""

_PLAIN = {"boolean": "`true` or `false`", "integer": "integer", "number": "number"}
_TEXTS = {"date": "date", "path": "path"}
_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
"""A letter, then letters, digits and underscores: what the pages call a name."""

_BOUNDS = {
    **{"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="},
    "gt": ">",  # of a choice between types pydantic gives the bound as it was written
}
_TOGETHER = {
    frozenset({"integer", "number"}): "number",
    frozenset({"boolean", "integer", "number", "string"}): "`true`, `false`, number or text",
}
"""Types that people take for one."""

PARTS = ("model", "heads", "training", "parallel")
"""Tables that a trial has, and that a campaign gives to all of its trials."""

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


# -- settings from the schema --------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """One setting."""

    name: str
    """Dotted, as it is written in its file; ``NAME`` stands for a name of the user's."""
    kind: str
    """What it may be, in words."""
    default: str
    """As TOML; empty where it may be left out, ``needed`` where it may not."""
    says: str
    """Its documentation."""
    search: str = ""
    """The range in which ``init`` would search it, as TOML."""


@dataclass(frozen=True)
class KeyTable:
    """The keys of one config."""

    name: str
    """Dotted name of the table in its file; empty for the top."""
    repeated: bool
    """Whether there may be several, each in double brackets."""
    config: str
    """Name of the config's class."""
    says: str
    keys: tuple[Key, ...]

    @property
    def heading(self) -> str:
        """The line that opens it in its file."""
        return f"[[{self.name}]]" if self.repeated else f"[{self.name}]"


def tables_of(config: type[Config]) -> Iterator[KeyTable]:
    """Yield a config and the configs inside it, each as a table, the outer ones first."""
    schema = config.model_json_schema()
    return _tables(schema, schema.get("$defs", {}), "", repeated=False)


def _tables(schema: Schema, defs: Schema, name: str, *, repeated: bool) -> Iterator[KeyTable]:
    keys, inner, needed = [], [], schema.get("required", ())
    for field, info in schema.get("properties", {}).items():
        if (found := _config_within(info, defs)) is not None:
            inner.append((field, *found))
        else:
            keys.append(_key(_dotted(name, field), info, defs, needed=field in needed))
    says = _READERS.sub("", _sentence(schema.get("description", ""))).strip()
    yield KeyTable(name, repeated, schema["title"], says, tuple(keys))
    for field, config, way in inner:
        below = _dotted(name, field, _NAMES.get(field, "NAME") if way == "by name" else "")
        yield from _tables(config, defs, below, repeated=way == "in a row")


def _config_within(info: Schema, defs: Schema, way: str = "") -> tuple[Schema, str] | None:
    """Return the config that a value holds, and whether in a row or by name; None without one."""
    if "$ref" in info:
        found = _resolve(info, defs)
        return (found, way) if "properties" in found else None
    inside = [(option, way) for option in info.get("anyOf", ())]
    inside += [(one, "by name") for one in _values_by_name(info)]
    if isinstance(info.get("items"), dict):
        inside.append((info["items"], "in a row"))
    found_inside = (_config_within(one, defs, how) for one, how in inside)
    return next((found for found in found_inside if found is not None), None)


def _resolve(info: Schema, defs: Schema) -> Schema:
    return defs[info["$ref"].rpartition("/")[2]] if "$ref" in info else info


def conv_options() -> Iterator[tuple[str, KeyTable]]:
    """Yield each conv with the table of its options and the ranges worth searching."""
    for conv, spec in CONV_SPECS.items():
        schema, ranges = spec.options.model_json_schema(), search_ranges(spec.options)
        needed = schema.get("required", ())
        keys = tuple(
            _key(
                f"model.options.{field}",
                info,
                schema.get("$defs", {}),
                needed=field in needed,
                search=_toml(ranges[field]) if field in ranges else "",
            )
            for field, info in schema.get("properties", {}).items()
        )
        says = _READERS.sub("", _sentence(schema.get("description", ""))).strip()
        yield conv, KeyTable("model.options", False, schema["title"], says, keys)


def _key(name: str, info: Schema, defs: Schema, *, needed: bool, search: str = "") -> Key:
    value = info.get("default")
    default = "" if value is None or value in ([], {}) else _toml(value)
    says = _sentence(info.get("description", ""))
    return Key(name, kind(info, defs), NEEDED if needed else default, says, search)


def kind(info: Schema, defs: Schema) -> str:
    """Describe what a value may be, in words a user reads.

    Args:
        info: its JSON schema.
        defs: schemas that it may refer to.
    """
    info = _resolve(info, defs)
    if "anyOf" in info:
        options = [option for option in info["anyOf"] if option.get("type") != "null"]
        types = frozenset(str(option.get("type")) for option in options)
        words = dict.fromkeys(kind(option, defs) for option in options)
        return _bounded(_TOGETHER.get(types) or " or ".join(words), info)
    if choices := info.get("enum", [info["const"]] if "const" in info else []):
        return " ".join(f'`"{one}"`' if isinstance(one, str) else f"`{one}`" for one in choices)
    match info.get("type"):
        case "array":
            return _list_kind(info, defs)
        case "object":
            each = next(_values_by_name(info), None)
            return f"table of {kind(each, defs)}" if each else "table"
        case "string":
            word = _TEXTS.get(info.get("format", ""), "text")
        case str(plain):
            word = _PLAIN[plain]
        case _:
            return "anything"
    word = _bounded(word, info)
    pattern = info.get("pattern")
    return "name" if pattern == _NAME_PATTERN else f"{word} like `{pattern}`" if pattern else word


def _bounded(word: str, info: Schema) -> str:
    bounds = [f"{sign} {info[key]:g}" for key, sign in _BOUNDS.items() if key in info]
    return " ".join([word, " and ".join(bounds)]).strip()


def _values_by_name(info: Schema) -> Iterator[Schema]:
    """Yield the schema of the values of a table whose keys are a user's names."""
    candidates = [info.get("additionalProperties"), *info.get("patternProperties", {}).values()]
    yield from (one for one in candidates if isinstance(one, dict))


def _list_kind(info: Schema, defs: Schema) -> str:
    least, most = info.get("minItems"), info.get("maxItems")
    each = [kind(one, defs) for one in info.get("prefixItems", ())]
    if len(set(each)) > 1:
        return f"[{', '.join(each)}]"
    single = each[0] if each else kind(info.get("items", {}), defs)
    number = f"{len(each)} x " if each else ""
    words = f"list of {number}{f'({single})' if ' or ' in single else single}"
    if each:
        return words
    if most is not None:
        return f"{words}, exactly {most}" if most == least else f"{words}, at most {most}"
    return f"{words}, at least {least}" if least is not None else words


def _toml(value: Any) -> str:
    """Write a value as TOML, in one line."""
    if isinstance(value, Config):
        plain = value.model_dump(mode="json", exclude_defaults=True)
        value = plain["choices"] if list(plain) == ["choices"] else plain
    if isinstance(value, dict):
        return "{ " + ", ".join(to_toml({key: item}).strip() for key, item in value.items()) + " }"
    return to_toml({"x": value}).partition(" = ")[2].strip()


def _dotted(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _sentence(text: str) -> str:
    """Return a docstring as one paragraph of Markdown."""
    return " ".join(text.split()).replace("``", "`")


@dataclass(frozen=True)
class SettingsFile:
    """One kind of file."""

    title: str
    says: str
    config: type[Config]
    prefix: str
    """Before a key's name in its anchor, so that each is there once."""
    parts: tuple[str, ...] = ()
    """Tables that stand here; all of them if empty."""
    without: tuple[str, ...] = ()
    """Tables that stand elsewhere."""
    under: str = ""
    """Table of the file under which these tables are written."""

    def tables(self) -> list[KeyTable]:
        """Return its tables, the top first."""

        def here(table: KeyTable) -> bool:
            first = table.name.partition(".")[0]
            return (not self.parts or first in self.parts) and first not in self.without

        return [table for table in tables_of(self.config) if here(table)]

    def within(self, table: KeyTable) -> str:
        """Return the line that opens a table in this file."""
        return table.heading.replace("[", f"[{self.under}", 1) if self.under else table.heading


FILES = (
    SettingsFile(
        "Campaign",
        "`campaign.toml`: what is searched, on which data, and how far. `run`, `plan` and "
        "`submit` read it. Its `[trial]` holds what all trials share and its `[space]` what is "
        "searched: both take the keys of [a trial](#a-trial). A list of choices may stand in place "
        'of a whole `[space.KEY]`: `"model.conv" = ["painn", "schnet"]`.',
        CampaignConfig,
        "campaign.",
    ),
    SettingsFile(
        "A trial",
        "One training. In a campaign these tables stand under `[trial]`, as `[trial.training]`; in "
        "a `trial.toml` as `[training]`; and any key may be searched by its dotted name: "
        '`"training.learning_rate" = { low = 1e-3, high = 1e-2, log = true }` in `[space]`.',
        TrialConfig,
        "",
        parts=PARTS,
        under="trial.",
    ),
    SettingsFile(
        "`trial.toml`",
        "What `hydragnn-hpo trial DIR` trains: the tables above, at the top of the file, and "
        "these. A campaign writes one for each trial.",
        TrialConfig,
        "trial.",
        without=PARTS,
    ),
    SettingsFile(
        "`placement.toml`",
        "Where and how far one attempt of a trial runs. The campaign writes it; nobody else needs "
        "to.",
        PlacementConfig,
        "placement.",
    ),
    SettingsFile(
        "Card",
        "What a data file holds. `dataset build` and `run` read it; `init FILE` writes a first "
        "one.",
        CardConfig,
        "card.",
    ),
    SettingsFile(
        "Machine profile",
        "A machine, for `--machine` and `machine.profile`. One's own begins with `extends` and "
        "says only what is different, see [launch/](../../launch/README.md#ones-own).",
        ProfileConfig,
        "profile.",
    ),
)


def every_key() -> Iterator[tuple[str, Key]]:
    """Yield every setting with the file, or the conv, that has it."""
    for file in FILES:
        for table in file.tables():
            yield from ((file.title.strip("`").lower(), key) for key in table.keys)
    for conv, table in conv_options():
        yield from ((f"options of {conv}", key) for key in table.keys)


# -- commands from typer -----------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One argument or option."""

    written: str
    """As it is typed: ``--run``, ``--resume / --no-resume``, ``CAMPAIGN``."""
    kind: str
    default: str
    says: str
    option: bool


@dataclass(frozen=True)
class CommandEntry:
    """One command."""

    name: str
    """With the names of its groups: ``dataset build``."""
    says: str
    choices: tuple[Choice, ...]

    @property
    def usage(self) -> str:
        """The line that calls it."""
        words = [choice.written for choice in self.choices if not choice.option]
        some = ["[OPTIONS]"] if any(choice.option for choice in self.choices) else []
        return " ".join(["hydragnn-hpo", self.name, *words, *some])


def read_commands(program: Any) -> Iterator[CommandEntry]:
    """Yield all commands of a program that are not hidden, in the order of ``--help``."""
    return _commands(program, ())


def _commands(command: Any, names: Sequence[str]) -> Iterator[CommandEntry]:
    """Go through groups; what typer builds has no public types."""
    if command.hidden:
        return
    inner = getattr(command, "commands", None)
    if inner is None:
        hints = get_type_hints(command.callback)
        shown = [p for p in command.params if not getattr(p, "hidden", False)]
        choices = [_read_choice(p, hints.get(p.name, str)) for p in shown]
        order = sorted(choices, key=lambda choice: choice.option)
        yield CommandEntry(" ".join(names), _sentence(command.help or ""), tuple(order))
        return
    for name, below in inner.items():
        yield from _commands(below, [*names, name])


def _read_choice(parameter: Any, hint: Any) -> Choice:
    option = isinstance(parameter, typer.core.TyperOption)
    many = parameter.multiple or parameter.nargs == -1
    schema = TypeAdapter(hint).json_schema()
    word = "yes or no" if hint is bool else kind(schema, schema.get("$defs", {}))
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">=", parameter.min), ("<=", parameter.max))
        if bound is not None
    ]
    value, needed = parameter.default, parameter.required
    left_out = value is None or value is False or value in ((), [])
    default = "" if left_out else "yes" if value is True else str(getattr(value, "value", value))
    return Choice(
        written=_written(parameter, option, many),
        kind=" ".join([word.replace("list of ", "repeatable "), " and ".join(bounds)]).strip(),
        default=NEEDED if needed else default,
        says=_sentence(parameter.help or ""),
        option=option,
    )


def _written(parameter: Any, option: bool, many: bool) -> str:
    if not option:
        word = str(parameter.metavar or parameter.name.upper())
        word = f"{word}..." if many else word
        return word if parameter.required else f"[{word}]"
    ways = [", ".join(parameter.opts), *filter(None, [", ".join(parameter.secondary_opts)])]
    return " / ".join(ways)


# -- the pages ---------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of all settings."""
    files = [(file, file.tables()) for file in FILES]
    lines = [MADE, "", SETTINGS, *_contents(files), ""]
    for file, tables in files:
        lines += [f"## {file.title}", "", file.says, ""]
        for table in tables:
            lines += [*_table(file, table), ""]
    lines += [*_options(), ""]
    return "\n".join(lines).rstrip() + "\n"


def commands_page(program: Any) -> str:
    """Return the page of all commands of a program."""
    found = list(read_commands(program))
    links = " ".join(f"[`{verb.name}`](#{_slug(verb.name)})" for verb in found)
    lines = [MADE, "", COMMANDS, links, ""]
    for verb in found:
        lines += [f"## {verb.name}", "", _cell(verb.says), "", f"    {verb.usage}", ""]
        lines += _rows(("", "", "default", ""), map(_choice, verb.choices)) if verb.choices else []
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _anchor(file: SettingsFile, name: str) -> str:
    """Return where a key stands on the page of settings."""
    return f"{file.prefix}{name}"


def _contents(files: Sequence[tuple[SettingsFile, Sequence[KeyTable]]]) -> Iterator[str]:
    """Yield what the page holds: by file, each table as a link."""
    yield from ("| file | tables |", "|---|---|")
    for file, tables in files:
        named = (table for table in tables if table.name)
        links = " ".join(f"[`{table.name}`](#{_anchor(file, table.name)})" for table in named)
        yield f"| [{file.title}](#{_slug(file.title)}) | {links} |"
    links = " ".join(f"[`{conv}`](#conv.{conv})" for conv, _ in conv_options())
    yield f"| [Options of convs](#options-of-convs) | {links} |"


def _table(file: SettingsFile, table: KeyTable) -> Iterator[str]:
    if table.name:
        yield f'### <a id="{_anchor(file, table.name)}"></a>`{file.within(table)}`'
        yield ""
    if table.says:
        yield _cell(table.says)
        yield ""
    if table.keys:
        rows = (_row_of(_anchor(file, key.name), key) for key in table.keys)
        yield from _rows(("key", "may be", "default", "means"), rows)


def _options() -> Iterator[str]:
    yield from ("## Options of convs", "")
    yield (
        "`[trial.model.options]`, or `model.options.KEY` in `[space]`, for the conv that "
        "`model.conv` names. The last column is the range that `init` writes into a campaign."
    )
    yield ""
    for conv, table in conv_options():
        yield f'### <a id="conv.{conv}"></a>`{conv}`'
        yield ""
        yield _cell(table.says)
        yield ""
        rows = (
            (*_row_of(f"conv.{conv}.{key.name.rpartition('.')[2]}", key), _code(key.search))
            for key in table.keys
        )
        yield from _rows(("key", "may be", "default", "means", "to search"), rows)
        yield ""


def _row_of(place: str, key: Key) -> tuple[str, ...]:
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
    """Return the anchor that GitHub makes of a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
