"""Every slot-second goes to one cause: hand counts, and a slow count second by second."""

import random

import pytest

from hydragnn_hpo.campaign.accounting import CAUSES, SlotLedger
from hydragnn_hpo.campaign.history import SlotHistory


class Story:
    """A journal; times are seconds."""

    def __init__(self, slots=("a:0", "a:1")):
        self.events = []
        self.controller = 1
        self.width = {}
        self.at(0, "opened", slots=list(slots))

    def at(self, time, event, **values):
        self.events.append({"event": event, "time": time, "epoch": self.controller, **values})
        return self

    def propose(self, time, *trials):
        for trial in trials:
            self.at(time, "proposed", trial=trial, values={}, until=4)
        return self

    def place(self, time, trial, *slots, first=None):
        self.at(time, "placed", trial=trial, slots=list(slots), width=len(slots), attempt=1)
        self.width[trial] = len(slots)
        if first is not None:
            self.at(first, "first_step", trial=trial, seconds=first - time)
        return self

    def epoch(self, time, trial, seconds):
        return self.at(time, "epoch", trial=trial, seconds=seconds, width=self.width[trial])

    def checkpoint(self, time, trial):
        return self.at(time, "checkpoint", trial=trial, reached=1, step=1)

    def end(self, time, trial, outcome="stopped", reason=None):
        return self.at(time, "ended", trial=trial, outcome=outcome, reason=reason)


def losses_of(events, *, more=False):
    """Return where the slot-seconds of a journal went."""
    ledger = SlotLedger()
    for event in events:
        ledger.apply(event)
    return ledger.utilization(more=more)


def counted(story, **wanted):
    """Compare all causes; those that are not named are 0."""
    actual = losses_of(story.events).by_cause
    assert actual == pytest.approx(dict.fromkeys(CAUSES, 0.0) | wanted, abs=1e-9)


def test_what_was_before_the_first_placement_and_after_the_last_end_does_not_count():
    story = Story(["a:0"]).propose(1, "t0").place(10, "t0", "a:0", first=12)
    story.epoch(20, "t0", 8).end(20, "t0").at(500, "finished")
    counted(story, start_up=2, training=8)


def test_the_first_step_is_not_counted_twice():
    """The first epoch's seconds hold the first step, which ended the start."""
    story = Story(["a:0"]).propose(0, "t0").place(0, "t0", "a:0", first=3).epoch(10, "t0", 9)
    counted(story.end(10, "t0"), start_up=3, training=7)


def test_epochs_that_are_reported_together_all_count():
    story = Story(["a:0"]).propose(0, "t0").place(0, "t0", "a:0", first=1)
    for _ in range(4):
        story.epoch(5, "t0", 0.75)
    counted(story.end(5, "t0"), start_up=1, training=3, between=1)


def test_who_asks_now_says_whether_more_is_to_be_proposed():
    story = Story().propose(0, "t0").place(0, "t0", "a:0", first=0).epoch(10, "t0", 10)
    assert losses_of(story.events, more=True).by_cause["brain"] == 10
    assert losses_of(story.events, more=False).by_cause["tail"] == 10


def test_a_lost_host_takes_the_work_since_the_checkpoint_with_it():
    story = Story(["a:0"]).at(0, "host_joined", host="b", slots=["b:0"]).propose(0, "t0")
    story.place(0, "t0", "a:0", first=1)
    story.epoch(11, "t0", 10).checkpoint(11, "t0").epoch(21, "t0", 10)
    story.end(26, "t0", "interrupted", "host_lost").at(26, "host_lost", host="a", reason="silent")
    story.place(30, "t0", "b:0", first=32).epoch(42, "t0", 10).end(42, "t0")
    # Host b idles for 26 s while nothing waits, then both for 4 s, while t0 waits.
    counted(story, training=20, start_up=3, lost=15, tail=26, held=4, away=4 + 12)


def test_a_checkpoint_inside_an_epoch_saves_what_was_done_of_it():
    story = Story(["a:0"]).propose(0, "t0").place(0, "t0", "a:0", first=0)
    story.epoch(10, "t0", 8).checkpoint(16, "t0")
    story.end(19, "t0", "interrupted", "stale").place(20, "t0", "a:0").end(21, "t0", "failed")
    counted(story, training=8 + 6, between=2, lost=3, held=1, start_up=1)


def test_an_interruption_that_was_requested_ends_and_loses_nothing():
    story = Story(["a:0"]).propose(0, "t0").place(0, "t0", "a:0", first=0)
    story.epoch(10, "t0", 10).checkpoint(14, "t0").end(15, "t0", "interrupted", "resized")
    counted(story, training=14, ending=1)


