"""Every key of every file a user writes, as the configs declare it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from hydragnn_hpo.cli.reference.kinds import kind
from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.convs.spec import search_ranges
from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.config.schema import Config

NEEDED = "needed"
"""Stands where a key has no default."""


_READERS = re.compile(r"(Read|Built|Built into stores) by .*?\.( |$)")
"""What configs say to those who work on the code."""

_NAMES = {"space": "KEY"}
"""What stands for a name of the user's, where it is no ``NAME``."""


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
class Table:
    """The keys of one config."""

    name: str
    """Dotted name of the table in its file; empty for the top."""
    repeated: bool
    """Whether there may be several, each in double brackets."""
    config: type[Config]
    keys: tuple[Key, ...]

    @property
    def says(self) -> str:
        """Give what the config says of itself."""
        says = sentence(self.config.__doc__ or "")
        return _READERS.sub("", says).strip()

    @property
    def heading(self) -> str:
        """Give the line that opens it in its file."""
        return f"[[{self.name}]]" if self.repeated else f"[{self.name}]"


def sentence(text: str) -> str:
    """Give a docstring as one paragraph of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def tables(config: type[Config], name: str = "", *, repeated: bool = False) -> Iterator[Table]:
    """Give a config and the configs inside it, each as a table, the outer ones first."""
    inner = {
        field: found
        for field, info in config.model_fields.items()
        for found in islice(_configs(info.annotation), 1)
    }
    keys = [
        _key(dotted(name, field), info)
        for field, info in config.model_fields.items()
        if field not in inner
    ]
    yield Table(name, repeated, config, tuple(keys))
    for field, (found, way) in inner.items():
        below = dotted(name, field, _NAMES.get(field, "NAME") if way is dict else "")
        yield from tables(found, below, repeated=way is tuple)


def options() -> Iterator[tuple[str, Table]]:
    """Give the options of each conv, with the ranges worth searching."""
    for conv, spec in CONV_SPECS.items():
        ranges = search_ranges(spec.options)
        keys = [
            _key(f"model.options.{field}", info, _toml(ranges[field]) if field in ranges else "")
            for field, info in spec.options.model_fields.items()
        ]
        yield conv, Table("model.options", False, spec.options, tuple(keys))


def dotted(*parts: str) -> str:
    """Join the parts of a key, leaving out what is empty."""
    return ".".join(part for part in parts if part)


def _key(name: str, info: FieldInfo, search: str = "") -> Key:
    says = sentence(info.description or "")
    return Key(name, kind(info.annotation, info.metadata), _default(info), says, search)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return NEEDED
    value = info.get_default(call_default_factory=True)
    return "" if value is None or value in ((), {}) else _toml(value)


def _toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, Config):
        plain = value.model_dump(mode="json", exclude_defaults=True)
        value = plain["choices"] if list(plain) == ["choices"] else [plain]
        inner = to_toml({"x": {"y": value}}).partition("y = ")[2]
        return inner.strip() if inner else _inline(plain)
    return to_toml({"x": value}).partition(" = ")[2].strip()


def _inline(plain: dict[str, Any]) -> str:
    """Write a flat table in one line."""
    return "{ " + ", ".join(to_toml({key: item}).strip() for key, item in plain.items()) + " }"


def _configs(
    annotation: Any, way: type | None = None
) -> Iterator[tuple[type[Config], type | None]]:
    """Give configs that a type holds, and whether in a row (tuple) or by name (dict)."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation, way
        return
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return
    for part in parts:
        yield from _configs(part, origin if origin in (tuple, dict) else way)
