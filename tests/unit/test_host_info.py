"""Facts about this host, from made-up files and from real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_alive, until

from hydragnn_hpo.host_info import (
    count_memory_kills,
    create_private,
    host_memory_mb,
    memory_groups,
    parent_of,
    private_folder,
    processes_of_group,
    read_memory,
    start_ticks,
)


def write_tree(root, **files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


V1, V2 = "sys/fs/cgroup/memory/", "sys/fs/cgroup/"


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("", {}, 16384),
        ("0::/\n", {V2 + "memory.max": "max\n"}, 16384),
        ("0::/\n", {V2 + "memory.max": f"{2 << 30}\n"}, 2048),  # of a container, seen from inside
        ("0::/not/here\n", {V2 + "memory.max": f"{2 << 30}\n"}, 2048),
        ("0::/\n", {V2 + "memory.max": f"{1 << 60}\n"}, 16384),
        # Slurm: a limit of the job, one of the step, none of the task
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            {
                V2 + "system.slice/slurmstepd.scope/job_7/memory.max": f"{500 << 20}\n",
                V2 + "system.slice/slurmstepd.scope/job_7/step_0/memory.max": f"{600 << 20}\n",
                V2 + "system.slice/slurmstepd.scope/job_7/step_0/user/task_0/memory.max": "max\n",
                V2 + "system.slice/slurmstepd.scope/job_8/memory.max": "1\n",
            },
            500,
        ),
        (
            "9:cpuset:/a\n4:memory:/slurm/uid_0/job_7/step_0/task_0\n0::/\n",
            {
                V1 + "memory.limit_in_bytes": "9223372036854771712\n",
                V1 + "slurm/uid_0/job_7/memory.limit_in_bytes": f"{500 << 20}\n",
                V1 + "slurm/uid_0/job_7/step_0/memory.limit_in_bytes": f"{400 << 20}\n",
            },
            400,
        ),
        ("4:cpu,memory:/b\n", {V1 + "b/memory.limit_in_bytes": f"{300 << 20}\n"}, 300),
        ("nonsense\n", {V2 + "memory.max": "5\n"}, 16384),
    ],
    ids=["none", "max", "container", "path", "more", "job-v2", "job-v1", "joint", "nonsense"],
)
def test_a_process_may_use_what_the_groups_around_it_allow(tmp_path, group, limits, expected):
    meminfo = "MemTotal:       16777216 kB\nMemFree:  1 kB\n"
    write_tree(tmp_path, **{"proc/meminfo": meminfo, "proc/self/cgroup": group}, **limits)
    assert host_memory_mb(tmp_path) == expected
    assert host_memory_mb(tmp_path, installed=True) == 16384


def test_memory_of_an_unknown_host_is_unknown(tmp_path):
    assert host_memory_mb(tmp_path) == 0


def test_lines_of_meminfo_are_bytes(tmp_path):
    (tmp_path / "meminfo").write_text("MemAvailable:  3 kB\nHugePages_Total:  7\nwhat\n")
    assert read_memory(tmp_path / "meminfo") == {"MemAvailable": 3072}
    assert read_memory(tmp_path / "none") == {}


@pytest.fixture
def strange(tmp_path):
    """Start a process of a group of its own, whose name looks like fields of its stat file."""
    program = tmp_path / "a) R 1 1 ("
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_whatever_its_name_is(strange):
    stat = Path(f"/proc/{strange.pid}/stat")
    until(lambda: b"R 1 1" in stat.read_bytes(), "its name")
    assert parent_of(strange.pid) == os.getpid()
    assert list(processes_of_group(strange.pid)) == [strange.pid]
    since_boot = start_ticks(strange.pid) / os.sysconf("SC_CLK_TCK")
    assert since_boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60.0)


def test_a_zombie_does_not_run():
    process = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: not is_alive(process.pid), "its end")
    assert start_ticks(process.pid) is not None
    process.wait()
    assert (start_ticks(process.pid), parent_of(process.pid)) == (None, 0)


def test_a_private_folder_is_ours_alone(tmp_path):
    folder = private_folder(tmp_path / "new")
    assert folder == tmp_path / "new" / f"hydragnn-hpo-{os.getuid()}"
    assert create_private(folder)
    assert create_private(folder)
    folder.chmod(0o755)
    assert not create_private(folder)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert not create_private(folder)
    folder.unlink()
    folder.touch()
    assert not create_private(folder)


@pytest.mark.parametrize(
    ("group", "file", "text", "count"),
    [
        ("4:memory:/a", "sys/fs/cgroup/memory/a/memory.oom_control", "under_oom 0\noom_kill 3", 3),
        ("0::/a", "sys/fs/cgroup/a/memory.events", "oom 9\noom_kill 4\noom_group_kill 1", 4),
        ("0::/not_here", "proc/vmstat", "pgfault 3\noom_kill 5\n", 5),
        ("0::/not_here", "sys/fs/cgroup/memory.events", "oom 1\noom_kill 6\n", 6),
        ("4:memory:/x/y", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 7\n", 7),
        ("0::/not_here", "proc/meminfo", "", 0),
    ],
)
def test_processes_killed_for_memory_are_counted(tmp_path, group, file, text, count):
    for name, content in (("proc/self/cgroup", group), (file, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert count_memory_kills(tmp_path) == count


PROBE = """\
import json, subprocess, sys
from pathlib import Path
from hydragnn_hpo.host_info import count_memory_kills, free_bytes, host_memory_mb
Path(sys.argv[1], "cgroup.procs").write_text("0")
before = count_memory_kills()
hog = [sys.executable, "-c", "b = bytearray(1 << 30); b[::4096] = bytes([1]) * (1 << 18)"]
code = subprocess.run(hog).returncode
print(json.dumps([host_memory_mb(), free_bytes() >> 20, code, count_memory_kills() - before]))
"""


@pytest.fixture
def limited_group():
    """Make a group with 200 MiB inside of this process's own, and one in it without a limit."""
    own = [group for group in memory_groups() if group.limit_file == "memory.limit_in_bytes"]
    if not own or not os.access(own[0].folder, os.W_OK):
        pytest.skip("no control group of version 1 can be made here")
    outer = own[0].folder / f"hpo-test-{os.getpid()}"
    inner = outer / "step"
    inner.mkdir(parents=True)
    (outer / "memory.limit_in_bytes").write_text(str(200 << 20))
    yield inner
    until(lambda: not (inner / "cgroup.procs").read_text(), "its end")
    inner.rmdir()
    outer.rmdir()


def test_the_kernel_limits_and_kills_as_we_read_it(limited_group):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, limited_group], capture_output=True, check=True
    )
    limit, free, code, kills = json.loads(done.stdout)
    assert (limit, code, kills) == (200, -signal.SIGKILL, 1)
    assert 0 < free < 200
