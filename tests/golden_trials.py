"""Small trials of everything that trains: ``python tests/golden_trials.py`` writes what they reach.

``python tests/golden_trials.py conv-gin`` writes the figures of this trial and keeps the others.

All are of double precision: what CPUs and their vector instructions round differently stays
below the tolerances of ``integration/test_golden_trials.py``.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file, save_file

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.files import read_json

GOLDENS = Path(__file__).parent / "goldens"
TRIALS = GOLDENS / "trials"
WEIGHTS = TRIALS / "weights.safetensors"
REACHED = TRIALS / "reached.json"

Values = dict[str, Any]

TRIAL: Values = {
    "trial": "golden",
    "seed": 5,
    "data": {"store": "../structures.bp"},
    "model": {"conv": "painn", "features": 8, "layers": 2, "cutoff": 4.0, "basis_size": 6},
    "heads": {"energy_like": {}, "charge_like": {}, "force_like": {}},
    "training": {
        "epochs": 4,
        "global_batch": 8,
        "learning_rate": 5e-3,
        "precision": "fp64",
        "checkpoint_seconds": 0.0,
    },
}
"""The trial whose weights are kept, one by one."""

SCALARS: Values = {"energy_like": {}, "charge_like": {}}
VARIANTS: dict[str, Values] = {
    "gps": {"model": {"attention": "gps", "encoding": "random_walk", "norm": "rms"}},
    "graph-norm": {"model": {"conv": "gat", "norm": "graph", "options": {"heads": 2}}},
    "capped": {"model": {"conv": "schnet", "max_neighbors": 3, "basis": "gaussian"}},
    "repulsion": {"model": {"conv": "schnet", "repulsion": "zbl", "norm": "none"}},
    "variance": {
        "heads": {"energy_like": {"loss": "beta_nll", "pool": "attention"}, "charge_like": {}},
        "training": {"balance": "uncertainty"},
    },
    "pools": {
        "heads": {
            "energy_like": {"pool": "contributions", "loss": "mse"},
            "charge_like": {"kind": "conv", "loss": "mae", "baseline": "mean"},
        }
    },
    "averaged": {"training": {"ema": 0.9, "schedule": "plateau", "clip_norm": 0.5}},
    "muon": {"training": {"optimizer": "muon", "schedule": "one_cycle"}},
    "sgd": {"training": {"optimizer": "sgd", "scale_rate": "sqrt", "schedule": "constant"}},
    "atoms": {"training": {"batch_atoms": 24, "global_batch": None}},
    "forces": {
        "data": {"store": "../forces.bp"},
        "heads": {"energy_like": {"pool": "contributions"}, "force_like": {}},
    },
}
"""What is not a conv: two scalar heads, two epochs of painn where nothing else is said."""


def merged(into: Values, changes: Values) -> Values:
    """Return nested values with some changed; None drops a key."""
    result = dict(into)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inner and key != "heads" else value
    return {key: value for key, value in result.items() if value is not None}


def cases() -> Iterator[tuple[str, Values]]:
    """Yield the trials of which figures are kept: each conv, each variant."""
    short = merged(TRIAL, {"training": {"epochs": 2}, "heads": SCALARS})
    for conv in CONV_SPECS:
        yield f"conv-{conv}", merged(short, {"model": {"conv": conv}})
    for name, changes in VARIANTS.items():
        yield name, merged(short, changes)


def build_stores(folder: Path) -> None:
    """Build ``structures.bp``, and ``forces.bp`` whose vectors are forces of its energies."""
    from hydragnn_hpo.cli.command_line import main as command

    card = tomllib.loads((GOLDENS / "structures.toml").read_text())
    targets = {
        "energy_like": {"energy": "total"},
        "force_like": {"derived_from": "energy_like"},
    }
    shutil.copy(GOLDENS / "structures.extxyz", folder)
    (folder / "structures.toml").write_text(to_toml(card))
    forces = merged(card, {"name": "forces", "targets": targets})
    (folder / "forces.toml").write_text(to_toml(forces))
    for name in ("structures", "forces"):
        words = ["dataset", "build", f"{folder}/{name}.toml", "--out", f"{folder}/{name}.bp"]
        with contextlib.suppress(SystemExit), mock.patch("sys.argv", ["hydragnn-hpo", *words]):
            command()
        assert (folder / f"{name}.bp" / "index.json").exists(), name


def train(folder: Path, name: str, values: Values) -> dict[str, np.ndarray[Any, Any]]:
    """Train a trial in this process and return the tensors of its best epoch.

    Args:
        folder: holds the stores.
        name: of the trial's directory.
        values: of its ``trial.toml``.
    """
    from hydragnn_hpo.layout import TrialDir
    from hydragnn_hpo.training.trial import run_by_hand

    trial = TrialDir(folder / name)
    trial.path.mkdir()
    (trial.path / "trial.toml").write_text(to_toml(values))
    code, sentence = run_by_hand(trial)
    assert code == 0, sentence
    return load_file(trial.path / "checkpoints" / "best.safetensors")


def reached(folder: Path, name: str, values: Values) -> Values:
    """Train a trial and return its figures, and the name, shape and size of each tensor."""
    tensors = train(folder, name, values)
    result = read_json(folder / name / "attempts" / "001" / "result.json")
    kept = ("objective", "val_mae", "best_epoch", "epochs", "parameters")
    return {key: result[key] for key in kept} | {
        "tensors": {
            name: [f"{tensor.dtype} {tensor.shape}", float(np.abs(tensor).sum())]
            for name, tensor in sorted(tensors.items())
        }
    }


def main() -> None:
    """Write all goldens again, or the figures of the trials named as arguments."""
    names = sys.argv[1:]
    kept = read_json(REACHED) if names else {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        build_stores(folder)
        if not names:
            save_file(train(folder, "golden", TRIAL), WEIGHTS)
            (TRIALS / "trial.toml").write_text(to_toml(TRIAL))
        result = {
            name: reached(folder, name, values) if not names or name in names else kept[name]
            for name, values in cases()
        }
    lines = [f"{json.dumps(name)}: {json.dumps(figures)}" for name, figures in result.items()]
    REACHED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
