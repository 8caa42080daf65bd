"""From "trial placed" to its first optimizer step: a warm rank against a cold process.

Ours is a rank forked by the zygote, the peer a fresh Python that runs the same trial; a third is
a warm rank with torch's operations in place of compiled loops. They take turns in the same run,
warm ranks with loops and without three times a turn, each first every second time. Medians;
``--quick`` makes fewer turns.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import finish, make_parser

from hydragnn_hpo.config.schema import dump_config
from hydragnn_hpo.config.trial_config import PlacementConfig
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.transports.local import LocalBackend
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.resources import resource_path

TRIAL = """
[data]
store = "../g2.bp"
[model]
conv = "painn"
features = 32
kernels = "KERNELS"
[heads.partial_charge]
[training]
epochs = 1
"""


def first_step(trial: TrialDir, placed: float) -> float:
    """Return the seconds from ``placed`` to the first step of the newest attempt."""
    records = read_records(trial.attempt(trial.attempts()[-1]) / "metrics.jsonl")
    return float(next(r["time"] for r in records if r["record"] == "first_step")) - placed


def fresh(folder: Path, name: str, kernels: str = "auto") -> TrialDir:
    trial = TrialDir(folder / name)
    (trial.path / "attempts").mkdir(parents=True)
    trial.config.write_text(TRIAL.replace("KERNELS", kernels))
    return trial


def warm(trial: TrialDir, backend: LocalBackend, width: int) -> float:
    place = trial.attempt(1)
    place.mkdir()
    (place / "placement.toml").write_text(
        dump_config(PlacementConfig(attempt=1, epochs=1, width=width))
    )
    spec = {"trial_dir": str(trial.path), "attempt": 1}
    slots = backend.slots[:width]
    name = trial.path.name
    placed = time.time()
    backend.start(Job(name, "train", width, spec, place / "log", None, slots))
    wait_for(backend, "ended", name)
    return first_step(trial, placed)


def wait_for(backend: LocalBackend, kind: str, job: str | None = None) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(e.kind == kind and e.job == job for e in backend.poll(1.0)):
            return
    raise TimeoutError(kind)


def cold(trial: TrialDir) -> float:
    placed = time.time()
    command = [sys.executable, "-m", "hydragnn_hpo", "trial", str(trial.path)]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return first_step(trial, placed)


def main() -> None:
    parser = make_parser(__doc__, "two turns, not recorded")
    options = parser.parse_args()
    turns, pairs = (1, 1) if options.smoke else (2, 3) if options.quick else (9, 3)
    times: dict[str, list[float]] = {"warm_1": [], "eager": [], "warm_2": [], "cold": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_store(resource_path("graph_datasets/g2_xtb.toml"), folder / "g2.bp")
        with LocalBackend(slots=2, run_dir=folder) as backend:
            wait_for(backend, "ready")
            for turn in range(turns):
                for number in range(pairs * turn, pairs * turn + pairs):
                    pair = [("warm_1", "auto"), ("eager", "eager")]
                    for name, kernels in pair if number % 2 else pair[::-1]:
                        trial = fresh(folder, f"{name}_{number}", kernels)
                        times[name].append(warm(trial, backend, 1))
                times["cold"].append(cold(fresh(folder, f"c{turn}")))
                times["warm_2"].append(warm(fresh(folder, f"b{turn}"), backend, 2))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["warm_1"], times["eager"], strict=True)]
    figures = {
        "first_step_seconds_warm_1_rank": round(medians["warm_1"], 3),
        "first_step_seconds_warm_2_ranks": round(medians["warm_2"], 3),
        "first_step_seconds_cold": round(medians["cold"], 3),
        "cold_over_warm": round(medians["cold"] / medians["warm_1"], 1),
        "loops_over_eager_startup": round(statistics.median(ratios), 2),
    }
    finish(__file__, figures, keep=turns > 2)


if __name__ == "__main__":
    main()
