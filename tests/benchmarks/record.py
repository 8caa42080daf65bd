"""Keep a benchmark's figures: printed as one JSON line, and written down with date and machine."""

import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "numpy", "deephyper", "adios2")


def finish(script: str, figures: dict[str, float], *, keep: bool) -> None:
    """Print the figures as the last line on stdout; ``keep`` writes them to ``results/``."""
    if keep:
        cpu = next(
            (
                line.split(":", 1)[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")
            ),
            platform.machine(),
        )
        whole = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{len(os.sched_getaffinity(0))} cores of {cpu}",
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in PACKAGES},
            "figures": figures,
        }
        path = Path(__file__).parent / "results" / f"{Path(script).stem}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(figures))
