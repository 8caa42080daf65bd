"""What it takes to trust a run and to repeat it: configuration, software, data, commands."""

import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.records.journal import Event
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.page.blocks import (
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


def section(facts: Facts) -> Section | None:
    """Say where everything came from, and how to do it again."""
    blocks: list[Block] = [_numbers(facts), *_commands(facts), _software(facts)]
    blocks += _data(facts)
    blocks += _files(facts)
    blocks.append(_controllers(facts))
    blocks += _ensemble(facts)
    text = facts.run.campaign.read_text(encoding="utf-8")
    blocks.append(Code(text, "campaign.toml, every value resolved", folded=True))
    lead = "The exact configuration, software and data of this run, and the commands to repeat it."
    return Section("provenance", "Provenance", lead, tuple(blocks))


def _numbers(facts: Facts) -> Numbers:
    return Numbers(
        (
            Number("seed", "campaign seed", facts.config.seed, note="all seeds derive from it"),
            Number("controllers", "controllers", len(openings(facts)), note="one after another"),
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


def openings(facts: Facts) -> list[Event]:
    """Give the journal's first word of each controller that opened the campaign."""
    return [event for event in facts.events if event["event"] == "opened"]


def _software(facts: Facts) -> Block:
    """Give versions; of several controllers those that differ stand side by side."""
    found: dict[str, list[str]] = {}
    for event in openings(facts):
        said = event.get("software")
        for name, version in said.items() if isinstance(said, Mapping) else ():
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
    said = [str(event["data"]) for event in openings(facts) if event.get("data")]
    columns = (
        Column("store", "graph store"),
        Column("checksum", "checksum"),
        Column("licence", "licence"),
        Column("origin", "origin"),
    )
    note = "Checksum of the data as the controllers saw it: " + (
        ", ".join(dict.fromkeys(said)) or "none"
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
    for event in openings(facts):
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
    found = checksum(facts.run.ensemble)
    if found is None:
        return [Text("There is no ensemble file yet.")]
    return [Code(f"{found}  {facts.run.ensemble.name}", "Ensemble, SHA-256")]


def checksum(path: Path) -> str | None:
    """Give the SHA-256 of a file; None if it is missing or very large."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
