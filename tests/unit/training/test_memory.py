"""Freed memory stays with the process: counted in page faults, not in time."""

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from hydragnn_hpo.training.memory import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
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


@pytest.mark.slow
def test_arrays_of_megabytes_are_used_again():
    def faults(kept):
        code = CODE.format(kept=kept)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults(True) < 100  # one array alone has 977 pages
    assert faults(False) > 10 * faults(True) + 1000
