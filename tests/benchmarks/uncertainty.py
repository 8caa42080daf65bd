"""What ensembles of campaigns are worth: MAE against the best single trial, honest intervals.

Two data sets, three campaign seeds each: 7,572 perovskites with five properties per crystal, and
8,000 magnetic crystals with a moment per atom. Splits are drawn by composition, with 12 % each for
calibration and test (the published tests share compositions with training, and so would flatter
intervals). Needs HYDRAGNN_HPO_DATA; 5 minutes a campaign on a quiet core. ``--run`` keeps the
runs, and goes on with those that are there. ``--quick`` runs one small campaign on 1,000
perovskites, within 50 s, and records nothing.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from record import dry_run, finish, golden_run, lacks_data, make_parser, run_campaign

from hydragnn_hpo.resources import resource_path

SHARES = "shares = [0.58, 0.09, 0.09, 0.12, 0.12]"
SEEDS = (1, 2, 3)

CAMPAIGN = """name = "{name}"
seed = {seed}
[[data]]
card = "card.toml"
{heads}
[trial.training]
ema = 0.99
global_batch = 32
[space]
"model.conv" = ["schnet", "egnn", "painn", "cgcnn"]
"model.features" = {{ low = 32, high = 64, step = 16 }}
"model.layers" = {{ low = 2, high = 3 }}
"model.cutoff" = {{ low = 3.5, high = {cutoff}, step = 0.5 }}
"training.learning_rate" = {{ low = 1e-3, high = 1e-2, log = true }}
[search]
trials = {trials}
initial = {initial}
rungs = {rungs}
finalists = {finalists}
[ensemble]
members = {members}
[machine]
slots = 1
"""
SETS: dict[str, dict[str, Any]] = {
    "castelli": {
        "card": "castelli_multitarget",
        "heads": ("e_form", "gap", "mu_b", "vbm", "cbm"),
        "cutoff": 4.5,
        "trials": 12,
        "initial": 6,
        "rungs": [6, 30],
        "finalists": 7,
        "members": 6,
    },
    "magnetic": {
        "card": "magnetic_fm_afm",
        "heads": ("tot_mag_per_atom", "magmom_abs"),
        "cutoff": 4.0,
        "trials": 10,
        "initial": 5,
        "rungs": [3, 12],
        "finalists": 6,
        "members": 5,
    },
}
QUICK = SETS["castelli"] | {
    "card": "castelli_mini",
    "trials": 4,
    "initial": 4,
    "rungs": [2, 6],
    "finalists": 4,
    "members": 4,
}


def card(shipped_name: str, name: str) -> str:
    """Give a shipped card under another name, with its split drawn anew, by composition."""
    lines = resource_path(f"graph_datasets/{shipped_name}.toml").read_text().splitlines()
    changed = {"name =": f'name = "{name}"', "group": f'group = "composition"\n{SHARES}'}
    kept = [line for line in lines if not line.startswith(("published", "shares", "# "))]
    card_lines = [next((new for old, new in changed.items() if x.startswith(old)), x) for x in kept]
    return "\n".join(card_lines) + "\n"


def campaign(name: str, what: dict[str, Any], seed: int, folder: Path) -> Path:
    """Write one campaign."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.toml").write_text(card(what["card"], f"{name}_grouped"))
    heads = "\n".join(f"[trial.heads.{head}]" for head in what["heads"])
    values = {key: value for key, value in what.items() if key not in ("card", "heads")}
    text = CAMPAIGN.format(name=name, seed=seed, heads=heads, **values)
    path = folder / f"seed{seed}.toml"
    path.write_text(text)
    return path


def run(name: str, what: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Run one campaign, or go on with it, and give what its summary says of the heads."""
    path = campaign(name, what, seed, folder)
    out = folder / f"run{seed}"
    run_campaign(path, out)
    return heads_of(out)


def heads_of(out: Path) -> dict[str, Any]:
    """Return the figures of a run's heads."""
    heads: dict[str, Any] = json.loads((out / "summary.json").read_text())["ensemble"]["heads"]
    return heads


def smoke(folder: Path) -> dict[str, float]:
    """Write the campaign, and take the heads of another run."""
    dry_run(campaign("castelli", QUICK, 1, folder))
    heads = heads_of(golden_run(folder))
    figures = {"test_graphs": _graphs(heads)}
    for head in heads:
        figures |= gathered(head, [heads[head], heads[head]])
    return figures


KEPT = {
    "mae_over_single": "mean",
    "mae_over_single_top": "mean",
    "coverage90": "range",
    "raw_coverage90": "range",
    "area_conformal": "max",
    "area": "max",
    "raw_area": "max",
}
"""Figure of a head, and what is told of it over the seeds; ``area`` is the miscalibration area."""


def gathered(head: str, tables: list[dict[str, float]]) -> dict[str, float]:
    """Give one head's figures over the seeds."""
    figures: dict[str, float] = {}
    for key, how in KEPT.items():
        values = [_value(table, key) for table in tables]
        if how == "mean":
            figures[f"{head}_{key}"] = statistics.mean(values)
        else:
            figures |= {f"{head}_{key}_max": max(values)}
        if how == "range":
            figures |= {f"{head}_{key}_min": min(values), f"{head}_{key}": statistics.mean(values)}
    return {key: round(value, 4) for key, value in figures.items()}


def _value(table: dict[str, float], key: str) -> float:
    if key.startswith("mae_over_single"):
        mine = "test_mae_top_k" if key.endswith("top") else "test_mae"
        return table[mine] / table["single_mae"]
    return table[key]


def main() -> None:
    parser = make_parser(__doc__, "a cut of at most 50 s, not recorded")
    parser.add_argument("--run", type=Path, help="keep the runs here")
    options = parser.parse_args()
    if options.smoke and lacks_data(__file__):
        return None
    sets = {"castelli": QUICK} if options.quick else SETS
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if options.smoke:
            return finish(__file__, smoke(Path(scratch)), keep=False)
        for name, what in sets.items():
            folder = (options.run or Path(scratch)).resolve() / name
            seeds = SEEDS[:1] if options.quick else SEEDS
            results = [run(name, what, seed, folder) for seed in seeds]
            figures[f"{name}_test_graphs"] = _graphs(results[0])
            for head in what["heads"]:
                figures |= gathered(head, [heads[head] for heads in results])
    return finish(__file__, figures, keep=not options.quick)


def _graphs(heads: dict[str, dict[str, float]]) -> float:
    """Return the number of test structures: the rows of a head that has one per structure."""
    return min(head["test_rows"] for head in heads.values())


if __name__ == "__main__":
    main()
