"""An ensemble's table and test predictions for a campaign that was made, not run."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from safetensors.numpy import save
from scipy.special import ndtri

from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.status import find_conv
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.ensemble_build.member_selection import (
    ScoredHead,
    compute_diversity,
    compute_errors,
    compute_size_curves,
)
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.uncertainty.calibrate import GRID, Calibration, compute_moments, key
from hydragnn_hpo.uncertainty.uncertainty_scores import (
    HeadOnLabels,
    compute_curves,
    compute_figures,
    mae,
)

GRAPHS, ATOMS = 200, 600
"""Rows of the test split, by level of the target."""

SEL = 1.1
"""Errors on sel, in units of those on test."""


def make_ensemble(run: RunDir, state: State, card: CardConfig, *, seed: int) -> dict[str, Any]:
    """Write ``report/ensemble.json`` and ``report/test_predictions.safetensors``.

    Members err around the truth as much as their validation MAE says, partly together; all
    figures are computed from what they say.
    """
    best = state.ranked()[:6]
    names = [trial.name for trial in best]
    random = np.random.default_rng(seed + 1)
    test: dict[str, ScoredHead] = {}
    heads: dict[str, Any] = {}
    diversity: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {"index": np.arange(GRAPHS)}
    for name, target in card.targets.items():
        rows = GRAPHS if target.level == "graph" else ATOMS
        truth = random.normal(0.0, 1.0, rows)
        predictions = truth + _errors(random, [trial.val_mae[name] for trial in best], rows)
        test[name] = ScoredHead(predictions[..., None], truth[:, None], 1.0, np.arange(len(truth)))
        predicted, known = _calibrated(test[name])
        heads[name] = {"unit": target.unit} | _scores(test[name], predicted, known)
        curves[name] = compute_curves(predicted, known)
        shares = np.full(len(best), 1.0 / len(best))
        predictions = test[name].predictions
        diversity[name] = compute_diversity(names, predictions, test[name].truth, shares)
        sigma = predicted.sigma(known)
        arrays |= {
            f"{name}/half90": known.half_width(sigma),
            f"{name}/mean": predicted.mean,
            f"{name}/truth": predicted.truth,
            f"{name}/sigma": sigma,
            f"{name}/raw_sigma": predicted.raw,
            f"{name}/distance": np.exp(0.3 * np.random.default_rng(rows).normal(size=(rows, 1))),
        }
    trust = ["large spread of gap" if k % 50 == 7 else "ok" for k in range(GRAPHS)]
    arrays["trust"] = np.frombuffer("\n".join(trust).encode(), dtype=np.uint8)
    config = load_config(run.campaign, CampaignConfig)
    table = _table(state, best, heads, config) | _sizes(best, test)
    table |= {"diversity": diversity, "warnings": [], "curves": curves}
    pair = {"formula": "H2O", "distance": 0.2, "difference": 3.0, "allowed": 0.5, "unit": "eV"}
    pair |= {"target": "gap", "ids": ["made.extxyz:4", "elsewhere"], "test": 4}
    table["test_twins"] = [pair | {"told_apart_by": ["spin"]}]
    (run.report / "test_predictions.safetensors").write_bytes(save(arrays))
    (run.report / "ensemble.json").write_text(json.dumps(table, indent=1) + "\n")
    return table


def _errors(random: np.random.Generator, maes: list[float], rows: int) -> np.ndarray:
    """Draw errors of members, [M, R]: half of their variance is common to all."""
    common = random.normal(0.0, 1.0, rows) * random.uniform(0.5, 1.5, rows)
    own = random.normal(0.0, 1.0, (len(maes), rows))
    return np.array(maes)[:, None] * 1.25 * (common + own) / np.sqrt(2.0)


def _calibrated(head: ScoredHead) -> tuple[HeadOnLabels, Calibration]:
    """Mix the members, and calibrate them so that the mean square of error / sigma is 1."""
    moments = compute_moments(head.predictions, np.ones(len(head.predictions)))
    spread = moments.spread + 1e-9
    stratum = np.full(len(spread), "all")
    predicted = HeadOnLabels(
        head.truth, moments.mean, spread, 0.0 * spread, stratum, np.ones_like(spread)
    )
    known = Calibration(
        a=float(np.mean((predicted.residual / spread) ** 2)),
        b=0.0,
        quantiles={key(level): float(ndtri(0.5 + level / 2)) for level in GRID},
        spread99=1.0,
        rows=len(spread),
        groups=len(spread),
    )
    return predicted, known


def _scores(head: ScoredHead, predicted: HeadOnLabels, known: Calibration) -> dict[str, float]:
    figures = compute_figures(predicted, known, float(head.truth.mean()))
    on_test = ("rows", "mae", "rmse")
    return {
        **{f"test_{name}" if name in on_test else name: value for name, value in figures.items()},
        "single_mae": mae(head.predictions[0], head.truth),
        "test_mae_top_k": mae(predicted.mean, head.truth),
        "test_mae_greedy": mae(head.predictions[:4].mean(axis=0), head.truth),
    }


def _sizes(best: list[Trial], test: dict[str, ScoredHead]) -> dict[str, Any]:
    """Return the errors of each size and candidate; on sel all errors are larger than on test."""
    names = [trial.name for trial in best]
    sel = {
        name: replace(head, predictions=head.truth + SEL * (head.predictions - head.truth))
        for name, head in test.items()
    }
    places = list(range(len(best)))
    objectives = [float(place) for place in places]
    by_size = compute_size_curves(sel, objectives, names, (places, test))
    for size in by_size["greedy"]:
        size["test_mae"] = None  # as where others than the kept members would be needed
    each = [{"trial": names[place], "sel_mae": compute_errors(sel, [place])} for place in places]
    return {"candidates": each, "by_size": by_size}


def _table(
    state: State, best: list[Trial], heads: dict[str, Any], config: CampaignConfig
) -> dict[str, Any]:
    share = 1.0 / len(best)
    members = [
        {
            "trial": trial.name,
            "weights": dict.fromkeys(heads, share),
            "objective": trial.objective,
            "val_mae": trial.val_mae,
            "weight": share,
        }
        for trial in best
    ]
    board = [
        {
            "trial": trial.name,
            "conv": find_conv(trial, config),
            "status": trial.status,
            "objective": trial.objective,
            "epochs": trial.epoch,
        }
        for trial in state.ranked()
    ]
    selection = {
        "top": _mix(members, heads, "test_mae_top_k", 6e6),
        "greedy": _mix(members[:4], heads, "test_mae_greedy", 4e6),
        "single": _mix(members[:1], heads, "single_mae", 1e6),
    }
    return {
        "method": "top",
        "why": "the campaign says ensemble.method = 'top'",
        "members": members,
        "heads": heads,
        "selection": selection,
        "leaderboard": board,
    }


def _mix(
    members: list[dict[str, Any]], heads: dict[str, Any], figure: str, flops: float
) -> dict[str, Any]:
    maes = {name: head[figure] for name, head in heads.items()}
    share = 1.0 / len(members)
    named = [
        {"trial": member["trial"], "weight": share, "weights": dict.fromkeys(heads, share)}
        for member in members
    ]
    loss = float(np.mean(list(maes.values())))
    return {"sel_loss": loss, "sel_mae": maes, "flops_per_graph": flops, "members": named}
