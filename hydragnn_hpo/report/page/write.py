"""The report of a run as one file."""

import datetime
import logging
from collections.abc import Mapping
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.page.blocks import Section, Text
from hydragnn_hpo.report.page.page import Title, document
from hydragnn_hpo.report.sections.contents import SECTIONS, MakeSection

logger = logging.getLogger(__name__)


def write_report(run: RunDir, out: Path | None = None) -> Path:
    """Write what a run directory says as one HTML file, whole or not at all.

    Args:
        run: the campaign may be at work.
        out: the file, NAME.html; ``RUN/report/report.html`` if left out.

    Raises:
        ConfigError: the file would have another name: it might be one of the run's own.
        RunError: there is no campaign, or its journal is damaged.
        StorageError: the file cannot be written.
    """
    path = run.report / "report.html" if out is None else out
    if path.suffix != ".html":
        raise ConfigError(f"--out '{path}': the report is a page: name it NAME.html.")
    facts = read_facts(run)
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(title_of(facts), sections_of(facts)))
    return path


def sections_of(facts: Facts, sections: Mapping[str, MakeSection] = SECTIONS) -> list[Section]:
    """Make all sections that have something to say."""
    made = (made_or_said(key, make, facts) for key, make in sections.items())
    return [section for section in made if section is not None]


def made_or_said(key: str, make: MakeSection, facts: Facts) -> Section | None:
    """Make a section; one that cannot be made says so, and costs the others nothing."""
    try:
        return make(facts)
    except Exception as error:
        logger.exception("section %s of the report could not be made", key)
        return broken(key, error)


def broken(key: str, error: Exception) -> Section:
    """Say in place of a section why it could not be made."""
    said = _said(error)
    return Section(key, key.capitalize(), "", (Text(f"This could not be made: {said}"),))


def _said(error: Exception) -> str:
    """Say in one line what went wrong; a key alone would say nothing."""
    said = str(error).strip().partition("\n")[0]
    bare = not said or isinstance(error, KeyError)
    return f"{type(error).__name__} {said}".strip() if bare else said


def title_of(facts: Facts) -> Title:
    """Name a report by its campaign, and say how far it had come."""
    state = "finished" if facts.state.finished else "not finished"
    about = f"{facts.run.path.resolve().name}, {state}"
    if facts.end is not None:
        when = datetime.datetime.fromtimestamp(facts.end, datetime.UTC)
        about += f", as of {when:%Y-%m-%d %H:%M:%S} UTC"
    return Title(facts.config.name, about)
