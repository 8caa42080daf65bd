"""Weights of ensembles: test MAE over that of the best trial alone, by the rule before and today's.

Compared on the stored predictions of five campaigns, ``predictions/NAME.npz``: all candidates that
trained to the full budget, on val, sel and test, as errors in standard deviations of the target
(weights sum to 1, so the error of a mix is the mix of errors). Each is weighted with the whole of
``sel`` and with ``sel`` cut to 150, 50 and 20 groups, ten times each (``--quick``: twice). The best
trial is the one of lowest validation objective. The rule before (November 2026): the 6 best with
equal weights where ``sel`` holds fewer than 300 groups, else greedy selection on ``sel``.

``--record NAME RUN`` stores the predictions of a finished run: these came from
``hydragnn-hpo init CARD --minutes 5`` and ``hydragnn-hpo run`` with no change, on two cores.
"""

import statistics
from pathlib import Path

import numpy as np
from record import finish, make_parser

from hydragnn_hpo.ensemble_build.candidates import list_nets, open_build_context
from hydragnn_hpo.ensemble_build.member_selection import (
    ScoredHead,
    Terms,
    select_top_k,
    weigh_members,
)
from hydragnn_hpo.ensemble_build.predicted import make_lone_member, predict_split
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.training.checkpoint import read_checkpoint

PREDICTIONS = Path(__file__).parent / "predictions"
SPLITS = ("val", "sel", "test")
MEMBERS, ROUNDS, FLOOR, ENOUGH = 6, 12, 4, 300
CUTS = (None, 150, 50, 20)
"""Groups left in ``sel``; None leaves all."""
MOST_TEST = 500
"""Structures of ``test`` that are stored: enough, and small files."""

Heads = dict[str, dict[str, ScoredHead]]
"""Heads by name and split; predictions are errors, the truth is 0."""


def record(name: str, run: Path) -> None:
    """Store the errors of all candidates of a run; ``test`` is predicted for this alone."""
    context = open_build_context(RunDir(run))
    candidates = context.candidates
    members = [
        make_lone_member(context, net, read_checkpoint(net.trained.folder.best)[0])
        for net in list_nets(context, range(len(candidates)))
    ]
    arrays = {"objective": np.array([one.objective for one in candidates])}
    for split in SPLITS:
        test = split == "test"
        predictions = (
            predict_split(context, members, split, "cpu").means if test else context.stored(split)
        )
        for head in context.targets:
            truth, kept = context.truth(head, split)
            kept &= context.graph_of_row(head, split) < (MOST_TEST if test else np.inf)
            errors = (predictions[head][:, kept] - truth[kept]) / context.scale(head)
            arrays[f"{head}/{split}"] = errors.astype(np.float16)
            arrays[f"{head}/{split}/group"] = context.group_of_row(head, split)[kept]
    PREDICTIONS.mkdir(exist_ok=True)
    np.savez_compressed(PREDICTIONS / f"{name}.npz", allow_pickle=False, **arrays)


def load(path: Path) -> tuple[np.ndarray, Heads]:
    """Return the validation objectives of the candidates, [C], and their errors."""
    heads: Heads = {}
    with np.load(path) as arrays:
        for key in arrays:
            if key.count("/") == 1:
                name, split = key.split("/")
                errors = arrays[key].astype(np.float64)
                none = np.zeros(errors.shape[1:])
                one = ScoredHead(errors, none, 1.0, arrays[f"{key}/group"])
                heads.setdefault(name, {})[split] = one
        return arrays["objective"], heads


def cut(heads: Heads, groups: int | None, seed: int) -> Heads:
    """Leave some groups of ``sel``, drawn at random."""
    if groups is None:
        return heads
    every = np.unique(np.concatenate([head["sel"].group for head in heads.values()]))
    left = np.random.default_rng(seed).permutation(every)[:groups]
    short: Heads = {}
    for name, head in heads.items():
        rows = np.flatnonzero(np.isin(head["sel"].group, left))
        short[name] = head | {"sel": head["sel"].take(rows, slice(None))}
    return short


def weigh_before(objectives: np.ndarray, heads: Heads) -> list[np.ndarray]:
    """Weight by the rule before: on ``sel`` alone, each head's weights, [C]."""
    sel = [head["sel"] for head in heads.values()]
    if min(len(np.unique(head.group)) for head in sel) < ENOUGH:
        return [select_top_k(objectives.tolist(), MEMBERS)] * len(heads)
    set_of_all = np.flatnonzero(greedy_before(sel, MEMBERS))
    results = []
    for head in sel:
        weights = np.zeros(len(objectives))
        weights[set_of_all] = greedy_before([head.take(slice(None), set_of_all)], FLOOR)
        results.append(weights)
    return results


