"""Read from a run which trials may become members, and what they predicted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hydragnn_hpo.config import TrialConfig, load_config
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir, TrialDir


@dataclass(frozen=True)
class Candidate:
    """A trial that came to a good end."""

    trial: str
    """Name of the trial."""
    folder: TrialDir
    """Its directory."""
    config: TrialConfig
    """Its configuration."""
    status: str
    """``completed``, or ``stopped`` at a rung."""
    objective: float
    """Validation objective, in standard deviations."""
    val_mae: dict[str, float]
    """Validation MAE by head, in the head's unit."""
    predictions: Path
    """File with its predictions on val, sel and cal."""


def list_leaderboard(run: RunDir) -> list[dict[str, Any]]:
    """List every trial with a result, best objective first, those without one last.

    Each has ``trial conv status objective epochs``. Only the current attempt's result
    counts: a trial that is being trained on has none.
    """
    rows = []
    for path in sorted((run.path / "trials").glob("*/trial.toml")):
        config, result = load_config(path, TrialConfig), _result(TrialDir(path.parent))
        if result is not None:
            rows.append(
                {
                    "trial": path.parent.name,
                    "conv": config.model.conv,
                    "status": result["status"],
                    "objective": result.get("objective"),
                    "epochs": result.get("epochs"),
                }
            )
    return sorted(rows, key=_rank)


def find_candidates(run: RunDir) -> list[Candidate]:
    """Return the trials to choose members from, best validation objective first.

    These are the ones trained to the full budget; where there are none, those that were
    stopped at a rung.

    Raises:
        RunError: no trial came to a good end, or their heads differ.
    """
    rows = list_leaderboard(run)
    for status in ("completed", "stopped"):
        found = [r for r in rows if r["status"] == status and r["objective"] is not None]
        if found:
            candidates = [_candidate(run.trial(row["trial"])) for row in found]
            _check_heads(run, candidates)
            return candidates
    raise RunError(
        f"{run.path}: no trial has completed or reached a rung, so there is nothing to build an "
        "ensemble from: let the campaign run on."
    )


def read_stored_predictions(
    candidate: Candidate, split: str, graphs: GraphSet
) -> dict[str, np.ndarray]:
    """Return what a trial predicted on ``val``, ``sel`` or ``cal``, by head, [R, w] in fp64.

    Raises:
        RunError: the file is missing or damaged, or is about other structures.
    """
    path = candidate.predictions
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); run the campaign again.") from error
    index = arrays.get(f"{split}/index")
    if index is None or not np.array_equal(index, graphs.indices_of(split)):
        raise RunError(
            f"{path}: is about other structures than the store's split '{split}'; "
            "the store was changed after the trial: start a new run directory."
        )
    return {
        name: np.asarray(arrays[f"{split}/{name}"], np.float64) for name in candidate.config.heads
    }


def _result(trial: TrialDir) -> dict[str, Any] | None:
    attempts = trial.attempts()
    path = trial.attempt(attempts[-1]) / "result.json" if attempts else None
    if path is None or not path.exists():
        return None
    result: dict[str, Any] = read_json(path)
    return result


def _rank(row: dict[str, Any]) -> tuple[float, str]:
    objective = row["objective"]
    return (np.inf if objective is None else float(objective), row["trial"])


def _candidate(trial: TrialDir) -> Candidate:
    folder, result = trial.attempt(trial.attempts()[-1]), _result(trial)
    assert result is not None
    return Candidate(
        trial=trial.path.name,
        folder=trial,
        config=load_config(trial.config, TrialConfig),
        status=result["status"],
        objective=float(result["objective"]),
        val_mae=result["val_mae"],
        predictions=folder / "predictions.safetensors",
    )


def _check_heads(run: RunDir, candidates: list[Candidate]) -> None:
    first = set(candidates[0].config.heads)
    for other in candidates[1:]:
        if set(other.config.heads) != first:
            raise RunError(
                f"{run.path}: trials {candidates[0].trial} and {other.trial} predict different "
                "heads and cannot share an ensemble: give all trials the same heads."
            )
