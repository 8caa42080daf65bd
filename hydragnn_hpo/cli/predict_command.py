"""``hydragnn-hpo predict``: properties with error bars for any structures."""

import functools
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import (
    ColumnOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
    machine_option,
    shipped_or_path,
)
from hydragnn_hpo.cli.progress import ProgressDisplay
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.words import count, fixed

if TYPE_CHECKING:
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.ensemble import HeadEntry, Manifest
    from hydragnn_hpo.ensemble.predict_file import PredictRequest
    from hydragnn_hpo.ensemble.predict_output import (
        OutputColumns,
        PartHeader,
        PredictedRows,
        PredictOutcome,
    )
    from hydragnn_hpo.launching.rank_environment import LauncherInfo

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Structure files, FILE@INDEX, folders, databases, stores; - is standard input."
    ),
]
output_option = functools.partial(typer.Option, rich_help_panel="Output")
OutOption = Annotated[
    Path | None,
    output_option(
        help="NAME.csv, .parquet, .extxyz, .json, .jsonl or .bp to write; - writes CSV (with "
        "--json: JSON lines) to standard output. A run that was killed goes on where it was."
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="Format of standard input: a suffix, or ASE's name.")
]
LevelsOption = Annotated[str, output_option(metavar="PERCENT,...", help="Intervals, as 50,95.")]
MembersOption = Annotated[bool, output_option("--members", help="Also give each member's values.")]
KeepOption = Annotated[
    str, output_option(metavar="KEY,...", help="Keys of the input to take along.")
]
DevicesOption = Annotated[
    str,
    machine_option(
        "--device",
        help="Where to predict: auto (a GPU if there is one), cpu, cuda:0; several, as "
        "cuda:0,cuda:1, divide the members by what each costs. Not with several ranks.",
    ),
]


ROWS = 20
"""Largest number of structures in the table on the terminal."""

MOST_CLASSES = 3
"""Classes that a cell of that table names, the most probable first."""


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
    device: DevicesOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Predict properties with standard deviation and intervals, in the targets' units."""
    own_rank = find_own_rank()
    from hydragnn_hpo.ensemble.predict_file import PredictRequest

    request = PredictRequest(
        files=tuple(str(shipped_or_path(path)) for path in files),
        archive=str(ensemble_file(ensemble)),
        out="" if out is None or str(out) == "-" else str(out),
        levels=_split_list(levels),
        members=members,
        keep=_split_list(keep),
        structure_column=structure_column,
        form=form,
        trust=tuple(trust or ()),
    )
    _run(request, device, own_rank, streamed=out is not None, as_json=as_json)


def _run(
    request: "PredictRequest",
    device: str,
    own_rank: "LauncherInfo | None",
    *,
    streamed: bool,
    as_json: bool,
) -> None:
    """Predict as one of several ranks, or in this process alone, and print the outcome.

    Args:
        request: what to predict.
        device: devices of this process, in the syntax of ``engine.devices_of``.
        own_rank: rank of this process; None if no launcher started it.
        streamed: print every structure as it is predicted, not a table of the first ones.
        as_json: print JSON.
    """
    if own_rank is not None:
        _check_ranks(request, device)
        outcome = _predict_as_rank(request, own_rank)
    elif request.out:
        outcome = _to_file(request, device, quiet=as_json)
    else:
        outcome = _to_screen(request, device, streamed=streamed, as_json=as_json)
    print_outcome(outcome, quiet=as_json)
    raise typer.Exit(int(outcome.failed == outcome.structures or bool(outcome.incomplete)))


def find_own_rank() -> "LauncherInfo | None":
    """Return the rank of this process; None if no launcher started it.

    Also limits the process to its share of the host's threads. Call it before torch is imported:
    torch reads the number of threads at import.
    """
    from hydragnn_hpo.launching.rank_environment import (
        RANK_VARIABLES,
        bind_threads,
        detect_launcher,
    )

    if not any(name in os.environ for name in RANK_VARIABLES):
        return None
    own_rank = detect_launcher(os.environ)
    if own_rank is not None:
        bind_threads(os.environ, own_rank)
    return own_rank


def _check_ranks(request: "PredictRequest", device: str) -> None:
    """Refuse options that do not work with several ranks.

    Raises:
        ConfigError: the ranks would read standard input, print to the terminal, or share a device.
    """
    from hydragnn_hpo.ensemble.engine import AUTO

    if device != AUTO:
        raise ConfigError(
            "--device is for one process: leave it out, each rank has that of its slot."
        )
    if not request.out:
        raise ConfigError("several ranks write a file: add --out NAME.csv.")
    if "-" in request.files:
        raise ConfigError("several ranks cannot all read standard input: write it to a file first.")


