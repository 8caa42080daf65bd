"""Every number of a report, computed once more from lines of the journal, as plainly as possible.

Three computations are taken over because tests of their own check them: where slot-seconds went
(``SlotLedger``, against a count second by second), how several goals rank (``rank_points``), and
importances (``analyse_importance``, against formulas and planted effects).
"""

import json
import statistics
import tomllib
from collections import Counter, defaultdict

import numpy as np
from safetensors.numpy import load_file

from hydragnn_hpo.campaign.accounting import SlotLedger
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.importance import analyse_importance
from hydragnn_hpo.report.observations import list_targets, observe_trials
from hydragnn_hpo.search import rank_points

DONE = ("stopped", "completed")


def events_of(run):
    """Read the journal; a torn last line is left out."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line)["e"] for line in lines if line.endswith(b"}\n")]


def campaign_of(run):
    return tomllib.loads((run / "campaign.toml").read_text())


def ensemble_of(run):
    path = run / "report" / "ensemble.json"
    return json.loads(path.read_text()) if path.exists() else {}


def arrays_of(run):
    return load_file(run / "report" / "test_predictions.safetensors")


def size_of(seconds, days=False):
    """Return the seconds of the unit of a time: s below 5 min, min below 5 h, then h, or days."""
    if seconds < 300:
        return 1
    if seconds < 5 * 3600:
        return 60
    return 86_400 if days and seconds >= 5 * 86_400 else 3600


def host_of(slot):
    return slot.rpartition(":")[0]


def first(score):
    return score[0] if isinstance(score, list) else score


# -- trials --------------------------------------------------------------------------


def trials_of(events):
    """Follow every trial through the journal."""
    found = {}
    for e in events:
        trial = found.get(e.get("trial"))
        match e["event"]:
            case "proposed":
                found[e["trial"]] = {
                    "name": e["trial"], "values": e["values"], "parent": e.get("parent"),
                    "until": e["until"], "status": "queued", "reason": None, "attempt": 0,
                    "score": None, "objective": None, "mae": {}, "epoch": 0, "parameters": None,
                    "seconds": 0.0, "joules": None, "metered": 0.0, "placed": [], "last": None,
                }  # fmt: skip
            case "placed":
                trial |= {"status": "running", "attempt": e["attempt"]}
                trial["placed"].append(e)
            case "epoch":
                trial["objective"] = e["best_objective"]
            case "promoted":
                for name in e["trials"]:
                    found[name] |= {"status": "queued", "until": e["until"]}
            case "energy":
                for name, (joules, seconds) in e["trials"].items():
                    found[name]["joules"] = (found[name]["joules"] or 0.0) + joules
                    found[name]["metered"] += seconds
            case "ended":
                take_end(trial, e)
    return found


def take_end(trial, e):
    if trial["status"] == "running":
        at = trial["placed"][-1]
        trial["seconds"] += len(at["slots"]) * (e["time"] - at["time"])
    trial["reason"] = e.get("reason")
    if e["outcome"] == "interrupted":
        trial["status"] = "queued"
        return
    trial |= {
        "last": e,
        "status": e["outcome"],
        "objective": e.get("objective"),
        "score": e.get("score"),
    }
    trial |= {"mae": e.get("val_mae", {}), "epoch": e.get("reached", trial["epoch"])}
    trial["parameters"] = e.get("parameters") or trial["parameters"]


def ranking(trials):
    """Order trials with a result: trained furthest first, then by score."""
    done = sorted(with_score(trials).values(), key=lambda t: t["name"])
    scores = [tuple(t["score"]) if isinstance(t["score"], list) else t["score"] for t in done]
    return sorted([done[k] for k in rank_points(scores)], key=lambda t: -t["until"])


def with_score(trials):
    return {n: t for n, t in trials.items() if t["status"] in DONE and t["score"] is not None}


def all_slots(events):
    return {
        slot
        for e in events
        if e["event"] in ("opened", "host_joined", "placed")
        for slot in e.get("slots", ())
    }


def slots_per_host(events):
    slots = all_slots(events)
    return len(slots) / len({host_of(slot) for slot in slots})


def slot_seconds(run, events):
    """Return slot-seconds by cause."""
    ledger = SlotLedger()
    for e in events:
        ledger.apply(e)
    searched = sum(e["event"] == "proposed" and "parent" not in e for e in events)
    over = any(e["event"] == "finished" for e in events)
    more = not over and searched < campaign_of(run)["search"]["trials"]
    return ledger.utilization(more=more).by_cause


def attempts_of(events):
    """Return every attempt with its epochs, and when it ended or was last heard of."""
    running, found, last = {}, [], {}
    for e in events:
        last[e["epoch"]] = e["time"]
        if e["event"] == "placed":
            running[e["trial"]] = attempt = {**e, "epochs": [], "told": e["epoch"], "how": None}
            found.append(attempt)
        elif e.get("trial") in running:
            attempt = running[e["trial"]]
            if e["event"] == "ended":
                attempt |= {"how": e, "end": last[attempt["told"]]}
                del running[e["trial"]]
            else:
                attempt["told"] = e["epoch"]
                attempt["epochs"] += [e["seconds"]] if e["event"] == "epoch" else []
    for attempt in running.values():
        attempt["end"] = last[attempt["told"]]
    return found


# -- sections ------------------------------------------------------------------------


def headline(run):
    events, table = events_of(run), ensemble_of(run)
    trials = trials_of(events)
    found = errors_of_heads(run, table) if table else best_trial(trials)
    status = Counter(trial["status"] for trial in trials.values())
    begin = next(e["time"] for e in events if e["event"] == "placed")
    seconds = slot_seconds(run, events)
    duration, hosts = events[-1]["time"] - begin, sum(seconds.values()) / slots_per_host(events)
    energy = [e for e in events if e["event"] == "energy"]
    joules = sum(e["idle"] + sum(j for j, _ in e["trials"].values()) for e in energy)
    return found | {
        "trials": len(trials),
        "completed": status["completed"],
        "stopped": status["stopped"],
        "failed": status["failed"],
        "open": status["queued"] + status["running"],
        "duration": duration / size_of(duration, days=True),
        "host_time": hosts / size_of(hosts),
        "energy": joules / (3.6e6 if joules >= 3.6e6 else 1e3) if energy else None,
        "utilization": seconds["training"] / sum(seconds.values()),
    }


def errors_of_heads(run, table):
    cards = [tomllib.loads(p.read_text()) for p in (run / "data").glob("*.bp/card.toml")]
    arrays, found = arrays_of(run), {}
    for name, head in table["heads"].items():
        mae = np.abs(arrays[f"{name}/mean"] - arrays[f"{name}/truth"]).mean()
        known = [p["mae"] for c in cards for p in c["targets"].get(name, {}).get("published", [])]
        found |= {
            f"test_mae.{name}": mae,
            f"heads.{name}.ensemble": mae,
            f"heads.{name}.single": head["single_mae"],
            f"heads.{name}.baseline": head["mean_baseline_mae"],
            f"heads.{name}.ratio": mae / head["mean_baseline_mae"],
            f"heads.{name}.coverage90": head["coverage90"],
            f"heads.{name}.published": min(known, default=None),
        }
    return found


def best_trial(trials):
    best = ranking(trials)[0]
    found = {f"val_mae.{head}": mae for head, mae in best["mae"].items()}
    return found or {"objective": best["objective"]}


def progress(run):
    events = events_of(run)
    trials, slots = trials_of(events), slots_per_host(events)
    told, spent, results, placed = set(), 0.0, [], {}
    for e in events:
        if e["event"] == "placed":
            placed[e["trial"]] = e
        if e["event"] != "ended":
            continue
        if e["trial"] in placed:
            start = placed.pop(e["trial"])
            spent += len(start["slots"]) * (e["time"] - start["time"])
        if e["outcome"] == "interrupted" or trials[e["trial"]]["parent"]:
            continue
        told.add(e["trial"])
        if e.get("score") is not None:
            results.append((first(e["score"]), len(told), spent / slots))
    best = min(results)
    close = next(r for r in results if r[0] <= 1.01 * best[0])
    size = size_of(best[2])
    found = {"best": best[0], "trials_to_best": best[1], "time_to_best": best[2] / size}
    found |= {"trials_to_close": close[1], "time_to_close": close[2] / size}
    size = size_of(max(trial["seconds"] for trial in ranking(trials)[:10]))
    for rank, trial in enumerate(ranking(trials)[:10], start=1):
        row = f"top.{trial['name']}"
        found |= {f"{row}.rank": rank, f"{row}.epochs": trial["epoch"]}
        found |= {f"{row}.objective": trial["objective"], f"{row}.time": trial["seconds"] / size}
        found |= {f"{row}.val_mae.{head}": mae for head, mae in trial["mae"].items()}
    return found


def slots(run):
    events = events_of(run)
    attempts = attempts_of(events)
    known = all_slots(events)
    first = [e["seconds"] for e in events if e["event"] == "first_step"]
    duration = max(a["end"] for a in attempts if a["end"] > a["time"]) - attempts[0]["time"]
    found = {
        "hosts": len({host_of(slot) for slot in known}),
        "slots": len(known),
        "duration": duration / size_of(duration, days=True),
        "attempts": len(attempts),
        "wide_attempts": sum(a["width"] > 1 for a in attempts),
        "first_step": statistics.median(first),
    }
    accounted = losses(run)
    for cause in ("held", "brain", "tail", "away"):
        found[f"idle.{cause}.time"] = accounted[f"causes.{cause}.time"]
        found[f"idle.{cause}.share"] = accounted[f"causes.{cause}.share"]
    return found


def losses(run):
    events = events_of(run)
    seconds = slot_seconds(run, events)
    total = sum(seconds.values())
    found = {"utilization": seconds["training"] / total, "slot_time": total / size_of(total)}
    found["largest"] = max(s for c, s in seconds.items() if c != "training") / total
    for cause in seconds:
        found[f"causes.{cause}.time"] = seconds[cause] / size_of(total)
        found[f"causes.{cause}.share"] = seconds[cause] / total
    return found


def curves(run):
    rested, promoted, until = defaultdict(list), defaultdict(set), {}
    parents = set()
    for e in events_of(run):
        if e["event"] == "proposed":
            until[e["trial"]] = e["until"]
            parents |= {e["trial"]} if e.get("parent") else set()
        elif e["event"] == "promoted":
            for name in e["trials"]:
                promoted[until[name]].add(name)
                until[name] = e["until"]
        elif e["event"] == "ended" and e["outcome"] not in ("interrupted", "cancelled"):
            rested[until[e["trial"]]] += [] if e["trial"] in parents else [e.get("score")]
    found = {}
    for rung in campaign_of(run)["search"]["rungs"]:
        scores = [first(score) for score in rested[rung] if score is not None]
        found |= {
            f"rungs.epoch {rung}.rested": len(rested[rung]),
            f"rungs.epoch {rung}.scored": len(scores),
            f"rungs.epoch {rung}.promoted": len(promoted[rung]),
            f"rungs.epoch {rung}.best": min(scores, default=None),
            f"rungs.epoch {rung}.median": statistics.median(scores) if scores else None,
        }
    return found


def failures(run):
    events = events_of(run)
    found = Counter()
    failed = [t for t in trials_of(events).values() if t["status"] == "failed"]
    size = size_of(sum(trial["seconds"] for trial in failed))
    for trial in failed:
        found[f"reasons.{trial['reason']}.trials"] += 1
        found[f"reasons.{trial['reason']}.time"] += trial["seconds"] / size
    for trial in failed[:200]:
        found[f"trials.{trial['name']}.attempts"] = trial["attempt"]
    names = defaultdict(set)
    for e in events:
        if e["event"] == "ended" and e["outcome"] == "interrupted":
            found[f"interruptions.{e['reason']}.times"] += 1
            names[e["reason"]].add(e["trial"])
    return dict(found) | {f"interruptions.{r}.trials": len(n) for r, n in names.items()}


def costs(run):
    events = events_of(run)
    convs = {e["trial"]: e["values"] for e in events if e["event"] == "proposed"}
    ratios, whole, by_conv = [], [], defaultdict(list)
    for attempt in attempts_of(events):
        if attempt["epochs"]:
            ratio = statistics.median(attempt["epochs"]) / attempt["predicted_epoch_seconds"]
            ratios.append(ratio)
            by_conv[convs[attempt["trial"]].get("model.conv", "all")].append(ratio)
        how = attempt["how"]
        if how and how["outcome"] in ("completed", "stopped") and how.get("reason") is None:
            whole.append((how["time"] - attempt["time"]) / attempt["predicted_seconds"])
    found = {"epoch_low": at(ratios, 0.1), "epoch_ratio": at(ratios, 0.5)}
    found |= {"epoch_high": at(ratios, 0.9)} | ({"attempt_ratio": at(whole, 0.5)} if whole else {})
    for conv, values in by_conv.items():
        row = {"attempts": len(values), "low": at(values, 0.1)}
        row |= {"median": at(values, 0.5), "high": at(values, 0.9)}
        found |= {f"convs.{conv}.{key}": value for key, value in row.items()}
    return found


def at(values, share):
    """Return a quantile: between two neighbours in proportion."""
    values, place = sorted(values), share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def provenance(run):
    events = events_of(run)
    openings = [e for e in events if e["event"] == "opened"]
    found = {"seed": campaign_of(run)["seed"], "controllers": len(openings), "events": len(events)}
    for e in openings:
        row = f"openings.controller {e['epoch']}"
        found[f"{row}.hosts"] = len({host_of(slot) for slot in e["slots"]})
        found[f"{row}.slots"] = len(e["slots"])
    return found


# -- the search and the ensemble -----------------------------------------------------


def parallel(run):
    found = with_score(trials_of(events_of(run)))
    order = sorted(found, key=lambda n: (-found[n]["until"], first(found[n]["score"]), n))
    keys = list(campaign_of(run)["space"])
    numbers = {}
    for name in order[:20]:
        numbers[f"best.{name}.objective"] = first(found[name]["score"])
        numbers[f"best.{name}.epochs"] = found[name]["epoch"]
        for key in keys:
            value = found[name]["values"].get(key)
            if not isinstance(value, (str, bool)):
                numbers[f"best.{name}.{key}"] = value
    return numbers


def kinds_of_cost(run):
    found, kinds = with_score(trials_of(events_of(run))), {}
    kinds["parameters"] = {n: t["parameters"] for n, t in found.items() if t["parameters"]}
    kinds["latency"] = {n: 1e3 * s for n in found if (s := latency(run, n)) is not None}
    kinds["slot_seconds"] = {n: t["seconds"] for n, t in found.items()}
    kinds["energy"] = {
        n: t["joules"] / 1e3
        for n, t in found.items()
        if t["joules"] is not None and t["metered"] >= 0.9 * t["seconds"] > 0
    }
    goals = [t["score"] for t in found.values() if isinstance(t["score"], list)]
    wanted = campaign_of(run)["search"].get("objective")
    for k in range(1, len(goals[0]) if goals else 0):
        kinds[f"goal{k}"] = {n: t["score"][k] for n, t in found.items()}
        if wanted[k] == "parameters":
            del kinds["parameters"]
    return {kind: of for kind, of in kinds.items() if of}


def latency(run, name):
    stores = [json.loads(p.read_text()) for p in run.glob("data/*.bp/stats.json")]
    structures = sum(store["splits"]["val"] for store in stores)
    for path in sorted(run.glob(f"trials/{name}/attempts/*/metrics.jsonl"), reverse=True):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        seconds = [r["val_seconds"] for r in records if r["record"] == "epoch"]
        if records[0]["world"] == 1 and seconds:
            return statistics.median(seconds) / structures
    return None


def pareto(run):
    found, kinds = with_score(trials_of(events_of(run))), kinds_of_cost(run)
    scores = {n: first(t["score"]) for n, t in found.items()}
    on = set()
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
    numbers = {}
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


def heads(run):
    numbers = {}
    told = ensemble_of(run).get("heads", {})
    arrays = arrays_of(run) if told else {}
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


def members(run):
    table, known = ensemble_of(run), trials_of(events_of(run))
    numbers = {}
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


def importance(run):
    facts = read_facts(RunDir(run))
    rows, found = observe_trials(facts), {}
    for target in list_targets(rows, facts.config.search.objective):
        if target.key.startswith("mae."):
            continue
        known = analyse_importance(facts.config, rows, target)
        found |= {f"trust.{target.key}.trials": known.trials, f"trust.{target.key}.r2": known.skill}
        for name, effect in known.effects.items():
            for figure in ("shap", "shap_share", "fanova", "ped_anova"):
                found[f"{target.key}.{name}.{figure}"] = getattr(effect, figure)
    return found


INDEPENDENT = {
    "headline": headline,
    "progress": progress,
    "slots": slots,
    "losses": losses,
    "curves": curves,
    "failures": failures,
    "costs": costs,
    "provenance": provenance,
    "parallel": parallel,
    "slices": lambda run: {},
    "pareto": pareto,
    "heads": heads,
    "members": members,
    "importance": importance,
}
"""By section: a function of a run directory (``Path``) that returns the value of each key, without
the section's own: ``test_mae.gap``, ``causes.tail.share``."""
