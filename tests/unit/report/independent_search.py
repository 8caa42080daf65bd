"""The numbers of the sections on the search and the ensemble, computed from raw lines.

The simplest code there is, and none of what the report is made with.
"""

import json
import statistics
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Numbers = dict[str, float | int | None]
GOOD = ("stopped", "completed")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["e"] for line in (run / "events.jsonl").read_text().splitlines()]


def ensemble(run: Path) -> dict[str, Any]:
    path = run / "report" / "ensemble.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def trials(run: Path) -> dict[str, dict[str, Any]]:
    """Follow every trial from line to line."""
    found: dict[str, dict[str, Any]] = {}
    for e in lines(run):
        kind, trial = e["event"], found.get(e.get("trial", ""))
        if kind == "proposed":
            found[e["trial"]] = {
                "values": e["values"], "until": e["until"], "status": "queued", "score": None,
                "slot_seconds": 0.0, "joules": 0.0, "metered": 0.0, "rests": {},
                "parameters": None, "epochs": 0, "energy": False,
            }  # fmt: skip
        elif kind == "promoted":
            for name in e["trials"]:
                found[name].update(until=e["until"], status="queued")
        elif kind == "energy":
            for name, (joules, seconds) in e["trials"].items():
                found[name]["joules"] += joules
                found[name]["metered"] += seconds
                found[name]["energy"] = True
        elif trial is None:
            continue
        elif kind == "placed":
            trial.update(status="running", slots=len(e["slots"]), placed=e["time"])
        elif kind == "ended":
            end(trial, e)
        elif kind == "retried":
            trial["status"] = "queued"
        elif kind == "rested":
            trial.update(status="stopped", until=max(trial["rests"]))
            trial["score"] = trial["rests"][trial["until"]]
    return found


def end(trial: dict[str, Any], e: dict[str, Any]) -> None:
    if trial["status"] == "running":
        trial["slot_seconds"] += trial["slots"] * (e["time"] - trial["placed"])
    trial["status"] = "queued" if e["outcome"] == "interrupted" else e["outcome"]
    if trial["status"] != "queued":
        trial["parameters"] = e.get("parameters") or trial["parameters"]
        score = e.get("score", e.get("objective"))
        trial["score"] = score
        trial["epochs"] = e.get("reached", trial["epochs"])
        if score is not None:
            trial["rests"][trial["until"]] = score


def first(score: Any) -> Any:
    return score[0] if isinstance(score, list) else score


def good(run: Path) -> dict[str, dict[str, Any]]:
    return {n: t for n, t in trials(run).items() if t["status"] in GOOD and t["score"] is not None}


def parallel(run: Path) -> Numbers:
    found = good(run)
    order = sorted(found, key=lambda n: (-found[n]["until"], first(found[n]["score"]), n))
    keys = list(tomllib.loads((run / "campaign.toml").read_text())["space"])
    numbers: Numbers = {}
    for name in order[:20]:
        numbers[f"best.{name}.objective"] = first(found[name]["score"])
        numbers[f"best.{name}.epochs"] = found[name]["epochs"]
        for key in keys:
            value = found[name]["values"].get(key)
            if not isinstance(value, (str, bool)):
                numbers[f"best.{name}.{key}"] = value
    return numbers


def costs(run: Path) -> dict[str, dict[str, float]]:
    found, kinds = good(run), dict[str, dict[str, float]]()
    kinds["parameters"] = {n: t["parameters"] for n, t in found.items() if t["parameters"]}
    kinds["latency"] = {n: 1e3 * s for n in found if (s := latency(run, n)) is not None}
    kinds["slot_seconds"] = {n: t["slot_seconds"] for n, t in found.items()}
    kinds["energy"] = {
        n: t["joules"] / 1e3
        for n, t in found.items()
        if t["energy"] and t["metered"] >= 0.9 * t["slot_seconds"] > 0
    }
    goals = [t["score"] for t in found.values() if isinstance(t["score"], list)]
    wanted = tomllib.loads((run / "campaign.toml").read_text())["search"].get("objective")
    for k in range(1, len(goals[0]) if goals else 0):
        kinds[f"goal{k}"] = {n: t["score"][k] for n, t in found.items()}
        if wanted[k] == "parameters":
            del kinds["parameters"]
    return {kind: of for kind, of in kinds.items() if of}


