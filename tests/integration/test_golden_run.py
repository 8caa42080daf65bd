"""A campaign that an earlier version began goes on with this one, and what is foreign is refused.

(Artefacts of other formats: ``unit/ensemble/artefact``.)
``goldens/run`` was left by Ctrl-C: one trial in its first epoch, the others at the first rung.
``goldens/finished.zip`` is a run of 2026-11-22 (commit 0b4552fb), without checkpoints and pages.
"""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ase.io import read
from comparing import golden_text

from hydragnn_hpo import Ensemble

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
    leaderboard = hpo.json("leaderboard", "run")
    assert len(leaderboard["trials"]) == 4
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
    return "of version 4, this program reads 3: finish the run with hydragnn-hpo 0.1.0, which began"


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
    done = hpo.here("run", "run/campaign.toml", "--run", "run")
    assert done.code == (1 if change is other_journal else 2)
    assert "Traceback" not in done.err
    assert says in done.err
    assert (run / "events.jsonl").read_bytes() == before


@pytest.fixture
def finished(hpo: Any) -> Path:
    """A finished run of an earlier version, in the folder of its card and structures."""
    with zipfile.ZipFile(GOLDENS / "finished.zip") as archive:
        archive.extractall(hpo.folder)
    return Path(hpo.folder / "run")


@pytest.mark.parametrize("data", ["store", "file"])
def test_an_ensemble_of_an_earlier_version_errs_as_much_as_when_it_was_made(
    hpo: Any, finished: Path, data: str
) -> None:
    """The file holds the structures of all splits, so that only their number is known there."""
    then = json.loads((finished / "summary.json").read_text())["ensemble"]["heads"]
    what = {
        "store": ("run/data/tiny.bp", "--split", "test"),
        "file": ("tiny.extxyz", "--card", "tiny.toml"),
    }
    now = hpo.json("ensemble", "evaluate", *what[data], "--ensemble", "run")
    assert now["structures"] == (4 if data == "store" else 40)
    assert now["heads"].keys() == then.keys()
    if data == "store":
        for name, head in then.items():
            assert now["heads"][name]["mae"] == pytest.approx(head["test_mae"], rel=1e-5)
            assert now["heads"][name]["rows"] == head["test_rows"]


def test_commands_that_look_at_a_finished_run_still_do(hpo: Any, finished: Path) -> None:
    status = hpo.json("status", "run")
    assert (status["trials"], status["completed"]) == (2, 2)
    rows = hpo.json("leaderboard", "run")["trials"]
    results = [finished / "trials" / row["trial"] / "attempts/001/result.json" for row in rows]
    assert [row["objective"] for row in rows] == [
        json.loads(path.read_text())["objective"] for path in results
    ]
    assert hpo.here("report", "run").code == 0
    assert (finished / "report" / "report.html").stat().st_size > 10**5
    predicted = hpo.json("predict", "tiny.extxyz", "--ensemble", "run")["structures"]
    assert len(predicted) == 40
    loaded = Ensemble.load(finished / "ensemble.zip", device="cpu").predict(
        read(hpo.folder / "tiny.extxyz", ":3")
    )
    for one, row in zip(loaded, predicted, strict=False):
        mean = one.heads["energy_like"].mean.item()
        assert mean == pytest.approx(row["heads"]["energy_like"]["mean"], rel=1e-5)
