"""What differs between two ensembles: members, data, heads, calibration, scores."""

from collections.abc import Collection, Mapping
from typing import Any

from hydragnn_hpo.ensemble.artefact.archive import Survey

PARTS = ("made", "data", "heads", "calibration", "members", "scores")
"""What is compared, in this order."""


def diff(first: Survey, second: Survey) -> dict[str, Any]:
    """Compare two ensembles.

    Returns:
        ``same``: whether they hold equal bytes. ``differences``: by part (``PARTS``) what
        differs by its dotted name, each as ``[first, second]``; None stands for nothing. Members
        that both have are compared by their configuration and the checksum of their weights; one
        that only the first has is ``["member", None]``.
    """
    left, right = _parts(first), _parts(second)
    differences = {}
    for part in PARTS:
        names = set(left[part]) & set(right[part]) if part == "members" else None
        found = _alone(left[part], right[part]) if part == "members" else {}
        found |= _changes(_flat(left[part], only=names), _flat(right[part], only=names))
        if found:
            differences[part] = found
    return {"same": first.identity == second.identity, "differences": differences}


def _parts(found: Survey) -> dict[str, dict[str, Any]]:
    plain = found.manifest.model_dump(mode="json")
    heads = {
        name: {key: value for key, value in head.items() if key != "calibration"}
        for name, head in plain["heads"].items()
    }
    made = ("package", "created_by", "software", "commit", "packages", "licence", "pruned")
    graphs = ("elements", "cutoff", "attributes", "laplacian")
    return {
        "made": {key: plain[key] for key in made} | {"format": found.written_as},
        "data": plain["data"] | {key: plain[key] for key in graphs},
        "heads": heads,
        "calibration": {name: head["calibration"] for name, head in plain["heads"].items()},
        "members": {m["trial"]: _member(found, m) for m in plain["members"]},
        "scores": plain["evaluation"],
    }


def _member(found: Survey, entry: Mapping[str, Any]) -> dict[str, Any]:
    trial = entry["trial"]
    own = {key: value for key, value in entry.items() if key != "trial"}
    config = found.configs[trial].model_dump(mode="json", exclude={"trial"})
    sums = found.sums[f"members/{trial}.safetensors"]
    return own | {"config": config, "sha256": sums, "numbers": found.numbers[trial]}


def _flat(
    values: Mapping[str, Any], before: str = "", only: Collection[str] | None = None
) -> dict[str, Any]:
    """Give nested tables as one, with dotted names; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if only is None or key in only:
            name = f"{before}{key}"
            flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _alone(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name the members that only one of two ensembles has."""
    gone = {trial: ["member", None] for trial in left if trial not in right}
    return gone | {trial: [None, "member"] for trial in right if trial not in left}


def _changes(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*left, *(name for name in right if name not in left)]
    return {n: [left.get(n), right.get(n)] for n in names if left.get(n) != right.get(n)}
