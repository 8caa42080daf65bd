"""TOML in and out, and the sentence for everything that can be wrong in a file."""

import math
import os
import re
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_hpo.config.campaign_config import CampaignConfig, MachineConfig
from hydragnn_hpo.config.command_config import CommandConfig
from hydragnn_hpo.config.data_config import CardConfig, TargetConfig
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.schema import (
    dump_config,
    load_config,
    parse_config,
    read_toml,
    to_toml,
)
from hydragnn_hpo.config.trial_config import TrialConfig, TrialHeads
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.resources import find_resource

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALAR = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXT,
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)


def same(one, other):
    """Equal, with types and the sign of zero."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXT, VALUE, max_size=5))
def test_what_is_written_is_read_again(values):
    assert same(tomllib.loads(to_toml(values)), values)


def test_none_is_left_out_and_nan_is_written_as_toml_has_it():
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])
    values = {"a": None, "b": {"c": None, "d": 1}, "e": [{"f": None, "g": 2}]}
    assert tomllib.loads(to_toml(values)) == {"b": {"d": 1}, "e": [{"g": 2}]}


def test_it_reads_like_written_by_hand():
    values = {"t": {"x": 1.0, "deep": {"y": [1, 2]}}, "name": "a", "rows": [{"p": "q"}, {}]}
    assert to_toml(values) == (
        'name = "a"\n\n[t]\nx = 1.0\n\n[t.deep]\ny = [1, 2]\n\n[[rows]]\np = "q"\n\n[[rows]]\n'
    )


TRIAL = {
    "data": {"store": "s.bp"},
    "model": {"conv": "painn"},
    "heads": {"energy": {}},
}


def test_a_dumped_config_is_resolved_and_comes_back_equal(tmp_path):
    config = parse_config(TRIAL, TrialConfig, "x")
    path = tmp_path / "trial.toml"
    path.write_text(dump_config(config))
    assert load_config(path, TrialConfig) == config
    assert read_toml(path)["training"]["global_batch"] == 32
    assert read_toml(path)["model"]["options"] == {"activation": "silu"}


def card(**target):
    return {"name": "x", "files": [{"path": "a"}], "targets": {"energy": target}}


CAMPAIGN = {
    "name": "c",
    "data": [{"card": "g2_xtb"}],
    "trial": {},
    "space": {"model.features": [8, 16]},
    "search": {"trials": 9, "rungs": [2, 4]},
}

WRONG = [
    (TrialConfig, {**TRIAL, "tranining": {}},
     "unknown key 'tranining'. Did you mean 'training'? "
     "Known: data, heads, model, parallel, seed, shared, training, trial."),
    (TrialConfig, {**TRIAL, "training": {"epoch": 3}},
     "unknown key 'training.epoch'. Did you mean 'epochs'? Known: balance, "),
    (TrialConfig, {**TRIAL, "heads": {"energy": {"wieght": 2}}},
     "unknown key 'heads.energy.wieght'. Did you mean 'weight'? Known: baseline, beta, "),
    # A head and a target may have the name of a key of their own config.
    (TrialConfig, {**TRIAL, "heads": {"loss": {"wieght": 2}}},
     "unknown key 'heads.loss.wieght'. Did you mean 'weight'?"),
    (CardConfig, card(level="graph", unit="eV", shpe="x"),
     "unknown key 'targets.energy.shpe'. Did you mean 'shape'? Known: axis, charge, clas"),
    (CardConfig, {**card(level="graph", unit="eV"), "files": [{"path": "a"}, {"pth": "b"}]},
     "'files.1.path' is missing; add it."),
    (CampaignConfig, {**CAMPAIGN, "data": [{"card": "a", "crad": "b"}]},
     "unknown key 'data.0.crad'. Did you mean 'card'? Known: access, card, prefix, ratio."),
    (CampaignConfig, {**CAMPAIGN, "space": {"model.features": {"lwo": 1, "high": 2}}},
     "unknown key 'space.model.features.lwo'. Did you mean 'low'?"),
    (CampaignConfig, {**CAMPAIGN, "command": {"argv": ["x"], "widht": 1}},
     "unknown key 'command.widht'. Did you mean 'width'?"),
    (CampaignConfig, {**CAMPAIGN, "trial": {"modle": {}}},
     "unknown key 'trial.modle'. Did you mean 'model'? Known: heads, model, parallel, training."),
    (TrialConfig, {k: v for k, v in TRIAL.items() if k != "data"}, "'data' is missing; add it."),
    (TrialConfig, {**TRIAL, "heads": {}}, "'heads' is {}: "),
    (TrialConfig, {**TRIAL, "training": {"epochs": "many"}},
     "'training.epochs' is \"many\": write a whole number."),
    (TrialConfig, {**TRIAL, "training": {"epochs": 0}},
     "'training.epochs' is 0: write a number above 0 (passes over the training split at the full "
     "budget)."),
    (TrialConfig, {**TRIAL, "training": {"learning_rate": math.nan}}, "'training.learning_rate' "),
    (TrialConfig, {**TRIAL, "model": {"conv": "schent"}},
     "'model': unknown conv 'schent'. Did you mean 'schnet'? Known: "),
    (TrialConfig, {**TRIAL, "model": {"conv": "schnet", "options": {"filtres": 3}}},
     "'model': options of conv 'schnet': unknown key 'filtres'. Did you mean 'filters'? "
     "Known: filters."),
    (TrialConfig, {**TRIAL, "model": {"conv": 3}}, "'model': unknown conv '3'."),
    (TrialConfig, {**TRIAL, "model": 3}, "'model' is 3: "),
    (CardConfig, card(level="graph", unit="ev"), "'targets.energy.unit': unknown unit 'ev'."),
    (CardConfig, card(level="graph", unit="?"),
     "'targets.energy.unit': is \"?\", which stands for a unit that only you know"),
    (CardConfig, CAMPAIGN, "is a campaign, which says what is searched: name the card"),
    (CampaignConfig, card(level="graph", unit="eV"), "is a card, which says what data are; a"),
    (TrialConfig, {**TRIAL, "seed": "x" * 500}, "'seed' is \"xxx"),
    (ModelConfig, {"conv": "a b:c"}, "conv 'a b:c' is no module and class"),
    (ModelConfig, {"conv": ":c"}, "conv ':c' is no module and class"),
    (ModelConfig, {"conv": "egnn", "attention": "gps", "attention_heads": 5},
     "attention_heads is 5, which does not divide features 64"),
    (TrialHeads, {"heads": {}, "targets": {}, "model": {"conv": "nowhere.module:Conv"}},
     "conv 'nowhere.module:Conv' is in package 'nowhere', which"),
    (CommandConfig, {"argv": ["x"], "per": "trial", "launcher": "srun"},
     "per is 'trial', but launcher is 'srun'"),
    (MachineConfig, {"shared_files": False}, "'shared_files = false' is gone: all hosts must see"),
    (MachineConfig, {"shared_files": "true"}, "'shared_files = "),
    # Each becomes an entry of a list, or a width of one: mistyped ones filled the memory.
    (MachineConfig, {"slots": -1}, "'slots' is -1: write a number of at least 0 (maximum"),
    (MachineConfig, {"slots": 10_001}, "'slots' is 10001: write a number of at most 10000 ("),
    (HeadConfig, {"layers": 10**9}, "'layers' is 1000000000: write a number of at most 1000 ("),
    (ModelConfig, {"conv": "schnet", "layers": 1001}, "'layers' is 1001: write"),
    (ModelConfig, {"conv": "schnet", "shared_layers": 1001}, "'shared_layers' is 1001: write"),
    *[(ModelConfig, {"conv": conv, "options": {name: 1001}},
       f"options of conv '{conv}': '{name}' is 1001: write a number of at most")
      for conv, name in (("alignn", "line_graph_layers"), ("dimenetpp", "out_layers"),
                         ("dimenetpp", "before_skip"), ("dimenetpp", "after_skip"))],
]  # fmt: skip


SEARCH = CAMPAIGN["search"]
ENERGY = card(level="graph", unit="eV")

CONVERTED = [
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "trials": "10"}},
     "'search.trials' is \"10\": write a whole number."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "trials": 1e9}},
     "'search.trials' is 1000000000.0: write a whole number."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "trials": True}},
     "'search.trials' is true: write a whole number."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "rungs": [True, 2]}},
     "'search.rungs.0' is true: write a whole number."),
    (CampaignConfig, {**CAMPAIGN, "seed": True}, "'seed' is true: write a whole number."),
    (CampaignConfig, {**CAMPAIGN, "ensemble": {"per_head": 1}},
     "'ensemble.per_head' is 1: write true or false."),
    (CampaignConfig, {**CAMPAIGN, "ensemble": {"per_head": "yes"}},
     "'ensemble.per_head' is \"yes\": write true or false."),
    (CardConfig, {**ENERGY, "graphs": {"cutoff": True}},
     "'graphs.cutoff' is true: write a number."),
    (CardConfig, {**ENERGY, "graphs": {"cutoff": "5"}},
     "'graphs.cutoff' is \"5\": write a number."),
    (CardConfig, {**ENERGY, "title": 3}, "'title' is 3: write a text in quotes."),
    (MachineConfig, {"slots": "2"}, "'slots' is \"2\": write a whole number."),
    (TrialConfig, {**TRIAL, "model": {"conv": "gat", "options": {"heads": "4"}}},
     "'model': options of conv 'gat': 'heads' is \"4\": write a whole number."),
]  # fmt: skip

OWN_WORDS = [
    (CampaignConfig, {**CAMPAIGN, "space": {"training.learning_rate": [math.nan, 1e-3]}},
     "'space.training.learning_rate.choices.0' is nan: write a finite number."),
    (CampaignConfig, {**CAMPAIGN, "space": {"model.features": {"low": "a", "high": 3}}},
     "'space.model.features.low' is \"a\": write a whole number or a number."),
    (CampaignConfig, {**CAMPAIGN, "space": {"model.layers": 3}},
     "'space.model.layers': is 3: name choices, as [ 2, 4 ], or a range, as { low"),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "rungs": 3}},
     "'search.rungs' is 3: write a list in square brackets."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "constraints": "a < b"}},
     "'search.constraints' is \"a < b\": write a list in square brackets."),
    (CampaignConfig, {**CAMPAIGN, "search": 3}, "'search' is 3: write a table of keys and values."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "brain": "genetic"}},
     "'search.brain' is \"genetic\": write 'gp', 'deephyper', 'optuna', 'random' or 'sobol'."),
    (CampaignConfig, {**CAMPAIGN, "name": "a b"},
     "'name' is \"a b\": write a letter, then letters, digits or _."),
    (CampaignConfig, {**CAMPAIGN, "space": {}}, "'space' is {}: write at least 1 entries."),
    (CampaignConfig, {**CAMPAIGN, "machine": {"lease_seconds": 10**400}},
     "'machine.lease_seconds' is 1000"),
    (CommandConfig, {"argv": "ls"}, "'argv' is \"ls\": write a list in square brackets."),
    (CommandConfig, {"argv": [""]}, "'argv.0' is \"\": write a text that is not empty."),
    (CardConfig, {**ENERGY, "targets": {"a b": {"level": "graph", "unit": "eV"}}},
     "'targets.a b.name' is \"a b\": write a letter, then letters, digits or _."),
    (CardConfig, {**ENERGY, "files": [{"path": "a", "sha256": "x"}]},
     "'files.0.sha256' is \"x\": write the 64 hexadecimal digits of a SHA-256."),
    (CardConfig, {**ENERGY, "k" * 999: 3}, f"unknown key '{'k' * 97}...'. Known: "),
]  # fmt: skip


# Each of these was accepted, and then filled the memory or never ended.
TOO_LARGE = [
    (ModelConfig, {"conv": "schnet", "basis_size": 10**9},
     "'basis_size' is 1000000000: write a number of at most 1000 (number of radial functions)."),
    (ModelConfig, {"conv": "schnet", "features": 10**6},
     "'features' is 1000000: write a number of at most 65536 (channels per node)."),
    (ModelConfig, {"conv": "schnet", "cutoff": 1e3},
     "'cutoff' is 1000.0: write a number of at most 100 (longest edge used, in angstrom)."),
    (HeadConfig, {"hidden": 10**9}, "'hidden' is 1000000000: write a number of at most 65536"),
    *[(ModelConfig, {"conv": conv, "options": {name: 10**9}},
       f"options of conv '{conv}': '{name}' is 1000000000: write a number of at most")
      for conv, name in (("schnet", "filters"), ("mfc", "max_degree"), ("dimenetpp", "int_emb"),
                         ("gat", "heads"))],
    (CardConfig, {**ENERGY, "graphs": {"cutoff": 1e308}},
     "'graphs.cutoff' is 1e+308: write a number of at most 100 (largest edge length in angstrom)."),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "initial": 10**8}},
     "'search.initial' is 100000000: write a number of at most 100000 (number of trials"),
    (CampaignConfig, {**CAMPAIGN, "search": {**SEARCH, "constraints": ["a > 1"] * 101}},
     "'search.constraints' is [\"a > 1\", "),
    (CampaignConfig, {**CAMPAIGN, "space": {"a": {"low": 0, "high": 1e9, "step": 0.5}}},
     "'space.a': a step of 0.5 makes more than 100000 values: enlarge or drop it."),
    (CampaignConfig, {**CAMPAIGN, "space": {"a": {"low": 0, "high": 1e300}}},
     "'space.a.high' is 1e+300: write a number of at most 1e+15 (largest value of a range)."),
    (MachineConfig, {"lease_seconds": 1e300},
     "'lease_seconds' is 1e+300: write a number of at most 86400 (seconds after which a rank"),
    (CommandConfig, {"argv": ["x"], "timeout": 1e300}, "'timeout' is 1e+300: write a number of at"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "values", "sentence"), WRONG + CONVERTED + OWN_WORDS + TOO_LARGE
)
def test_sentences(schema, values, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_config(values, schema, "here.toml")
    message = str(caught.value)
    assert message.startswith(f"here.toml: {sentence}"), message
    assert "\n" not in message
    assert not re.search("pydantic|nput should|tring should|valid dict|instance of", message)
    assert "x" * 200 not in message, "long values are cut"


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.toml"
    with pytest.raises(ConfigError, match=r"a.toml: cannot be read \(No such file"):
        read_toml(path)
    path.write_text("a = 1\na = 2\n")
    with pytest.raises(ConfigError, match=r"a.toml: is not valid TOML: .*line 2"):
        read_toml(path)
    path.write_bytes(b"a = '\xff\xfe'")  # Latin-1
    with pytest.raises(ConfigError, match=r"a.toml: is not UTF-8 text \(line 1\). Save it"):
        read_toml(path)


NUMBER = "3" * 5000


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a = " + "[" * 100_000, "more than 50 tables or lists stand inside each other: write it"),
        ("a" + ".a" * 100_000 + " = 1", "more than 50 tables or lists stand inside each other: w"),
        ("[[a" + " . 'a'" * 100_000 + "]]", "more than 50 tables or lists"),
        ("b = {c = 1, a" + '."a"' * 100_000 + " = 1}", "more than 50 tables or lists"),
        ("".join(f"a{n}{'.a' * 40} = 1\n" for n in range(3000)), "its keys have more than 100,000"),
        ('"' + 100_000 * "k" + '" = 1\n' * 2, "is not valid TOML: "),
        ("a = " + "{a = " * 3000, "more than 50 tables or lists"),
        ("a = " + "[" * 60 + "]" * 60, "more than 50 tables or lists"),
        (f"[{'.'.join('a' * 3000)}]", "more than 50 tables or lists"),
        (f"a = {NUMBER}", "it holds a number of thousands of digits: correct it."),
        (f"a = 0x{NUMBER}", "it holds a whole number of more than 64 bits: correct it."),
        (f"a = {2**63}", "it holds a whole number of more than 64 bits: correct it."),
    ],
)
def test_toml_that_no_person_writes(tmp_path, content, sentence):
    path = tmp_path / "a.toml"
    path.write_text(content)
    began = time.process_time()
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {sentence}")) as caught:
        read_toml(path)
    assert len(str(caught.value)) - len(str(path)) < 200
    assert time.process_time() - began < 3.0


def test_a_toml_file_without_end(tmp_path):
    path = tmp_path / "a.toml"
    with path.open("wb") as file:
        file.truncate(500_000_000)
    with pytest.raises(ConfigError, match="has 500000000 bytes, more than 4194304; split it"):
        read_toml(path)


def test_a_mark_of_the_byte_order_is_no_content(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfname = 'a'\r\n")
    assert read_toml(path) == {"name": "a"}


def test_pipes_and_devices_are_no_settings(tmp_path):
    os.mkfifo(tmp_path / "f.toml")
    for path in (tmp_path / "f.toml", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match="is a folder, pipe or device; name a TOML file"):
            read_toml(path)
    with pytest.raises(ConfigError, match="is a device or a pipe; give a file"):
        find_resource("/dev/zero", "graph_datasets")


def test_a_file_of_structures_is_pointed_to_init(tmp_path):
    path = tmp_path / "data.xyz"
    path.write_text("1\n\nH 0 0 0\n")
    with pytest.raises(ConfigError, match="'hydragnn-hpo init .*data.xyz' writes a card"):
        load_config(path, CampaignConfig)
    (tmp_path / "bad.toml").write_text("1")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "bad.toml", CampaignConfig)
    assert "init" not in str(caught.value)


def test_a_value_per_atom_has_a_unit_that_an_ensemble_can_have():
    known = {"level": "graph", "per_atom": True}
    assert parse_config(known | {"unit": "muB"}, TargetConfig, "here").per_atom
    with pytest.raises(ConfigError, match="per_atom would make the unit GPa/atom, which is not"):
        parse_config(known | {"unit": "kbar"}, TargetConfig, "here")
