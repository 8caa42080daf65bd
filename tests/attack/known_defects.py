"""Every defect that an attack has found, by name: the smallest input that showed it."""

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from allocations import allocation
from generators import (
    CAMPAIGN,
    CARD,
    CIF,
    COMMAND_CAMPAIGN,
    ENSEMBLE,
    JSON,
    MACHINES,
    MESSAGES,
    POSCAR,
    STRUCTURES,
    TABLE,
    WITH,
    XYZ,
    changed,
    command_result,
    entries,
    framed,
    run_files,
    send_messages,
    submission,
    toml,
)
from sandbox import GOLDENS, Case, Wants
from sealed_zip import sealed

DRY_RUN = ("run", "c.toml", "--run", "r", "--dry-run")
BUILD = ("dataset", "build", "structures.toml", "--out", "s.bp")
BOM = b"\xef\xbb\xbf"
SMILES = ("--structure-column", "smiles")
DATA = {"structures.toml": toml(CARD), "structures.extxyz": STRUCTURES}
FULL = "_atom_site_occupancy\nC1 C 0 0 0 1\nO1 O 0.5 0.5 0.5 1\n"


def predicted(name: str, data: bytes | None, wants: Wants = "any", *more: str) -> Case:
    """Predict from one file."""
    return Case(
        "", ("predict", name, *WITH, "--json", *more), {name: data, "e.zip": ENSEMBLE}, wants
    )


def card(wants: Wants = "fail", *, text: bytes | None = None, **values: Any) -> Case:
    """Build from a card with other values; dots part the keys."""
    return Case("", BUILD, DATA | {"structures.toml": text or _with(CARD, values)}, wants)


def campaign(wants: Wants = "fail", *, text: bytes | None = None, **values: Any) -> Case:
    """Check a campaign with other values."""
    return Case("", DRY_RUN, DATA | {"c.toml": text or _with(CAMPAIGN, values)}, wants)


def _with(table: dict[str, Any], values: dict[str, Any]) -> bytes:
    for name, value in values.items():
        table = _put(table, name.split("__"), value)
    return toml(table)


def _put(table: Any, keys: list[str], value: Any) -> Any:
    first, *rest = (int(key) if key.isdigit() else key for key in keys)
    if isinstance(table, list):
        return changed(table, (first, *rest), value)
    inner = _put(table.get(first, {}), [str(key) for key in rest], value) if rest else value
    return {**table, first: inner}


def ensemble(wants: Wants = "fail", **values: Any) -> Case:
    """Predict with an ensemble whose manifest has other values under right checksums."""
    manifest = json.loads(entries()["ensemble.json"])
    for name, value in values.items():
        manifest = _put(manifest, name.split("__"), value)
    data = sealed({**entries(), "ensemble.json": json.dumps(manifest).encode()})
    argv = ("predict", "d.xyz", *WITH, "--json")
    return Case("", argv, {"d.xyz": XYZ, "e.zip": data}, wants)


def journal(event: Any, *argv: str) -> Case:
    """Read a journal one line of which is another event, with the right checksum."""
    rows = run_files()["run/events.jsonl"].splitlines(keepends=True)
    rows[4] = framed(event)
    return Case("", argv, run_files() | {"run/events.jsonl": b"".join(rows)}, "any")


def line(*argv: str, wants: Wants = "any", **more: Any) -> Case:
    """Run any command beside all kinds of files."""
    files = {"e.zip": ENSEMBLE, "d.xyz": XYZ, "c.toml": toml(CAMPAIGN), **DATA, **run_files()}
    return Case("", argv, files | more.pop("files", {}), wants, **more)


def garbled_zip() -> bytes:
    """Return an ensemble whose directory would lie before its beginning."""
    return ENSEMBLE[:-3] + bytes([ENSEMBLE[-3] ^ 32]) + ENSEMBLE[-2:]


def quantiles(**values: float) -> dict[str, float]:
    """Return quantiles with other keys or values."""
    heads = json.loads(entries()["ensemble.json"])["heads"]
    return heads["energy_like"]["calibration"]["quantiles"] | values


def in_pbs(hosts: bytes | None) -> Case:
    """Run by mpiexec on the hosts of a file."""
    argv = ("run", "c.toml", "--run", "run", "--backend", "mpiexec")
    files = {"bin/mpiexec": b"#!/bin/sh\n", "hosts": hosts}
    return replace(allocation(argv, {"PBS_NODEFILE": "hosts"}, files), wants="fail")


