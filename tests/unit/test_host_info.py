"""Facts about this host, from made-up files and from real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import until

from hydragnn_hpo.host_info import (
    count_memory_kills,
    create_private,
    host_memory_mb,
    is_running,
    parent_of,
    private_folder,
    processes_of_group,
    read_memory,
    start_ticks,
)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max\n", 16384), (str(2 << 30), 2048), (str(1 << 60), 16384), (None, 16384)],
)
def test_a_host_has_its_memory_or_what_its_container_may_take(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree:  1 kB\n")
    if limit:
        (tmp_path / "max").write_text(limit)

    assert host_memory_mb(tmp_path / "meminfo", tmp_path / "max") == expected
    assert host_memory_mb(tmp_path / "none", tmp_path / "max") == 0


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
    assert is_running(strange.pid)
    assert list(processes_of_group(strange.pid)) == [strange.pid]
    since_boot = start_ticks(strange.pid) / os.sysconf("SC_CLK_TCK")
    assert since_boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60.0)


def test_a_zombie_does_not_run():
    process = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: not is_running(process.pid), "its end")
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
        ("0::/not_here", "proc/meminfo", "", 0),
    ],
)
def test_processes_killed_for_memory_are_counted(tmp_path, group, file, text, count):
    for name, content in (("proc/self/cgroup", group), (file, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert count_memory_kills(tmp_path) == count
