"""The best trial's configuration: which, whole, and independent of where it lies."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydragnn_hpo.config.schema import load_config, to_toml
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.report.export_formats import export


def best_of(raw: Any) -> str:
    """Find the trial with the least objective among those trained furthest, by hand."""
    done = {name: t["last"]["objective"] for name, t in raw.items() if t["status"] == "completed"}
    return min(done, key=lambda name: done[name])


def test_the_best_trial_is_written_whole(made: SimpleNamespace, tmp_path: Path) -> None:
    out = tmp_path / "best_config.toml"
    written = export(made.facts, "best", out)
    name = best_of(made.raw.trials)
    config = load_config(out, TrialConfig)
    assert (config.trial, config.seed) == (name, derive_seed(0, name, "training"))
    assert config.training.epochs == 27
    plain = tomllib.loads(out.read_text())
    for key, value in made.raw.trials[name]["values"].items():
        actual: Any = plain
        for part in key.split("."):
            actual = actual[part]
        assert actual == value
    store = Path(plain["data"][0]["store"])
    assert store == (made.run.path / "data" / "made_molecules.bp").resolve()
    assert written.open_with == f"hydragnn-hpo trial {out}"
    assert f"# Trial {name} of campaign made" in out.read_text()


def test_what_the_trial_was_run_with_counts(made: SimpleNamespace, tmp_path: Path) -> None:
    """Its own file is the truth, where it is still there; paths in it are its folder's."""
    export(made.facts, "best", tmp_path / "first.toml", trial="t0002")
    mine = tomllib.loads((tmp_path / "first.toml").read_text())
    mine["seed"] = 99
    mine["data"][0]["store"] = "../../data/else.bp"
    mine["training"]["start_from"] = "../t0001/checkpoints/best.safetensors"
    folder = made.run.trial("t0002")
    folder.path.mkdir(parents=True)
    folder.config.write_text(to_toml(mine))
    try:
        written = export(made.facts, "best", tmp_path / "second.toml", trial="t0002")
    finally:
        folder.config.unlink()
    config = load_config(tmp_path / "second.toml", TrialConfig)
    run = made.run.path.resolve()
    assert config.seed == 99
    assert config.data[0].store == str(run / "data" / "else.bp")
    start = run / "trials" / "t0001" / "checkpoints" / "best.safetensors"
    assert config.training.start_from == str(start)
    assert "else.bp is not there" in written.note


COMMAND = """
name = "layout"
command = {argv = ["srun", "tune", "{trial}"]}
trial = {"cache" = "big"}
space = {"tile.x" = [1, 2]}
search = {trials = 1, finalists = 1, rungs = [1]}
"""


def finished(name: str) -> list[dict[str, Any]]:
    attempt = {"attempt": 1, "until": 1, "width": 1, "slots": ["h:0"]}
    fields = {"attempt": 1, "outcome": "completed", "objective": 0.5, "reached": 1}
    return [
        {"event": "proposed", "trial": name, "values": {"tile.x": 2}, "until": 1},
        {"event": "placed", "trial": name, **attempt},
        {"event": "ended", "trial": name, **fields},
    ]


def test_a_command_gets_the_file_it_reads(run_of: Any, tmp_path: Path) -> None:
    written = export(run_of(COMMAND, finished("t0000")), "best", tmp_path / "x.toml")
    plain = tomllib.loads((tmp_path / "x.toml").read_text())
    assert (plain["trial"], plain["cache"], plain["tile"]) == ("t0000", "big", {"x": 2})
    assert written.open_with == "srun tune {trial}"
    assert "command of yours" in written.note


def test_hostile_names_stay_in_comments(run_of: Any, tmp_path: Path) -> None:
    """A name that ends the comment and begins a key; nothing is read beside the run directory."""
    name = "../../x\nseed = 7 \x1b[2J"
    export(run_of(COMMAND, finished(name)), "best", tmp_path / "x.toml")
    text = (tmp_path / "x.toml").read_text()
    assert tomllib.loads(text)["trial"] == name
    assert tomllib.loads(text)["seed"] == derive_seed(0, name, "training")
    assert "\x1b" not in text