def hungry_command() -> Case:
    """Run a campaign whose command takes more memory than there is."""
    made = command_result(b'{"status": "completed", "objective": 1.0}')
    allocate = f"#!/bin/sh\n{sys.executable} -c 'x = b\"x\" * 10**9' || exit $?\n".encode()
    train = (made.files["bin/train"] or b"").replace(b"#!/bin/sh\n", allocate)
    files = {**made.files, "bin/train": train}
    return replace(made, files=files, wants="fail", memory_mb=450, says="ended as out_of_memory")


ENERGY = {"level": "graph", "unit": "eV", "energy": "total"}
FORCES = {"level": "node", "shape": "vector", "unit": "eV", "derived_from": "energy_like"}
CUBE = b"a\nb\n 1 0 0 0\n 1000000000 1 0 0\n 1 0 1 0\n 1 0 0 1\n 6 6 0 0 0\n 0.1\n"
CFG = b"Number of particles = 1000000000\nH0(1,1) = 4 A\n"
XDATCAR = b"a\n1\n4 0 0\n0 4 0\n0 0 4\nC\n1000000000\nDirect configuration= 1\n0 0 0\n"
STATS = "run/data/structures.bp/stats.json"
QUANTILES = "heads__energy_like__calibration__quantiles"
ALL = gzip.compress(STRUCTURES, mtime=0)

