"""A campaign on a host whose counters are a folder of ours: every joule is somebody's, once."""

import json

import pytest

JOULES, EPOCHS, TRIALS = 1000, 4, 3
"""What the counters rise by in each epoch, however long it takes."""

TRAIN = f"""
import fcntl, json, os, sys, time
from pathlib import Path
folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
counter = Path(os.environ["HYDRAGNN_HPO_COUNTERS"], "sys/cray/pm_counters/energy")
def rise():
    with open(counter.with_name("lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        joules = int(counter.read_text().split()[0]) + {JOULES}
        part = counter.with_name("part")
        part.write_text(f"{{joules}} J 7810213855886 us\\n")
        part.rename(counter)
for epoch in range(1, epochs + 1):
    time.sleep(0.8)
    rise()
    with (folder / "metrics.jsonl").open("a") as file:
        record = {{"record": "epoch", "epoch": epoch, "objective": 1 / epoch}}
        file.write(json.dumps(record) + "\\n")
part = folder / "part"
part.write_text(json.dumps({{"status": "completed", "objective": 1 / epochs, "epochs": epochs}}))
part.rename(folder / "result.json")
"""


@pytest.fixture
def counters(tmp_path):
    """Counters of a Cray host that takes power only while it trains."""
    folder = tmp_path / "counters" / "sys/cray/pm_counters"
    folder.mkdir(parents=True)
    (folder / "energy").write_text("0 J 7810213855886 us\n")
    return str(tmp_path / "counters")


def campaign(hpo):
    (hpo.folder / "train.py").write_text(TRAIN)
    values = {
        "name": "energy",
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {"brain": "random", "trials": TRIALS, "rungs": [EPOCHS], "finalists": 1},
        "command": {"argv": ["{python}", "{here}/train.py", "{folder}", "{epochs}"]},
        "machine": {"slots": 2, "lease_seconds": 120.0, "sample_seconds": 1.0},
    }
    return hpo.toml("campaign.toml", values)


@pytest.mark.slow
def test_energy_by_trial_and_what_was_idle_sum_to_what_was_counted(hpo, counters):
    path = campaign(hpo)

    done = hpo("run", path, "--run", "run", "--json", HYDRAGNN_HPO_COUNTERS=counters)

    assert done.code == 0, done.err
    result = json.loads((hpo.folder / "run" / "summary.json").read_text())
    figures, rows = result["figures"], result["leaderboard"]["trials"]
    counted, idle = figures["energy_joules"], figures["energy_idle_joules"]
    assert figures["energy_parts"] == ["host"]
    assert 0 < counted <= JOULES * EPOCHS * TRIALS * (1 + 1e-5)  # shares are rounded
    assert sum(row["energy_joules"] for row in rows) + idle == pytest.approx(counted)
    assert idle > -1e-6 * counted
    assert len(rows) == TRIALS
    for row in rows:
        assert 0 < row["energy_share"] <= 1.01
        # A trial has one slot of two, whoever made the counters rise: half of it at most.
        assert 0 < row["energy_joules"] <= 0.5001 * counted
    energy = hpo.json("status", "run")["standing"]["energy"]
    assert energy["joules"] == pytest.approx(counted)
    assert energy["best_joules"] == rows[0]["energy_joules"]
    assert "so far (host)" in hpo.here("status", "run").out
