"""A person steers a real campaign: pause it, cancel a trial, add one, finish with what is there."""

import pytest

from hydragnn_hpo.campaign.event_store import read_state
from hydragnn_hpo.layout import RunDir

pytestmark = pytest.mark.slow

MINE = """
[[trial]]
x = 0.5
"""


TRIALS = 400
"""More than two slots of the fastest machine train while we look."""


def ended(hpo, run, *outcomes):
    return [e["trial"] for e in hpo.events(run, "ended") if e["outcome"] in outcomes]


def test_a_live_campaign_is_steered_by_files(hpo):
    (hpo.folder / "open").touch()
    search = {"trials": TRIALS, "initial": 20, "rungs": [1, 2]}
    file = hpo.fake_campaign(search=search)
    run = hpo.folder / "run"
    first = hpo.start("run", file, "--run", run)
    hpo.wait_for(lambda: len(ended(hpo, run, "stopped")) >= 2, "two trials at rest")

    done = hpo.here("pause", run)
    assert (done.code, done.out.startswith(f"sent to process {first.pid} on ")) == (0, True)
    assert first.wait(timeout=300.0) == 1
    assert "paused" in first.communicate()[1]
    assert hpo.strays(run) == []
    assert hpo.json("status", run)["controller"] is None

    # One with a result at its first rung would rest with that instead of being cancelled.
    queued = read_state(RunDir(run)).with_status("queued")
    waiting = [trial.name for trial in queued if not trial.rung_scores][-1]
    (hpo.folder / "mine.toml").write_text(MINE)
    assert hpo.here("cancel", run, waiting).code == 0
    assert hpo.here("add-trials", run, "--values", "mine.toml").code == 0
    second = hpo.start("run", file, "--run", run)
    hpo.wait_for(lambda: waiting in ended(hpo, run, "cancelled"), "the cancelled trial")
    hpo.wait_for(lambda: hpo.events(run, "added"), "the added trial")

    assert hpo.here("stop", run).code == 0
    out, err = second.communicate(timeout=800.0)
    assert second.returncode == 0, err
    assert (run / "summary.json").exists()
    assert len(hpo.events(run, "proposed")) < TRIALS, "it did not go on to the end"
    assert not list((run / "requests").iterdir()), "every wish was answered"
    hpo.refused("retry", run, waiting, says=("is finished",))
