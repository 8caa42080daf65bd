"""Engines change nothing but the time: neither do batch sizes nor the order of members."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replays import replay_on_cpu

from hydragnn_hpo.ensemble.engine import EagerEngine, predict_in_halves, signature_of
from hydragnn_hpo.ensemble.inference import Ensemble, make_engine
from hydragnn_hpo.ensemble.stacked_engine import (
    CannotStack,
    StackedEngine,
    check_same_output,
    group_by_signature,
)
from hydragnn_hpo.model.gnn import MultiHeadGNN
from tests.unit.ensemble.conftest import toy_columns, trial_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ensemble(built_zip):
    return Ensemble.load(built_zip)


@pytest.fixture(scope="module")
def columns():
    return toy_columns()[0]


def predictions_by(engine, columns, rows, size):
    """Collect what each member says of some graphs, asked in batches of ``size``."""
    result = {}
    for first in range(0, len(rows), size):
        for member, heads in engine.predict(columns, rows[first : first + size]):
            for name, values in heads.items():
                result.setdefault((member.trial, name), []).append(values.double().numpy())
    return {key: np.concatenate(values) for key, values in result.items()}


def assert_same(actual, wanted, limit=1e-5):
    assert set(actual) == set(wanted)
    for key, values in wanted.items():
        assert np.abs(actual[key] - values).max() <= limit * np.abs(values).max(), key


def twins(ensemble, count=3, **model):
    """Members that differ in their weights alone: like t0002, or with some options of a model."""
    config = trial_config("t0002", 0)
    first = next(m for m in ensemble.members if m.trial == "t0002")
    if model:
        settings = config.model.model_validate({"cutoff": 4.0, "basis_size": 6, **model})
        config = config.model_copy(update={"model": settings})
        first = replace(first, signature="another")
    members = []
    for number in range(count):
        torch.manual_seed(number)
        model = MultiHeadGNN(config.model, config.heads, ensemble.manifest.targets())
        members.append(replace(first, trial=f"twin{number}", model=model.eval()))
        model.requires_grad_(False)
    return members


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(size=st.integers(1, 40), order=st.permutations(range(6)), kind=st.sampled_from("es"))
def test_engine_batch_size_and_order_change_nothing(ensemble, columns, size, order, kind):
    rows = np.arange(40)
    members = [ensemble.members[place] for place in order]
    engine = {
        "e": lambda: EagerEngine(members, CPU),
        "s": lambda: StackedEngine(members, CPU),
    }[kind]()

    actual = predictions_by(engine, columns, rows, size)

    assert_same(actual, predictions_by(EagerEngine(ensemble.members, CPU), columns, rows, 40))
    assert [m.trial for m, _ in engine.predict(columns, rows[:2])] == [m.trial for m in members]


class FullEngine(EagerEngine):
    """Has memory for 12 structures, and sees it after its first member."""

    def predict(self, graphs, indices):
        for number, result in enumerate(super().predict(graphs, indices)):
            if number == 1 and len(indices) > 12:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            yield result


def test_where_memory_runs_out_halves_of_a_batch_give_the_same(ensemble, columns, caplog):
    rows = np.random.default_rng(0).permutation(40)
    wanted = list(EagerEngine(ensemble.members, CPU).predict(columns, rows))
    halves = predict_in_halves(FullEngine(ensemble.members, CPU), columns, rows, CPU)
    assert [member.trial for member, _ in halves] == [member.trial for member, _ in wanted]
    for (_, heads), (_, expected) in zip(halves, wanted, strict=True):
        assert set(heads) == set(expected)
        for name, values in expected.items():
            torch.testing.assert_close(heads[name], values, rtol=0, atol=1e-5)
    assert [int(message.split()[3]) for message in caplog.messages] == [40, 20, 20]


def test_a_structure_that_no_memory_holds_is_an_error(ensemble, columns):
    class Broken(EagerEngine):
        def predict(self, graphs, indices):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        predict_in_halves(Broken(ensemble.members, CPU), columns, np.arange(3), CPU)


def test_stacked_twins_say_what_they_say_alone(ensemble, columns):
    members = [*twins(ensemble), *ensemble.members]
    engine = StackedEngine(members, CPU)
    rows = np.arange(25)

    actual = predictions_by(engine, columns, rows, 11)

    assert_same(actual, predictions_by(EagerEngine(members, CPU), columns, rows, 25))
    assert [stack is not None for stack in engine._stacks.values()] == [True]
    assert not np.allclose(actual["twin0", "energy"], actual["twin1", "energy"])


def test_replayed_members_say_what_they_say_alone(ensemble, columns, monkeypatch):
    replay_on_cpu(monkeypatch.setattr)
    members = [*twins(ensemble), *ensemble.members]
    engine = StackedEngine(members, CPU)
    rows = np.arange(25)
    engine.replays = engine._make_replays()
    assert engine.replays

    results = [predictions_by(engine, columns, rows, 11) for _ in range(3)]

    recordings = [len(replays.recordings) for replays in engine.replays.values()]
    assert min(recordings) > 0
    assert not any(replays.problem for replays in engine.replays.values())
    wanted = predictions_by(EagerEngine(members, CPU), columns, rows, 25)
    for each in results:
        assert_same(each, wanted)
    assert [member.trial for member, _ in engine.predict(columns, rows[:3])] == [
        member.trial for member in members
    ]


def test_members_are_grouped_by_what_they_compute_and_their_type(ensemble):
    first, *others = twins(ensemble)
    double = replace(first, trial="double", dtype=torch.float64)
    unknown = [replace(first, trial=name, signature="") for name in ("u1", "u2")]

    groups = group_by_signature([first, double, *unknown, *others])

    assert [[m.trial for m in group] for group in groups] == [
        ["twin0", "twin1", "twin2"],
        ["double"],
        ["u1"],
        ["u2"],
    ]


def test_nets_that_were_trained_with_other_weights_of_heads_are_stacked(ensemble):
    config = trial_config("t0002", 0)
    targets = ensemble.manifest.targets()
    weights = {"weight": 3.0, "stage_two_weight": 9.0}
    heads = {name: head.model_copy(update=weights) for name, head in config.heads.items()}
    other = config.model_copy(update={"heads": heads})
    assert signature_of(other, targets) == signature_of(config, targets) != ""


@pytest.mark.slow
def test_a_stack_that_answers_otherwise_is_not_used(ensemble, columns, monkeypatch, caplog):
    members = twins(ensemble)
    rows = np.arange(9)
    monkeypatch.setattr(
        "hydragnn_hpo.ensemble.stacked_engine.vmap",
        lambda one: (
            lambda weights: {
                name: torch.ones(3, *values.shape)
                for name, values in one({k: v[0] for k, v in weights.items()}).items()
            }
        ),
    )

    actual = predictions_by(StackedEngine(members, CPU), columns, rows, 9)

    assert_same(actual, predictions_by(EagerEngine(members, CPU), columns, rows, 9))
    assert "members twin0, twin1, twin2 are not stacked" in caplog.text


def test_answers_are_compared_head_by_head():
    wanted = {"a": torch.tensor([1.0, -200.0]), "b": torch.tensor([1e-3])}
    check_same_output({"a": wanted["a"] + 1e-3, "b": wanted["b"]}, wanted, torch.float32)
    with pytest.raises(CannotStack, match="answers for b"):
        check_same_output({"a": wanted["a"], "b": wanted["b"] * 1.0001}, wanted, torch.float32)
    with pytest.raises(CannotStack, match="answers for a"):
        check_same_output({"a": wanted["a"] * torch.nan, "b": wanted["b"]}, wanted, torch.float32)
    with pytest.raises(CannotStack, match="it answers a where"):
        check_same_output({"a": wanted["a"]}, wanted, torch.float32)


def test_members_are_stacked_on_a_card_alone(ensemble):
    assert isinstance(make_engine(ensemble.members, CPU), EagerEngine)
    assert isinstance(make_engine(ensemble.members, torch.device("cuda")), StackedEngine)
