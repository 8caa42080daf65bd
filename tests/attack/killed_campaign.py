"""Kill what runs a campaign whose trials have two ranks; it must end as it does unbroken.

Run in a folder with a ``seed``; the unbroken campaign is run once, two
folders up, for all seeds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from processes import find_orphans, named_so  # noqa: E402
from sandbox import GOLDENS  # noqa: E402

from hydragnn_hpo.campaign.journal import read_journal  # noqa: E402
from hydragnn_hpo.config.schema import to_toml  # noqa: E402
from hydragnn_hpo.launching.process_control import run_tag  # noqa: E402

PARTS = {"rank": "hpo-rank", "agent": "hpo-agent", "fork server": "hpo-zygote"}
TARGETS = ("controller", "rank", "rank", "agent", "fork server")
MOMENTS = ("placed", "first_step", "epoch", "epoch", "epoch", "checkpoint", "checkpoint", "ended")
SECONDS, LEASE = 330.0, 10.0
WIDTH, EPOCHS = 2, 8

PROFILE = """
name = "kills"
extends = "workstation"
flops_per_second = 1e6
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
"""Two ranks always seem worth it."""


def write_campaign(folder: Path) -> None:
    """Write a campaign of one trial, which is alone on two slots, and has a rank on each."""
    golden: dict[str, Any] = tomllib.loads((GOLDENS / "run" / "campaign.toml").read_text())
    (folder / "profile.toml").write_text(PROFILE)
    settings = {"global_batch": 8, "learning_rate": 0.005, "checkpoint_seconds": 0.0}
    search = {"trials": 1, "initial": 1, "finalists": 1, "rungs": [EPOCHS], "max_restarts": 1000}
    machine = {"slots": WIDTH, "max_width": WIDTH, "lease_seconds": LEASE}
    machine |= {"profile": str(folder / "profile.toml")}
    values = golden | {
        "trial": golden["trial"] | {"training": settings},
        "search": golden["search"] | search,
        "ensemble": golden["ensemble"] | {"members": 1},
        "machine": golden["machine"] | machine,
    }
    (folder / "c.toml").write_text(to_toml(values))
    for name in ("structures.toml", "structures.extxyz"):
        (folder / name).write_bytes((GOLDENS / name).read_bytes())


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start a controller on the run of a folder."""
    with (folder / "output").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hydragnn_hpo", "run", "c.toml", "--run", "run"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the journal of a folder's run."""
    path = folder / "run" / "events.jsonl"
    return [dict(event) for event in read_journal(path)] if path.exists() else []


def results(folder: Path) -> dict[str, Any]:
    """Return objective and errors of each trial; fail where one has not exactly one result."""
    results: dict[str, Any] = {}
    widths = Counter(event["width"] for event in events(folder) if event["event"] == "placed")
    assert set(widths) == {WIDTH}, f"ranks of the attempts: {dict(widths)}"
    for event in events(folder):
        if event["event"] == "ended" and event["outcome"] != "interrupted":
            assert event["outcome"] == "completed", f"{event['outcome']}: {event.get('message')}"
            assert event["trial"] not in results, f"{event['trial']} was counted twice"
            results[event["trial"]] = {
                key: event[key] for key in ("objective", "val_mae", "reached")
            }
    assert list(results) == ["t0000"], f"results of {list(results)}"
    assert (folder / "run" / "ensemble.zip").exists(), "no ensemble"
    return results


def unbroken() -> dict[str, Any]:
    """Return the results of a campaign that nothing happened to."""
    kept = Path("../../unbroken.json").resolve()
    if not kept.exists():
        folder = kept.with_suffix("")
        folder.mkdir(exist_ok=True)
        write_campaign(folder)
        code = start(folder).wait(SECONDS)
        assert code == 0, (folder / "output").read_text()[-300:]
        kept.write_text(json.dumps(results(folder)))
    return dict(json.loads(kept.read_text()))


def await_moment(draw: random.Random, controller: "subprocess.Popen[bytes]") -> None:
    """Wait for a drawn event, and a little longer; not for one after the last."""
    moment = draw.choice(MOMENTS)
    seen = len(events(Path()))
    while controller.poll() is None:
        new = [event["event"] for event in events(Path())[seen:]]
        if moment in new or "finished" in new:
            break
        time.sleep(0.01)
    time.sleep(draw.choice([0.0, 0.0, draw.uniform(0.0, 0.3)]))


def kill(target: str, draw: random.Random, controller: "subprocess.Popen[bytes]") -> str:
    """Kill a process of a campaign; return its kind, empty where there was none."""
    if target == "controller":
        controller.kill()
        return target
    results = named_so(find_orphans(run_tag(Path("run"))), PARTS[target])
    if not results:
        return ""
    os.kill(draw.choice(sorted(results)), signal.SIGKILL)
    return target


def main() -> None:
    """Break a campaign, run the same command until it is done, and compare."""
    draw = random.Random(Path("seed").read_text())
    wanted = unbroken()
    write_campaign(Path().resolve())
    controller = start(Path())
    killed = list[str]()
    for _ in range(draw.choice([1, 2, 3])):
        await_moment(draw, controller)
        if controller.poll() is None and (one := kill(draw.choice(TARGETS), draw, controller)):
            killed.append(one)
        if killed[-1:] == ["controller"] and controller.wait(SECONDS):
            controller = start(Path())
    code = controller.wait(SECONDS)
    print(f"killed: {killed}")
    assert code == 0, f"code {code}: {Path('output').read_text()[-300:]}"
    actual = results(Path())
    assert actual == wanted, f"{actual}, unbroken {wanted}"
    assert not list(Path("run").rglob(".*.part")), "a partial file is left"


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
