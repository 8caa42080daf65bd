"""The end of an allocation: who says it, and how long before it a trial goes."""

import math

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.walltime import WallTime


def at(now, **environment):
    result = WallTime.of(environment)
    return WallTime(result.end, result.margin, clock=lambda: now)


def test_without_a_word_there_is_no_end():
    assert WallTime.of({}).end == math.inf
    assert not at(1e12).near(1e6, 1e6)


def test_our_own_word_goes_before_slurms():
    slurm = {"SLURM_JOB_END_TIME": "5000"}
    assert WallTime.of(slurm).end == 5000.0
    assert WallTime.of({**slurm, "HYDRAGNN_HPO_END": "4000.5"}).end == 4000.5


@pytest.mark.parametrize(
    ("checkpoint", "look", "margin"),
    [(0.0, 0.0, 30.0), (5.0, 1.0, 30.0), (10.0, 2.0, 32.0), (100.0, 7.0, 307.0)],
)
def test_the_margin_grows_with_checkpoints_and_looks(checkpoint, look, margin):
    for now, near in ((1000.0 - margin - 0.1, False), (1000.0 - margin + 0.1, True)):
        assert at(now, HYDRAGNN_HPO_END="1000").near(checkpoint, look) is near
    assert at(2000.0, HYDRAGNN_HPO_END="1000").near(checkpoint, look)


def test_the_margin_can_be_set():
    environment = {"HYDRAGNN_HPO_END": "1000", "HYDRAGNN_HPO_END_MARGIN": "2.5"}
    assert not at(997.0, **environment).near(100.0, 1.0)
    assert at(998.0, **environment).near(100.0, 1.0)


@pytest.mark.parametrize("text", ["tomorrow", "", "nan", "inf", "-1", "12:00"])
@pytest.mark.parametrize(
    "name", ["HYDRAGNN_HPO_END", "SLURM_JOB_END_TIME", "HYDRAGNN_HPO_END_MARGIN"]
)
def test_what_is_no_number_of_seconds_is_reported(name, text):
    with pytest.raises(ConfigError, match=rf"^{name} is '{text}': give a number of seconds, or "):
        WallTime.of({name: text})
