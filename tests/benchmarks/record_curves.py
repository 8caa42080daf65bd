"""Record learning curves of whole search spaces, on which searches can be replayed in seconds.

For each data set campaigns as ``init`` writes them (``curves/SET.toml``, made where it is missing)
train configurations drawn at random, all to the last rung. ``curves/SET.json.gz`` holds their
values, and after every epoch the objective, each head's validation error and the seconds taken;
``curves/SET.npz`` holds what each predicts for val, sel and cal, and the labels. The best are
trained again with two further seeds (``curves/SET_seeds.json``), as one seed's luck is not what a
search should find. A set is recorded in parts, a campaign each; those that are there are left out,
and ``--runs`` keeps the directories of campaigns, which go on where they were.
Needs HYDRAGNN_HPO_DATA for the sets that are not shipped.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from curve_table import CURVES, SETS
from record import dry_run, finish, lacks_data, make_parser, run_campaign
from safetensors.numpy import load_file

from hydragnn_hpo.data import open_store
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.export_tables import TrialRow, trial_rows
from hydragnn_hpo.report.facts import read_facts

PARTS, TRIALS = 8, 25
"""Campaigns of a set, and trials of each."""
MINUTES = 60
"""``init --minutes`` of the space: it names more convs than shorter ones."""
BEST = 20
"""So many of the best are trained again."""
SEEDS = (101, 102)
ENDED = ("completed", "failed")
DIGITS = 4
"""Significant digits of what is stored."""
SLICES = {"acetylacetone": 2, "magnetic_nodes": 4}
"""Sets of which each second or fourth structure of the first file is taken."""
EPOCHS = 32
"""Most epochs of a new set: with this many it takes about two hours of a core."""


def slice_card(name: str, runs: Path) -> str:
    """Return the card of a set: that of a slice of it, which is written here, where it is large."""
    if name not in SLICES:
        return name
    text = (Path(__file__).parents[2] / f"graph_datasets/{name}.toml").read_text()
    (packed, *_) = re.findall(r'^path = "(.*)"', text, re.MULTILINE)
    file, card = runs / f"{name}.extxyz", runs / f"{name}_slice.toml"
    with gzip.open(Path(os.environ["HYDRAGNN_HPO_DATA"]) / packed, "rt") as lines:
        frames = [[count, *(next(lines) for _ in range(int(count) + 1))] for count in lines]
    file.write_text("".join(line for frame in frames[:: SLICES[name]] for line in frame))
    head, *blocks = re.split(r"^(?=\[\[?\w)", text, flags=re.MULTILINE)
    rest = "".join(block for block in blocks if not block.startswith("[[files]]"))
    card.write_text(f'{head}[[files]]\npath = "{file.resolve()}"\n\n{rest}')
    return str(card.resolve())


def write_campaign(name: str, runs: Path) -> Path:
    """Return the campaign of a set: the space of ``init``, at random, to the last rung."""
    path = CURVES / f"{name}.toml"
    if not path.exists():
        card = slice_card(name, runs)
        words = ["init", card, "--minutes", str(MINUTES), "--out", str(path)]
        subprocess.run([sys.executable, "-m", "hydragnn_hpo", *words], check=True)
        text = path.read_text()  # its first lines speak of this machine
        last = re.search(r"rungs = \[.*?(\d+)\]", text)
        assert last is not None
        epochs = min(int(last[1]), EPOCHS)
        search = f'[search]\nbrain = "random"\ntrials = {TRIALS}\nrungs = [{epochs}]\n'
        space = text[text.index("name = ") : text.index("[search]")].replace(card, name)
        path.write_text(space + search)
    return path


def run_part(name: str, part: int, runs: Path) -> Path:
    """Run the campaign of a part, whose seed is its number; return its directory."""
    return run_with_seed(name, part, write_campaign(name, runs).read_text(), runs)


def run_again(name: str, seed: int, best: list[dict[str, Any]], runs: Path) -> Path:
    """Train configurations again as another campaign, with another seed; return its directory."""
    text = re.sub(r"trials = \d+", f"trials = {len(best)}", write_campaign(name, runs).read_text())
    points = ",\n".join("{ " + ", ".join(map(entry, row.items())) + " }" for row in best)
    return run_with_seed(name, seed, f"{text}initial_points = [\n{points},\n]\n", runs)


def run_with_seed(name: str, seed: int, text: str, runs: Path) -> Path:
    """Run a campaign with a seed in place of 0, and return its directory."""
    campaign = runs / f"{name}_{seed}.toml"
    changed = text.replace("seed = 0", f"seed = {seed}", 1)
    changed = changed.replace(f'card = "{name}"', f'card = "{slice_card(name, runs)}"')
    campaign.write_text(f"{changed}\n[ensemble]\nlearning_curve = 0.0\n")
    run_campaign(campaign, runs / f"{name}_{seed}")
    return runs / f"{name}_{seed}"


def entry(item: tuple[str, Any]) -> str:
    """Return a key and its value as TOML."""
    return f"{json.dumps(item[0])} = {json.dumps(item[1])}"


def collect(run: Path) -> list[TrialRow]:
    """Return the trials that came to their end or failed, but for those of members."""
    rows = trial_rows(read_facts(RunDir(run)))
    return [row for row in rows if row.texts["parent"] is None and row.status in ENDED]


def row_of(row: TrialRow, part: int) -> dict[str, Any]:
    """Return a trial's values, and its curves by epoch.

    Args:
        row: the trial.
        part: number of its campaign.
    """
    curve = [epoch.numbers for epoch in row.curve]
    heads = [name for name in (curve[0] if curve else ()) if name.startswith("val_mae.")]
    names = {"objective": "objective", "seconds": "epoch_seconds"} | {h: h for h in heads}
    curves = {title: [shorten(each[name]) for each in curve] for title, name in names.items()}
    return {
        "part": part,
        "trial": f"{part}/{row.name}",
        "status": row.status,
        "values": dict(row.values),
        "start_seconds": shorten(
            float(row.numbers["slot_seconds"] or 0.0) - sum(curves["seconds"])
        ),
        **curves,
    }


def shorten(value: float) -> float:
    """Round to the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


