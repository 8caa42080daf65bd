"""Choose the members of an ensemble in every way there is, on ``sel``, and say which is kept.

Shapes: C candidates, R rows of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hydragnn_hpo.ensemble.building.bench import Bench, flops_per_graph
from hydragnn_hpo.ensemble.building.diversity import diversity
from hydragnn_hpo.ensemble.building.select import (
    FLOOR,
    ScoredHead,
    Terms,
    greedy,
    loss,
    per_head,
    top_k,
)
from hydragnn_hpo.ensemble.uncertainty.scores import mae

Method = Literal["top", "greedy"]
Weights = dict[str, np.ndarray]
"""Of the candidates, [C], by head; each sums to 1."""

ENOUGH = 300
"""Groups in ``sel`` from which on greedy selection is better than the K best."""


@dataclass(frozen=True)
class Choice:
    """Members and weights by each method, and the one that is kept."""

    kept: Method
    why: str
    """Why that one."""
    weights: dict[Method, Weights]
    selection: dict[str, Any]
    """How each does on ``sel``, beside the best single: plain data for the table."""

    @property
    def best(self) -> Weights:
        """Give the weights of the method that is kept."""
        return self.weights[self.kept]

    @property
    def needed(self) -> list[int]:
        """List the candidates that any method takes, and the first: the best single."""
        every = [w for by_head in self.weights.values() for w in by_head.values()]
        return [int(c) for c in np.flatnonzero(members_of(every) | (np.arange(len(every[0])) == 0))]

    def shares(self, rows: Sequence[int]) -> dict[str, Weights]:
        """Give the weights of some candidates by method and head, [len(rows)] each."""
        return {
            method: {name: share[list(rows)] for name, share in by_head.items()}
            for method, by_head in self.weights.items()
        }


def members_of(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Say which candidates any head gives weight to, [C]."""
    taken: np.ndarray = np.any(np.stack(list(weights)) > 0, axis=0)
    return taken


def choose(bench: Bench) -> Choice:
    """Choose by both methods, from what the candidates predicted on ``sel`` alone."""
    config, heads = bench.campaign.ensemble, scored_heads(bench)
    costs = [flops_per_graph(c.config.model, bench.graphs.stats) for c in bench.candidates]
    scored, objectives = list(heads.values()), [c.objective for c in bench.candidates]
    terms = Terms(config.rounds, most=config.members, price=config.price, costs=costs)
    if config.per_head:
        # Nothing is saved by fewer members: each head says what a further one is worth to it.
        fill = terms if config.price else replace(terms, floor=max(config.members, FLOOR))
        mixed = per_head(scored, greedy(scored, fill) > 0, terms)
    else:
        mixed = [greedy(scored, terms)] * len(heads)
    weights: dict[Method, Weights] = {
        "top": dict.fromkeys(heads, top_k(objectives, config.members)),
        "greedy": dict(zip(heads, mixed, strict=True)),
    }
    kept, why = method_of(config.method, min(bench.groups(name, "sel") for name in heads))
    selection: dict[str, Any] = {
        method: _seen(heads, mix, costs) | {"members": _named(bench, mix)}
        for method, mix in weights.items()
    }
    alone = dict.fromkeys(heads, np.eye(len(objectives))[0])
    selection["single"] = _seen(heads, alone, costs) | {"members": _named(bench, alone)}
    return Choice(kept, why, weights, selection)


def method_of(wanted: Literal["auto", "top", "greedy"], groups: int) -> tuple[Method, str]:
    """Say which method is kept, and why.

    Args:
        wanted: ``auto``, ``top`` or ``greedy``, as the campaign says.
        groups: independent groups of ``sel`` that have the rarest target.
    """
    if wanted != "auto":
        return wanted, f"the campaign says ensemble.method = '{wanted}'"
    enough = "at least" if groups >= ENOUGH else "fewer than"
    why = (
        f"sel holds {groups} independent groups, {enough} the {ENOUGH} that greedy selection needs"
    )
    return ("greedy" if groups >= ENOUGH else "top"), why


def compare_members(bench: Bench, weights: Weights) -> dict[str, Any]:
    """Give the diversity of each head's members on ``sel``, and who they are."""
    stored, found = bench.stored("sel"), {}
    for name, share in weights.items():
        truth, mask = bench.truth(name, "sel")
        chosen = np.flatnonzero(share)
        seen = diversity(stored[name][chosen][:, mask], truth[mask], share[chosen])
        found[name] = {"members": [bench.candidates[c].trial for c in chosen]} | seen.to_plain()
    return found


def scored_heads(bench: Bench) -> dict[str, ScoredHead]:
    """Give each head's predictions on ``sel`` beside the truth, with its share in the loss."""
    common = bench.campaign.trial.get("heads", {})
    shares = {name: float(common.get(name, {}).get("weight", 1.0)) for name in bench.targets}
    stored, heads = bench.stored("sel"), {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "sel")
        weight = shares[name] / sum(shares.values()) / bench.scale(name)
        heads[name] = ScoredHead(stored[name][:, mask], truth[mask], weight)
    return heads


def _seen(
    heads: Mapping[str, ScoredHead], weights: Weights, costs: Sequence[float]
) -> dict[str, Any]:
    """Give loss, errors by head and cost of a mix on ``sel``."""
    members = members_of(list(weights.values()))
    return {
        "sel_loss": sum(loss([head], weights[name]) for name, head in heads.items()),
        "sel_mae": {
            name: mae(np.tensordot(weights[name], head.predictions, 1), head.truth)
            for name, head in heads.items()
        },
        "flops_per_graph": float(np.asarray(costs)[members].sum()),
    }


def _named(bench: Bench, weights: Weights) -> list[dict[str, Any]]:
    """Name the members of a mix, each with its weights by head and their mean."""
    return [
        {
            "trial": bench.candidates[c].trial,
            "weight": float(np.mean([share[c] for share in weights.values()])),
            "weights": {name: float(share[c]) for name, share in weights.items() if share[c]},
        }
        for c in np.flatnonzero(members_of(list(weights.values())))
    ]