def greedy_before(heads: list[ScoredHead], floor: int) -> np.ndarray:
    """Draw 12 times what helps most, only new candidates until the floor is reached, at most 6."""
    counts = np.zeros(len(heads[0].predictions))
    best = counts
    lowest = np.inf
    for draw in range(1, ROUNDS + 1):
        distinct = np.count_nonzero(counts)
        scores = np.full(len(counts), np.inf)
        for c in range(len(counts)):
            full = distinct >= MEMBERS and not counts[c]
            if not full and not (distinct < floor and counts[c]):
                weights = (counts + (np.arange(len(counts)) == c)) / draw
                scores[c] = sum(error(head, weights) for head in heads)
        counts = counts + (np.arange(len(counts)) == np.argmin(scores))
        if np.count_nonzero(counts) >= floor and scores.min() < lowest:
            best = counts
            lowest = float(scores.min())
    result: np.ndarray = best / best.sum()
    return result


def weigh_today(heads: Heads) -> list[np.ndarray]:
    """Weight as ``ensemble build`` does, on ``val`` and ``sel``."""
    known = []
    for head in heads.values():
        both = [head[split] for split in ("val", "sel")]
        predictions = np.concatenate([one.predictions for one in both], axis=1)
        group = np.concatenate([one.group for one in both])
        known.append(
            ScoredHead(predictions, np.zeros(predictions.shape[1:]), 1.0 / len(heads), group)
        )
    return weigh_members(known, Terms(ROUNDS), MEMBERS)


def error(head: ScoredHead, weights: np.ndarray) -> float:
    """Return the MAE of a mix."""
    return float(np.abs(np.tensordot(weights, head.predictions, 1)).mean())


def measure(path: Path, cuts: tuple[int | None, ...], repeats: int) -> dict[str, list[float]]:
    """Return the ratios of each head at each cut of one campaign, means over the repeats."""
    objectives, heads = load(path)
    have = min(len(np.unique(head["sel"].group)) for head in heads.values())
    first = np.eye(len(objectives))[0]
    alike = select_top_k(objectives.tolist(), MEMBERS)
    ratios: dict[str, list[float]] = {"new": [], "old": [], "new/equal": []}
    for groups in cuts:
        if groups is not None and groups >= have:
            continue
        errors: dict[str, list[list[float]]] = {name: [[], []] for name in heads}
        for seed in range(repeats if groups else 1):
            short = cut(heads, groups, seed)
            results = zip(heads, weigh_today(short), weigh_before(objectives, short), strict=True)
            for name, today, before in results:
                errors[name][0].append(error(heads[name]["test"], today))
                errors[name][1].append(error(heads[name]["test"], before))
        for name, both in errors.items():
            alone, equal = (error(heads[name]["test"], w) for w in (first, alike))
            new, old = map(statistics.mean, both)
            ratios["new"].append(new / alone)
            ratios["old"].append(old / alone)
            ratios["new/equal"].append(new / equal)
            left = groups or have
            print(f"{path.stem:22} {name:28} {left:5} groups {new / alone:.3f} {old / alone:.3f}")
    return ratios


def main() -> None:
    parser = make_parser(__doc__, "two repeats, not recorded")
    parser.add_argument("--record", nargs=2, metavar=("NAME", "RUN"), help="store a run's errors")
    options = parser.parse_args()
    if options.record:
        return record(options.record[0], Path(options.record[1]))
    files = sorted(PREDICTIONS.glob("*.npz"))
    cuts, repeats = ((20,), 1) if options.smoke else (CUTS, 2 if options.quick else 10)
    every: dict[str, list[float]] = {}
    for path in files[:1] if options.smoke else files:
        for key, values in measure(path, cuts, repeats).items():
            every.setdefault(key, []).extend(values)
    figures = {
        "over_best_single_mean": statistics.mean(every["new"]),
        "over_best_single_max": max(every["new"]),
        "over_equal_weights_mean": statistics.mean(every["new/equal"]),
        "before_over_best_single_mean": statistics.mean(every["old"]),
        "before_over_best_single_max": max(every["old"]),
        "heads": len(every["new"]),
    }
    kept = not (options.quick or options.smoke)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return finish(__file__, rounded, keep=kept)


if __name__ == "__main__":
    main()
