"""The second line of an extxyz frame, read six times as fast as ASE does.

ASE goes through it letter by letter, which is most of the time that a small frame takes. Lines
that are nothing but ``key=value`` and ``key="value"`` with plain numbers and words are cut here
by one expression; whatever else comes up is left to ASE, so that both always agree.
"""

import re
from typing import Any

import numpy as np
from ase.io.extxyz import SPECIAL_3_3_KEYS, UNPROCESSED_KEYS, key_val_str_to_dict

_PAIR = re.compile(r'([A-Za-z_][\w.\-]*)=(?:"([^"\\,]+)"|([^\s"\'{}\[\]\\=,]+))(?:\s+|$)', re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WORD = re.compile(r"(?!nan|inf)[A-Za-z]\S*", re.ASCII | re.IGNORECASE)
_FLAGS = {
    **dict.fromkeys(("T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("F", "false", "False", "FALSE"), False),
}


def parse_comment(line: str) -> dict[str, Any]:
    """Return keys and values, as ``ase.io.extxyz.key_val_str_to_dict`` does."""
    line = line.strip()
    found: dict[str, Any] = {}
    at = 0
    for match in _PAIR.finditer(line):
        if match.start() != at:
            break
        at = match.end()
        key, quoted, bare = match.groups()
        value = _value(key, quoted or bare)
        if value is None:
            break
        found[key] = value
    else:
        if found and at == len(line) and line.isascii():
            return found
    known: dict[str, Any] = key_val_str_to_dict(line)  # type: ignore[no-untyped-call]
    return known


def _value(key: str, text: str) -> Any:
    """Return a value as ASE would, or None where that is not for us to say."""
    words = text.split()
    if not words or key.lower() in UNPROCESSED_KEYS:
        return None
    if len(words) == 1 and key not in SPECIAL_3_3_KEYS:
        return _single(words[0], text)
    if all(map(_INTEGER.fullmatch, words)):
        numbers: Any = np.array(list(map(int, words)))
    elif all(map(_REAL.fullmatch, words)):
        numbers = np.array(list(map(float, words)))
    elif key in SPECIAL_3_3_KEYS:
        return None
    elif all(word in _FLAGS for word in words):
        return [_FLAGS[word] for word in words]
    else:
        plain = text[:5] != "_JSON" and any(map(_WORD.fullmatch, words))
        return text if plain else None
    if key in SPECIAL_3_3_KEYS:
        return numbers.reshape((3, 3), order="F") if len(numbers) == 9 else None
    return numbers


def _single(word: str, text: str) -> Any:
    """Return a value that is one word."""
    if _INTEGER.fullmatch(word):
        return np.int64(word)
    if _REAL.fullmatch(word):
        return np.float64(word)
    if word in _FLAGS:
        return _FLAGS[word]
    return text if text[:5] != "_JSON" and _WORD.fullmatch(word) else None
