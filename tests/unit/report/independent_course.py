"""What the sections on a campaign's course must say, computed once more and as plainly as possible.

Nothing here imports what reads a run: lines of the journal are JSON, and that is all.
"""

import json
import statistics
import struct
import tomllib
from collections import Counter, defaultdict

import numpy as np

CAUSES = ["training", "start_up", "between", "ending", "lost", "held", "brain", "tail", "away"]


def events_of(run):
    """Read the journal; a torn last line is left out."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line)["e"] for line in lines if line.endswith(b"}\n")]


def campaign_of(run):
    return tomllib.loads((run / "campaign.toml").read_text())


def ensemble_of(run):
    path = run / "report" / "ensemble.json"
    return json.loads(path.read_text()) if path.exists() else None


def arrays_of(run):
    """Read a safetensors file by its own definition: a length, JSON, bytes."""
    content = (run / "report" / "test_predictions.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    entries, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], kinds[entry["dtype"]])
        for name, entry in entries.items()
        if name != "__metadata__" and entry["dtype"] in kinds
    }


def size_of(seconds, days=False):
    """Return the seconds of the unit of a time: s below 5 min, min below 5 h, then h, or days."""
    if seconds < 300:
        return 1
    if seconds < 5 * 3600:
        return 60
    return 86_400 if days and seconds >= 5 * 86_400 else 3600


def host_of(slot):
    return slot.rpartition(":")[0]


# -- trials --------------------------------------------------------------------------


def trials_of(events):
    """Follow every trial through the journal."""
    found = {}
    for e in events:
        trial = found.get(e.get("trial"))
        match e["event"]:
            case "proposed":
                found[e["trial"]] = {
                    **{"name": e["trial"], "until": e["until"], "parent": e.get("parent")},
                    **{"status": "queued", "values": e["values"], "seconds": 0.0, "attempt": 0},
                    **{"score": None, "objective": None, "mae": {}, "epoch": 0, "saved": 0},
                    **{"reason": None},
                }
            case "placed":
                trial |= {"status": "running", "placed": e["time"], "slots": e["slots"]}
                trial["attempt"] = e["attempt"]
            case "epoch":
                trial |= {"epoch": e["reached"], "objective": e["best_objective"]}
            case "checkpoint":
                trial["saved"] = e["reached"]
            case "promoted":
                for name in e["trials"]:
                    found[name] |= {"status": "queued", "until": e["until"]}
            case "ended":
                take_end(trial, e)
    return found


def take_end(trial, e):
    if trial["status"] == "running":
        trial["seconds"] += len(trial["slots"]) * (e["time"] - trial["placed"])
    trial["reason"] = e.get("reason")
    if e["outcome"] == "interrupted":
        trial |= {"status": "queued", "epoch": trial["saved"]}
        return
    trial |= {"status": e["outcome"], "objective": e.get("objective")}
    trial |= {
        "mae": e.get("val_mae", {}),
        "score": e.get("score"),
        "epoch": e.get("reached", trial["epoch"]),
    }


def ranking(trials):
    """Order trials with a result: trained furthest first, then by score."""
    done = [t for t in trials.values() if t["status"] in ("stopped", "completed")]
    done = [t for t in done if t["score"] is not None]
    return sorted(done, key=lambda t: (-t["until"], t["score"], t["name"]))


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


# -- where the slot-seconds went -----------------------------------------------------


def slot_seconds(events, more):
    """Give slot-seconds by cause: attempts one by one, idle slots from event to event."""
    found = dict.fromkeys(CAUSES, 0.0)
    for attempt in attempts_of(events):
        for cause, seconds in parts_of(attempt).items():
            found[cause] += len(attempt["slots"]) * seconds
    for cause, seconds in idle_of(events, more).items():
        found[cause] += seconds
    return found


def attempts_of(events):
    """Give every attempt with its own events, and when it ended or was last heard of."""
    running, found, last = {}, [], {}
    for e in events:
        last[e["epoch"]] = e["time"]
        if e["event"] == "placed":
            running[e["trial"]] = attempt = {**e, "own": [], "told": e["epoch"], "how": None}
            found.append(attempt)
        elif e.get("trial") in running:
            attempt = running[e["trial"]]
            if e["event"] == "ended":
                attempt |= {"how": e, "end": last[attempt["told"]]}
                del running[e["trial"]]
            else:
                attempt["told"] = e["epoch"]
                attempt["own"].append(e)
    for attempt in running.values():
        attempt["end"] = last[attempt["told"]]
    return found


def parts_of(attempt):
    """Split one attempt by what its slots did."""
    placed, end, how = attempt["time"], attempt["end"], attempt["how"]
    first, trained, last, saved = None, 0.0, 0.0, None
    for e in attempt["own"]:
        if e["event"] == "first_step":
            first = min(placed + max(0.0, e["seconds"]), e["time"])
        elif e["event"] == "epoch":
            first = max(placed, e["time"] - e["seconds"]) if first is None else first
            trained, last = min(trained + e["seconds"], e["time"] - first), e["time"]
        elif e["event"] == "checkpoint" and first is not None:
            since = e["time"] - max(last, first)
            saved = e["time"], min(trained + since, e["time"] - first)
    if first is None:
        return {"start_up": end - placed}
    last = max(last, first)
    if how is not None and how["outcome"] == "interrupted":
        until, kept = saved or (first, 0.0)
        asked = how.get("reason") in ("paused", "resized", "walltime")
        gone = max(until, last) if asked else end
        parts = {"lost": gone - until, "ending": end - gone, "training": kept}
        return {**parts, "start_up": first - placed, "between": until - first - kept}
    rest = (
        "ending" if how is not None and how["outcome"] in ("completed", "stopped") else "training"
    )
    parts = Counter(start_up=first - placed, training=trained, between=last - first - trained)
    parts[rest] += end - last
    return parts


def idle_of(events, more):
    """Go from event to event and count the slots that nobody holds."""
    found = dict.fromkeys(CAUSES, 0.0)
    here, away, held_by, waiting = {}, set(), {}, set()
    begun, pending = False, []
    for number, e in enumerate(events):
        before = events[number - 1] if number else e
        if e["epoch"] != before["epoch"]:
            here, away, held_by, begun, pending = {}, set(), {}, False, []
        elif begun:
            passed = e["time"] - before["time"]
            taken = {slot for slots in held_by.values() for slot in slots}
            free = [s for slots in here.values() for s in slots if s not in taken]
            why = "held" if waiting else following(events[number:], more)
            for slot in free:
                pending.append(("away" if host_of(slot) in away else why, passed))
        if held_by or e["event"] == "placed":  # idle time after the last end does not count
            for why, passed in pending:
                found[why] += passed
            pending = []
        begun = begun or e["event"] == "placed"
        follow(e, here, away, held_by, waiting)
    return found


def following(events, more):
    """Say why slots idle while nothing waits: whether a trial is still to be proposed."""
    for e in events:
        if e["event"] in ("proposed", "added"):
            return "brain" if e["event"] == "proposed" else "tail"
    return "brain" if more else "tail"


def follow(e, here, away, held_by, waiting):
    """Take one event into what is known of hosts and trials."""
    name = e.get("trial")
    match e["event"]:
        case "opened":
            for slot in e["slots"]:
                here.setdefault(host_of(slot), []).append(slot)
        case "host_joined":
            here[e["host"]] = e["slots"]
            away.discard(e["host"])
        case "host_lost" | "quarantined" if e["host"] in here:
            away.add(e["host"])
        case "proposed":
            waiting.add(name)
        case "promoted":
            waiting.update(e["trials"])
        case "placed":
            waiting.discard(name)
            held_by[name] = e["slots"]
        case "ended":
            held_by.pop(name, None)
            waiting.discard(name)
            if e["outcome"] == "interrupted":
                waiting.add(name)


def unfinished(run, events):
    """Say whether trials are still to be proposed."""
    searched = sum(e["event"] == "proposed" and "parent" not in e for e in events)
    over = any(e["event"] == "finished" for e in events)
    return not over and searched < campaign_of(run)["search"]["trials"]


# -- sections ------------------------------------------------------------------------


def headline(run):
    events, table = events_of(run), ensemble_of(run)
    trials = trials_of(events)
    found = heads(run, table) if table else best_trial(trials)
    status = Counter(trial["status"] for trial in trials.values())
    begin = next(e["time"] for e in events if e["event"] == "placed")
    seconds = slot_seconds(events, more=False)
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


def heads(run, table):
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
            results.append((e["score"], len(told), spent / slots))
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
    seconds = slot_seconds(events, unfinished(run, events))
    total = sum(seconds.values())
    found = {"utilization": seconds["training"] / total, "slot_time": total / size_of(total)}
    found["largest"] = max(s for c, s in seconds.items() if c != "training") / total
    for cause in CAUSES:
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
        scores = [score for score in rested[rung] if score is not None]
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
        seconds = [e["seconds"] for e in attempt["own"] if e["event"] == "epoch"]
        if seconds:
            ratio = statistics.median(seconds) / attempt["predicted_epoch_seconds"]
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
    """Give a quantile: between two neighbours in proportion."""
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


COURSE = {
    "headline": headline,
    "progress": progress,
    "slots": slots,
    "losses": losses,
    "curves": curves,
    "failures": failures,
    "costs": costs,
    "provenance": provenance,
}
"""By section: a function of a run directory that gives the value of each key."""
