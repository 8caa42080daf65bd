"""Keep a benchmark's figures: printed as one JSON line, and written down with date and machine."""

import datetime
import json
import os
import platform
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torch-geometric", "numpy", "deephyper", "adios2", "vesin", "ase", "pymatgen")


def installed() -> dict[str, str]:
    """Return the versions of the packages that matter, as far as they are there."""
    found = {each.name.replace("_", "-"): each.version for each in distributions()}
    return {name: found[name] for name in PACKAGES if name in found}


def finish(script: str, figures: dict[str, float], *, keep: bool, **more: Any) -> None:
    """Print figures as a table, then as JSON on one line; ``keep`` writes them to ``results/``.

    ``more`` is written beside the figures and not printed.
    """
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
            "versions": {"python": platform.python_version(), **installed()},
            "figures": figures,
            **more,
        }
        path = Path(__file__).parent / "results" / f"{Path(script).stem}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(whole, indent=1) + "\n")
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:.6g}")
    print(json.dumps(figures))
