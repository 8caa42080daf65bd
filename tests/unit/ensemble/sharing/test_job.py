"""What a rank of a prediction leaves when it fails, and what whoever started it makes of that."""

import errno
import os
import signal
from pathlib import Path

import pytest
import torch
from ase import Atoms
from ase.io import write

from hydragnn_hpo.ensemble.sharing import job, starting
from hydragnn_hpo.ensemble.sharing.job import failure_of, rank_main
from hydragnn_hpo.ensemble.streaming.order import Order
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage


@pytest.fixture(autouse=True)
def _as_before():
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


@pytest.fixture
def order(built_zip: Path, tmp_path: Path) -> Order:
    write(tmp_path / "some.extxyz", Atoms("CO", positions=[(0, 0, 0), (0, 0, 1.1)]))
    return Order((str(tmp_path / "some.extxyz"),), str(built_zip), str(tmp_path / "some.csv"))


def fails(code):
    def fail(*_):
        with storage(Path("parts")):
            raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "ends"), [(errno.ESTALE, False), (errno.ENOSPC, True)])
def test_one_rank_without_its_files_does_not_end_the_others(order, monkeypatch, code, ends):
    monkeypatch.setattr(job, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(job.Share, "do_all", fails(code))
    assert rank_main(order.as_json()) == 1
    assert isinstance(failure_of(order), JobError) == ends


@pytest.mark.parametrize(("code", "ends"), [(errno.EIO, False), (errno.EACCES, True)])
def test_who_watches_looks_again_where_files_are_away(order, monkeypatch, code, ends):
    class Held:
        def renew(self):
            pass

    watch = starting._Watch(order, lambda header, before: None, Held())
    monkeypatch.setattr(starting, "failure_of", fails(code))
    if ends:
        with pytest.raises(StorageError, match="Permission denied"):
            watch()
    else:
        watch()
    watch._looked = -1e9
    monkeypatch.setattr(starting, "failure_of", lambda order: JobError("no member is left."))
    with pytest.raises(JobError, match="no member is left"):
        watch()
