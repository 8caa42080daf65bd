"""Escape control characters in untrusted text, so that showing it cannot control a terminal."""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_KEPT = {"\n", "\t"}
_REFUSED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that are escaped: control, format (which includes changes of the writing
direction), surrogates, and the line and paragraph separators."""


def find_unprintable(value: Any) -> str | None:
    """Return the first string or key in nested data that has a control character, or None."""
    if isinstance(value, str):
        return None if escape_controls(value) == value else value
    if isinstance(value, Mapping):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        return None
    return next((first for part in parts if (first := find_unprintable(part)) is not None), None)


def sanitize_values(value: Any) -> Any:
    """Return nested data with the control characters in all strings and keys escaped."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, Mapping):
        return {sanitize_values(key): sanitize_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sanitize_values(item) for item in value]
    return value


def escape_controls(text: str) -> str:
    r"""Return the text with its control characters escaped; newlines and tabs are kept.

    >>> escape_controls("\x1b[2Jred")
    '\\x1b[2Jred'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_plain(c) else ascii(c)[1:-1] for c in text)


def sanitize_line(text: str) -> str:
    r"""Escape control characters, and join the text into one line with single spaces.

    >>> sanitize_line("a\n b\tc")
    'a b c'
    """
    return " ".join(escape_controls(text).split())


def shorten(text: str, most: int = 200) -> str:
    """Return text; of one that is longer than ``most`` characters the end is left out.

    >>> shorten("invalid space group F m -3 m' m -3 m'", most=21)
    'invalid space group F...'
    """
    return text if len(text) <= most else f"{text[:most].rstrip()}..."


def shorten_words(text: str, most: int = 80) -> str:
    """Replace the middle of each word that is longer than ``most`` characters by dots.

    Slashes end a word here, so that a path stays whole unless a name in it is that long.

    >>> shorten_words("a number, found 12345678901234567890", most=10)
    'a number, found 12345...67890'
    """
    half = most // 2
    return re.sub(
        rf"[^\s/]{{{most + 1},}}", lambda word: f"{word[0][:half]}...{word[0][-half:]}", text
    )


def quote(text: str, most: int = 80) -> str:
    """Return text in quotes, escaped as by ``ascii``; of a long one the middle is left out.

    >>> quote("-abcdefghijklmnopqrstuvwxyz", most=10)
    "'-abcd...vwxyz'"
    """
    half = most // 2
    return ascii(text if len(text) <= most else f"{text[:half]}...{text[-half:]}")


def escape_line(text: Any) -> str:
    r"""Return any value as one escaped ASCII line, for sentences and comments.

    >>> print(escape_line("a\n\u00fc"))
    a\n\u00fc
    """
    return json.dumps(str(text), ensure_ascii=True)[1:-1]


def _is_plain(character: str) -> bool:
    return character in _KEPT or unicodedata.category(character) not in _REFUSED
