"""A run directory of a few events, written down by hand."""

from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import read_facts


def at(time, kind, trial=None, epoch=1, **values):
    """Return an event; ``time`` in seconds."""
    named = {} if trial is None else {"trial": trial}
    return {"event": kind, "time": float(time), "epoch": epoch, **named, **values}


def placed(time, trial, *slots, until=4, attempt=1, epoch=1, **values):
    fields = {"slots": list(slots), "width": len(slots), "until": until, "attempt": attempt}
    return at(time, "placed", trial, epoch, **fields, **values)


def trained(time, trial, reached, objective, seconds, epoch=1):
    fields = {"objective": objective, "best_objective": objective, "width": 1}
    return at(time, "epoch", trial, epoch, reached=reached, seconds=seconds, **fields)


def ended(time, trial, outcome, score=None, attempt=1, epoch=1, **values):
    fields = {"outcome": outcome, "score": score, "objective": score, "attempt": attempt}
    return at(time, "ended", trial, epoch, **fields, **values)


def facts_of(path, events, trials=4, rungs=(4, 8)):
    """Write the events to a run directory and read it."""
    plain = {
        "name": "tiny",
        "data": [{"card": "nothing"}],
        "space": {"model.features": {"low": 1, "high": 9}},
        "search": {"trials": trials, "rungs": list(rungs), "initial": 1, "finalists": 1},
    }
    run = RunDir(path)
    run.campaign.write_text(dump_config(parse_config(plain, CampaignConfig, "tiny")))
    run.journal.write_bytes(b"".join(map(encode, events)))
    return read_facts(run)
