"""The base of all configs: frozen, strict, documented; read from TOML and written as TOML."""

import difflib
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from annotated_types import Len
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import escape_line

_STRICT = frozenset(("bool", "float", "int", "str"))


def _refuse_conversions(schema: Any, handler: GetCoreSchemaHandler, seen: set[str]) -> None:
    """Make every scalar of a schema strict; lists still become tuples, integers floats.

    Args:
        schema: the schema, or a part of it.
        handler: finds what the schema only refers to, as it does to a dataclass.
        seen: references that were followed.
    """
    if isinstance(schema, dict):
        if schema.get("type") in _STRICT:
            schema["strict"] = True
        if schema.get("type") == "definition-ref" and schema["schema_ref"] not in seen:
            seen.add(schema["schema_ref"])
            _refuse_conversions(handler.resolve_ref_schema(schema), handler, seen)
        for part in schema.values():
            _refuse_conversions(part, handler, seen)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            _refuse_conversions(part, handler, seen)


class Config(BaseModel):
    """A frozen settings object; unknown keys and values of another type are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        _refuse_conversions(schema, handler, set())
        return schema


C = TypeVar("C", bound=Config)


def _list_tables(value: Any) -> Any:
    return [value] if isinstance(value, (Mapping, Config)) else value


Tables = Annotated[tuple[C, ...], Len(1), BeforeValidator(_list_tables)]
"""One table of TOML or several."""

AnyTables = Annotated[tuple[C, ...], BeforeValidator(_list_tables)]
"""One table of TOML, several, or none."""

Cutoff = Annotated[float, Field(gt=0.0, le=100.0)]
"""A cutoff in angstrom. A sphere of the largest holds 400,000 atoms of a metal."""

COMMENT_WIDTH = 96
"""Characters of a comment's line in a template, without its mark."""


MAX_TOML = 4 * 2**20
"""Most bytes of a TOML file: reading this many takes seconds, and 30,000 files of a card fit."""

MAX_DEPTH = 50
"""Most tables and lists inside each other."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Returns:
        Nested dicts, lists and scalars, as ``tomllib`` returns them.

    Raises:
        ConfigError: it is missing, unreadable, or not TOML.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: is a folder, pipe or device; name a TOML file.")
        if (size := path.stat().st_size) > MAX_TOML:
            raise ConfigError(
                f"{path}: has {size} bytes, more than {MAX_TOML}; split it.{_hint(path)}"
            )
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); correct the path or its permissions."
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        cure = _hint(path) or " Save it as UTF-8."
        raise ConfigError(f"{path}: is not UTF-8 text (line {line}).{cure}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: is not valid TOML: {_clip(str(error), 120)}; correct it.{_hint(path)}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}.") from error


_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_DOTTED_KEY = re.compile(
    rf"(?:^[ \t]*+\[?\[?|[{{,])[ \t]*+{_PART}(?:\.[ \t]*+{_PART}){{2,}}", re.MULTILINE
)
"""A key of three parts or more. Each takes a kilobyte, and in one key quadratic time."""

_MOST_PARTS = 100_000
"""Most parts of such keys in a file."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that may come from anybody.

    Returns:
        Nested dicts, lists and scalars, as ``tomllib`` returns them.

    Raises:
        TOMLDecodeError: it is not TOML.
        ValueError: it is nested too deeply or holds a vast number; the sentence has no full stop.
    """
    parts = [match.group().count(".") for match in _DOTTED_KEY.finditer(text)]
    if max(parts, default=0) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if sum(parts) > _MOST_PARTS:
        raise ValueError(f"its keys have more than {_MOST_PARTS:,} dots: write tables instead")
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts no more than 4300 digits
        raise ValueError("it holds a number of thousands of digits: correct it") from error
    check_plain(values)
    return values


_TOO_DEEP = f"more than {MAX_DEPTH} tables or lists stand inside each other: write it flat"


def check_plain(values: Any) -> None:
    """Check that plain data is not nested too deeply and that its integers have 64 bits.

    Raises:
        ValueError: it does not; the sentence has no full stop.
    """
    level: list[Any] = [values]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                deeper.extend(value.values())
            elif isinstance(value, (list, tuple)):
                deeper.extend(value)
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError("it holds a whole number of more than 64 bits: correct it")
        level = deeper
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _hint(path: Path) -> str:
    """Return what to do with a file of structures where settings are wanted."""
    if path.suffix.lower() == ".toml":
        return ""
    return f" If it holds structures: 'hydragnn-hpo init {path}' writes a card and a campaign."


def load_config(path: Path, schema: type[C]) -> C:
    """Read and check a TOML file."""
    return parse_config(read_toml(path), schema, where=str(path))


def parse_config(values: Mapping[str, Any], schema: type[C], where: str) -> C:
    """Check values against a schema.

    Args:
        values: plain data, as TOML or JSON gives it.
        schema: the config class.
        where: file or origin named in the error.

    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {validation_sentence(error, schema)}") from error


