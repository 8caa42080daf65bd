"""From the trials of a run to one ensemble: select, calibrate, evaluate once, write.

Shapes: C candidates, M members, R rows of a head, w components.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from torch import Tensor

from hydragnn_hpo import __version__, log
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.config.model import ModelConfig
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble import artefact, rows
from hydragnn_hpo.ensemble.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.candidates import (
    Candidate,
    find_candidates,
    standing,
    stored_predictions,
)
from hydragnn_hpo.ensemble.evaluate import Predicted, as_table, mae, score
from hydragnn_hpo.ensemble.manifest import (
    CreatedBy,
    HeadEntry,
    Manifest,
    MemberEntry,
    Provenance,
)
from hydragnn_hpo.ensemble.member import Member, make_member
from hydragnn_hpo.ensemble.moments import moments_of
from hydragnn_hpo.ensemble.predictor import EDGES_PER_BATCH, member_batches, pieces
from hydragnn_hpo.ensemble.select import ScoredHead, greedy, loss, top_k
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.training.checkpoints import checkpoint
from hydragnn_hpo.training.trial import open_graphs

TEST_PREDICTIONS, TABLE = "test_predictions.safetensors", "ensemble.json"
_CHECKED = 4
"""Structures on which a member's weights must repeat its stored predictions."""


