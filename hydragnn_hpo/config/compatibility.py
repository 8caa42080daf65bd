"""Whether heads, trunk and data go together, before anything is built."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from hydragnn_hpo.config.convs import CONV_SPECS, user
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.training_config import TrainConfig
from hydragnn_hpo.errors import unknown


def is_by_gradient(head: HeadConfig, target: Mapping[str, Any]) -> bool:
    """Tell whether a head is the derivative of another head's energy."""
    return bool(target.get("derived_from")) and head.gradient is not False


def reads_state(head: HeadConfig, target: Mapping[str, Any]) -> bool:
    """Tell whether a head needs the state of the trunk's last layer: vectors, another conv."""
    direct_vector = target["shape"] == "vector" and not is_by_gradient(head, target)
    return direct_vector or (head.kind == "conv" and target["level"] == "node")


class TrialHeads(Config):
    """Checked pairing of heads with a store's targets. Read by ``training.trial``."""

    heads: dict[str, HeadConfig]
    targets: dict[str, dict[str, Any]]
    model: ModelConfig
    training: TrainConfig = TrainConfig()
    attributes: dict[str, Any] | None = None
    """What the store knows of whole structures; not checked if left out."""
    laplacian: int | None = None
    """Laplacian encodings that the store holds; not checked if left out."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if user.is_user_conv(self.model.conv):
            user.check_installed(self.model.conv)
        for name, head in self.heads.items():
            if name not in self.targets:
                raise ValueError(unknown("target of a head", name, self.targets))
            target = self.targets[name]
            if target.get("derived_from"):
                self._derivative_fits(name, head, target["derived_from"])
            elif head.gradient:
                raise ValueError(
                    f"head '{name}' is no derivative of an energy: drop gradient, or set "
                    "derived_from in the card."
                )
            if target["shape"] == "vector" and not is_by_gradient(head, target):
                self._vector_fits(name)
            if head.kind == "conv" and (target["level"], target["shape"]) != ("node", "scalar"):
                raise ValueError(
                    f"head '{name}': kind = \"conv\" is for scalars of atoms: drop it."
                )
        self._told()
        return self

    def _derivative_fits(self, name: str, head: HeadConfig, energy: str) -> None:
        what = "stress" if self.targets[name]["shape"] == "tensor" else "forces"
        if self.model.max_neighbors is not None:
            raise ValueError(
                f"head '{name}' predicts {what}, which jump with model.max_neighbors: drop the "
                "cap or the head."
            )
        if not is_by_gradient(head, self.targets[name]):
            if what == "stress":
                raise ValueError(
                    f"head '{name}' is the stress of '{energy}', a gradient of that head: drop "
                    "gradient = false, or the head."
                )
            return
        if energy not in self.heads:
            raise ValueError(
                f"head '{name}' is the gradient of '{energy}', which has no head: add "
                f"heads.{energy}, or drop '{name}'."
            )
        if head.has_variance:
            raise ValueError(
                f"head '{name}' is a gradient and has no variance of its own: let its loss be mae, "
                "mse or huber."
            )
        if self.training.precision == "bf16" and not self.training.bf16_derivatives:
            raise ValueError(
                f"head '{name}' predicts {what}, derivatives of an energy that training.precision "
                '= "bf16" gives 8 bits: use fp32 or tf32, or set training.bf16_derivatives = true.'
            )
        if not self.model.spec.forces:
            able = ", ".join(sorted(key for key, spec in CONV_SPECS.items() if spec.forces))
            raise ValueError(
                f"head '{name}' predicts {what}, conv '{self.model.conv}' does not look at "
                f"distances: use {able}, or drop the head."
            )

    def _vector_fits(self, name: str) -> None:
        if self.targets[name]["level"] != "node":
            raise ValueError(f"head '{name}': vectors per structure cannot be predicted; drop it.")
        if not self.model.spec.vectors:
            able = ", ".join(sorted(key for key, spec in CONV_SPECS.items() if spec.vectors))
            raise ValueError(
                f"head '{name}' predicts a vector per atom, conv '{self.model.conv}' carries "
                f"no vectors: use {able}, or drop the head."
            )

    def _told(self) -> None:
        for name in self.model.attributes:
            if self.attributes is not None and name not in self.attributes:
                known = ", ".join(sorted(self.attributes)) or "none"
                raise ValueError(
                    f"model.attributes names '{name}', which the data do not have. Known: {known}."
                )
        wanted = self.model.encoding_size if self.model.encoding == "laplacian" else 0
        if self.laplacian is not None and wanted > self.laplacian:
            raise ValueError(
                f"model.encoding_size is {wanted}, the store holds {self.laplacian} Laplacian "
                "encodings: lower it, raise graphs.laplacian in the card, or use random_walk."
            )
