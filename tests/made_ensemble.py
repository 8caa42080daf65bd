"""An ensemble's table and test predictions for a campaign that was made, not run."""

import json
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from safetensors.numpy import save

from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.ensemble import uncertainty_scores
from hydragnn_hpo.layout import RunDir

LEVELS = {50: 0.6745, 80: 1.2816, 90: 1.6449, 95: 1.96}
"""Central intervals of a Gaussian, in sigmas."""

GRAPHS, ATOMS = 200, 600
"""Rows of the test split, by level of the target."""


def make_ensemble(run: RunDir, state: State, card: CardConfig, *, seed: int) -> dict[str, Any]:
    """Write ``report/ensemble.json`` and ``report/test_predictions.safetensors``.

    Members err around the truth as much as their validation MAE says, partly together; all
    figures are computed from what they say.
    """
    best = state.ranked()[:6]
    random = np.random.default_rng(seed + 1)
    heads: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    maes: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {"index": np.arange(GRAPHS)}
    for name, target in card.targets.items():
        rows = GRAPHS if target.level == "graph" else ATOMS
        truth = random.normal(0.0, 1.0, rows)
        said = truth + _errors(random, [trial.val_mae[name] for trial in best], rows)
        heads[name], half, sigma, raw = _head(truth, said, target.unit)
        curves[name] = _curves(truth - said.mean(axis=0), sigma, raw)
        seen[name] = _diversity(truth, said, [trial.name for trial in best])
        arrays |= {
            f"{name}/half90": half[:, None],
            f"{name}/mean": said.mean(axis=0)[:, None],
            f"{name}/truth": truth[:, None],
            f"{name}/sigma": sigma[:, None],
            f"{name}/raw_sigma": raw[:, None],
        }
        maes[name] = [
            uncertainty_scores.mae(said[: k + 1].mean(axis=0), truth) for k in range(len(best))
        ]
        maes[name] += [uncertainty_scores.mae(one, truth) for one in said]
    table = _table(state, best, heads) | {"diversity": seen, "warnings": [], "curves": curves}
    table |= _sizes([trial.name for trial in best], maes)
    (run.report / "test_predictions.safetensors").write_bytes(save(arrays))
    (run.report / "ensemble.json").write_text(json.dumps(table, indent=1) + "\n")
    return table


def _errors(random: np.random.Generator, maes: list[float], rows: int) -> np.ndarray:
    """Draw errors of members, [M, R]: half of their variance is common to all."""
    common = random.normal(0.0, 1.0, rows) * random.uniform(0.5, 1.5, rows)
    own = random.normal(0.0, 1.0, (len(maes), rows))
    return np.array(maes)[:, None] * 1.25 * (common + own) / np.sqrt(2.0)


