"""All parts of the suite for GPUs run dry on a CPU, with no more packages than its README says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "gpu" / "run.py"
ABSENT = ("adios2", "deephyper", "matplotlib", "mpi4py", "msgspec", "optuna", "ray", "rich", "zmq")
"""Packages that neither the GPU machine nor the wheels carried to it have."""


def run_part(part, tmp_path, *more, code=""):
    """Run a part in a Python without these packages, which executes ``code`` when it starts."""
    tmp_path.mkdir(exist_ok=True)
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in ABSENT), code]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join((str(tmp_path), str(RUN.parents[2])))
    return subprocess.run(
        [sys.executable, str(RUN), part, "--out", str(tmp_path / "out"), *more],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip


def checks_of(part, tmp_path):
    return json.loads((tmp_path / "out" / "cpu.json").read_text())["parts"][part]["checks"]


@pytest.mark.stress
@pytest.mark.timeout(1500)
def test_all_parts_run_dry_and_leave_one_file_with_every_check(tmp_path):
    done = run_part("all", tmp_path, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"cpu.json", "cpu.md"}
    result = json.loads((tmp_path / "out" / "cpu.json").read_text())
    assert (result["card"], result["dry_run"]) == ("cpu", True)
    for part in ("correctness", "training", "ensembles", "lanes", "speed"):
        checks = checks_of(part, tmp_path)
        assert len(checks) > 5
        assert {each["ended"] for each in checks.values()} == {"passed"}
    single = run_part("training", tmp_path / "single", "--dry-run", "--seconds", "0")
    assert single.returncode == 0, single.stderr
    names = list(checks_of("training", tmp_path / "single"))
    assert list(checks_of("training", tmp_path)) == names


BROKEN = """
from hydragnn_hpo.kernels import eager_passes
right = eager_passes.EAGER_FORMS["filtered"]
def wrong(arguments, links, needed):
    slopes = right(arguments, links, needed)
    return [None if each is None else 1.001 * each for each in slopes]
eager_passes.EAGER_FORMS["filtered"] = wrong
"""


@pytest.mark.stress
def test_a_wrong_kernel_is_named_and_fails_the_part(tmp_path):
    done = run_part("correctness", tmp_path, "--dry-run", "--seconds", "5", code=BROKEN)
    assert done.returncode == 1
    rows = checks_of("correctness", tmp_path)
    failed = {name for name, row in rows.items() if row["ended"] == "failed"}
    assert "kernel filtered float64" in failed
    assert "kernel directed float64" not in failed


def test_a_part_run_again_replaces_its_own_section_and_leaves_out_what_is_too_late(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    row = {"most": 1e-3, "value": 2e-4, "ended": "passed", "seconds": 3.0}
    parts = {
        name: {"torch": "2.0", "day": "2026-01-02", "checks": {f"old {name}": row}}
        for name in ("correctness", "training")
    }
    before = {"card": "cpu", "dry_run": True, "parts": parts}
    (out / "cpu.json").write_text(json.dumps(before))
    assert run_part("training", tmp_path, "--dry-run", "--seconds", "0").returncode == 0
    assert checks_of("correctness", tmp_path) == {"old correctness": row}
    checks = checks_of("training", tmp_path)
    assert "old training" not in checks
    assert {each["ended"] for each in checks.values()} == {"left out"}
    table = (out / "cpu.md").read_text()
    assert "## correctness, 2026-01-02, torch 2.0" in table
    assert "| old correctness | 0.0002 | 0.001 | 3 | passed |" in table
    assert "| training painn fp64 |  | 1e-08 |  | left out |" in table


def test_without_a_gpu_the_sentence_says_what_to_do(tmp_path):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU.")
    done = run_part("training", tmp_path)
    assert done.returncode == 2
    assert done.stderr == ("this machine has no GPU: add --dry-run to try a part on the CPU.\n")
