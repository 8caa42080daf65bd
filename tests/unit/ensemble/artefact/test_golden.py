"""Files of older versions open, and predict what they predicted then."""

import json
from pathlib import Path

import numpy as np
import pytest
from ase.io import read

from hydragnn_hpo.ensemble.artefact import archive
from hydragnn_hpo.ensemble.artefact.manifest import FORMAT
from hydragnn_hpo.ensemble.inference import Ensemble

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.zip")), ids=lambda path: path.stem)
def test_an_old_file_predicts_what_it_predicted(path: Path) -> None:
    kept = json.loads(path.with_suffix(".json").read_text())
    said = Ensemble.load(path).predict(read(GOLDEN / "new.extxyz", ":"))
    assert list(said.trust) == kept["trust"]
    for name, parts in kept["heads"].items():
        for key, values in parts.items():
            found = getattr(said.heads[name], key)
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}")


def test_there_is_one_of_every_format() -> None:
    formats = [archive.survey(path).written_as for path in sorted(GOLDEN.glob("*.zip"))]
    assert formats == list(range(1, FORMAT + 1))


def test_format_1_is_brought_up_to_date(tmp_path: Path) -> None:
    content = archive.read(GOLDEN / "format1.zip")
    assert content.manifest.format == FORMAT
    for member in content.manifest.members:
        assert member.weights == {"energy": pytest.approx(1 / 3), "charge": pytest.approx(1 / 3)}
    assert {head.calibration.c for head in content.manifest.heads.values()} == {0.0}
    archive.save(tmp_path / "new.zip", content)
    assert archive.survey(tmp_path / "new.zip").written_as == FORMAT
    assert archive.read(tmp_path / "new.zip").manifest == content.manifest
