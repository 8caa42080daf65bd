"""Memory that runs out does not end a trial: it goes on in smaller pieces, to the same weights."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import write
from safetensors.numpy import load_file

from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.config.trial_config import HALVED, PEER_LOST
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.metrics_log import read_records

pytestmark = pytest.mark.slow

SMALL = {"features": 8, "layers": 2, "conv": "schnet", "cutoff": 3.0, "basis_size": 6}
LARGE = {"features": 64, "layers": 4, "conv": "painn", "cutoff": 3.0}
LIMIT = 110
"""MiB that the trial may map beside what is there; its whole step takes about twice as much."""


def clusters(count, seed=4):
    """Make pieces of a rattled cubic lattice, of 8 to 27 atoms."""
    random = np.random.default_rng(seed)
    made = []
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3) * 1.5
    for _ in range(count):
        size = int(random.integers(8, 28))
        places = grid[random.permutation(27)[:size]] + random.normal(scale=0.05, size=(size, 3))
        atoms = Atoms(random.choice([1, 6, 8], size), positions=places)
        atoms.info["energy_like"] = float(random.normal())
        atoms.arrays["charge_like"] = random.normal(size=size)
        atoms.arrays["force_like"] = random.normal(size=(size, 3))
        made.append(atoms)
    return made


def weights_of(trial):
    return load_file(trial / "checkpoints" / "last.safetensors")


def farthest(one, other):
    """Return the largest difference of two trials' weights."""
    one, other = (
        {n: v for n, v in weights_of(trial).items() if n.startswith("model/")}
        for trial in (one, other)
    )
    assert one
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max(initial=0.0)) for name in one)


def result_of(trial, attempt=1):
    return json.loads((trial / "attempts" / f"{attempt:03d}" / "result.json").read_text())


def memory_of(trial, attempt=1):
    records = read_records(trial / "attempts" / f"{attempt:03d}" / "metrics.jsonl")
    return [r for r in records if r["record"] == "memory"]


REDONE = ("backward-first", "forward-last")
"""Where memory runs out while nothing of the step has been sent."""

REAL = ("free:1:none:0", f"tight:1:limit:{LIMIT}")
"""Trials on one rank; to the second the system refuses memory: nothing there is pretended."""

CASES = (
    "whole:2:none:0",
    *(f"{phase}:2:{phase}:0" for phase in REDONE),
    "copied:2:backward-last:0",
    "sharded:2:backward-first:0",
    "fitted-copied:2:fit:8",
    "fitted-sharded:2:fit:8",
)
"""Trials on two ranks, and what happens to the second one."""

AGAIN = ("copied:2:none:0", "sharded:2:none:0")
"""Second attempts."""


def build_large_store(folder):
    """Build a store of clusters; return its path."""
    write(folder / "large.extxyz", clusters(100), format="extxyz")
    card = {
        "name": "large",
        "files": [{"path": "large.extxyz"}],
        "targets": {
            "energy_like": {"level": "graph", "unit": "eV"},
            "charge_like": {"level": "node", "unit": "e"},
        },
        "graphs": {"cutoff": 4.0},
        "split": {"group": "structure"},
    }
    (folder / "large.toml").write_text(to_toml(card))
    build_store(folder / "large.toml", folder / "large.bp")
    return folder / "large.bp"


def write_trial(folder, name, **values):
    (folder / name).mkdir()
    heads = {"heads": {"energy_like": {}, "charge_like": {}}}
    (folder / name / "trial.toml").write_text(to_toml(heads | values))


@pytest.fixture(scope="module")
def trials(tiny_store, tmp_path_factory):
    """Run all cases in one go; gives folder, exit codes by trial, and what was logged."""
    folder = tmp_path_factory.mktemp("crowded")
    large = build_large_store(folder)
    for case in REAL:
        write_trial(
            folder, case.split(":")[0], data={"store": str(large)}, model=LARGE,
            training={"precision": "fp64", "global_batch": 60, "epochs": 2, "micro_batches": 1},
        )  # fmt: skip
    for case in CASES:
        name = case.split(":")[0]
        small = {"precision": "fp64", "global_batch": 12, "epochs": 2, "checkpoint_seconds": 0.0}
        fitted = name.startswith("fitted")
        write_trial(
            folder, name, data={"store": str(tiny_store)},
            model=SMALL | ({"features": 48, "layers": 3} if fitted else {}),
            training=small | ({} if fitted else {"micro_batches": 2}),
            parallel={"shard": "full" if name.endswith("sharded") else "none"},
        )  # fmt: skip
    command = [sys.executable, Path(__file__).parent / "crowded_ranks.py", folder]
    done = subprocess.run(
        [*command, *REAL, *CASES, *AGAIN], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def test_a_trial_outlives_a_real_lack_of_memory(trials):
    folder, codes, log = trials
    assert [codes[case] for case in REAL] == [[0], [0]], log
    free, tight = (result_of(folder / name) for name in ("free", "tight"))
    assert free["status"] == tight["status"] == "completed"
    assert free["micro_batches"] == 1
    assert tight["micro_batches"] > 1
    assert tight["peak_bytes"] < free["peak_bytes"]
    assert len(memory_of(folder / "tight")) > 1
    assert 0 < farthest(folder / "free", folder / "tight") < 1e-12


@pytest.mark.parametrize("phase", REDONE)
def test_what_has_not_been_sent_is_taken_again(trials, phase):
    folder, codes, log = trials
    assert codes["whole:2:none:0"] == codes[f"{phase}:2:{phase}:0"] == [0, 0], log
    assert result_of(folder / "whole")["micro_batches"] == 2
    assert result_of(folder / phase)["micro_batches"] == 4, "of rank 1"
    assert 0 < farthest(folder / "whole", folder / phase) < 1e-12


@pytest.mark.parametrize("name", ["copied", "sharded"])
def test_what_has_been_sent_is_taken_again_from_a_checkpoint(trials, name):
    folder, codes, log = trials
    trial = folder / name
    (first,) = (case for case in CASES if case.startswith(f"{name}:"))
    assert codes[first] == [PEER_LOST, HALVED], log
    kept = json.loads((trial / "checkpoints" / "micro.json").read_text())
    assert kept == {"pieces": 4, "shares": 2}
    assert not (trial / "attempts" / "001" / "result.json").exists()
    assert codes[f"{name}:2:none:0"] == [0, 0], log
    one = result_of(folder / "whole")
    other = result_of(trial, 2)
    assert other["micro_batches"] == 4
    assert other["objective"] == pytest.approx(one["objective"], rel=1e-11)


def test_ranks_agree_on_what_fits(trials):
    folder, codes, log = trials
    results = []
    for name in ("fitted-copied", "fitted-sharded"):
        assert codes[f"{name}:2:fit:8"] == [0, 0], log
        [memory] = memory_of(folder / name)
        assert memory["limit_bytes"] == 8 * 2**20
        assert memory["probed_bytes"] > 0
        results.append(result_of(folder / name))
        assert results[-1]["micro_batches"] == memory["pieces"] > 1
    assert results[0]["objective"] == pytest.approx(results[1]["objective"], rel=1e-11)
