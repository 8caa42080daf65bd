"""How much memory there is and is taken; freed memory stays: in page faults, not in time."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.host_info import free_bytes
from hydragnn_hpo.training import memory
from hydragnn_hpo.training.memory import (
    is_out_of_memory,
    limit_bytes,
    measure_peak_bytes,
)

CODE = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages of one size
import torch
{start}
torch.set_num_threads(1)
a = torch.ones(1_000_000)
def work():
    for _ in range(20):
        b = a * 2.0
        c = b + 1.0
        del b, c
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

SMALL_ORGANICS = Path(__file__).parents[3] / "workflows/small_organics.zip"
STARTS = {
    "asked": "from hydragnn_hpo.training.memory import *; assert keep_freed_memory()",
    "ensemble": f"from hydragnn_hpo import Ensemble; Ensemble.load({str(SMALL_ORGANICS)!r})",
}
"""Code after which freed memory is kept."""


@pytest.mark.stress
@pytest.mark.parametrize("start", STARTS)
def test_arrays_of_megabytes_are_used_again(start):
    """Without it 384,000 faults came in about half of the runs, whatever decides that in glibc."""

    def faults():
        code = CODE.format(start=STARTS[start])
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    # One array alone has 977 pages; kernels that move pages about add faults of their own.
    assert max(faults() for _ in range(3)) < 38_400


def tree(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


HOST = {"proc/meminfo": "MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable:     500 kB\n"}
UNLIMITED = str(2**63 - 4096)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 500 * 1024),
        (  # version 2: 300000 - 100000 and a cache of 5000, inside of a wider group
            {
                "proc/self/cgroup": "0::/slurm/job_1\n",
                "sys/fs/cgroup/slurm/job_1/memory.max": "300000\n",
                "sys/fs/cgroup/slurm/job_1/memory.current": "100000\n",
                "sys/fs/cgroup/slurm/job_1/memory.stat": "anon 9\ninactive_file 5000\n",
                "sys/fs/cgroup/slurm/memory.max": "max\n",
            },
            205_000,
        ),
        (  # the group around it is the fuller one
            {
                "proc/self/cgroup": "0::/slurm/job_1\n",
                "sys/fs/cgroup/slurm/memory.max": "400000\n",
                "sys/fs/cgroup/slurm/memory.current": "399000\n",
                "sys/fs/cgroup/slurm/memory.stat": "inactive_file 0\n",
            },
            1000,
        ),
        (  # version 1, seen from a container: its own group is the root
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "90000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "80000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
            },
            10_200,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "80000\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
            },
            500 * 1024,
        ),
    ],
    ids=["none", "v2", "around", "v1", "unlimited"],
)
def test_what_host_and_control_group_leave_free(tmp_path, files, expected):
    assert free_bytes(tree(tmp_path, HOST | files)) == expected


CPU = torch.device("cpu")


def test_ranks_of_a_host_share_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 8000)
    monkeypatch.setattr(memory, "_own_limits", lambda: iter(()))
    assert limit_bytes(CPU, 50, {}) == 8050
    assert limit_bytes(CPU, 50, {"LOCAL_WORLD_SIZE": "4"}) == 2050
    given = {"LOCAL_WORLD_SIZE": "4", "HYDRAGNN_HPO_MEMORY_MB": "3"}
    assert limit_bytes(CPU, 50, given) == 3 * 2**20


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3"])
def test_a_limit_is_a_number(text):
    with pytest.raises(ConfigError, match="set it to a number of MiB, 1 or more"):
        limit_bytes(CPU, 0, {"HYDRAGNN_HPO_MEMORY_MB": text})


def test_a_limit_of_the_process_counts(monkeypatch):
    size = 1_000_000_000  # threads that come and go would change it
    monkeypatch.setattr(memory, "_status", lambda key: size)
    soft = {resource.RLIMIT_AS: size + 70_000_000, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft[which], soft[which]))
    monkeypatch.setattr(memory, "free_bytes", lambda: 80_000_000)
    assert limit_bytes(CPU, 0, {}) == 70_000_000


def test_what_some_work_takes_is_measured():
    def work():
        one = torch.ones(20_000_000)  # 80 MB
        two = one + 1.0
        del one, two
        torch.ones(1_000)

    large = torch.ones(80_000_000)  # 320 MB: what was taken before does not count
    del large
    peak = memory.peak_bytes(CPU)
    assert measure_peak_bytes(work, CPU) == pytest.approx(160e6, rel=0.1)
    assert memory.peak_bytes(CPU) >= 160e6
    assert peak > 320e6


def test_only_lack_of_memory_is_that():
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 60)
    assert is_out_of_memory(full.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`")
    )
    assert is_out_of_memory(RuntimeError("HIP error: out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2"))
    assert not is_out_of_memory(ValueError(memory.CPU_IS_FULL))
