"""All settings with their types and documentation, from the JSON schema of each config."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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

FILES: tuple[tuple[str, str, type[Config], str], ...] = (
    (
        "Campaign",
        "campaign.",
        CampaignConfig,
        "`campaign.toml`: what is searched, on which data, and how far. `run`, `plan` and "
        "`submit` read it. Its `[trial]` holds what all trials share and its `[space]` what is "
        "searched: both take the keys of [a trial](#a-trial). A list of choices may stand in place "
        'of a whole `[space.KEY]`: `"model.conv" = ["painn", "schnet"]`.',
    ),
    (
        "A trial",
        "",
        TrialConfig,
        "`trial.toml`: one training, which `hydragnn-hpo trial DIR` runs and a campaign writes for "
        "each trial. In a campaign the tables `model`, `heads`, `training` and `parallel` stand "
        "under `[trial]`, as `[trial.training]`, and any of their keys may be searched by its "
        'dotted name: `"training.learning_rate" = { low = 1e-3, high = 1e-2, log = true }` in '
        "`[space]`.",
    ),
    (
        "`placement.toml`",
        "placement.",
        PlacementConfig,
        "Where and how far one attempt of a trial runs. Only the campaign writes it.",
    ),
    (
        "Card",
        "card.",
        CardConfig,
        "What a data file holds. `dataset build` and `run` read it; `init FILE` writes a first "
        "one.",
    ),
    (
        "Machine profile",
        "profile.",
        ProfileConfig,
        "A machine, for `--machine` and `machine.profile`. One's own begins with `extends` and "
        "says only what is different, see [launch/](../../launch/README.md#ones-own).",
    ),
)
"""Title, prefix of the anchors, config and text of each file."""

CONV_OPTIONS = (
    "`[trial.model.options]`, or `model.options.KEY` in `[space]`, for the conv that `model.conv` "
    "names."
)


# -- settings from the schema --------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One key of a file."""

    name: str
    """Dotted, as it is written in its file; ``NAME`` stands for a name of the user's."""
    anchor: str
    kind: str
    """What it may be, in words."""
    default: str
    """As TOML; empty where it may be left out, ``needed`` where it may not."""
    text: str


@dataclass(frozen=True)
class SettingsTable:
    """The keys of one config."""

    heading: str
    """The line that opens it in its file, or the conv that has it; empty for the top."""
    anchor: str
    config: str
    """Name of the config's class."""
    text: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class SettingsFile:
    """One kind of file, or the options of convs."""

    title: str
    text: str
    tables: tuple[SettingsTable, ...]


def read_files() -> list[SettingsFile]:
    """Return all settings, by the file that holds them."""
    files = []
    for title, prefix, config, text in FILES:
        schema = config.model_json_schema()
        defs = schema.get("$defs", {})
        files.append(SettingsFile(title, text, tuple(_tables(schema, defs, prefix, "", "{}"))))
    convs = tuple(_conv_table(conv, spec.options) for conv, spec in CONV_SPECS.items())
    return [*files, SettingsFile("Options of convs", CONV_OPTIONS, convs)]


def read_settings() -> Iterator[tuple[str, Setting]]:
    """Yield every setting behind the file, or the conv, that has it."""
    for file in read_files():
        for table in file.tables:
            title = file.title.strip("`").lower()
            where = f"options of {table.heading}" if file.text is CONV_OPTIONS else title
            yield from ((where, setting) for setting in table.settings)


def _tables(
    schema: Schema, defs: Schema, prefix: str, name: str, brackets: str
) -> Iterator[SettingsTable]:
    """Yield a config and the configs inside it, each as a table, the outer ones first.

    Args:
        schema: of the config.
        defs: schemas that it may refer to.
        prefix: of the anchors.
        name: dotted name of the table; empty for the top.
        brackets: how the name is written above the table.
    """
    settings, inner = [], []
    for field, info in schema.get("properties", {}).items():
        dotted = f"{name}.{field}" if name else field
        if (inside := _config_within(info, defs, "[{}]")) is None:
            needed = field in schema.get("required", ())
            settings.append(_setting(dotted, prefix + dotted, info, defs, needed=needed))
        else:
            inner.append((dotted, *inside))
    heading = brackets.format(name)
    yield SettingsTable(heading, prefix + name, schema["title"], _text(schema), tuple(settings))
    for dotted, config, around in inner:
        entry = "KEY" if dotted == "space" else "NAME"
        below = dotted if around != "[{}.NAME]" else f"{dotted}.{entry}"
        yield from _tables(config, defs, prefix, below, around.replace(".NAME", ""))


def _config_within(info: Schema, defs: Schema, around: str) -> tuple[Schema, str] | None:
    """Return the config that a value holds, and how its table is written; None without one."""
    if "$ref" in info:
        schema = _resolve(info, defs)
        return (schema, around) if "properties" in schema else None
    inside = [(option, around) for option in info.get("anyOf", ())]
    inside += [(value, "[{}.NAME]") for value in _values_by_name(info)]
    if isinstance(info.get("items"), dict):
        inside.append((info["items"], "[[{}]]"))
    configs = (_config_within(value, defs, written) for value, written in inside)
    return next((config for config in configs if config is not None), None)


