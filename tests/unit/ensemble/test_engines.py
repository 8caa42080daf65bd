"""Engines change nothing but the time: neither do batch sizes nor the order of members."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replays import replay_on_cpu
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hydragnn_hpo.ensemble import traced_engines
from hydragnn_hpo.ensemble.engine import EagerEngine, batches_by_key, key_of, predict_in_halves
from hydragnn_hpo.ensemble.inference import Ensemble, make_engine
from hydragnn_hpo.ensemble.traced_engines import (
    CannotCompile,
    CompiledEngine,
    StackedEngine,
    cache_key,
    check_same_output,
    group_by_signature,
    run_eagerly,
)
from hydragnn_hpo.files import is_own
from hydragnn_hpo.model.gnn import MultiHeadGNN
from tests.unit.ensemble.conftest import toy_columns, trial_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ensemble(built_zip):
    return Ensemble.load(built_zip)


@pytest.fixture(scope="module")
def columns():
    return toy_columns()[0]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "compiled"


@pytest.fixture
def copied(monkeypatch):
    """Put a copy of the net in place of its machine code, and list those that were made."""
    made = []

    def write(path, member, tensors):
        made.append(member.trial)
        path.write_bytes(b"code")
        path.chmod(0o600)

    monkeypatch.setattr(traced_engines, "compile_to", write)
    monkeypatch.setattr(traced_engines, "load_compiled", lambda path, member: run_eagerly(member))
    return made


@pytest.fixture
def all_copied(copied, monkeypatch):
    """As ``copied``, of members that loops run quicker, too."""
    monkeypatch.setattr(traced_engines, "QUICKER_BY_LOOPS", ())
    return copied


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
@given(size=st.integers(1, 40), order=st.permutations(range(6)), kind=st.sampled_from("ecs"))
def test_engine_batch_size_and_order_change_nothing(
    ensemble, columns, copied, tmp_path, size, order, kind
):
    rows, members = np.arange(40), [ensemble.members[place] for place in order]
    engine = {
        "e": lambda: EagerEngine(members, CPU),
        "c": lambda: CompiledEngine(members, CPU, tmp_path / "compiled"),
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
    engine, rows = StackedEngine(members, CPU), np.arange(25)

    actual = predictions_by(engine, columns, rows, 11)

    assert_same(actual, predictions_by(EagerEngine(members, CPU), columns, rows, 25))
    assert [stack is not None for stack in engine._stacks.values()] == [True]
    assert not np.allclose(actual["twin0", "energy"], actual["twin1", "energy"])


def test_replayed_members_say_what_they_say_alone(ensemble, columns, monkeypatch):
    replay_on_cpu(monkeypatch.setattr)
    members = [*twins(ensemble), *ensemble.members]
    engine, rows = StackedEngine(members, CPU), np.arange(25)
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


@pytest.mark.slow
def test_a_stack_that_answers_otherwise_is_not_used(ensemble, columns, monkeypatch, caplog):
    members, rows = twins(ensemble), np.arange(9)
    monkeypatch.setattr(
        "hydragnn_hpo.ensemble.traced_engines.vmap",
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


def test_each_code_is_compiled_once_whatever_the_batches(ensemble, columns, all_copied, place):
    members, rows = [*twins(ensemble), *ensemble.members], np.arange(40)

    predictions_by(CompiledEngine(members, CPU, place), columns, rows, 7)
    again = CompiledEngine(members, CPU, place)
    predictions_by(again, columns, rows, 13)

    assert sorted(all_copied) == [
        "t0001",
        "t0003",
        "t0004",
        "t0005",
        "t0006",
        "twin0",
    ]  # t0002 is a twin
    assert all(way.startswith("from the cache") for way in again.ways.values())
    assert place.stat().st_mode & 0o777 == 0o700


def test_lone_atoms_and_single_structures_are_not_for_compiled_code(
    ensemble, columns, copied, place
):
    engine = CompiledEngine(ensemble.members, CPU, place)

    actual = predictions_by(engine, columns, np.arange(4), 1)

    assert copied == []
    assert_same(
        actual, predictions_by(EagerEngine(ensemble.members, CPU), columns, np.arange(4), 4)
    )


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("export", "no such operator"),
        ("answers", "its answers for energy are"),
        ("folder", "is not a folder that this user alone can write to"),
    ],
)
def test_what_cannot_be_compiled_stays_as_it_is_and_says_why(
    ensemble, columns, all_copied, place, monkeypatch, caplog, broken, why
):
    def fails(path, member, tensors):
        raise RuntimeError("no such operator\nand much more")

    def off(path, member):
        return lambda tensors: {n: v * 1.001 for n, v in run_eagerly(member)(tensors).items()}

    if broken == "export":
        monkeypatch.setattr(traced_engines, "compile_to", fails)
    elif broken == "answers":
        monkeypatch.setattr(traced_engines, "load_compiled", off)
    else:
        place.write_text("a file")
    engine = CompiledEngine(ensemble.members[:2], CPU, place)

    with caplog.at_level(logging.WARNING):
        actual = predictions_by(engine, columns, np.arange(20), 20)

    assert_same(
        actual,
        predictions_by(EagerEngine(ensemble.members[:2], CPU), columns, np.arange(20), 20),
        0,
    )
    assert why in caplog.text
    assert "much more" not in caplog.text
    assert all(way.startswith("eager: ") for way in engine.ways.values())


@pytest.mark.parametrize("conv", ["et", "pna", "egnn", "schnet", "gin"])
@pytest.mark.parametrize("kernels", ["auto", "eager"])
def test_members_that_loops_run_quicker_are_not_compiled(
    ensemble, columns, copied, place, caplog, conv, kernels
):
    (member,) = twins(ensemble, 1, conv=conv, kernels=kernels)
    engine = CompiledEngine([member], CPU, place)

    actual = predictions_by(engine, columns, np.arange(20), 20)

    assert copied == (["twin0"] if kernels == "eager" or conv == "gin" else [])
    assert engine.ways["twin0"].startswith("compiled" if copied else "eager: loops")
    assert caplog.text == ""
    assert_same(actual, predictions_by(EagerEngine([member], CPU), columns, np.arange(20), 20), 0)


def test_code_that_others_could_have_written_is_made_again(ensemble, columns, all_copied, place):
    rows, members = np.arange(20), ensemble.members[:1]
    predictions_by(CompiledEngine(members, CPU, place), columns, rows, 20)
    (path,) = place.glob("*.pt2")
    path.chmod(0o622)

    predictions_by(CompiledEngine(members, CPU, place), columns, rows, 20)

    assert all_copied == ["t0001"] * 2
    assert is_own(path)


def test_the_key_is_that_of_the_code_not_of_the_weights(ensemble, columns):
    first, second, *_ = twins(ensemble)
    ((_, batch),) = batches_by_key([key_of(first)], columns, np.arange(4), CPU)
    tensors = {"positions": batch.positions}
    key = cache_key(first.signature, tensors)
    threads = torch.get_num_threads()

    assert key == cache_key(second.signature, tensors)
    assert key != cache_key(ensemble.members[0].signature, tensors)
    assert key != cache_key(first.signature, {"positions": batch.positions.double()})
    try:
        torch.set_num_threads(threads + 1)
        assert key != cache_key(first.signature, tensors)
    finally:
        torch.set_num_threads(threads)


def test_a_link_is_never_taken_for_ones_own_file(tmp_path):
    (tmp_path / "code").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "code")
    (tmp_path / "code").chmod(0o600)

    assert is_own(tmp_path / "code")
    assert not is_own(tmp_path / "link")
    assert not is_own(tmp_path / "nothing")


def test_answers_are_compared_head_by_head():
    wanted = {"a": torch.tensor([1.0, -200.0]), "b": torch.tensor([1e-3])}
    check_same_output({"a": wanted["a"] + 1e-3, "b": wanted["b"]}, wanted, torch.float32)
    with pytest.raises(CannotCompile, match="answers for b"):
        check_same_output({"a": wanted["a"], "b": wanted["b"] * 1.0001}, wanted, torch.float32)
    with pytest.raises(CannotCompile, match="answers for a"):
        check_same_output({"a": wanted["a"] * torch.nan, "b": wanted["b"]}, wanted, torch.float32)
    with pytest.raises(CannotCompile, match="it answers a where"):
        check_same_output({"a": wanted["a"]}, wanted, torch.float32)


def test_engines_are_chosen_by_wish_and_device(ensemble, caplog):
    assert isinstance(make_engine(ensemble.members, CPU), EagerEngine)
    assert isinstance(make_engine(ensemble.members, CPU, compiled=True), CompiledEngine)
    assert isinstance(make_engine(ensemble.members, torch.device("cuda")), StackedEngine)
    assert "compiled for CPUs alone" not in caplog.text
    card = make_engine(ensemble.members, torch.device("cuda"), compiled=True)
    assert isinstance(card, StackedEngine)
    assert "compiled for CPUs alone" in caplog.text


@pytest.mark.stress
def test_machine_code_says_what_the_nets_say_at_any_size(
    ensemble, columns, place, caplog, monkeypatch
):
    """The real compiler: two members that share code, and later sizes it has not seen.

    Torch has been asked for its own cache before, which it has written into the environment.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    members = twins(ensemble, 2, conv="gin", features=8, layers=1)
    rows = np.arange(60)
    wanted = predictions_by(EagerEngine(members, CPU), columns, rows, 60)

    for size in (20, 60, 7):
        engine = CompiledEngine(members, CPU, place)
        assert_same(predictions_by(engine, columns, rows, size), wanted)

    ours = [each for each in caplog.records if each.name.startswith("hydragnn_hpo")]
    assert not [each for each in ours if each.levelno >= logging.WARNING]
    assert set(engine.ways) == {"twin0", "twin1"}
    assert all(way.startswith("from the cache") for way in engine.ways.values())
    assert len(list(place.glob("*.pt2"))) == 1
    assert (place / "inductor").is_dir()
