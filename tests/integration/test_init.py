"""``init``: from a file that nobody described to a prediction, and what it refuses."""

import subprocess
import sys
import tomllib

import pytest
from ase import Atoms
from ase.io import write

from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import load_config


@pytest.fixture
def data(hpo):
    """A folder with a file of chains, in which commands run."""
    write(hpo.folder / "my chains.extxyz", hpo.molecules(40))
    return hpo.folder


def test_nothing_is_overwritten_and_all_or_nothing_is_written(data, hpo):
    (data / "my_chains_search.toml").write_text("mine")
    result = hpo.here("init", "my chains.extxyz")
    assert (result.code, (data / "my_chains.toml").exists()) == (2, False)
    assert "my_chains_search.toml: is there already" in result.err
    assert (data / "my_chains_search.toml").read_text() == "mine"


def test_after_a_kill_between_its_files_the_same_command_goes_on(data, hpo):
    """The kernel kills a process for lack of memory once the card is written."""
    code = """
import os, sys
from pathlib import Path
import hydragnn_hpo.pipeline.init_files as module
write = module.write_text
def write_and_die(path, text):
    write(path, text)
    os._exit(137)
module.write_text = write_and_die
sys.argv = ["hydragnn-hpo", "init", "my chains.extxyz"]
from hydragnn_hpo.cli.command_line import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=data, capture_output=True, timeout=300)
    assert ran.returncode == 137, ran.stderr
    card = (data / "my_chains.toml").read_bytes()
    assert not (data / "my_chains_search.toml").exists()
    result = hpo.here("init", "my chains.extxyz")
    assert result.code == 0, result.err
    assert (data / "my_chains.toml").read_bytes() == card
    (data / "my_chains_search.toml").unlink()
    (data / "my_chains.toml").write_bytes(card + b"# mine\n")
    result = hpo.here("init", "my chains.extxyz")
    assert result.code == 2
    assert "my_chains.toml: is there already" in result.err


def test_dry_run_writes_nothing(data, hpo):
    result = hpo.here("init", "my chains.extxyz", "--dry-run")
    assert result.code == 0, result.err
    assert sorted(path.name for path in data.iterdir()) == ["my chains.extxyz"]
    assert "would write" in result.out
    assert "UNITS GUESSED" in result.out


def test_a_unit_that_only_the_user_knows_stops_the_run(data, hpo):
    lines = ["smiles,total_energy"]
    lines += [f"{'C' * n}O,{-3.0 * n - 1.5 - 0.01 * (n % 3)}" for n in range(1, 15)]
    (data / "t.csv").write_text("\n".join(lines))
    result = hpo.here("init", "t.csv")
    assert result.code == 0, result.err
    assert "STOP: the unit of total_energy is not known" in result.out
    refused = hpo.here("run", "t_search.toml", "--dry-run")
    assert refused.code == 2
    assert "stands for a unit that only you know" in refused.err
    second_result = hpo.here("init", "t.csv", "--unit", "total_energy=kcal/mol", "--out", "told")
    assert second_result.code == 0, second_result.err
    assert hpo.here("run", "told/t_search.toml", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gone.xyz",), "no such file or folder"),
        (("",), "one of the names is empty"),
        (("my chains.extxyz", "--unit", "energy"), "write it as NAME=UNIT"),
        (("my chains.extxyz", "--unit", "nrg=eV"), "unknown property 'nrg'"),
        (("my chains.extxyz", "--conv", "schent"), "Did you mean 'schnet'"),
        (("my chains.extxyz", "--target", "nothing"), "unknown target 'nothing'"),
        (("my chains.extxyz", "--out", "x.toml"), "name a folder"),
        (("g2_xtb", "--unit", "a=eV"), "--unit is for data files"),
        (("g2_xtbb",), "no such file or folder"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments, sentence, data, hpo):
    hpo.refused("init", *arguments, says=(sentence,))


def test_a_shipped_card_still_goes_to_standard_output(data, hpo):
    result = hpo.here("init", "g2_xtb", "--conv", "schnet")
    assert result.code == 0, result.err
    assert tomllib.loads(result.out)["data"][0]["card"] == "g2_xtb"
    timed = hpo.here("init", "g2_xtb", "--minutes", "5", "--out", "mine.toml")
    assert timed.code == 0, timed.err
    assert load_config(data / "mine.toml", CampaignConfig).search.trials >= 8


def test_what_stands_in_a_file_gives_no_orders_to_the_terminal(data, hpo):
    lines = ["smiles,[red]gap[/red],\x1b[2Jsame"]
    lines += [f"{'C' * (1 + n % 6)}O,{n * n % 7},1.5" for n in range(12)]
    (data / "[bold]x\x1b[2J.csv").write_text("\n".join(lines))
    result = hpo.here("init", "[bold]x\x1b[2J.csv")
    assert result.code == 0, result.err
    assert "[bold]x\\u001b[2J.csv: 12 structures" in result.out
    assert "\x1b" not in result.out
    (card,) = (path for path in data.glob("*.toml") if "search" not in path.name)
    assert card.name.isascii()
    assert card.name.isprintable()
    assert tomllib.loads(card.read_text())["targets"]["red_gap_red"]


@pytest.mark.slow
def test_two_commands_lead_from_an_unknown_file_to_error_bars(data, hpo):
    result = hpo.here("init", "my chains.extxyz", "--minutes", "1", "--conv", "schnet")
    assert result.code == 0, result.err
    assert "hydragnn-hpo run my_chains_search.toml" in result.out
    card = tomllib.loads((data / "my_chains.toml").read_text())
    assert card["files"] == [{"path": "my chains.extxyz"}]
    path = data / "my_chains_search.toml"
    text = path.read_text()
    search = tomllib.loads(text)["search"]
    fewer = text.replace(f"trials = {search['trials']}", "trials = 2").replace(
        f"rungs = {search['rungs']}", "rungs = [1, 2]"
    )
    fewer = fewer.replace(f"finalists = {search['finalists']}", "finalists = 2")
    path.write_text(fewer.replace(f"initial = {search['initial']}", "initial = 2"))
    ran = hpo("run", "my_chains_search.toml", "--run", "run", "--json")
    assert ran.code == 0, ran.err
    write(data / "new.xyz", Atoms("COH", positions=[[0, 0, 0], [1.2, 0, 0], [2.2, 0.1, 0]]))
    answer = hpo.here("predict", "new.xyz", "--ensemble", "run", "--json")
    assert answer.code == 0, answer.err
    assert "std" in answer.out
