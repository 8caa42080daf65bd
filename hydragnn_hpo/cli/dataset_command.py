"""``hydragnn-hpo dataset``: build, describe and check graph stores."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption
from hydragnn_hpo.cli.examples import show_examples
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.resources import find_resource
from hydragnn_hpo.units import shown_unit

if TYPE_CHECKING:
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.file_records import TargetStats

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=show_examples("dataset build"))
def build(
    card: Annotated[
        str, typer.Argument(help="Card file, the name of a shipped card, or a structure file.")
    ],
    card_option: Annotated[
        Path | None, typer.Option("--card", help="Card of the structure file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Store to write; NAME.bp here if left out.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes that convert structures; one per core if left out."),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a graph store from structures and a card."""
    from hydragnn_hpo.cli import build_progress
    from hydragnn_hpo.data.mpi_ranks import run_at_root
    from hydragnn_hpo.data.store_builder import find_communicator

    comm = find_communicator(os.environ)
    stats = None
    choose = partial(_choose_paths, card, card_option, out)
    with build_progress.report_once(comm):
        path, target, files = choose() if comm is None else run_at_root(comm, choose)
        if not dry_run:
            given = [Path(card)] if card_option else None
            stats = build_progress.build(comm, path, target, files=given, processes=processes)
    if comm is not None and comm.rank > 0:
        return
    if stats is None:
        typer.echo(f"would read {', '.join(files)} and write {target}")
        return
    typer.echo(json.dumps(stats) if as_json else "\n".join(_describe_build(target, stats)))


