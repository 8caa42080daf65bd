"""What ``predict`` can be asked."""

from pathlib import Path
from typing import Annotated

import typer

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
