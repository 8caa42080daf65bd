"""Bring what older versions wrote up to the format of today, one format at a time."""

from collections.abc import Callable
from typing import Any

from hydragnn_hpo.ensemble.artefact.manifest import FORMAT


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Give the content of an ``ensemble.json`` of any format in today's; the argument stays.

    What is no longer understood is left for the schema to refuse.
    """
    found = values["format"]
    while isinstance(found, int) and found < FORMAT:
        values = _STEPS[found](values) | {"format": found + 1}
        found += 1
    return values


def _from_1(values: dict[str, Any]) -> dict[str, Any]:
    """Give each head the one weight that a member had for all of them."""
    heads, members = values.get("heads"), values.get("members")
    if not (isinstance(heads, dict) and isinstance(members, list)):
        return values
    changed = [
        {**member, "weights": dict.fromkeys(heads, member["weight"])}
        if isinstance(member, dict) and "weight" in member
        else member
        for member in members
    ]
    for member in changed:
        if isinstance(member, dict):
            member.pop("weight", None)
    return {**values, "members": changed}


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
