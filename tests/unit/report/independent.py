"""The headline of a report from the raw lines of its journal: nothing of the package is used.

Counts, slot-seconds, energy, and the best trials. What else stands in a report comes from rooms
that have tests of their own; ``test_numbers`` compares with these.
"""

import json
from collections import Counter

DONE = ("stopped", "completed")


def events_of(run):
    """Read the journal; a torn last line is left out."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line)["e"] for line in lines if line.endswith(b"}\n")]


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
    result = {}
    for e in events:
        trial = result.get(e.get("trial"))
        match e["event"]:
            case "proposed":
                result[e["trial"]] = {
                    "name": e["trial"], "values": e["values"], "parent": e.get("parent"),
                    "until": e["until"], "status": "queued", "reason": None, "attempt": 0,
                    "score": None, "objective": None, "mae": {}, "epoch": 0,
                    "seconds": 0.0, "placed": [], "last": None,
                }  # fmt: skip
            case "placed":
                trial |= {"status": "running", "attempt": e["attempt"]}
                trial["placed"].append(e)
            case "epoch":
                trial["objective"] = e["best_objective"]
            case "promoted":
                for name in e["trials"]:
                    result[name] |= {"status": "queued", "until": e["until"]}
            case "ended":
                take_end(trial, e)
    return result


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


def ranking(trials):
    """Order trials by one goal: trained furthest first, then by score."""
    done = [t for t in trials.values() if t["status"] in DONE and t["score"] is not None]
    return sorted(done, key=lambda t: (-t["until"], t["score"], t["name"]))


def slots_per_host(events):
    slots = {slot for e in events if e["event"] != "proposed" for slot in e.get("slots", ())}
    return len(slots) / len({host_of(slot) for slot in slots})


def slot_seconds(events):
    """Return the slot-seconds that count: by controller, from the first start to the last end.

    A slot counts from when it is first there, also while its host is away.
    """
    total = 0.0
    for epoch in {e["epoch"] for e in events}:
        mine = [e for e in events if e["epoch"] == epoch]
        begin = next(e["time"] for e in mine if e["event"] == "placed")
        running = set()
        end = begin
        for e in mine:
            if e["event"] == "placed":
                running.add(e["trial"])
            elif e["event"] == "ended" and e["trial"] in running:
                running.remove(e["trial"])
                end = e["time"]
        end = mine[-1]["time"] if running else end
        joined = {}
        for e in mine:
            for slot in e.get("slots", ()) if e["event"] in ("opened", "host_joined") else ():
                joined.setdefault(slot, e["time"])
        total += sum(end - max(begin, time) for time in joined.values())
    return total


def training_seconds(events):
    """Return the slot-seconds of all epochs: training, where nothing fails or is interrupted."""
    return sum(e["width"] * e["seconds"] for e in events if e["event"] == "epoch")


def headline(run):
    events = events_of(run)
    trials = trials_of(events)
    status = Counter(trial["status"] for trial in trials.values())
    begin = next(e["time"] for e in events if e["event"] == "placed")
    duration = events[-1]["time"] - begin
    hosts = slot_seconds(events) / slots_per_host(events)
    energy = [e for e in events if e["event"] == "energy"]
    joules = sum(e["idle"] + sum(j for j, _ in e["trials"].values()) for e in energy)
    result = {
        "trials": len(trials),
        "completed": status["completed"],
        "stopped": status["stopped"],
        "failed": status["failed"],
        "open": status["queued"] + status["running"],
        "duration": duration / size_of(duration, days=True),
        "host_time": hosts / size_of(hosts),
    }
    if energy:
        result["energy"] = joules / (3.6e6 if joules >= 3.6e6 else 1e3)
    if not (run / "report" / "ensemble.json").exists():
        best = ranking(trials)[0]
        result |= {f"val_mae.{head}": mae for head, mae in best["mae"].items()}
    return result


def progress(run):
    events = events_of(run)
    trials = trials_of(events)
    slots = slots_per_host(events)
    scored_trials = set()
    spent = 0.0
    results = []
    placed = {}
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
        scored_trials.add(e["trial"])
        if e.get("score") is not None:
            results.append((first(e["score"]), len(scored_trials), spent / slots, e["score"]))
    best = min(results)
    close = next(r for r in results if r[0] <= 1.01 * best[0])
    size = size_of(best[2])
    result = {"best": best[0], "trials_to_best": best[1], "time_to_best": best[2] / size}
    result |= {"trials_to_close": close[1], "time_to_close": close[2] / size}
    several = isinstance(results[0][3], list)
    return result if several else result | top(ranking(trials)[:10])


def top(trials):
    results = {}
    size = size_of(max(trial["seconds"] for trial in trials))
    for rank, trial in enumerate(trials, start=1):
        row = f"top.{trial['name']}"
        results |= {f"{row}.rank": rank, f"{row}.epochs": trial["epoch"]}
        results |= {f"{row}.objective": trial["objective"], f"{row}.time": trial["seconds"] / size}
        results |= {f"{row}.val_mae.{head}": mae for head, mae in trial["mae"].items()}
    return results
