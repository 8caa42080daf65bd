"""A campaign that an earlier version began goes on with this one, and what is foreign is refused.

(Artefacts of other formats: ``unit/ensemble/artefact``.)
``goldens/run`` was left by Ctrl-C: one trial in its first epoch, the others at the first rung.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import golden_text

GOLDENS = Path(__file__).parents[1] / "goldens"
REACHED = GOLDENS / "run-reached.json"
"""Objectives by trial and epoch, as they were reached on one machine in single precision."""


@pytest.fixture
def run(hpo: Any) -> Path:
    """A copy of the run whose card is found from here."""
    copy: Path = hpo.folder / "run"
    shutil.copytree(GOLDENS / "run", copy)
    for name in ("structures.toml", "structures.extxyz"):
        shutil.copy(GOLDENS / name, hpo.folder)
    text = (copy / "campaign.toml").read_text()
    card = json.dumps(str(hpo.folder / "structures.toml"))
    (copy / "campaign.toml").write_text(text.replace('"structures.toml"', card))
    return copy


@pytest.mark.slow
def test_a_run_that_was_begun_before_goes_on_to_its_ensemble(hpo: Any, run: Path) -> None:
    before = (run / "events.jsonl").read_bytes()
    earlier = hpo.events(run, "ended")
    done = hpo("run", "run/campaign.toml", "--run", "run", "--json")
    assert done.code == 0, done.err
    assert (run / "events.jsonl").read_bytes().startswith(before)
    assert (run / "ensemble.zip").exists()
    ended = hpo.events(run, "ended")[len(earlier) :]
    assert {event["outcome"] for event in ended} <= {"stopped", "completed"}
    again = [json.loads(line) for line in metrics(run, "t0002", 2).read_text().splitlines()]
    ready = next(record for record in again if record["record"] == "ready")
    assert (ready["resumed"], ready["step"]) == (True, 1)
    reached = {f"{event['trial']}@{event['reached']}": event["objective"] for event in ended}
    golden = json.loads(golden_text(REACHED, json.dumps(reached, indent=1) + "\n"))
    assert "t0002@2" in reached
    assert len(reached) >= 3, "finalists trained on"
    for name in reached.keys() & golden.keys():
        assert reached[name] == pytest.approx(golden[name], rel=1e-3), name
    shown = hpo.json("leaderboard", "run")
    assert len(shown["trials"]) == 4
    assert hpo.here("predict", "structures.extxyz", "--ensemble", "run").code == 0


def metrics(run: Path, trial: str, attempt: int) -> Path:
    return run / "trials" / trial / "attempts" / f"{attempt:03d}" / "metrics.jsonl"


def test_commands_that_look_at_the_run_still_do(hpo: Any, run: Path) -> None:
    status = hpo.json("status", "run")
    assert (status["trials"], status["stopped"], status["queued"]) == (4, 3, 1)
    assert [row["trial"] for row in hpo.json("leaderboard", "run")["trials"]][3] == "t0002"
    assert hpo.here("report", "run").code == 0
    assert hpo.here("export", "run", "--to", "csv", "--out", "trials.csv").code == 0


def other_journal(run: Path) -> str:
    """Frame lines as no version does: a checksum that is no CRC-32."""
    path = run / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"c":"', b'{"v":2,"c":"'))
    return "line 1 (byte 0) is damaged and lines follow it"


def other_store(run: Path) -> str:
    path = run / "data" / "structures.bp" / "index.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"version": content["version"] + 1}))
    return "is a graph store of version 4, this program reads 3: finish the run with"


def other_campaign(run: Path) -> str:
    path = run / "campaign.toml"
    path.write_text("from_the_future = 1\n" + path.read_text())
    return "from_the_future"


@pytest.mark.parametrize("change", [other_journal, other_store, other_campaign])
def test_a_run_of_another_format_is_refused_in_a_sentence(
    hpo: Any, run: Path, change: Callable[[Path], str]
) -> None:
    says = change(run)
    before = (run / "events.jsonl").read_bytes()
    done = hpo("run", "run/campaign.toml", "--run", "run")
    assert done.code == (1 if change is other_journal else 2)
    assert "Traceback" not in done.err
    assert says in done.err
    assert (run / "events.jsonl").read_bytes() == before
