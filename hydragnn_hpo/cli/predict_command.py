"""``hydragnn-hpo predict``: properties with error bars for any structures."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from hydragnn_hpo.cli.arguments import (
    ColumnOption,
    DryRunOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
)
from hydragnn_hpo.cli.words import count
from hydragnn_hpo.errors import ConfigError, HydraError

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.config import MachineConfig
    from hydragnn_hpo.ensemble import (
        ChunkReader,
        Ensemble,
        Manifest,
        OutputColumns,
        PartHeader,
        PredictedRows,
        PredictOutcome,
        PredictRequest,
    )
    from hydragnn_hpo.launching import LauncherInfo

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


ROWS = 20
"""Structures that the table shows."""


@dataclass(frozen=True)
class RankOptions:
    """The options that start ranks."""

    ranks: int | None
    hosts: int | None
    backend: str | None
    machine: str | None

    @property
    def are_given(self) -> bool:
        """Whether ranks are to be started."""
        return any(vars(self).values())

    def resolve_machine(self) -> "MachineConfig":
        """Return the machine, with what its profile says."""
        from hydragnn_hpo.config import MachineConfig, resolve_machine

        given: dict[str, Any] = {"slots": self.ranks, "hosts": self.hosts, "sample_seconds": 0.0}
        given |= {"backend": self.backend, "profile": self.machine}
        return resolve_machine(MachineConfig(), given)


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
    options, own_rank = RankOptions(ranks, hosts, backend, machine), find_own_rank()
    from hydragnn_hpo.ensemble import PredictRequest

    request = PredictRequest(
        files=tuple(str(_shipped_or_path(path)) for path in files),
        archive=str(ensemble_file(ensemble)),
        out="" if out is None or str(out) == "-" else str(out),
        levels=tuple(_split_list(levels)),
        members=members,
        keep=tuple(_split_list(keep)),
        structure_column=structure_column,
        form=form,
        trust=tuple(trust or ()),
        compiled=compiled,
    )
    if dry_run or options.are_given or own_rank:
        failed = _on_ranks(request, options, own_rank, device, dry_run=dry_run, quiet=as_json)
    else:
        failed = _in_process(request, device, streamed=out is not None, as_json=as_json)
    raise typer.Exit(int(failed))


def _on_ranks(
    request: "PredictRequest",
    options: RankOptions,
    own_rank: "LauncherInfo | None",
    device: str,
    *,
    dry_run: bool,
    quiet: bool,
) -> bool:
    """Predict on several ranks, or show what would be started; return whether all failed."""
    _check_ranks(request, options, own_rank, device)
    if dry_run:
        _show_plan(request, options)
        return False
    if options.are_given or own_rank is None:
        return _start_ranks(request, options, quiet=quiet)
    return _predict_as_rank(request, own_rank.rank, quiet=quiet)


def find_own_rank() -> "LauncherInfo | None":
    """Return our place among the ranks of a launcher, and take our share of the host's cores.

    It is called before torch is imported, which looks at the number of threads.
    """
    from hydragnn_hpo.launching import bind_threads, detect_launcher

    standing = detect_launcher(os.environ)
    if standing is not None:
        bind_threads(os.environ, standing)
    return standing


def _check_ranks(
    request: "PredictRequest", options: RankOptions, own_rank: "LauncherInfo | None", device: str
) -> None:
    """Refuse what several ranks cannot do.

    Args:
        request: what they would predict.
        options: that start them.
        own_rank: our place among them, where a launcher has started them.
        device: where to predict.

    Raises:
        ConfigError: they would read standard input, write to a screen, or share a device.
    """
    from hydragnn_hpo.ensemble import AUTO

    if device != AUTO and (options.are_given or own_rank):
        raise ConfigError("--device is for one process: each rank has the device of its slot.")
    who = "--ranks" if options.are_given else "several ranks"
    if not request.out:
        raise ConfigError(f"{who} write a file: add --out NAME.csv.")
    if "-" in request.files:
        raise ConfigError(f"{who} cannot all read standard input: write it to a file first.")


def _show_plan(request: "PredictRequest", options: RankOptions) -> None:
    """Show what would be started."""
    from hydragnn_hpo.launching import detect_slots, layout_of, site_of

    machine = options.resolve_machine()
    with request.open_output(begin=lambda parts, plan: None) as pipeline:
        count = pipeline.count()
        known = "structures that nobody has counted" if count is None else f"{count} structures"
        typer.echo(f"{known}, {pipeline.num_sources} inputs, into {request.out}")
    if done := len(request.parts.done()):
        typer.echo(f"{done} pieces are done, in {request.parts.folder}")
    if machine.backend != "local":
        typer.echo(f"would start ranks on the hosts of the backend '{machine.backend}'")
        return
    for slot in detect_slots(machine.slots, layout=layout_of(site_of(machine))):
        cores = ",".join(map(str, slot.cores))
        typer.echo(f"would start a rank on {slot.device}, cores {cores}")


def _start_ranks(request: "PredictRequest", options: RankOptions, *, quiet: bool) -> bool:
    """Start ranks, show how far they are, and join what they did; return whether all failed."""
    from hydragnn_hpo.ensemble import predict_on_ranks

    machine = options.resolve_machine()
    with (
        request.open_output() as pipeline,
        PredictProgress(pipeline.count(), quiet=quiet) as progress,
    ):
        outcome = predict_on_ranks(request, pipeline, machine, progress.on_chunk)
    return print_outcome(outcome, quiet=quiet)


def _predict_as_rank(request: "PredictRequest", rank: int, *, quiet: bool) -> bool:
    """Predict as one of the ranks that a launcher has started; one of them shows the outcome.

    Raises:
        Exit: our part is done, another rank shows the result or the error.
    """
    from hydragnn_hpo.ensemble import predict_as_rank

    try:
        outcome = predict_as_rank(request, rank)
    except HydraError as error:
        if rank == 0:
            raise
        raise typer.Exit(error.exit_code) from None
    if outcome is None:
        raise typer.Exit
    return print_outcome(outcome, quiet=quiet)


def _in_process(request: "PredictRequest", device: str, *, streamed: bool, as_json: bool) -> bool:
    """Predict in this process; return whether all failed."""
    if request.out:
        return _to_file(request, device, quiet=as_json)
    return _to_screen(request, device, streamed=streamed, as_json=as_json)


def _to_file(request: "PredictRequest", device: str, *, quiet: bool) -> bool:
    """Predict chunk after chunk into a file; return whether all failed."""
    from hydragnn_hpo.ensemble import predict_chunks

    with request.open_output(device) as pipeline:
        try:
            with PredictProgress(pipeline.count(), quiet=quiet) as progress:
                predict_chunks(pipeline, report=progress.on_chunk)
        except BaseException:
            request.parts.leave()
            raise
        outcome = pipeline.join()
    assert outcome is not None
    return print_outcome(outcome, quiet=quiet)


def _to_screen(request: "PredictRequest", device: str, *, streamed: bool, as_json: bool) -> bool:
    """Write to standard output; return whether all failed."""
    with request.open_input(device) as (model, columns, reader):
        stream = _CountedRows(model, columns, reader)
        if streamed:
            _print_lines(stream, as_json=as_json)
        elif as_json:
            _print_json(stream)
        else:
            _print_table(stream)
        return stream.print_failures()


def _print_lines(stream: "_CountedRows", *, as_json: bool) -> None:
    """Print a line per structure as they come."""
    from hydragnn_hpo.ensemble.writers.csv import CsvWriter
    from hydragnn_hpo.ensemble.writers.json import JsonLinesWriter

    writer = JsonLinesWriter(stream.columns) if as_json else CsvWriter(stream.columns)
    _print_bytes(writer.head())
    for rows in stream:
        _print_bytes(writer.part([rows])[""])
    if not as_json and stream.columns.names("node"):
        typer.echo("values per atom are left out: add --json, or --out NAME.csv", err=True)


def _print_json(stream: "_CountedRows") -> None:
    from hydragnn_hpo.ensemble.writers.json import JsonWriter

    writer = JsonWriter(stream.columns)
    for text in writer.whole(writer.part([rows])[""] for rows in stream):
        _print_bytes(text)


def _print_table(stream: "_CountedRows") -> None:
    """Show the first structures."""
    from hydragnn_hpo.cli.tables import console

    shown: list[PredictedRows] = []
    more = False
    for rows in stream:
        shown.append(rows)
        if more := stream.structures > ROWS:
            break
    if shown:
        console().print(render_table(stream.model.manifest, shown, ROWS, more))


def _print_bytes(content: bytes) -> None:
    sys.stdout.write(content.decode())
    sys.stdout.flush()


class _CountedRows:
    """Predictions batch after batch, with a count of what went wrong."""

    def __init__(self, model: "Ensemble", columns: "OutputColumns", reader: "ChunkReader") -> None:
        self.model, self.columns, self.reader = model, columns, reader
        self.structures = self.failed = 0
        self.reasons: list[str] = []
        self.kept: set[str] = set()
        self.exhausted = False

    def __iter__(self) -> "Iterator[PredictedRows]":
        from hydragnn_hpo.ensemble import MAX_REASONS, predict_rows, read_structures

        for batch in read_structures(self.reader):
            self.structures += len(batch.ids)
            self.failed += len(batch.errors)
            self.kept.update(*batch.kept)
            self.reasons = [*self.reasons, *batch.errors.values()][:MAX_REASONS]
            yield predict_rows(self.model, batch, self.columns)
        self.exhausted = True

    def print_failures(self) -> bool:
        """Print what went wrong on stderr, and return whether nothing could be predicted."""
        from hydragnn_hpo.errors import DataError

        if not self.structures:
            raise DataError("there is no structure to predict; give a file or folder with one.")
        lacking = self.columns.lacking(self.kept) if self.exhausted else ()
        for line in summarize_failures(self.structures, self.failed, self.reasons, lacking):
            typer.echo(line, err=True)
        return self.failed == self.structures


def _split_list(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _shipped_or_path(path: Path) -> Path:
    """Return the path of a shipped file, so that ``workflows/molecules.xyz`` names it anywhere."""
    from hydragnn_hpo.resources import resource_path

    if path.exists() or path.parts[:1] != ("workflows",):
        return path
    try:
        return resource_path(str(path))
    except ConfigError:
        return path


LINE_SECONDS = 15.0
"""How often a line tells how far it is, where there is no terminal."""


class PredictProgress:
    """How far it is, on stderr: a bar on a terminal, lines elsewhere; use it in a ``with``."""

    def __init__(self, total: int | None, *, quiet: bool = False) -> None:
        """Choose between both.

        Args:
            total: structures, where that is known.
            quiet: show nothing.
        """
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )  # fmt: skip

        console = Console(stderr=True)
        columns = (
            TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
        )  # fmt: skip
        lively = console.is_terminal and not quiet
        self.bar = Progress(*columns, console=console, transient=True) if lively else None
        self.task = self.bar.add_task("", total=total, rate="") if self.bar else None
        self.total, self.quiet = total, quiet
        self.done = self._here = 0
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def on_chunk(self, header: "PartHeader", before: bool) -> None:
        """Show that a chunk is done.

        Args:
            header: of its part.
            before: it was done when this process began.
        """
        now = time.monotonic()
        self.done += header.structures
        self._here += 0 if before else header.structures
        rate = f"{self._here / max(now - self._began, 1e-6):.0f} structures/s"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=rate)
        elif not self.quiet and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            of = "" if self.total is None else f" of {self.total}"
            print(f"{self.done}{of} structures, {rate}", file=sys.stderr, flush=True)


def print_outcome(outcome: "PredictOutcome", *, quiet: bool) -> bool:
    """Print what was written and what went wrong; return whether all failed."""
    for path in outcome.files:
        print(f"wrote {path}", file=sys.stderr if quiet else sys.stdout, flush=True)
    if outcome.failed and outcome.files[0].suffix in (".extxyz", ".xyz"):
        print(f"{outcome.files[0]} leaves out what could not be predicted", file=sys.stderr)
    for line in summarize_failures(
        outcome.structures, outcome.failed, outcome.errors, outcome.lacking
    ):
        print(line, file=sys.stderr)
    return outcome.failed == outcome.structures


def summarize_failures(
    structures: int, failed: int, reasons: Iterable[str], lacking: Iterable[str]
) -> list[str]:
    """Return lines about structures that could not be predicted, and keys that none had.

    Args:
        structures: how many there are.
        failed: how many could not be predicted.
        reasons: the first reasons why.
        lacking: keys to copy that no structure had.
    """
    lines = [f"error: {reason}" for reason in reasons]
    if failed > len(lines):
        lines.append(f"and {failed - len(lines)} more, see the column 'error'")
    if failed:
        lines.append(f"{failed} of {count(structures, 'structure')} could not be predicted")
    lines += [f"warning: --keep {key}: no structure has such a key" for key in lacking]
    return lines


def render_table(
    manifest: "Manifest", some: "list[PredictedRows]", most: int, more: bool
) -> "Table":
    """Lay out graph-level predictions; node-level ones would not fit.

    Args:
        manifest: heads and units.
        some: structures, in order.
        most: rows of the table.
        more: there are structures that were not looked at.
    """
    from rich.markup import escape
    from rich.table import Table

    heads = manifest.heads.items()
    graph = {n: head for n, head in heads if (head.level, head.shape) == ("graph", "scalar")}
    table = Table(title="Mean, standard deviation, [90 % interval]", title_justify="left")
    table.add_column("structure")
    for name, head in graph.items():
        table.add_column(f"{name}\n{escape(f'[{head.unit}]')}", justify="right")
    table.add_column("trust")
    lines = [line for rows in some for line in _lines(rows, list(graph))]
    for line in lines[:most]:
        table.add_row(*map(escape, line))
    notes = []
    if len(graph) < len(manifest.heads):
        notes.append("values per atom: add --out NAME.csv or --out NAME.extxyz")
    if more or len(lines) > most:
        notes.append(f"the first {most}; all of them with --out NAME.csv")
    table.caption = "\n".join(notes) or None
    return table


def _lines(rows: "PredictedRows", heads: list[str]) -> Iterable[list[str]]:
    row, prediction = 0, rows.prediction
    for place, name in enumerate(rows.structures.ids):
        if place in rows.structures.errors:
            yield [name, *["-"] * len(heads), "not predicted"]
            continue
        cells = []
        for head in heads:
            p = prediction.heads[head]
            mean, std = p.mean[row, 0], p.std[row, 0]
            cells.append(f"{mean:.3f} +- {std:.3f}  [{p.lo90[row, 0]:.3f}, {p.hi90[row, 0]:.3f}]")
        yield [name, *cells, prediction.trust[row]]
        row += 1
