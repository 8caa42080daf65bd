"""Ask a Ray cluster which versions it runs: ``python -m ... probe ADDRESS``, one JSON line.

A process of its own: Ray reads its settings once per process, talks to stderr as it likes, and
aborts on a bad token file. Nothing is joined by asking.
"""

import json
import sys
from typing import Any

_METADATA = b"CLUSTER_METADATA"
_SECONDS = 3


def ask(address: str) -> dict[str, Any]:
    """Give ``ray`` and ``python``, or ``refused`` or ``error`` with what was said."""
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    try:
        client = GcsClient(address=address)
        found = client.internal_kv_get(_METADATA, namespace=b"cluster", timeout=_SECONDS)
    except AuthenticationError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    versions = json.loads(found or b"{}")
    return {"ray": versions.get("ray_version"), "python": versions.get("python_version")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask(sys.argv[1])) + "\n")
