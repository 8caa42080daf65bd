"""Ensembles of nets trained on folds of all labels against the split way, at equal cost.

A cell is a data set, a seed and a way: ``split`` searches more trials and takes the best as
members, trained on 60 of 90 parts of the labels; ``cross`` searches fewer and trains two or three
of them on five folds. Both see the same labels, the same test structures and take about the same
slot-seconds, which each row holds. Slices of 200, 500 and 1,000 labels of the perovskites are drawn
by composition, and so are their 1,000 test structures. Each cell becomes a row of
``results/cross.json``; cells that are there are left out, so that a run goes on. ``--quick`` runs
one cell of ``castelli_80`` anew, within 50 s on two quiet cores, and compares it with its row; this
set, of few labels and trainings, counts in no other figure. Needs HYDRAGNN_HPO_DATA.
"""

import collections
import gzip
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from record import dry_run, finish, lacks_data, make_parser
from safetensors.numpy import load_file
from scipy.stats import binom

RESULTS = Path(__file__).parent / "results/cross.json"
PEROVSKITES = "perovskites/castelli_multitarget_7572.extxyz.gz"
TEST = 1000
QUICK = "castelli_80"
"""The set of ``--quick``, which counts in no figure of the others."""
WAYS = ("split", "cross")
TRIALS = {"split": 60, "cross": 36, "cross of slices": 48}
"""With a quarter of the epochs on the first rung, in full trainings: 60 / 4 + 10 x 3 / 4 = 22.5,
and 36 / 4 + 2 x 3 / 4 + 2 x 5 x 1.2 = 22.5: a fit on four of five folds has 1.2 times the steps.
On slices, fits end at 0.45 of the epochs: 48 / 4 + 3 x 3 / 4 + 3 x 5 x 1.2 x 0.45 = 22.4."""
FINALISTS = {"split": 10, "cross": 2, "cross of slices": 3}
QUICK_TRIALS, QUICK_FINALISTS = {"split": 12, "cross": 8}, {"split": 5, "cross": 1}
"""Of ``QUICK``: 12 / 4 + 5 x 3 / 4 = 6.75, and 8 / 4 + 3 / 4 + 5 x 1.2 x 0.45 = 5.45."""

HEADS = ("e_form", "gap", "mu_b", "vbm", "cbm")
SETS: dict[str, dict[str, Any]] = {
    QUICK: {"labels": 80, "test": 200, "epochs": 16, "batch": 16, "seeds": 2, "heads": HEADS},
    "castelli_200": {"labels": 200, "epochs": 32, "batch": 16, "seeds": 5, "heads": HEADS},
    "castelli_500": {"labels": 500, "epochs": 32, "batch": 16, "seeds": 5, "heads": HEADS},
    "castelli_1000": {"labels": 1000, "epochs": 32, "batch": 32, "seeds": 5, "heads": HEADS},
    "castelli_multitarget": {"epochs": 24, "batch": 32, "seeds": 2, "heads": HEADS},
    "magnetic_crystals": {
        "epochs": 24,
        "batch": 32,
        "seeds": 2,
        "heads": ("e_form", "gap", "magmom_abs"),
    },
    "magnetic_nodes": {
        "epochs": 24,
        "batch": 32,
        "seeds": 2,
        "heads": ("abs_mag_per_atom", "magmom_abs"),
    },
    "acetylacetone": {"epochs": 32, "batch": 16, "seeds": 2, "heads": ("energy", "forces")},
}  # fmt: skip
SLICES = tuple(name for name, what in SETS.items() if "labels" in what)

