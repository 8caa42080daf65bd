"""The stages of an acceptance, one after the other, each within its time."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.acceptance import interruptions, short_campaign, stores, sums, widths
from hydragnn_hpo.campaign.acceptance.bench import Bench, Site
from hydragnn_hpo.campaign.acceptance.report import Report, Stage
from hydragnn_hpo.campaign.backends import make_backend
from hydragnn_hpo.campaign.lease import Lease
from hydragnn_hpo.errors import HydraError, StorageError
from hydragnn_hpo.launching.doctor.finding import Finding

logger = logging.getLogger(__name__)

Told = tuple[list[Finding], dict[str, Any]]
"""Findings and figures of a stage."""

Tell = Callable[[Stage], None]


@dataclass(frozen=True)
class Step:
    """One stage that runs jobs."""

    name: str
    seconds: float
    """Its time; what still runs then is ended, and is a finding."""
    run: Callable[[Bench, float], list[Finding]]


STEPS = (
    Step("sums", 1200.0, sums.run),
    Step("widths", 600.0, widths.run),
    Step("interruptions", 900.0, interruptions.run),
    Step("staging", 600.0, stores.run),
)
DOCTOR, HOSTS, CAMPAIGN = "doctor", "hosts", "campaign"

STAGES = {
    DOCTOR: "doctor's checks of every host",
    HOSTS: "agents on all hosts",
    "sums": "all-reduce within hosts, between two, over all, against the profile",
    "widths": "one trial on one rank, one host and two hosts: the same result",
    "interruptions": "a trial killed, asked to end, resumed: the same result",
    "staging": "a store staged on every host: the same bytes",
    CAMPAIGN: "some minutes of a campaign on all hosts",
}
"""What is done, in this order."""


def accept(
    site: Site,
    report: Report,
    *,
    check: Callable[[], list[Finding]],
    expected: int,
    tell: Tell,
) -> None:
    """Run the stages that the report does not hold yet; each is written down as it ends.

    Args:
        site: what is accepted.
        report: what is known so far.
        check: doctor's own checks.
        expected: hosts that should come; 0 if nobody knows.
        tell: called with each stage that ended.

    Raises:
        RunError: another acceptance is at work in the folder.
        StorageError: the folder cannot be written.
        KeyboardInterrupt: a person ended it; the same command goes on.
    """

    def note(name: str, act: Callable[[], Told]) -> None:
        stage = _tried(name, act)
        report.add(stage)
        tell(stage)

    lease = Lease(site.folder)
    try:
        if not report.holds(DOCTOR):
            note(DOCTOR, partial(_of, check))
        _jobs(site, report, expected, note, lease.renew)
        if not report.holds(CAMPAIGN):
            folder = campaign_folder(site.folder, again=CAMPAIGN in report.stages)
            note(CAMPAIGN, partial(short_campaign.run, site, folder))
    finally:
        lease.release()


def _jobs(
    site: Site,
    report: Report,
    expected: int,
    note: Callable[[str, Callable[[], Told]], None],
    beat: Callable[[], None],
) -> None:
    """Run all stages that need nothing but jobs, on one backend."""
    missing = [step for step in STEPS if not report.holds(step.name)]
    if not missing and report.holds(HOSTS):
        return
    try:
        config = short_campaign.campaign_of(site)
        with make_backend(config, site.folder) as backend:
            bench = Bench(site, backend, beat)
            bench.gather(expected)
            report.see(bench.hosts, [step.name for step in STEPS])
            missing = [step for step in STEPS if not report.holds(step.name)]
            note(HOSTS, partial(_of, _joined, bench, expected))
            while missing:
                step = missing.pop(0)
                note(step.name, partial(_of, step.run, bench, step.seconds))
    except StorageError:
        raise
    except HydraError as error:  # no backend, no host: nothing of what is left can be done
        for name in [HOSTS, *(step.name for step in missing)]:
            note(name, partial(_of, _nothing, name, str(error)))


def _of(act: Callable[..., list[Finding]], *given: Any) -> Told:
    """Run a stage that has no figures beside its findings."""
    return act(*given), {}


def _nothing(name: str, why: str) -> list[Finding]:
    return [Finding(name, "wrong", why)]


def _joined(bench: Bench, expected: int) -> list[Finding]:
    count = len(bench.hosts)
    lacks = count < expected
    cure = "see doctor's findings and the agents' logs of missing hosts; leave broken ones out."
    return [
        Finding(
            "hosts that joined",
            "wrong" if lacks else "ok",
            found=f"{count}, with {len(bench.backend.slots)} slots",
            expected=str(expected or "at least one"),
            cure=cure if lacks else "",
        )
    ]


def _tried(name: str, act: Callable[[], Told]) -> Stage:
    """Run a stage; whatever ends it is a finding, and the others go on."""
    began = time.monotonic()
    try:
        findings, figures = act()
    except StorageError:
        raise
    except HydraError as error:
        findings, figures = [Finding(name, "wrong", str(error))], {}
    except Exception as error:
        logger.exception("stage %s", name)
        broken = Finding(name, "wrong", f"broke: {error!r}", cure="a fault of ours: report it.")
        findings, figures = [broken], {}
    return Stage(name, tuple(findings), time.monotonic() - began, figures)


def campaign_folder(folder: Path, *, again: bool) -> Path:
    """Give the campaign's run directory: one that a kill left behind goes on.

    Args:
        folder: of the acceptance.
        again: whether an earlier one came to its end, and was wrong.
    """
    there = sorted(folder.glob(f"{CAMPAIGN}.[0-9]*"))
    if there and not again:
        return there[-1]
    return folder / f"{CAMPAIGN}.{len(there) + 1:03d}"
