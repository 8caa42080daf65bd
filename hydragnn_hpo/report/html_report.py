"""The report of a run as one HTML file."""

import datetime
import logging
from collections.abc import Mapping
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.optional_packages import explain_import_error, require_package
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.page import Title, render_page
from hydragnn_hpo.report.page_blocks import Section, Text
from hydragnn_hpo.report.sections import SECTIONS, MakeSection

logger = logging.getLogger(__name__)


def write_report(run: RunDir, out: Path | None = None) -> Path:
    """Write the report of a run as one HTML file, whole or not at all.

    Args:
        run: the run directory; the campaign may still be running.
        out: the file, NAME.html; ``RUN/report/report.html`` if None.

    Raises:
        ConfigError: ``out`` does not end in .html, so it might be a file of the run.
        MissingPackage: Plotly is not installed, whose script draws the page.
        RunError: there is no campaign, or its journal is damaged.
        StorageError: the file cannot be written.
    """
    path = run.report / "report.html" if out is None else out
    if path.suffix != ".html":
        raise ConfigError(f"--out '{path}': the report is a page: name it NAME.html.")
    facts = read_facts(run)
    require_package("plotly", "a report")
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_page(report_title(facts), make_sections(facts)))
    return path


def make_sections(facts: Facts, sections: Mapping[str, MakeSection] = SECTIONS) -> list[Section]:
    """Make all sections that have something to show; one that fails is replaced by its error."""
    made: list[Section] = []
    for key, make in sections.items():
        try:
            section = make(facts)
        except Exception as error:
            if (missing := explain_import_error(error)) is None:
                logger.exception("section %s of the report could not be made", key)
            section = error_section(key, missing or error)
        if section is not None:
            made.append(section)
    return made


def error_section(key: str, error: Exception) -> Section:
    """Return a section that states in one line why the real one could not be made."""
    message = str(error).strip().partition("\n")[0]
    if not message or isinstance(error, KeyError):  # the message of a KeyError is only the key
        message = f"{type(error).__name__} {message}".strip()
    return Section(key, key.capitalize(), "", (Text(f"This could not be made: {message}"),))


def report_title(facts: Facts) -> Title:
    """Return the title: names of campaign and directory, state, and time of the last event."""
    about = "finished" if facts.state.finished else "not finished"
    folder = facts.run.path.resolve().name
    if folder != facts.config.name:
        about = f"{folder}, {about}"
    if facts.end is not None:
        when = datetime.datetime.fromtimestamp(facts.end, datetime.UTC)
        about += f", as of {when:%Y-%m-%d %H:%M:%S} UTC"
    return Title(facts.config.name, about)
