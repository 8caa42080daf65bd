"""What a run's slots did, as bars over time: from its journal."""

from collections.abc import Iterable
from dataclasses import dataclass

from hydragnn_hpo.campaign.records.journal import Event
from hydragnn_hpo.campaign.records.losses import ASKED
from hydragnn_hpo.placement.simulated import Bar


@dataclass
class _Open:
    """An attempt that has not ended yet."""

    trial: str
    until: int
    slots: tuple[str, ...]
    placed: float
    epoch: int
    """The controller that told of it last."""
    first: float | None = None
    saved: float | None = None

    def bars(self, end: float, *, lost: bool) -> Iterable[Bar]:
        """Give its bars; what came after its last checkpoint may be lost."""
        first = min(self.first or end, end)
        kept = max(first, self.saved or first) if lost else end
        name = f"{self.trial}@{self.until}"
        if first > self.placed:
            yield Bar(name, self.slots, self.placed, first, "start-up")
        if kept > first:
            yield Bar(name, self.slots, first, kept, "training")
        if end > kept:
            yield Bar(name, self.slots, kept, end, "lost")


def bars_of(events: Iterable[Event]) -> list[Bar]:
    """Give what every attempt did; seconds from the first placement on.

    An attempt whose controller died ends when that one was last heard of. Attempts that run on
    reach to the last event.
    """
    running: dict[str, _Open] = {}
    bars: list[Bar] = []
    last: dict[int, float] = {}
    begin: float | None = None
    for event in events:
        last[event["epoch"]] = time = event["time"]
        trial = running.get(event.get("trial", ""))
        if event["event"] == "placed":
            begin = time if begin is None else begin
            slots = tuple(event["slots"])
            opened = _Open(event["trial"], event["until"], slots, time, event["epoch"])
            running[event["trial"]] = opened
        elif trial is not None and event["event"] == "ended":
            lost = event["outcome"] == "interrupted" and event.get("reason") not in ASKED
            bars += trial.bars(last[trial.epoch], lost=lost)
            del running[trial.trial]
        elif trial is not None:
            trial.epoch = event["epoch"]
            _take(trial, event)
    for trial in running.values():
        bars += trial.bars(last[trial.epoch], lost=False)
    start = begin or 0.0
    return [Bar(b.trial, b.slots, b.start - start, b.end - start, b.what) for b in bars]


def _take(trial: _Open, event: Event) -> None:
    if event["event"] == "first_step":
        trial.first = min(trial.placed + max(0.0, event["seconds"]), event["time"])
    elif event["event"] == "epoch" and trial.first is None:
        trial.first = max(trial.placed, event["time"] - event["seconds"])
    elif event["event"] == "checkpoint":
        trial.saved = event["time"]
