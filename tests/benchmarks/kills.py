"""Kill and freeze what runs a campaign, again and again; compare its results with an unbroken one.

A small campaign is run once without faults. The same campaign is then run many times while a seeded
schedule kills (SIGKILL) or freezes (SIGSTOP, for less or more than a lease) its controller, a rank,
an agent, a fork server or a whole host, while it starts, trains, saves checkpoints, changes widths
and ends. A controller that is gone is started again on the same directory. At the end every
trial has one result, with the validation MAE of the unbroken campaign.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from record import GOLDENS, dry_run, finish, make_parser

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes import find_orphans, named_so, send, state_of
from ray_cluster import RayCluster
from virtual_slurm import VirtualSlurm, missing

from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.host_info import parent_of
from hydragnn_hpo.launching.process_control import (
    HOST,
    die_with_parent,
    find_tagged,
    host_tag,
    run_tag,
)

LEASE = 6.0
"""Seconds: as short as a busy machine allows, so that freezes that outlast it are short too."""

SHORT, LONG = 0.3 * LEASE, 1.5 * LEASE
"""Lengths of freezes: one that every lease outlives, and one that no lease does."""

HITS = 10
"""Faults per campaign at most; whatever is left of it then runs to its end."""

PATIENCE = 240.0
"""Seconds until a campaign that makes no progress counts as hung."""

STARTS = 4
"""Controllers in a row that may end by themselves without progress."""

PARTS = {"rank": "hpo-rank", "agent": "hpo-agent", "fork server": "hpo-zygote"}
TARGETS = ("controller", "rank", "agent", "fork server", "host")
PROGRESS = ("first_step", "epoch", "checkpoint")
MOMENTS = (
    *("start", "placed", "first_step", "epoch", "epoch", "epoch", "checkpoint", "checkpoint"),
    *("asked", "asked", "ended", "last"),
)
"""Events after which a fault comes, those of training more often: most faults are to meet work."""

KINDS: dict[str, dict[str, int]] = {
    "brief": {"trials": 2, "max_width": 1},
    "narrow": {"trials": 3, "max_width": 1},
    "pair": {"trials": 1, "max_width": 2},  # alone on two slots: it has two ranks all the time
    "widen": {"trials": 3, "max_width": 2},  # the last goes on at two ranks once a slot is free
}
PROFILE = """
name = "kills"
extends = "workstation"
flops_per_second = 1e8
bytes_per_second = 1e8
step_seconds = 0.0
layer_seconds = 0.0
restart_seconds = 0.02
[within]
latency_seconds = 1e-6
bytes_per_second = 1e12
[between]
latency_seconds = 1e-6
bytes_per_second = 1e12
"""
"""Two ranks always seem worth it, and so does a restart at another width."""

Event = dict[str, Any]


class Place(Protocol):
    """Where campaigns run: their hosts, and how these are lost."""

    machine: dict[str, Any]
    environment: dict[str, str]

    def open(self) -> None:
        """Prepare for one campaign."""

    def close(self) -> None:
        """Release what the campaign had."""

    def end(self) -> None:
        """Leave nothing."""

    def hosts(self) -> list[str]:
        """Return the hosts that can be lost."""

    def processes(self, host: str, run: Path) -> list[int]:
        """Return all processes of a host."""

    def kill(self, host: str, run: Path) -> None:
        """Kill all processes of a host, and start what makes it a host again."""


class Local:
    """This computer: losing it loses the controller too."""

    def __init__(self, folder: Path) -> None:
        self.machine: dict[str, Any] = {"slots": 2}
        self.environment: dict[str, str] = {}

    def open(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None: ...

    def hosts(self) -> list[str]:
        return ["local"]

    def processes(self, host: str, run: Path) -> list[int]:
        return find_orphans(run_tag(run))

    def kill(self, host: str, run: Path) -> None:
        while result := self.processes(host, run):
            send(result, signal.SIGKILL)


class Slurm:
    """Three hosts of one slot each: a trial of two ranks spans two of them."""

    def __init__(self, folder: Path) -> None:
        self.machine: dict[str, Any] = {"backend": "slurm", "slots": 1}
        self.environment: dict[str, str] = {}
        self._cluster = VirtualSlurm(folder, hosts=3)
        self._cluster.start()

    def open(self) -> None:
        self.environment = self._cluster.allocate(3)

    def close(self) -> None:
        self._cluster.release()

    def end(self) -> None:
        self._cluster.stop()

    def hosts(self) -> list[str]:
        return self._cluster.hosts

    def processes(self, host: str, run: Path) -> list[int]:
        return self._cluster.processes(host)

    def kill(self, host: str, run: Path) -> None:
        self._cluster.signal_host(host, signal.SIGKILL)
        self._cluster.end_daemon(host)
        self._cluster.start_host(host)


class Ray:
    """Three hosts of a Ray cluster; one that is killed is followed by another."""

    def __init__(self, folder: Path) -> None:
        self._cluster = RayCluster(folder, 3)
        address = self._cluster.address
        self.machine: dict[str, Any] = {"backend": "ray", "address": address, "slots": 1}
        token = str(folder / "token")
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}

    def open(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None:
        self._cluster.close()

    def hosts(self) -> list[str]:
        return list(self._cluster.raylets)

    def processes(self, host: str, run: Path) -> list[int]:
        ours = find_tagged(HOST, host_tag(run_tag(run), host))
        return [self._cluster.raylets[host], *ours]

    def kill(self, host: str, run: Path) -> None:
        ours = find_tagged(HOST, host_tag(run_tag(run), host))
        self._cluster.kill(host)
        send(ours, signal.SIGKILL)
        self._cluster.add()


PLACES: dict[str, Callable[[Path], Place]] = {"local": Local, "slurm": Slurm, "ray": Ray}


def why_not(backend: str) -> str | None:
    """Return why a backend cannot be had here."""
    if backend == "slurm":
        return missing()
    if backend == "ray" and importlib.util.find_spec("ray") is None:
        return "ray is not installed."
    return None


def write_campaign(folder: Path, kind: str, machine: dict[str, Any], epochs: int) -> Path:
    """Write a campaign whose trials depend on its seed alone.

    fp64, as the order of sums, which depends on the number of ranks, is no matter then.
    """
    (folder / "profile.toml").write_text(PROFILE)
    trials = KINDS[kind]["trials"]
    values = {
        "name": "kills",
        "seed": 7,
        "data": [{"card": "g2_xtb"}],
        "trial": {
            "model": {"features": 16, "layers": 2, "cutoff": 4.0},
            "heads": {"atomization_energy_per_atom": {}, "partial_charge": {}},
            "training": {"global_batch": 64, "checkpoint_seconds": 0.0, "precision": "fp64"},
        },
        "space": {
            "model.conv": ["schnet", "painn"],
            "training.learning_rate": {"low": 1e-3, "high": 4e-3, "log": True},
        },
        "search": {
            "brain": "random",
            "trials": trials,
            "initial": trials,
            "rungs": [epochs],
            "finalists": trials,
            "max_restarts": 1000,
        },
        "ensemble": {"members": trials},
        "machine": machine
        | {
            "max_width": KINDS[kind]["max_width"],
            "lease_seconds": LEASE,
            "profile": str(folder / "profile.toml"),
        },
    }
    path = folder / "campaign.toml"
    path.write_text(to_toml(values))
    return path


class Campaign:
    """One campaign, and the controllers that ran it one after the other."""

    def __init__(self, folder: Path, kind: str, place: Place, epochs: int) -> None:
        """Write it; ``start`` runs it."""
        folder.mkdir(parents=True)
        self.run = folder / "run"
        self.kind = kind
        self._place = place
        self._folder = folder
        self.path = write_campaign(folder, kind, place.machine, epochs)

    def start(self) -> None:
        """Start a controller on the run directory."""
        us = os.getpid()
        self.started = time.monotonic()
        with (self._folder / "output").open("ab") as out:
            self.controller = subprocess.Popen(
                [sys.executable, "-m", "hydragnn_hpo", "run", self.path, "--run", self.run],
                cwd=self._folder,
                env=os.environ | self._place.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=lambda: die_with_parent(us),
            )

    def restart(self) -> None:
        """Start another controller in place of one that ended."""
        self.controller.wait()
        self.start()

    def events(self) -> list[Event]:
        """Return the journal."""
        path = self.run / "events.jsonl"
        return [dict(event) for event in read_journal(path)] if path.exists() else []

    def parts(self, part: str) -> list[int]:
        """Return the processes of one kind."""
        return named_so(find_orphans(run_tag(self.run)), PARTS[part])

    def unbroken(self) -> None:
        """Run a campaign without faults to its end."""
        self.start()
        assert self.controller.wait(PATIENCE) == 0, self.last_words()

    def last_words(self) -> str:
        """Return where the output is, and how it ends."""
        lines = (self._folder / "output").read_text(errors="replace").strip().splitlines()
        return f"{self._folder}/output: {lines[-1] if lines else 'empty'}"

    def end(self) -> None:
        """Kill whatever is left."""
        if self.controller.poll() is None:
            self.controller.kill()
            self.controller.wait()
        send(find_orphans(run_tag(self.run)), signal.SIGCONT)
        send(find_orphans(run_tag(self.run)), signal.SIGKILL)


@dataclass
class Outcome:
    """What the trials of a campaign came to."""

    errors: dict[str, dict[str, float]]
    """Validation MAE by trial and head."""
    widths: dict[str, set[int]]
    lost: list[str]
    twice: list[str]


def read_outcome(campaign: Campaign) -> Outcome:
    """Read what the journal counts as results, and the errors in the files of these."""
    trials = [f"t{number:04d}" for number in range(KINDS[campaign.kind]["trials"])]
    results: dict[str, int] = {}
    counted: Counter[str] = Counter()
    attempts: dict[str, dict[int, int]] = {trial: {} for trial in trials}
    for event in campaign.events():
        if event["event"] == "placed":
            attempts.setdefault(event["trial"], {})[event["attempt"]] = event["width"]
        if event["event"] == "ended" and event["outcome"] in ("completed", "stopped"):
            counted[event["trial"]] += 1
            results[event["trial"]] = event["attempt"]
    errors, widths = {}, {}
    for trial, attempt in results.items():
        folder = campaign.run / "trials" / trial / "attempts"
        errors[trial] = json.loads((folder / f"{attempt:03d}" / "result.json").read_text())[
            "val_mae"
        ]
        worked = [n for n in attempts[trial] if (folder / f"{n:03d}" / "metrics.jsonl").exists()]
        widths[trial] = {attempts[trial][n] for n in worked}
    more = [trial for trial in counted if counted[trial] > 1 or trial not in trials]
    return Outcome(errors, widths, [trial for trial in trials if trial not in counted], more)


def differences(actual: Outcome, unbroken: Outcome) -> Iterator[tuple[str, float, bool]]:
    """Yield each trial's largest relative difference, and whether its width ever was another."""
    for trial, errors in actual.errors.items():
        wanted = unbroken.errors[trial]
        assert errors.keys() == wanted.keys()
        worst = max(abs(errors[head] - wanted[head]) / abs(wanted[head]) for head in wanted)
        yield trial, worst, actual.widths[trial] != unbroken.widths[trial]


