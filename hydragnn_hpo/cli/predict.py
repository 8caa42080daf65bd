"""What ``predict`` can be asked."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import (
    ColumnOption,
    DryRunOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
)
from hydragnn_hpo.errors import ConfigError, HydraError

if TYPE_CHECKING:
    from hydragnn_hpo.config.campaign import MachineConfig
    from hydragnn_hpo.ensemble.inference import Ensemble
    from hydragnn_hpo.ensemble.output_columns import OutputColumns, PredictedRows
    from hydragnn_hpo.ensemble.predict_file import PredictOutcome, PredictRequest
    from hydragnn_hpo.ensemble.structure_batches import ChunkReader
    from hydragnn_hpo.launching.ranks.started import Standing

FilesArgument = Annotated[
    list[Path],
    typer.Argument(help="Structure files, folders, databases, stores; - is standard input."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        help="NAME.csv, .parquet, .extxyz, .json, .jsonl or .bp to write; - writes CSV (with "
        "--json: JSON lines) to standard output. A run that was killed goes on where it was."
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="Format of standard input: a suffix, or ASE's name.")
]
LevelsOption = Annotated[str, typer.Option(metavar="PERCENT,...", help="Intervals, as 50,95.")]
MembersOption = Annotated[bool, typer.Option("--members", help="Also give each member's values.")]
KeepOption = Annotated[
    str, typer.Option(metavar="KEY,...", help="Keys of the input to take along.")
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Run members as machine code, made once and kept.")
]
DevicesOption = Annotated[
    str,
    typer.Option(
        "--device",
        help="Where to predict: auto (a GPU if there is one), cpu, cuda:0; several, as "
        "cuda:0,cuda:1, divide the members by what each costs. Not with --ranks.",
    ),
]

RanksOption = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Ranks on each host; one per GPU or core with --backend."),
]
HostsOption = Annotated[int | None, typer.Option(min=1, help="Hosts to use; all there are.")]
BackendOption = Annotated[
    str | None, typer.Option(help="local, slurm, ray, steps or mpiexec: share the work over ranks.")
]
MachineOption = Annotated[
    str | None, typer.Option("--machine", help="Machine profile: a shipped name or a path.")
]


@dataclass(frozen=True)
class RankOptions:
    """Who is to predict."""

    ranks: int | None
    hosts: int | None
    backend: str | None
    machine: str | None

    @property
    def is_asked(self) -> bool:
        """Whether ranks are to be started."""
        return any(vars(self).values())

    def settled(self) -> "MachineConfig":
        """Give the machine, with what its profile says."""
        from hydragnn_hpo.config.campaign import MachineConfig
        from hydragnn_hpo.config.on_machine import on_machine

        asked: dict[str, Any] = {"slots": self.ranks, "hosts": self.hosts, "sample_seconds": 0.0}
        asked |= {"backend": self.backend, "profile": self.machine}
        return on_machine(MachineConfig(), asked)


def by_ranks(
    order: "PredictRequest",
    crowd: RankOptions,
    standing: "Standing | None",
    device: str,
    *,
    dry_run: bool,
    quiet: bool,
) -> bool:
    """Predict on several ranks; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import print_outcome
    from hydragnn_hpo.ensemble.multi_device import AUTO

    if device != AUTO and (crowd.is_asked or standing):
        raise ConfigError("--device is for one process: each rank has the device of its slot.")
    _check(order, asked=crowd.is_asked)
    if dry_run:
        show_plan(order, crowd)
        return False
    if crowd.is_asked or standing is None:
        outcome = start_ranks(order, crowd, quiet=quiet)
    else:
        outcome = be_rank(order, standing)
    return print_outcome(outcome, quiet=quiet)


def start_ranks(order: "PredictRequest", crowd: RankOptions, *, quiet: bool) -> "PredictOutcome":
    """Start ranks, show how far they are, and join what they did."""
    from hydragnn_hpo.cli.predict_view import PredictProgress
    from hydragnn_hpo.ensemble.rank_pool import predict_on

    machine = crowd.settled()
    with order.opened() as work, PredictProgress(work.count(), quiet=quiet) as screen:
        return predict_on(
            order, work, machine, lambda header, before: screen.tell(header.structures, before)
        )


def be_rank(order: "PredictRequest", standing: "Standing") -> "PredictOutcome":
    """Be one of the ranks that a launcher has started; only one of them comes back.

    Raises:
        Exit: our part is done, another rank has the result or the error to tell.
    """
    from hydragnn_hpo.ensemble.multi_rank import predict_together

    try:
        outcome = predict_together(order, standing.rank)
    except HydraError as error:
        if standing.rank == 0:
            raise
        raise typer.Exit(error.exit_code) from None
    if outcome is None:
        raise typer.Exit
    return outcome


def find_own_rank() -> "Standing | None":
    """Give our place among the ranks of a launcher, with our share of the host's cores.

    It is to be asked before torch is imported, which looks at the number of threads.
    """
    from hydragnn_hpo.launching.ranks.cores import settle_threads
    from hydragnn_hpo.launching.ranks.started import standing_of

    standing = standing_of(os.environ)
    if standing is not None:
        settle_threads(os.environ, standing)
    return standing


