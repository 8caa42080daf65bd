"""``hydragnn-hpo ensemble pick``: structures that are worth a label."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import (
    DeviceOption,
    DryRunOption,
    EnsembleOption,
    JsonOption,
    TrustOption,
    ensemble_file,
)

if TYPE_CHECKING:
    from hydragnn_hpo.data import Rules
    from hydragnn_hpo.ensemble import Structures

ROWS = 20

FilesArgument = Annotated[list[Path], typer.Argument(help="The pool: structure files or folders.")]
OutOption = Annotated[Path, typer.Option(help="NAME.extxyz to write.")]
NumberOption = Annotated[int, typer.Option("--n", min=1, max=100_000, help="How many to pick.")]
ByOption = Annotated[
    str | None, typer.Option(help="A head, or forces (how far members disagree); else all heads.")
]
LowOption = Annotated[
    float, typer.Option(min=0.0, max=1e6, help="eV/angstrom: below, forces are accurate already.")
]
HighOption = Annotated[
    float | None,
    typer.Option(min=0.0, max=1e6, help="eV/angstrom: from here on, a structure is too odd."),
]
UnseenOption = Annotated[
    bool, typer.Option("--unseen", help="Also pick structures with elements no member has seen.")
]

_WORDS = {
    "read": "read",
    "bad": "cannot be predicted",
    "not_finite": "with a prediction that is not finite",
    "unseen": "with elements no member has seen",
    "same": "as good as equal to a picked one",
    "accurate": "accurate (below --low)",
    "candidate": "candidates",
    "failed": "failed (from --high on)",
}


def pick(
    files: FilesArgument,
    ensemble: EnsembleOption,
    out: OutOption = Path("picked.extxyz"),
    number: NumberOption = 100,
    by: ByOption = None,
    low: LowOption = 0.0,
    high: HighOption = None,
    unseen: UnseenOption = False,
    trust: TrustOption = None,
    device: DeviceOption = "auto",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pick the structures of a pool that are worth a label: uncertain, and not all alike."""
    from hydragnn_hpo.ensemble import (
        Ensemble,
        PickRequest,
        check_picks_format,
        device_of,
        list_input_sources,
        make_ranking,
        pick_structures,
        picks_to_plain,
        refuse_to_replace,
        write_picks,
    )

    check_picks_format(out)
    model = Ensemble.load(ensemble_file(ensemble), device=device_of(device), trust=trust or ())
    request = PickRequest(number, by, low, float("inf") if high is None else high, unseen)
    make_ranking(model, request)
    if dry_run:
        what = by or "all heads"
        typer.echo(f"would rank {', '.join(map(str, files))} by {what}, write {number} to {out}")
        return
    refuse_to_replace(list_input_sources(files), out)
    picked = pick_structures(model, _pool(files, model.rules), request)
    write_picks(out, model.manifest, picked)
    _print(picks_to_plain(picked), out, as_json=as_json)


def _print(plain: dict[str, Any], out: Path, *, as_json: bool) -> None:
    from hydragnn_hpo.cli.tables import console

    if as_json:
        typer.echo(json.dumps(plain))
    else:
        console().print(_table(plain))
    typer.echo(f"wrote {out}", err=as_json)


def _pool(files: list[Path], rules: "Rules") -> Iterator["Structures"]:
    """Yield the structures, a bounded number at a time."""
    from hydragnn_hpo.ensemble import (
        ChunkReader,
        StructureFiles,
        list_input_sources,
        read_structures,
    )

    with ChunkReader(list_input_sources(files), rules, StructureFiles()) as reading:
        yield from read_structures(reading)


def _table(plain: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    picked, counts = plain["picked"], plain["counts"]
    table = Table(title=f"{len(picked)} of {counts['read']} picked", title_justify="left")
    table.add_column("pick", justify="right")
    table.add_column("structure")
    columns = [name for name in picked[0] if name.endswith("_std") or name.startswith("max_")]
    for name in ("score", "distance", *columns):
        table.add_column(name, justify="right")
    table.add_column("trust")
    for entry in picked[:ROWS]:
        cells = [entry[name] for name in ("score", "distance", *columns)]
        shown = ["-" if value is None else f"{value:.4g}" for value in cells]
        name = Text(entry["id"])
        table.add_row(str(entry["pick"]), name, *shown, entry["trust"])
    notes = [f"{count} {_WORDS[name]}" for name, count in counts.items() if count]
    if len(picked) > ROWS:
        notes.append(f"the first {ROWS} are shown")
    notes.append(
        f"mean distance of two picked ones {plain['mean_distance']:.3g}, of the highest scores "
        f"{plain['mean_distance_top']:.3g}"
    )
    table.caption = "\n".join(notes)
    return table
