"""Steps are fitted to the memory: estimates beside measurements, pieces beside a slow search."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from hydragnn_hpo.config.trial_size import FULL, weight_copies
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.training import micro_batches
from hydragnn_hpo.training.micro_batches import LITTLE, StepMemory, fit_to_memory, graph_bytes
from hydragnn_hpo.training.training_parts import build_model

from .conftest import difference, go, make_config

MIB = 2**20
WIDE = {"model": {"features": 64, "layers": 3}, "conv": "painn", "global_batch": 24}
STATS = {"mean": 0.0, "std": 1.0, "energy": "total", "unit": "eV"}
TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", **STATS},
    "force": {"level": "node", "shape": "vector", **STATS, "derived_from": "energy"},
}


def fitted(trainer, folder=None):
    return fit_to_memory(
        trainer.parts.config,
        trainer.parts.order,
        trainer.parts.micro,
        trainer.parts.stepper,
        folder,
    )


def crystals(count=8, atoms=24, neighbours=18):
    """Atoms in a row that know their 18 nearest, within 3.5 angstrom."""
    random = np.random.default_rng(2)
    graphs = []
    reach = neighbours // 2
    for number in range(count):
        places = np.arange(atoms)[:, None] + np.array([d for d in range(-reach, reach + 1) if d])
        inside = (places >= 0) & (places < atoms)
        pairs = np.stack((places[inside], np.repeat(np.arange(atoms), neighbours).reshape(
            atoms, neighbours)[inside]), axis=1)  # fmt: skip
        positions = random.random((atoms, 3)) * 0.2
        positions[:, 0] += 0.3 * np.arange(atoms)
        graphs.append(Graph(
            id=str(number), numbers=random.integers(1, 9, atoms).astype(np.int16),
            positions=positions, cell=np.zeros((3, 3)), pbc=np.zeros(3, bool),
            edges=pairs.astype(np.int32), edge_shift=np.zeros((len(pairs), 3), np.int16),
            targets={}, group="x", published=None,
        ))  # fmt: skip
    return replace(columns_of(graphs, {}), stats={"targets": TARGETS, "cutoff": 3.5})


def peak_of(work):
    """Add up what torch's allocator takes and gives back, event by event."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.parametrize("heads", [("energy",), ("energy", "force")], ids=["plain", "forces"])
@pytest.mark.parametrize("conv", ["painn", "schnet", "egnn", "cgcnn"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_estimate_is_near_the_measured_peak(conv, heads, precision):
    columns = crystals()
    head_configs = dict.fromkeys(heads, {})
    config = make_config(conv=conv, heads=head_configs, precision=precision, model={
        "features": 48, "layers": 3, "basis_size": 16, "kernels": "eager"})  # fmt: skip
    net = build_model(config, columns.stats)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    rows = np.arange(len(columns.split))
    batch = make_batch(columns, rows, cutoff=3.5, dtype=dtype, pairs=True)
    learned = list(net.parameters())
    gradients = sum(p.numel() * p.element_size() for p in learned)

    def there_and_back():
        result = net(batch)
        loss = sum(result[name].square().sum() for name in heads)
        torch.autograd.grad(loss, learned, allow_unused=True)

    measured = peak_of(there_and_back) - gradients
    estimated = graph_bytes(config, columns).sum()
    assert estimated == pytest.approx(measured, rel=0.3)


def test_recomputing_keeps_little(columns):
    plain = make_config(**WIDE)
    again = plain.model_copy(update={
        "parallel": plain.parallel.model_copy(update={"recompute": True})})  # fmt: skip
    share = graph_bytes(again, columns).sum() / graph_bytes(plain, columns).sum()
    assert 2 / 4 < share < 3 / 4, "two of three layers and one in work, and what goes between"


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({}, "cuda", 5),  # weight, gradient, two moments, best
        ({"ema": 0.9}, "cuda", 6),
        ({"optimizer": "sgd"}, "cuda", 4),
        ({"ema": 0.9}, "cpu", 11),  # and once more all but the gradient, on its way to disk
    ],
)
def test_numbers_held_per_weight(settings, device, expected):
    assert weight_copies(make_config(**settings).training, cpu=device == "cpu") == expected


@pytest.fixture
def need(train):
    trainer = train(**WIDE)
    return StepMemory(trainer.parts.config, trainer.parts.order, trainer.parts.micro, fixed=1000.0)


def test_the_costliest_share_of_the_epoch_is_looked_at(train):
    trainer = train(global_batch=2)
    need = StepMemory(trainer.parts.config, trainer.parts.order, trainer.parts.micro, fixed=0.0)
    sums = [need.of_graphs[step].sum() for step in trainer.parts.order.steps(0)]
    assert len(sums) == 12
    assert need.bytes(1) == pytest.approx(max(sums))


@pytest.mark.parametrize("share", [2.0, 0.9, 0.5, 0.3, 0.11, 0.01])
def test_the_smallest_number_of_pieces_that_fits(need, share):
    room = need.bytes(1) * share

    def fits(pieces):
        sums = [need.of_graphs[p].sum() for p in need.micro.split(need.share, pieces)]
        return 1000.0 + max(sums) <= room

    graphs = len(need.share)
    expected = next((n for n in range(1, graphs) if fits(n)), graphs)
    assert need.pieces(room) == expected


