"""CSV and Parquet: every number is the journal's, typed, with its unit."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from made_campaign import make_campaign

from hydragnn_hpo.report.export_formats import export
from hydragnn_hpo.report.export_tables import make_run_frame
from hydragnn_hpo.report.facts import Facts, read_facts


def read(kind: str, folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.{kind}"
    table = pd.read_parquet(path) if kind == "parquet" else pd.read_csv(path)
    return table.astype(object).where(table.notna(), None)


@pytest.fixture(params=["csv", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs the extra [parquet].")
    return str(request.param)


@pytest.mark.parametrize("which", ["made", "half"])
def test_trials_are_those_of_the_journal(
    which: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    campaign = request.getfixturevalue(which)
    written = export(campaign.facts, kind, tmp_path / "out")
    table = read(kind, tmp_path / "out", "trials")
    assert list(table["trial"]) == list(campaign.raw.trials)
    assert written.trials == len(table)
    units = {"energy_per_atom": "eV/atom", "gap": "eV", "charge": "e"}
    for row, raw in zip(table.to_dict("records"), campaign.raw.trials.values(), strict=True):
        last = raw["last"] or {}
        assert row["status"] == raw["status"]
        assert row["objective"] == raw["objective"]
        for head, unit in units.items():
            assert row[f"val_mae.{head} [{unit}]"] == last.get("val_mae", {}).get(head)
        for key, value in raw["values"].items():
            assert row[f"params.{key}"] == value
        assert row["attempts"] == len(raw["placed"])
        if raw["status"] != "running":
            assert row["slot_seconds [s]"] == pytest.approx(raw["seconds"], abs=1e-6)
        first = raw["placed"][0]["time"] if raw["placed"] else None
        assert row["started [s since 1970]"] == first


@pytest.mark.parametrize("conv", [None, "gat"])
def test_tables_have_the_conv_searched_or_fixed(conv: str | None, tmp_path: Path) -> None:
    facts = read_facts(make_campaign(tmp_path / "run", trials=6, finished=False, conv=conv))
    export(facts, "csv", tmp_path / "out")
    table = read("csv", tmp_path / "out", "trials")
    assert ("conv" in table.columns, "params.model.conv" in table.columns) == (bool(conv), not conv)
    convs = [conv or trial.trial.values["model.conv"] for trial in facts.trials.values()]
    assert list(make_run_frame(facts, "trials")["conv"]) == convs


def test_epochs_are_those_of_the_journal(kind: str, made: SimpleNamespace, tmp_path: Path) -> None:
    written = export(made.facts, kind, tmp_path / "out")
    table = read(kind, tmp_path / "out", "epochs")
    assert written.epochs == len(table) == len(made.raw.epochs)
    columns = ["trial", "attempt", "epoch", "objective", "best_objective"]
    columns += ["epoch_seconds [s]", "time [s since 1970]"]
    keys = ("reached", "objective", "best_objective", "seconds", "time")
    expected = {(name, e["attempt"], *(e[key] for key in keys)) for name, e in made.raw.epochs}
    assert {tuple(row) for row in table[columns].to_numpy().tolist()} == expected


def test_parquet_columns_have_types_and_units(made: SimpleNamespace, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra [parquet].")
    export(made.facts, "parquet", tmp_path / "out")
    schema = parquet.read_schema(tmp_path / "out" / "trials.parquet")
    kinds = {field.name: str(field.type) for field in schema}
    assert kinds["params.model.features"] == kinds["epochs"] == "int64"
    assert kinds["params.training.learning_rate"] == kinds["objective"] == "double"
    assert kinds["params.model.conv"] == "string"
    assert schema.field("val_mae.gap [eV]").metadata == {b"unit": b"eV"}
    assert json.loads(schema.metadata[b"hydragnn_hpo"])["campaign"] == "made"


def test_values_of_mixed_kinds_become_text(run_of: Any, tmp_path: Path) -> None:
    """A truth stays one, numbers of both kinds are real, and what is mixed is text."""
    campaign = """
name = "mixed"
command = {argv = ["true"]}
search = {trials = 2, finalists = 1, rungs = [1]}
[space]
"a.truth" = [true, false]
"a.number" = [1, 2.5]
"a.mixed" = ["none", 3]
"""
    one = {"a.truth": True, "a.number": 1, "a.mixed": "none"}
    two = {"a.truth": False, "a.number": 2.5, "a.mixed": 3}
    events = [
        {"event": "proposed", "trial": "t0", "values": one, "until": 1},
        {"event": "proposed", "trial": "t1", "values": two, "until": 1},
    ]
    export(run_of(campaign, events), "csv", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "trials.csv")
    assert table["params.a.truth"].tolist() == [True, False]
    assert table["params.a.number"].tolist() == [1.0, 2.5]
    assert table["params.a.mixed"].tolist() == ["none", "3"]


def test_nothing_hostile_comes_through(kind: str, hostile: Facts, tmp_path: Path) -> None:
    export(hostile, kind, tmp_path / "out")
    table = read(kind, tmp_path / "out", "trials")
    assert len(table) == 6
    text = "".join(str(cell) for column in table for cell in table[column])
    assert "\x1b" not in text
    assert "\x07" not in text
    if kind == "csv":
        first = {str(cell)[:1] for column in table for cell in table[column]}
        assert not first & {"=", "@", "+"}
        assert "'=gin()" in set(table["params.model.conv"])


def test_metrics_of_trials_that_are_there_are_added(made: SimpleNamespace, tmp_path: Path) -> None:
    """MAEs by head after each epoch stand only in the trials' own records."""
    name, first = made.raw.epochs[0]
    attempt = made.run.trial(name).attempt(first["attempt"])
    attempt.mkdir(parents=True)
    record = {"record": "epoch", "time": 1.0, "epoch": first["reached"], "val_mae": {"gap": 0.25}}
    lines = json.dumps({**record, "learning_rate": 0.5}) + '\n{"torn'
    (attempt / "metrics.jsonl").write_text(lines)
    try:
        export(made.facts, "csv", tmp_path / "out")
    finally:
        (attempt / "metrics.jsonl").unlink()
    table = pd.read_csv(tmp_path / "out" / "epochs.csv")
    assert table["val_mae.gap [eV]"].count() == 1
    row = table[table["val_mae.gap [eV]"].notna()].iloc[0]
    assert (row["trial"], row["epoch"]) == (name, first["reached"])
    assert (row["val_mae.gap [eV]"], row["learning_rate"]) == (0.25, 0.5)
