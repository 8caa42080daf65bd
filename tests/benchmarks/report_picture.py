"""Take the picture of a report that the README shows.

python tests/benchmarks/report_picture.py runs/quickstart workflows/report.png
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app

CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    """Write the report of a run, open it, and take its first screen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--height", type=int, default=1000, help="of the picture, in pixels")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        done = CliRunner().invoke(app, ["report", str(given.run), "--out", str(page)])
        if done.exit_code:
            raise SystemExit(done.output)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1400, "height": given.height})
        view.goto(page.as_uri())
        view.wait_for_timeout(3000)  # all figures of the first screen are drawn
        view.screenshot(path=given.out)
        browser.close()


if __name__ == "__main__":
    main()
