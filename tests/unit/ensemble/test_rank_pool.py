"""Which ranks are started, replaced and given up."""

from pathlib import Path

import pytest

from hydragnn_hpo.ensemble import rank_pool
from hydragnn_hpo.ensemble.rank_pool import MAX_STARTS, RankPool
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.job import Event, Job, Slot


class Stage:
    """A backend whose jobs end as a list says, in the order in which they were started."""

    settled = True

    def __init__(self, slots: int, *codes: list[int]) -> None:
        self.slots = tuple(Slot("h", n, (n,), "cpu") for n in range(slots))
        self.codes = list(codes)
        self.started: list[Job] = []
        self.stopped: list[str] = []
        self._alive: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._alive.append(job)

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        self.stopped.append(job_id)

    def poll(self, timeout: float) -> list[Event]:
        if not self._alive or not self.codes:
            return []
        job = self._alive.pop(0)
        return [Event("ended", job.id, 0.0, {"codes": self.codes.pop(0)})]


def run(stage: Stage, *, one_job: bool = False) -> list[list[int]]:
    RankPool(stage, Path("work"), {"a": 1}, one_job=one_job).run(lambda: None)  # type: ignore[arg-type]
    return [[slot.index for slot in job.slots] for job in stage.started]


def test_one_rank_on_each_slot_and_none_after_the_end():
    assert run(Stage(3, [0], [0], [0])) == [[0], [1], [2]]


def test_who_only_waits_for_others_is_ended():
    stage = Stage(3, [0], [-15], [-15])
    run(stage)
    assert stage.stopped == [job.id for job in stage.started[1:]]


def test_launchers_start_all_ranks_together():
    assert run(Stage(3, [0, 0, 0]), one_job=True) == [[0, 1, 2]]


def test_a_lost_rank_is_replaced():
    assert run(Stage(2, [-9], [0], [0])) == [[0], [1], [0]]


def test_who_ends_badly_again_and_again_is_given_up():
    stage = Stage(1, *[[1]] * 5)
    with pytest.raises(JobError, match=r"all ranks have ended before .* see work/ranks.log"):
        run(stage)
    assert len(stage.started) == MAX_STARTS


def test_a_slot_that_fails_leaves_the_work_to_the_others():
    assert run(Stage(2, [1], [-11], [1], [0], [1])).count([0]) <= MAX_STARTS


class Lost(Stage):
    """Its host goes away with every rank, and comes back some polls later, or never."""

    def __init__(self, *codes: list[int], back: bool) -> None:
        super().__init__(1, *codes)
        self.back, self._there, self._away = back, self.slots, 0

    def poll(self, timeout: float) -> list[Event]:
        if not self.slots:
            self._away += 1
            self.slots = self._there if self.back and self._away > 3 else ()
            return []
        told = super().poll(timeout)
        if told and told[0].data["codes"] == [-9]:
            self.slots = ()
        return told


def test_ranks_go_on_when_the_last_host_that_was_lost_is_back():
    assert len(run(Lost([-9], [0], back=True))) == 2


def test_hosts_that_never_come_back_are_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(rank_pool, "HOST_SECONDS", 0.05)
    with pytest.raises(JobError, match="no host joined within"):
        run(Lost([-9], back=False))


def test_what_is_told_meanwhile_may_end_it():
    def tell() -> None:
        raise JobError("no more")

    with pytest.raises(JobError, match="no more"):
        RankPool(Stage(1), Path("work"), {}, one_job=False).run(tell)  # type: ignore[arg-type]
