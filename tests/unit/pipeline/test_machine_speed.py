"""This computer as fast as it trains now, and campaigns that fit no time."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hydragnn_hpo.config import find_profile
from hydragnn_hpo.pipeline import machine_speed
from hydragnn_hpo.pipeline.campaign_changes import fit_to_time
from hydragnn_hpo.pipeline.machine_speed import (
    FACTORS,
    explain_late,
    measure_machine,
    measure_slowdown,
)
from hydragnn_hpo.placement import CostModel
from hydragnn_hpo.resources import resource_path

CORES = [SimpleNamespace(device="cpu")] * 2


@pytest.fixture(scope="module")
def report():
    """What the probe says here."""
    return json.loads(subprocess.check_output([sys.executable, "-c", machine_speed.MEASURE]))


@pytest.mark.parametrize(("times", "factor"), [(3.0, 3.0), (1e3, FACTORS[1]), (1e-3, FACTORS[0])])
def test_the_factor_is_a_steps_time_over_its_price(times, factor, report, monkeypatch):
    assert 1e-4 < report["seconds"] < 10.0
    profile = find_profile(None)
    # by hand: the formula's overhead of a step and its two rounds, and not much more
    overhead = profile.step_seconds + 2 * profile.layer_seconds
    answer = json.dumps(report | {"seconds": times * 1.75 * overhead}).encode()
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: answer)
    assert measure_slowdown(profile) == pytest.approx(factor, rel=0.3)


def test_without_an_answer_prices_are_those_of_the_profile(monkeypatch):
    def fail(*_, **__):
        raise subprocess.TimeoutExpired("probe", 1.0)

    monkeypatch.setattr(subprocess, "check_output", fail)
    assert measure_slowdown(find_profile(None)) == 1.0


def test_a_slow_computer_takes_as_many_times_as_long(report, monkeypatch):
    config = machine_speed.TrialConfig.model_validate_json(report["config"])

    def seconds(factor, slots=CORES):
        monkeypatch.setattr(machine_speed, "measure_slowdown", lambda profile: factor)
        machine, why = measure_machine(slots)
        epoch = CostModel(report["stats"], machine.profile).price(config).epoch_seconds(1)
        return epoch, machine.overhead, machine.profile.cold_start_seconds, bool(why)

    *plain, said = seconds(1.0)
    assert not said
    assert seconds(4.0) == (*(pytest.approx(4.0 * one) for one in plain), True)
    gpus = [SimpleNamespace(device="cuda:0")]
    assert seconds(4.0, gpus) == (*plain, False)


def test_a_time_that_cannot_be_kept_is_said_with_what_is_needed(tmp_path, monkeypatch):
    assert explain_late(70.0, 1.0) is None
    assert "--minutes 1 cannot be kept" in explain_late(301.0, 1.0)
    assert "about 6 here" in explain_late(301.0, 1.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine_speed, "measure_slowdown", lambda profile: 20.0)
    quickstart = resource_path("workflows/quickstart.toml")
    _, why = fit_to_time(quickstart, {}, 1.0)
    assert why[-1].startswith("WARNING: --minutes 1 cannot be kept")
    assert "times as long here" in why[-2]