def _predict_as_rank(request: "PredictRequest", own_rank: "LauncherInfo") -> "PredictOutcome":
    """Predict as one of the ranks that a launcher has started; only one rank returns the outcome.

    Raises:
        Exit: this rank is done, and another rank prints the outcome or the error.
    """
    from hydragnn_hpo.ensemble.multi_rank import predict_as_rank

    try:
        outcome = predict_as_rank(request, own_rank.rank, own_rank.local)
    except HydraError as error:
        if own_rank.rank == 0:
            raise
        raise typer.Exit(error.exit_code) from None
    if outcome is None:
        raise typer.Exit
    return outcome


def _to_file(request: "PredictRequest", device: str, *, quiet: bool) -> "PredictOutcome":
    """Predict into a file, one chunk at a time."""
    from hydragnn_hpo.ensemble.predict_file import predict_chunks

    request.parts.refuse_second_writer()
    with request.open_output(device) as pipeline, request.parts.hold() as lease:
        try:
            with PredictProgress(pipeline.reader.count(), quiet=quiet) as progress:

                def report(header: "PartHeader", before: bool) -> None:
                    lease.renew()
                    progress.on_chunk(header, before)

                def report_batch(structures: int) -> None:
                    lease.renew()
                    progress.on_batch(structures)

                predict_chunks(replace(pipeline, report_batch=report_batch), report=report)
        except BaseException:
            request.parts.leave()
            raise
        outcome = pipeline.join()
    assert outcome is not None, "this process has written all parts"
    return outcome


def _to_screen(
    request: "PredictRequest", device: str, *, streamed: bool, as_json: bool
) -> "PredictOutcome":
    """Print a table of the first structures, or, with JSON or streaming, all structures."""
    from hydragnn_hpo.ensemble import OutputFormat
    from hydragnn_hpo.ensemble.predict_file import make_writer, stream_rows
    from hydragnn_hpo.ensemble.predict_output import PredictOutcome

    outcome = PredictOutcome()
    with request.open_input(device) as (model, columns, reader):
        rows = stream_rows(model, columns, reader, outcome)
        if not streamed and not as_json:
            _print_table(columns, rows, outcome)
            return outcome
        lines = OutputFormat.JSON_LINES if as_json else OutputFormat.CSV
        form = lines if streamed else OutputFormat.JSON
        writer = make_writer(Path(f"stdout{form}"), columns)
        contents = writer.whole(writer.part([some])[""] for some in rows)
        if form is OutputFormat.JSON:
            contents = _hold_back(contents)  # half of a list is no JSON
        for content in contents:
            sys.stdout.write(content.decode())
            sys.stdout.flush()
    if not as_json and columns.names("node"):
        typer.echo("values per atom are left out: add --json, or --out NAME.csv", err=True)
    return outcome


