"""What the section on importances must say, computed once more, column by column.

The forest, Shapley values and both analyses of variance are those of scikit-learn, shap and Optuna;
the trials, the matrix and the background are read and drawn here.
"""

import hashlib
import math
import statistics
import warnings
from collections import defaultdict

import numpy as np
from unit.report.independent_course import campaign_of, events_of

CONFIGURATION = ("diverged", "out_of_memory", "bad_config", "bug")


def importance(run):
    """Give every number of the section, by its key."""
    campaign, trials = campaign_of(run), trials_of(run)
    found = {}
    for key in ("mae", "cost", "memory", "failure"):
        known = [trial for trial in trials if key in trial]
        if not known:
            continue
        found[f"trust.{key}.trials"] = len(known)
        if len(known) < 6 or len({trial[key] for trial in known}) == 1:
            continue
        found |= explained(campaign, known, key)
    return found


def trials_of(run):
    """Read what every searched trial says at the first rung, of its epochs and of its memory."""
    rung = campaign_of(run)["search"]["rungs"][0]
    trials, costs, until = {}, defaultdict(list), {}
    for e in events_of(run):
        trial = trials.get(e.get("trial"))
        if e["event"] == "proposed" and "parent" not in e:
            trials[e["trial"]] = {"values": e["values"]}
        elif trial is None:
            continue
        elif e["event"] == "placed":
            until[e["trial"]] = e["until"]
        elif e["event"] == "retried":
            trial.pop("failure", None)
        elif e["event"] == "epoch":
            costs[e["trial"]].append(e["seconds"] * e["width"])
        elif e["event"] == "ended":
            if e.get("peak_bytes"):
                trial["memory"] = max(trial.get("memory", 0.0), e["peak_bytes"])
            if e["outcome"] in ("completed", "stopped") and until[e["trial"]] == rung:
                score = e["score"]
                trial["mae"] = score[0] if isinstance(score, list) else score
                trial["failure"] = 0.0
            if e["outcome"] == "failed":
                trial.pop("failure", None)
                if e["reason"] in CONFIGURATION:
                    trial["failure"] = 1.0
    for name, found in costs.items():
        if name in trials:
            trials[name]["cost"] = statistics.median(found)
    return list(trials.values())


