"""Bad structures: set aside with their reasons, counted, and too many of them an error."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.errors import DataError
from hydragnn_hpo.files import write_text

QUARANTINE = "quarantine.jsonl"
"""The file in a store that names them; not there if there are none."""


@dataclass(frozen=True)
class Bad:
    """A structure that cannot be used."""

    file: str
    number: int
    """Counted from 1."""
    id: str
    reason: str
    """A sentence that names file and structure."""


def write_quarantine(path: Path, bad: Sequence[Bad]) -> None:
    """Write one JSON object per bad structure."""
    write_text(path, "".join(json.dumps(asdict(one)) + "\n" for one in bad))


def listing_of(out: Path) -> Path:
    """Give where the bad structures of a refused build are listed, beside the store."""
    return out.with_name(f"{out.name}.{QUARANTINE}")


def too_many(bad: int, total: int, max_bad: float) -> bool:
    """Tell whether the share of bad structures is beyond the card's limit."""
    return bad > max_bad * total


def refuse(bad: Sequence[Bad], total: int, max_bad: float, out: Path) -> NoReturn:
    """End a build because of its bad structures; several of them are listed in a file.

    Args:
        bad: at least one, in order.
        total: structures of the data set, bad ones included.
        max_bad: the card's limit.
        out: the store that is not built.
    """
    if len(bad) == 1:
        raise DataError(bad[0].reason)
    listing = listing_of(out)
    write_quarantine(listing, bad)
    raise DataError(
        f"{bad[0].reason.rstrip('.')} (and {len(bad) - 1} more bad ones of {total}; "
        f"the limit max_bad is {max_bad:g}: see {listing})."
    )