@dataclass
class Schedule:
    """Faults, and what became of them."""

    chance: random.Random
    freezes: tuple[float, ...] = (SHORT, LONG)
    kills: int = 0
    by_target: Counter[str] = field(default_factory=Counter)
    recoveries: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What campaigns said when their controllers ended by themselves."""

    def break_campaign(self, campaign: Campaign, place: Place, hits: int) -> None:
        """Hit a campaign several times, then let it end.

        Args:
            campaign: has not been started.
            place: where it runs.
            hits: how many faults at most.
        """
        campaign.start()
        done = 0
        while done < hits and not self._over(campaign):
            if not self._await_moment(campaign):
                continue
            if (hit := self._hit(campaign, place)) is None:
                continue
            done += 1
            self.kills += 1
            self.by_target[hit.what] += 1
            if self.chance.random() < 0.75:  # else the next fault meets what this one left
                self._await_recovery(campaign, hit)
        before, deadline = -1, 0.0
        while not self._over(campaign):
            if (now := len(campaign.events())) != before:
                before = now
                deadline = time.monotonic() + PATIENCE
            assert time.monotonic() < deadline, f"the campaign hangs: {campaign.last_words()}"
            time.sleep(0.2)

    def _over(self, campaign: Campaign) -> bool:
        """Check whether a campaign is done; a controller that failed is followed by another."""
        code = campaign.controller.poll()
        if code is None or code == 0:
            return code == 0
        self.failures.append(f"code {code}, {campaign.last_words()}")
        print(f"  a controller ended by itself: {self.failures[-1]}", flush=True)
        assert len(self.failures) < STARTS * (1 + self.kills), "no controller stays"
        campaign.restart()
        return False

    def _await_moment(self, campaign: Campaign) -> bool:
        """Wait for a chosen state and a bit longer; False if the campaign is over before."""
        moment = self.chance.choice(MOMENTS)
        if moment == "start":
            until = campaign.started + self.chance.uniform(0.0, 8.0)
        else:
            until = time.monotonic() + 8.0  # a state that does not come is no reason to wait
        seen = len(campaign.events())
        while time.monotonic() < until and campaign.controller.poll() is None:
            events = campaign.events()
            if moment == "last":
                ended = {e["trial"] for e in events if e.get("outcome") in ("completed", "stopped")}
                if len(ended) == KINDS[campaign.kind]["trials"]:
                    break
            elif any(event["event"] == moment for event in events[seen:]):
                break
            time.sleep(0.02)
        time.sleep(self.chance.uniform(0.0, 0.4))
        return campaign.controller.poll() is None

    def _hit(self, campaign: Campaign, place: Place) -> "Hit | None":
        """Kill or freeze something; None if there is no such thing now."""
        target = self.chance.choice(TARGETS)
        freeze = self.chance.choice((*self.freezes, 0.0, 0.0))
        host = ""
        pids = list[int]()
        if target == "controller":
            pids = [campaign.controller.pid]
        elif target == "host":
            host = self.chance.choice(place.hosts())
        elif running := campaign.parts(target):
            pids = [self.chance.choice(running)]
        if not pids and not host:
            return None
        reached = place.processes(host, campaign.run) if host else pids
        trials = {
            trial_of(rank)
            for rank in campaign.parts("rank")
            if target == "controller" or not ancestors(rank).isdisjoint(reached)
        }
        how = f"frozen {freeze:.1f} s" if freeze else "killed"
        outlived = freeze > 0 or (target == "controller" and not isinstance(place, Local))
        what = f"{target} {'frozen' if freeze else 'killed'}"
        now = time.time()
        seen = len(campaign.events())
        hit = Hit(what, trials - {""}, now, seen, now + freeze, outlived)
        print(f"  {target} {host} {how}, running {sorted(hit.trials)}", flush=True)
        whole = host and isinstance(place, Local)
        if freeze:
            reached = [*reached, campaign.controller.pid] if whole else reached
            send(reached, signal.SIGSTOP)
            time.sleep(freeze)
            send(reached, signal.SIGCONT)
        elif host:
            if whole:
                campaign.controller.kill()
            place.kill(host, campaign.run)
        else:
            send(pids, signal.SIGKILL)
        if not freeze and (whole or target == "controller"):
            campaign.restart()
        return hit

    def _await_recovery(self, campaign: Campaign, hit: "Hit") -> None:
        deadline = time.monotonic() + PATIENCE
        while (moment := hit.recovered(campaign)) is None:
            if self._over(campaign):  # nothing was left to recover
                return
            assert time.monotonic() < deadline, f"{hit} did not recover: {campaign.last_words()}"
            time.sleep(0.05)
        self.recoveries.append((moment - hit.at, hit.what))
        print(f"    recovered after {moment - hit.at:.1f} s", flush=True)


@dataclass
class Hit:
    """A fault, and what it must recover from."""

    what: str
    trials: set[str]
    """Trials in training when it came."""
    at: float
    seen: int
    """Events in the journal before."""

    over: float
    """When a freeze ended; else as ``at``."""

    outlived: bool
    """Whether attempts may have outlived it."""

    def recovered(self, campaign: Campaign) -> float | None:
        """Return when the first of its trials went on; without trials, the first event.

        What an attempt wrote before it was killed may reach the journal later: it counts as
        recovery only where the trial was placed again, or its attempt outlived the fault.
        """
        placed: set[str] = set()
        for event in campaign.events()[self.seen :]:
            trial = str(event.get("trial", ""))
            if event["event"] == "placed":
                placed.add(trial)
            elif not self.trials and event["time"] > self.at:
                return float(event["time"])
            elif trial in self.trials:
                good = event.get("outcome") in ("completed", "stopped")
                alive = event["time"] > self.over if self.outlived else trial in placed
                if good or (event["event"] in PROGRESS and alive):
                    return float(event["time"])
        return None


def trial_of(rank: int) -> str:
    """Return the trial that a rank trains; empty for other jobs."""
    with contextlib.suppress(OSError):
        place = Path(os.readlink(f"/proc/{rank}/fd/1")).parent
        if place.parent.name == "attempts" and state_of(rank) not in "ZX":
            return place.parents[1].name
    return ""


def ancestors(pid: int) -> set[int]:
    """Return a process, its parent and so on."""
    results = {pid}
    while (pid := parent_of(pid)) > 1:
        results.add(pid)
    return results


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Run all campaigns, and keep the figures."""
    epochs = 10 if arguments.quick else 20
    kinds = ["brief"] if arguments.quick else ["narrow", "pair", "widen"]
    backends = [name for name in arguments.backends if not note_missing(name)]
    home = Local(folder)
    unbroken: dict[str, Outcome] = {}
    for kind in kinds:
        if kind == "widen":
            unbroken[kind] = unbroken["narrow"]
            continue
        campaign = Campaign(folder / f"unbroken-{kind}", kind, home, epochs)
        try:
            campaign.unbroken()
        finally:
            campaign.end()
        unbroken[kind] = read_outcome(campaign)
        print(f"unbroken {kind}: widths {unbroken[kind].widths}", flush=True)
    freezes = (SHORT,) if arguments.quick else (SHORT, LONG)
    schedule = Schedule(random.Random(arguments.seed), freezes)
    lost = twice = campaigns = 0
    equal, resized = [0.0], [0.0]
    for backend in backends:
        (folder / backend).mkdir()
        place = PLACES[backend](folder / backend)
        before = schedule.kills
        until = time.monotonic() + 60.0 * arguments.minutes
        try:
            while (left := arguments.kills - (schedule.kills - before)) > 0:
                if time.monotonic() > until:
                    break
                kind = kinds[campaigns % len(kinds)]
                name = f"{backend}-{campaigns}-{kind}"
                print(f"{name}: {schedule.kills} faults so far", flush=True)
                place.open()
                campaign = Campaign(folder / name, kind, place, epochs)
                try:
                    schedule.break_campaign(campaign, place, min(left, HITS))
                finally:
                    campaign.end()
                    place.close()
                outcome = read_outcome(campaign)
                lost += len(outcome.lost)
                twice += len(outcome.twice)
                for trial, worst, changed in differences(outcome, unbroken[kind]):
                    (resized if changed else equal).append(worst)
                    print(
                        f"  {trial}: widths {outcome.widths[trial]}, differs by {worst:g}",
                        flush=True,
                    )
                if outcome.lost or outcome.twice:
                    print(f"  LOST {outcome.lost} TWICE {outcome.twice}", flush=True)
                campaigns += 1
        finally:
            place.end()
    recoveries = sorted(schedule.recoveries)
    figures: dict[str, float] = {
        "kills": schedule.kills,
        "results_lost": lost,
        "results_twice": twice,
        "mae_max_difference": max(equal),
        "mae_max_difference_resized": max(resized),
        "longest_recovery_seconds": round(recoveries[-1][0], 2) if recoveries else 0.0,
    }
    finish(
        __file__,
        figures,
        keep=not arguments.quick and arguments.keep,
        backends=backends,
        campaigns=campaigns,
        trials_of_equal_width=len(equal) - 1,
        trials_of_changed_width=len(resized) - 1,
        by_target=dict(sorted(schedule.by_target.items())),
        median_recovery_seconds=round(recoveries[len(recoveries) // 2][0], 2) if recoveries else 0,
        controllers_ended_by_themselves=schedule.failures,
    )


def smoke(folder: Path) -> dict[str, float]:
    """Write a campaign, and judge the golden run in its place; start, kill and freeze nothing."""
    place = Local(folder)
    campaign = Campaign(folder / "campaign", "brief", place, 1)
    dry_run(campaign.path)
    shutil.copytree(GOLDENS / "run", campaign.run)
    outcome = read_outcome(campaign)
    events = campaign.events()
    hit = Hit("rank killed", set(outcome.errors), events[0]["time"], 1, events[0]["time"], False)
    return {
        "results": len(outcome.errors),
        "results_lost": len(outcome.lost),
        "mae_max_difference": max(worst for _, worst, _ in differences(outcome, outcome)),
        "recovery_seconds": (hit.recovered(campaign) or math.inf) - hit.at,
        "ranks": len(campaign.parts("rank")),
        "processes": len(place.processes("local", campaign.run)),
    }


def note_missing(backend: str) -> bool:
    """Print why a backend is left out."""
    if reason := why_not(backend):
        print(f"without {backend}: {reason}")
    return bool(reason)


def main() -> None:
    parser = make_parser(__doc__, "a few faults on this computer")
    parser.add_argument("--backends", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--kills", type=int, default=70, help="faults on each backend")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of each backend")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the runs in this new folder")
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="record nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.backends = ["local"]
        arguments.kills = 3
        arguments.minutes = 0.1
    if arguments.folder:
        arguments.folder.mkdir(parents=True)
        measure(arguments, arguments.folder)
        return
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        if arguments.smoke:
            finish(__file__, smoke(Path(folder)), keep=False)
            return
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
