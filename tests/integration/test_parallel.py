"""Law 1 for every way to share a model: what comes out is what one rank gives."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # the first trains for all

STEPS = 8
"""50 graphs in steps of 16, twice."""

WAYS = {
    1: ("one", "recompute", "ignored"),
    2: ("ddp", "ddp, recompute", "gradients", "full", "full, recompute", "tensor"),
    4: ("ddp", "full", "hybrid", "tensor x gradients", "tensor x full", "tensor x copies"),
}
"""What ``parallel_ranks.py`` trains at each number of ranks."""

SLOW = ("painn", "forces", "pieces", "frozen")
WORLDS = {2: SLOW, 4: ("painn",)}


@cache
def found(worlds, cases):
    script = Path(__file__).parent / "parallel_ranks.py"
    command = [sys.executable, str(script), worlds, *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def several(world):
    launched = found("1,2", SLOW) if world == 2 else found(str(world), WORLDS[world])
    return launched[str(world)]


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max(
        float(np.abs(np.array(one[name]) - np.array(other[name])).max(initial=0.0)) for name in one
    )


def compare(one, many):
    assert many["steps"] == one["steps"] == STEPS
    assert many["objective"] == pytest.approx(one["objective"], rel=1e-10)
    for part in ("last", "best", "predictions"):
        assert largest_difference(one[part], many[part]) < 1e-10, part


@pytest.mark.parametrize("way", ["ddp", "full"])
def test_two_ranks_give_what_one_gives(way):
    both = found("1,2", ("quick",))
    compare(both["1"]["quick"]["one"], both["2"]["quick"][way])


@pytest.mark.parametrize("case", SLOW)
@pytest.mark.parametrize("way", WAYS[1])
def test_one_rank_gives_the_same_to_the_last_bit(case, way):
    one, other = (found("1,2", SLOW)["1"][case][name] for name in ("one", way))
    assert other["last"] == one["last"]
    assert other["predictions"] == one["predictions"]


@pytest.mark.parametrize(
    ("world", "case", "way"),
    [
        (world, case, way)
        for world, cases in WORLDS.items()
        for case in cases
        for way in WAYS[world]
    ],
)
def test_ranks_give_what_one_gives_however_they_share(world, case, way):
    compare(found("1,2", SLOW)["1"][case]["one"], several(world)[case][way])


HELD = {
    2: {"ddp": 1.0, "gradients": 1 / 2, "full": 1 / 2, "tensor": None},
    4: {"ddp": 1.0, "full": 1 / 4, "hybrid": 1 / 2, "tensor x gradients": None},
}
"""Share of the weights that a rank holds between steps; with shared layers it is less than what
the rest of the mesh explains."""


@pytest.mark.parametrize(("world", "way"), [(w, way) for w, ways in HELD.items() for way in ways])
def test_ranks_hold_no_more_than_their_part(world, way):
    held, expected = several(world)["painn"][way]["held"], HELD[world][way]
    if expected is None:
        rest = {2: 1.0, 4: 1 / 2}[world]
        assert 0.5 * rest < held < 0.9 * rest
    else:  # rows do not quite divide
        assert expected <= held < expected * 1.1


def test_epochs_say_what_sending_took():
    epochs = several(2)["painn"]["ddp"]["sent"]
    assert len(epochs) == 2
    for sent, exposed, backward in epochs:
        assert 0.0 < exposed <= sent <= backward
