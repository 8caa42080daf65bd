"""A rank that cannot open its log."""

import errno
import os

import pytest

from hydragnn_hpo import config
from hydragnn_hpo.config import FILES_AWAY
from hydragnn_hpo.launching import rank


def test_a_rank_whose_log_is_away_says_so_and_ends_after_a_while(monkeypatch, capsys):
    """To stderr of its agent: the log itself is what is missing."""
    pauses = []
    monkeypatch.setattr(rank.time, "sleep", pauses.append)
    with pytest.raises(SystemExit) as leaving:
        rank._leave_slot("run/log", OSError(errno.EIO, os.strerror(errno.EIO)))
    assert leaving.value.code == FILES_AWAY
    assert capsys.readouterr().err == "run/log: cannot be opened (Input/output error).\n"
    assert pauses == [config.FILES_AWAY_SECONDS]