CARD = """name = "{name}"
id_key = "material_id"
[[files]]
path = "{file}"
[targets.e_form]
level = "graph"
unit = "eV"
energy = "total"
[targets.gap]
level = "graph"
unit = "eV"
[targets.mu_b]
level = "graph"
unit = "muB"
[targets.vbm]
level = "graph"
unit = "eV"
[targets.cbm]
level = "graph"
unit = "eV"
[graphs]
cutoff = 5.0
[split]
group = "composition"
published = "part"
"""
CAMPAIGN = """name = "{name}"
seed = {seed}
[[data]]
card = "{card}"
{heads}
[trial.training]
global_batch = {batch}
[space]
"model.conv" = ["schnet", "egnn", "painn"]
"model.features" = [32, 48, 64]
"model.layers" = {{ low = 2, high = 3 }}
"model.cutoff" = {{ low = 4.0, high = 5.0, step = 0.5 }}
"training.learning_rate" = {{ low = 1e-3, high = 1e-2, log = true }}
[search]
brain = "sobol"
trials = {trials}
rungs = [{first}, {epochs}]
finalists = {finalists}
promotion = "together"
[ensemble]
fit = "{way}"
configurations = {configurations}
learning_curve = 0
[machine]
slots = {slots}
"""


def read_frames(packed: Path) -> list[list[str]]:
    """Return a file's frames as lines: number of atoms, properties, atoms."""
    frames = []
    with gzip.open(packed, "rt") as lines:
        for count in lines:
            frames.append([count, *(next(lines) for _ in range(int(count) + 1))])
    return frames


def slice_card(name: str, labels: int, seed: int, folder: Path) -> Path:
    """Write labels, and test structures of other compositions, and the card that names them."""
    file, card = folder / f"{name}_{seed}.extxyz", folder / f"{name}_{seed}.toml"
    packed = Path(os.environ["HYDRAGNN_HPO_DATA"]) / PEROVSKITES
    write_slice(packed, file, labels, SETS[name].get("test", TEST), seed)
    card.write_text(CARD.format(name=f"{name}_{seed}", file=file))
    return card


def write_slice(packed: Path, file: Path, labels: int, test: int, seed: int) -> None:
    """Write labelled structures, and test structures of other compositions.

    Args:
        packed: where they are drawn from.
        file: where they are written; ``part`` says what each is.
        labels: structures with labels.
        test: structures to test on.
        seed: of the draw.
    """
    groups = collections.defaultdict(list)
    for frame in read_frames(packed):
        groups[tuple(sorted(line.split()[0] for line in frame[2:]))].append(frame)
    order = sorted(groups)
    random.Random(seed).shuffle(order)
    chosen: list[list[str]] = []
    for elements in order:
        part = "train" if len(chosen) < labels else "test"
        chosen += [[f[0], f"{f[1].rstrip()} part={part}\n", *f[2:]] for f in groups[elements]]
        if len(chosen) >= labels + test:
            break
    file.write_text("".join(line for frame in chosen for line in frame))


def cool_card(folder: Path) -> Path:
    """Write the card of acetylacetone without the test frames at 600 K, where nothing was trained.

    They would be in the figures of the test split, and no way of training knows what they need.
    """
    text = (Path(__file__).parents[2] / "graph_datasets/acetylacetone.toml").read_text()
    text = re.sub(r'\[\[files\]\]\npath = "acac/test_MD_600K[^[]*', "", text)
    card = folder / "acetylacetone_300K.toml"
    card.write_text(text.replace('path = "', f'path = "{os.environ["HYDRAGNN_HPO_DATA"]}/'))
    return card


def write_campaign(name: str, seed: int, way: str, folder: Path) -> Path:
    """Write the campaign of a cell, and what it reads."""
    what = SETS[name]
    labels = what.get("labels")
    kind = way if way == "split" or labels is None else "cross of slices"
    card = name if labels is None else str(slice_card(name, labels, seed, folder))
    card = str(cool_card(folder)) if name == "acetylacetone" else card
    trials, finalists = TRIALS[kind], FINALISTS[kind]
    if name == QUICK:
        trials, finalists = QUICK_TRIALS[way], QUICK_FINALISTS[way]
    text = CAMPAIGN.format(
        name=f"{name}_{seed}_{way}",
        seed=seed,
        card=card,
        way=way,
        batch=what["batch"],
        heads="\n".join(f"[trial.heads.{head}]" for head in what["heads"]),
        first=what["epochs"] // 4,
        epochs=what["epochs"],
        trials=trials,
        finalists=finalists,
        configurations=FINALISTS["cross"] if way == "split" else finalists,
        slots=len(os.sched_getaffinity(0)),
    )
    path = folder / f"{name}_{seed}_{way}.toml"
    path.write_text(text)
    return path


