"""A rank that comes late begins nothing anew."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import write

from hydragnn_hpo.ensemble.sharing import together
from hydragnn_hpo.ensemble.sharing.together import predict_together
from hydragnn_hpo.ensemble.streaming.order import Order
from hydragnn_hpo.errors import StorageError


@pytest.fixture
def order(built_zip: Path, tmp_path: Path) -> Order:
    pairs = [Atoms("CO", positions=[(0, 0, 0), (0, 0, d)]) for d in np.linspace(1.0, 1.4, 5)]
    write(tmp_path / "some.extxyz", pairs)
    return Order((str(tmp_path / "some.extxyz"),), str(built_zip), str(tmp_path / "some.csv"))


def test_rank_0_does_all_where_nobody_else_comes(order):
    outcome = predict_together(order, 0)
    assert outcome is not None
    assert (outcome.structures, outcome.failed) == (5, 0)
    assert not order.parts.folder.exists()


@pytest.mark.parametrize("moment", ["before it looked", "while it began"])
def test_who_comes_when_all_is_done_leaves(order, monkeypatch, moment):
    predict_together(order, 0)
    before = Path(order.out).read_bytes()
    if moment == "while it began":
        monkeypatch.setattr(together, "_await", lambda *_: None)
    assert predict_together(order, 1) is None
    assert not order.parts.folder.exists()
    assert Path(order.out).read_bytes() == before


def test_an_output_of_earlier_days_is_no_sign(order, monkeypatch):
    Path(order.out).touch()
    monkeypatch.setattr(together, "_birth", lambda: Path(order.out).stat().st_mtime + 1.0)
    monkeypatch.setattr(together, "_await", lambda *_: None)
    with pytest.raises(StorageError):
        predict_together(order, 1)