def test_a_failed_trial_has_trained_and_one_without_a_step_only_started():
    story = Story(["a:0"]).propose(0, "t0", "t1").place(0, "t0", "a:0", first=1)
    story.epoch(4, "t0", 3).end(6, "t0", "failed", "diverged")
    story.place(6, "t1", "a:0").end(8, "t1", "failed", "bug")
    counted(story, start_up=3, training=5)


def test_a_quarantined_host_is_away_once_it_is_idle():
    story = Story(["a:0", "b:0"]).propose(0, "t0", "t1")
    story.place(0, "t0", "a:0", first=0).place(0, "t1", "b:0", first=0)
    story.at(2, "quarantined", host="b", reason="failed twice")
    story.epoch(5, "t1", 5).end(5, "t1").epoch(9, "t0", 9).end(9, "t0")
    counted(story, training=14, away=4)


def test_a_host_that_comes_back_is_here_again():
    story = Story(["a:0"]).at(0, "host_joined", host="b", slots=["b:0"])
    story.propose(0, "t0").place(0, "t0", "a:0", first=0)
    story.at(3, "host_lost", host="b", reason="silent")
    story.at(5, "host_joined", host="b", slots=["b:0"]).epoch(9, "t0", 9).end(9, "t0")
    counted(story, training=9, tail=3 + 4, away=2)


def test_time_between_two_controllers_is_not_counted():
    story = Story(["a:0"]).propose(0, "t0").place(0, "t0", "a:0", first=1)
    story.epoch(5, "t0", 4).checkpoint(5, "t0").at(8, "proposed", trial="t1", values={}, until=4)
    story.controller = 2
    story.at(100, "opened", slots=["a:0"]).end(101, "t0", "interrupted", "host_lost")
    story.place(103, "t0", "a:0", first=104).epoch(109, "t0", 5).end(109, "t0")
    counted(story, start_up=2, training=9, lost=3)


def test_a_trial_that_a_new_controller_adopts_has_trained_meanwhile():
    story = Story().propose(0, "t0").place(0, "t0", "a:0", first=1).epoch(5, "t0", 4)
    story.controller = 2
    story.at(20, "opened", slots=["a:0", "a:1"]).epoch(25, "t0", 18).end(27, "t0")
    # The second slot: 5 s with the first controller; the second counts from what it adopted.
    counted(story, start_up=1, training=22, between=2, ending=2, tail=5 + 2)


def test_now_counts_what_runs_and_what_idles():
    story = Story().propose(0, "t0").place(0, "t0", "a:0", first=1).epoch(5, "t0", 4)
    ledger = SlotLedger()
    for event in story.events:
        ledger.apply(event)
    assert ledger.utilization(now=8).by_cause["training"] == 7
    assert ledger.utilization(now=8).by_cause["tail"] == 8
    assert ledger.utilization(now=8).largest == "tail"
    assert ledger.utilization().slot_seconds == 10
    assert (ledger.training_now, ledger.slots, ledger.hosts) == (0.5, 2, (1, 0))


