"""A trunk is taken over from another trial, and may be kept as it is."""

import pytest
import torch

from hydragnn_hpo.errors import ConfigError


@pytest.fixture
def taught(train, tmp_path):
    """A trained trial's checkpoint, and its trunk."""
    trainer = train(heads={"charge": {}}, seed=8)
    trainer.run(2, lambda: "go", tmp_path)
    trainer.use_best()
    weights = {n: p.detach().clone() for n, p in trainer.model.trunk.named_parameters()}
    return tmp_path / "best.safetensors", weights


@pytest.mark.parametrize("frozen", [False, True])
def test_a_trunk_is_taken_over(train, taught, frozen):
    path, weights = taught
    trainer = train(seed=1, start_from=str(path), freeze_trunk=frozen, balance="uncertainty")
    heads = [p.detach().clone() for p in trainer.model.heads.parameters()]
    for name, parameter in trainer.model.trunk.named_parameters():
        assert torch.equal(parameter, weights[name])
    trainer.run(2, lambda: "go")
    moved = [not torch.equal(p, weights[n]) for n, p in trainer.model.trunk.named_parameters()]
    assert not any(moved) if frozen else all(moved)
    pairs = zip(trainer.model.heads.parameters(), heads, strict=True)
    assert all(not torch.equal(now, before) for now, before in pairs)
    assert trainer.model.log_variances.abs().min() > 0


def test_a_trunk_of_another_shape_is_refused(train, taught):
    path, _ = taught
    with pytest.raises(ConfigError, match="start_from: the trunk in .* has another shape"):
        train(start_from=str(path), model={"layers": 2})
    with pytest.raises(ConfigError, match="training.start_from: .*none.safetensors"):
        train(start_from=str(path.parent / "none.safetensors"))


def test_freezing_needs_something_learned(train):
    with pytest.raises(ValueError, match="freeze_trunk keeps a trunk that has learned nothing"):
        train(freeze_trunk=True)