def test_steps_are_fitted_to_a_small_memory(train, monkeypatch, tmp_path):
    monkeypatch.setattr(micro_batches, "weight_copies", lambda *_, **__: 0)
    whole = train(**WIDE)
    whole.run(2, go)
    alone = fitted(whole)
    monkeypatch.setenv("HYDRAGNN_HPO_MEMORY_MB", str(int(0.7 * alone.estimated_bytes / MIB)))
    monkeypatch.setattr(micro_batches, "rehearse_step", lambda need, stepper: None)
    trainer = train(**WIDE)
    trainer.run(2, go, tmp_path)
    (record,) = [r for r in trainer.records if r["record"] == "memory"]
    assert record["pieces"] == trainer.parts.micro.pieces > 1
    assert record["estimated_bytes"] <= FULL * record["limit_bytes"]
    assert record["limit_bytes"] == int(0.7 * alone.estimated_bytes / MIB) * MIB
    assert 0 < difference(trainer, whole) < 1e-12
    monkeypatch.delenv("HYDRAGNN_HPO_MEMORY_MB")
    again = train(**WIDE)
    again.resume(tmp_path)
    assert fitted(again, tmp_path).pieces == record["pieces"], "as bit-equal as it can be resumed"


def test_what_was_requested_is_not_fitted(train, monkeypatch):
    monkeypatch.setenv("HYDRAGNN_HPO_MEMORY_MB", "1")
    trainer = train(**WIDE, micro_batches=2)
    monkeypatch.setattr(micro_batches, "rehearse_step", None)
    assert fitted(trainer).pieces == 2


def test_small_trials_are_not_rehearsed(train, monkeypatch):
    trainer = train()
    monkeypatch.setattr(micro_batches, "rehearse_step", None)
    result = fitted(trainer)
    assert result.pieces == 1
    assert result.probed_bytes is None
    assert result.estimated_bytes < LITTLE * result.limit_bytes


@pytest.fixture
def crowded(train, monkeypatch):
    """A trainer whose whole step takes half of the memory, by the estimate."""
    monkeypatch.setattr(micro_batches, "weight_copies", lambda *_, **__: 0)
    trainer = train(**WIDE, ema=0.9, balance="uncertainty")
    whole = fitted(trainer).estimated_bytes
    monkeypatch.setenv("HYDRAGNN_HPO_MEMORY_MB", str(int(2 * whole / MIB)))
    return trainer


def test_a_rehearsal_leaves_everything_as_it_was(crowded, monkeypatch):
    """Also where a conv draws at random, as dropout does."""
    crowded.run(1, go)
    forward = crowded.parts.model.forward
    passes = []
    monkeypatch.setattr(
        crowded.parts.model, "forward", lambda b: (passes.append(torch.rand(9)), forward(b))[1]
    )
    before = {n: t.clone() for n, t in crowded.parts.model.state_dict().items()}
    moments = [
        value.clone()
        for state in crowded.parts.state.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    crowded.parts.state.optimizer.zero_grad(set_to_none=True)
    random = torch.get_rng_state()
    result = fitted(crowded)
    assert result.probed_bytes is not None
    assert len(passes) == 1
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[n], t) for n, t in crowded.parts.model.state_dict().items())
    assert all(p.grad is None for p in crowded.parts.model.parameters())
    after = [v for s in crowded.parts.state.optimizer.state.values() for v in s.values()]
    after = [value for value in after if isinstance(value, torch.Tensor)]
    assert len(after) == len(moments) > 0
    assert all(map(torch.equal, after, moments))


@pytest.mark.parametrize(("times", "pieces"), [(0.5, 1), (1.0, 1), (3.0, 2), (7.0, 5)])
def test_what_was_measured_counts(crowded, monkeypatch, times, pieces):
    """A step of half the memory by estimate: 3 times as much needs 1.5 / 0.8 pieces, and so on."""
    need = StepMemory(crowded.parts.config, crowded.parts.order, crowded.parts.micro, fixed=0.0)
    whole = need.bytes(1)

    def taken(work, device):
        work()
        return int(times * whole)

    monkeypatch.setattr(micro_batches, "measure_peak_bytes", taken)
    result = fitted(crowded)
    assert result.pieces in (pieces, pieces + 1), "graphs do not share out evenly"
    assert result.probed_bytes == pytest.approx(times * whole, rel=0.3)
    assert result.estimated_bytes <= FULL * result.limit_bytes


def full(calls):
    """Let a rehearsal run out of memory in its first calls."""
    made = []

    def taken(work, device):
        made.append(work)
        if len(made) <= calls:
            raise MemoryError
        work()

    return taken


def test_a_rehearsal_that_does_not_fit_is_cut(crowded, monkeypatch, tmp_path):
    monkeypatch.setattr(micro_batches, "measure_peak_bytes", full(2))
    result = fitted(crowded, tmp_path)
    assert (result.pieces, result.probed_bytes) == (4, None)
    again = [r["pieces"] for r in crowded.records if r["record"] == "memory"]
    assert again == [2, 4]
    assert (tmp_path / "micro.json").exists()


def test_a_graph_that_does_not_fit_alone_is_found_before_the_first_step(crowded, monkeypatch):
    monkeypatch.setattr(micro_batches, "measure_peak_bytes", full(99))
    with pytest.raises(MemoryError, match=r"structure \d+ of 6 atoms and \d+ edges does not fit"):
        fitted(crowded)
