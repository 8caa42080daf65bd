"""Render commented TOML from a template: Jinja2 with filters for values and comments."""

import textwrap
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, StrictUndefined

from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.sanitize import escape_line

WIDTH = 96
"""Characters of a comment's line, without its mark."""


def render_toml(template: str, **values: Any) -> str:
    """Render a template whose filters ``toml`` and ``comment`` make any text harmless.

    Args:
        template: in Jinja2; every text from outside passes through a filter.
        values: names that the template uses.
    """
    environment = Environment(
        autoescape=False,  # noqa: S701  TOML, not HTML; the filters escape
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"toml": _to_value, "comment": _to_comment}
    return environment.from_string(template).render(values)


def _to_comment(text: str) -> str:
    """Return text as comment lines; whatever is in it, it stays a comment."""
    lines = textwrap.wrap(escape_line(" ".join(text.split())).replace('\\"', '"'), WIDTH)
    return "\n".join(f"# {line}" for line in lines)


def _to_value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        pairs = [f"{_to_key(key)} = {_to_value(item)}" for key, item in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, tuple):
        value = list(value)
    return to_toml({"x": value}).strip().removeprefix("x = ")


def _to_key(key: str) -> str:
    return to_toml({key: 0}).removesuffix(" = 0\n")