def _conv_table(conv: str, options: type[Config]) -> SettingsTable:
    """Return the options of a conv, with the ranges that ``init`` would search."""
    schema = options.model_json_schema()
    ranges = search_ranges(options)
    settings = []
    for field, info in schema.get("properties", {}).items():
        if field in ranges:
            searched = f"`init` searches it in ``{_toml(ranges[field])}``."
            info = info | {"description": f"{info['description']} {searched}"}
        settings.append(
            _setting(
                f"model.options.{field}",
                f"conv.{conv}.{field}",
                info,
                schema.get("$defs", {}),
                needed=field in schema.get("required", ()),
            )
        )
    return SettingsTable(conv, f"conv.{conv}", schema["title"], _text(schema), tuple(settings))


def _setting(name: str, anchor: str, info: Schema, defs: Schema, *, needed: bool) -> Setting:
    value = info.get("default")
    default = "" if value is None or value in ([], {}) else _toml(value)
    words = describe_kind(info, defs)
    return Setting(name, anchor, words, NEEDED if needed else default, _text(info))


def _text(info: Schema) -> str:
    """Return a description as one paragraph, without the sentence for those who read the code."""
    text = " ".join(info.get("description", "").split()).replace("``", "`")
    return re.sub(r"(Read|Built|Built into stores) by .*?\.( |$)", "", text).strip()


def _resolve(info: Schema, defs: Schema) -> Schema:
    return defs[info["$ref"].rpartition("/")[2]] if "$ref" in info else info


def _values_by_name(info: Schema) -> Iterator[Schema]:
    """Yield the schema of the values of a table whose keys are a user's names."""
    candidates = [info.get("additionalProperties"), *info.get("patternProperties", {}).values()]
    yield from (one for one in candidates if isinstance(one, dict))


def _toml(value: Any) -> str:
    """Write a value as TOML, in one line."""
    if isinstance(value, Config):
        plain = value.model_dump(mode="json", exclude_defaults=True)
        value = plain["choices"] if list(plain) == ["choices"] else plain
    if isinstance(value, dict):
        return "{ " + ", ".join(to_toml({key: item}).strip() for key, item in value.items()) + " }"
    return to_toml({"x": value}).partition(" = ")[2].strip()


# -- types in words ------------------------------------------------------------------------

_WORDS = {
    "boolean": "`true` or `false`",
    "integer": "integer",
    "number": "number",
    "string": "text",
    "date": "date",
    "path": "path",
}
_BOUNDS = {
    **{"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="},
    "gt": ">",  # of a choice between types pydantic gives the bound as it was written
}


def describe_kind(info: Schema, defs: Schema) -> str:
    """Describe what a value may be, in words a user reads.

    Args:
        info: its JSON schema.
        defs: schemas that it may refer to.
    """
    info = _resolve(info, defs)
    if "anyOf" in info:
        options = [option for option in info["anyOf"] if option.get("type") != "null"]
        kinds = list(dict.fromkeys(describe_kind(option, defs) for option in options))
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        return _with_bounds(" or ".join(kinds), info)
    if choices := info.get("enum", [info["const"]] if "const" in info else []):
        return " ".join(f"`{to_toml({'x': choice})[4:].strip()}`" for choice in choices)
    if info.get("type") == "array":
        return _describe_list(info, defs)
    if info.get("type") == "object":
        each = next(_values_by_name(info), None)
        return f"table of {describe_kind(each, defs)}" if each else "table"
    word = _WORDS.get(info.get("format", ""), _WORDS.get(info.get("type", ""), "anything"))
    if (pattern := info.get("pattern")) == r"^[A-Za-z][A-Za-z0-9_]*$":
        return "name"
    return f"{word} like `{pattern}`" if pattern else _with_bounds(word, info)


def _with_bounds(word: str, info: Schema) -> str:
    bounds = [f"{sign} {info[key]:g}" for key, sign in _BOUNDS.items() if key in info]
    return f"{word} {' and '.join(bounds)}".strip()


def _describe_list(info: Schema, defs: Schema) -> str:
    each = [describe_kind(one, defs) for one in info.get("prefixItems", ())]
    if len(set(each)) > 1:
        return f"[{', '.join(each)}]"
    single = each[0] if each else describe_kind(info.get("items", {}), defs)
    single = f"({single})" if " or " in single else single
    if each:
        return f"list of {len(each)} x {single}"
    least = info.get("minItems")
    most = info.get("maxItems")
    words = f"list of {single}"
    if most is not None:
        return f"{words}, {'exactly' if most == least else 'at most'} {most}"
    return words if least is None else f"{words}, at least {least}"
