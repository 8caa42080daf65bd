"""Latency of a trained net: seconds per structure, as its trial measured while validating."""

import json
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from hydragnn_hpo.layout import RunDir

_MOST = 4000
"""Trials whose records are read at most: a report is written in seconds."""


def read_latencies(run: RunDir, trials: Iterable[str]) -> dict[str, float]:
    """Return seconds per structure by trial.

    Args:
        run: the run directory.
        trials: names, the most interesting first.

    Returns:
        Median over the epochs of each trial's last attempt of one rank. Trials without a
        directory, without such an attempt or without records are left out; so are all where no
        store says how many structures were validated.
    """
    structures = _count_validated(run)
    if not structures:
        return {}
    seconds = {name: _val_seconds(run, name) for name in list(trials)[:_MOST]}
    return {name: statistics.median(s) / structures for name, s in seconds.items() if s}


def _count_validated(run: RunDir) -> int:
    """Count the structures of the validation split, over all stores."""
    total = 0
    for path in run.data.glob("*.bp/stats.json"):
        try:
            total += int(json.loads(path.read_bytes())["splits"]["val"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return total


def _val_seconds(run: RunDir, name: str) -> list[float]:
    folder = run.trial(name)
    for number in reversed(folder.attempts()):
        width, seconds = 0, []
        for record in _records(folder.attempt(number) / "metrics.jsonl"):
            if record.get("record") == "start":
                width = record.get("world", 0)
            elif record.get("record") == "epoch" and "val_seconds" in record:
                seconds.append(float(record["val_seconds"]))
        if width == 1 and seconds:
            return seconds
    return []


def _records(path: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of an attempt; a torn line is passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
