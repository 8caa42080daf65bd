"""Ensemble files as a person forges them who knows the format: any entries, right checksums."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hydragnn_hpo.ensemble.artefact import STORED, SUMS
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import DataError


def zip_entries(entries: Mapping[str, bytes]) -> bytes:
    """Return a zip of entries in their order; weights are not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            kind = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
            file.writestr(zipfile.ZipInfo(name), data, kind)  # dated 1980, whenever it is made
    return buffer.getvalue()


def sealed(entries: Mapping[str, bytes]) -> bytes:
    """Return a zip of entries whose checksums are right."""
    names = [name for name in entries if name != SUMS]
    sums = "".join(f"{hashlib.sha256(entries[n]).hexdigest()}  {n}\n" for n in names)
    return zip_entries({**{name: entries[name] for name in names}, SUMS: sums.encode()})


def check_refused(path: Path, entries: Mapping[str, bytes], sentence: str) -> None:
    """Check that an ensemble of these entries, written to a path, is refused by one sentence."""
    path.write_bytes(sealed(entries))
    with pytest.raises(DataError) as caught:
        Ensemble.load(path)
    reason = str(caught.value)
    assert sentence in reason
    assert reason.startswith(str(path))
    assert "\n" not in reason
