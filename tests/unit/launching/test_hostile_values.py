"""Names that nobody means well with: each stays one argument, and none reaches a shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.config.machine import RankConfig, SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.command_rank import (
    LaunchSpec,
    mpiexec_command,
    rank_wrapper,
    srun_command,
)
from hydragnn_hpo.launching.launched_rank import LaunchOrder
from hydragnn_hpo.launching.slurm_allocation import step_argv
from hydragnn_hpo.launching.transports.transport import agent_argv

HOSTILE = ["a b", "$(touch stolen)", "`touch stolen`", "'; touch stolen; '", '"&', "a\nb", "*"]
RECORDER = """#!{python}
import json, os, subprocess, sys
open({record!r}, "w").write(json.dumps(sys.argv[1:]))
first = [n for n, word in enumerate(sys.argv) if n and word == "sh"]
if first:
    subprocess.run(sys.argv[first[0]:], check=True)
"""


@pytest.fixture
def run(tmp_path):
    """Run an argv with a launcher that writes down its arguments; gives these."""
    record = tmp_path / "arguments"
    for name in ("srun", "mpiexec"):
        (tmp_path / name).write_text(RECORDER.format(python=sys.executable, record=str(record)))
        (tmp_path / name).chmod(0o700)
    here = tmp_path / "here"
    here.mkdir()

    def started(argv, environment=None):
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(
            argv, env=os.environ | path | (environment or {}), check=True, cwd=here, timeout=60
        )
        assert list(here.iterdir()) == [], "a value was run"
        return json.loads(record.read_text())

    return started


@pytest.mark.parametrize("command", [srun_command, mpiexec_command])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_launcher_passes_on_what_it_was_given(run, tmp_path, name, command):
    folder = tmp_path / name
    folder.mkdir()
    launch = LaunchSpec(("n1",), (), LaunchOrder(name, (), 10.0, None, ()))
    (program, *options), environment = command(launch, folder, {})

    argv = [*options, "program", name, str(folder)]
    assert run([Path(program).name, *argv], environment) == argv
    assert (folder / "launch.hosts").read_text() == "n1\n"
    step = step_argv("77", ("n1",), [*agent_argv(name), name])
    assert run(step) == step[1:]
    assert step[-1] == name


def test_a_wrapper_that_is_not_there_is_reported():
    with pytest.raises(ConfigError, match=r"rank.wrapper: /no/such.sh is no file"):
        rank_wrapper(SiteConfig(rank=RankConfig(wrapper="/no/such.sh")))


def test_a_wrapper_of_ones_own_is_named_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "-my wrapper.sh").write_text('exec "$@"\n')
    monkeypatch.chdir(tmp_path)
    argv = (*rank_wrapper(SiteConfig(rank=RankConfig(wrapper="-my wrapper.sh"))), "echo", "$HOME")

    assert argv == ("sh", str(tmp_path / "-my wrapper.sh"), "echo", "$HOME")
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "$HOME\n"