def _hold_back(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield contents once all are there; an error on the way leaves none. They wait in a file."""
    with tempfile.TemporaryFile() as file:
        file.writelines(contents)
        file.seek(0)
        yield from file


def _print_table(
    columns: "OutputColumns", rows: "Iterable[PredictedRows]", outcome: "PredictOutcome"
) -> None:
    """Print a table of the first structures, and stop predicting when it is full."""
    shown: list[PredictedRows] = []
    for some in rows:
        shown.append(some)
        if outcome.structures > ROWS:
            break
    if outcome.failed < outcome.structures:  # else there are errors only, which say more
        console().print(render_table(columns, shown, ROWS))


class PredictProgress(ProgressDisplay):
    """Counts predicted structures, and shows them with their rate; use it as a context manager."""

    def __init__(self, total: int | None, *, quiet: bool = False) -> None:
        """Count nothing yet.

        Args:
            total: number of structures; None if unknown.
            quiet: show nothing.
        """
        super().__init__("predicting structures", total=total, quiet=quiet)
        self._began = time.monotonic()
        self._before = self._here = self._of_chunk = 0

    def on_batch(self, structures: int) -> None:
        """Count a batch of a chunk that goes on, and show the progress."""
        self._of_chunk += structures
        here = self._here + self._of_chunk
        rate = here / max(time.monotonic() - self._began, 1e-6)
        self.show(self._before + here, f"{rate:.3g} structures/s")

    def on_chunk(self, header: "PartHeader", before: bool) -> None:
        """Count a finished chunk, and show the progress.

        Args:
            header: header of the chunk's output file.
            before: True if an earlier process wrote the chunk; it is left out of the rate.
        """
        self._before += header.structures if before else 0
        self._here += 0 if before else header.structures
        self._of_chunk = 0
        self.on_batch(0)


def print_outcome(outcome: "PredictOutcome", *, quiet: bool) -> None:
    """Print the files written and, on stderr, errors and warnings."""
    from hydragnn_hpo.ensemble.predict_output import EXTXYZ_SUFFIXES

    for path in outcome.files:
        print(f"wrote {path}", file=sys.stderr if quiet else sys.stdout, flush=True)
    lines = [f"error: {reason}" for reason in outcome.errors]
    if outcome.failed and outcome.files and outcome.files[0].suffix in EXTXYZ_SUFFIXES:
        lines.insert(0, f"{outcome.files[0]} leaves out what could not be predicted")
    if (more := outcome.failed - len(outcome.errors)) > 0:
        lines.append(f"and {more} more, see the column 'error'")
    if outcome.failed:
        structures = count(outcome.structures, "structure")
        lines.append(f"{outcome.failed} of {structures} could not be predicted")
    lines += [f"error: {sentence}" for sentence in outcome.incomplete]
    lines += [
        f"warning: --keep {key}: no structure has such a key; correct it or leave it out."
        for key in outcome.lacking
    ]
    lines += [
        f"warning: {name} has a constant of {constant:.4g} once for each structure, as in nets of "
        "earlier versions: train again, or compare structures of one size only."
        for name, constant in outcome.constants.items()
    ]
    lines += [f"warning: {sentence}" for sentence in outcome.unguaranteed]
    for line in lines:
        typer.echo(line, err=True)


def render_table(
    columns: "OutputColumns", some: "Iterable[PredictedRows]", most: int
) -> "FittedTable":
    """Build a table of numbers and classes of structures; other values are left out.

    Args:
        columns: heads with their units, and the levels of the intervals.
        some: structures and their predictions, in order.
        most: largest number of rows.
    """
    manifest = columns.manifest
    shown = {
        name: head
        for name, head in manifest.heads.items()
        if head.level == "graph" and head.shape in ("scalar", "class")
    }
    titles = {name: _title(name, head) for name, head in shown.items()}
    kinds = {head.shape for head in shown.values()}
    intervals = ", ".join(f"[{level} % interval]" for level in columns.levels)
    cells = [f"Mean, standard deviation, {intervals}"] if kinds != {"class"} else []
    cells += ["classes with their probabilities"] if "class" in kinds else []
    table = make_table("; ".join(cells).capitalize(), drop=[*titles.values()][:0:-1])
    table.add_texts("structure")
    for name, title in titles.items():
        (table.add_texts if shown[name].shape == "class" else table.add_numbers)(title)
    table.add_texts("trust")
    lines = [line for rows in some for line in _table_lines(rows, shown, columns.levels)]
    for line in lines[:most]:
        table.add_row(*line)
    notes = []
    if omitted := _name_omitted(manifest):
        notes.append(f"{omitted}: add --out NAME.csv or --out NAME.extxyz")
    if len(lines) > most:
        notes.append(f"the first {most}; all of them with --out NAME.csv")
    table.caption = "\n".join(notes)
    return table


def _title(name: str, head: "HeadEntry") -> str:
    """Return the title of a head's column; a class has no unit."""
    words = name.replace("_", " ")
    return words if head.shape == "class" else f"{words}\n[{head.shown_unit}]"


def _name_omitted(manifest: "Manifest") -> str:
    """Name the kinds of values that a table of structures lacks; empty if it has all."""
    kinds = {head.shape if head.level == "graph" else "node" for head in manifest.heads.values()}
    words = ["values per atom"] if "node" in kinds else []
    words += ["vectors and tensors"] if kinds & {"vector", "tensor"} else []
    words += ["spectra"] if "spectrum" in kinds else []
    return ", and ".join(words)


def _table_lines(
    rows: "PredictedRows", heads: "Mapping[str, HeadEntry]", levels: Sequence[int]
) -> Iterable[list[str]]:
    for _, row, name, _ in rows.each():
        if row is None:
            yield [name, *["-"] * len(heads), "not predicted"]
            continue
        cells = []
        for key, entry in heads.items():
            head = rows.prediction.heads[key]
            if math.isnan(head.mean[row, 0]):
                cells.append("missing")
            elif entry.shape == "class":
                cells.append(_list_classes(head.mean[row].tolist(), entry.classes or ()))
            else:
                cells.append(_show_number(head.columns(levels)[row].tolist()))
        yield [name, *cells, rows.prediction.trust[row]]


def _show_number(values: Sequence[float]) -> str:
    """Return a number with its standard deviation and its intervals, all columns of its head."""
    mean, std, _, *ends = values
    bounds = [fixed(end, 3) for end in ends]
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    intervals = " ".join(f"[{low}, {high}]" for low, high in pairs)
    return f"{fixed(mean, 3)} +- {fixed(std, 3)}  {intervals}"


def _list_classes(probabilities: Sequence[float], classes: Sequence[str]) -> str:
    """List the most probable classes with their probabilities."""
    pairs = sorted(zip(probabilities, classes, strict=True), key=lambda pair: -pair[0])
    listed = ", ".join(f"{name} {probability:.2f}" for probability, name in pairs[:MOST_CLASSES])
    return f"{listed}, ..." if len(pairs) > MOST_CLASSES else listed


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())
