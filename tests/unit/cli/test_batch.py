"""What a batch script says before and after ``run``, while its file server is away."""

import errno
import os

import pytest
from typer.testing import CliRunner

from hydragnn_hpo.cli import batch_command
from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import storage


@pytest.fixture
def away(tmp_path, monkeypatch):
    """Make a step fail some times with an error of the system, and count how often it is taken."""

    def begin(step, failures, code):
        taken = []

        def fail(*_):
            taken.append(True)
            if code is None:
                raise RunError("events.jsonl: line 3 is damaged.")
            if len(taken) <= failures:
                with storage(tmp_path):
                    raise OSError(code, os.strerror(code))

        monkeypatch.setattr(batch_command, "PAUSES", (0.0, 0.0))
        monkeypatch.setattr(batch_command, f"_{step}", fail)
        option = ("--script", "1.sh") if step == "begin" else ("--code", "75")
        done = CliRunner().invoke(app, ["batch", step, str(tmp_path), *option])
        return done, len(taken)

    return begin


@pytest.mark.parametrize("step", ["begin", "end"])
def test_a_chain_does_not_end_for_a_file_server_that_is_away_for_a_moment(away, step):
    done, taken = away(step, 2, errno.ESTALE)
    assert (done.exit_code, taken) == (0, 3)
    assert "Stale file handle" in done.output


@pytest.mark.parametrize(("code", "times"), [(errno.EIO, 3), (errno.ENOSPC, 1), (None, 1)])
def test_what_does_not_pass_is_reported(away, code, times):
    done, taken = away("begin", 9, code)
    assert (done.exit_code != 0, taken) == (True, times)
    assert ("line 3" if code is None else os.strerror(code)) in str(done.exception)
