"""``hydragnn-hpo predict``: properties with error bars for any structures."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hydragnn_hpo.cli.arguments import (
    ColumnOption,
    DryRunOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
)
from hydragnn_hpo.cli.predict_options import (
    CompileOption,
    DevicesOption,
    FilesArgument,
    FormatOption,
    KeepOption,
    LevelsOption,
    MembersOption,
    OutOption,
)
from hydragnn_hpo.cli.predict_ranks import (
    BackendOption,
    Crowd,
    HostsOption,
    MachineOption,
    RanksOption,
    by_ranks,
    standing_here,
)

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
    from hydragnn_hpo.ensemble.output import Layout, Rows
    from hydragnn_hpo.ensemble.streaming.order import Order
    from hydragnn_hpo.ensemble.streaming.reading import Reading

ROWS = 20
"""Structures that the table shows."""


def predict(
    files: FilesArgument,
    ensemble: EnsembleOption,
    out: OutOption = None,
    form: FormatOption = "extxyz",
    levels: LevelsOption = "90",
    members: MembersOption = False,
    keep: KeepOption = "",
    structure_column: ColumnOption = None,
    trust: TrustOption = None,
    compiled: CompileOption = False,
    device: DevicesOption = "auto",
    ranks: RanksOption = None,
    hosts: HostsOption = None,
    backend: BackendOption = None,
    machine: MachineOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict properties with standard deviation and intervals, in the targets' units."""
    crowd, standing = Crowd(ranks, hosts, backend, machine), standing_here()
    from hydragnn_hpo.ensemble.streaming.order import Order

    order = Order(
        files=tuple(str(_shipped_or_path(path)) for path in files),
        archive=str(ensemble_file(ensemble)),
        out="" if out is None or str(out) == "-" else str(out),
        levels=tuple(_listed(levels)),
        members=members,
        keep=tuple(_listed(keep)),
        structure_column=structure_column,
        form=form,
        trust=tuple(trust or ()),
        compiled=compiled,
    )
    if dry_run or crowd.is_asked or standing:
        failed = by_ranks(order, crowd, standing, device, dry_run=dry_run, quiet=as_json)
    else:
        failed = _alone(order, device, streamed=out is not None, as_json=as_json)
    raise typer.Exit(int(failed))


def _alone(order: "Order", device: str, *, streamed: bool, as_json: bool) -> bool:
    """Predict in this process; tell whether all failed."""
    if order.out:
        return _to_file(order, device, quiet=as_json)
    with order.prepared(device) as (model, layout, reading):
        if streamed or as_json:
            return _to_stdout(model, layout, reading, lines=streamed, as_json=as_json)
        return _to_table(model, layout, reading)


def _to_file(order: "Order", device: str, *, quiet: bool) -> bool:
    """Predict piece after piece into a file; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import Screen, tell_outcome

    with order.opened(device) as work:
        try:
            with Screen(work.count(), quiet=quiet) as screen:
                work.do_all(lambda header, before: screen.tell(header.structures, before))
        except BaseException:
            order.parts.leave()
            raise
        outcome = work.join()
    assert outcome is not None
    return tell_outcome(outcome, quiet=quiet)


def _to_stdout(
    model: "Ensemble", layout: "Layout", reading: "Reading", *, lines: bool, as_json: bool
) -> bool:
    """Write predictions to standard output as they come; tell whether all failed."""
    from hydragnn_hpo.ensemble.output.csv_file import CsvFile
    from hydragnn_hpo.ensemble.output.json_file import JsonFile, JsonLines

    found = _Counted(model, layout, reading)

    def write(content: bytes) -> None:
        sys.stdout.write(content.decode())
        sys.stdout.flush()

    if lines:
        form = JsonLines(layout) if as_json else CsvFile(layout)
        write(form.head())
        for rows in found:
            write(form.part([rows])[""])
        if not as_json and layout.names("node"):
            typer.echo("values per atom are left out: add --json, or --out NAME.csv", err=True)
    else:
        whole = JsonFile(layout)
        for piece in whole.whole(whole.part([rows])[""] for rows in found):
            write(piece)
    return found.ended()


def _to_table(model: "Ensemble", layout: "Layout", reading: "Reading") -> bool:
    """Show the first structures; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import first_table
    from hydragnn_hpo.cli.tables import console

    some: list[Rows] = []
    found = _Counted(model, layout, reading)
    more = False
    for rows in found:
        some.append(rows)
        if more := found.structures > ROWS:
            break
    if some:
        console().print(first_table(model.manifest, some, ROWS, more))
    return found.ended()


class _Counted:
    """Predictions batch after batch, with a count of what went wrong."""

    def __init__(self, model: "Ensemble", layout: "Layout", reading: "Reading") -> None:
        self.model, self.layout, self.reading = model, layout, reading
        self.structures = self.failed = 0
        self.reasons: list[str] = []
        self.kept: set[str] = set()
        self.whole = False

    def __iter__(self) -> "Iterator[Rows]":
        from hydragnn_hpo.ensemble.streaming.reading import stream
        from hydragnn_hpo.ensemble.streaming.work import MOST_REASONS, predicted

        for some in stream(self.reading):
            self.structures += len(some.ids)
            self.failed += len(some.errors)
            self.kept.update(*some.kept)
            self.reasons = [*self.reasons, *some.errors.values()][:MOST_REASONS]
            yield predicted(self.model, some, self.layout)
        self.whole = True

    def ended(self) -> bool:
        """Say what went wrong on stderr, and whether nothing could be predicted."""
        from hydragnn_hpo.cli.predict_view import endings
        from hydragnn_hpo.errors import DataError

        if not self.structures:
            raise DataError("there is no structure to predict; give a file or folder with one.")
        lacking = self.layout.lacking(self.kept) if self.whole else ()
        for line in endings(self.structures, self.failed, self.reasons, lacking):
            typer.echo(line, err=True)
        return self.failed == self.structures


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _shipped_or_path(path: Path) -> Path:
    """Let ``workflows/molecules.xyz`` name the shipped file from any folder."""
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.shipped import shipped

    if path.exists() or path.parts[:1] != ("workflows",):
        return path
    try:
        return shipped(str(path))
    except ConfigError:
        return path
