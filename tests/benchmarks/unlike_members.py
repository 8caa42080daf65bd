"""An ensemble of eight unlike members for benchmarks: an epoch each, since costs are not learnt."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import write

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import dump_config, parse_config, to_toml
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.training.trial import run_by_hand

CARD = {
    "name": "some",
    "title": "Some structures",
    "origin": "a benchmark",
    "licence": "CC0-1.0",
    "cite": "nobody",
    "files": [{"path": "some.extxyz"}],
    "targets": {"energy": {"level": "graph", "unit": "eV/atom", "energy": "per_atom"}},
    "graphs": {"cutoff": 5.0},
    "split": {"group": "structure"},
}
MEMBERS: list[dict[str, object]] = [
    {"conv": "schnet", "features": 64, "layers": 3, "cutoff": 5.0},
    {"conv": "schnet", "features": 48, "layers": 2, "cutoff": 4.0},
    {"conv": "painn", "features": 64, "layers": 3, "cutoff": 3.5},
    {"conv": "painn", "features": 48, "layers": 2, "cutoff": 4.5},
    {"conv": "cgcnn", "features": 64, "layers": 3, "cutoff": 4.5},
    {"conv": "cgcnn", "features": 48, "layers": 2, "cutoff": 5.0},
    {"conv": "egnn", "features": 64, "layers": 3, "cutoff": 4.0},
    {"conv": "egnn", "features": 48, "layers": 2, "cutoff": 5.0},
]
STRUCTURES = 50
"""That members are trained on."""


def unlike_members(
    folder: Path, structures: list[Atoms], members: Sequence[dict[str, object]] = MEMBERS
) -> Path:
    """Build the ensemble in a folder, on a few structures with a made-up target.

    Returns:
        The ``ensemble.zip``.
    """
    run = RunDir(folder / "run")
    _write_store(run, structures[:: max(1, len(structures) // STRUCTURES)])
    names = [f"t{number:04d}" for number in range(len(members))]
    for number, (name, model) in enumerate(zip(names, members, strict=True)):
        values = {
            "trial": name,
            "seed": number,
            "data": {"store": "../../data/some.bp"},
            "model": model,
            "heads": {"energy": {}},
            "training": {"epochs": 1, "global_batch": 16},
        }
        trial = run.trial(name)
        trial.path.mkdir(parents=True)
        trial.config.write_text(dump_config(TrialConfig.model_validate(values)))
        code, sentence = run_by_hand(trial)
        assert code == 0, sentence
    campaign: dict[str, object] = {
        "name": "some",
        "data": [{"card": "some"}],
        "trial": {"heads": {"energy": {}}},
        "space": {"model.features": [48, 64]},
        "search": {"trials": len(names), "rungs": [1], "finalists": len(names)},
        "ensemble": {"members": len(names)},
    }
    run.campaign.write_text(dump_config(parse_config(campaign, CampaignConfig, where="campaign")))
    build_ensemble(run.path)
    return run.ensemble


def _write_store(run: RunDir, structures: list[Atoms]) -> None:
    random = np.random.default_rng(0)
    made = []
    for given in structures:
        atoms = Atoms(given.numbers, given.positions, cell=given.cell, pbc=given.pbc)
        atoms.info["energy"] = float(random.normal())
        made.append(atoms)
    run.data.mkdir(parents=True)
    write(run.data / "some.extxyz", made)
    card = run.data / "some.toml"
    card.write_text(to_toml(CARD))
    build_store(card, run.store("some"), processes=1)


if __name__ == "__main__":
    from ase.build import bulk

    os.environ.setdefault("HYDRAGNN_HPO_SCRATCH", tempfile.mkdtemp())
    made = [bulk("NaCl", "rocksalt", 5.0 + 0.01 * n) for n in range(100)]
    print(unlike_members(Path(tempfile.mkdtemp()), made))
