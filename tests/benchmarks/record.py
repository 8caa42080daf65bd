"""Keep a benchmark's figures: printed as one JSON line, and written down with date and machine.

Also what the scripts' ``--smoke`` has in common.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).parents[1] / "goldens"
PACKAGES = ("torch", "torch-geometric", "numpy", "deephyper", "adios2", "vesin", "ase", "pymatgen")


def installed() -> dict[str, str]:
    """Return the versions of the packages that matter, as far as they are there."""
    result = {each.name.replace("_", "-"): each.version for each in distributions()}
    return {name: result[name] for name in PACKAGES if name in result}


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


def make_parser(about: str | None, quick: str = "") -> argparse.ArgumentParser:
    """Return a parser of the options that scripts have in common.

    Args:
        about: docstring of the script.
        quick: what ``--quick`` does; empty where there is no such option.

    Returns:
        A parser with ``--smoke``, which ``tests/integration/test_benchmarks.py`` starts all with.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="start what is measured once, as small as it can be; the figures mean nothing",
    )
    return parser


def run_campaign(campaign: Path, run: Path) -> None:
    """Run a campaign to its end, in a process of its own; its words to stderr."""
    command = [sys.executable, "-m", "hydragnn_hpo", "run", str(campaign), "--run", str(run)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def skip(script: str, why: str) -> None:
    """Print why a smoke run measures nothing here, and a figure that says that it did not."""
    print(why, file=sys.stderr)
    finish(script, {"skipped": 1}, keep=False)


def lacks_data(script: str) -> bool:
    """Check whether the public data sets are missing, and skip the script if so."""
    if "HYDRAGNN_HPO_DATA" in os.environ:
        return False
    skip(script, "HYDRAGNN_HPO_DATA is unset: point it at the folder of public data sets.")
    return True


def dry_run(campaign: Path) -> None:
    """Let ``hydragnn-hpo run`` accept a campaign without running it; its words to stderr.

    In this process: another one would import everything once more.
    """
    from hydragnn_hpo.cli.command_line import main

    sys.argv = ["hydragnn-hpo", "run", str(campaign), "--dry-run"]
    with contextlib.redirect_stdout(sys.stderr):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


def golden_run(folder: Path) -> Path:
    """Copy the small run of ``tests/goldens``, and give it the ensemble and the summary it lacks.

    It stands in for the campaign of minutes that a script runs before it computes its figures.
    """
    from hydragnn_hpo.campaign.event_store import JournalFold
    from hydragnn_hpo.campaign.journal import read_journal
    from hydragnn_hpo.ensemble_build.build import build_ensemble

    run = folder / "golden"
    shutil.copytree(GOLDENS / "run", run)
    figures = JournalFold(read_journal(run / "events.jsonl")).figures()
    summary = {"ensemble": build_ensemble(run), "figures": figures}
    (run / "summary.json").write_text(json.dumps(summary))
    return run
