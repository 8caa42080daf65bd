"""A comparison as one HTML file."""

from pathlib import Path

from hydragnn_hpo.files import write_text
from hydragnn_hpo.report.comparing.comparison import Comparison
from hydragnn_hpo.report.comparing.sections import sections_of
from hydragnn_hpo.report.page import Title, render_page


def write_comparison(found: Comparison, out: Path) -> None:
    """Write a comparison, whole or not at all; it needs no network, as a report.

    Raises:
        StorageError: the file cannot be written.
    """
    labels = ", ".join(run.label for run in found.runs)
    title = Title(f"{len(found.runs)} campaigns side by side", labels)
    write_text(out, render_page(title, sections_of(found)))