def run_cell(name: str, seed: int, way: str, folder: Path) -> dict[str, Any]:
    """Run the campaign of a cell, or build the ensemble of its finished run, and return its row."""
    out = folder / f"{name}_{seed}_{way}"
    words = ["ensemble", "build", str(out)]
    if not (out / "summary.json").exists():
        words = ["run", str(write_campaign(name, seed, way, folder)), "--run", str(out)]
    command = [sys.executable, "-m", "hydragnn_hpo", *words]
    subprocess.run(command, check=True, stdout=sys.stderr)
    heads = json.loads((out / "report/ensemble.json").read_text())["heads"]
    figures = json.loads((out / "summary.json").read_text())["figures"]
    return {
        "set": name,
        "seed": seed,
        "way": way,
        "slot_seconds": round(figures.get("slot_seconds", 0.0), 1),
        "heads": {head: judge_head(out, head, scores) for head, scores in heads.items()},
    }


def judge_head(out: Path, head: str, scores: dict[str, float]) -> dict[str, Any]:
    """Return the errors of a head on the test split, and hits of its 90 % interval by element."""
    arrays = load_file(out / "report/test_predictions.safetensors")
    inside = np.abs(arrays[f"{head}/truth"] - arrays[f"{head}/mean"]) <= arrays[f"{head}/half90"]
    kept = ("test_mae", "single_mae", "test_mae_top_k", "spearman", "raw_coverage90")
    row = {key: scores[key] for key in kept if key in scores}
    row |= {"rows": int(inside.size), "inside": int(inside.sum())}
    return row | {"elements": count_by_element(out, head, arrays[f"{head}/rows"], inside)}


