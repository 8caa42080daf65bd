"""Stage ``interruptions``: a trial is killed and asked to end, goes on, and comes to the same."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.acceptance.bench import Bench, Ended
from hydragnn_hpo.campaign.acceptance.comparing import errors_apart, resumed, same_bits
from hydragnn_hpo.campaign.acceptance.trials import (
    attempt_of,
    result_of,
    settled_on,
    store_of,
    weights_of,
    write_trial,
)
from hydragnn_hpo.campaign.acceptance.widths import layouts
from hydragnn_hpo.campaign.outcome import last_lines
from hydragnn_hpo.config.command import CommandConfig
from hydragnn_hpo.config.trial import INTERRUPTED
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.agent.command import spec_of
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.job import Event, Job, Slot
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.records import read_records

LENGTH_SECONDS = 8.0
"""Of the trial, from its second step on: three interruptions must find it at work."""

PACE_EPOCHS = 6
LEAST_EPOCHS, MOST_EPOCHS = 12, 5000

_KILL = """\
import os, sys
pid = sys.argv[1]
if open("/proc/" + pid + "/comm").read().strip() != "hpo-rank":
    sys.exit("process " + pid + " is no rank any more")
os.kill(int(pid), 9)
"""
"""Numbers of processes are used again: what is no rank of ours is left alone."""


@dataclass
class Interruption:
    """One way in which an attempt is made to end, at its first checkpoint."""

    name: str
    act: Callable[[Bench, Job, tuple[int, ...]], Job | None]
    """Given the job and the pids of its ranks; a job to start, if one is needed."""
    asked: bool
    """Whether the ranks are asked, and so leave a checkpoint and end with INTERRUPTED."""


def _kill(bench: Bench, job: Job, pids: tuple[int, ...]) -> Job | None:
    """Order the death of the last rank, by a process on its own host."""
    folder = bench.new_folder("kill")
    command = CommandConfig(argv=("{python}", "-c", _KILL, str(pids[-1])))
    slots, trial = (job.slots[-1],), TrialDir(folder)
    trial.attempt(1).mkdir(parents=True)
    spec = spec_of(command, trial, attempt=1, epochs=1, slots=slots)
    return Job(
        id=folder.name,
        kind="command",
        width=1,
        spec=spec,
        log=folder / "log",
        lease=folder / "lease",
        watch=None,
        slots=slots,
        folder=folder,
    )


def _terminate(bench: Bench, job: Job, pids: tuple[int, ...]) -> Job | None:
    bench.backend.stop(job.id, grace=60.0)
    return None


def _yield(bench: Bench, job: Job, pids: tuple[int, ...]) -> Job | None:
    bench.backend.ask(job.id, "yield")
    return None


INTERRUPTIONS = (
    Interruption("a rank killed by signal 9", _kill, asked=False),
    Interruption("asked to end by SIGTERM", _terminate, asked=True),
    Interruption("asked to yield", _yield, asked=True),
)


def run(bench: Bench, seconds: float) -> list[Finding]:
    """Train a trial unbroken and, the same, interrupted three times; compare.

    Raises:
        HydraError: the store could not be built, or the trial does not run at all.
    """
    store, folder = store_of(bench), bench.new_folder("interruptions")
    chosen = layouts(bench.hosts)
    slots = next(chosen[k] for k in ("two hosts", "one host", "one rank") if k in chosen)
    course = _Course(bench, store, folder, slots, seconds / 6)
    epochs = course.epochs()
    whole = course.trial("whole", epochs)
    course.whole(whole, epochs)
    cut = course.trial("cut", epochs)
    found = [course.interrupted(cut, epochs, how) for how in INTERRUPTIONS]
    course.whole(cut, epochs)
    found.append(course.went_on(cut))
    mae = [result_of(trial)["val_mae"] for trial in (whole, cut)]
    same = same_bits(weights_of(whole), weights_of(cut))
    exact = all(slot.device == "cpu" for slot in slots)
    return [
        *found,
        resumed(same, errors_apart(*mae), exact=exact, hosts=settled_on(slots)),
    ]


class _Course:
    """Attempts of trials on the same slots."""

    def __init__(
        self, bench: Bench, store: Path, folder: Path, slots: tuple[Slot, ...], seconds: float
    ) -> None:
        self.bench, self.store, self.folder = bench, store, folder
        self.slots, self.seconds = slots, seconds
        self.hosts = settled_on(slots)

    def trial(self, name: str, epochs: int) -> TrialDir:
        """Write a trial, in fp64: what adds in no fixed order must not hide what is lost."""
        return write_trial(
            self.folder / name, self.store, epochs=epochs, precision="fp64", checkpoint_seconds=0.0
        )

    def epochs(self) -> int:
        """Choose how long to train, by the pace of a few epochs."""
        trial = self.trial("pace", PACE_EPOCHS)
        self.whole(trial, PACE_EPOCHS)
        each = float(result_of(trial)["train_seconds"]) / PACE_EPOCHS
        wanted = math.ceil(LENGTH_SECONDS / max(each, 1e-6))
        return min(max(wanted, LEAST_EPOCHS), MOST_EPOCHS)

    def whole(self, trial: TrialDir, epochs: int) -> None:
        """Run an attempt that nobody disturbs.

        Raises:
            JobError: it did not end well.
        """
        job = attempt_of(trial, self.slots, epochs=epochs, store=self.store)
        ended = self.bench.run([job], self.seconds)[job.id]
        if not ended.well:
            why = ended.error or last_lines(job.log)
            raise JobError(f"the trial in {trial.path} did not end well: {why}.")

    def interrupted(self, trial: TrialDir, epochs: int, how: Interruption) -> Finding:
        """Run an attempt and interrupt it once it has left a checkpoint."""
        job = attempt_of(trial, self.slots, epochs=epochs, store=self.store)
        hook = _Hook(self.bench, job, how)
        ended = self.bench.run([job], self.seconds, hook.hear)[job.id]
        hook.end()
        return judge_end(how.name, ended, asked=how.asked, acted=hook.acted, hosts=self.hosts)

    def went_on(self, trial: TrialDir) -> Finding:
        """See that each further attempt began at a checkpoint."""
        steps = [_resumed_at(trial, number) for number in trial.attempts()[1:]]
        good = all(steps) and steps == sorted(steps)
        return Finding(
            "goes on from checkpoints",
            "ok" if good else "wrong",
            found=f"began at steps {', '.join(map(str, steps))}",
            expected="each further than the one before",
            cure="" if good else f"see the logs in {trial.path}.",
            hosts=self.hosts,
        )


class _Hook:
    """Acts on a job, once, when it has written a checkpoint."""

    def __init__(self, bench: Bench, job: Job, how: Interruption) -> None:
        self.bench, self.job, self.how = bench, job, how
        self.pids: tuple[int, ...] = ()
        self.acted = False
        self.order: Job | None = None

    def hear(self, event: Event) -> None:
        if event.kind == "started":
            self.pids = tuple(event.data["pids"])
        if event.kind == "record" and event.data.get("record") == "checkpoint" and not self.acted:
            self.acted = True
            self.order = self.how.act(self.bench, self.job, self.pids)
            if self.order is not None:
                self.bench.backend.start(self.order)

    def end(self) -> None:
        """See that nothing acts later, on whom it was not meant for."""
        if self.order is not None:
            self.bench.backend.stop(self.order.id, grace=0.0)


def judge_end(
    name: str, ended: Ended, *, asked: bool, acted: bool, hosts: tuple[str, ...]
) -> Finding:
    """Say whether an attempt ended as an interrupted one does."""
    early = not acted or ended.well
    good = all(code == INTERRUPTED for code in ended.codes) if asked else any(ended.codes)
    good = good and ended.error is None and bool(ended.codes)
    found = ended.error or f"ranks ended with {', '.join(map(str, ended.codes)) or 'nothing'}"
    expected = f"{INTERRUPTED} on every rank" if asked else "-9 on one, the others follow"
    if early and ended.error is None:
        found, good = "the trial ended before it could be interrupted", False
    return Finding(
        f"interruption: {name}",
        "ok" if good else "unknown" if early and ended.error is None else "wrong",
        found=found,
        expected=expected,
        cure="" if good else "see the trial's logs; is anything else ending processes here?",
        hosts=hosts,
    )


def _resumed_at(trial: TrialDir, number: int) -> int:
    """Give the step at which an attempt began; 0 for one that began anew."""
    told: list[Mapping[str, Any]] = [
        record
        for record in read_records(trial.attempt(number) / "metrics.jsonl")
        if record["record"] == "ready"
    ]
    return int(told[0]["step"]) if told and told[0]["resumed"] else 0
