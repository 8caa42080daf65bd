"""Section on provenance: configuration, software, data, and commands to repeat a run."""

import hashlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.journal_events import OpenedEvent
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Code,
    Fold,
    Number,
    Numbers,
    Section,
    Table,
    Text,
    make_table,
)

LARGEST = 2**30
"""Maximum size in bytes of a file whose checksum is computed."""


def make_section(facts: Facts) -> Section:
    """Show configuration, software and data of the run, and the commands that repeat it."""
    openings = [event for event in facts.events if event["event"] == "opened"]
    numbers = (
        Number("seed", "campaign seed", facts.config.seed, note="all seeds derive from it"),
        Number("controllers", "controllers", len(openings), note="one after another"),
        Number("events", "events", len(facts.events), note="in the journal"),
    )
    more: list[Block] = [_software(openings)]
    if facts.cards:
        more.append(_data(facts, openings))
    more += [*_files(facts), _controllers(facts, openings)]
    blocks: list[Block] = [Numbers(numbers), *_commands(facts)]
    blocks.append(Fold("Software, data and controllers", tuple(more)))
    checksum = file_checksum(facts.run.ensemble)
    blocks.append(
        Code(f"{checksum}  {facts.run.ensemble.name}", "Ensemble, SHA-256")
        if checksum
        else Text("There is no ensemble file yet.")
    )
    text = facts.run.campaign.read_text(encoding="utf-8")
    blocks.append(Code(text, "campaign.toml, every value resolved", folded=True))
    lead = "The exact configuration, software and data of this run, and the commands to repeat it."
    return Section("provenance", "Provenance", lead, tuple(blocks))


def _commands(facts: Facts) -> list[Block]:
    campaign = str(facts.run.campaign)
    run = str(facts.run.path)
    again, resume = (
        shlex.join(["hydragnn-hpo", "run", campaign, "--run", path])
        for path in (f"{run}-again", run)
    )
    same = "continues where it stopped; nothing is left to do if the campaign is finished"
    return [Code(again, "Reproduce it in a new directory"), Code(resume, f"Resume it: {same}")]


def _software(openings: Sequence[OpenedEvent]) -> Table:
    """Return a table of software versions; all versions where controllers differ."""
    versions_of: dict[str, list[str]] = {}
    for event in openings:
        for name, version in event.get("software", {}).items():
            versions_of.setdefault(name, []).append(version)
    rows = [(name, ", ".join(dict.fromkeys(versions))) for name, versions in versions_of.items()]
    note = "As the controllers found it when they opened."
    return make_table("software", {"package": "software", "version": "version"}, rows, note)


def _data(facts: Facts, openings: Sequence[OpenedEvent]) -> Table:
    columns = {
        "store": "graph store",
        "checksum": "checksum",
        "licence": "licence",
        "origin": "origin",
    }
    rows = []
    for name, card in facts.cards.items():
        checksum = _read_checksum(facts.run.store(name))
        rows.append((name, checksum, card.licence, card.origin))
    checksums = dict.fromkeys(str(event["data"]) for event in openings if event.get("data"))
    note = f"Checksum of the data as the controllers saw it: {', '.join(checksums) or 'none'}"
    return make_table("data", columns, rows, note)


def _read_checksum(store: Path) -> str:
    try:
        index = read_json(store / "index.json")
    except (HydraError, OSError):
        index = None
    return str(index.get("checksum", "not known")) if isinstance(index, dict) else "not known"


def _files(facts: Facts) -> list[Block]:
    rows = [
        (Path(file.path).name, card.name, file.sha256 or "not given in the card")
        for card in facts.cards.values()
        for file in card.files
    ]
    columns = {"file": "file", "card": "card", "sha256": "SHA-256"}
    return [make_table("files", columns, rows)] if rows else []


def _controllers(facts: Facts, openings: Sequence[OpenedEvent]) -> Table:
    rows = []
    for event in openings:
        slots = event.get("slots", ())
        hosts = {slot.rpartition(":")[0] for slot in slots}
        opened = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        rows.append((f"controller {event['epoch']}", opened, len(hosts), len(slots)))
    columns = {
        "controller": "controller",
        "opened": "opened",
        "hosts": "hosts",
        "slots": "slots",
    }
    machine = facts.config.machine
    note = f"Backend {machine.backend}, machine profile {machine.profile or 'of this computer'}."
    return make_table("openings", columns, rows, note)


def file_checksum(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if it is missing or very large."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
