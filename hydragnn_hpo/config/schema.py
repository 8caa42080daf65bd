"""The base of all configs: frozen, strict, documented; read from TOML and written as TOML."""

import difflib
import json
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from annotated_types import Len
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import escape_line


class Config(BaseModel):
    """A frozen settings object; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


C = TypeVar("C", bound=Config)


def _list_tables(value: Any) -> Any:
    return [value] if isinstance(value, (Mapping, Config)) else value


Tables = Annotated[tuple[C, ...], Len(1), BeforeValidator(_list_tables)]
"""One table of TOML or several."""

AnyTables = Annotated[tuple[C, ...], BeforeValidator(_list_tables)]
"""One table of TOML, several, or none."""

COMMENT_WIDTH = 96
"""Characters of a comment's line in a template, without its mark."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Returns:
        Nested dicts, lists and scalars, as ``tomllib`` returns them.

    Raises:
        ConfigError: it is missing, unreadable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not a text file ({error.reason}).{_hint(path)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.{_hint(path)}") from error


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
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    value = first.get("input")
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        known = _keys_at(schema, first["loc"][:-1])
        close = difflib.get_close_matches(key, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        listing = f" Known: {', '.join(sorted(known))}." if known else ""
        return f"unknown key '{place}'.{hint}{listing}"
    if first["type"] == "missing":
        return f"'{place}' is missing; add it."
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
        return f"'{place}': {reason}" if place else reason
    return f"'{place}' is {_shown(value)}: {_lower(first['msg'])}."


def _keys_at(schema: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the field names of the config found along a location, or none."""
    current: Any = schema
    for part in location:
        if not _is_config(current):  # the part is an index of a list or a name of the user's
            current = next(filter(_holds_config, get_args(current)), None)
        elif part in current.model_fields:
            current = current.model_fields[part].annotation
            if NoneType in get_args(current):
                current = next(filter(_holds_config, get_args(current)), None)
    return list(current.model_fields) if _is_config(current) else []


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _holds_config(annotation: Any) -> bool:
    return _is_config(annotation) or any(map(_holds_config, get_args(annotation)))


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


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
