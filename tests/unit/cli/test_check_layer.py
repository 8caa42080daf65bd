"""``check-layer``: exit codes, one sentence for misuse, JSON, and the user's own line of code."""

import json
import sys

import pytest
import torch

from hydragnn_hpo.cli.command_line import main
from hydragnn_hpo.testing import conv_suite
from hydragnn_hpo.testing.conv_suite import CHECKS

CONV = '''
"""A layer of a user."""

from pydantic import PositiveInt
from torch import nn

from hydragnn_hpo.config.schema import Config

print("this module talks while it is imported")


class Options(Config):
    width: PositiveInt = 4
    word: str = "plain"


class Layer(nn.Module):
    Options = Options
    forces = False

    def __init__(self, dimensions, options):
        super().__init__()
        self.filter = nn.Linear(dimensions.basis_size, dimensions.features)

    def forward(self, scalars, state, edges):
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        return edges.filtered_sum(scalars, filters), None


class Directed(Layer):
    def forward(self, scalars, state, edges):
        along = edges.sum_messages(edges.directions)[:, :1]
        return along + super().forward(scalars, state, edges)[0], None


class Raising(Layer):
    def forward(self, scalars, state, edges):
        return scalars @ self.filter.weight.T, state  # widths do not fit


class NotALayer:
    pass


class BadOptions(Layer):
    Options = dict
'''


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Run the command where a user's module lies; give exit code, stdout and stderr."""
    (tmp_path / "my_layers.py").write_text(CONV)
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "raises.py").write_text("raise ValueError('boom')\n")
    (tmp_path / "torn.py").write_text("def f(:\n")
    quick = {name: CHECKS[name] for name in ("contract", "rotation", "gradient")}
    monkeypatch.setattr(conv_suite, "CHECKS", quick)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads = torch.get_num_threads()

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hydragnn-hpo", "check-layer", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    yield run
    sys.modules.pop("my_layers", None)
    torch.set_num_threads(threads)


def test_a_sound_layer_passes(call):
    code, out, err = call("my_layers:Layer")
    assert code == 0
    assert "All 2 checks passed, 1 left out" in out
    assert "talks while it is imported" in err
    assert "talks" not in out


def test_a_broken_layer_fails_with_instructions(call):
    code, out, _ = call("my_layers:Directed")
    assert code == 1
    assert "Let scalars see only lengths" in out
    assert "1 of 2 checks failed" in out


def test_an_exception_shows_the_users_own_line(call):
    code, out, err = call("my_layers:Raising")
    joined = " ".join(out.split())
    assert code == 1
    assert "it raised RuntimeError: mat1 and mat2 shapes cannot be multiplied" in joined
    assert "scalars @ self.filter.weight.T, state # widths do not fit" in joined
    assert "my_layers.py:" in joined
    assert "Traceback" not in out + err


def test_json_is_one_object_and_nothing_else(call):
    code, out, _ = call("my_layers:Directed", "--json", "--options", "width=8")
    report = json.loads(out)
    assert code == 1
    assert report["options"] == {"width": 8, "word": "plain"}
    assert {c["name"]: c["result"] for c in report["checks"]} == {
        "contract": "passed",
        "rotation": "failed",
        "gradient": "left out",
    }
    assert report["passed"] is False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["my_layers:NotALayer"], "'my_layers' holds no torch module of this name"),
        (["torn:Layer"], "its module cannot be imported (invalid syntax"),
        (["raises:Layer"], "conv 'raises:Layer': its module cannot be imported (boom): mend it."),
        (["ends:Layer"], "its module ends the program when it is imported"),
        (["./my_layers.py:Layer"], "write its module, 'my_layers:Layer'"),
        (["schent"], "Did you mean 'schnet'?"),
        (["my_layers:Layer", "--options", "width"], "write it as key=value"),
        (["my_layers:Layer", "--options", "width=-3"], "'width' is -3: write a number"),
        (["my_layers:BadOptions"], "its Options are no class of settings"),
    ],
)
def test_misuse_is_one_sentence(call, words, sentence):
    code, out, err = call(*words)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if not line.startswith("this module talks")]
    assert len(errors) == 1
