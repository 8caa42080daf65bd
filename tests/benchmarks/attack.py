"""Attacks on the command line: bad files, settings, zips, journals, messages, surroundings.

Each case of ``tests/attack`` ends with the right answer or one sentence (clean), or is a defect: a
traceback, no end within its limits, a wrong success in silence, or words that help nobody (other).
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from record import finish, make_parser

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "attack")]

from drawing import generate  # noqa: E402
from generators import machines  # noqa: E402
from sandbox import VERDICTS, Case, Sandbox, Verdict, keep_case  # noqa: E402


def attack(
    cases: Iterable[Case], *, minutes: float, kept: Path | None, warm: bool
) -> dict[str, float]:
    """Run cases, print each defect, and count the verdicts."""
    counts = Counter[str]()
    end = time.monotonic() + 60 * minutes
    with Sandbox(warm=warm) as sandbox:
        for case in cases:
            if time.monotonic() > end:
                break
            verdict = sandbox.run(case)
            counts[verdict.kind] += 1
            if verdict.kind != "clean":
                _show(verdict)
                if kept and verdict.kind != "skipped":
                    keep_case(verdict, kept)
    figures: dict[str, float] = {"cases": counts.total()}
    return figures | {kind: counts[kind] for kind in VERDICTS}


def attack_with_seed(
    seed: int, count: int, *, minutes: float, kept: Path | None
) -> dict[str, float]:
    """Run the cases of a seed."""
    place = kept and kept / str(seed)
    return attack(generate(seed, count), minutes=minutes, kept=place, warm=True)


def _show(verdict: Verdict) -> None:
    argv = " ".join(verdict.case.argv)
    what = f"{verdict.kind} {verdict.case.name} ({verdict.seconds:.1f} s): {argv[:200]!r}"
    print(f"{what}\n    {verdict.why!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = make_parser(__doc__, "60 cases of the first seed")
    parser.add_argument("--cases", type=int, default=5000, help="of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--keep", type=Path, help="folder for the files of each defect")
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    chosen = parser.parse_args()
    if chosen.smoke:
        drawn = [machines(random.Random(6))]
        finish(__file__, attack(drawn, minutes=0.6, kept=chosen.keep, warm=False), keep=False)
        return
    seeds = chosen.seeds[:1] if chosen.quick else chosen.seeds
    count, minutes = (60, 0.6) if chosen.quick else (chosen.cases, 600.0)
    with ProcessPoolExecutor(chosen.jobs) as pool:
        pending = {
            seed: pool.submit(attack_with_seed, seed, count, minutes=minutes, kept=chosen.keep)
            for seed in seeds
        }
        by_seed = {str(seed): each.result() for seed, each in pending.items()}
    figures = {name: sum(each[name] for each in by_seed.values()) for name in ("cases", *VERDICTS)}
    keep = not (chosen.quick or chosen.no_record)
    finish(__file__, figures, keep=keep, seeds=seeds, by_seed=by_seed)


if __name__ == "__main__":
    main()
