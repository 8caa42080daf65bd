"""Coverage of 90 % intervals by element: those of all atoms together against one for each element.

Stored predictions of three campaigns for a number per atom (``weights.py``): the equally weighted
6 best candidates by validation objective, calibrated on ``sel``, which took no part in that
choice, and evaluated on ``test``. Elements with at least 10 groups in ``test`` are counted; the
band around 90 % is the binomial one of 99 % for as many groups. ``--record NAME STORE HEAD``
stores the elements of the atoms that ``weights.py`` stored the predictions of.
"""

from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from record import finish, make_parser
from scipy.stats import binom
from weights import MEMBERS, MOST_TEST, PREDICTIONS, SPLITS, load

from hydragnn_hpo.data import open_store
from hydragnn_hpo.ensemble_build.candidates import read_truth
from hydragnn_hpo.ensemble_build.member_selection import select_top_k
from hydragnn_hpo.uncertainty.calibrate import SYMBOLS, calibrate, compute_moments

ELEMENTS = PREDICTIONS / "elements"
FEWEST_GROUPS = 10


def record(name: str, store: Path, head: str) -> None:
    """Store the atomic number of each row of a head."""
    graphs = open_store(store)
    arrays = {}
    for split in SPLITS:
        indices = graphs.indices_of(split)
        columns = graphs.take(indices)
        _, kept = read_truth(graphs, head, indices)
        graph = np.repeat(np.arange(len(indices)), columns.num_nodes())
        kept &= graph < (MOST_TEST if split == "test" else np.inf)
        arrays[f"{head}/{split}"] = columns.numbers[kept].astype(np.uint8)
    ELEMENTS.mkdir(exist_ok=True)
    np.savez_compressed(ELEMENTS / f"{name}.npz", allow_pickle=False, **arrays)


def measure(name: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the figures of a campaign, and the coverage of each element."""
    objectives, heads = load(PREDICTIONS / f"{name}.npz")
    with np.load(ELEMENTS / f"{name}.npz") as arrays:
        head = next(iter(arrays)).split("/")[0]
        elements = {split: arrays[f"{head}/{split}"] for split in ("sel", "test")}
    weights = select_top_k(objectives.tolist(), MEMBERS)
    sel, test = (compute_moments(heads[head][s].predictions, weights) for s in ("sel", "test"))
    known = calibrate(
        -sel.mean,
        sel.spread,
        group=heads[head]["sel"].group,
        largest=sel.spread[:, 0],
        scale=1.0,
        stratum=SYMBOLS[elements["sel"]],
    )
    sigma = known.sigma(test.spread)
    group = heads[head]["test"].group
    half = {
        "all": known.half_width(sigma),
        "element": known.half_width(sigma, 0.9, SYMBOLS[elements["test"]]),
    }
    inside = {way: (np.abs(test.mean) <= width)[:, 0] for way, width in half.items()}
    rows: dict[str, dict[str, float]] = {}
    for number in np.unique(elements["test"]).tolist():
        own = elements["test"] == number
        count = len(np.unique(group[own]))
        if count >= FEWEST_GROUPS:
            low, high = binom.interval(0.99, count, 0.9)
            row: dict[str, float] = {"groups": count, "atoms": int(own.sum())}
            for way, hit in inside.items():
                share = float(hit[own].mean())
                row |= {way: round(share, 4), f"{way}_outside": not low <= share * count <= high}
            rows[chemical_symbols[number]] = row
    figures: dict[str, float] = {}
    for way in half:
        shares = [row[way] for row in rows.values()]
        figures |= {
            f"{name}_{way}": float(inside[way].mean()),
            f"{name}_{way}_least": min(shares),
            f"{name}_{way}_most": max(shares),
            f"{name}_{way}_outside": float(
                np.mean([row[f"{way}_outside"] for row in rows.values()])
            ),
            f"{name}_{way}_width": float(half[way].mean()),
        }
    return {key: round(value, 4) for key, value in figures.items()}, rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--record", nargs=3, metavar=("NAME", "STORE", "HEAD"))
    options = parser.parse_args()
    if options.record:
        name, store, head = options.record
        return record(name, Path(store), head)
    names = sorted(path.stem for path in ELEMENTS.glob("*.npz"))
    figures: dict[str, float] = {}
    elements: dict[str, dict[str, dict[str, float]]] = {}
    for name in names[:1] if options.smoke else names:
        of_set, elements[name] = measure(name)
        figures |= of_set
    return finish(__file__, figures, keep=not options.smoke, elements=elements)


if __name__ == "__main__":
    main()
