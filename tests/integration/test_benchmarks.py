"""Every benchmark still starts: its ``--smoke`` calls what it measures, as small as it can be.

Scripts are found in the folder: whatever has a ``main`` and keeps figures with ``record`` has it.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = [
    path
    for path in sorted(BENCHMARKS.glob("*.py"))
    if {"main", "record"} <= set(re.findall(r"^(?:def|from|import) (\w+)", path.read_text(), re.M))
]


def results() -> dict[str, tuple[int, bytes]]:
    """Return what is recorded, and when it was written."""
    files = (BENCHMARKS / "results").iterdir()
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_whatever_has_recorded_results_is_found():
    recorded = {Path(name).stem for name in results() if name.endswith(".json")}
    assert recorded
    assert recorded <= {path.stem for path in SCRIPTS}


def test_the_bytes_that_a_loop_must_move_are_those_counted_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import models
    from kernel_cases import WIDTH, inputs_of, random_links

    from hydragnn_hpo.kernels import numba_passes
    from hydragnn_hpo.model import messages

    (links, pairs) = random_links(1, paired=True)
    moved = []
    values, filters = inputs_of("filtered", links, pairs, torch.float32)
    run_loop = numba_passes.run_loop

    def noted(name, *arrays):
        moved.append(models.bytes_of(arrays))
        run_loop(name, *arrays)

    monkeypatch.setattr(numba_passes, "run_loop", noted)
    messages.filtered_sum(values, filters, replace(links, kernels="numba"))
    nodes = links.num_nodes
    edges = 2 * pairs
    numbers, indices = 2 * nodes * WIDTH + pairs * WIDTH, 2 * edges + nodes + 1
    assert moved == [4 * numbers + 8 * indices]


@pytest.mark.stress
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_starts_and_records_nothing(script, tmp_path):
    before = results()
    command = [sys.executable, str(script), "--smoke"]
    threads = {"OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | threads, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures
    assert all(math.isfinite(value) for value in figures.values()), figures
    assert results() == before
    if figures == {"skipped": 1}:
        pytest.skip(done.stderr.splitlines()[-1])
