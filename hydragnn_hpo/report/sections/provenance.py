"""Section on provenance: configuration, software, data, and commands to repeat a run."""

import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign import Event
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page_blocks import (
    Block,
    Code,
    Column,
    Number,
    Numbers,
    Section,
    Table,
    Text,
)

LARGEST = 2**30
"""Bytes of an ensemble that are read to give its checksum."""


def make_section(facts: Facts) -> Section | None:
    """Show the origin of everything, and the commands that repeat it."""
    blocks: list[Block] = [_make_numbers(facts), *_commands(facts), _software(facts)]
    blocks += _data(facts)
    blocks += _files(facts)
    blocks.append(_controllers(facts))
    blocks += _ensemble(facts)
    text = facts.run.campaign.read_text(encoding="utf-8")
    blocks.append(Code(text, "campaign.toml, every value resolved", folded=True))
    lead = "The exact configuration, software and data of this run, and the commands to repeat it."
    return Section("provenance", "Provenance", lead, tuple(blocks))


def _make_numbers(facts: Facts) -> Numbers:
    controllers = len(find_openings(facts))
    return Numbers(
        (
            Number("seed", "campaign seed", facts.config.seed, note="all seeds derive from it"),
            Number("controllers", "controllers", controllers, note="one after another"),
            Number("events", "events", len(facts.events), note="in the journal"),
        )
    )


def _commands(facts: Facts) -> list[Block]:
    campaign, run = str(facts.run.campaign), str(facts.run.path)
    again = shlex.join(["hydragnn-hpo", "run", campaign, "--run", f"{run}-again"])
    resume = shlex.join(["hydragnn-hpo", "run", campaign, "--run", run])
    same = "goes on where it stopped; if the campaign is finished there is nothing to do"
    return [
        Code(again, "Reproduce it in a new directory"),
        Code(resume, f"Resume it: {same}"),
    ]


def find_openings(facts: Facts) -> list[Event]:
    """Return the event with which each controller opened the campaign."""
    return [event for event in facts.events if event["event"] == "opened"]


def _software(facts: Facts) -> Block:
    """Return the versions of software; where controllers differ, all of them."""
    found: dict[str, list[str]] = {}
    for event in find_openings(facts):
        software = event.get("software")
        for name, version in software.items() if isinstance(software, Mapping) else ():
            found.setdefault(str(name), []).append(str(version))
    if not found:
        return Text(
            "The journal holds no versions of software: it was written before they were noted."
        )
    rows = [(name, ", ".join(dict.fromkeys(versions))) for name, versions in found.items()]
    columns = (Column("package", "software"), Column("version", "version"))
    return Table("software", columns, tuple(rows), "As the controllers found it when they opened.")


def _data(facts: Facts) -> list[Block]:
    rows = []
    for name, card in facts.cards.items():
        index = _read(facts.run.store(name) / "index.json")
        rows.append((name, str(index.get("checksum", "not known")), card.licence, card.origin))
    checksums = [str(event["data"]) for event in find_openings(facts) if event.get("data")]
    columns = (
        Column("store", "graph store"),
        Column("checksum", "checksum"),
        Column("licence", "licence"),
        Column("origin", "origin"),
    )
    note = "Checksum of the data as the controllers saw it: " + (
        ", ".join(dict.fromkeys(checksums)) or "none"
    )
    return [Table("data", columns, tuple(rows), note)] if rows else []


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path)
    except (HydraError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(facts: Facts) -> list[Block]:
    rows = [
        (Path(file.path).name, card.name, file.sha256 or "not given in the card")
        for card in facts.cards.values()
        for file in card.files
    ]
    columns = (Column("file", "file"), Column("card", "card"), Column("sha256", "SHA-256"))
    return [Table("files", columns, tuple(rows))] if rows else []


def _controllers(facts: Facts) -> Table:
    rows = []
    for event in find_openings(facts):
        slots = event.get("slots", ())
        hosts = {slot.rpartition(":")[0] for slot in slots}
        opened = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        rows.append((f"controller {event['epoch']}", opened, len(hosts), len(slots)))
    columns = (
        Column("controller", "controller"),
        Column("opened", "opened"),
        Column("hosts", "hosts"),
        Column("slots", "slots"),
    )
    machine = facts.config.machine
    note = f"Backend {machine.backend}, machine profile {machine.profile or 'of this computer'}."
    return Table("openings", columns, tuple(rows), note)


def _ensemble(facts: Facts) -> list[Block]:
    found = file_checksum(facts.run.ensemble)
    if found is None:
        return [Text("There is no ensemble file yet.")]
    return [Code(f"{found}  {facts.run.ensemble.name}", "Ensemble, SHA-256")]


def file_checksum(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if it is missing or very large."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
