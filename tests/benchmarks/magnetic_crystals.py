"""Accuracy of a whole campaign on 760 magnetic crystals of the Materials Project.

Runs ``workflows/magnetic_crystals.toml`` (``--quick``: a cut of it that ends within 50 s) and
reports the ensemble's test MAE beside its yardsticks. Needs HYDRAGNN_HPO_DATA.
"""

import json
import tempfile
import time
from pathlib import Path

from record import dry_run, finish, golden_run, lacks_data, make_parser, run_campaign

ROOT = Path(__file__).parents[2]
QUICK = {
    "trials = 14": "trials = 3",
    "rungs = [6, 16]": "rungs = [1, 2]",
    "finalists = 8": "finalists = 2",
}


def campaign(quick: bool, folder: Path) -> Path:
    text = (ROOT / "workflows" / "magnetic_crystals.toml").read_text()
    if quick:
        for old, new in QUICK.items():
            assert old in text, f"the campaign no longer holds '{old}'"
            text = text.replace(old, new)
    path = folder / "magnetic_crystals.toml"
    path.write_text(text)
    return path


def main() -> None:
    parser = make_parser(__doc__, "a cut of at most 50 s, not recorded")
    parser.add_argument("--run", type=Path, help="keep the run here")
    options = parser.parse_args()
    if options.smoke and lacks_data(__file__):
        return
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run or Path(scratch) / "run"
        started = time.monotonic()
        path = campaign(options.quick or options.smoke, Path(scratch))
        if options.smoke:
            dry_run(path)
            run = golden_run(Path(scratch))
        else:
            run_campaign(path, run)
        seconds = time.monotonic() - started
        summary = json.loads((run / "summary.json").read_text())
    figures = {"minutes": round(seconds / 60, 2)}
    for name, head in summary["ensemble"]["heads"].items():
        for key in ("test_mae", "single_mae", "mean_baseline_mae", "coverage90"):
            figures[f"{name}_{key}"] = round(head[key], 4)
    kept = ("trials", "attempts", "wide_attempts", "utilization", "first_step_seconds")
    figures |= {key: round(summary["figures"][key], 3) for key in (*kept, "cold_start_seconds")}
    finish(__file__, figures, keep=not (options.quick or options.smoke))


if __name__ == "__main__":
    main()
