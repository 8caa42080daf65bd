"""A campaign on a host whose counters are a folder of ours: every joule is somebody's, once."""

import json
import threading
import time

import pytest

WATTS = 100.0
"""What the whole host takes."""

TRAIN = """
import json, sys, time
from pathlib import Path
folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
for epoch in range(1, epochs + 1):
    time.sleep(0.8)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"record": "epoch", "epoch": epoch, "objective": 1 / epoch}) + "\\n")
part = folder / "part"
part.write_text(json.dumps({"status": "completed", "objective": 1 / epochs, "epochs": epochs}))
part.rename(folder / "result.json")
"""


class Host:
    """Counters of a Cray host that takes the same power all the time."""

    def __init__(self, root):
        self.folder = root / "sys/cray/pm_counters"
        self.folder.mkdir(parents=True)
        self.began, self.over = time.monotonic(), threading.Event()
        self.rise()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    @property
    def joules(self):
        return WATTS * (time.monotonic() - self.began)

    def rise(self):
        part = self.folder / "part"
        part.write_text(f"{self.joules:.0f} J 7810213855886 us\n")
        part.rename(self.folder / "energy")

    def run(self):
        while not self.over.wait(0.05):
            self.rise()

    def close(self):
        self.over.set()
        self.thread.join()


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "counters")
    yield host
    host.close()


def campaign(hpo, **machine):
    (hpo.folder / "train.py").write_text(TRAIN)
    values = {
        "name": "energy",
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {"brain": "random", "trials": 3, "rungs": [6], "finalists": 1},
        "command": {"argv": ["{python}", "{here}/train.py", "{folder}", "{epochs}"]},
        "machine": {"slots": 2, **machine},
    }
    return hpo.toml("campaign.toml", values)


@pytest.mark.slow
def test_energy_by_trial_and_what_was_idle_sum_to_what_was_counted(hpo, host):
    path = campaign(hpo, sample_seconds=1.0)
    root = str(hpo.folder / "counters")

    done = hpo("run", path, "--run", "run", "--json", HYDRAGNN_HPO_COUNTERS=root)

    most = host.joules
    assert done.code == 0, done.err
    found = json.loads((hpo.folder / "run" / "summary.json").read_text())
    figures, rows = found["figures"], found["leaderboard"]["trials"]
    assert figures["energy_parts"] == ["host"]
    total = sum(row["energy_joules"] for row in rows) + figures["energy_idle_joules"]
    assert total == pytest.approx(figures["energy_joules"])
    assert figures["energy_joules"] < most
    for row in rows:
        assert row["energy_share"] > 0.5
        # A trial has one slot of two: half of the host's power, for as long as it was counted.
        # Neighbours would have none of it, or all. On a busy machine the counters rise late.
        seconds = row["slot_seconds"] * row["energy_share"]
        assert row["energy_joules"] == pytest.approx(WATTS / 2 * seconds, rel=0.3)
    shown = hpo.json("status", "run")["standing"]["energy"]
    assert shown["joules"] == pytest.approx(figures["energy_joules"])
    assert shown["best_joules"] == rows[0]["energy_joules"]
    assert "so far (host)" in hpo.here("status", "run").out


@pytest.mark.slow
def test_without_counters_energy_is_unknown_and_not_zero(hpo, host):
    path = campaign(hpo, sample_seconds=0.0)
    root = str(hpo.folder / "counters")

    done = hpo("run", path, "--run", "run", "--json", HYDRAGNN_HPO_COUNTERS=root)

    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["figures"]["energy_joules"] is None
    rows = found["leaderboard"]["trials"]
    assert {row["energy_joules"] for row in rows} == {row["energy_share"] for row in rows} == {None}
    assert hpo.events(hpo.folder / "run", "energy") == []
