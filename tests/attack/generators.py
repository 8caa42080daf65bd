"""Cases from a grammar with a seed: valid files mutated by mechanism, before every command.

A generator draws one case; where a mutation certainly breaks the input, or certainly does not, the
case says so, and its judge knows a silent success.
"""

import base64
import gzip
import io
import json
import random
import string
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from sandbox import GOLDENS, Case, Wants
from sealed_zip import sealed, zip_entries

from hydragnn_hpo.config.schema import to_toml

Random = random.Random
ENSEMBLE = (GOLDENS / "ensemble" / "ensemble.zip").read_bytes()
STRUCTURES = (GOLDENS / "structures.extxyz").read_bytes()
CARD: dict[str, Any] = tomllib.loads((GOLDENS / "structures.toml").read_text())
CAMPAIGN: dict[str, Any] = tomllib.loads((GOLDENS / "run" / "campaign.toml").read_text())
MACHINES = GOLDENS.parents[1] / "launch" / "machines"
WITH = ("--ensemble", "e.zip")

# -- mutations of bytes ------------------------------------------------------------------

NASTY = [
    *("NaN", "inf", "-1", "0", "1e308", "1e-320", "99999999999999999999", "1_000", "0x10", "true"),
    *("", "\x1b[2J", "\x00", "a" * 5000, "[" * 3000, "'", '"', "{}", "%s%n", "../../etc/passwd"),
    *(
        "\u0663",
        "\u2028",
        "\u202e",
        "\xa0",
        "\xff",
        "-",
        "?",
        ".",
        "1,5",
        "1e999",
        "9" * 5000,
        "None",
    ),
]
"""Tokens in the place of others."""


def flip(draw: Random, data: bytes) -> bytes:
    """Turn one bit."""
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def cut(draw: Random, data: bytes) -> bytes:
    """Keep the beginning."""
    return data[: draw.randrange(len(data))]


def swap_token(draw: Random, data: bytes) -> bytes:
    """Replace a word by a nasty one."""
    tokens = data.split(b" ")
    tokens[draw.randrange(len(tokens))] = draw.choice(NASTY).encode()
    return b" ".join(tokens)


def lines(draw: Random, data: bytes) -> bytes:
    """Remove, double or move a line."""
    rows = data.splitlines(keepends=True)
    row = rows.pop(draw.randrange(len(rows)))
    for _ in range(draw.randrange(3)):
        rows.insert(draw.randrange(len(rows) + 1), row)
    return b"".join(rows)


def insert(draw: Random, data: bytes) -> bytes:
    """Put odd bytes anywhere."""
    odd = [b"\x00", b"\x1b[31m", b"\xe9", b"\xef\xbb\xbf", b"\x85", b"\r", b"\xed\xa0\x80", b"\x1a"]
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice(odd) * draw.choice([1, 1, 1000]) + data[place:]


def repeat(draw: Random, data: bytes) -> bytes:
    """Repeat a piece many times."""
    place = draw.randrange(len(data))
    piece = data[place : place + draw.choice([1, 8, 60])]
    return data[:place] + piece * draw.choice([50, 3000]) + data[place:]


MUTATIONS = (flip, cut, swap_token, swap_token, swap_token, lines, insert, repeat)


def mutated(draw: Random, data: bytes) -> bytes:
    """Return data after one or two mutations."""
    for _ in range(draw.choice([1, 1, 2])):
        data = draw.choice(MUTATIONS)(draw, data) or b"\n"
    return data


# -- mutations of values -----------------------------------------------------------------

HUGE = [0, -1, 1e-300, 1e300, 10**18, 10**9, 2**63, -0.5, 1e6]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each value that holds no others, with its path."""
    if isinstance(value, dict | list) and value:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with one value replaced."""
    if not path:
        return new
    if isinstance(value, list):
        return [changed(v, path[1:], new) if k == path[0] else v for k, v in enumerate(value)]
    return {k: changed(v, path[1:], new) if k == path[0] else v for k, v in value.items()}


def wrong_type(draw: Random, value: Any) -> Any:
    """Return a value of another type, which nothing may take in its place."""
    if isinstance(value, bool):
        return draw.choice(["true", 1, 0.0, [True]])
    if isinstance(value, int | float):
        return draw.choice([str(value), True, [value], {"a": value}, f" {value} "])
    if isinstance(value, str):
        return draw.choice([1, True, 2.5, [value], {"a": value}])
    return draw.choice(["x", 7, True])


