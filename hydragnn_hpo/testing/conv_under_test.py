"""The conv under test, and nets around it.

Shapes: N nodes, E edges, F features.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import Config, HeadConfig, ModelConfig
from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.file_records import TargetStats
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.model.gnn import check_options, find_conv
from hydragnn_hpo.testing.sample_structures import CUTOFF, Structure, batch_structures

LAYERS, BASIS_SIZE = 3, 8
SHAKE = 0.05
"""Standard deviation of the noise that is added to all parameters, so that those initialised to
zero have an effect."""

TARGETS: dict[str, TargetStats] = {
    "energy": {"level": "graph", "shape": "scalar", "unit": "1", "mean": 0.0, "std": 1.0},
    "charge": {"level": "node", "shape": "scalar", "unit": "1", "mean": 0.0, "std": 1.0},
    "arrow": {"level": "node", "shape": "vector", "unit": "1", "mean": 0.0, "std": 1.0},
    "born": {"level": "node", "shape": "tensor", "unit": "1", "mean": 0.3, "std": 1.0},
    "polarization": {"level": "graph", "shape": "vector", "unit": "1", "mean": 0.0, "std": 1.0},
    "dielectric": {"level": "graph", "shape": "tensor", "unit": "1", "mean": 0.3, "std": 1.0},
}
"""Targets of the nets; vectors and tensors only where the conv carries vectors."""


@dataclass(frozen=True, eq=False)
class ConvUnderTest:
    """A conv class with its options."""

    conv: type[nn.Module]
    """The class."""
    options: Config
    """Its validated options."""
    name: str
    """Its name in the report."""
    vectors: bool
    """Whether its state holds vectors."""
    forces: bool
    """Whether it is meant for forces by differentiation."""
    exports: bool
    """Whether torch.export can trace it: no number of rows depends on values."""
    smooth: bool
    """Whether its gradients are continuous, also where neighbours are alike."""
    features: int
    """Channels per node."""
    kernels: Literal["auto", "eager", "numba", "triton"] = "auto"
    """Implementation of the passes over the edges, as in ``model.kernels``."""

    @cached_property
    def net(self) -> MultiHeadGNN:
        """Net around the conv, in fp64, that most checks use."""
        return self.build()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets that the net can predict.

        Returns:
            Keys of ``TARGETS``.
        """
        return tuple(TARGETS) if self.vectors else ("energy", "charge")

    def config(self, layers: int = LAYERS) -> ModelConfig:
        """Return the config of the trunk, with a built-in conv that ``build`` replaces by this."""
        return ModelConfig(
            conv="painn" if self.vectors else "schnet",
            features=self.features,
            layers=layers,
            cutoff=CUTOFF,
            basis_size=BASIS_SIZE,
            kernels=self.kernels,
        )

    def build(
        self,
        *,
        seed: int = 3,
        dtype: torch.dtype = torch.float64,
        targets: Sequence[str] | None = None,
        layers: int = LAYERS,
    ) -> MultiHeadGNN:
        """Build a net in training mode; its parameters depend on the seed alone.

        The class is used as it is, so it may be defined in a notebook or a function.

        Args:
            seed: seed of the parameters.
            dtype: dtype of the parameters.
            targets: names in ``TARGETS``, one head each; None for all that the conv can predict.
            layers: number of message-passing layers.
        """
        names = self.targets if targets is None else targets
        heads = {name: HeadConfig(pool="contributions") for name in names}
        config = self.config(layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = MultiHeadGNN(config, heads, {name: TARGETS[name] for name in names})
            torch.manual_seed(seed)  # again: the replaced conv drew any number of values
            directed = any(TARGETS[name]["shape"] != "scalar" for name in names)
            places = config.dimensions(directed)
            net.trunk.convs = nn.ModuleList(self.conv(each, self.options) for each in places)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.add_(SHAKE * torch.randn_like(parameter))
        net.trunk.has_vectors = self.vectors
        return net.to(dtype).train()

    def predict(self, structures: Sequence[Structure]) -> dict[str, Tensor]:
        """Predict the targets of structures in one batch, in fp64.

        Returns:
            Predictions by target: [G, w] or [N, w] for all G structures with N atoms, row by row.
        """
        return predict_all(self.net, batch_structures(structures))


def predict_all(net: MultiHeadGNN, batch: Batch) -> dict[str, Tensor]:
    """Predict all targets without gradients.

    Returns:
        Predictions by target: [G, w] per graph, or [N, w] per node.
    """
    with torch.no_grad():
        predictions: dict[str, Tensor] = net(batch)
    return predictions


def relative_deviation(values: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to 1 + the largest expected number."""
    if values.shape != expected.shape:
        return float("inf")
    if not values.numel():
        return 0.0
    scale = 1.0 + expected.abs().max()
    return float((values.to(expected.dtype) - expected).abs().max() / scale)


def largest_deviation(values: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest relative deviation of all outputs; NaN if one of them is NaN."""
    each = torch.tensor([relative_deviation(values[name], expected[name]) for name in expected])
    return float(each.max())


def make_conv_under_test(
    conv: str | type[nn.Module],
    options: Mapping[str, Any] | Config | None = None,
    *,
    features: int = 16,
    kernels: Literal["auto", "eager", "numba", "triton"] = "auto",
) -> ConvUnderTest:
    """Find a conv and check its options.

    Args:
        conv: a class, a name in ``CONVS``, or ``my_pkg.my_module:MyConv``.
        options: options of the conv; those left out take their defaults.
        features: channels per node.
        kernels: implementation of the passes over the edges.

    Raises:
        ConfigError: there is no such conv, it is not a torch module, or an option is wrong.
    """
    conv_class = find_conv(conv) if isinstance(conv, str) else conv
    if not (inspect.isclass(conv_class) and issubclass(conv_class, nn.Module)):
        raise ConfigError(f"{conv!r} is no class of torch modules: give the class of a conv.")
    builtin_name = next((name for name, each in CONVS.items() if each is conv_class), None)
    spec: Any = conv_class if builtin_name is None else CONV_SPECS[builtin_name]
    name = conv if isinstance(conv, str) else builtin_name or conv_class.__qualname__
    forces = bool(getattr(spec, "forces", True))
    subject = ConvUnderTest(
        conv=conv_class,
        options=check_options(conv_class, options, name),
        name=name,
        vectors=bool(getattr(spec, "vectors", False)),
        forces=forces,
        exports=bool(getattr(conv_class, "exports", True)),
        smooth=bool(getattr(conv_class, "smooth", forces)),
        features=features,
        kernels=kernels,
    )
    if builtin_name is not None:
        _check_widths(subject, builtin_name)
    return subject


def _check_widths(subject: ConvUnderTest, name: str) -> None:
    """Raise ``ConfigError`` where options of a built-in conv do not fit its dimensions."""
    try:
        CONV_SPECS[name].check(subject.config().dimensions(False)[0], subject.options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