def latency(run: Path, name: str) -> float | None:
    stores = [json.loads(p.read_text()) for p in run.glob("data/*.bp/stats.json")]
    structures = sum(store["splits"]["val"] for store in stores)
    for path in sorted(run.glob(f"trials/{name}/attempts/*/metrics.jsonl"), reverse=True):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        seconds = [r["val_seconds"] for r in records if r["record"] == "epoch"]
        if records[0]["world"] == 1 and seconds:
            return statistics.median(seconds) / structures
    return None


def pareto(run: Path) -> Numbers:
    found, kinds = good(run), costs(run)
    scores = {n: first(t["score"]) for n, t in found.items()}
    on: set[str] = set()
    for of in kinds.values():
        for a in of:
            beaten = any(
                of[b] <= of[a]
                and scores[b] <= scores[a]
                and (of[b], scores[b]) != (of[a], scores[a])
                for b in of
            )
            if not beaten:
                on.add(a)
    numbers: Numbers = {}
    for name in sorted(on, key=lambda n: (scores[n], n))[:40]:
        numbers[f"fronts.{name}.objective"] = scores[name]
        for kind, of in kinds.items():
            numbers[f"fronts.{name}.{kind}"] = of.get(name)
    return numbers


TOLD = (
    "single_mae", "mean_baseline_mae", "ratio_to_mean", "coverage50", "raw_coverage90", "width90",
    "crps", "nll", "ence", "area", "spearman",
)  # fmt: skip
"""Figures that need the weights or the calibration; the table of the ensemble has them."""


def heads(run: Path) -> Numbers:
    numbers: Numbers = {}
    told = ensemble(run).get("heads", {})
    arrays = load_file(run / "report" / "test_predictions.safetensors") if told else {}
    for name, scores in told.items():
        truth, mean = arrays[f"{name}/truth"], arrays[f"{name}/mean"]
        error = np.abs(truth - mean)
        inside = error <= arrays[f"{name}/half90"]
        numbers |= {
            f"scores.{name}.test_rows": len(truth),
            f"scores.{name}.test_mae": float(error.mean()),
            f"scores.{name}.test_rmse": float(np.sqrt((error**2).mean())),
            f"scores.{name}.coverage90": float(inside.mean()),
            **{f"scores.{name}.{figure}": scores[figure] for figure in TOLD},
        }
    return numbers


def members(run: Path) -> Numbers:
    table, known = ensemble(run), trials(run)
    numbers: Numbers = {}
    sel = {one["trial"]: one["sel_mae"] for one in table.get("candidates", [])}
    for member in table.get("members", []):
        name = member["trial"]
        numbers[f"members.{name}.weight"] = member["weight"]
        numbers[f"members.{name}.parameters"] = known[name]["parameters"]
        numbers[f"members.{name}.objective"] = member["objective"]
        for head in table["heads"]:
            numbers[f"members.{name}.val_mae.{head}"] = member["val_mae"][head]
            if sel:
                numbers[f"members.{name}.sel_mae.{head}"] = sel[name][head]
    for head, seen in table.get("diversity", {}).items():
        matrix = seen["correlation"]
        pairs = [x for i, row in enumerate(matrix) for j, x in enumerate(row) if i != j]
        numbers[f"alike.{head}.mean_correlation"] = sum(pairs) / len(pairs) if pairs else None
        numbers[f"alike.{head}.member_rmse"] = seen["mean_member_mse"] ** 0.5
        numbers[f"alike.{head}.rmse"] = seen["mse"] ** 0.5
        numbers[f"alike.{head}.ambiguity"] = seen["mean_member_mse"] - seen["mse"]
        numbers[f"alike.{head}.gained"] = 1.0 - seen["mse"] / seen["mean_member_mse"]
    for method, sizes in table.get("by_size", {}).items():
        for split in ("sel", "test"):
            for size in sizes:
                maes = size[f"{split}_mae"] or {}
                for head in table["heads"]:
                    numbers[f"by_size.{size['members']}.{method}_{split}.{head}"] = maes.get(head)
    return numbers


def nothing(run: Path) -> Numbers:
    return {}


SEARCH = {
    "parallel": parallel,
    "slices": nothing,
    "pareto": pareto,
    "heads": heads,
    "members": members,
}
"""By section; the numbers by key, without the section's name."""