def read_predictions(run: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Return what trials predict for val, sel and cal, and the labels, by split and head.

    Args:
        run: directory of a campaign on one store.
        names: of its completed trials.

    Returns:
        ``SPLIT/HEAD``, [trials, values], and ``label/SPLIT/HEAD``, [values], NaN where unknown.
    """
    (store,) = (run / "data").glob("*.bp")
    columns = open_store(store, run / "stage")
    trials = RunDir(run)
    files = [predictions_file(trials, name) for name in names]
    first = load_file(files[0])
    keys = [key for key in first if not key.endswith("/index")]
    made = {key: np.stack([load_file(f)[key].ravel() for f in files]) for key in keys}
    for key in keys:
        split, head = key.split("/")
        part = columns.take(first[f"{split}/index"])
        rows = np.where(part.masks[head][:, None], part.targets[head], np.nan)
        made[f"label/{key}"] = rows.ravel()
    return {key: value.astype(np.float32) for key, value in made.items()}


def predictions_file(run: RunDir, name: str) -> Path:
    """Return the predictions of a trial's last attempt."""
    attempts = sorted(run.trial(name).path.glob("attempts/*/predictions.safetensors"))
    return attempts[-1]


def record(name: str, parts: int, runs: Path) -> dict[str, float]:
    """Record a set up to a number of parts, as far as it is not; return its figures."""
    table = CURVES / f"{name}.json.gz"
    rows: list[dict[str, Any]] = []
    if table.exists():
        rows = json.loads(gzip.decompress(table.read_bytes()))
    for part in range(parts):
        if any(row["part"] == part for row in rows):
            continue
        run = run_part(name, part, runs)
        ended = collect(run)
        whole = [row.name for row in ended if row.status == "completed"]
        add_predictions(CURVES / f"{name}.npz", read_predictions(run, whole))
        rows += [row_of(row, part) for row in ended]
        write_table(table, rows)
    if parts == PARTS:
        record_seeds(name, rows, runs)
    completed = [row for row in rows if row["status"] == "completed"]
    return {
        f"{name}_configurations": len(rows),
        f"{name}_hours": sum(sum(row["seconds"]) for row in rows) / 3600.0,
        f"{name}_best": min(min(row["objective"]) for row in completed),
    }


def add_predictions(path: Path, part: dict[str, np.ndarray]) -> None:
    """Append the predictions of a part's completed trials to those of the parts before."""
    if path.exists():
        with np.load(path) as before:
            known = {key: before[key] for key in before.files}
        assert known.keys() == part.keys(), f"{path}: the store is another one: remove it."
        part = {
            key: known[key] if key.startswith("label/") else np.concatenate([known[key], rows])
            for key, rows in part.items()
        }
    scratch = path.with_suffix(".part.npz")
    np.savez_compressed(scratch, allow_pickle=False, **part)
    scratch.rename(path)


def record_seeds(name: str, rows: list[dict[str, Any]], runs: Path) -> None:
    """Train the best configurations of a table with further seeds, and keep their objectives."""
    path = CURVES / f"{name}_seeds.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    whole = [row for row in rows if row["status"] == "completed"]
    best = sorted(whole, key=lambda row: min(row["objective"]))[:BEST]
    for seed in SEEDS:
        if str(seed) in known:
            continue
        again = collect(run_again(name, seed, [row["values"] for row in best], runs))
        known[str(seed)] = {
            row["trial"]: row_of(other, seed)["objective"]
            for row, other in zip(best, again, strict=True)
            if other.status == "completed"
        }
        path.write_text(json.dumps(known) + "\n")


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows whole or not at all, the same bytes for the same rows."""
    text = "[" + ",\n".join(json.dumps(row) for row in rows) + "]\n"
    scratch = path.with_suffix(".part")
    scratch.write_bytes(gzip.compress(text.encode(), mtime=0))
    scratch.rename(path)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--parts", type=int, choices=range(1, PARTS + 1), default=PARTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"))
    options = parser.parse_args()
    if lacks_data(__file__):
        return None
    if options.smoke:
        names = [name for name in options.sets if (CURVES / f"{name}.toml").exists()]
        for name in names:
            dry_run(CURVES / f"{name}.toml")
        return finish(__file__, {"sets": len(names)}, keep=False)
    options.runs.mkdir(parents=True, exist_ok=True)
    figures: dict[str, float] = {}
    for name in options.sets:
        figures |= record(name, options.parts, options.runs)
    return finish(__file__, figures, keep=False)


if __name__ == "__main__":
    main()
