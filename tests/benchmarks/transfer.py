"""Campaigns that may begin from features of foundation models against campaigns that may not.

A cell is a data set, a seed and a way. Both ways are what ``init --minutes 3`` proposes;
``without`` adds ``--no-trunks``. Each row holds the CPU-seconds of everything, from reading files
to the ensemble; a way that took less than ``ALIKE`` of those of the other one is run again with
more minutes, once, so that both cost about as much. Slices hold labels and 1,000 test
structures of other compositions (molecules: 400). Each cell becomes a row of
``results/transfer.json``; cells that are there are left out, so that a run goes on. CHGNet learned
energies and moments of the magnetic crystals, but no gaps. ``--quick`` runs one cell of few labels
anew. Needs HYDRAGNN_HPO_DATA.
"""

import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.io
import torch
from cross import HEADS, PEROVSKITES, pool_coverage, write_slice
from record import dry_run, finish, lacks_data, make_parser, run_campaign

from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms
from hydragnn_hpo.model.trunks.embed import flat_features
from hydragnn_hpo.resources import resource_path

RESULTS = Path(__file__).parent / "results/transfer.json"
QUICK = "castelli_80"
"""The set of ``--quick``, which counts in no figure of the others."""
WAYS = ("without", "with")
CELL = ("set", "seed", "way")
Source = tuple[str | Path, tuple[str, ...]]
ORGANICS = resource_path("graph_datasets/small_organics.extxyz.gz")
ORGANIC_HEADS = ("atomization_energy_per_atom", "homo_lumo_gap", "partial_charge")
FAMILIES: dict[str, Source] = {
    "castelli": (PEROVSKITES, HEADS),
    "organics": (ORGANICS, ORGANIC_HEADS),
}
"""Files and heads of what slices are drawn from."""
TESTS = {QUICK: 200, "organics_200": 400}
"""Test structures of a slice; 1,000 where none are named."""
SEEDS = {
    **dict.fromkeys(("castelli_100", "castelli_200", "castelli_500", "castelli_1000"), 3),
    "organics_200": 3,
    QUICK: 2,
}
WHOLE: dict[str, Source] = {
    "perovskites": (PEROVSKITES, HEADS),
    "small_organics": (ORGANICS, ORGANIC_HEADS),
    "magnetic_crystals": (
        "mp_magnetic/mp_mag_multihead_760.extxyz.gz",
        ("e_form", "gap", "magmom_abs"),
    ),
    "magnetic_nodes": (
        "mp_magnetic/mp_mag_nodes_3675.extxyz.gz",
        ("abs_mag_per_atom", "magmom_abs"),
    ),
}
"""Files and heads, one seed each."""
SMALL = ("castelli_200", "castelli_1000")
"""Sets of the figure ``with_over_without_small``."""
MINUTES = 3.0
ALIKE = 0.8
MOST_TIMES = 4.0
"""At most so many times the minutes."""
PREDICTED = 1000


def write_campaign(name: str, seed: int, way: str, minutes: float, folder: Path) -> Path:
    """Let ``init`` write the campaign of a cell."""
    data = Path(os.environ["HYDRAGNN_HPO_DATA"])
    if name in SEEDS:
        family, labels = name.split("_")
        packed, heads = FAMILIES[family]
        file = folder / f"{name}_{seed}.extxyz"
        write_slice(data / packed, file, int(labels), TESTS.get(name, 1000), seed)
        file.write_text(re.sub(r" split=\S+", "", file.read_text()))  # another one than ``part``
    else:
        packed, heads = WHOLE[name]
        file = data / packed
    out = folder / f"{name}_{seed}_{way}_{minutes:g}.campaign"
    words = ["init", str(file), "--minutes", str(minutes), "--out", str(out)]
    words += [word for head in heads for word in ("--target", head)]
    words += ["--no-trunks"] if way == "without" else []
    subprocess.run([sys.executable, "-m", "hydragnn_hpo", *words], check=True, stdout=sys.stderr)
    (path,) = out.glob("*_search.toml")
    path.write_text(path.read_text().replace("seed = 0", f"seed = {seed}", 1))
    return path


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_cell(name: str, seed: int, way: str, minutes: float, folder: Path) -> dict[str, Any]:
    """Run the campaign of a cell, and return its row."""
    out = folder / f"{name}_{seed}_{way}_{minutes:g}"
    campaign = write_campaign(name, seed, way, minutes, folder)
    before = cpu_seconds()
    run_campaign(campaign, out)
    used = cpu_seconds() - before
    slice_file = folder / f"{name}_{seed}.extxyz"
    costs = measure_prediction(out, slice_file) if way == "with" and slice_file.exists() else {}
    heads = json.loads((out / "report/ensemble.json").read_text())["heads"]
    figures = json.loads((out / "summary.json").read_text())["figures"]
    return {
        "set": name,
        "seed": seed,
        "way": way,
        "minutes": minutes,
        "cpu_seconds": round(used, 1),
        "slot_seconds": round(figures["slot_seconds"], 1),
        "trials": figures["trials"],
        **costs,
        "heads": {head: judge_head(scores) for head, scores in heads.items()},
    }