def test_nothing_is_known_before_anything_ran():
    result = losses_of([])
    assert (result.slot_seconds, result.largest, result.share("training")) == (0.0, None, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_count_second_by_second_agrees(seed):
    """Random histories of whole seconds; every slot is looked at in every second."""
    story, slots, spans = random_history(random.Random(seed))
    counts = dict.fromkeys(CAUSES, 0.0)
    starts = [span["placed"] for span in spans]
    for second in range(min(starts), max(span["end"] for span in spans)):
        for slot in slots:
            counts[what(slot, second, spans)] += 1
    actual = losses_of(story.events).by_cause
    assert actual == pytest.approx(counts)
    assert sum(counts.values()) == len(slots) * (max(s["end"] for s in spans) - min(starts))


def what(slot, second, spans):
    """Return what a slot does in one second, looking at everything."""
    for span in spans:
        if slot in span["slots"] and span["placed"] <= second < span["end"]:
            return phase(span, second)
    proposed = [s for s in spans if s["proposed"] <= second < s["placed"]]
    if proposed:
        return "held"
    return "brain" if any(s["proposed"] > second for s in spans) else "tail"


def phase(span, second):
    if second < span["first"]:
        return "start_up"
    if span["lost_from"] is not None and second >= span["lost_from"]:
        return "lost"
    if any(start <= second < end for start, end in span["epochs"]):
        return "training"
    return "ending" if second >= span["epochs"][-1][1] else "between"


def random_history(draw):
    """Make trials on random slots, some of which are lost after a checkpoint."""
    slots = [f"h{k // 2}:{k % 2}" for k in range(draw.randint(1, 6))]
    free_from = dict.fromkeys(slots, 0)
    spans = []
    for number in range(draw.randint(1, 12)):
        chosen = draw.sample(slots, draw.randint(1, len(slots)))
        placed = max(free_from[slot] for slot in chosen) + draw.randint(0, 3)
        span = {"trial": f"t{number}", "slots": chosen, "placed": placed}
        span["proposed"] = max(0, placed - draw.randint(0, 9))
        clock = span["first"] = placed + draw.randint(1, 3)
        span["epochs"] = []
        span["lost_from"] = None
        for _ in range(draw.randint(1, 4)):
            start = clock + (draw.randint(0, 1) if span["epochs"] else 0)
            clock = start + draw.randint(1, 5)
            span["epochs"].append((start, clock))
        if draw.random() < 0.3:
            span["lost_from"] = draw.choice(span["epochs"])[1]
        span["end"] = clock + draw.randint(0, 2)
        for slot in chosen:
            free_from[slot] = span["end"]
        spans.append(span)
    return write_journal(spans, slots), slots, spans


ORDER = ("epoch", "checkpoint", "ended", "proposed", "placed", "first_step")
"""Within one second, what an attempt ends with comes before who follows on its slots."""


def write_journal(spans, slots):
    """Write the histories down as a journal, in order of time."""
    story = Story(slots)
    for span in spans:
        trial, lost = span["trial"], span["lost_from"]
        story.propose(span["proposed"], trial)
        story.place(span["placed"], trial, *span["slots"], first=span["first"])
        for start, end in span["epochs"]:
            story.epoch(end, trial, end - start)
        if lost is None:
            story.end(span["end"], trial)
        else:  # it is given up at once, so that it does not wait again
            story.checkpoint(lost, trial).end(span["end"], trial, "interrupted", "host_lost")
            story.end(span["end"], trial, "cancelled")
    story.events[1:] = sorted(story.events[1:], key=lambda e: (e["time"], ORDER.index(e["event"])))
    return story


def at(time, kind, trial="t0", epoch=1, **values):
    return {"event": kind, "time": float(time), "epoch": epoch, "trial": trial, **values}


def placed(time, trial="t0"):
    return at(time, "placed", trial, until=4, slots=["a:0"], width=1)


BARS = {
    "what came after the last checkpoint of an interrupted attempt is lost": (
        [
            placed(10),
            at(11, "first_step", seconds=1.0),
            at(15, "checkpoint"),
            at(18, "ended", outcome="interrupted", reason="host_lost"),
            placed(20),
            at(21, "first_step", seconds=1.0),
            at(30, "checkpoint"),
            at(31, "ended", outcome="interrupted", reason="paused"),
        ],
        [(0, 1, "start-up"), (1, 5, "training"), (5, 8, "lost"), (10, 11, "start-up"),
         (11, 21, "training")],
    ),
    "without a first step all is starting, and an epoch stands for one": (
        [
            placed(0),
            at(5, "ended", outcome="failed"),
            placed(5, "t1"),
            at(9, "epoch", "t1", seconds=3.0),
            at(12, "ended", "t1", outcome="stopped"),
        ],
        [(0, 5, "start-up"), (5, 6, "start-up"), (6, 12, "training")],
    ),
    "a dead controller is followed to where it was last heard of": (
        [
            placed(0),
            at(1, "first_step", seconds=1.0),
            at(7, "epoch", seconds=6.0),
            at(100, "ended", epoch=2, outcome="interrupted", reason="host_lost"),
        ],
        [(0, 1, "start-up"), (1, 7, "lost")],
    ),
    "an adopted attempt runs through": (
        [
            placed(0),
            at(1, "first_step", seconds=1.0),
            at(50, "epoch", epoch=2, seconds=49.0),
            at(60, "ended", epoch=2, outcome="stopped"),
        ],
        [(0, 1, "start-up"), (1, 60, "training")],
    ),
    "who runs on reaches to the last event": (
        [placed(0), at(2, "first_step", seconds=2.0), at(8, "proposed", "t9")],
        [(0, 2, "start-up"), (2, 8, "training")],
    ),
    "nothing ran": ([at(0, "proposed")], []),
}  # fmt: skip
"""Events, and when slots did what: seconds since the first placement."""


@pytest.mark.parametrize(("events", "bars"), BARS.values(), ids=BARS)
def test_bars_of_slots(events, bars):
    history = SlotHistory()
    for event in events:
        history.apply(event)
    assert [(bar.start, bar.end, bar.what) for bar in history.bars] == bars
    assert {bar.slots for bar in history.bars} <= {("a:0",)}
    assert {bar.trial for bar in history.bars} <= {"t0@4", "t1@4"}
