"""Names that nobody means well with: each stays one argument, and none reaches a shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn_hpo.config.machine import RankConfig, SiteConfig, StepConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.fleet.transport import agent_argv
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launchers.launcher import wrapped
from hydragnn_hpo.launching.launchers.mpiexec import Mpiexec
from hydragnn_hpo.launching.launchers.steps import HostSize, Steps
from hydragnn_hpo.launching.slurm.slurm_transport import step_argv

HOSTILE = [
    "a b",
    "$(touch stolen)",
    "`touch stolen`",
    "'; touch stolen; '",
    '"&',
    "line\nbreak",
    "*",
]
RECORDER = """#!{python}
import json, os, subprocess, sys
open({record!r}, "w").write(json.dumps(sys.argv[1:]))
first = [n for n, word in enumerate(sys.argv) if n and word == "sh"]
if first:
    subprocess.run(sys.argv[first[0]:], check=True)
"""
SEEN = "import json, sys; open(sys.argv[1], 'w').write(json.dumps(sys.argv[2:]))"


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


def job_on(name: str, *slots: Slot) -> Job:
    folder = Path("/run") / name
    return Job(name, "train", len(slots), {}, folder / "log", folder / "lease", None, slots)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_step_of_agents_passes_on_what_it_was_given(run, name):
    argv = step_argv("77", ("n1",), [*agent_argv(name), name])

    assert run(argv) == argv[1:]
    assert argv[-1] == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_step_for_a_trial_passes_on_what_it_was_given(run, tmp_path, name):
    seen = tmp_path / "seen"
    site = SiteConfig(
        rank=RankConfig(wrapper="launch/rank/rocm.sh"), step=StepConfig(trials=("-c7",))
    )
    program = wrapped((sys.executable, "-c", SEEN, str(seen), name), site)
    job = job_on(name, Slot("n1", 0, (), "cuda:0"))
    launch = Steps(("n1",), HostSize(8, 8), site=site).render(job, program, Path("/run") / name)

    assert run(launch.argv, launch.environment) == list(launch.argv[1:])
    assert f"--job-name={name}" in launch.argv
    assert launch.environment["SLURM_HOSTFILE"] == f"/run/{name}"
    assert json.loads(seen.read_text()) == [name], "through the wrapper, too"


@pytest.mark.parametrize("name", HOSTILE)
def test_mpiexec_passes_on_what_it_was_given(run, name):
    launch = Mpiexec(slots=1, environment={}, program="mpiexec").render(
        job_on(name, Slot("local", 0, (), "cpu")), ("program", name), Path("/run")
    )

    assert run(launch.argv) == ["-n", "1", "program", name]


def test_a_wrapper_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"rank.wrapper: /no/such.sh is no file"):
        wrapped(("x",), SiteConfig(rank=RankConfig(wrapper="/no/such.sh")))


def test_a_wrapper_of_ones_own_is_named_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "-my wrapper.sh").write_text('exec "$@"\n')
    monkeypatch.chdir(tmp_path)
    argv = wrapped(("echo", "$HOME"), SiteConfig(rank=RankConfig(wrapper="-my wrapper.sh")))

    assert argv == ("sh", str(tmp_path / "-my wrapper.sh"), "echo", "$HOME")
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "$HOME\n"