def show_plan(order: "PredictRequest", crowd: RankOptions) -> None:
    """Say what would be started."""
    from hydragnn_hpo.launching.host.slots import detect_slots
    from hydragnn_hpo.launching.ranks.site import layout_of, site_of

    machine = crowd.settled()
    with order.opened(begin=lambda parts, plan: None) as work:
        count = work.count()
        known = "structures that nobody has counted" if count is None else f"{count} structures"
        typer.echo(f"{known}, {work.lots} inputs, into {order.out}")
    if done := len(order.parts.done()):
        typer.echo(f"{done} pieces are done, in {order.parts.folder}")
    if machine.backend != "local":
        typer.echo(f"would start ranks on the hosts of the backend '{machine.backend}'")
        return
    for slot in detect_slots(machine.slots, layout=layout_of(site_of(machine))):
        cores = ",".join(map(str, slot.cores))
        typer.echo(f"would start a rank on {slot.device}, cores {cores}")


def _check(order: "PredictRequest", *, asked: bool) -> None:
    """Refuse what several ranks cannot do.

    Raises:
        ConfigError: they would read standard input, or write to a screen.
    """
    who = "--ranks" if asked else "several ranks"
    if not order.out:
        raise ConfigError(f"{who} write a file: add --out NAME.csv.")
    if "-" in order.files:
        raise ConfigError(f"{who} cannot all read standard input: write it to a file first.")


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
    crowd, standing = RankOptions(ranks, hosts, backend, machine), find_own_rank()
    from hydragnn_hpo.ensemble.predict_file import PredictRequest

    order = PredictRequest(
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


def _alone(order: "PredictRequest", device: str, *, streamed: bool, as_json: bool) -> bool:
    """Predict in this process; tell whether all failed."""
    if order.out:
        return _to_file(order, device, quiet=as_json)
    with order.prepared(device) as (model, layout, reading):
        if streamed or as_json:
            return _to_stdout(model, layout, reading, lines=streamed, as_json=as_json)
        return _to_table(model, layout, reading)


def _to_file(order: "PredictRequest", device: str, *, quiet: bool) -> bool:
    """Predict piece after piece into a file; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import PredictProgress, print_outcome

    with order.opened(device) as work:
        try:
            with PredictProgress(work.count(), quiet=quiet) as screen:
                work.do_all(lambda header, before: screen.tell(header.structures, before))
        except BaseException:
            order.parts.leave()
            raise
        outcome = work.join()
    assert outcome is not None
    return print_outcome(outcome, quiet=quiet)


def _to_stdout(
    model: "Ensemble",
    layout: "OutputColumns",
    reading: "ChunkReader",
    *,
    lines: bool,
    as_json: bool,
) -> bool:
    """Write predictions to standard output as they come; tell whether all failed."""
    from hydragnn_hpo.ensemble.writers.csv import CsvWriter
    from hydragnn_hpo.ensemble.writers.json import JsonLinesWriter, JsonWriter

    found = _Counted(model, layout, reading)

    def write(content: bytes) -> None:
        sys.stdout.write(content.decode())
        sys.stdout.flush()

    if lines:
        form = JsonLinesWriter(layout) if as_json else CsvWriter(layout)
        write(form.head())
        for rows in found:
            write(form.part([rows])[""])
        if not as_json and layout.names("node"):
            typer.echo("values per atom are left out: add --json, or --out NAME.csv", err=True)
    else:
        whole = JsonWriter(layout)
        for piece in whole.whole(whole.part([rows])[""] for rows in found):
            write(piece)
    return found.ended()


def _to_table(model: "Ensemble", layout: "OutputColumns", reading: "ChunkReader") -> bool:
    """Show the first structures; tell whether all failed."""
    from hydragnn_hpo.cli.predict_view import first_table
    from hydragnn_hpo.cli.tables import console

    some: list[PredictedRows] = []
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

    def __init__(self, model: "Ensemble", layout: "OutputColumns", reading: "ChunkReader") -> None:
        self.model, self.layout, self.reading = model, layout, reading
        self.structures = self.failed = 0
        self.reasons: list[str] = []
        self.kept: set[str] = set()
        self.whole = False

    def __iter__(self) -> "Iterator[PredictedRows]":
        from hydragnn_hpo.ensemble.predict_file import MOST_REASONS, predict_rows
        from hydragnn_hpo.ensemble.structure_batches import read_structures

        for some in read_structures(self.reading):
            self.structures += len(some.ids)
            self.failed += len(some.errors)
            self.kept.update(*some.kept)
            self.reasons = [*self.reasons, *some.errors.values()][:MOST_REASONS]
            yield predict_rows(self.model, some, self.layout)
        self.whole = True

    def ended(self) -> bool:
        """Say what went wrong on stderr, and whether nothing could be predicted."""
        from hydragnn_hpo.cli.predict_view import summarize_failures
        from hydragnn_hpo.errors import DataError

        if not self.structures:
            raise DataError("there is no structure to predict; give a file or folder with one.")
        lacking = self.layout.lacking(self.kept) if self.whole else ()
        for line in summarize_failures(self.structures, self.failed, self.reasons, lacking):
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
