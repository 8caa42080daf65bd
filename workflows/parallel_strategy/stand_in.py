"""Stand in for a launch of Megatron-DeepSpeed: model the time of a training step, train nothing.

Sources: Narayanan et al. (2021), arXiv:2104.04473: operations of a step, idle share (p - 1)/m of a
pipeline. Korthikanti et al. (2022), arXiv:2205.05198: memory of activations. Rajbhandari et al.
(2020), arXiv:1910.02054: 16 bytes per parameter. What it shows on Frontier (tensor parallelism ends
at the host, pipelines want many micro-batches): Dash et al. (2023), arXiv:2312.12705.
"""

import json
import sys
import tomllib
from pathlib import Path

HOST = 8  # GPUs (GCDs) of a host
MEMORY = 64e9  # bytes of a GPU
SPEED = (
    191.5e12 * 0.45
)  # operations per second of a GPU: the peak, and what large kernels reach of it
INSIDE, OUTSIDE = 50e9, 12.5e9  # bytes per second of a GPU to others on its host, and beyond


def step(config: dict) -> dict:
    """Give what ``result.json`` holds for one configuration."""
    model, launch = config["model"], config["launch"]
    t, p, b = launch["tensor"], launch["pipeline"], launch["micro_batch"]
    h, layers, s = model["hidden"], model["layers"], model["sequence"]
    copies = config["ranks"] // (t * p)  # data parallel
    pieces = config["batch"] // (copies * b)  # micro-batches that pass each pipeline per step

    parameters = 12 * layers * h**2
    kept = s * b * h * (2 if launch["recompute"] else 10 + (24 + 5 * model["heads"] * s / h) / t)
    memory = 16 * parameters / (t * p) + layers * kept
    if memory > MEMORY:
        message = f"{memory / 1e9:.0f} GB on a GPU of {MEMORY / 1e9:.0f} GB"
        return {"status": "failed", "reason": "out_of_memory", "message": message}

    operations = (96 if launch["recompute"] else 72) * b * s * layers * h**2 * (1 + s / (6 * h))
    busy = b * h / t / (b * h / t + 1000)  # thin slices leave a GPU idle: a guess of ours
    compute = operations / (t * p) / (SPEED * busy)
    reduced = (6 if launch["recompute"] else 4) * layers / p * 2 * (t - 1) / t * 2 * b * s * h
    one = compute + reduced / (INSIDE if t <= HOST else OUTSIDE)
    gradients = 2 * (copies - 1) / copies * 4 * parameters / (t * p) / OUTSIDE
    seconds = (pieces + p - 1) * one + gradients
    return {
        "status": "completed",
        "objective": seconds,
        "memory_bytes": memory,
        "idle_share": (p - 1) / (pieces + p - 1),
    }


if __name__ == "__main__":
    trial, folder = map(Path, sys.argv[1:])
    result = step(tomllib.loads(trial.read_text()))
    (folder / "result.json.part").write_text(json.dumps(result))
    (folder / "result.json.part").rename(folder / "result.json")
