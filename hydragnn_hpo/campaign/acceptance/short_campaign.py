"""Stage ``campaign``: some minutes of a real one on all hosts, and what came out."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.acceptance.bench import Site
from hydragnn_hpo.campaign.accounting import CAUSES
from hydragnn_hpo.campaign.backends import make_backend
from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.journal import Event, read_journal
from hydragnn_hpo.campaign.setup import find_cards, open_run
from hydragnn_hpo.campaign.shutdown import ShutdownRequest
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.shipped import find

CAMPAIGN = "quickstart"
TRIALS = 100_000
"""More than any machine ends in minutes: time ends it."""

RUNGS = (5, 20)
FINALISTS = 2

USEFUL = 0.5
"""Share of the slots' time in training below which a campaign is called slow: some minutes
are mostly starts and ends, hours are not."""

OPENING_SECONDS = 900.0
"""How long it may take until the first trial is placed."""

PATIENCE_SECONDS = 300.0
"""How much longer it goes on where no trial has come to its first rung yet."""


class Clock:
    """Ends a campaign once its trials have had their time, and one has come to a rung."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Begin to wait for the first trial.

        Args:
            seconds: that trials have, from the first on.
            now: gives seconds.
        """
        self.seconds, self.now, self.opened = seconds, now, now()
        self.first: float | None = None
        self.pause, self.due = ShutdownRequest(), False

    def watch(self, state: State, controller: object) -> None:
        """Look at a campaign; called after each of its turns."""
        now = self.now()
        if self.first is None and state.count("running"):
            self.first = now
        if self.first is None:
            over = now > self.opened + OPENING_SECONDS
        else:
            rested = any(trial.rests for trial in state.trials.values())
            over = now > self.first + self.seconds + (0.0 if rested else PATIENCE_SECONDS)
        if over:
            self.due = self.pause.wanted = True


def run(site: Site, folder: Path) -> tuple[list[Finding], dict[str, Any]]:
    """Run a campaign, let it rest when its time is up, and read its journal.

    Args:
        site: what is accepted.
        folder: the campaign's run directory; one that was killed there goes on.

    Returns:
        What was found, and the campaign's figures.

    Raises:
        HydraError: it ended by itself.
        KeyboardInterrupt: a person ended it.
    """
    config = campaign_of(site)
    cards = {
        path: card.name for path, card in find_cards(config, find(CAMPAIGN, "workflows")).items()
    }
    clock, opened = Clock(60.0 * site.minutes), open_run(config, folder)
    with clock.pause.handle_signals():
        controller = Controller(
            config,
            opened,
            cards=cards,
            make_backend=lambda: make_backend(config, opened.path),
            watch=clock.watch,
            pause=clock.pause,
        )
        try:
            controller.run()
        except KeyboardInterrupt:
            if not clock.due:
                raise
        finally:
            hosts = {slot.host for slot in controller.backend.slots}
            controller.close()
    return judge(read_journal(opened.journal), hosts, opened)


def campaign_of(site: Site) -> CampaignConfig:
    """Give the shipped quickstart on this machine, with more trials than there is time for."""
    given = load(find(CAMPAIGN, "workflows"), CampaignConfig)
    wanted = {"trials": TRIALS, "brain": "random", "rungs": RUNGS, "finalists": FINALISTS}
    changes = {"name": "acceptance", "machine": site.machine}
    return given.model_copy(update={**changes, "search": given.search.model_copy(update=wanted)})


def judge(
    events: Iterable[Event], hosts: Iterable[str], run: RunDir
) -> tuple[list[Finding], dict[str, Any]]:
    """Say whether trials ended on every host, nothing was lost, and the slots were of use.

    Args:
        events: the campaign's journal.
        hosts: those that were there at its end.
        run: its directory: results are looked for there.
    """
    told = list(events)
    reckoning = JournalFold(told)
    placed = [event for event in told if event["event"] == "placed"]
    used = {slot.rpartition(":")[0] for event in placed for slot in event["slots"]}
    hours = (told[-1]["time"] - placed[0]["time"]) / 3600.0 if placed else 0.0
    rested = [name for name, trial in reckoning.state.trials.items() if trial.rests]
    rate = len(rested) / hours if hours > 0.0 else 0.0
    figures = reckoning.figures() | {"hours": hours, "trials_per_hour": rate}
    found = [
        _progress(len(rested), figures),
        _reached(set(hosts), used),
        _kept(reckoning.state, rested, run),
        _useful(figures),
        _restarts(figures["restarts"]),
    ]
    return found, figures


def _progress(ended: int, figures: Mapping[str, Any]) -> Finding:
    rate = figures["trials_per_hour"]
    return Finding(
        "trials at a rung",
        "ok" if ended else "wrong",
        found=f"{ended}, or {rate:.0f} per hour, of {figures['trials']} that began",
        expected="some",
        cure="" if ended else "read status and logs of the campaign, or give it more --minutes.",
        figure=float(ended),
    )


def _reached(hosts: set[str], used: set[str]) -> Finding:
    idle = sorted(hosts - used)
    return Finding(
        "hosts with trials",
        "wrong" if idle or not hosts else "ok",
        found=f"{len(hosts & used)} of {len(hosts)}",
        expected="all",
        cure="see the agents' logs of these hosts, and doctor's findings." if idle else "",
        hosts=tuple(idle),
    )


def _kept(state: State, rested: Sequence[str], run: RunDir) -> Finding:
    """See that all that the journal counts as done is on disk, and nothing failed."""
    lost = [name for name, trial in state.trials.items() if trial.status == "running"]
    failed = [
        f"{name} ({trial.reason}: {trial.message})"
        for name, trial in state.trials.items()
        if trial.status == "failed" and trial.reason != "diverged"
    ]
    for name in rested:
        folder = run.trial(name)
        if not any((folder.attempt(n) / "result.json").exists() for n in folder.attempts()):
            lost.append(name)
    said = [f"no result of {', '.join(lost[:3])}"] if lost else []
    said += [f"failed: {failed[0]}"] if failed else []
    return Finding(
        "results kept",
        "wrong" if said else "ok",
        found="; ".join(said) or f"all of {len(rested)} trials",
        expected="all, and no trial fails",
        cure="read the logs in the trials' folders." if said else "",
        figure=float(len(lost) + len(failed)),
    )


def _useful(figures: Mapping[str, Any]) -> Finding:
    share = figures["utilization"] or 0.0
    shares = {cause: figures["losses"].get(cause, 0.0) for cause in CAUSES if cause != "training"}
    worst = max(shares, key=lambda cause: shares[cause])
    return Finding(
        "useful share of the slots' time",
        "ok" if share >= USEFUL else "slow",
        found=f"{100 * share:.0f} %; most lost: {CAUSES[worst]} ({100 * shares[worst]:.0f} %)",
        expected=f"{100 * USEFUL:.0f} % or more, in some minutes",
        cure="" if share >= USEFUL else "give it more --minutes; then see which cause grows.",
        figure=share,
    )


def _restarts(restarts: Mapping[str, int]) -> Finding:
    """Show losses that nobody asked for."""
    odd = {why: n for why, n in restarts.items() if why not in ("paused", "resized", "walltime")}
    told = ", ".join(f"{why} {n} times" for why, n in sorted(odd.items()))
    return Finding(
        "attempts lost",
        "slow" if odd else "ok",
        found=told or "none",
        expected="none",
        cure="see the journal for the hosts that were lost." if odd else "",
        figure=float(sum(odd.values())),
    )