def _head(
    truth: np.ndarray, said: np.ndarray, unit: str
) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return the scores, half the 90 % intervals, sigma and raw sigma."""
    mean = said.mean(axis=0)
    error = truth - mean
    raw = said.std(axis=0) + 1e-9
    sigma = raw * np.sqrt(np.mean((error / raw) ** 2))
    before = uncertainty_scores.gaussian_scores(error[:, None], raw[:, None])
    found: dict[str, Any] = {
        "unit": unit,
        "test_rows": len(truth),
        "test_mae": uncertainty_scores.mae(mean, truth),
        "test_rmse": uncertainty_scores.rmse(mean, truth),
        **uncertainty_scores.gaussian_scores(error[:, None], sigma[:, None]),
        "area_conformal": uncertainty_scores.miscalibration_area(error, sigma),
        **_intervals(error, sigma, ""),
        **{f"raw_{name}": score for name, score in before.items()},
        **_intervals(error, raw, "raw_"),
        "mean_baseline_mae": uncertainty_scores.mae(float(truth.mean()), truth),
        "single_mae": uncertainty_scores.mae(said[0], truth),
        "test_mae_top_k": uncertainty_scores.mae(mean, truth),
        "test_mae_greedy": uncertainty_scores.mae(said[:4].mean(axis=0), truth),
    }
    found["ratio_to_mean"] = found["test_mae"] / found["mean_baseline_mae"]
    return found, LEVELS[90] * sigma, sigma, raw


def _curves(error: np.ndarray, sigma: np.ndarray, raw: np.ndarray) -> dict[str, Any]:
    """Give what is drawn of a head: Gaussian intervals of every level, bins of rising sigma."""
    law = NormalDist()
    grid = [k / 20 for k in range(1, 20)]
    times = [law.inv_cdf(0.5 + level / 2) for level in grid]
    inside = [float(np.mean(np.abs(error) <= z * sigma)) for z in times]
    before = [float(np.mean(np.abs(error) <= z * raw)) for z in times]
    parts = np.array_split(np.argsort(sigma), 10)
    bins = {
        "sigma": [float(np.sqrt(np.mean(sigma[part] ** 2))) for part in parts],
        "rms_error": [float(np.sqrt(np.mean(error[part] ** 2))) for part in parts],
    }
    return {
        "calibration": {"level": grid, "raw": before, "gaussian": inside},
        "conformal": {"level": grid, "covered": inside},
        "bins": bins,
    }


def _sizes(names: list[str], maes: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the error of the best K, on sel a tenth larger, and each member's on sel."""
    count = len(names)
    top = [
        {
            "members": k + 1,
            "added": names[k],
            "sel_mae": {head: 1.1 * found[k] for head, found in maes.items()},
            "test_mae": {head: found[k] for head, found in maes.items()},
        }
        for k in range(count)
    ]
    greedy = [size | {"test_mae": None} for size in top]
    each = [
        {"trial": name, "sel_mae": {head: 1.1 * f[count + k] for head, f in maes.items()}}
        for k, name in enumerate(names)
    ]
    return {"candidates": each, "by_size": {"top": top, "greedy": greedy}}


def _intervals(error: np.ndarray, sigma: np.ndarray, prefix: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for level, times in LEVELS.items():
        found[f"{prefix}coverage{level}"] = float((np.abs(error) <= times * sigma).mean())
        found[f"{prefix}width{level}"] = float(2.0 * times * sigma.mean())
    return found


def _diversity(truth: np.ndarray, said: np.ndarray, names: list[str]) -> dict[str, Any]:
    error = said - truth
    correlation = np.corrcoef(error) if len(names) > 1 else np.ones((1, 1))
    above = correlation[np.triu_indices(len(names), 1)]
    mse, alone = float((error.mean(axis=0) ** 2).mean()), float((error**2).mean())
    return {
        "members": names,
        "correlation": correlation.tolist(),
        "mean_correlation": float(above.mean()) if len(above) else 1.0,
        "mse": mse,
        "mean_member_mse": alone,
        "ambiguity": alone - mse,
    }


def _table(state: State, best: list[Trial], heads: Mapping[str, Any]) -> dict[str, Any]:
    share = 1.0 / len(best)
    weights = dict.fromkeys(heads, share)
    members = [
        {
            "trial": trial.name,
            "weights": weights,
            "objective": trial.objective,
            "val_mae": trial.val_mae,
            "weight": share,
        }
        for trial in best
    ]
    board = [
        {
            "trial": trial.name,
            "conv": trial.conv,
            "status": trial.status,
            "objective": trial.objective,
            "epochs": trial.epoch,
        }
        for trial in state.ranked()
    ]
    selection = {
        "top": _kind(members, heads, "test_mae_top_k", 6e6),
        "greedy": _kind(members[:4], heads, "test_mae_greedy", 4e6),
        "single": _kind(members[:1], heads, "single_mae", 1e6),
    }
    return {
        "method": "top",
        "why": "sel holds 200 independent groups, fewer than the 300 that greedy selection needs",
        "members": members,
        "heads": dict(heads),
        "selection": selection,
        "leaderboard": board,
    }


def _kind(
    members: list[dict[str, Any]], heads: Mapping[str, Any], figure: str, flops: float
) -> dict[str, Any]:
    maes = {name: head[figure] for name, head in heads.items()}
    share = 1.0 / len(members)
    named = [
        {"trial": member["trial"], "weight": share, "weights": dict.fromkeys(heads, share)}
        for member in members
    ]
    loss = float(np.mean(list(maes.values())))
    return {"sel_loss": loss, "sel_mae": maes, "flops_per_graph": flops, "members": named}
