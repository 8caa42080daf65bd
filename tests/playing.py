"""A backend that runs jobs, and all events it told: for tests that start real agents."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.job import Backend, Event, Job, Slot

SECONDS = 240.0
"""Patience with agents on a busy machine."""


class Play:
    """Starts jobs on a backend, and waits for what it tells."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.events: list[Event] = []

    def poll(self) -> None:
        self.events += self.backend.poll(0.1)

    def until(self, look: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, f"no {what} in {self.events}"
            self.poll()

    def events_of(self, kind: str, job: str | None = None) -> list[Event]:
        return [event for event in self.events if (event.kind, event.job) == (kind, job)]

    def wait(self, kind: str, job: str | None = None, count: int = 1) -> Any:
        """Wait for so many events of a kind; gives what the last of them says."""
        self.until(lambda: len(self.events_of(kind, job)) >= count, f"{kind} of {job}")
        return self.events_of(kind, job)[-1].data

    def have(self, slots: int) -> None:
        self.until(lambda: len(self.backend.slots) == slots, f"{slots} slots")

    def slots(self, *names: str) -> tuple[Slot, ...]:
        known = {slot.name: slot for slot in self.backend.slots}
        return tuple(known[name] for name in names)

    def start(self, kind: str, slots: Sequence[Slot], name: str = "job", **spec: Any) -> Job:
        place = self.folder / name
        place.mkdir()
        watch = place / "metrics.jsonl"
        spec |= {"folder": str(place), "metrics": str(watch)}
        job = Job(name, kind, len(slots), spec, place / "log", watch, tuple(slots))
        self.backend.start(job)
        return job

    def pids(self, job: str = "job") -> list[int]:
        return self.wait("started", job)["pids"]

    def works(self, name: str, slots: Sequence[Slot] = ()) -> None:
        """Check that a new job runs well."""
        job = self.start("nothing", slots or self.backend.slots[:1], name)
        assert self.wait("ended", name)["codes"] == [0] * job.width, self.events