def validation_sentence(error: ValidationError, schema: type[BaseModel]) -> str:
    """Turn the first error of pydantic into one sentence."""
    errors = error.errors(include_url=False)
    first = errors[0]
    location, several = _alternatives(errors)
    place = escape_line(_clip(".".join(str(part) for part in location), MAX_PLACE))
    if first["type"] == "extra_forbidden":
        config = _config_at(schema, location[:-1])
        return unknown_key(place, str(location[-1]), config.model_fields if config else ())
    if first["type"] == "missing":
        return f"'{place}' is missing; add it."
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
        return f"'{place}': {reason}" if place else reason
    *rest, wanted = dict.fromkeys(map(_wanted, several))
    wanted = f"{', '.join(rest)} or {wanted}" if rest else wanted
    config = _config_at(schema, location[:-1]) if location else None
    field = config.model_fields.get(str(location[-1])) if config else None
    if first["type"] in _LIMITS and field is not None and field.description:
        meaning = re.split(r"[.:;](?:\s|$)", field.description, maxsplit=1)[0]
        meaning = " ".join(meaning.replace("`", "").split())
        wanted += f" ({meaning[:1].lower()}{meaning[1:]})"
    name = f"'{place}'" if place else "all of it"
    return f"{name} is {_shown(first.get('input'))}: write {wanted}."


MAX_PLACE = 100
"""Most characters of a key's dotted name in a sentence."""

_LIMITS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("of at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("of at most", "le"),
}
"""Words for a limit that a number breaks, and the name of the limit, by pydantic's error."""

_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}

_WANTED = (
    (("int_",), "a whole number"),
    (("float_",), "a number"),
    (("finite_",), "a finite number"),
    (("bool_",), "true or false"),
    (("string_too_short",), "a text that is not empty"),
    (("string_",), "a text in quotes"),
    (("tuple_", "list_"), "a list in square brackets"),
    (("dict_", "model_", "mapping_", "dataclass_"), "a table of keys and values"),
    (("date_",), "a date such as 2026-11-22"),
)
"""What to write instead, by the first letters of pydantic's error."""

PATTERNS = {
    r"^[A-Za-z][A-Za-z0-9_]*$": "a letter, then letters, digits or _",
    r"^([A-Za-z][A-Za-z0-9_]*)?$": "a letter, then letters, digits or _",
    r"^[A-Za-z0-9_]*$": "letters, digits or _",
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$": "up to 100 letters, digits, _ or -",
    r"^[A-Za-z0-9_.-]{1,64}$": "up to 64 letters, digits, _ . or -",
    r"^[0-9a-f]{64}$": "the 64 hexadecimal digits of a SHA-256",
}
"""Words for the patterns of texts in configs."""

_LABEL = re.compile(r"bool|int|float|str|[a-z-]+\[.*\]")
"""Name of an alternative of a union, at the end of pydantic's location."""


def _alternatives(
    errors: Sequence[ErrorDetails],
) -> tuple[tuple[int | str, ...], Sequence[ErrorDetails]]:
    """Return the location of the first error, and the errors of all types that it could have."""
    first = errors[0]
    before = first["loc"][:-1]
    same = [
        each
        for each in errors
        if each["loc"][:-1] == before
        and each.get("input") is first.get("input")
        and _LABEL.fullmatch("".join(map(str, each["loc"][-1:])))
    ]
    if len(same) < 2:
        return tuple("name" if part == "[key]" else part for part in first["loc"]), [first]
    limits = [each for each in same if each["type"] in (*_LIMITS, "finite_number")]
    return before, limits or same


