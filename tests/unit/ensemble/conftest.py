"""A small store of made-up molecules, and runs whose trials were never trained."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from safetensors.numpy import save_file
from stores import write_store

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.data_config import SPLITS, AttributeConfig, CardConfig
from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_attribute_stats, fit_target_stats
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.ensemble.artefact import Manifest, read_artefact
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.engine import Member, member_batches, pieces
from hydragnn_hpo.ensemble.neighbor_densities import edges_of
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.model.trunks.embed import embed_store
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training.precision import DTYPES

CARD = {
    "name": "toy",
    "title": "Toy molecules",
    "origin": "made up",
    "licence": "CC0-1.0",
    "cite": "nobody",
    "files": [{"path": "toy.extxyz"}],
    "targets": {
        "energy": {"level": "graph", "unit": "eV/atom", "energy": "per_atom"},
        "charge": {"level": "node", "unit": "e"},
    },
    "graphs": {"cutoff": 4.0},
}
MODELS = {
    "t0001": {"conv": "schnet", "features": 16, "layers": 2, "cutoff": 3.0, "basis_size": 6},
    "t0002": {"conv": "painn", "features": 16, "layers": 2, "cutoff": 4.0, "basis_size": 6},
    "t0003": {"conv": "egnn", "features": 24, "layers": 1, "cutoff": 3.5, "basis_size": 6},
    "t0004": {"conv": "painn", "features": 16, "layers": 1, "cutoff": 3.0, "basis_size": 8},
    "t0005": {"conv": "schnet", "features": 16, "layers": 2, "cutoff": 4.0, "basis_size": 6},
    "t0006": {"conv": "egnn", "features": 16, "layers": 1, "cutoff": 4.0, "basis_size": 6},
}


CAMPAIGN: dict[str, object] = {
    "name": "toy",
    "seed": 7,
    "data": [{"card": "toy"}],
    "trial": {"heads": {"energy": {"weight": 2.0}, "charge": {}}},
    "space": {"model.features": [16, 24]},
    "search": {"trials": 6, "rungs": [2]},
}


def campaign_text(**ensemble: object) -> str:
    return dump_config(
        parse_config({**CAMPAIGN, "ensemble": ensemble}, CampaignConfig, where="campaign")
    )


def molecule(rng: np.random.Generator) -> Atoms:
    """Place 3 to 6 atoms on a jittered grid; every third structure is periodic."""
    size = int(rng.integers(3, 7))
    grid = np.array([(x, y, z) for x in range(2) for y in range(2) for z in range(2)], float)
    chosen = grid[rng.permutation(8)[:size]] * 1.6
    atoms = Atoms(
        rng.choice(["H", "C", "N", "O"], size), chosen + rng.uniform(-0.25, 0.25, (size, 3))
    )
    if rng.random() < 0.3:
        atoms.set_cell(4.5 + rng.random(3))
        atoms.set_pbc(True)
    return label(atoms)


def label(atoms: Atoms) -> Atoms:
    distances = atoms.get_all_distances()
    atoms.arrays["charge"] = np.tanh(atoms.numbers - 5.0) * 0.3 + 0.05 * distances.mean(axis=1)
    atoms.info["energy"] = float(20.0 * distances.mean() + 0.2 * atoms.numbers.mean())
    return atoms


def toy_columns(
    count: int = 60, seed: int = 0, structures: list[Atoms] | None = None
) -> tuple[Columns, CardConfig]:
    rng = np.random.default_rng(seed)
    card = parse_config(CARD, CardConfig, where="card")
    rules = Rules(card.graphs.cutoff, card.graphs.min_distance, card.targets)
    made = map(label, structures) if structures else (molecule(rng) for _ in range(count))
    graphs = [graph_of(a, Place(Path("toy"), k + 1, f"m{k}"), rules) for k, a in enumerate(made)]
    columns = columns_of(graphs, card.targets)
    columns.split[:] = rng.permutation(np.arange(count) % len(SPLITS))
    columns.stats.update(
        size_stats(columns, card.graphs.cutoff),
        name="toy",
        targets=fit_target_stats(columns, card.targets),
        elements=[1, 6, 7, 8],
        cutoff=card.graphs.cutoff,
    )
    return columns, card


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """Stage stores in a folder of our own, within a block: other rooms have theirs."""
    folder = tmp_path_factory.mktemp("scratch")

    @contextmanager
    def inside() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HYDRAGNN_HPO_SCRATCH", str(folder))
            yield

    return inside


@pytest.fixture(scope="module", autouse=True)
def _scratch(scratch):
    with scratch():
        yield


def trial_config(trial: str, seed: int, store: str = "../../data/toy.bp") -> TrialConfig:
    return TrialConfig.model_validate(
        {
            "trial": trial,
            "seed": seed,
            "data": {"store": store},
            "model": MODELS[trial],
            "heads": {"energy": {"weight": 2.0, "pool": "contributions"}, "charge": {}},
            "training": {"epochs": 2, "precision": "fp64" if trial == "t0004" else "fp32"},
        }
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory, scratch):
    """A run directory of six trials with random weights and honest predictions."""
    run = tmp_path_factory.mktemp("finished") / "run"
    columns, card = toy_columns()
    (run / "data").mkdir(parents=True)
    write_store(run / "data/toy.bp", [columns], columns.stats, card)
    with scratch():
        opened = open_store(run / "data/toy.bp")
    for number, trial in enumerate(MODELS):
        write_trial(run, opened, trial, number)
    return run


@pytest.fixture
def make_run(tmp_path, finished):
    """Copy the finished run, with fewer trials, another status, other settings."""

    def make(trials: int = 6, status: str = "completed", **ensemble: object) -> Path:
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        (run / "campaign.toml").write_text(campaign_text(**ensemble))
        for trial in list(MODELS)[trials:]:
            shutil.rmtree(run / "trials" / trial)
        for path in run.glob("trials/*/attempts/001/result.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
        return run

    return make


@pytest.fixture(scope="session")
def built_zip(tmp_path_factory, finished, scratch):
    """An ensemble of all six trials, for tests that only read."""
    run = tmp_path_factory.mktemp("built") / "run"
    shutil.copytree(finished, run)
    (run / "campaign.toml").write_text(campaign_text(method="top"))
    with scratch():
        build_ensemble(run)
    return run / "ensemble.zip"


@pytest.fixture(scope="session")
def built_run(tmp_path_factory, finished, scratch):
    """A run whose ensemble is made as by default, and its table, for tests that only read."""
    run = tmp_path_factory.mktemp("default") / "run"
    shutil.copytree(finished, run)
    (run / "campaign.toml").write_text(campaign_text())
    with scratch():
        return run, build_ensemble(run)


@pytest.fixture(scope="session")
def factored_zip(built_zip, tmp_path_factory):
    """The same ensemble with factors of sigma, for which its structures are too few."""
    content = read_artefact(built_zip)
    path = tmp_path_factory.mktemp("factored") / "ensemble.zip"
    values = content.manifest.model_dump()
    for head in values["heads"].values():
        low, high = head["mean"] - head["std"], head["mean"] + head["std"]
        head["calibration"]["factors"] = {
            "elements": {"H": 1.3, "C": 0.8, "N": 0.9, "O": 1.6},
            "values": (low, 0.3 * low + 0.7 * high, high),
            "at_values": (0.9, 1.4, 0.7),
        }
    write_artefact(path, replace(content, manifest=Manifest.model_validate(values)))
    return path


@pytest.fixture(scope="session")
def summed_run(tmp_path_factory, scratch):
    """A run of three trials whose charges sum to -1, 0 or 1, the attribute ``total``, and its
    ensemble, for tests that only read."""
    run = tmp_path_factory.mktemp("summed") / "run"
    columns, card = toy_columns()
    charge = card.targets["charge"].model_copy(update={"sum": "total"})
    attributes = {"total": AttributeConfig(unit="e")}
    targets = {**card.targets, "charge": charge}
    card = card.model_copy(update={"targets": targets, "attributes": attributes})
    columns.attributes["total"] = np.arange(columns.num_graphs) % 3 - 1.0
    nodes = columns.num_nodes()
    surplus = np.add.reduceat(columns.targets["charge"][:, 0], columns.node_offset[:-1])
    surplus -= columns.attributes["total"]
    columns.targets["charge"] -= np.repeat(surplus / nodes, nodes)[:, None]
    columns.stats["targets"] = fit_target_stats(columns, card.targets)
    columns.stats["attributes"] = fit_attribute_stats(columns)
    with scratch():
        build_three_trials(run, columns, card)
    return run


def build_three_trials(
    run: Path,
    columns: Columns,
    card: CardConfig,
    trunk: str | None = None,
    *,
    method: str = "top",
    **campaign: object,
) -> None:
    """Write a run of three trials and build its ensemble."""
    (run / "data").mkdir(parents=True)
    write_store(run / "data/toy.bp", [columns], columns.stats, card)
    values = {**CAMPAIGN, **campaign, "ensemble": {"method": method}}
    text = dump_config(parse_config(values, CampaignConfig, where="campaign"))
    (run / "campaign.toml").write_text(text)
    opened = open_store(run / "data/toy.bp")
    if trunk is not None:
        opened = embed_store(run / "data/toy.bp", trunk, processes=1).attach(opened)
    for number, trial in enumerate(list(MODELS)[:3]):
        write_trial(run, opened, trial, number)
    build_ensemble(run)


@pytest.fixture(scope="session")
def frozen_run(tmp_path_factory, scratch):
    """A run of three trials and its ensemble, two on features of a foundation model; to read."""
    run = tmp_path_factory.mktemp("frozen") / "run"
    columns, card = toy_columns()
    with scratch(), frozen_models("chgnet"):
        build_three_trials(run, columns, card, trunk="chgnet")
    return run


@contextmanager
def frozen_models(embedding: str, **more: object) -> Iterator[None]:
    """Let two trials begin from features of a foundation model."""
    with pytest.MonkeyPatch.context() as patch:
        for trial, layers in (("t0001", 0), ("t0003", 1)):
            for key, value in {"embedding": embedding, "layers": layers, **more}.items():
                patch.setitem(MODELS[trial], key, value)
        yield


def total_columns(count: int = 60) -> tuple[Columns, CardConfig]:
    """Toy molecules with total energies."""
    columns, card = toy_columns(count)
    energy = card.targets["energy"].model_copy(update={"unit": "eV", "energy": "total"})
    card = card.model_copy(update={"targets": {**card.targets, "energy": energy}})
    columns.targets["energy"] *= columns.num_nodes()[:, None]
    columns.stats["targets"] = fit_target_stats(columns, card.targets)
    return columns, card


@pytest.fixture(scope="session")
def total_zip(tmp_path_factory, scratch):
    """An ensemble of three trials for total energies, for tests that only read."""
    run = tmp_path_factory.mktemp("total") / "run"
    with scratch():
        build_three_trials(run, *total_columns())
    return run / "ensemble.zip"


@pytest.fixture(scope="session")
def joined_total_zip(tmp_path_factory, scratch):
    """The same of energies of pairs, which a regression tells much better than random nets."""
    run = tmp_path_factory.mktemp("pairs") / "run"
    columns, card = total_columns(200)
    _, receiver, vectors = edges_of(columns)
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())[receiver]
    pairs = np.exp(-np.linalg.norm(vectors, axis=1))
    columns.targets["energy"] = np.bincount(graph, pairs, columns.num_graphs)[:, None]
    columns.stats["targets"] = fit_target_stats(columns, card.targets)
    with scratch():
        build_three_trials(run, columns, card, method="greedy")
    return run / "ensemble.zip"


def write_trial(run: Path, columns: Columns, trial: str, number: int) -> None:
    maes = {"energy": 0.1, "charge": 0.05}
    write_training(run, columns, trial_config(trial, number + 30), 0.5 + 0.1 * number, maes)


def write_training(
    run: Path,
    columns: Columns,
    config: TrialConfig,
    objective: float,
    maes: Mapping[str, float],
    splits: Sequence[str] = ("val", "sel", "cal"),
) -> None:
    """Write a trial directory as a training leaves it; the weights are random."""
    folder = run / "trials" / config.trial
    (folder / "attempts/001").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "trial.toml").write_text(dump_config(config))
    torch.manual_seed(config.seed)
    dtype = DTYPES[config.training.precision]
    targets = columns.stats["targets"]
    model = MultiHeadGNN(config.model, config.heads, targets, stats=columns.stats).to(dtype)
    checkpoint.write_checkpoint(folder / "checkpoints/best.safetensors", model.state_dict(), {})
    member = Member(config.trial, 1.0, model.eval(), config.model.cutoff, dtype)
    arrays = {}
    for split in splits:
        indices = columns.indices_of(split)
        arrays[f"{split}/index"] = indices
        for head, values in predict_one(member, columns, indices).items():
            arrays[f"{split}/{head}"] = values
    save_file(arrays, folder / "attempts/001/predictions.safetensors")
    result = {"status": "completed", "objective": objective, "val_mae": maes, "epochs": 2}
    (folder / "attempts/001/result.json").write_text(json.dumps(result))


@torch.no_grad()
def predict_one(member: object, columns: Columns, indices: np.ndarray) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {}
    for piece in pieces(columns, indices, 500):
        for one, batch in member_batches([member], columns, piece, torch.device("cpu")):  # type: ignore[list-item]
            for head, values in one.model(batch).items():
                parts.setdefault(head, []).append(values.double().numpy())
    return {head: np.concatenate(values) for head, values in parts.items()}


@pytest.fixture
def predict_alone():
    return predict_one
