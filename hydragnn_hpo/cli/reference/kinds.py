"""What a value may be, in words a user reads: from the types that configs declare."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic.fields import FieldInfo

_PLAIN = {
    bool: "`true` or `false`",
    int: "integer",
    float: "number",
    str: "text",
    date: "date",
    dict: "table",
    Path: "path",
    Any: "anything",
}
NAME = r"^[A-Za-z][A-Za-z0-9_]*$"
"""A letter, then letters, digits and underscores: what the pages call a name."""

_TOGETHER = {
    frozenset({int, float}): "number",
    frozenset({bool, int, float, str}): "`true`, `false`, number or text",
}
"""Types that people take for one."""

_BOUNDS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}


def kind(annotation: Any, notes: Sequence[Any] = ()) -> str:
    """Say what a value of a type may be.

    Args:
        annotation: the type, as a config declares it.
        notes: what stands beside it: bounds, lengths, patterns.
    """
    bare, inner = _unwrapped(annotation)
    notes = [*_flat(inner), *_flat(notes)]
    return _bounded(_of(bare), notes)


def _unwrapped(annotation: Any) -> tuple[Any, Sequence[Any]]:
    if get_origin(annotation) is Annotated:
        first, *notes = get_args(annotation)
        bare, more = _unwrapped(first)
        return bare, [*more, *notes]
    return annotation, ()


def _flat(notes: Sequence[Any]) -> list[Any]:
    """Open what pydantic's ``Field`` bundles."""
    found: list[Any] = []
    for note in notes:
        found += note.metadata if isinstance(note, FieldInfo) else [note]
    return found


def _of(bare: Any) -> str:
    origin, parts = get_origin(bare), get_args(bare)
    if origin is Literal:
        return " ".join(f'`"{part}"`' if isinstance(part, str) else f"`{part}`" for part in parts)
    if origin in (Union, UnionType) and frozenset(parts) - {NoneType} in _TOGETHER:
        return _TOGETHER[frozenset(parts) - {NoneType}]
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind(part) for part in parts if part is not NoneType))
    if origin in (tuple, list):
        return _row(parts)
    if origin is dict:
        return "table" if parts[1] is Any else f"table of {kind(parts[1])}"
    return _PLAIN.get(bare, "text" if isinstance(bare, type) and issubclass(bare, str) else "table")


def _row(parts: Sequence[Any]) -> str:
    if len(parts) == 2 and parts[1] is not ... and kind(parts[0]) != kind(parts[1]):
        return f"[{kind(parts[0])}, {kind(parts[1])}]"
    single = kind(parts[0]) if parts else "anything"
    number = "" if len(parts) < 2 or parts[1] is ... else f"{len(parts)} x "
    return f"list of {number}{f'({single})' if ' or ' in single else single}"


def _bounded(word: str, notes: Sequence[Any]) -> str:
    limits = [
        f"{sign} {getattr(note, attribute):g}"
        for kept, (sign, attribute) in _BOUNDS.items()
        for note in notes
        if isinstance(note, kept)
    ]
    found = " ".join([word, " and ".join(limits)]).strip()
    for note in notes:
        if isinstance(note, Len) and note.max_length is not None:
            found = f"{found}, exactly {note.max_length}"
        elif isinstance(note, Len) and word.startswith("list"):
            found = f"{found}, at least {note.min_length}"
        if pattern := getattr(note, "pattern", None):
            found = "name" if pattern == NAME else f"{found} like `{pattern}`"
    return found
