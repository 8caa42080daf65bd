"""One trained model of an ensemble."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from hydragnn_hpo.config.convs.user import is_user_conv
from hydragnn_hpo.config.counting import parameters
from hydragnn_hpo.config.fit import Heads
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.precision import DTYPES


@dataclass(frozen=True)
class Member:
    """A model that is ready to predict, and its share in the mean of each head."""

    trial: str
    """Name of the trial."""
    weights: Mapping[str, float]
    """Share in the mean of each head that it takes part in, > 0."""
    model: MultiHeadGNN
    """The net, in evaluation mode, without gradients of its weights."""
    cutoff: float
    """Longest edge it uses, in angstrom."""
    dtype: torch.dtype
    """Floating point type of its weights."""
    max_neighbors: int | None = None
    """Cap on the neighbours of a node."""
    signature: str = ""
    """What the net computes, weights and type aside; equal ones share compiled code and can be
    stacked. Empty where that is not known: a user's own conv."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the targets it predicts."""
        return tuple(self.model.baselines)

    def in_precision(self, precision: str) -> Self:
        """Give the same member computing in ``fp32`` or ``fp64``."""
        dtype = DTYPES[precision]
        return replace(self, model=self.model.to(dtype), dtype=dtype)


def make_member(
    config: TrialConfig,
    tensors: Mapping[str, Tensor],
    targets: Mapping[str, Mapping[str, Any]],
    *,
    weights: Mapping[str, float],
    where: str,
) -> Member:
    """Build a trial's net around its weights.

    The weights are counted before anything is built, so that a configuration cannot ask
    for more memory than its weights take on disk.

    Args:
        config: the trial.
        tensors: weights and buffers by name.
        targets: target statistics by name; a baseline per element is among the weights.
        weights: share in the mean by head.
        where: file named in the error.

    Raises:
        DataError: configuration, heads and weights do not fit, or a weight is not finite.
    """
    _check(config, tensors, targets, where)
    dtype = DTYPES[config.training.precision]
    with torch.random.fork_rng(devices=[]):
        learned = config.training.balance == "uncertainty"
        model = MultiHeadGNN(config.model, config.heads, targets, learn_weights=learned).to(dtype)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise DataError(
            f"{where}: the weights of trial '{config.trial}' do not fit its configuration "
            f"({reason}); build the ensemble anew."
        ) from error
    model.eval().requires_grad_(False)
    cap = config.model.max_neighbors
    signature = signature_of(config, targets)
    return Member(config.trial, weights, model, config.model.cutoff, dtype, cap, signature)


def signature_of(config: TrialConfig, targets: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what a trial's net computes, its numbers aside; empty for a user's own conv."""
    if is_user_conv(config.model.conv):
        return ""
    known = {
        "model": config.model.model_dump(mode="json"),
        "heads": {
            name: [
                head.model_dump(mode="json", exclude={"weight", "loss", "beta"}),
                {
                    key: targets[name].get(key)
                    for key in ("level", "shape", "energy", "derived_from")
                },
            ]
            for name, head in config.heads.items()
        },
        "learned": config.training.balance == "uncertainty",
    }
    return json.dumps(known, sort_keys=True)


def _check(
    config: TrialConfig,
    tensors: Mapping[str, Tensor],
    targets: Mapping[str, Mapping[str, Any]],
    where: str,
) -> None:
    """Refuse what does not fit before anything is built."""
    try:
        parse({"heads": config.heads, "targets": targets, "model": config.model}, Heads, where)
    except ConfigError as error:
        raise DataError(str(error)) from error
    wanted = parameters(config.model, config.heads, targets)
    found = sum(v.numel() for v in tensors.values())
    if wanted > found:
        raise DataError(
            f"{where}: trial '{config.trial}' has {found} weights, its configuration makes "
            f"{wanted}; build the ensemble anew."
        )
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise DataError(f"{where}: trial '{config.trial}' has weights that are not finite.")
