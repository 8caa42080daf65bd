"""One whole trace per chosen rank and epoch, and a table of what took longest."""

import json
from types import SimpleNamespace

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.training import profiler as module
from hydragnn_hpo.training.profiler import ProfilePlan, costliest_operations
from hydragnn_hpo.training.trial import run_by_hand


def test_a_plan_is_rank_0_and_the_second_epoch_to_come():
    plan = ProfilePlan.of(None, None, world=4, last=9)
    assert plan.ranks == (0,)
    assert [plan.epochs_to_profile(reached, 9) for reached in (0, 5, 8)] == [(2,), (7,), (9,)]
    assert ProfilePlan.of(None, None, world=1, last=1).epochs_to_profile(0, 1) == (1,)
    written = ProfilePlan.of("0,3", "2,5", world=4, last=5)
    assert (written.ranks, written.epochs_to_profile(0, 5)) == ((0, 3), (2, 5))


@pytest.mark.parametrize(
    ("ranks", "epochs", "message"),
    [
        ("4", None, "--profile-ranks: 4 is not among the ranks 0 to 3 of this trial"),
        ("-1", None, "--profile-ranks: -1 is not among"),
        (None, "0", "--profile-epochs: 0 is not among the epochs 1 to 9 of this trial"),
        (None, "2,10", "--profile-epochs: 10 is not among"),
        ("first", None, "--profile-ranks: 'first' is no list of numbers"),
    ],
)
def test_a_wrong_plan_is_one_sentence(ranks, epochs, message):
    with pytest.raises(ConfigError) as error:
        ProfilePlan.of(ranks, epochs, world=4, last=9)
    assert message in str(error.value)


def steps_in(path):
    events = json.loads(path.read_text())["traceEvents"]
    return sum(event.get("name") == "Optimizer.step#AdamW.step" for event in events)


@pytest.mark.parametrize(
    ("plan", "longest", "steps"),
    [
        (ProfilePlan(epochs=(2, 3)), 100, {2: 4, 3: 4}),  # 24 graphs, 7 a step
        (ProfilePlan(epochs=(1,)), 3, {1: 3}),
        (ProfilePlan(ranks=(1,)), 100, {}),
    ],
    ids=["whole", "long", "another rank"],
)
def test_a_trial_writes_one_trace_per_epoch(bench, monkeypatch, plan, longest, steps):
    monkeypatch.setattr(module, "STEPS", longest)
    bench.configure(epochs=3)
    assert run_by_hand(bench.trial, plan)[0] == 0
    folder = bench.trial.attempt(1) / "profile"
    actual = {path.name: steps_in(path) for path in folder.glob("*")}
    assert actual == {f"rank-0-epoch-{epoch}.json": count for epoch, count in steps.items()}


def test_the_table_says_own_time_share_and_calls_of_a_step():
    rows = [
        SimpleNamespace(key=f"op{n}", self_cpu_time_total=1e3 * n, count=4 * n) for n in range(12)
    ]
    lines = costliest_operations(rows, 2, on_gpu=False).splitlines()
    assert len(lines) == 1 + 10
    assert lines[0].split() == ["operation", "ms/step", "share", "calls/step"]
    assert lines[1].split() == ["op11", "5.500", "16.7%", "22.0"]
    assert lines[10].split()[0] == "op2"
