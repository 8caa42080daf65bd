"""The multi-headed GNN: one trunk, a head per target, and the screened repulsion of nuclei.

Shapes: G graphs, N nodes, P pairs of edges, w components of a head.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import (
    MAX_ELEMENT,
    HeadConfig,
    ModelConfig,
    is_by_gradient,
    is_graph_scalar,
    mean_degree,
    reads_state,
)
from hydragnn_hpo.data import Batch
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.conv_registry import carries_vectors, gives_forces
from hydragnn_hpo.model.derivatives import attach_strain, forces_and_stress
from hydragnn_hpo.model.edges import Edges, envelope
from hydragnn_hpo.model.heads import HEADS, HeadPlan, TargetBaseline, branch_key, build_branch_mlps
from hydragnn_hpo.model.pooling import pool_mean, pool_sum
from hydragnn_hpo.model.trunk import Trunk, TrunkFeatures

COULOMB = 14.399645
"""Energy of two elementary charges 1 angstrom apart, eV (CODATA 2018)."""

_SHARES = (0.18175, 0.50986, 0.28022, 0.02817)
_RATES = (3.19980, 0.94229, 0.40290, 0.20162)


class ZBL(nn.Module):
    """Ziegler-Biersack-Littmark potential; it ends smoothly where covalent radii touch.

    Source: Ziegler, Biersack, Littmark (1985), The Stopping and Range of Ions in Solids;
    radii of Cordero et al. (2008), doi:10.1039/b801115j, as in ASE.
    """

    radii: Tensor

    def __init__(self) -> None:
        """Take over the radii; nothing is learned."""
        super().__init__()
        from ase.data import covalent_radii

        known = torch.tensor(covalent_radii[: MAX_ELEMENT + 1], dtype=torch.float32)
        self.register_buffer("radii", known, persistent=False)

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Return each node's half of the energy of its pairs in eV, [N, 1]."""
        count = edges.pair_lengths.shape[0]
        ends = (edges.sender[:count], edges.receiver[:count])
        numbers = [batch.numbers.index_select(0, end) for end in ends]
        one, two = (each.to(edges.pair_lengths.dtype) for each in numbers)
        touch = self.radii[numbers[0]] + self.radii[numbers[1]]
        lengths = edges.pair_lengths.clamp(min=1e-3)
        screened = lengths * (one.pow(0.23) + two.pow(0.23)) / 0.46850
        decay = sum(
            c * torch.exp(-rate * screened) for c, rate in zip(_SHARES, _RATES, strict=True)
        )
        energy = COULOMB * one * two / lengths * decay * envelope(lengths / touch, 1.0)
        return edges.sum_messages(edges.expand_pairs(0.5 * energy.unsqueeze(-1)))


Targets = Mapping[str, Mapping[str, Any]]


def variance_key(name: str) -> str:
    """Return the key under which a head's predicted variance stands."""
    return f"{name}:variance"


