"""What is sent while gradients are computed, and what is waited for."""

import time

import pytest
import torch
from torch import nn

from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.trial_config import ParallelConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.model.layers import mlp
from hydragnn_hpo.training.parallel import (
    ModelParallelism,
    TimedAllReduce,
    bucket_mb,
    measure_overlap,
    recompute_rounds,
)
from hydragnn_hpo.training.sharded import find_linear_pairs
from hydragnn_hpo.training.training_parts import parallelize


@pytest.mark.parametrize(
    ("pieces", "total", "exposed"),
    [
        ([], 0.0, 0.0),
        ([(0.0, 3.0)], 3.0, 3.0),  # one piece sets out with the last gradient
        ([(0.0, 2.0), (5.0, 6.0)], 3.0, 1.0),  # the first is hidden
        ([(0.0, 4.0), (3.0, 6.0)], 6.0, 3.0),  # one second counts once
        ([(0.0, 9.0), (1.0, 2.0)], 9.0, 8.0),  # the first arrives last
    ],
)
def test_time_on_the_way_counts_once(pieces, total, exposed):
    assert measure_overlap(pieces) == (total, exposed)
    assert measure_overlap(pieces[::-1]) == (total, exposed)


class Bucket:
    def __init__(self, values):
        self.values = values

    def buffer(self):
        return self.values


class Slow:
    """An all-reduce over two ranks of which the other has 4 everywhere, done when it is told."""

    def __init__(self, values):
        self.values = values
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future

    def end(self):
        self.future.set_result([self.values.add_(2.0)])


def test_the_average_arrives_and_the_time_is_noted(monkeypatch):
    sent = []

    def reduced(values, async_op):
        assert async_op
        sent.append(Slow(values))
        return sent[-1]

    monkeypatch.setattr("torch.distributed.all_reduce", reduced)
    all_reduce = TimedAllReduce(torch.device("cpu"))
    first, last = (all_reduce.average(2, Bucket(torch.tensor([6.0, 8.0]))) for _ in range(2))
    time.sleep(0.02)
    for work in sent:
        work.end()
    assert first.wait().tolist() == last.wait().tolist() == [5.0, 6.0]
    total, exposed = all_reduce.take_times()
    assert 0.02 <= exposed <= total
    assert all_reduce.take_times() == (0.0, 0.0)


TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", "mean": 0.0, "std": 1.0, "unit": "eV"},
    "charge": {"level": "node", "shape": "scalar", "mean": 0.0, "std": 1.0, "unit": "e"},
}


def net(conv="schnet", **settings):
    torch.manual_seed(0)
    model = ModelConfig(conv=conv, features=16, layers=2, cutoff=5.0, **settings)
    return MultiHeadGNN(model, {name: HeadConfig() for name in TARGETS}, TARGETS)


@pytest.mark.parametrize(
    ("mebibytes", "expected"), [(0.5, 1.0), (4.0, 1.0), (20.0, 5.0), (400.0, 25.0)]
)
def test_a_gradient_goes_in_about_four_pieces(mebibytes, expected):
    rows = int(mebibytes * 2**20 / 4 / 1024)
    with torch.device("meta"):
        learned = nn.Linear(1024, rows, bias=False)
        frozen = nn.Linear(1024, 4096)
    assert bucket_mb(nn.ModuleList([learned, frozen.requires_grad_(False)])) == expected


@pytest.mark.parametrize(
    ("settings", "world", "tensor", "held", "sharded"),
    [
        ({}, 4, 1, 4, False),
        ({"shard": "full"}, 4, 1, 4, True),
        ({"shard": "full"}, 1, 1, 1, False),
        ({"tensor": 2}, 4, 2, 2, True),
        ({"tensor": 2}, 3, 1, 3, False),
        ({"shard": "hybrid"}, 16, 1, 4, True),  # four ranks to a host
        ({"shard": "hybrid", "tensor": 2}, 16, 2, 2, True),
        ({"shard": "hybrid", "shard_ranks": 8}, 16, 1, 8, True),
        ({"shard": "hybrid", "shard_ranks": 6}, 16, 1, 2, True),
    ],
)
def test_what_fits_into_a_width(settings, world, tensor, held, sharded):
    config = ParallelConfig(**settings)
    assert config.tensor_ranks(world) == tensor
    assert config.copy_ranks(world, local=4) == held
    assert config.is_sharded(world) is sharded


def test_one_rank_shares_nothing(train):
    ranks = train(epochs=1).parts.ranks
    made = parallelize(net(), ParallelConfig(shard="full", tensor=2), ranks, replays=False)
    assert type(made) is ModelParallelism
    assert made.wrapped is made.model
    assert not made.is_collective


def names_of(model, parts):
    names = {module: name for name, module in model.named_modules()}
    return [(names[first], names[second]) for first, second in find_linear_pairs(model, parts)]


def test_pairs_of_maps_are_shared_where_the_width_between_divides():
    """SchNet: 64 filters and 16 features; heads: 16 and 8."""
    rounds = [
        (f"trunk.convs.{layer}.{part}.0", f"trunk.convs.{layer}.{part}.2")
        for layer in (0, 1)
        for part in ("filter", "out")
    ]
    model = net(options={"filters": 64})
    result = names_of(model, 2)
    assert result[:4] == rounds
    assert [first.split(".")[1] for first, _ in result[4:]] == ["energy", "charge"]
    wide = [pair for pair in rounds if "filter" in pair[0]]
    assert [pair for pair in names_of(model, 32) if "convs" in pair[0]] == wide
    assert names_of(model, 7) == []


class Own(nn.Module):
    """A user's module: what it does with its weights is not guessed."""

    def __init__(self):
        super().__init__()
        self.chain = mlp((8, 8, 8))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (mlp((8, 12, 12, 12, 12, 4)), [("0", "2"), ("4", "6")]),
        (nn.ModuleList([mlp((8, 8, 8)), Own()]), [("0.0", "0.2")]),
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)), []),
        (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), []),
    ],
    ids=["chain", "own", "not by channel", "nothing between"],
)
def test_only_maps_with_a_non_linearity_by_channel_between_are_shared(model, expected):
    assert names_of(model, 4) == expected


def test_recomputing_keeps_less(train):
    """That it changes no bit is seen in ``integration/test_parallel.py``."""
    trainer = train(epochs=1)
    batch = trainer.parts.feed.batch_on_device(trainer.parts.feed.graphs.indices_of("train"))
    sizes = []
    for recompute in (False, True):
        if recompute:
            recompute_rounds(trainer.parts.model.trunk)
        kept = {}

        def pack(tensor, kept=kept):
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            assert trainer.parts.model.train()(batch)["energy"].requires_grad
        sizes.append(sum(kept.values()))
    assert sizes[1] < 0.5 * sizes[0]


def test_a_number_without_a_dimension_is_refused_by_name():
    from hydragnn_hpo.training import sharded

    model = net()
    model.trunk.convs[0].scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ConfigError, match=r"'trunk\.convs\.0\.scale' has no dimension"):
        sharded._check_parameters(model)