def measure_prediction(run: Path, file: Path) -> dict[str, float]:
    """Return the CPU-seconds that ``PREDICTED`` structures cost a trunk, and all of ``predict``.

    Both are the medians of three, in turns, in this process, after a first call; nothing where
    there are fewer structures, or an ensemble reads no trunk or several.
    """
    torch.set_num_threads(1)
    ensemble = Ensemble.load(run / "ensemble.zip")
    if len(ensemble.trunks) != 1:
        return {}
    (trunk,) = ensemble.trunks.values()
    structures = list(ase.io.iread(file, index=f":{PREDICTED}"))
    if len(structures) < PREDICTED:
        return {}
    columns = columns_of_atoms(structures, ensemble.rules)
    times: dict[str, list[float]] = {"trunk_cpu_seconds": [], "predict_cpu_seconds": []}
    ensemble.predict(structures[:64])
    for _ in range(3):
        begin = time.process_time()
        flat_features(trunk, columns)
        middle = time.process_time()
        ensemble.predict(structures)
        times["trunk_cpu_seconds"].append(middle - begin)
        times["predict_cpu_seconds"].append(time.process_time() - middle)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def run_both(
    name: str, seed: int, rows: list[dict[str, Any]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a cell that are not there; the cheaper way is run again with more time."""
    known = {row["way"]: row for row in rows if (row["set"], row["seed"]) == (name, seed)}
    minutes = 1.0 if name == QUICK else MINUTES
    for way in WAYS:
        if way not in known:
            known[way] = run_cell(name, seed, way, minutes, folder)
            yield known[way]
    cheap, dear = sorted(WAYS, key=lambda way: known[way]["cpu_seconds"])
    times = known[dear]["cpu_seconds"] / known[cheap]["cpu_seconds"]
    if times > 1.0 / ALIKE and known[cheap]["minutes"] == minutes and name != QUICK:
        yield run_cell(name, seed, cheap, round(minutes * min(times, MOST_TIMES), 1), folder)


def judge_head(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of a head on the test split, and the values that its intervals hold."""
    row = {key: scores[key] for key in ("test_mae", "single_mae", "mean_baseline_mae")}
    rows = scores["test_rows"]
    return row | {"rows": rows, "inside": round(rows * scores["coverage90"])}


def ratios_of(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the error with features over that without, by head, of all cells that have both."""
    cells = {(row["set"], row["seed"], row["way"]): row["heads"] for row in rows}
    ratios = {}
    for (name, seed, way), heads in cells.items():
        other = cells.get((name, seed, "without"))
        if way == "with" and other is not None:
            ratios[name, seed] = {h: heads[h]["test_mae"] / other[h]["test_mae"] for h in heads}
    return ratios


def summarize(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of all cells that both ways have, but for those of ``QUICK``."""
    rows = [row for row in rows if row["set"] != QUICK]
    ratios = ratios_of(rows)

    def mean_of(*sets: str) -> float:
        values = [v for (name, _), heads in ratios.items() if name in sets for v in heads.values()]
        return statistics.mean(values) if values else float("nan")

    by_head: dict[tuple[str, str], list[float]] = {}
    for (name, _), heads in ratios.items():
        for head, ratio in heads.items():
            by_head.setdefault((name, head), []).append(ratio)
    used = {way: sum(r["cpu_seconds"] for r in rows if r["way"] == way) for way in WAYS}
    every = [name for name in (*SEEDS, *WHOLE) if name != QUICK]
    figures = {
        "cells": len(rows),
        "with_over_without_small": mean_of(*SMALL),
        "with_over_without_whole": mean_of(*(set(WHOLE) - {"small_organics"})),
        "with_over_without_max": max(map(statistics.mean, by_head.values()), default=float("nan")),
        **{f"with_over_without_{name}": mean_of(name) for name in every},
        "cpu_with_over_without": used["with"] / max(used["without"], 1e-9),
        "coverage_pooled": pool_coverage(
            [head for row in rows if row["way"] == "with" for head in row["heads"].values()]
        ),
    }
    costs = [row for row in rows if "predict_cpu_seconds" in row]
    if costs:
        trunk, predict = (
            statistics.median(row[key] for row in costs)
            for key in ("trunk_cpu_seconds", "predict_cpu_seconds")
        )
        figures |= {"trunk_cpu_seconds": trunk, "predict_over_trunk": predict / trunk}
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def compare_quick(rows: list[dict[str, Any]], seed: int, folder: Path) -> dict[str, float]:
    """Run a recorded cell of ``QUICK`` anew, and return how far it is from its row."""
    known = [row for row in rows if row["set"] == QUICK]
    row = random.Random(seed).choice(known)
    again = run_cell(row["set"], row["seed"], row["way"], 1.0, folder)
    gaps = [
        abs(again["heads"][head]["test_mae"] / old["test_mae"] - 1.0)
        for head, old in row["heads"].items()
    ]
    return {"row_difference": max(gaps)}


def main() -> None:
    parser = make_parser(__doc__, "one cell anew, not recorded")
    parser.add_argument("--pick", type=int, default=1, help="seed that chooses the quick cell")
    parser.add_argument("--sets", nargs="+", choices=(*SEEDS, *WHOLE), default=(*SEEDS, *WHOLE))
    parser.add_argument("--seeds", type=int, default=99, help="most seeds of a set")
    options = parser.parse_args()
    if lacks_data(__file__):
        return None
    rows = list(json.loads(RESULTS.read_text())["rows"]) if RESULTS.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.smoke:
            dry_run(write_campaign(QUICK, 1, "with", 1.0, folder))
            return finish(__file__, {"cells": len(rows)}, keep=False)
        if options.quick:
            result = compare_quick(rows, options.pick, folder)
            return finish(__file__, summarize(rows) | result, keep=False)
        for name in options.sets:
            for seed in range(1, min(options.seeds, SEEDS.get(name, 1)) + 1):
                for row in run_both(name, seed, rows, folder):
                    cell = [row[key] for key in CELL]
                    rows = [each for each in rows if [each[key] for key in CELL] != cell]
                    rows.append(row)
                    finish(__file__, summarize(rows), keep=True, rows=rows)
    return finish(__file__, summarize(rows), keep=True, rows=rows)


if __name__ == "__main__":
    main()
