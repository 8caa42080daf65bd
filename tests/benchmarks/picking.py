"""What picking is worth: errors of the picked structures, and how far they lie apart.

A campaign learns from a fifth of 7,572 perovskites; three fifths, whose compositions it never saw,
are the pool. Its labels are known, so the members' errors on what ``ensemble pick`` chooses can be
laid beside those on the whole pool, and the picks beside the plain top of the scores. Needs
HYDRAGNN_HPO_DATA; ``--run`` keeps the run, and goes on with one that is there. ``--quick`` takes
1,000 perovskites and tiny nets, ends within 50 s and records nothing.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from record import dry_run, finish, golden_run, lacks_data, make_parser, run_campaign

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.pick import (
    PickRequest,
    compute_descriptors,
    mean_distance,
    pick_structures,
    score_structures,
)
from hydragnn_hpo.ensemble.structure_batches import Structures
from hydragnn_hpo.resources import resource_path

SHARES = "shares = [0.2, 0.07, 0.07, 0.06, 0.6]"
CAMPAIGN = """name = "picking"
seed = 1
[[data]]
card = "card.toml"
[trial.heads.e_form]
[trial.heads.gap]
[trial.heads.mu_b]
[trial.heads.vbm]
[trial.heads.cbm]
[trial.training]
global_batch = 16
[space]
"model.conv" = ["schnet", "egnn", "painn"]
"model.features" = [{features}]
"model.layers" = { low = 1, high = 3 }
"training.learning_rate" = { low = 2e-3, high = 1e-2, log = true }
[search]
trials = {trials}
initial = {trials}
rungs = [{epochs}]
finalists = {trials}
[ensemble]
members = {members}
[machine]
slots = 1
"""
FULL = {"features": "32, 48", "trials": "8", "epochs": "30", "members": "6"}
QUICK = {"features": "16", "trials": "3", "epochs": "10", "members": "3"}
DRAWS = 1000


def campaign(name: str, values: dict[str, str], folder: Path) -> Path:
    """Write a campaign on a small part of a data set."""
    lines = resource_path(f"graph_datasets/{name}.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("published", "shares"))]
    kept = [f"{line}\n{SHARES}" if line.startswith("group") else line for line in kept]
    (folder / "card.toml").write_text("\n".join(kept) + "\n")
    text = CAMPAIGN
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    (folder / "campaign.toml").write_text(text)
    return folder / "campaign.toml"


def batches(pool: Columns, size: int = 500) -> Iterator[Structures]:
    """Stream the pool; names are rows."""
    for first in range(0, pool.num_graphs, size):
        rows = np.arange(first, min(first + size, pool.num_graphs))
        yield Structures(pool.take(rows), tuple(map(str, rows)), {})


def errors(ensemble: Ensemble, pool: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Give each structure's error, mean over heads of |prediction - truth| / spread, and score.

    Heads of atoms have no one error per structure; they count for the score alone.
    """
    prediction = ensemble.predict(pool)
    each = []
    for name, head in ensemble.manifest.heads.items():
        if head.level != "graph":
            continue
        error = np.abs(prediction.heads[name].mean - pool.targets[name])[:, 0] / head.std
        each.append(np.where(pool.masks[name], error, np.nan))
    return np.nanmean(each, axis=0), score_structures(
        ensemble.manifest, prediction.heads, pool.node_offset
    )


def measure(run: Path, wanted: int) -> dict[str, float]:
    """Pick, and look at the labels."""
    (store,) = (run / "data").glob("*.bp")
    whole = open_store(store)
    pool = whole.take(whole.indices_of("test"))
    ensemble = Ensemble.load(run / "ensemble.zip")
    error, scores = errors(ensemble, pool)
    picked = pick_structures(ensemble, batches(pool), PickRequest(wanted))
    rows = np.array([int(candidate.id) for candidate in picked.candidates])
    top = np.argsort(-scores, kind="stable")[: len(rows)]
    rng = np.random.default_rng(0)
    draws = [rng.choice(len(error), len(rows), replace=False) for _ in range(DRAWS)]
    random = np.array([error[some].mean() for some in draws])
    looked = np.concatenate((rows, top, draws[0]))
    points = compute_descriptors(ensemble, pool.take(looked))
    of_picked, of_top, of_random = np.split(points, 3)
    figures = {
        "error_picked_over_pool": error[rows].mean() / error.mean(),
        "error_top_over_pool": error[top].mean() / error.mean(),
        "error_random_99th_over_pool": np.quantile(random, 0.99) / error.mean(),
        "distance_picked_over_top": mean_distance(of_picked) / mean_distance(of_top),
        "nearest_picked_over_top": nearest(of_picked) / nearest(of_top),
        "distance_picked_over_random": mean_distance(of_picked) / mean_distance(of_random),
    }
    rounded = {name: round(float(value), 3) for name, value in figures.items()}
    return {"pool": pool.num_graphs, "picked": len(rows), **rounded}


def nearest(points: np.ndarray) -> float:
    """Return the mean distance of a point to the nearest other one."""
    far = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(far, np.inf)
    return float(far.min(axis=1).mean())


def main() -> None:
    """Run, pick, tell."""
    parser = make_parser(__doc__, "small, not recorded")
    parser.add_argument("--run", type=Path, help="keep the run here, or go on with it")
    options = parser.parse_args()
    if options.smoke and lacks_data(__file__):
        return
    quick = options.quick or options.smoke
    name = "castelli_mini" if quick else "castelli_multitarget"
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.run or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        path = campaign(name, QUICK if quick else FULL, folder)
        run = folder / "run"
        if options.smoke:
            dry_run(path)
            run = golden_run(folder)
        else:
            run_campaign(path, run)
        figures = measure(run, 3 if options.smoke else 20 if quick else 100)
    finish(__file__, figures, keep=not quick)


if __name__ == "__main__":
    main()
