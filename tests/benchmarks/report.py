"""The report of a small run and of a campaign of 2,000 trials, against plotly's own HTML export.

The command as a user gives it, with its imports; then the page in a headless Chromium: first
contentful paint (median of several fresh contexts), requests, errors, charts drawn after
scrolling. The peer is ``plotly.io.to_html`` with the library inside, of the same charts, opened by
the same browser in turns; it holds charts alone: no tables, no numbers, no text.
``--run`` measures a real run as the small one; ``--quick`` leaves the large one out, makes a
smaller one, and opens each page once.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import plotly.io
from browser import Browser, chromium, missing
from made_campaign import make_campaign
from record import finish, make_parser, skip

from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import LIGHT
from hydragnn_hpo.report.facts import read_facts
from hydragnn_hpo.report.html_report import make_sections
from hydragnn_hpo.report.page_blocks import Figure, flatten

SCREEN = {"width": 1400, "height": 900}


def build(run: Path, out: Path) -> dict[str, float]:
    """Write a report with the command; give seconds of the clock and of the processor."""
    command = [sys.executable, "-m", "hydragnn_hpo", "report", str(run), "--out", str(out)]
    begin = time.monotonic()
    used = processor_seconds()
    subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = time.monotonic() - begin
    cpu = processor_seconds() - used
    size = out.stat().st_size / 1e6
    return {"build_seconds": seconds, "build_cpu_seconds": cpu, "megabytes": size}


def processor_seconds() -> float:
    """Give what all ended children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peer(run: Path, out: Path) -> None:
    """Write the same charts with plotly's own export."""
    sections = make_sections(read_facts(RunDir(run)))
    figures = [b for s in sections for b in flatten(s.blocks) if isinstance(b, Figure)]
    parts = []
    for number, figure in enumerate(figures):
        plain = {"data": coloured(figure.data), "layout": coloured(figure.layout)}
        first = number == 0
        html = plotly.io.to_html(plain, include_plotlyjs=first, full_html=False, validate=False)
        parts.append(html)
    inside = "".join(parts)
    out.write_text(f"<!doctype html><html><meta charset=utf-8><body>{inside}</body></html>")


def coloured(value: Any) -> Any:
    """Replace names of colours, which the peer does not know."""
    if isinstance(value, Mapping):
        return {key: coloured(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [coloured(inner) for inner in value]
    return LIGHT.get(value, value) if isinstance(value, str) else value


def paints(browser: Browser, page: Path, turns: int) -> list[float]:
    """Give first contentful paints, ms."""
    results = []
    for _ in range(turns):
        with browser.page(page.as_uri()) as seen:
            seen.page.wait_for_function(
                "performance.getEntriesByName('first-contentful-paint').length"
            )
            results.append(seen.first_paint())
    return results


def looked_at(browser: Browser, page: Path) -> dict[str, float]:
    """Give the height of a report in screens; scroll through it: what is drawn, what goes wrong."""
    with browser.page(page.as_uri(), SCREEN) as seen:
        screens = seen.page.evaluate("document.documentElement.scrollHeight") / SCREEN["height"]
        begin = time.monotonic()
        charts = seen.draw_all()
        wrong = json.loads(seen.page.evaluate("JSON.stringify(report.errors)"))
        return {
            "screens": screens,
            "charts": charts,
            "all_charts_seconds": time.monotonic() - begin,
            "requests": len(seen.requests),
            "console_errors": len(seen.errors) + len(wrong),
        }


def measure(browser: Browser, run: Path, folder: Path, turns: int) -> dict[str, float]:
    """Give all figures of one run."""
    ours, theirs = folder / "ours.html", folder / "theirs.html"
    result = build(run, ours)
    peer(run, theirs)
    pairs = [(paints(browser, ours, 1)[0], paints(browser, theirs, 1)[0]) for _ in range(turns)]
    result["first_paint_ms"] = statistics.median(own for own, _ in pairs)
    result["peer_first_paint_ms"] = statistics.median(other for _, other in pairs)
    result["first_paint_ratio"] = result["first_paint_ms"] / result["peer_first_paint_ms"]
    result["peer_megabytes"] = theirs.stat().st_size / 1e6
    return result | looked_at(browser, ours)


def main() -> None:
    """Measure, print, and keep unless it was a quick run."""
    parser = make_parser(__doc__, "a cut of it, not recorded")
    parser.add_argument("--run", type=Path, help="finished run to take as the small one")
    given = parser.parse_args()
    if given.smoke and (why := missing()):
        return skip(__file__, why)
    quick = given.quick or given.smoke
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        small = given.run or make_campaign(folder / "small", trials=8 if quick else 24).path
        runs = {"small": small}
        if not quick:
            runs["made2000"] = make_campaign(folder / "large", trials=2000, hosts=32).path
        for label, run in runs.items():
            result = measure(browser, run, folder, turns=1 if quick else 5)
            figures |= {f"{label}_{key}": value for key, value in result.items()}
    return finish(__file__, figures, keep=not quick)


if __name__ == "__main__":
    main()