_KNOWN: dict[str, Callable[[], Case]] = {
    # structures
    "unknown_occupancy": lambda: predicted("d.cif", CIF.replace(b"0 0 0 1", b"0 0 0 ?")),
    "space_group_without_end": lambda: predicted(
        "d.cif", CIF.replace(b"'F m -3 m'", b"'F m -3 m" + b" m -3 m" * 2000 + b"'"), "fail"
    ),
    "cif_without_cell": lambda: predicted(
        "d.cif", CIF[: CIF.index(b"_cell")] + CIF[CIF.index(b"_space") :], "fail"
    ),
    "two_elements_on_one_site": lambda: predicted(
        "d.cif",
        CIF.replace(b"_atom_site_occupancy\n", b"").replace(
            b" 1\nO1 O 0.5 0.5 0.5 1", b"\nO1 O 0 0 0"
        ),
        "fail",
    ),
    "raw_warning_of_a_cif": lambda: predicted("d.cif", CIF.replace(b"0 0 0 1", b"0 0 0 1 x")),
    "raw_warning_of_a_vast_cell": lambda: predicted(
        "d.extxyz",
        b'2\nLattice="1e200 0 0 0 1e200 0 0 0 1e200" pbc="T T T"\nC 0 0 0\nO 0 0 1.1\n',
        "fail",
    ),
    "long_comment": lambda: predicted("d.xyz", XYZ.replace(b"no words", b"a" * 200_000)),
    "bom_table": lambda: predicted("d.csv", BOM + TABLE, "ok", *SMILES),
    "bom_xyz": lambda: predicted("d.xyz", BOM + XYZ, "ok"),
    "bom_cif": lambda: predicted("d.cif", BOM + CIF, "ok"),
    "bom_card": lambda: card("ok", text=BOM + toml(CARD)),
    "endless_smiles": lambda: predicted("d.csv", b"smiles\n" + b"C" * 2000 + b"\n", "any", *SMILES),
    "cut_gz": lambda: predicted("d.extxyz.gz", ALL[: len(ALL) // 2], "fail"),
    "deep_json": lambda: predicted("d.json", b"[" * 100_000, "fail"),
    "coordinates_in_pairs": lambda: predicted(
        "d.json",
        b'[{"id": 1, "atoms": {"lattice_mat": [[4, 0, 0], [0, 4, 0], [0, 0, 4]], '
        b'"cartesian": false, "coords": [[0, 0], [0, 0.5], [0.5, 0.5]], "elements": ["C", "O"]}}]',
        "fail",
    ),
    "ragged_table": lambda: Case(
        "", ("init", "d.json", "--dry-run"), {"d.json": JSON.replace(b"0.5, 0.5, 0.5", b"0.5", 1)}
    ),
    "vast_poscar": lambda: predicted("POSCAR", POSCAR.replace(b"1 1\n", b"1000000000 1\n"), "fail"),
    "vast_cube": lambda: predicted("d.cube", CUBE, "fail"),
    "vast_cfg": lambda: predicted("d.cfg", CFG, "fail"),
    "vast_xdatcar": lambda: predicted("XDATCAR", XDATCAR, "fail"),
    "vast_xdatcar_in_init": lambda: line(
        "init", "XDATCAR", wants="fail", files={"XDATCAR": XDATCAR}
    ),
    "vast_xdatcar_of_a_card": lambda: Case(
        "",
        BUILD,
        {"structures.toml": _with(CARD, {"files": [{"path": "XDATCAR"}]}), "XDATCAR": XDATCAR},
        "fail",
    ),
    "ragged_poscar": lambda: Case(
        "",
        ("ensemble", "evaluate", "POSCAR", *WITH, "--target", "energy_like=energy_like:eV"),
        {"POSCAR": POSCAR.replace(b"4 0 0\n", b"4 0\n", 1), "e.zip": ENSEMBLE},
        "fail",
    ),
    "odd_bytes_in_a_number": lambda: predicted(
        "d.xyz", XYZ.replace(b"1.13", b"\x1a" * 1000), "fail"
    ),
    # cards
    "total_energy_per_atom": lambda: card(
        targets__energy_like={"level": "graph", "unit": "eV/atom", "energy": "total"}
    ),
    "energy_in_angstrom": lambda: card(
        targets__energy_like={"level": "graph", "unit": "angstrom", "energy": "per_atom"}
    ),
    "forces_in_ev": lambda: card(targets__energy_like=ENERGY, targets__force_like=FORCES),
    "cutoff_is_true": lambda: card(graphs__cutoff=True),
    "endless_cutoff": lambda: card("any", graphs__cutoff=1e308),
    "deep_card": lambda: card(text=b"a=" + b"[" * 100_000),
    "deep_inline_tables": lambda: card(text=b"a=" + b"{a=" * 3000),
    "long_key": lambda: card(text=b"a" + b".a" * 100_000 + b" = 1"),
    "long_table": lambda: campaign(text=b"[a" + b".a" * 100_000 + b"]"),
    "long_integer": lambda: card(text=b"a=" + b"1" * 5000),
    "file_twice": lambda: card(
        files=[{"path": "structures.extxyz"}, {"path": "./structures.extxyz"}]
    ),
    "fifo_of_a_card": lambda: Case("", BUILD, DATA | {"structures.extxyz": None}, "fail"),
    # campaigns
    "misspelt_objective": lambda: campaign(search__objective="nothing"),
    "target_that_torch_keeps": lambda: replace(
        (made := campaign()),
        files={n: (b or b"").replace(b"energy_like", b"forward") for n, b in made.files.items()},
    ),
    "missing_warm_start": lambda: campaign(search__warm_start=["/nonexistent"]),
    "unknown_attribute": lambda: campaign(trial__model__attributes=["nothing"]),
    "conv_that_is_not_there": lambda: campaign(
        text=toml(CAMPAIGN).replace(b'"painn", "et"', b'"nope:Conv"')
    ),
    "trials_in_quotes": lambda: campaign(search__trials="10"),
    "rungs_of_true": lambda: campaign(search__rungs=[True, 2]),
    "log_is_one": lambda: campaign(text=toml(CAMPAIGN).replace(b"log = true", b"log = 1")),
    "limit_in_quotes": lambda: Case(
        "", DRY_RUN, {"c.toml": _with(COMMAND_CAMPAIGN, {"space__rate__high": "2.0"})}, "fail"
    ),
    "vast_basis": lambda: campaign(trial__model__basis_size=10**9),
    "vast_initial": lambda: campaign(search__initial=10**8),
    "endless_lease": lambda: campaign(machine__lease_seconds=1e300),
    "endless_constraints": lambda: campaign(
        "any", search__constraints=["training.learning_rate < 3"] * 100_000
    ),
    "fifo_of_a_campaign": lambda: Case("", DRY_RUN, DATA | {"c.toml": None}, "fail"),
    "long_constraint": lambda: campaign(search__constraints=[f"(({'1+' * 90}1)@({'1+' * 90}1))"]),
    "number_in_quotes_of_a_machine": lambda: Case(
        "",
        ("machine", "show", "m.toml"),
        {"m.toml": (MACHINES / "workstation.toml").read_bytes().replace(b"0.0025", b'"0.0025"')},
        "fail",
    ),
    # ensembles
    "quantile_of_a_word": lambda: ensemble(**{QUANTILES: quantiles(x=1.0)}),
    "quantile_of_500_percent": lambda: ensemble(**{QUANTILES: quantiles(**{"5": 1.0})}),
    "quantile_without_end": lambda: ensemble(**{QUANTILES: quantiles(**{"0.9": 1e308})}),
    "quantile_in_quotes": lambda: ensemble(**{QUANTILES: quantiles() | {"0.9": "1.6"}}),
    "vast_cutoff": lambda: ensemble(cutoff=1e9),
    "level_against_the_card": lambda: ensemble(heads__energy_like__level="node"),
    "ensemble_is_the_output": lambda: line(
        "predict",
        "d.xyz",
        "--ensemble",
        "e.csv",
        "--out",
        "e.csv",
        wants="fail",
        files={"e.csv": ENSEMBLE},
    ),
    "neighbors_in_quotes": lambda: ensemble(coordination__cutoff="4.0"),
    # journals and results
    "unit_of_a_store_of_before": lambda: replace(
        line(
            *("run", "run/campaign.toml", "--run", "run"),
            wants="fail",
            files={STATS: run_files()[STATS].replace(b'"unit": "eV"', b'"unit": "eV/atom"')},
        ),
        cpu_seconds=60.0,  # it starts an agent before it refuses
    ),
    "event_is_a_list": lambda: journal([], "status", "run"),
    "event_without_its_kind": lambda: journal({"time": 1.0}, "leaderboard", "run"),
    "event_of_no_trial": lambda: journal(
        {"event": "ended", "time": 1.0, "epoch": 1, "trial": "t0099", "outcome": "completed"},
        "report",
        "run",
    ),
    "time_is_a_word": lambda: journal(
        {"event": "first_step", "time": "x", "trial": "t0000"}, "status", "run"
    ),
    "damaged_result": lambda: command_result(b"{} {}"),
    "result_of_no_status": lambda: command_result(b'{"status": "fine", "objective": 1.0}'),
    "equal_vast_objectives": lambda: command_result(
        b'{"status": "completed", "objective": 9223372036854775808, "epochs": 2}'
    ),
    # surroundings
    "no_output": lambda: line("leaderboard", "run", closed=(1,)),
    "no_output_of_init": lambda: line("init", "structures.extxyz", "--out", "new", closed=(1,)),
    "no_output_of_plan": lambda: line("plan", "c.toml", closed=(1,)),
    "no_input": lambda: line("predict", "-", *WITH, closed=(0,)),
    "no_folder": lambda: line("init", str(GOLDENS / "structures.extxyz"), deleted=True),
    "store_is_the_folder": lambda: line(*BUILD[:3], "--out", ".", wants="fail"),
    "predictions_are_the_folder": lambda: line(
        "predict", "d.xyz", *WITH, "--out", ".", wants="fail"
    ),
    "run_is_a_device": lambda: line(*DRY_RUN[:2], "--run", "/dev/null", "--dry-run", wants="fail"),
    "run_without_a_name": lambda: line(*DRY_RUN[:2], "--run", "", "--dry-run", wants="fail"),
    "interval_without_watch": lambda: line("status", "run", "--interval", "5", wants="fail"),
    "long_option": lambda: line("importance", "run", "--target", "a" * 5000, wants="fail"),
    "no_room_for_a_lock": lambda: line(*BUILD, wants="fail", file_bytes=0),
    "no_room_for_a_run": lambda: replace(
        command_result(b'{"status": "completed", "objective": 1.0}'), file_bytes=2000
    ),
    "run_where_nothing_can_be_written": lambda: line(
        "run", "c.toml", "--run", "r", wants="fail", read_only=True
    ),
    "garbled_scheduler": lambda: submission(b"\xff\n", 0, "generic-slurm"),
    "scheduler_that_ends_its_words": lambda: submission(b"No account.\n", 1, "generic-slurm"),
    "garbled_zip": lambda: line("ensemble", "info", "e.zip", files={"e.zip": garbled_zip()}),
    # scarcity and allocations
    "command_killed_for_memory": hungry_command,
    "fifo_of_pbs_hosts": lambda: in_pbs(None),
    "garbled_pbs_hosts": lambda: in_pbs(b"h1\n\xff\xfe\n"),
    "end_in_other_digits": lambda: replace(
        allocation(("run", "c.toml", "--run", "run"), {"SLURM_JOB_END_TIME": "\u0663"}, {}),
        wants="fail",
        says="give a number of seconds",
        may_pause=False,
    ),
    "no_hosts_of_a_slurm_job": lambda: replace(
        allocation(
            ("run", "c.toml", "--run", "run", "--backend", "slurm"),
            {"SLURM_JOB_ID": "7"},
            {"bin/squeue": b"#!/bin/sh\necho 'RUNNING|,,,|N/A|7'\n", "bin/srun": b"#!/bin/sh\n"},
        ),
        wants="fail",
        says="names no hosts",
    ),
    "garbled_rank_of_an_agent": lambda: replace(
        allocation(
            ("run", "c.toml", "--run", "run", "--backend", "mpiexec"),
            {"OMPI_COMM_WORLD_RANK": "MIG-x"},
            {},
        ),
        wants="fail",
        says="which is no number",
    ),
    "list_from_an_agent": lambda: send_messages([MESSAGES]),
}

KNOWN = [replace(make(), name=name) for name, make in _KNOWN.items()]
