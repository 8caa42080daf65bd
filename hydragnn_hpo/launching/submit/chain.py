"""How one batch job follows another: decided here, purely.

Each job queues its successor when it begins, so that a job which is lost with its host is followed
too, and takes it back at its end where another job has nothing to do or to gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn_hpo.launching.submit.records import BatchJob

DRAINED = 75
"""Exit code of a ``run`` whose allocation ended before its campaign (``EX_TEMPFAIL``)."""

OWN_CODES = (0, 1, 2)
"""Exit codes with which ``run`` has said what there is to say: another job would say it again."""


@dataclass(frozen=True)
class Beginning:
    """What a job does when it begins."""

    goes_on: bool
    """Whether the campaign is run."""
    followed: bool
    """Whether a successor is queued."""
    said: str


@dataclass(frozen=True)
class Ending:
    """What a job does when its ``run`` has ended."""

    take_back: bool
    """Whether its own successor is taken back."""
    take_back_all: bool
    """Whether every queued job of the run is."""
    follow: bool
    """Whether a successor is still to be queued."""
    code: int
    """What the job ends with."""
    said: str


def same_chain(one: BatchJob, other: BatchJob) -> bool:
    """Say whether two jobs follow each other; those side by side each have a chain."""
    return (one.script, one.task) == (other.script, other.task)


def begin_chain_job(
    earlier: Sequence[BatchJob], own: BatchJob, *, progress: int, finished: bool
) -> Beginning:
    """Decide what a job does when it begins.

    Args:
        earlier: jobs before it in its chain, first to last.
        own: itself.
        progress: what the campaign has reached.
        finished: whether it is finished.
    """
    if finished:
        return Beginning(True, False, "the campaign is finished")
    before = next((job for job in earlier if job.id == own.after), None)
    if before is not None and _ended_chain(before, progress):  # but could not take us back
        return Beginning(False, False, f"job {before.id} has ended the chain: {before.said}")
    lost = [job for job in earlier if job.began is not None][-2:]
    if len(lost) == 2 and all(job.progress == progress for job in lost):
        said = f"jobs {lost[0].id} and {lost[1].id} got nowhere: the chain ends here"
        return Beginning(False, False, said)
    if own.link >= own.jobs:
        said = "the last one of its chain" if own.jobs > 1 else "no other follows"
        return Beginning(True, False, f"job {own.link} of {own.jobs}, {said}")
    return Beginning(True, True, f"job {own.link} of at most {own.jobs}")


def _ended_chain(job: BatchJob, progress: int) -> bool:
    """Say whether a job left nothing to do for another: what ``end`` decided, from the records."""
    return job.code is not None and (job.code in OWN_CODES or progress <= job.progress)


def end_chain_job(
    own: BatchJob, *, code: int, progress: int, finished: bool, followed: bool
) -> Ending:
    """Decide what a job does when its ``run`` has ended.

    Args:
        own: itself.
        code: exit code of ``run``; above 128: a signal ended it.
        progress: what the campaign has reached by now.
        finished: whether it is finished.
        followed: whether a successor is queued.
    """
    if finished:
        return Ending(True, True, False, code, "the campaign is finished")
    if code in OWN_CODES:
        if code == 0:
            return Ending(True, False, False, 0, "its part is done")
        return Ending(True, False, False, code, f"'run' ended with code {code}, see above")
    how = "drained" if code == DRAINED else f"'run' was lost (code {code})"
    if progress <= own.progress:
        said = (
            f"{how} without a finished epoch: the chain ends here, another job would do no better"
        )
        return Ending(True, False, False, code, said)
    if followed:
        return Ending(False, False, False, 0, f"{how}; the next job goes on")
    if own.link < own.jobs:  # the scheduler refused when it began
        return Ending(False, False, True, code, how)
    return Ending(False, False, False, code, f"{how}; no job follows: submit again to go on")