def count_by_element(
    out: Path, head: str, known: np.ndarray, inside: np.ndarray
) -> dict[str, list[float]]:
    """Return groups of structures by element, and the share of them that the intervals hold.

    ``known`` are the rows of the head, among all of the test split, that ``inside`` is about.
    """
    from ase.data import chemical_symbols

    from hydragnn_hpo.data import open_store

    (store,) = (out / "data").glob("*.bp")
    graphs = open_store(store, access="windows")
    rows = graphs.indices_of("test")
    columns = graphs.take(rows)
    group = graphs.group[rows]
    owner = np.repeat(np.arange(len(rows)), columns.num_nodes())
    node = columns.levels[head] == "node"
    position = np.full(len(columns.masks[head]), -1)
    position[known] = np.arange(len(known))
    table: dict[str, dict[int, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    hits = inside.mean(axis=1)
    seen = set()
    for atom, structure in enumerate(owner.tolist()):
        row = position[atom if node else structure]
        symbol = chemical_symbols[int(columns.numbers[atom])]
        if row < 0 or (not node and (symbol, structure) in seen):
            continue
        seen.add((symbol, structure))
        table[symbol][int(group[structure])].append(float(hits[row]))
    return {
        symbol: [len(of), round(float(np.mean([np.mean(each) for each in of.values()])), 4)]
        for symbol, of in sorted(table.items())
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of all cells that both ways have, but for those of ``QUICK``."""
    rows = [row for row in rows if row["set"] != QUICK]
    cells = {(row["set"], row["seed"], row["way"]): row["heads"] for row in rows}
    ratios, small, over = [], [], []
    for (name, seed, way), heads in cells.items():
        other = cells.get((name, seed, "split"))
        if way != "cross" or other is None:
            continue
        ratio = statistics.mean(heads[h]["test_mae"] / other[h]["test_mae"] for h in heads)
        ratios.append(ratio)
        small += [ratio] if name in SLICES else []
        over += [heads[head]["test_mae"] / heads[head]["single_mae"] for head in heads]
    mine = [head for row in rows if row["way"] == "cross" for head in row["heads"].values()]
    return {
        "cells": len(cells),
        "cross_over_split_mean": statistics.mean(ratios) if ratios else float("nan"),
        "cross_over_split_small": statistics.mean(small) if small else float("nan"),
        "coverage_pooled": pool_coverage(mine),
        "coverage_pooled_split": pool_coverage(
            [h for row in rows if row["way"] == "split" for h in row["heads"].values()]
        ),
        "elements_outside": count_outside(row["heads"] for row in rows if row["way"] == "cross"),
        "over_best_single_mean": statistics.mean(over) if over else float("nan"),
        "over_best_single_max": max(over, default=float("nan")),
    }


def pool_coverage(heads: list[dict[str, Any]]) -> float:
    """Return the share of values that 90 % intervals hold, over cells and heads."""
    return float(sum(h["inside"] for h in heads) / max(sum(h["rows"] for h in heads), 1))


def count_outside(cells: Iterable[dict[str, Any]]) -> float:
    """Return the share of elements outside the 99 % binomial band around 90 %, by groups.

    The heads of a structure err together, so that they are one group: their mean hits.
    """
    groups = collections.Counter[str]()
    hits = collections.Counter[str]()
    for heads in cells:
        tables = [head["elements"] for head in heads.values()]
        for symbol in set().union(*tables):
            of_heads = [table[symbol] for table in tables if symbol in table]
            count = max(int(count) for count, _ in of_heads)
            groups[symbol] += count
            shares = [share for _, share in of_heads]
            hits[symbol] += count * np.average(shares, weights=[count for count, _ in of_heads])
    outside = 0
    for symbol, count in groups.items():
        low, high = binom.interval(0.99, count, 0.9)
        outside += not low <= hits[symbol] <= high
    return outside / max(len(groups), 1)


def read_rows() -> list[dict[str, Any]]:
    """Return the rows that are recorded."""
    return list(json.loads(RESULTS.read_text())["rows"]) if RESULTS.exists() else []


def compare_quick(rows: list[dict[str, Any]], seed: int, folder: Path) -> dict[str, float]:
    """Run a recorded cell of ``QUICK`` anew, and return how far it is from its row."""
    known = [row for row in rows if row["set"] == QUICK]
    row = random.Random(seed).choice(known)
    again = run_cell(row["set"], row["seed"], row["way"], folder)
    gaps = [
        abs(again["heads"][head]["test_mae"] / old["test_mae"] - 1.0)
        for head, old in row["heads"].items()
    ]
    return {"row_difference": max(gaps)}


def main() -> None:
    parser = make_parser(__doc__, "one cell anew, not recorded")
    parser.add_argument("--pick", type=int, default=1, help="seed that chooses the quick cell")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, help="most seeds of a set")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and build anew from those")
    options = parser.parse_args()
    if lacks_data(__file__):
        return None
    rows = read_rows()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.runs is None else options.runs.resolve()
        folder.mkdir(exist_ok=True)
        if options.smoke:
            dry_run(write_campaign("castelli_200", 1, "cross", folder))
            return finish(__file__, {"cells": len(rows)}, keep=False)
        if options.quick:
            result = compare_quick(rows, options.pick, folder)
            return finish(__file__, summarize(rows) | result, keep=False)
        done = {(row["set"], row["seed"], row["way"]) for row in rows}
        for name in options.sets:
            for seed in range(1, min(options.seeds or 99, SETS[name]["seeds"]) + 1):
                for way in WAYS:
                    if (name, seed, way) not in done:
                        rows.append(run_cell(name, seed, way, folder))
                        finish(__file__, summarize(rows), keep=True, rows=rows)
    return finish(__file__, summarize(rows), keep=True, rows=rows)


if __name__ == "__main__":
    main()
