"""Attacks on the command line: bad files, settings, zips, journals, messages, surroundings.

Each case of ``tests/attack`` ends with the right answer or one sentence (clean), or is a defect: a
traceback, no end within its limits, a wrong success in silence, or words that help nobody (other).
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from record import add_smoke, finish

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "attack")]

from generators import generate, machines  # noqa: E402
from sandbox import VERDICTS, Case, Sandbox, Verdict, keep_case  # noqa: E402


def attack(
    cases: Iterable[Case], *, minutes: float, kept: Path | None, warm: bool
) -> dict[str, float]:
    """Run cases, print each defect, and count the verdicts."""
    counts, end = Counter[str](), time.monotonic() + 60 * minutes
    with Sandbox(warm=warm) as sandbox:
        for case in cases:
            if time.monotonic() > end:
                break
            verdict = sandbox.run(case)
            counts[verdict.kind] += 1
            if verdict.kind != "clean":
                _show(verdict)
                if kept:
                    keep_case(verdict, kept)
    figures: dict[str, float] = {"cases": counts.total()}
    return figures | {kind: counts[kind] for kind in VERDICTS}


def _show(verdict: Verdict) -> None:
    argv = " ".join(verdict.case.argv)
    what = f"{verdict.kind} {verdict.case.name} ({verdict.seconds:.1f} s): {argv[:200]!r}"
    print(f"{what}\n    {verdict.why!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60 cases")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the files of each defect")
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    add_smoke(parser)
    chosen = parser.parse_args()
    short = chosen.smoke or chosen.quick
    cases = generate(chosen.seed, 60 if chosen.quick else chosen.cases)
    figures = attack(
        [machines(random.Random(6))] if chosen.smoke else cases,
        minutes=0.6 if short else 600.0,
        kept=chosen.keep,
        warm=not chosen.smoke,
    )
    finish(__file__, figures, keep=not (short or chosen.no_record), seed=chosen.seed)


if __name__ == "__main__":
    main()