def _wanted(error: ErrorDetails) -> str:
    """Return what to write in place of a wrong value."""
    kind = error["type"]
    limits = error.get("ctx", {})
    if kind in _LIMITS:
        word, name = _LIMITS[kind]
        limit = limits[name]
        return f"a number {word} {limit if isinstance(limit, int) else f'{limit:g}'}"
    if kind in _LENGTHS:
        word, name = _LENGTHS[kind]
        return f"{word} {limits[name]} entries"
    if kind == "literal_error":
        return str(limits["expected"])
    if kind == "string_pattern_mismatch" and limits["pattern"] in PATTERNS:
        return PATTERNS[limits["pattern"]]
    known = (words for starts, words in _WANTED if kind.startswith(starts))
    return next(known, "another value, see the reference of settings")


def unknown_key(place: str, key: str, known: Collection[str]) -> str:
    """Return a sentence about a key that no config has.

    Args:
        place: dotted name of the key.
        key: its last part.
        known: keys that may stand there.
    """
    close = difflib.get_close_matches(_clip(key, MAX_PLACE), list(known), n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    listing = f" Known: {', '.join(sorted(known))}." if known else ""
    return f"unknown key '{place}'.{hint}{listing}"


def _config_at(schema: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the config found along a location, or None."""
    current: Any = schema
    for part in location:
        if not _is_config(current):  # the part is an index of a list or a name of the user's
            current = next(filter(_holds_config, get_args(current)), None)
        elif part in current.model_fields:
            current = current.model_fields[part].annotation
            if NoneType in get_args(current):
                current = next(filter(_holds_config, get_args(current)), None)
    return current if _is_config(current) else None


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _holds_config(annotation: Any) -> bool:
    return _is_config(annotation) or any(map(_holds_config, get_args(annotation)))


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as TOML writes it
    try:
        text = json.dumps(value, default=str)
    except ValueError:
        return "a number of thousands of digits"
    return _clip(text, 60)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def to_toml(values: Mapping[str, Any]) -> str:
    """Write plain data as TOML: scalars first, then tables; None is left out."""
    lines: list[str] = []
    _table(values, (), lines)
    return "\n".join(lines).strip() + "\n"


def dump_config(config: Config) -> str:
    """Write a config as TOML, every value resolved."""
    return to_toml(config.model_dump(mode="json", exclude_none=True))


def _table(values: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    arrays = {k: v for k, v in values.items() if _is_table_array(v)}
    for key, value in values.items():
        if value is not None and key not in tables and key not in arrays:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, table in tables.items():
        lines.extend(("", f"[{'.'.join(map(_key, (*path, key)))}]"))
        _table(table, (*path, key), lines)
    for key, entries in arrays.items():
        for entry in entries:
            lines.extend(("", f"[[{'.'.join(map(_key, (*path, key)))}]]"))
            _table(entry, (*path, key), lines)


def _is_table_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{" + inner + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} has no place in TOML")
    return _string(value)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def render_toml(template: str, **values: Any) -> str:
    """Render commented TOML; the filters ``toml`` and ``comment`` make any text harmless.

    Args:
        template: in Jinja2; every text from outside passes through a filter.
        values: names that the template uses.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=False,  # noqa: S701  TOML, not HTML; the filters escape
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"toml": _to_inline, "comment": _to_comment}
    return environment.from_string(template).render(values)


def _to_comment(text: str) -> str:
    """Return text as comment lines; whatever is in it, it stays a comment."""
    words = escape_line(" ".join(text.split())).replace('\\"', '"')
    return "\n".join(f"# {line}" for line in textwrap.wrap(words, COMMENT_WIDTH))


def _to_inline(value: Any) -> str:
    if not isinstance(value, Mapping):
        return _value(value)
    pairs = [f"{_key(key)} = {_to_inline(item)}" for key, item in value.items()]
    return "{ " + ", ".join(pairs) + " }"
