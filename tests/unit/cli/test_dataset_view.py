"""What ``dataset info`` says about the numbers of a target."""

import io
import json
from typing import get_args

from ase.build import molecule
from ase.io import write
from rich.console import Console

from hydragnn_hpo.cli.dataset_command import SUMMARIZED, overview_blocks
from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.data.store_summary import describe_store

CARD = """
name = "tiny"
[[files]]
path = "tiny.extxyz"
[targets.soluble]
level = "graph"
shape = "class"
classes = ["yes", "no"]
optional = true
[graphs]
cutoff = 3.0
[split]
group = "structure"
shares = [0.6, 0.1, 0.1, 0.1, 0.1]
"""


def test_every_shape_of_numbers_has_its_words():
    shapes = get_args(TargetConfig.model_fields["shape"].annotation)
    assert set(SUMMARIZED) == set(shapes) - {"class"}


def test_what_does_not_turn_has_no_norm():
    assert "norm" not in SUMMARIZED["spectrum"]


def test_classes_are_counted_in_each_split(tmp_path):
    frames = [molecule("H2O") for _ in range(20)]
    for number, atoms in enumerate(frames):
        atoms.positions *= 1 + 0.01 * number
        if number != 7:
            atoms.info["soluble"] = "yes" if number < 4 else "no"
    write(tmp_path / "tiny.extxyz", frames)
    (tmp_path / "tiny.toml").write_text(CARD)
    build_store(tmp_path / "tiny.toml", tmp_path / "out.bp")
    overview = describe_store(tmp_path / "out.bp")
    splits = {k: v for k, v in overview["target_splits"]["soluble"].items() if k != "bins"}
    counted = [split["classes"] for split in splits.values()]
    assert sum(one["yes"] for one in counted) == 4
    assert sum(one["no"] for one in counted) == 15
    assert all(sum(split["classes"].values()) == split["values"] for split in splits.values())
    title, table = overview_blocks(json.loads(json.dumps(overview)))[-2:]
    assert title == "soluble (graph class)"
    console = Console(file=io.StringIO(), width=110)
    console.print(table)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["class", *splits] in lines
    assert ["yes", *(str(one["yes"]) for one in counted)] in lines
    assert any(line[:1] == ["(missing)"] for line in lines)
