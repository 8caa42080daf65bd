"""What an open page shows: sections, each made anew when there is news and its turn has come.

One thread reads and makes; nobody else touches the facts. It has a fraction of a core at most: a
section that takes long is made seldom.
"""

import hashlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hydragnn_hpo.campaign.lease import alive
from hydragnn_hpo.campaign.records.following import Replaced
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.live_facts import LiveFacts
from hydragnn_hpo.report.page.blocks import Section
from hydragnn_hpo.report.page.page import Title, document
from hydragnn_hpo.report.page.render import Rendered, render
from hydragnn_hpo.report.page.write import broken, sections_of, title_of
from hydragnn_hpo.report.sections.contents import MakeSection

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Time between two looks at the size of the journal."""

LEAST_SECONDS = 2.0
"""Least time between two makings of one section."""

SECTION_SHARE = 0.02
"""Most of a core that one section takes; reading the journal, too."""


@dataclass
class Part:
    """A section as it was made last."""

    version: str = ""
    """Changes with what is in it; empty before it is made."""
    drawn: tuple[Section, Rendered] | None = None
    """None: it has nothing to say."""
    wrong: str = ""
    """Why it could not be made; said once in the log."""
    made_from: int = 0
    """Number of the reading that it was made from."""
    due: float = 0.0
    """When its turn comes again, in monotonic time."""


class Board:
    """Follows a run directory in a thread of its own."""

    def __init__(self, run: RunDir, sections: Mapping[str, MakeSection]) -> None:
        """Take what is made, by key and in order.

        Raises:
            RunError: the directory holds no campaign.
        """
        if not run.campaign.exists():
            raise RunError(f"{run.path}: holds no campaign; give the directory of a run.")
        self.run, self._sections = run, dict(sections)
        self.parts = {key: Part() for key in sections}
        self._changed: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        self._asked: queue.SimpleQueue[Future[bytes]] = queue.SimpleQueue()
        self._growing = LiveFacts(run)
        self._mark: tuple[object, ...] = ()
        self._reading, self._read_due = 0, 0.0
        self._facts: Facts | None = None
        self._state = "reading the journal"
        self.title = Title(run.path.resolve().name, self._state)
        self._thread = threading.Thread(target=self._follow, name="board", daemon=True)

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to follow.

        Args:
            changed: called from the thread whenever there is news.
        """
        self._changed = changed
        self._thread.start()

    def stop(self) -> None:
        """Stop following; a section that is being made is not waited for."""
        self._stopped.set()

    def news(self) -> dict[str, Any]:
        """Say what there is: versions of sections in order, and how the campaign stands."""
        said = {key: part.version for key, part in self.parts.items() if part.version}
        waiting = sum(part.made_from != self._reading for part in self.parts.values())
        about = self.title.about
        return {"state": self._state, "about": about, "waiting": waiting, "sections": said}

    def made(self) -> list[tuple[Section, Rendered]]:
        """Give the sections that were made and have something to say, in order."""
        return [part.drawn for part in self.parts.values() if part.drawn is not None]

    def document(self) -> "Future[bytes]":
        """Ask for the whole report as one file; it is made from what is there then."""
        asked: Future[bytes] = Future()
        self._asked.put(asked)
        return asked

    # -- the thread ------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._turn()
            except HydraError as error:
                self._tell(str(error))
            except Exception:
                logger.exception("the dashboard could not be brought up to date")
                self._tell("could not be brought up to date; the log says why")
                self._stopped.wait(LEAST_SECONDS)
            self._answer()
            self._stopped.wait(LOOK_SECONDS)

    def _turn(self) -> None:
        """Read what is new, make what is due, answer who asked for the whole."""
        self._read()
        self._tell(self._stands())
        for key in self._sections:
            if self._stopped.is_set():
                return
            self._answer()
            if self._facts is not None and self._is_due(key):
                self._make(key, self._facts)

    def _read(self) -> None:
        mark, now = self._growing.mark(), time.monotonic()
        if mark == self._mark or now < self._read_due:
            return
        try:
            self._facts = self._growing.read()
        except Replaced:
            self._growing, self._facts, self._mark = LiveFacts(self.run), None, ()
            raise
        self._mark = mark
        self._reading += 1
        self.title = title_of(self._facts)
        self._changed()
        self._read_due = _next(now, LOOK_SECONDS)

    def _is_due(self, key: str) -> bool:
        """Say whether a section's turn has come; at the end of a campaign it has at once."""
        part = self.parts[key]
        if part.made_from == self._reading:
            return False
        ended = self._facts is not None and self._facts.state.finished
        return ended or time.monotonic() >= part.due

    def _make(self, key: str, facts: Facts) -> None:
        part, began = self.parts[key], time.monotonic()
        part.made_from = self._reading
        section = self._section(key, part, facts)
        part.drawn = None if section is None else (section, render(section))
        version = _version(part.drawn)
        part.due = _next(began, LEAST_SECONDS)
        part.version = version
        self._changed()

    def _section(self, key: str, part: Part, facts: Facts) -> Section | None:
        try:
            section, part.wrong = self._sections[key](facts), ""
        except Exception as error:
            if repr(error) != part.wrong:
                logger.exception("section %s could not be made", key)
            part.wrong = repr(error)
            return broken(key, error)
        return section

    def _stands(self) -> str:
        """Say in a few words how the campaign stands."""
        if self._facts is None:
            return self._state
        if self._facts.state.finished:
            return "finished"
        holder = alive(self.run.path)
        if holder:
            return f"run by {holder}"
        return "not running" if self._facts.events else "not begun"

    def _tell(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._changed()

    def _answer(self) -> None:
        """Make the whole report for those who asked for it, once for all of them."""
        asked = []
        while not self._asked.empty():
            asked.append(self._asked.get())
        if not asked:
            return
        try:
            facts = self._growing.read()
            made = document(title_of(facts), sections_of(facts, self._sections)).encode()
        except Exception as error:
            for each in asked:
                each.set_exception(error)
        else:
            for each in asked:
                each.set_result(made)


def _next(began: float, least: float) -> float:
    """Give the time before which something is not done again, after it was done just now."""
    now = time.monotonic()
    return now + max(least, (now - began) / SECTION_SHARE)


def _version(drawn: tuple[Section, Rendered] | None) -> str:
    content = None if drawn is None else (drawn[1].html, drawn[1].figures)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
