"""Batch scripts: what is in them, and that nothing from outside reaches a shell."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import until

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.batch_jobs import BatchJob, JobRecords
from hydragnn_hpo.launching.batch_script import render_batch_script

GOLDEN = Path(__file__).parent / "golden"
BODY = "# Python and the package of whoever submitted"
"""From here on scripts of all machines are alike."""

REQUESTS = {
    "one": {},
    "two": {"hosts": 2, "queue": "debug", "seconds": 5400},
    "many": {"hosts": 64, "allocations": 3},
}
MACHINES = ("frontier", "lumi", "perlmutter", "aurora", "generic-slurm", "generic-pbs")

HOSTILE = (
    "plain",
    "two words",
    'it\'s "quoted"',
    "$(touch pwned)`touch pwned`${HOME}",
    "a\ntouch pwned\n#SBATCH --uid=0",
    "; touch pwned & touch pwned |",
    "*?[a-z]~!\\",
    "{{run}} {{options}}",
    "-rf",
    "",
)


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (m, n)
        for m in MACHINES
        for n in REQUESTS
        if n != "many" or m not in ("aurora", "generic-pbs")
    ],
)
def test_the_head_of_a_script_is_what_the_site_asks_for(batch_request, content, machine, name):
    """The heads were read line by line beside the sources that the profiles name."""
    made = render_batch_script(batch_request(**REQUESTS[name]), find_profile(machine), content())
    head, tail = made.split(BODY)
    assert head == (GOLDEN / f"{machine}-{name}.sh").read_text()
    assert tail == (GOLDEN / "body.sh").read_text().partition(BODY)[2]


@pytest.mark.parametrize("line", ["-p x\n#SBATCH --uid=0", "", "-p \x07", "-p \u00e9"])
def test_a_directive_is_one_plain_line(batch_request, content, profile, line):
    made = profile()
    bad = made.model_copy(update={"batch": made.batch.model_copy(update={"directives": (line,)})})
    with pytest.raises(ConfigError, match="cannot be a directive"):
        render_batch_script(batch_request(), bad, content())


# -- the script under a real shell -----------------------------------------------------


@pytest.fixture
def shell(tmp_path):
    """Run a script under bash; ``program`` is a fake that writes down its arguments."""
    fake = tmp_path / "fake program"
    fake.write_text(
        f"#!/bin/bash\nprintf '%s\\0' $# \"$@\" >>'{tmp_path}/calls'\n"
        f"case $1 in run) . '{tmp_path}/behaviour';; batch) . '{tmp_path}/batch';; esac\n"
    )
    fake.chmod(0o755)
    (tmp_path / "behaviour").write_text("exit 0\n")
    (tmp_path / "batch").write_text("exit 0\n")

    def start(script: str) -> subprocess.Popen[bytes]:
        (tmp_path / "job.sh").write_text(script)
        return subprocess.Popen(
            ["bash", str(tmp_path / "job.sh")],
            cwd=tmp_path,
            env=os.environ | {"SLURM_JOB_ID": "4711"},
            start_new_session=True,
        )

    def calls() -> list[list[str]]:
        words = iter((tmp_path / "calls").read_bytes().decode().split("\0")[:-1])
        return [[next(words) for _ in range(int(count))] for count in words]

    start.calls = calls
    start.program = str(fake)
    start.folder = tmp_path
    return start


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
@pytest.mark.parametrize("value", HOSTILE)
def test_what_comes_from_outside_stays_a_word(
    shell, batch_request, content, profile, scheduler, value
):
    folder = shell.folder / f"x{value.replace('/', '')}"
    folder.mkdir()
    made = content(
        program=(shell.program,),
        run=value,
        script=value,
        folder=str(folder),
        command=("run", value, "--machine", value),
        environment={"CARRIED": value},
    )
    (shell.folder / "behaviour").write_text(f"printf %s \"$CARRIED\" >'{shell.folder}/carried'\n")
    script = render_batch_script(batch_request(), profile({"scheduler": scheduler}), made)

    assert shell(script).wait(timeout=60) == 0

    assert (shell.folder / "carried").read_bytes().decode() == value
    begin, run, end = shell.calls()
    assert begin == ["batch", "begin", value, "--script", value, "--jobs", "16"]
    assert run == ["run", value, "--machine", value]
    assert end == ["batch", "end", value, "--code", "0"]
    assert not list(shell.folder.rglob("pwned"))
    marks = [line for line in script.splitlines() if line.startswith(("#SBATCH", "#PBS"))]
    plain = render_batch_script(batch_request(), profile({"scheduler": scheduler}), content())
    assert marks[:3] == [m for m in plain.splitlines() if m.startswith(("#SBATCH", "#PBS"))][:3]


DRAINS = """\
trap 'echo heard >>{folder}/heard; sleep 0.3; exit 75' USR1
echo >{folder}/runs
for _ in $(seq 600); do sleep 0.1; done
"""

BEGINS_SLOWLY = """\
[ $2 = begin ] || exit 0
echo >{folder}/begins
for _ in $(seq 600); do [ -e {folder}/heard ] && exit 0; sleep 0.1; done
"""


@pytest.fixture
def job(shell, batch_request, content, profile):
    """Start a script whose ``run`` behaves as said."""

    def start(behaviour: str, batch: str = "exit 0\n", **changes: str) -> subprocess.Popen[bytes]:
        made = content(program=(shell.program,), folder=str(shell.folder), **changes)
        (shell.folder / "behaviour").write_text(behaviour.format(folder=shell.folder))
        (shell.folder / "batch").write_text(batch.format(folder=shell.folder))
        return shell(render_batch_script(batch_request(), profile(), made))

    return start


@pytest.mark.parametrize(("number", "times"), [(signal.SIGUSR1, 50), (signal.SIGTERM, 1)])
def test_signals_to_the_shell_drain_the_program_and_lose_no_exit_code(shell, job, number, times):
    process = job(DRAINS)
    until((shell.folder / "runs").exists, "run")

    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.01)

    assert process.wait(timeout=60) == 0, "what 'batch end' says"
    assert shell.calls()[-1][-2:] == ["--code", "75"]


@pytest.mark.parametrize(
    ("send", "number"), [(os.kill, signal.SIGUSR1), (os.killpg, signal.SIGTERM)]
)
def test_a_signal_before_the_program_keeps_it_from_starting(shell, job, send, number):
    """SIGTERM may go to all processes: what queues the next job must not end by it."""
    process = job("exit 0\n", batch=BEGINS_SLOWLY)
    until((shell.folder / "begins").exists, "begin")
    send(process.pid, number)
    (shell.folder / "heard").touch()
    assert process.wait(timeout=60) == 0
    assert [call[:2] for call in shell.calls()] == [["batch", "begin"], ["batch", "end"]]
    assert shell.calls()[-1][-2:] == ["--code", "75"]


@pytest.mark.parametrize(("behaviour", "code"), [("kill -KILL $$\n", "137"), ("exit 2\n", "2")])
def test_how_the_program_ended_is_reported_and_the_job_ends_as_batch_end_says(
    shell, job, behaviour, code
):
    process = job(behaviour, batch="[ $2 = begin ] || exit 7\n")
    assert process.wait(timeout=60) == 7
    assert shell.calls()[-1][-2:] == ["--code", code]


def test_a_job_that_must_not_begin_does_not(shell, job):
    assert job("exit 0\n", batch="exit 1\n").wait(timeout=60) == 1
    assert [call[:2] for call in shell.calls()] == [["batch", "begin"]]


@pytest.mark.parametrize(
    ("batch", "environment", "code", "name"),
    [
        ({"modules": ("nothere",)}, {}, 127, "4711"),
        ({}, {"SLURM_ARRAY_JOB_ID": "47", "SLURM_ARRAY_TASK_ID": "2"}, 127, "47_2"),
    ],
)
def test_what_ends_before_run_begins_is_on_record(
    shell, batch_request, content, profile, monkeypatch, batch, environment, code, name
):
    """An unknown module; a Python that is not there."""
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    records = JobRecords(shell.folder)
    records.folder.mkdir()
    program = shell.program if batch else "/no/python"
    made = content(program=(program,), run=str(shell.folder), folder=str(shell.folder))
    script = render_batch_script(batch_request(), profile(batch), made)
    assert shell(script).wait(timeout=60) == code
    records.add(BatchJob(name, "slurm", "001.sh", hosts=1, link=1, jobs=1, submitted=1.0))
    (result,) = records.jobs()
    assert result.code == code
    assert result.message == f"failed before 'run' began, with exit code {code}"


def test_what_batch_begin_recorded_stays(shell, job):
    (shell.folder / "jobs").mkdir()
    begin = "[ $2 = begin ] || exit 0\necho mine >{folder}/jobs/4711.ended.json\nexit 1\n"
    assert job("exit 0\n", batch=begin, run=str(shell.folder)).wait(timeout=60) == 1
    assert (shell.folder / "jobs" / "4711.ended.json").read_text() == "mine\n"


def test_pbs_jobs_know_their_end_and_number(shell, batch_request, content, profile):
    """PBS sends no signal: 7200 s from now, and 300 s before it, are said instead."""
    made = content(program=(shell.program,), folder=str(shell.folder))
    names = "$HYDRAGNN_HPO_END $HYDRAGNN_HPO_END_MARGIN $HYDRAGNN_HPO_BATCH_JOB"
    wrote = f"echo {names} >'{shell.folder}/end'\n"
    (shell.folder / "behaviour").write_text(wrote)
    pbs = profile({"scheduler": "pbs", "drain_seconds": 300})
    began = time.time()
    assert shell(render_batch_script(batch_request(seconds=7200), pbs, made)).wait(timeout=60) == 0
    end, margin, number = map(int, (shell.folder / "end").read_text().split())
    assert began + 7190 <= end <= time.time() + 7210, "clocks are set now and then"
    assert (margin, number) == (300, 4711)


@pytest.mark.parametrize(
    ("batch", "lines"),
    [
        ({}, ["#SBATCH --mem=0"]),
        ({"memory": "240G"}, ["#SBATCH --mem=240G"]),
        ({"memory": ""}, []),
        ({"directives": ("--mem-per-gpu=60G",)}, ["#SBATCH --mem-per-gpu=60G"]),
        ({"directives": ("--mem 100G",)}, ["#SBATCH --mem 100G"]),
        ({"directives": ("--mem-bind=local",)}, ["#SBATCH --mem=0", "#SBATCH --mem-bind=local"]),
        ({"scheduler": "pbs"}, []),
    ],
)
def test_whole_hosts_come_with_their_whole_memory(batch_request, content, profile, batch, lines):
    """Slurm gives a job that asks for no memory the site's default, of whole hosts too."""
    made = render_batch_script(batch_request(), profile(batch), content())
    assert [line for line in made.splitlines() if "--mem" in line] == lines


@pytest.mark.parametrize("memory", ["all", "-1", "1.5G", "0 --uid=0", "1G\n"])
def test_an_amount_of_memory_is_one(profile, memory):
    with pytest.raises(ConfigError, match="is no amount of memory: write 0 for all of it"):
        profile({"memory": memory})