def mutated_values(draw: Random, values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return changed values of a file, and whether they are certainly wrong."""
    path, old = draw.choice([leaf for leaf in leaves(values) if leaf[0]])
    kind = draw.choice(["type", "type", "huge", "key", "text", "drop"])
    if kind == "type":
        return changed(values, path, wrong_type(draw, old)), not isinstance(old, dict | list)
    if kind == "huge" and isinstance(old, int | float) and not isinstance(old, bool):
        return changed(values, path, draw.choice([*HUGE, float("nan"), float("inf")])), False
    if kind == "key":
        where = draw.choice([leaf[0][:-1] for leaf in leaves(values)])
        inside = values
        for key in where:
            inside = inside[key]
        if isinstance(inside, dict):
            new = draw.choice([f"{key}x" for key in inside] or ["x"])
            return changed(values, where, inside | {new: draw.choice([1, "x", {}])}), False
    if kind == "drop" and isinstance(path[-1], str):
        inside = values
        for key in path[:-1]:
            inside = inside[key]
        return changed(values, path[:-1], {k: v for k, v in inside.items() if k != path[-1]}), False
    return changed(values, path, draw.choice(NASTY)), isinstance(old, bool | int | float)


def toml(values: dict[str, Any]) -> bytes:
    """Return values as TOML."""
    return to_toml(values).encode()


# -- data files --------------------------------------------------------------------------

XYZ = b"2\nno words\nC 0.0 0.0 0.0\nO 0.0 0.0 1.13\n"
EXTXYZ = STRUCTURES[: STRUCTURES.index(b"\n6\n") + 1] * 3
CIF = b"""data_salt
_cell_length_a 5.64
_cell_length_b 5.64
_cell_length_c 5.64
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_space_group_name_H-M_alt 'F m -3 m'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_occupancy
C1 C 0 0 0 1
O1 O 0.5 0.5 0.5 1
"""
POSCAR = b"salt\n1.0\n4 0 0\n0 4 0\n0 0 4\nC O\n1 1\nDirect\n0 0 0\n0.5 0.5 0.5\n"
TABLE = b"smiles,energy_like,note\nCO,1.5,a\nCCO,2.5,b\nC=O,0.5,c\nc1ccccc1,3.5,d\nO,1.0,e\n"
_ATOMS = {
    "lattice_mat": [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]],
    "coords": [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]],
    "elements": ["C", "O"],
    "cartesian": False,
}
JSON = json.dumps([{"id": k, "energy_like": 1.5 * k, "atoms": _ATOMS} for k in range(3)]).encode()

DATA: dict[str, tuple[str, bytes, tuple[bytes, bytes]]] = {
    "xyz": ("d.xyz", XYZ, (b"1.13", b"nan")),
    "extxyz": ("d.extxyz", EXTXYZ, (b"1.20074918", b"inf")),
    "cif": ("d.cif", CIF, (b"C1 C 0 0", b"C1 Qq 0 0")),
    "poscar": ("POSCAR", POSCAR, (b"C O", b"C Qq")),
    "table": ("d.csv", TABLE, (b"C=O", b"C=(")),
    "json": ("d.json", JSON, (b'"elements": ["C"', b'"elements": ["Qq"')),
}
"""Name, content, and what certainly breaks a structure of it."""


WORK = 5e-4
"""Seconds of CPU that a byte of a data file may cost: a row of a table with one molecule takes five
milliseconds of a busy core."""


def structures(draw: Random) -> Case:
    """Predict, inspect or build from a mutated data file."""
    kind = draw.choice(list(DATA))
    name, data, _ = DATA[kind]
    data = mutated(draw, data)
    if draw.random() < 0.15:
        name, data = f"{name}.gz", gzip.compress(data, mtime=0)
        data = draw.choice([bytes, lambda b: cut(draw, b), lambda b: flip(draw, b)])(data)
    column = ("--structure-column", "smiles") if kind == "table" else ()
    argv = draw.choice(
        [
            ("predict", name, *WITH, "--json", *column),
            ("predict", name, *WITH, "--out", "out.csv", *column),
            ("init", name, "--dry-run"),
            (
                "ensemble",
                "evaluate",
                name,
                *WITH,
                "--target",
                "energy_like=energy_like:eV",
                *column,
            ),
            ("ensemble", "pick", name, *WITH, "--n", "1"),
        ]
    )
    seconds = Case.cpu_seconds + WORK * len(data)  # a repeated row is honest work
    return Case(f"{kind}-{argv[0]}", argv, {name: data, "e.zip": ENSEMBLE}, cpu_seconds=seconds)


def broken_structures(draw: Random) -> Case:
    """Predict from a file whose only, or every, structure is wrong."""
    kind, (name, data, (good, bad)) = draw.choice(list(DATA.items()))
    assert good in data
    if kind == "table":
        data = TABLE[: TABLE.index(b"\n") + 1] + b"C=O,1.0,x\n"
    column = ("--structure-column", "smiles") if kind == "table" else ()
    data = data.replace(good, bad)
    argv = ("predict", name, *WITH, "--json", *column)
    return Case(f"broken-{kind}", argv, {name: data, "e.zip": ENSEMBLE}, wants="fail")


def alike_structures(draw: Random) -> Case:
    """Predict from a file in another coding of the same text."""
    kind, (name, data, _) = draw.choice(list(DATA.items()))
    coding = draw.choice(["crlf", "bom", "gz", "open end"])
    if coding == "gz" and kind in ("poscar",):
        coding = "crlf"
    if coding == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif coding == "bom":
        data = b"\xef\xbb\xbf" + data
    elif coding == "gz":
        name, data = f"{name}.gz", gzip.compress(data, mtime=0)
    elif coding == "open end":
        data = data.rstrip(b"\n")
    column = ("--structure-column", "smiles") if kind == "table" else ()
    argv = ("predict", name, *WITH, "--json", *column)
    return Case(f"{coding}-{kind}", argv, {name: data, "e.zip": ENSEMBLE}, wants="ok")


# -- cards, campaigns, machines ----------------------------------------------------------


def _mutated_toml(draw: Random, values: dict[str, Any]) -> tuple[bytes, bool]:
    if draw.random() < 0.35:
        return mutated(draw, toml(values)), False
    values, wrong = mutated_values(draw, values)
    return toml(values), wrong


def cards(draw: Random) -> Case:
    """Build a store from a mutated card."""
    card, wrong = _mutated_toml(draw, CARD)
    files = {"structures.toml": card, "structures.extxyz": STRUCTURES}
    argv = ("dataset", "build", "structures.toml", "--out", "s.bp")
    if draw.random() < 0.3:
        argv = ("init", "structures.toml", "--out", "new.toml")
    elif draw.random() < 0.2:
        argv = ("dataset", "build", "structures.toml", "--out", "s.bp", "--dry-run")
    return Case(f"card-{argv[0]}", argv, files, wants="fail" if wrong else "any")


def _constraint(draw: Random, depth: int = 0) -> str:
    if depth > 3 or draw.random() < 0.3:
        names = [
            "model.layers",
            "training.learning_rate",
            "nope",
            "1",
            "0",
            "9" * 30,
            "'x'",
            "True",
        ]
        return draw.choice(names)
    one = _constraint(draw, depth + 1)
    two = _constraint(draw, depth + 1)
    operators = [
        "+",
        "*",
        "**",
        "//",
        "%",
        "<",
        "==",
        " and ",
        " in ",
        " if ",
        "@",
        "<<",
        ".",
        ":=",
    ]
    return f"({one}{draw.choice(operators)}{two})"


COMMANDS: list[tuple[str, ...]] = [
    ("run", "c.toml", "--run", "r", "--dry-run"),
    ("run", "c.toml", "--run", "r", "--dry-run", "--json"),
    ("plan", "c.toml"),
    (
        "submit",
        "c.toml",
        "--machine",
        "frontier",
        "--account",
        "x",
        "--hosts",
        "2",
        "--time",
        "1:00",
    )
    + ("--dry-run", "--run", "r"),
]


def campaigns(draw: Random) -> Case:
    """Check, plan or submit a mutated campaign."""
    training = {"global_batch": 8}  # what is searched may stand here as well, and is not read
    config = {**CAMPAIGN, "trial": CAMPAIGN["trial"] | {"training": training}}
    if draw.random() < 0.15:
        config["search"] = config["search"] | {"constraints": [_constraint(draw)]}
        text = toml(config)
        wrong = False
    else:
        text, wrong = _mutated_toml(draw, config)
    card = {"structures.toml": toml(CARD), "structures.extxyz": STRUCTURES}
    argv = draw.choice(COMMANDS)
    return Case(f"campaign-{argv[0]}", argv, {"c.toml": text} | card, "fail" if wrong else "any")


COMMAND_CAMPAIGN: dict[str, Any] = {
    "name": "commands",
    "seed": 3,
    "space": {"rate": {"low": 1.0, "high": 2.0}},
    "search": {"brain": "random", "trials": 2, "initial": 1, "finalists": 1, "rungs": [2]},
    "command": {"argv": ["{here}/bin/train", "{folder}"], "timeout": 20.0},
    "machine": {"slots": 2, "lease_seconds": 60.0},
}
RESULT = {"status": "completed", "objective": 1.5, "epochs": 2, "values": {"a": [1, "x"]}}


def command_campaigns(draw: Random) -> Case:
    """Check a mutated campaign of commands."""
    text, wrong = _mutated_toml(draw, COMMAND_CAMPAIGN)
    files = {"c.toml": text, "bin/train": b"#!/bin/sh\n"}
    argv = draw.choice(COMMANDS[:3])
    return Case(f"command-{argv[0]}", argv, files, "fail" if wrong else "any")


def command_results(draw: Random) -> Case:
    """Run a campaign whose command writes a mutated result, or mutated metrics."""
    good = json.dumps(RESULT).encode()
    bad = json.dumps(mutated_values(draw, RESULT)[0]).encode()
    if draw.random() < 0.4:
        bad = mutated(draw, good)
    return command_result(good, bad) if draw.random() < 0.3 else command_result(bad)


def command_result(result: bytes, metrics: bytes = b"") -> Case:
    """Run a campaign whose command writes some bytes."""
    files = {"metrics.jsonl": metrics, "result.json": result}
    coded = {name: base64.b64encode(data).decode() for name, data in files.items()}
    body = "".join(f"echo {data} | base64 -d > $1/{name}\n" for name, data in coded.items())
    return Case(
        "command-result",
        ("run", "c.toml", "--run", "run"),
        {"c.toml": toml(COMMAND_CAMPAIGN), "bin/train": f"#!/bin/sh\n{body}".encode()},
        cpu_seconds=60.0,
        wall_seconds=200.0,
    )


def machines(draw: Random) -> Case:
    """Show, plan or submit with a mutated machine profile."""
    path = draw.choice(sorted(MACHINES.glob("*.toml")))
    text, wrong = _mutated_toml(draw, tomllib.loads(path.read_text()) | {"checked": "DAY"})
    text = text.replace(b'"DAY"', b"2026-11-21")
    argv = draw.choice(
        [
            ("machine", "show", "m.toml"),
            ("plan", "c.toml", "--machine", "./m.toml", "--hosts", "2", "--structures", "100"),
            ("submit", "c.toml", "--machine", "./m.toml", "--account", "x", "--hosts", "2")
            + ("--time", "1:00", "--dry-run", "--run", "r"),
        ]
    )
    files = {"m.toml": text, "c.toml": toml(COMMAND_CAMPAIGN), "bin/train": b"#!/bin/sh\n"}
    if argv[0] == "plan":
        files["c.toml"] = toml(CAMPAIGN)
        files |= {"structures.toml": toml(CARD), "structures.extxyz": STRUCTURES}
    return Case(f"machine-{argv[0]}", argv, files, "fail" if wrong else "any")


def schedulers(draw: Random) -> Case:
    """Submit to a scheduler whose replies are garbage."""
    replies = [
        "",
        "Submitted batch job",
        "\x1b[31m7",
        "Submitted batch job 99999999999999999999999",
    ]
    replies += ["slurm_load_jobs error: Invalid job id", "7;cluster", "-1", "7\n8\n9", "{", "\xff"]
    reply = draw.choice([*replies, "".join(draw.choices(string.printable, k=200))])
    code = draw.choice([0, 0, 0, 1, 127])
    machine = draw.choice(["generic-slurm", "generic-pbs"])
    return submission(reply.encode("latin1"), code, machine)


def submission(reply: bytes, code: int, machine: str) -> Case:
    """Submit to a scheduler all commands of which give one reply."""
    text = base64.b64encode(reply).decode()
    script = f"#!/bin/sh\necho {text} | base64 -d\nexit {code}\n".encode()
    decoder = f"#!/bin/sh\necho {text} | base64 -d\n".encode()
    names = ("squeue", "sacct", "scontrol", "qstat", "scancel", "qdel")
    files = {"bin/sbatch": script, "bin/qsub": script} | {f"bin/{name}": decoder for name in names}
    files |= {"c.toml": toml(COMMAND_CAMPAIGN), "bin/train": b"#!/bin/sh\n"}
    argv = ("submit", "c.toml", "--machine", machine, "--account", "x", "--hosts", "1")
    return Case("scheduler", (*argv, "--time", "1:00", "--run", "run", "--pack", "none"), files)


# -- ensembles ---------------------------------------------------------------------------


@cache
def entries() -> dict[str, bytes]:
    """Return what is in the ensemble."""
    with zipfile.ZipFile(io.BytesIO(ENSEMBLE)) as file:
        return {name: file.read(name) for name in file.namelist()}


TYPED = ("format", "elements", "cutoff", "members", "heads", "attributes", "laplacian")
"""Keys of the manifest that a prediction needs."""


def ensembles(draw: Random) -> Case:
    """Open an ensemble whose bits are flipped, or whose fields are wrong under right checksums."""
    kind = draw.choice(["flip", "cut", "manifest", "manifest", "manifest", "card", "entry"])
    wants = "any"
    whole = entries()
    if kind == "flip":
        data = flip(draw, ENSEMBLE)
    elif kind == "cut":
        data = cut(draw, ENSEMBLE)
        wants = "fail"
    elif kind == "manifest":
        before = json.loads(whole["ensemble.json"])
        manifest, wrong = mutated_values(draw, before)
        changes = {key for key in before if manifest.get(key) != before[key]}
        wants = "fail" if wrong and changes <= set(TYPED) else "any"
        data = sealed({**whole, "ensemble.json": json.dumps(manifest).encode()})
    elif kind == "card":
        name = draw.choice(["data/structures.toml", "members/t0000.toml"])
        data = sealed({**whole, name: _mutated_toml(draw, tomllib.loads(whole[name].decode()))[0]})
    else:
        name = draw.choice(list(whole))
        seal = draw.choice([sealed, zip_entries])
        data = seal({**whole, name: mutated(draw, whole[name])})
    argv = draw.choice(
        [
            ("predict", "d.xyz", *WITH, "--json"),
            ("predict", "d.xyz", *WITH, "--json"),
            ("ensemble", "info", "e.zip"),
            ("ensemble", "prune", "e.zip", "--keep", "1", "--out", "p.zip"),
            ("ensemble", "evaluate", "d.extxyz", *WITH, "--target", "energy_like=energy_like:eV"),
        ]
    )
    files = {"e.zip": data, "d.xyz": XYZ, "d.extxyz": EXTXYZ}
    return Case(f"ensemble-{kind}-{argv[0]}", argv, files, "fail" if wants == "fail" else "any")


# -- journals ----------------------------------------------------------------------------


@cache
def run_files() -> dict[str, bytes]:
    """Return the files of a run that Ctrl-C ended."""
    run = GOLDENS / "run"
    return {f"run/{p.relative_to(run)}": p.read_bytes() for p in run.rglob("*") if p.is_file()}


def framed(event: Any) -> bytes:
    """Return an event as a line of the journal, with the right checksum."""
    body = json.dumps(event, separators=(",", ":")).encode()
    return b'{"c":"%08x","e":' % zlib.crc32(body) + body + b"}\n"


def journals(draw: Random) -> Case:
    """Read a journal that is flipped, cut, or wrong under right checksums."""
    data = run_files()["run/events.jsonl"]
    rows = data.splitlines(keepends=True)
    kind = draw.choice(["flip", "cut", "lines", "wrong", "wrong", "wrong"])
    wants = "any"
    if kind == "flip":
        place = draw.randrange(len(data))
        wants = "fail" if place < len(data) - len(rows[-1]) - len(rows[-2]) else "any"
        data = data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    elif kind == "cut":
        data = cut(draw, data)
    elif kind == "lines":
        data = lines(draw, data)
    else:
        row = draw.randrange(len(rows))
        event, _ = mutated_values(draw, json.loads(rows[row])["e"])
        rows[row] = framed(draw.choice([event, event, event, [], None, 7, "x", {}]))
        data = b"".join(rows)
    argv = draw.choice(
        [
            *(("status", "run"), ("leaderboard", "run"), ("leaderboard", "run", "--json")),
            *(
                ("report", "run"),
                ("importance", "run"),
                ("plan", "run"),
                ("status", "run", "--json"),
            ),
            ("export", "run", "--to", "csv", "--out", "table"),
            ("run", "run/campaign.toml", "--run", "run", "--dry-run"),
            ("ensemble", "build", "run", "--dry-run"),
        ]
    )
    files = run_files() | {"run/events.jsonl": data, "run/structures.toml": toml(CARD)}
    files["run/structures.extxyz"] = STRUCTURES
    wants = wants if argv[0] in ("status", "leaderboard") else "any"
    return Case(f"journal-{kind}-{argv[0]}", argv, files, "fail" if wants == "fail" else "any")


def resumptions(draw: Random) -> Case:
    """Go on with an unfinished run whose journal is flipped or cut."""
    data = run_files()["run/events.jsonl"]
    rows = data.splitlines(keepends=True)
    place = draw.randrange(len(data) - len(rows[-1]) - len(rows[-2]))
    whole = draw.random() < 0.25
    new = data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    files = run_files() | {"run/events.jsonl": data[:place] if whole else new}
    files |= {"run/structures.toml": toml(CARD), "run/structures.extxyz": STRUCTURES}
    argv = ("run", "run/campaign.toml", "--run", "run", "--slots", "2")
    wants: Wants = "ok" if whole else "fail"
    return Case("resumption", argv, files, wants, cpu_seconds=90.0, wall_seconds=300.0)


# -- agents, command lines, surroundings -------------------------------------------------

AGENT = str(Path(__file__).with_name("agent_messages.py"))

MESSAGES: list[Any] = [
    ["Heartbeat", 1.0],
    ["JobStarted", "j", [1]],
    ["JobStarted", "nope", [1]],
    ["NewRecords", "j", [{"record": "epoch", "epoch": 1, "objective": 0.5}], 60],
    ["RankEnded", "j", 0, 1],
    ["JobEnded", "j", {0: 0}, False, None, None],
    ["PortTaken", "j"],
    ["ForkServerReady", 1.0, 1],
    ["ForkServerLost", 1, "boom"],
    ["CounterReport", {"seconds": 1.0, "rest": 5.0, "devices": {"cpu": {"busy": 0.5}}}],
    ["HostSlots", [["a", 0, [], "cpu"]], "127.0.0.1", "lo"],
    ["HostsLeave", ["a"], 5.0],
    ["Hello", 1, "0.1.0", "run", "b", "2"],
    ["Farewell"],
]


def agents(draw: Random) -> Case:
    """Send a controller mutated messages after the handshake."""
    sent = []
    for _ in range(draw.randrange(1, 6)):
        message = draw.choice(MESSAGES)
        path, old = draw.choice([leaf for leaf in leaves(message) if leaf[0] != (0,)] or [((), 0)])
        if path and draw.random() < 0.8:
            choices = [*HUGE, "x", "a" * 100_000, [], {}, None, -1, 2**62, "\x1b", float("nan")]
            if type(old) in (int, float) and draw.random() < 0.6:
                choices = [*HUGE[:4], 2**62, -1, float("nan"), float("inf"), 99]
            message = changed(message, path, draw.choice(choices))
        try:
            body = msgspec.msgpack.encode(message)
        except OverflowError:
            body = b"\xc1"
        sent.append(mutated(draw, body) if draw.random() < 0.25 else body)
    return send_messages(sent)


def send_messages(messages: Sequence[Any]) -> Case:
    """Send a controller messages, encoded or not, after the handshake."""
    sent = (m if isinstance(m, bytes) else msgspec.msgpack.encode(m) for m in messages)
    files = {"messages": "\n".join(each.hex() for each in sent).encode()}
    return Case("agent", (AGENT,), files, wants="ok", wall_seconds=90.0)


SAFE: dict[tuple[str, ...], list[str]] = {
    ("predict", "d.xyz", *WITH): ["--levels", "--keep", "--device", "--out", "--format", "--trust"],
    ("ensemble", "pick", "d.extxyz", *WITH): ["--n", "--by", "--low", "--high", "--out"],
    ("ensemble", "prune", "e.zip", "--out", "p.zip"): ["--keep", "--members"],
    ("ensemble", "evaluate", "d.extxyz", *WITH): ["--target", "--card", "--split", "--out", "--by"],
    ("init", "structures.extxyz", "--dry-run"): [
        "--conv",
        "--target",
        "--unit",
        "--minutes",
        "--out",
    ],
    ("plan", "c.toml"): ["--machine", "--hosts", "--slots", "--failures", "--figure"],
    ("leaderboard", "run"): ["--top"],
    ("status", "run"): ["--interval"],
    ("importance", "run"): ["--target", "--head"],
    ("compare", "run", "other"): ["--reach"],
    ("export", "run", "--out", "table"): ["--to", "--trial"],
    ("dataset", "build", "structures.toml"): ["--out", "--processes", "--card"],
    ("run", "c.toml", "--dry-run"): ["--run", "--slots", "--backend", "--machine", "--exclude"],
    ("add-trials", "run", "--dry-run"): ["--values"],
    ("check-layer",): ["x:y", "--conv"],
}
"""Commands that may meet any value of their options."""


def command_lines(draw: Random) -> Case:
    """Give a command odd values of its options."""
    base, options = draw.choice(list(SAFE.items()))
    files = {"e.zip": ENSEMBLE, "d.xyz": XYZ, "d.extxyz": EXTXYZ, "structures.extxyz": STRUCTURES}
    if base[0] in ("leaderboard", "status", "importance", "compare", "export", "add-trials"):
        files = dict(run_files())
        files |= {
            n.replace("run/", "other/", 1): b for n, b in files.items() if base[0] == "compare"
        }
    if base[0] in ("plan", "run", "dataset"):
        files |= {"c.toml": toml(CAMPAIGN), "structures.toml": toml(CARD)}
    if base[0] == "init":
        files.pop("e.zip")
    odd = [
        *NASTY,
        *base,
        "1",
        "5",
        "x.png",
        "/dev/null",
        "/proc/x",
        ".",
        "..",
        "a/b/c",
        "energy_like",
    ]
    odd = [value for value in odd if "\x00" not in value]
    more: list[str] = []
    for _ in range(draw.choice([1, 1, 2])):
        more += [draw.choice(options), draw.choice(odd)]
    return Case(f"line-{base[0]}", (*base, *more), files)


def surroundings(draw: Random) -> Case:
    """Run a command without streams, folder or room."""
    files: dict[str, bytes | None] = {"e.zip": ENSEMBLE, "d.xyz": XYZ, "d.extxyz": EXTXYZ}
    files |= {
        "structures.toml": toml(CARD),
        "structures.extxyz": STRUCTURES,
        "c.toml": toml(CAMPAIGN),
    }
    argv = draw.choice(
        [
            ("predict", "d.xyz", *WITH, "--out", "out.csv"),
            ("predict", "-", *WITH),
            ("ensemble", "info", "e.zip"),
            ("ensemble", "prune", "e.zip", "--keep", "1", "--out", "p.zip"),
            ("ensemble", "pick", "d.extxyz", *WITH, "--n", "1"),
            ("dataset", "build", "structures.toml", "--out", "s.bp"),
            ("init", "structures.extxyz", "--out", "new"),
            ("plan", "c.toml", "--figure", "p.png"),
            ("status", "run"),
            ("report", "run", "--out", "r.html"),
            ("export", "run", "--to", "csv", "--out", "table"),
        ]
    )
    if argv[1] == "run":
        files |= run_files()
    kind = draw.choice(["closed", "deleted", "room", "read-only", "fifo"])
    if kind == "fifo":
        name = draw.choice([name for name in files if name in argv] or ["d.xyz"])
        files[name] = None
        return Case("fifo", argv, files, wants="any" if argv[1] in ("-", "run") else "fail")
    return Case(
        f"{kind}-{argv[0]}",
        argv,
        files,
        stdin=XYZ,
        closed=tuple(draw.sample([0, 1, 2], draw.choice([1, 1, 2]))) if kind == "closed" else (),
        deleted=kind == "deleted",
        read_only=kind == "read-only",
        file_bytes=draw.choice([0, 100, 3000]) if kind == "room" else None,
    )