def explained(campaign, trials, key):
    """Explain one target."""
    from sklearn.ensemble import ExtraTreesRegressor

    space, words = campaign["space"], f"{campaign['seed']}/{key}/importance"
    seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") // 2
    y = np.array([trial[key] for trial in trials], dtype=float)
    y = y if key == "failure" else np.log(y)
    X, owners = matrix(space, [trial["values"] for trial in trials])
    model = ExtraTreesRegressor(
        100, max_depth=8, min_samples_leaf=2, bootstrap=True, random_state=seed
    ).fit(X, y)
    unseen = [np.setdiff1d(np.arange(len(y)), rows) for rows in model.estimators_samples_]
    sums, counts = np.zeros(len(y)), np.zeros(len(y))
    for tree, rows in zip(model.estimators_, unseen, strict=True):
        sums[rows] += tree.predict(X[rows])
        counts[rows] += 1
    errors = y[counts > 0] - sums[counts > 0] / counts[counts > 0]
    around = y[counts > 0] - y[counts > 0].mean()
    found = {f"trust.{key}.r2": 1.0 - (errors @ errors) / (around @ around)}
    shown = [i * len(y) // min(200, len(y)) for i in range(min(200, len(y)))]
    size = dict(zip(space, shapley(model, space, X[shown], owners, seed), strict=True))
    by_all, by_best = variances(space, trials, y, key, seed)
    for name in space:
        found[f"{key}.{name}.shap"] = size[name]
        found[f"{key}.{name}.shap_share"] = size[name] / sum(size.values())
        found[f"{key}.{name}.fanova"] = by_all[name]
        if by_best is not None:
            found[f"{key}.{name}.ped_anova"] = by_best.get(name, 0.0) / sum(by_best.values())
    return found


def is_on(one, values):
    wanted = {k: v if isinstance(v, list) else [v] for k, v in one.get("when", {}).items()}
    return all(values.get(parent) in allowed for parent, allowed in wanted.items())


def lowest(one):
    return one["choices"][0] if "choices" in one else one["low"]


def matrix(space, configurations):
    """Return the matrix, and by column the parameters that it belongs to."""
    columns, owners = [], []
    for name, one in space.items():
        full = [values.get(name, lowest(one)) for values in configurations]
        if "choices" in one:
            levels = one["choices"][1:] if len(one["choices"]) == 2 else one["choices"]
            for level in levels if len(one["choices"]) > 1 else ():
                columns.append([float(value == level) for value in full])
                owners.append([name])
        else:
            columns.append([math.log(v) if one.get("log") else float(v) for v in full])
            owners.append([name])
        if one.get("when"):
            columns.append([float(is_on(one, values)) for values in configurations])
            owners.append(list(one["when"]))
    return np.array(columns).T, owners


def shapley(model, space, points, owners, seed):
    """Give mean |SHAP| of each parameter, against 50 points drawn evenly over the space."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import shap

    draws = np.random.default_rng(seed).random((50, len(space)))
    background = []
    for draw in draws:
        values = {n: drawn(one, at) for (n, one), at in zip(space.items(), draw, strict=True)}
        background.append({n: v for n, v in values.items() if is_on(space[n], values)})
    compared, _ = matrix(space, background)
    parts = shap.TreeExplainer(
        model, data=compared, feature_perturbation="interventional"
    ).shap_values(points, check_additivity=False)
    for name in space:
        mine = [sum(name == owner for owner in o) / len(o) for o in owners]
        yield np.abs(parts @ np.array(mine)).mean()


def drawn(one, at):
    """Return the value at a position in [0, 1) of a parameter's range."""
    if "choices" in one:
        return one["choices"][int(at * len(one["choices"]))]
    low, high, step = one["low"], one["high"], one.get("step")
    if step is None and isinstance(low, int):
        step = 1
    if step is not None and not one.get("log"):
        return low + step * int(at * (round((high - low) / step) + 1))
    return (
        math.exp(math.log(low) + at * math.log(high / low))
        if one.get("log")
        else low + at * (high - low)
    )


def place(one, value):
    """Return the middle of a value's part of [0, 1]."""
    if "choices" in one:
        return (one["choices"].index(value) + 0.5) / len(one["choices"])
    low, high, step = one["low"], one["high"], one.get("step")
    if step is None and isinstance(low, int):
        step = 1
    if step is not None:
        return ((value - low) / step + 0.5) / (round((high - low) / step) + 1)
    if one.get("log"):
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def variances(space, trials, y, key, seed):
    """Give fANOVA and, where 5 trials count as the best, PED-ANOVA, both by Optuna."""
    import optuna
    from optuna.distributions import FloatDistribution as Real
    from optuna.distributions import IntDistribution as Whole

    def study(rows, ranges, values):
        made = optuna.create_study()
        for params, value in zip(rows, values, strict=True):
            kinds = {name: ranges[name] for name in params}
            made.add_trial(
                optuna.create_trial(params=params, distributions=kinds, value=float(value))
            )
        return made

    def kind(one):
        if isinstance(one["low"], int) and not one.get("step"):
            return Whole(one["low"], one["high"], log=one.get("log", False))
        if one.get("step"):
            return Whole(0, round((one["high"] - one["low"]) / one["step"]))
        return Real(float(one["low"]), float(one["high"]), log=one.get("log", False))

    def internal(one, value):
        return round((value - one["low"]) / one["step"]) if one.get("step") else value

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values = [trial["values"] for trial in trials]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = [{n: place(o, v.get(n, lowest(o))) for n, o in space.items()} for v in values]
        evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=16, max_depth=7, seed=seed)
        by_all = evaluator.evaluate(study(full, {n: Real(0.0, 1.0) for n in space}, y))
        best = (y.sum() - 0.5) / len(y) if key == "failure" else 0.1
        if best * len(y) < 5:
            return by_all, None
        y = -y if key == "failure" else y
        ranges = {n: one for n, one in space.items() if "choices" not in one}
        own = [{n: internal(o, v[n]) for n, o in ranges.items() if n in v} for v in values]
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best)
        by_best = evaluator.evaluate(study(own, {n: kind(o) for n, o in ranges.items()}, y))
    top = [v for v, score in zip(values, y, strict=True) if score <= sorted(y)[cut(best, y)]]
    for name, one in space.items():
        if "choices" in one:
            by_best[name] = chosen(name, one["choices"], values, top)
    return by_all, by_best


def cut(share, y):
    return math.ceil(share * len(y)) - 1


def chosen(name, choices, values, top):
    """Give sum of p (q / p - 1)^2 over choices, times what conditions and quantiles weigh."""
    every, good = [v[name] for v in values if name in v], [v[name] for v in top if name in v]
    total = 0.0
    for choice in choices:
        p = (every.count(choice) + 1 / len(choices)) / (len(every) + 1)
        q = (good.count(choice) + 1 / len(choices)) / (len(good) + 1)
        total += p * (q / p - 1) ** 2
    alpha, beta = len(good) / len(top), len(every) / len(values)
    return total * alpha**2 / beta * (len(top) / len(values)) ** 2


IMPORTANCE = {"importance": importance}
"""By section, like ``independent.INDEPENDENT``."""
