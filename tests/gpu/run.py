"""Run one part of the suite for GPUs, unattended, and write down each check as soon as it ends.

    python tests/gpu/run.py PART --out FOLDER             # on the first GPU
    python tests/gpu/run.py PART --out FOLDER --dry-run   # on the CPU, as small as it can be
    python tests/gpu/run.py all --out FOLDER              # every part, in the least time

Writes the part's section of ``FOLDER/CARD.json``, in place of an earlier one, and a table of all
parts, ``FOLDER/CARD.md``; the exit code is 1 if a check failed. Checks that would begin after 7
minutes are left out and noted as such, so that a part ends within 8.
"""

import argparse
import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
PARTS = {
    "correctness": "card_correctness",
    "training": "card_training",
    "ensembles": "card_ensembles",
    "lanes": "card_lanes",
    "speed": "card_speed",
}
"""Module of each part, in the order of their worth."""

SECONDS = 420.0

SIDE_BY_SIDE = {"correctness": 6, "training": 3}
"""Processes among which ``all`` divides the checks of parts that take no times: they mostly
compile, each on a processor of its own."""


@dataclass
class Report:
    """Checks of one part on one device."""

    path: Path
    part: str
    card: str
    small: bool
    seconds: float = SECONDS
    share: tuple[int, int] = (0, 1)
    """Number of this process, from 0, and of all that divide the checks among them."""
    num_requests: int = 0
    """Checks that were asked for so far."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    day: str = field(default_factory=lambda: date.today().isoformat())

    def check(self, name: str, work: Callable[[], float], most: float | None = None) -> None:
        """Note the number that ``work`` returns; above ``most`` or not finite, it fails.

        Args:
            name: of the check.
            work: measures one number.
            most: largest number that passes; None for a measurement, which only has to be finite.
        """
        self.num_requests += 1
        if (self.num_requests - 1) % self.share[1] != self.share[0]:
            return
        begun = time.monotonic()
        row: dict[str, Any] = {"most": most}
        if begun - self.started > self.seconds:
            self.rows[name] = row | {"ended": "left out"}
            return
        try:
            row["value"] = float(f"{float(work()):.4g}")
            good = math.isfinite(row["value"]) and (most is None or row["value"] <= most)
            row["ended"] = "passed" if good else "failed"
        except Exception as error:  # noted: the other checks go on
            traceback.print_exc()
            row |= {"ended": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
        row["seconds"] = round(time.monotonic() - begun, 2)
        self.rows[name] = row
        print(f"{row['ended']:8} {row.get('value', '-'):>10}  {name}", flush=True)
        self.write()

    def write(self, version: str | None = None) -> None:
        """Write what there is, whole, beside the sections of other parts.

        Args:
            version: of torch, where another process has run the checks.
        """
        parts = json.loads(self.path.read_text())["parts"] if self.path.exists() else {}
        parts[self.part] = {
            "torch": version or torch_version(),
            "day": self.day,
            "checks": self.rows,
        }
        parts = {name: parts[name] for name in PARTS if name in parts}
        result = {"card": self.card, "dry_run": self.small, "parts": parts}
        write_whole(self.path, json.dumps(result, indent=1) + "\n")
        write_whole(self.path.with_suffix(".md"), table_of(result))

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [name for name, row in self.rows.items() if row["ended"] == "failed"]


def torch_version() -> str:
    """Return the version of torch, which is imported after the environment is set."""
    return str(sys.modules["torch"].__version__)


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text)
    new.replace(path)


def table_of(result: dict[str, Any]) -> str:
    """Return the checks of all parts on one card as a table in Markdown."""
    lines = [f"# {result['card']}{', dry run' if result['dry_run'] else ''}"]
    for part, section in result["parts"].items():
        lines += ["", f"## {part}, {section['day']}, torch {section['torch']}", ""]
        lines += ["| check | value | at most | seconds | |", "|---|---|---|---|---|"]
        for name, row in section["checks"].items():
            cells = (row.get(key) for key in ("value", "most", "seconds"))
            row_text = " | ".join("" if cell is None else f"{cell:g}" for cell in cells)
            lines.append(f"| {name} | {row_text} | {row['ended']} |")
    return "\n".join(lines) + "\n"


def run_all(args: argparse.Namespace) -> int:
    """Run every part: the first ones side by side in several processes, then those that take times.

    Returns:
        1 if a check failed, or a process ended otherwise than it should.
    """
    options = ["--seconds", str(args.seconds), *["--dry-run"] * args.dry_run]

    def start(part: str, out: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, part, "--out", str(out), *options, *more]
        return subprocess.Popen(command)

    with tempfile.TemporaryDirectory() as scratch:
        folders = {
            part: [Path(scratch) / f"{part}{number}" for number in range(count)]
            for part, count in SIDE_BY_SIDE.items()
        }
        started = [
            start(part, folder, "--share", f"{number}/{len(several)}")
            for part, several in folders.items()
            for number, folder in enumerate(several)
        ]
        ended = [process.wait() for process in started]
        for part, several in folders.items():
            merge(part, several, args.out)
    for part in PARTS:
        if part not in SIDE_BY_SIDE:
            ended.append(start(part, args.out).wait())
    return int(any(ended))


def merge(part: str, folders: Sequence[Path], out: Path) -> None:
    """Write the checks of several processes as one section, in the order of the part."""
    paths = [path for folder in folders for path in folder.glob("*.json")]
    if not paths:
        return  # every process has said why
    results = [json.loads(path.read_text()) for path in paths]
    rows = [list(each["parts"][part]["checks"].items()) for each in results]
    first = results[0]
    report = Report(out / paths[0].name, part, first["card"], first["dry_run"])
    report.rows = dict(row for turn in itertools.zip_longest(*rows) for row in turn if row)
    report.write(first["parts"][part]["torch"])


def main() -> int:
    """Run a part; see above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, as small as it can be")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no check after these")
    parser.add_argument("--share", default="0/1", help="check I of every N alone, as I/N")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part == "all":
        return run_all(args)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(TESTS / each) for each in ("", "benchmarks", "integration")]
    sys.path.insert(0, str(TESTS.parent))
    import torch

    if not args.dry_run and not torch.cuda.is_available():
        print("this machine has no GPU: add --dry-run to try a part on the CPU.", file=sys.stderr)
        return 2
    device = torch.device("cpu" if args.dry_run else "cuda:0")
    torch.set_num_threads(1)
    card = "cpu" if args.dry_run else torch.cuda.get_device_name(device)
    short = re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")
    path = args.out / f"{short}.json"
    share = tuple(map(int, args.share.split("/")))
    report = Report(path, args.part, card, args.dry_run, args.seconds, share)
    importlib.import_module(PARTS[args.part]).run(report, device)
    report.write()
    print(f"{len(report.rows)} checks on {card}, failed: {', '.join(report.failed) or 'none'}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