def _describe_build(store: Path, stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on a new store: its sizes, what was set aside, and known sums of targets."""
    yield _summarize(store, stats)
    if bad := stats["quarantined"]:
        total = bad + stats["num_graphs"]
        verb = "was" if bad == 1 else "were"
        yield f"{bad} of {total} structures {verb} set aside, see {store / 'quarantine.jsonl'}"
    for name, target in stats["targets"].items():
        if target.get("unlabelled"):
            yield (
                f"{name} has no label in {', '.join(target['unlabelled'])} of an element that has "
                "labels in train: an ensemble cannot predict it; label more structures, or raise "
                "the shares in the card's [split]"
            )
        for split, classes in target.get("unseen", {}).items():
            yield f"{name}: {split} has no structure of class {', '.join(classes)}"
        if "sum_miss" in target:
            total = target["sum"]
            unit = shown_unit(target)
            words = f"'{total}'" if isinstance(total, str) else f"{total:g} {unit}"
            yield (
                f"{name} sums to {words} in each structure; labels of all atoms of a structure "
                f"miss it by {target['sum_miss']:.2g} {unit} at most"
            )


def _choose_paths(
    card: str, card_option: Path | None, out: Path | None
) -> tuple[Path, Path, list[str]]:
    """Resolve the arguments of ``build``.

    Args:
        card: a card file, the name of a shipped card, or a structure file.
        card_option: the card of the structure file; None if ``card`` is a card.
        out: the store to write; None for NAME.bp in the working folder.

    Returns:
        Card file, store to write, and names of the files to read.
    """
    from hydragnn_hpo.config import CardConfig, load_config

    if card_option is None and Path(card).exists() and Path(card).suffix != ".toml":
        raise ConfigError(
            f"{card}: is not a card (TOML): name the card of this data with --card; "
            f"'hydragnn-hpo init {card}' writes one."
        )
    if out is not None and out.name in ("", ".."):
        raise ConfigError(f"--out {out}: names no store; end it in NAME.bp.")
    path = card_option or find_resource(card, "graph_datasets")
    config = load_config(path, CardConfig)
    files = [card] if card_option else [file.path for file in config.files]
    return path, out or Path(f"{config.name}.bp"), files


FigureOption = Annotated[Path | None, typer.Option("--figure", help="Also draw a PNG.")]


@app.command(epilog=show_examples("dataset info"))
def info(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    figure: FigureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a graph store holds: sizes, elements, neighbours, targets by split."""
    from hydragnn_hpo.data.store_summary import describe_store

    _refuse_card(store)
    overview = describe_store(store)
    if figure is not None:
        from hydragnn_hpo.report import draw_dataset

        draw_dataset(figure, overview)
    if as_json:
        typer.echo(json.dumps(overview))
        return
    typer.echo(_summarize(store, overview))
    _print_blocks(overview_blocks(overview))


@app.command(epilog=show_examples("dataset check"))
def check(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    figure: FigureOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Most findings to list of each kind.")] = 5,
    tolerance: Annotated[
        float,
        typer.Option(min=1e-6, max=10.0, help="Largest distance of duplicates, in angstrom."),
    ] = 0.01,
    z_limit: Annotated[
        float,
        typer.Option(
            "--z", min=1.0, max=1e6, help="Robust z-score from which a value is an outlier."
        ),
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Check damage, duplicates, leakage, outliers, forces; exit 1 if that is serious."""
    from rich.console import Console

    from hydragnn_hpo.inspection.quality import check_store

    _refuse_card(store)
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with console.status("reading") as line:
        result = check_store(store, tolerance=tolerance, z_limit=z_limit, progress=line.update)
    if figure is not None and result.scan is not None:
        from hydragnn_hpo.data.store_summary import describe_store
        from hydragnn_hpo.report import draw_dataset

        draw_dataset(figure, describe_store(store), result.report)
    if as_json:
        typer.echo(json.dumps(result.report))
    else:
        _print_blocks(findings_blocks(result.report, limit))
    if result.serious:
        raise typer.Exit(1)


@app.command(epilog=show_examples("dataset embed"))
def embed(
    store: Annotated[Path, typer.Argument(help="Graph store (NAME.bp).")],
    trunk: Annotated[
        str, typer.Option(help="Foundation model: chgnet, sevennet, or a card (NAME.json).")
    ] = "chgnet",
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per core if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute what a foundation model says of each atom, for model.embedding."""
    from hydragnn_hpo.cli.progress import ProgressDisplay
    from hydragnn_hpo.model.trunks import load_trunk
    from hydragnn_hpo.model.trunks.embed import embed_store

    _refuse_card(store)
    done = 0

    def count(graphs: int) -> None:
        nonlocal done
        done += graphs
        display.show(done)

    with ProgressDisplay("computing features") as display:
        cache = embed_store(store, trunk, processes=processes, report=count)
    size = cache.path.stat().st_size
    if as_json:
        typer.echo(json.dumps({"path": str(cache.path), "trunk": cache.trunk, "bytes": size}))
        return
    title = load_trunk(trunk).spec.title
    typer.echo(
        f"{cache.path}: features of {title} for all atoms of {done} structures, "
        f'{_size(size)}; a trial with model.embedding = "{cache.trunk}" reads them'
    )


@app.command(epilog=show_examples("dataset unstage"))
def unstage(as_json: JsonOption = False) -> None:
    """Remove the copies of stores on this host's disk that no process reads.

    A campaign makes them again where it needs them.
    """
    from hydragnn_hpo.data import remove_stages

    removed = [str(stage) for stage in remove_stages()]
    if as_json:
        typer.echo(json.dumps(removed))
        return
    typer.echo("\n".join(f"removed {stage}" for stage in removed) or "no stage was unused.")


def _refuse_card(store: Path) -> None:
    if store.suffix == ".toml":
        raise DataError(f"{store}: is a card; run 'hydragnn-hpo dataset build {store}'.")


def _print_blocks(blocks: Sequence[Any]) -> None:
    """Print tables and lines, without rich markup: names may hold brackets."""
    out = console()
    for block in blocks:
        out.print(block, markup=False, highlight=False)


def _summarize(store: Path, stats: Mapping[str, Any]) -> str:
    splits = ", ".join(f"{name} {count}" for name, count in stats["splits"].items())
    return (
        f"{store}: {stats['num_graphs']} graphs, {stats['nodes']['mean']:.1f} atoms and "
        f"{stats['edges']['mean']:.1f} edges on average within {stats['cutoff']:g} angstrom, "
        f"{len(stats['elements'])} elements; {splits}"
    )


_SHADES = " .:-=+*#%@"
"""Characters of a histogram in one line, from no count to the highest count."""

_BAR = 30
"""Characters of the longest bar."""

HEAVY = 0.01
"""Share of outliers above which they are a heavy tail rather than errors."""


def overview_blocks(overview: Mapping[str, Any]) -> list[Any]:
    """Lay out what ``describe_store`` returns: tables and text, in order."""
    store = overview["store"]
    parts = f"{store['parts']} part" + ("s" if store["parts"] != 1 else "")
    windows = f"{store['windows']} window" + ("s" if store["windows"] != 1 else "")
    memory = (
        f"{_size(store['bytes'])} in memory, {_size(store['file_bytes'])} on disk "
        f"({parts}, {windows}); a graph takes {_size(overview['bytes']['mean'])}, "
        f"at most {_size(overview['bytes']['max'])}"
    )
    blocks: list[Any] = [memory]
    if store["quarantined"]:
        file = f"{store['path']}/quarantine.jsonl"
        blocks.append(f"{store['quarantined']} structures were set aside, see {file}")
    blocks += ["", f"Elements (structures / atoms): {_elements(overview['element_counts'])}"]
    for name, title in (("nodes", "Atoms per graph"), ("edges", "Edges per graph")):
        blocks += ["", *_bars(title, overview["histograms"][name])]
    blocks += ["", _degrees(overview)]
    for name, target in overview["targets"].items():
        blocks += ["", *_target(name, target, overview["target_splits"][name])]
    return blocks


def findings_blocks(report: Mapping[str, Any], limit: int) -> list[Any]:
    """Lay out the report of ``data.quality``.

    Args:
        report: of ``check_store``.
        limit: most rows that are named of each kind.
    """
    if report["damage"]:
        return [f"DAMAGED: {sentence}" for sentence in report["damage"]]
    blocks = [f"All checksums of {report['num_graphs']} graphs hold."]
    blocks += ["", *_leakage(report["leakage"], limit)]
    blocks += ["", *_duplicates(report, limit)]
    blocks += ["", *_conflicts(report["conflicts"], limit)]
    blocks += ["", *_near_twins(report["near_twins"], limit)]
    for forces in report["forces"]:
        wrong = "CONTRADICTION: " if forces["verdict"] == "contradict" else ""
        blocks += ["", f"{wrong}{forces['target']} {forces['sentence']}."]
    blocks += ["", *_outliers(report, limit)]
    blocks += ["", *_geometry(report["geometry"], limit)]
    return [*blocks, "", _verdict(report)]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def _elements(counts: Mapping[str, Mapping[str, int]]) -> str:
    ranked = sorted(counts.items(), key=lambda pair: -pair[1]["structures"])
    return ", ".join(f"{symbol} {n['structures']}/{n['atoms']}" for symbol, n in ranked)


def _bars(title: str, histogram: Mapping[str, Sequence[int]]) -> list[str]:
    """Draw a histogram of whole numbers, a line per bin."""
    edges, counts = histogram["edges"], histogram["counts"]
    highest = max(counts, default=1)
    lines = [title]
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        name = str(low) if high == low + 1 else f"{low}-{high - 1}"
        bar = "#" * max(round(_BAR * count / highest), int(count > 0))
        lines.append(f"{name:>13}  {bar:<{_BAR}}  {count}")
    return lines


def _shades(counts: Sequence[int]) -> str:
    """Draw a histogram in one line; only empty bins are blank."""
    highest = max(counts, default=0)
    if not highest:
        return " " * len(counts)
    top = len(_SHADES) - 1
    return "".join(_SHADES[-(-count * top // highest)] for count in counts)


def _table(
    columns: Sequence[str], left: int = 1, title: str = "", drop: Sequence[str] = ()
) -> "FittedTable":
    """Make a table.

    Args:
        columns: titles of the columns.
        left: how many of them, from the first on, hold text; the others hold numbers.
        title: text above the table.
        drop: columns that a narrow terminal may lack, first the one to leave out first.
    """
    from rich.box import SIMPLE_HEAD

    table = make_table(title, drop=drop, box=SIMPLE_HEAD)
    table.add_texts(*columns[:left])
    table.add_numbers(*columns[left:])
    return table


def _degrees(overview: Mapping[str, Any]) -> "FittedTable":
    histogram = "histogram from 0 to most"
    columns = ("cutoff", "mean", "median", "most", "isolated")
    title = "Neighbours of an atom within a cutoff in angstrom"
    table = _table(columns, title=title, drop=(histogram,))
    table.add_texts(histogram, no_wrap=True)
    for cutoff, degrees in overview["degrees"].items():
        counts = degrees["all"]
        total = sum(counts)
        passed = 0
        median = 0
        for degree, count in enumerate(counts):
            passed += count
            if 2 * passed >= total:
                median = degree
                break
        width = -(-len(counts) // 32) or 1
        binned = [sum(counts[k : k + width]) for k in range(0, len(counts), width)]
        mean = f"{overview['degree'][cutoff]:.1f}"
        row = (cutoff, mean, str(median), str(len(counts) - 1), str(counts[0] if counts else 0))
        table.add_row(*row, f"|{_shades(binned)}|")
    return table


SUMMARIZED = {
    "scalar": "",
    "vector": "; numbers are those of its length",
    "tensor": "; numbers are those of the root of the sum of its squares",
    "spectrum": "; numbers are those of the root of the sum of its squares",
}
"""What the numbers of a target in ``dataset info`` are, by its shape; classes are counted."""


def _target(name: str, target: "TargetStats", splits: Mapping[str, Any]) -> list[Any]:
    """Lay out one target: a row per split, and a line of shades per split."""
    from hydragnn_hpo.config.data_config import kind_of

    kind = kind_of(target)
    unit = "" if kind.unit == "1" else f" in {kind.shown_unit}"
    what = f"{kind.level} {kind.shape}{unit}"
    about = f": {kind.description}" if kind.description else ""
    if kind.shape == "class":
        names = [split for split in splits if split != "bins"]
        counts = {split: splits[split]["classes"] for split in names}
        shares = {split: splits[split]["missing"] for split in names}
        return [f"{name} ({what}){about}", _count_classes(counts, shares)]
    columns = ("split", "values", "missing", "mean", "std", "median", "min", "max")
    table = _table(columns, drop=("median", "missing"))
    lines = []
    for split, summary in splits.items():
        if split == "bins":
            continue
        keys = ("mean", "std", "median", "min", "max")
        numbers = ["-" if summary[key] is None else f"{summary[key]:.4g}" for key in keys]
        missing = "-" if not summary["missing"] else f"{100 * summary['missing']:.2g} %"
        table.add_row(split, str(summary["values"]), missing, *numbers)
        lines.append(f"  {split:<6}|{_shades(summary['counts'])}|")
    low, high = (f"{splits['bins'][end]:.4g}" for end in (0, -1))
    scale = f"{'':8}{low:<20}{high:>22}"
    return [f"{name} ({what}{SUMMARIZED[kind.shape]}){about}", table, *lines, scale]


def _count_classes(
    counts: Mapping[str, Mapping[str, int]], missing: Mapping[str, float]
) -> "FittedTable":
    """Lay out how many labels of each class each split has, and the share without a label."""
    table = _table(("class", *counts))
    for name in next(iter(counts.values())):
        table.add_row(name, *(str(of_split[name]) for of_split in counts.values()))
    if any(missing.values()):
        table.add_row("(missing)", *(f"{100 * share:.2g} %" for share in missing.values()))
    return table


def _leakage(leakage: Mapping[str, Any], limit: int) -> list[Any]:
    table = _table(
        ("split", "structures", "twin in train", "group in train", "composition in train"),
        title="Leakage: structures of other splits that train knows",
    )
    for split, shared_with_train in leakage["splits"].items():
        counts = (
            shared_with_train[key] for key in ("structures", "twins", "groups", "compositions")
        )
        table.add_row(split, *(str(count) for count in counts))
    lines = [
        f"{pair['split']} {pair['id']} is {pair['train_id']} of train "
        f"(they differ by {pair['distance']:.2g} angstrom)"
        for pair in leakage["twins"]
    ]
    shared = [
        f"{named['split']} {named['id']} has its group in train" for named in leakage["groups"]
    ]
    return [table, *_first(lines, limit), *_first(shared, limit)]


def _duplicates(report: Mapping[str, Any], limit: int) -> list[str]:
    duplicates = report["duplicates"]
    if not duplicates["groups"]:
        return [f"Duplicates: none within {report['tolerance']:g} angstrom."]
    between = ", ".join(f"{pair} {count}" for pair, count in duplicates["between"].items())
    lines = [
        f"Duplicates: {duplicates['structures']} structures in {_sets(duplicates['groups'])} "
        f"within {report['tolerance']:g} angstrom, {duplicates['exact_groups']} of them exact; "
        f"between splits: {between or 'none'}."
    ]
    rows = sorted(duplicates["rows"], key=lambda row: (row["distance"], row["rows"]))
    named = [
        f"{row['formula']}: {_few(row['ids'])} differ by up to {row['distance']:.2g} angstrom"
        for row in rows
    ]
    return [*lines, *_first(named, limit)]


def _conflicts(conflicts: Sequence[Mapping[str, Any]], limit: int) -> list[str]:
    if not conflicts:
        return ["Contradictions: no duplicates with different targets."]
    lines = [
        f"{one['target']}: {' and '.join(one['ids'])} differ by {one['difference']:.4g} "
        f"{one['unit']} (usual are {one['allowed']:.2g} or less)"
        for one in conflicts
    ]
    return [
        f"Contradictions: {len(conflicts)} among duplicates; mend a label, or give the attribute "
        "that tells them apart.",
        *_first(lines, limit),
    ]


def _near_twins(pairs: Sequence[Mapping[str, Any]], limit: int) -> list[str]:
    if not pairs:
        return ["Near twins: no structures of close geometry with targets far apart."]
    lines = [
        f"{one['target']}: {' and '.join(one['ids'])} ({one['formula']}, "
        f"{', '.join(split or 'no split' for split in one['splits'])}) are {one['distance']:.2g} "
        f"angstrom apart and differ by {one['difference']:.4g} {one['unit']} (geometry explains "
        f"{one['allowed']:.2g} or less)"
        for one in pairs
    ]
    return [
        f"Near twins: {len(pairs)} pairs of close geometry have targets far apart. If they differ "
        "in spin, charge or another condition, give it as [attributes] in the card and name it in "
        "model.attributes; without it a model has only their small difference in geometry.",
        *_first(lines, limit),
    ]


def _outliers(report: Mapping[str, Any], limit: int) -> list[Any]:
    columns = ("target", "after taking away", "scale", "values", "outliers")
    title = f"Outliers: robust z-score beyond {report['z_limit']:g}"
    table = _table(columns, left=2, title=title, drop=("after taking away", "scale"))
    lines: list[str] = []
    for name, outliers in report["outliers"].items():
        share = outliers["count"] / max(outliers["values"], 1)
        scale = f"{outliers['scale']:.3g} {outliers['scale_unit']}"
        numbers = (scale, str(outliers["values"]), str(outliers["count"]))
        table.add_row(name, outliers["subtracted"], *numbers)
        if far := outliers["far"]:
            lines.append(
                f"  {name}: {_structures(range(far))} a value far from all others: an error rather "
                "than a heavy tail; mend or remove it before you train"
            )
        elif share > HEAVY:
            lines.append(f"  {name}: {100 * share:.2g} % are a heavy tail rather than errors")
        named = [
            f"{name} of {_place(row)} is {row['value']:.5g} {outliers['unit']} (z {row['z']:.3g})"
            for row in outliers["rows"]
        ]
        lines += _first(named, limit)
    return [table, *lines]


def _place(row: Mapping[str, Any]) -> str:
    atom = f", atom {row['atom']}" if "atom" in row else ""
    return f"{row['id']} ({row['split']}{atom})"


def _geometry(geometry: Mapping[str, Any], limit: int) -> list[str]:
    shortest = geometry["shortest"]
    lines = ["Geometry: no edges at all."]
    if shortest is not None:
        lines = [
            f"Geometry: shortest edge {shortest['distance']:.3f} angstrom in {_place(shortest)}."
        ]
    near = [
        f"{_place(row)}: {'-'.join(row['elements'])} of atoms {row['atoms'][0]} and "
        f"{row['atoms'][1]} are {row['distance']:.3f} angstrom apart, {row['ratio']:.2f} of "
        "their covalent radii"
        for row in geometry["close"]
    ]
    if near:
        lines += [f"{_structures(near)} atoms too near to each other:"]
    lines += _first(near, limit)
    for key, what in (("bare", "no edges at all"), ("isolated", "atoms without a neighbour")):
        rows = geometry[key]
        if rows:
            names = _few([row["id"] for row in rows], limit)
            lines.append(f"{_structures(rows)} {what}: {names}")
    return lines


def _sets(count: int) -> str:
    return "1 set" if count == 1 else f"{count} sets"


def _structures(rows: Sequence[Any]) -> str:
    return "1 structure has" if len(rows) == 1 else f"{len(rows)} structures have"


def _first(lines: Sequence[str], limit: int) -> list[str]:
    shown = [f"  {line}" for line in lines[:limit]]
    rest = len(lines) - limit
    return [*shown, f"  and {rest} more, see --json"] if rest > 0 else shown


def _few(names: Sequence[str], limit: int = 4) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _verdict(report: Mapping[str, Any]) -> str:
    reasons = []
    if any(split["twins"] or split["groups"] for split in report["leakage"]["splits"].values()):
        reasons.append(
            "SERIOUS: train knows structures of other splits. Group by what they share "
            "(split.group), drop the duplicates, or, where the split is published, report results "
            "without them, too."
        )
    wrong = [one["target"] for one in report["forces"] if one["verdict"] == "contradict"]
    if wrong:
        reasons.append(
            f"SERIOUS: {', '.join(wrong)} cannot be the derivative of the energy beside it. Mend "
            "the sign, the unit or the origin of one of both."
        )
    far = {name: one["far"] for name, one in report["outliers"].items() if one["far"]}
    if far:
        named = ", ".join(f"{count} of {name}" for name, count in far.items())
        reasons.append(
            f"Values far from all others, which spoil a training: {named} (see the outliers)."
        )
    return "\n".join(reasons) or "Nothing serious."