class MultiHeadGNN(nn.Module):
    """One trunk, one head per target.

    Outputs are in the targets' own units: each head predicts what is left after a baseline
    (the mean, and by default one number per element), in units of the spread that is left.
    Both were fitted on the training split and are kept as buffers. Forces and stress are
    derivatives of their energy's head.
    """

    def __init__(
        self,
        model: ModelConfig,
        heads: Mapping[str, HeadConfig],
        targets: Targets,
        *,
        stats: Mapping[str, Any] | None = None,
        learn_weights: bool = False,
    ) -> None:
        """Build the net; parameters come from torch's global generator.

        Args:
            model: the trunk.
            heads: heads by the name of their target.
            targets: the store's target statistics (``level shape mean std``, and ``elements``
                with ``by_number mean std`` where a baseline per element exists) by name.
            stats: the store's statistics, for convs that scale by the degree and for attributes;
                a net that gets its weights from a file needs none.
            learn_weights: give each head a learned weight in the loss.

        Raises:
            ConfigError: a target has a name that torch does not give away, or a user's conv
                cannot do what a head needs.
        """
        super().__init__()
        self.energies, stats = _energies(model, heads, targets), stats or {}
        state = any(reads_state(head, targets[name]) for name, head in heads.items())
        degree = mean_degree(stats, model.cutoff) if "degree" in stats else 12.0
        told = stats.get("attributes", {})
        self.trunk = Trunk(model, state_is_read=state, degree=degree, attributes=told)
        graph = {n: h for n, h in heads.items() if is_graph_scalar(h, targets[n])}
        self.shared, self.whole = build_branch_mlps(model, graph), nn.Identity()
        self.branches = {name: branch_key(head) for name, head in graph.items()}
        self.heads, self.baselines = nn.ModuleDict(), nn.ModuleDict()
        for name, head in heads.items():
            self._add(name, targets[name], head, model, degree)
        self.repulsion = ZBL() if model.repulsion == "zbl" else None
        self.kinds = {name: str(targets[name].get("energy") or "") for name in heads}
        self.tensors = frozenset(n for n in heads if targets[n]["shape"] == "tensor")
        self.log_variances = nn.Parameter(torch.zeros(len(heads))) if learn_weights else None

    def _add(
        self,
        name: str,
        target: Mapping[str, Any],
        head: HeadConfig,
        model: ModelConfig,
        degree: float,
    ) -> None:
        """Build a target's head, unless it is a derivative, and what it starts from."""
        _check_name(self.heads, name)
        self.baselines[name] = TargetBaseline(target, head)
        if name not in self.energies:
            plan = HeadPlan(model, head, target.get("energy") == "total", degree)
            self.heads[name] = HEADS[target["level"], target["shape"]](plan)

    def forward(self, batch: Batch, only: Collection[str] | None = None) -> dict[str, Tensor]:
        """Predict every target, or ``only`` some: [G, w] or [N, w], in the target's unit.

        A width w is 1, 3 for vectors, 9 for stress. The variance of a head that has one stands
        under ``variance_of(name)``, [G, 1] or [N, 1], in the unit squared.
        """
        names = [n for n in self.baselines if only is None or n in only]
        derived = [name for name in names if name in self.energies]
        if not derived:
            return self._direct(batch, names)
        direct = dict.fromkeys([n for n in names if n not in derived])
        asked = [*direct, *(self.energies[n] for n in derived if self.energies[n] not in direct)]
        with torch.enable_grad():
            moved, positions, strain = attach_strain(batch)
            found = self._direct(moved, list(dict.fromkeys(asked)))
            for energy in dict.fromkeys(self.energies[name] for name in derived):
                forces, stress = forces_and_stress(
                    found[energy], positions, strain, batch, train=self.training
                )
                for name in derived:
                    if self.energies[name] == energy:
                        found[name] = stress if name in self.tensors else forces
        kept = {n: v for n, v in found.items() if n in names or n.partition(":")[0] in names}
        return kept if torch.is_grad_enabled() else {n: v.detach() for n, v in kept.items()}

    def _direct(self, batch: Batch, names: Collection[str]) -> dict[str, Tensor]:
        """Predict what needs no derivative."""
        features = self.trunk(batch)
        found = {}
        for name in names:
            branch = self.branches.get(name, "")
            shared = self.shared[branch] if branch in self.shared else self.whole  # noqa: SIM401
            said = self.heads[name](features, batch, shared)
            found[name] = self.baselines[name](said.mean, batch)
            if self.repulsion is not None and self.kinds[name]:
                found[name] = found[name] + self._repelled(name, features, batch)
            if said.variance is not None:
                found[variance_key(name)] = said.variance.double() * self.std(name).double() ** 2
        return found

    def _repelled(self, name: str, features: TrunkFeatures, batch: Batch) -> Tensor:
        assert self.repulsion is not None
        gather = pool_sum if self.kinds[name] == "total" else pool_mean
        return gather(self.repulsion(batch, features.edges).double(), batch)

    def std(self, name: str) -> Tensor:
        """Return the spread of a target around its baseline on the training split, in its unit."""
        spread: Tensor = self.baselines[name].get_buffer("std")
        return spread


def _energies(
    model: ModelConfig, heads: Mapping[str, HeadConfig], targets: Targets
) -> dict[str, str]:
    """Return the energy of each head that is a derivative, and refuse what a conv cannot do."""
    found = {
        n: targets[n]["derived_from"] for n, h in heads.items() if is_by_gradient(h, targets[n])
    }
    vectors = [name for name in heads if targets[name]["shape"] == "vector" and name not in found]
    if vectors and not carries_vectors(model.conv):
        raise ConfigError(
            f"head '{vectors[0]}' predicts a vector per atom, conv '{model.conv}' carries no "
            "vectors: choose another conv, or drop the head."
        )
    if found and not gives_forces(model.conv):
        raise ConfigError(
            f"head '{next(iter(found))}' is a derivative, conv '{model.conv}' gives none: choose "
            "another conv, or drop the head."
        )
    return found


def _check_name(modules: nn.ModuleDict, name: str) -> None:
    if hasattr(modules, name):
        raise ConfigError(
            f"head '{name}': torch keeps this name for itself; give the target another "
            f'name in the card, with key = "{name}" if the file calls it so.'
        )