@dataclass(frozen=True)
class Bench:
    """All that the steps share."""

    run: RunDir
    campaign: CampaignConfig
    cards: tuple[CardConfig, ...]
    graphs: GraphSet
    candidates: list[Candidate]

    @property
    def targets(self) -> dict[str, dict[str, Any]]:
        """Give the statistics of the targets that the heads predict."""
        return {n: self.graphs.stats["targets"][n] for n in self.candidates[0].config.heads}

    def scale(self, name: str) -> float:
        """Give what a trial's objective divides a head's MAE by: the target's spread."""
        return float(self.targets[name]["std"]) or 1.0

    def stored(self, split: str) -> dict[str, np.ndarray]:
        """Give what all candidates predicted on a split, by head, [C, R, w]."""
        each = [stored_predictions(c, split, self.graphs) for c in self.candidates]
        return {name: np.stack([one[name] for one in each]) for name in self.targets}

    def truth(self, name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Give a target on a split, [R, w], and which rows have it, [R]; at least one does."""
        values, mask = rows.truth(self.graphs, name, self.graphs.indices_of(split))
        if not mask.any():
            raise RunError(
                f"{self.run.path}: no structure of the split '{split}' has the target '{name}': "
                "raise its share in the card's [split], or drop the head."
            )
        return values, mask


def build_ensemble(run: Path, device: str = "cpu") -> dict[str, Any]:
    """Build ``RUN/ensemble.zip``, and what the report draws; looks at the test split once.

    Args:
        run: the run directory.
        device: where members predict the test split.

    Returns:
        ``path method members heads selection leaderboard warnings``; each head has ``unit
        test_mae single_mae mean_baseline_mae ratio_to_mean coverage90 test_mae_top_k
        test_mae_greedy`` and more.

    Raises:
        HydraError: the run cannot give an ensemble; one sentence says why.
    """
    bench = _open(RunDir(run))
    weights, selection = _select(bench)
    method = bench.campaign.ensemble.method
    needed = np.flatnonzero(sum(weights.values()) + (np.arange(len(bench.candidates)) == 0))
    tensors = {int(c): _weights(bench.candidates[c]) for c in needed}
    members = {c: _member(bench, c, tensors[c]) for c in tensors}
    _check_members(bench, members, device)
    calibrations = _calibrate(bench, weights[method])
    heads, arrays = _evaluate(bench, members, weights, calibrations, device)
    manifest = _manifest(bench, weights[method], calibrations, heads)
    table = {
        "path": str(bench.run.ensemble),
        "method": method,
        "members": [m.model_dump(mode="json") for m in manifest.members],
        "heads": heads,
        "selection": selection,
        "warnings": _warnings(bench, calibrations),
        "leaderboard": standing(bench.run),
    }
    _write_report(bench.run, table, arrays)
    chosen = {c: bench.candidates[c] for c in members if weights[method][c] > 0}
    configs = {one.trial: one.config for one in chosen.values()}
    kept = {one.trial: tensors[c] for c, one in chosen.items()}
    artefact.save(bench.run.ensemble, artefact.Content(manifest, configs, kept))
    return table


def job_main(spec: Mapping[str, Any]) -> int:
    """Build an ensemble as a job: the table, or the error's sentence, goes to a file.

    Args:
        spec: ``run``, the run directory; ``answer``, the JSON file to write; ``device``,
            else ``HYDRAGNN_HPO_DEVICE``, else the processor.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    log.configure()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answer: dict[str, Any]
    try:
        device = os.environ.get("HYDRAGNN_HPO_DEVICE", "cpu")
        answer = build_ensemble(Path(spec["run"]), spec.get("device", device))
    except HydraError as error:
        answer = {"error": str(error)}
    write_json(Path(spec["answer"]), answer)
    return 0


def _write_report(run: RunDir, table: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    run.report.mkdir(exist_ok=True)
    write_bytes(run.report / TEST_PREDICTIONS, save_arrays(arrays))
    write_json(run.report / TABLE, {k: v for k, v in table.items() if k != "path"})


def _open(run: RunDir) -> Bench:
    campaign = load(run.campaign, CampaignConfig)
    candidates = find_candidates(run)
    first = candidates[0]
    graphs = open_graphs(first.folder, first.config)
    stores = [first.folder.path / entry.store for entry in first.config.data]
    cards = tuple(load(store / "card.toml", CardConfig) for store in stores)
    return Bench(run, campaign, cards, graphs, candidates)


def _select(bench: Bench) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Choose by both methods; gives weights over the candidates, and both on ``sel``."""
    config, common = bench.campaign.ensemble, bench.campaign.trial.get("heads", {})
    shares = {name: float(common.get(name, {}).get("weight", 1.0)) for name in bench.targets}
    stored, heads = bench.stored("sel"), []
    for name in bench.targets:
        truth, mask = bench.truth(name, "sel")
        weight = shares[name] / sum(shares.values()) / bench.scale(name)
        heads.append(ScoredHead(stored[name][:, mask], truth[mask], weight))
    chosen = {
        "top": top_k([c.objective for c in bench.candidates], config.members),
        "greedy": greedy(heads, config.rounds),
    }
    report = {
        method: {
            "sel_loss": loss(heads, weights),
            "sel_mae": {
                name: mae(np.tensordot(weights, head.predictions, 1), head.truth)
                for name, head in zip(bench.targets, heads, strict=True)
            },
            "members": [
                {"trial": bench.candidates[c].trial, "weight": float(weights[c])}
                for c in np.flatnonzero(weights)
            ],
        }
        for method, weights in chosen.items()
    }
    return chosen, report


def _weights(candidate: Candidate) -> dict[str, Tensor]:
    return checkpoint.read(candidate.folder.best)[0]


def _member(bench: Bench, candidate: int, tensors: Mapping[str, Tensor]) -> Member:
    chosen = bench.candidates[candidate]
    where = str(chosen.folder.best)
    return make_member(chosen.config, tensors, bench.targets, weight=1.0, where=where)


def _check_members(bench: Bench, members: Mapping[int, Member], device: str) -> None:
    """Make sure that weights and stored predictions belong to the same epoch."""
    few = bench.graphs.indices_of("cal")[:_CHECKED]
    again = _predict(list(members.values()), bench.graphs, few, device)
    for row, candidate in enumerate(members):
        stored = stored_predictions(bench.candidates[candidate], "cal", bench.graphs)
        for name, values in again.items():
            kept = stored[name][: values.shape[1]]
            gap = np.abs(values[row] - kept).max(initial=0.0)
            # Another device rounds differently, the more the larger the numbers are.
            if not gap <= 1e-3 * bench.scale(name) + 1e-5 * np.abs(kept).max(initial=0.0):
                raise RunError(
                    f"{bench.candidates[candidate].folder.best}: does not repeat the predictions "
                    f"of '{name}' beside the trial's result (they differ by {gap:.3g} "
                    f"{bench.targets[name]['unit']}): remove the trial's last attempt and run "
                    "the campaign again."
                )


@torch.no_grad()
def _predict(
    members: Sequence[Member], graphs: GraphSet, indices: np.ndarray, device: str
) -> dict[str, np.ndarray]:
    """Predict with each member alone: by head, [M, R, w] in fp64."""
    place = torch.device(device)
    for member in members:
        member.model.to(place)
    parts: list[dict[str, list[np.ndarray]]] = [{} for _ in members]
    for piece in pieces(graphs, indices, EDGES_PER_BATCH):
        for row, (member, batch) in enumerate(member_batches(members, graphs, piece, place)):
            said = member.model(batch)
            for name in member.heads:
                parts[row].setdefault(name, []).append(said[name].double().cpu().numpy())
    names = parts[0]
    return {name: np.stack([np.concatenate(part[name]) for part in parts]) for name in names}


def _calibrate(bench: Bench, weights: np.ndarray) -> dict[str, Calibration]:
    stored, indices = bench.stored("cal"), bench.graphs.indices_of("cal")
    out = {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "cal")
        moments = moments_of(stored[name], weights)
        node = rows.is_node(bench.graphs, name)
        graph = rows.graph_of_row(bench.graphs, node=node, indices=indices)
        largest = rows.largest_per_graph(moments.spread[:, 0], graph, len(indices))
        out[name] = calibrate(
            (truth - moments.mean)[mask],
            moments.spread[mask],
            group=bench.graphs.group[indices][graph][mask],
            largest=largest,
            scale=bench.scale(name),
        )
    return out


def _evaluate(
    bench: Bench,
    members: Mapping[int, Member],
    weights: Mapping[str, np.ndarray],
    calibrations: Mapping[str, Calibration],
    device: str,
) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
    """Look at the test split, once: the table by head, and the arrays of the figure."""
    indices, rows_of = bench.graphs.indices_of("test"), list(members)
    predictions = _predict(list(members.values()), bench.graphs, indices, device)
    method, single = bench.campaign.ensemble.method, rows_of.index(0)
    table, arrays = {}, {"index": indices}
    for name, target in bench.targets.items():
        truth, mask = bench.truth(name, "test")
        truth, values = truth[mask], predictions[name][:, mask]
        mixes = {m: moments_of(values, w[rows_of]) for m, w in weights.items()}
        mix, calibration = mixes[method], calibrations[name]
        found = Predicted(truth, mix.mean, mix.spread, values[single])
        scores = score(found, calibration, float(target["mean"]))
        table[name] = as_table(scores, target["unit"]) | {
            "test_mae_top_k": mae(mixes["top"].mean, truth),
            "test_mae_greedy": mae(mixes["greedy"].mean, truth),
        }
        half = calibration.half_width(calibration.sigma(mix.spread))
        arrays |= {f"{name}/truth": truth, f"{name}/mean": mix.mean, f"{name}/half90": half}
    return table, arrays


def _manifest(
    bench: Bench,
    weights: np.ndarray,
    calibrations: Mapping[str, Calibration],
    evaluation: dict[str, dict[str, Any]],
) -> Manifest:
    stats, campaign = bench.graphs.stats, bench.campaign
    chosen = [(bench.candidates[c], float(weights[c])) for c in np.flatnonzero(weights)]
    keys = ("level", "shape", "unit", "energy", "derived_from", "description", "mean", "std")
    heads = {
        name: HeadEntry(
            **{key: target[key] for key in keys if key in target}, calibration=calibrations[name]
        )
        for name, target in bench.targets.items()
    }
    said = ("name", "title", "origin", "licence", "cite")
    card = {key: _together([getattr(card, key) for card in bench.cards]) for key in said}
    method = campaign.ensemble.method
    return Manifest(
        package=__version__,
        created_by=CreatedBy(campaign=campaign.name, seed=campaign.seed, method=method),
        data=Provenance(**card, checksum=str(stats["checksum"])),
        elements=tuple(sorted(int(z) for z in stats["elements"])),
        cutoff=max(c.config.model.cutoff for c, _ in chosen),
        members=tuple(
            MemberEntry(trial=c.trial, weight=w, objective=c.objective, val_mae=c.val_mae)
            for c, w in chosen
        ),
        heads=heads,
        evaluation=evaluation,
        **_needs(bench, [candidate.config.model for candidate, _ in chosen]),
    )


def _needs(bench: Bench, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Say what members need beside edges: attributes, encodings, packages of users."""
    told = {name for model in models for name in model.attributes}
    known = {name: a for card in bench.cards for name, a in card.attributes.items()}
    coded = [model.encoding_size for model in models if model.encoding == "laplacian"]
    own = sorted({model.conv for model in models if is_user_conv(model.conv)})
    return {
        "attributes": {name: known[name] for name in sorted(told)},
        "laplacian": max(coded, default=0),
        "packages": {package_of(name): version_of(name) for name in own},
    }


def _together(said: Sequence[str]) -> str:
    """Name what several cards say, each thing once."""
    return "; ".join(dict.fromkeys(filter(None, said)))


def _warnings(bench: Bench, calibrations: Mapping[str, Calibration]) -> list[str]:
    found = []
    if len(bench.candidates) == 1:
        found.append(
            "one trial is all there is: its ensemble has no spread, so every prediction of a "
            "head has the same sigma; run more trials to the full budget."
        )
    if bench.candidates[0].status != "completed":
        found.append("no trial reached the full budget: members were stopped at a rung.")
    for name, calibration in calibrations.items():
        if not calibration.guaranteed(0.9):
            found.append(
                f"head '{name}' was calibrated on {calibration.groups} groups, too few for a "
                "guaranteed 90 % interval (it takes 9): raise the share of cal."
            )
    return found
